"""LeaveGroup, API key 13."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, String, field, request, response, struct


@request(key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Leave a classic group. From v3 on several (static) members at once."""

    group_id: String = ""
    member_id: String = field(versions="0-2")
    members: list[MemberIdentity] = field(versions="3+")


@struct
class MemberIdentity:
    member_id: String = field(versions="3+")
    group_instance_id: String | None = field(versions="3+", default=None)
    reason: String | None = field(versions="5+", ignorable=True, default=None)


@response(key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """One result per member."""

    throttle_time_ms: Int32 = field(versions="1+", ignorable=True)
    error_code: Int16 = 0
    members: list[MemberResponse] = field(versions="3+")


@struct
class MemberResponse:
    member_id: String = field(versions="3+")
    group_instance_id: String | None = field(versions="3+")
    error_code: Int16 = field(versions="3+")
