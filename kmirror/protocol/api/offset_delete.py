"""OffsetDelete, API key 47."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, String, field, request, response, struct


@request(key=47, versions="0", flexible="none")
class OffsetDeleteRequest:
    """Delete some of a group's offsets."""

    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = field()


@struct
class OffsetDeleteRequestTopic:
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = field()


@struct
class OffsetDeleteRequestPartition:
    partition_index: Int32 = 0


@response(key=47, versions="0", flexible="none")
class OffsetDeleteResponse:
    """An error for the whole, or one result per partition."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = field(ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = field()


@struct
class OffsetDeleteResponseTopic:
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = field()


@struct
class OffsetDeleteResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0
