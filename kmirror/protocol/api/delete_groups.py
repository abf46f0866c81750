"""DeleteGroups, API key 42."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, String, field, request, response, struct


@request(key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    """Delete groups that have no members, with their offsets."""

    groups_names: list[String] = field()


@response(key=42, versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    """One result per group."""

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = field()


@struct
class DeletableGroupResult:
    group_id: String = ""
    error_code: Int16 = 0
    error_message: String | None = field(versions="3+", ignorable=True, default=None)
