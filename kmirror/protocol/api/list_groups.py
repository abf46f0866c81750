"""ListGroups, API key 16."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, String, field, request, response, struct


@request(key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    """List the groups this broker coordinates."""

    # empty: all
    states_filter: list[String] = field(versions="4+")
    types_filter: list[String] = field(versions="5+")


@response(key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups that pass the filters."""

    throttle_time_ms: Int32 = field(versions="1+", ignorable=True)
    error_code: Int16 = 0
    groups: list[ListedGroup] = field()


@struct
class ListedGroup:
    group_id: String = ""
    protocol_type: String = ""
    group_state: String = field(versions="4+", ignorable=True)
    group_type: String = field(versions="5+", ignorable=True)
