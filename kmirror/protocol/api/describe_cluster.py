"""DescribeCluster, API key 60."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int8, Int16, Int32, String, field, request, response, struct


@request(key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """Ask for the members of the cluster."""

    include_cluster_authorized_operations: Bool = False
    # 1 brokers, 2 controllers
    endpoint_type: Int8 = field(versions="1+", default=1)
    include_fenced_brokers: Bool = field(versions="2+")


@response(key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The members."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Int8 = field(versions="1+", default=1)
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = field()
    cluster_authorized_operations: Int32 = -(2**31)


@struct
class DescribeClusterBroker:
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Bool = field(versions="2+")
