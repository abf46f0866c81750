"""ListClusterMirrors (98): the mirrors of this cluster (KIP-1279).

Versions: 0.

Behaviour: filters of names and source cluster ids drop mirrors, null lets all pass; the filter of desired states only
chooses which topics of a mirror are counted and named, null stands for MIRRORING and PAUSED. Names of topics are null
unless asked for. A state that does not exist is INVALID_REQUEST.

Deviations: none known.
"""

from __future__ import annotations

from kmirror.mirror.states import Desired
from kmirror.protocol.api.list_cluster_mirrors import (
    ListClusterMirrorsRequest,
    ListClusterMirrorsResponse,
    ListedMirror,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext

VERSIONS = (0, 0)


def handle(context: RequestContext, request: ListClusterMirrorsRequest) -> ListClusterMirrorsResponse:
    wanted = request.desired_state_filter
    known = {desired.value for desired in Desired}
    unknown = [state for state in wanted or () if state.upper() not in known]
    if unknown:
        text = f"{unknown[0]!r} is no desired state; they are {', '.join(sorted(known))}"
        return ListClusterMirrorsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
    response = ListClusterMirrorsResponse()
    for mirror in context.world.mirrors.list(desired=wanted):
        if request.mirror_name_filter is not None and mirror.name not in request.mirror_name_filter:
            continue
        ids = request.source_cluster_id_filter
        if ids is not None and mirror.source_cluster_id not in ids:
            continue
        response.mirrors.append(
            ListedMirror(
                mirror_name=mirror.name,
                source_bootstrap=mirror.source_bootstrap,
                source_cluster_id=mirror.source_cluster_id,
                topic_count=len(mirror.topic_names),
                topic_names=list(mirror.topic_names) if request.include_topic_names else None,
            )
        )
    return response
