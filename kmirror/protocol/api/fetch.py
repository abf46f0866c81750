"""Fetch, API key 1."""

from __future__ import annotations

from kmirror.protocol.schema import (
    Int8,
    Int16,
    Int32,
    Int64,
    RecordPieces,
    String,
    Uuid,
    field,
    request,
    response,
    struct,
)


@request(key=1, versions="4-18", flexible="12+")
class FetchRequest:
    """Read record batches, by consumers, followers and mirrors. v7 adds sessions (KIP-227), v13 names topics by id."""

    # only followers and quorum voters name the cluster
    cluster_id: String | None = field(versions="12+", tag=0, ignorable=True, default=None)
    # -1: a consumer or a mirror
    replica_id: Int32 = field(versions="0-14", default=-1)
    replica_state: ReplicaState = field(versions="15+", tag=1)
    # how long the broker may wait for `min_bytes`
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    # limit of the whole answer; the first batch is returned even when it is larger
    max_bytes: Int32 = 0x7FFF_FFFF
    # 0: all records; 1: only up to the last stable offset, with the list of aborted transactions
    isolation_level: Int8 = 0
    session_id: Int32 = field(versions="7+", ignorable=True)
    # 0: open a session; -1: no session, or close it; else the next request of the session
    session_epoch: Int32 = field(versions="7+", ignorable=True, default=-1)
    topics: list[FetchTopic] = field()
    # partitions to take out of the session
    forgotten_topics_data: list[ForgottenTopic] = field(versions="7+")
    rack_id: String = field(versions="11+", ignorable=True)


@struct
class ReplicaState:
    replica_id: Int32 = field(versions="15+", default=-1)
    replica_epoch: Int64 = field(versions="15+", default=-1)


@struct
class FetchTopic:
    topic: String = field(versions="0-12", ignorable=True)
    topic_id: Uuid = field(versions="13+", ignorable=True)
    partitions: list[FetchPartition] = field()


@struct
class FetchPartition:
    partition: Int32 = 0
    # -1: do not check; else fenced when it is not the broker's
    current_leader_epoch: Int32 = field(versions="9+", ignorable=True, default=-1)
    fetch_offset: Int64 = 0
    # epoch of the last batch held; lets the leader answer `diverging_epoch`
    last_fetched_epoch: Int32 = field(versions="12+", default=-1)
    # the follower's; consumers send -1
    log_start_offset: Int64 = field(versions="5+", ignorable=True, default=-1)
    partition_max_bytes: Int32 = 0
    replica_directory_id: Uuid = field(versions="17+", tag=0, ignorable=True)
    # the follower's; the maximum means that it does not say
    high_watermark: Int64 = field(versions="18+", tag=1, ignorable=True, default=2**63 - 1)


@struct
class ForgottenTopic:
    topic: String = field(versions="7-12", ignorable=True)
    topic_id: Uuid = field(versions="13+", ignorable=True)
    partitions: list[Int32] = field(versions="7+")


@response(key=1, versions="4-18", flexible="12+")
class FetchResponse:
    """Batches as they lie in the log. The first may begin before the offset asked for; the last may be cut."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(versions="7+", ignorable=True)
    # 0: no session
    session_id: Int32 = field(versions="7+")
    responses: list[FetchableTopicResponse] = field()
    node_endpoints: list[FetchNodeEndpoint] = field(versions="16+", tag=0)


@struct
class FetchableTopicResponse:
    topic: String = field(versions="0-12", ignorable=True)
    topic_id: Uuid = field(versions="13+", ignorable=True)
    partitions: list[PartitionData] = field()


@struct
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    # -1: unknown
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = field(versions="5+", ignorable=True, default=-1)
    # set when the fetcher's log left ours: the epoch and end to cut to
    diverging_epoch: FetchEpochEndOffset = field(versions="12+", tag=0)
    current_leader: FetchLeaderIdAndEpoch = field(versions="12+", tag=1)
    # set when the offset lies before the oldest record of a metadata log
    snapshot_id: SnapshotId = field(versions="12+", tag=2)
    # null unless the isolation level is 1
    aborted_transactions: list[AbortedTransaction] | None = field()
    # -1: read from the leader
    preferred_read_replica: Int32 = field(versions="11+", default=-1)
    # on encode a buffer or a list of buffers and file slices; on decode a view of the frame
    records: RecordPieces | None = b""


@struct
class FetchEpochEndOffset:
    epoch: Int32 = field(versions="12+", default=-1)
    end_offset: Int64 = field(versions="12+", default=-1)


@struct
class FetchLeaderIdAndEpoch:
    leader_id: Int32 = field(versions="12+", default=-1)
    leader_epoch: Int32 = field(versions="12+", default=-1)


@struct
class SnapshotId:
    end_offset: Int64 = -1
    epoch: Int32 = -1


@struct
class AbortedTransaction:
    producer_id: Int64 = 0
    # where the transaction begins
    first_offset: Int64 = 0


@struct
class FetchNodeEndpoint:
    node_id: Int32 = field(versions="16+")
    host: String = field(versions="16+")
    port: Int32 = field(versions="16+")
    rack: String | None = field(versions="16+", default=None)
