"""FindCoordinator, API key 10."""

from __future__ import annotations

from kmirror.protocol.schema import Int8, Int16, Int32, String, field, request, response, struct


@request(key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Ask who coordinates a group or a transactional id. From v4 on several keys at once."""

    key: String = field(versions="0-3")
    # 0: group; 1: transactional id; 2: share group partition
    key_type: Int8 = field(versions="1+")
    coordinator_keys: list[String] = field(versions="4+")


@response(key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinators asked for."""

    throttle_time_ms: Int32 = field(versions="1+", ignorable=True)
    error_code: Int16 = field(versions="0-3")
    error_message: String | None = field(versions="1-3", ignorable=True)
    node_id: Int32 = field(versions="0-3")
    host: String = field(versions="0-3")
    port: Int32 = field(versions="0-3")
    coordinators: list[Coordinator] = field(versions="4+")


@struct
class Coordinator:
    key: String = field(versions="4+")
    node_id: Int32 = field(versions="4+")
    host: String = field(versions="4+")
    port: Int32 = field(versions="4+")
    error_code: Int16 = field(versions="4+")
    error_message: String | None = field(versions="4+", ignorable=True)
