"""Produce, API key 0."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, Records, String, Uuid, field, request, response, struct


@request(key=0, versions="3-13", flexible="9+")
class ProduceRequest:
    """Append record batches. v3 is the first with magic 2 batches; v13 names topics by id.

    Versions 0 to 2 are advertised for old clients (see ApiVersions) but have no schema: they are never decoded.
    """

    transactional_id: String | None = None
    # 0: do not answer; 1: when the leader has it; -1: when all in-sync replicas have it
    acks: Int16 = 0
    # how long the leader may wait for replicas
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = field()


@struct
class TopicProduceData:
    name: String = field(versions="0-12", ignorable=True)
    topic_id: Uuid = field(versions="13+", ignorable=True)
    partition_data: list[PartitionProduceData] = field()


@struct
class PartitionProduceData:
    index: Int32 = 0
    # one batch; a view of the frame
    records: Records | None = b""


@response(key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    """One result per partition. v10 adds the current leader and its address, so that a client need not ask Metadata."""

    responses: list[TopicProduceResponse] = field()
    throttle_time_ms: Int32 = 0
    # addresses of the leaders named in `current_leader`
    node_endpoints: list[ProduceNodeEndpoint] = field(versions="10+", tag=0)


@struct
class TopicProduceResponse:
    name: String = field(versions="0-12", ignorable=True)
    topic_id: Uuid = field(versions="13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field()


@struct
class PartitionProduceResponse:
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    # -1 when the topic keeps the producer's timestamps
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = field(versions="5+", ignorable=True, default=-1)
    # which records of the batch made it fail
    record_errors: list[BatchIndexAndErrorMessage] = field(versions="8+", ignorable=True)
    error_message: String | None = field(versions="8+", ignorable=True, default=None)
    current_leader: ProduceLeaderIdAndEpoch = field(versions="10+", tag=0)


@struct
class BatchIndexAndErrorMessage:
    # index of the record in the batch
    batch_index: Int32 = field(versions="8+")
    batch_index_error_message: String | None = field(versions="8+", default=None)


@struct
class ProduceLeaderIdAndEpoch:
    # -1: unknown
    leader_id: Int32 = field(versions="10+", default=-1)
    leader_epoch: Int32 = field(versions="10+", default=-1)


@struct
class ProduceNodeEndpoint:
    node_id: Int32 = field(versions="10+")
    host: String = field(versions="10+")
    port: Int32 = field(versions="10+")
    rack: String | None = field(versions="10+", default=None)
