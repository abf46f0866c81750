"""TxnOffsetCommit, API key 28."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, String, Uuid, field, request, response, struct


@request(key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest:
    """Store a group's offsets as part of a transaction. v6 names topics by id."""

    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id_or_member_epoch: Int32 = field(versions="3+", default=-1)
    member_id: String = field(versions="3+")
    group_instance_id: String | None = field(versions="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field()


@struct
class TxnOffsetCommitRequestTopic:
    name: String = field(versions="0-5", ignorable=True)
    topic_id: Uuid = field(versions="6+", ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = field()


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(versions="2+", ignorable=True, default=-1)
    committed_metadata: String | None = ""


@response(key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    """One error code per partition."""

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = field()


@struct
class TxnOffsetCommitResponseTopic:
    name: String = field(versions="0-5", ignorable=True)
    topic_id: Uuid = field(versions="6+", ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = field()


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0
