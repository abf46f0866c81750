"""WriteTxnMarkers, API key 27."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int8, Int16, Int32, Int64, String, field, request, response, struct


@request(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    """A coordinator asks partition leaders to write COMMIT or ABORT."""

    markers: list[WritableTxnMarker] = field()


@struct
class WritableTxnMarker:
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    # true: COMMIT; false: ABORT
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = field()
    coordinator_epoch: Int32 = 0
    # 2 when the marker carries a raised epoch (KIP-890)
    transaction_version: Int8 = field(versions="2+", ignorable=True)


@struct
class WritableTxnMarkerTopic:
    name: String = ""
    partition_indexes: list[Int32] = field()


@response(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """One result per partition."""

    markers: list[WritableTxnMarkerResult] = field()


@struct
class WritableTxnMarkerResult:
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = field()


@struct
class WritableTxnMarkerTopicResult:
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = field()


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0
