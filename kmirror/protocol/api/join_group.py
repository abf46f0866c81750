"""JoinGroup, API key 11."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Bytes, Int16, Int32, String, field, request, response, struct


@request(key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    """Join a classic consumer group."""

    group_id: String = ""
    session_timeout_ms: Int32 = 0
    # how long the group waits for this member to join; -1: the session timeout
    rebalance_timeout_ms: Int32 = field(versions="1+", ignorable=True, default=-1)
    # empty at first; the broker gives one
    member_id: String = ""
    group_instance_id: String | None = field(versions="5+", default=None)
    protocol_type: String = ""
    # in order of preference
    protocols: list[JoinGroupRequestProtocol] = field()
    reason: String | None = field(versions="8+", ignorable=True, default=None)


@struct
class JoinGroupRequestProtocol:
    name: String = ""
    metadata: Bytes = b""


@response(key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The generation that was formed; only the leader sees all members."""

    throttle_time_ms: Int32 = field(versions="2+", ignorable=True)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: String | None = field(versions="7+", ignorable=True, default=None)
    protocol_name: String | None = field(nullable="7+")
    # the member that has to assign
    leader: String = ""
    # the leader need not assign again (a static leader came back)
    skip_assignment: Bool = field(versions="9+")
    member_id: String = ""
    # empty for all but the leader
    members: list[JoinGroupResponseMember] = field()


@struct
class JoinGroupResponseMember:
    member_id: String = ""
    group_instance_id: String | None = field(versions="5+", ignorable=True, default=None)
    metadata: Bytes = b""
