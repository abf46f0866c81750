"""EndTxn, API key 26."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, field, request, response


@request(key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    """Commit or abort a transaction. From v5 on the epoch is raised with every transaction (KIP-890)."""

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


@response(key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    """The result, and from v5 on the epoch to go on with."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = field(versions="5+", ignorable=True, default=-1)
    producer_epoch: Int16 = field(versions="5+", ignorable=True, default=-1)
