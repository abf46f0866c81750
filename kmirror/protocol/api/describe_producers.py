"""DescribeProducers, API key 61."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, String, field, request, response, struct


@request(key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    """Ask for the producers a partition remembers."""

    topics: list[DescribeProducersTopicRequest] = field()


@struct
class DescribeProducersTopicRequest:
    name: String = ""
    partition_indexes: list[Int32] = field()


@response(key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    """The producer state of each partition."""

    throttle_time_ms: Int32 = 0
    topics: list[DescribeProducersTopicResponse] = field()


@struct
class DescribeProducersTopicResponse:
    name: String = ""
    partitions: list[DescribeProducersPartitionResponse] = field()


@struct
class DescribeProducersPartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[DescribeProducersProducerState] = field()


@struct
class DescribeProducersProducerState:
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    # -1: no open transaction
    current_txn_start_offset: Int64 = -1
