"""OffsetFetch, API key 9."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, Uuid, field, request, response, struct


@request(key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest:
    """Read a group's offsets. From v8 on several groups at once, in `groups`; before, one in the fields at the top."""

    group_id: String = field(versions="0-7")
    # null: all topics of the group
    topics: list[OffsetFetchRequestTopic] | None = field(versions="0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field(versions="8+")
    # refuse offsets that an open transaction may still change
    require_stable: Bool = field(versions="7+")


@struct
class OffsetFetchRequestTopic:
    name: String = field(versions="0-7")
    partition_indexes: list[Int32] = field(versions="0-7")


@struct
class OffsetFetchRequestGroup:
    group_id: String = field(versions="8+")
    member_id: String | None = field(versions="9+", ignorable=True, default=None)
    member_epoch: Int32 = field(versions="9+", ignorable=True, default=-1)
    # null: all topics of the group
    topics: list[OffsetFetchRequestTopics] | None = field(versions="8+")


@struct
class OffsetFetchRequestTopics:
    name: String = field(versions="8-9", ignorable=True)
    topic_id: Uuid = field(versions="10+", ignorable=True)
    partition_indexes: list[Int32] = field(versions="8+")


@response(key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """Committed offsets; -1 where there is none."""

    throttle_time_ms: Int32 = field(versions="3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field(versions="0-7")
    error_code: Int16 = field(versions="2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field(versions="8+")


@struct
class OffsetFetchResponseTopic:
    name: String = field(versions="0-7")
    partitions: list[OffsetFetchResponsePartition] = field(versions="0-7")


@struct
class OffsetFetchResponsePartition:
    partition_index: Int32 = field(versions="0-7")
    committed_offset: Int64 = field(versions="0-7")
    committed_leader_epoch: Int32 = field(versions="5-7", ignorable=True, default=-1)
    metadata: String | None = field(versions="0-7")
    error_code: Int16 = field(versions="0-7")


@struct
class OffsetFetchResponseGroup:
    group_id: String = field(versions="8+")
    topics: list[OffsetFetchResponseTopics] = field(versions="8+")
    error_code: Int16 = field(versions="8+")


@struct
class OffsetFetchResponseTopics:
    name: String = field(versions="8-9", ignorable=True)
    topic_id: Uuid = field(versions="10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = field(versions="8+")


@struct
class OffsetFetchResponsePartitions:
    partition_index: Int32 = field(versions="8+")
    committed_offset: Int64 = field(versions="8+")
    committed_leader_epoch: Int32 = field(versions="8+", ignorable=True, default=-1)
    metadata: String | None = field(versions="8+")
    error_code: Int16 = field(versions="8+")
