"""ListTransactions, API key 66."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, String, field, request, response, struct


@request(key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """List the transactions of a coordinator."""

    state_filters: list[String] = field()
    producer_id_filters: list[Int64] = field()
    # only transactions open for longer than this, in milliseconds; negative: all
    duration_filter: Int64 = field(versions="1+", default=-1)
    # a regular expression
    transactional_id_pattern: String | None = field(versions="2+", default=None)


@response(key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactions that pass the filters."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = field()
    transaction_states: list[ListTransactionsState] = field()


@struct
class ListTransactionsState:
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""
