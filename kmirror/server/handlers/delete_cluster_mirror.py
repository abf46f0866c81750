"""DeleteClusterMirror (104): forget a mirror whose topics are all STOPPED (KIP-1279).

Versions: 0.

Behaviour: an unknown mirror is UNKNOWN_CLUSTER_MIRROR, one with a topic that is wanted MIRRORING or PAUSED
CLUSTER_MIRROR_NOT_EMPTY, one with a stop under way INVALID_CLUSTER_MIRROR_STATE. Its topics stay, as ordinary ones, and
what a failback needs to know of them stays recorded.

Deviations: `state_offset` is not looked at: there is one node, so nothing can have changed in between.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.delete_cluster_mirror import DeleteClusterMirrorRequest, DeleteClusterMirrorResponse
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: DeleteClusterMirrorRequest) -> DeleteClusterMirrorResponse:
    try:
        await settled(context.world.mirrors.delete(request.mirror_name))
    except ApiError as error:
        return DeleteClusterMirrorResponse(error_code=error.code, error_message=error.message)
    return DeleteClusterMirrorResponse()
