"""DescribeCluster (60): cluster id, controller and brokers.

Versions: 0-2.

Behaviour: only the broker endpoint is served; asking for controllers is MISMATCHED_ENDPOINT_TYPE, an unknown endpoint
type UNSUPPORTED_ENDPOINT_TYPE (KIP-919).

Deviations: one broker, which is also named as the controller.
"""

from __future__ import annotations

from kmirror.protocol.api.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.authorized import CLUSTER_OPERATIONS
from kmirror.server.context import RequestContext

VERSIONS = (0, 2)

BROKERS, CONTROLLERS = 1, 2


def handle(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker's endpoint, not a controller's: ask with endpoint type 1",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    world = context.world
    host, port = context.advertised()
    response = DescribeClusterResponse(
        cluster_id=world.cluster_id,
        controller_id=world.node_id,
        brokers=[DescribeClusterBroker(broker_id=world.node_id, host=host, port=port, rack=context.rack)],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
