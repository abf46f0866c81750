"""InitProducerId, API key 22."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, field, request, response


@request(key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest:
    """Get a producer id and epoch, with or without a transactional id."""

    # null: idempotent only
    transactional_id: String | None = ""
    transaction_timeout_ms: Int32 = 0
    # -1, or the identity whose epoch the producer wants raised
    producer_id: Int64 = field(versions="3+", default=-1)
    producer_epoch: Int16 = field(versions="3+", default=-1)
    enable2_pc: Bool = field(versions="6+")
    # leave a prepared transaction open (KIP-939)
    keep_prepared_txn: Bool = field(versions="6+")


@response(key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    """The producer's identity."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Int64 = field(versions="6+", default=-1)
    ongoing_txn_producer_epoch: Int16 = field(versions="6+", default=-1)
