"""DescribeGroups, API key 15."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Bytes, Int16, Int32, String, field, request, response, struct


@request(key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """Describe classic groups."""

    groups: list[String] = field()
    include_authorized_operations: Bool = field(versions="3+")


@response(key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """One description per group."""

    throttle_time_ms: Int32 = field(versions="1+", ignorable=True)
    groups: list[DescribedGroup] = field()


@struct
class DescribedGroup:
    error_code: Int16 = 0
    error_message: String | None = field(versions="6+", default=None)
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = field()
    authorized_operations: Int32 = field(versions="3+", default=-(2**31))


@struct
class DescribedGroupMember:
    member_id: String = ""
    group_instance_id: String | None = field(versions="4+", ignorable=True, default=None)
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""
