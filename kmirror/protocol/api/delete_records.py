"""DeleteRecords, API key 21."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, String, field, request, response, struct


@request(key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Raise the log start offset."""

    topics: list[DeleteRecordsTopic] = field()
    timeout_ms: Int32 = 0


@struct
class DeleteRecordsTopic:
    name: String = ""
    partitions: list[DeleteRecordsPartition] = field()


@struct
class DeleteRecordsPartition:
    partition_index: Int32 = 0
    # first offset to keep; -1: the high watermark
    offset: Int64 = 0


@response(key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """The new log start offset of each partition."""

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = field()


@struct
class DeleteRecordsTopicResult:
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = field()


@struct
class DeleteRecordsPartitionResult:
    partition_index: Int32 = 0
    # the log start offset now
    low_watermark: Int64 = 0
    error_code: Int16 = 0
