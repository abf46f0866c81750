"""SyncGroup, API key 14."""

from __future__ import annotations

from kmirror.protocol.schema import Bytes, Int16, Int32, String, field, request, response, struct


@request(key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    """Hand over (leader) and receive (all) the assignment of a generation."""

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(versions="3+", default=None)
    protocol_type: String | None = field(versions="5+", ignorable=True, default=None)
    protocol_name: String | None = field(versions="5+", ignorable=True, default=None)
    # empty for all but the leader
    assignments: list[SyncGroupRequestAssignment] = field()


@struct
class SyncGroupRequestAssignment:
    member_id: String = ""
    assignment: Bytes = b""


@response(key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The member's own assignment."""

    throttle_time_ms: Int32 = field(versions="1+", ignorable=True)
    error_code: Int16 = 0
    protocol_type: String | None = field(versions="5+", ignorable=True, default=None)
    protocol_name: String | None = field(versions="5+", ignorable=True, default=None)
    assignment: Bytes = b""
