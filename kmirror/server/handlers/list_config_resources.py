"""ListConfigResources (74): what can have a configuration (KIP-1142, KIP-714).

Versions: 0-1.

Behaviour: version 0 lists client metrics subscriptions, of which there are none. From version 1 the types asked for, or
all that are known when none is named; an unknown type: UNSUPPORTED_VERSION. Topics, brokers, broker loggers, client
metrics, groups and cluster mirrors (type 64, KIP-1279) are known.

Deviations: groups and client metrics have no configurations yet, so none is listed.
"""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.api.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext

VERSIONS = (0, 1)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
CLUSTER_MIRROR = mirror_numbers.CONFIG_RESOURCE_TYPE
KNOWN_TYPES = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, CLUSTER_MIRROR})


def handle(context: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    image = context.world.image
    node = [str(context.world.node_id)]
    names: dict[int, list[str]] = {
        TOPIC: sorted(image.topics_by_name),
        BROKER: node,
        BROKER_LOGGER: node,
        CLIENT_METRICS: [],
        GROUP: [],
    }
    if image.mirroring_enabled:
        names[CLUSTER_MIRROR] = sorted(image.mirror_configs)
    asked = [CLIENT_METRICS] if context.api_version == 0 else list(dict.fromkeys(request.resource_types)) or list(names)
    if any(kind not in names for kind in asked):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind) for kind in asked for name in names[kind]
        ]
    )
