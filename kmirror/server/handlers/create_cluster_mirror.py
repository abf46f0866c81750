"""CreateClusterMirror (97): a named connection to a source cluster (KIP-1279; the number has moved, see DEVIATIONS).

Versions: 0.

Behaviour: `bootstrap.servers` and `source.cluster.id` are required (the client asks the source for its id before it
sends this); no connection is made here. A bad name, a missing configuration or one that is named twice is
INVALID_REQUEST, an unknown or unparsable one INVALID_CONFIG, a mirror that exists CLUSTER_MIRROR_ALREADY_EXISTS. The
answer comes when the mirror is on disk.

Deviations: the prototypes do not validate at creation.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.create_cluster_mirror import CreateClusterMirrorRequest, CreateClusterMirrorResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: CreateClusterMirrorRequest) -> CreateClusterMirrorResponse:
    configs = {config.name: config.value for config in request.configs}
    try:
        if len(configs) < len(request.configs):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a configuration is named twice")
        await settled(context.world.mirrors.create(request.mirror_name, configs))
    except ApiError as error:
        return CreateClusterMirrorResponse(error_code=error.code, error_message=error.message)
    return CreateClusterMirrorResponse()
