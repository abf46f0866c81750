"""AddPartitionsToTxn, API key 24."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, field, request, response, struct


@request(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """Add partitions to a transaction. Up to v3 one transaction, from v4 on several (and only between brokers)."""

    transactions: list[AddPartitionsToTxnTransaction] = field(versions="4+")
    v3_and_below_transactional_id: String = field(versions="0-3")
    v3_and_below_producer_id: Int64 = field(versions="0-3")
    v3_and_below_producer_epoch: Int16 = field(versions="0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(versions="0-3")


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: String = field(versions="4+")
    producer_id: Int64 = field(versions="4+")
    producer_epoch: Int16 = field(versions="4+")
    # ask whether the partitions belong to the transaction, add nothing
    verify_only: Bool = field(versions="4+")
    topics: list[AddPartitionsToTxnTopic] = field(versions="4+")


@struct
class AddPartitionsToTxnTopic:
    name: String = ""
    partitions: list[Int32] = field()


@response(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """One result per partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(versions="4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(versions="4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(versions="0-3")


@struct
class AddPartitionsToTxnResult:
    transactional_id: String = field(versions="4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = field(versions="4+")


@struct
class AddPartitionsToTxnTopicResult:
    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field()


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0
