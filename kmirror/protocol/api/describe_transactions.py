"""DescribeTransactions, API key 65."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, String, field, request, response, struct


@request(key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Ask a coordinator for the state of transactions."""

    transactional_ids: list[String] = field()


@response(key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """One state per transactional id."""

    throttle_time_ms: Int32 = 0
    transaction_states: list[DescribeTransactionsState] = field()


@struct
class DescribeTransactionsState:
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[DescribeTransactionsTopicData] = field()


@struct
class DescribeTransactionsTopicData:
    topic: String = ""
    partitions: list[Int32] = field()
