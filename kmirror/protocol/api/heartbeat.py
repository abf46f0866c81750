"""Heartbeat, API key 12."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, String, field, request, response


@request(key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """Stay in a classic group."""

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(versions="3+", default=None)


@response(key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Whether the member still belongs to the generation."""

    throttle_time_ms: Int32 = field(versions="1+", ignorable=True)
    error_code: Int16 = 0
