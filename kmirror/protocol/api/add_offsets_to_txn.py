"""AddOffsetsToTxn, API key 25."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, String, request, response


@request(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Add the offsets of a group to a transaction."""

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


@response(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """The result."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
