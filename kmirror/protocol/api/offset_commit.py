"""OffsetCommit, API key 8."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, String, Uuid, field, request, response, struct


@request(key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest:
    """Store a group's offsets. v10 names topics by id."""

    group_id: String = ""
    # -1: the group does not manage partitions
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: String | None = field(versions="7+", default=None)
    # -1: the broker's default
    retention_time_ms: Int64 = field(versions="2-4", ignorable=True, default=-1)
    topics: list[OffsetCommitRequestTopic] = field()


@struct
class OffsetCommitRequestTopic:
    name: String = field(versions="0-9", ignorable=True)
    topic_id: Uuid = field(versions="10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field()


@struct
class OffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(versions="6+", ignorable=True, default=-1)
    committed_metadata: String | None = ""


@response(key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    """One error code per partition."""

    throttle_time_ms: Int32 = field(versions="3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field()


@struct
class OffsetCommitResponseTopic:
    name: String = field(versions="0-9", ignorable=True)
    topic_id: Uuid = field(versions="10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field()


@struct
class OffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0
