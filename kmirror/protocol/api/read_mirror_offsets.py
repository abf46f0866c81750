"""ReadMirrorOffsets, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Int16, Int32, Int64, String, field, request, response, struct


@request(key=mirror_numbers.READ_MIRROR_OFFSETS, versions="0", flexible="0+")
class ReadMirrorOffsetsRequest:
    """Ask a partition leader how far mirroring is."""

    mirror_name: String = ""
    topics: list[ReadMirrorOffsetsTopic] = field()


@struct
class ReadMirrorOffsetsTopic:
    topic_name: String = ""
    partitions: list[Int32] = field()


@response(key=mirror_numbers.READ_MIRROR_OFFSETS, versions="0", flexible="0+")
class ReadMirrorOffsetsResponse:
    """The offsets; -1 is unknown."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[ReadMirrorOffsetsTopicResult] = field()


@struct
class ReadMirrorOffsetsTopicResult:
    topic_name: String = ""
    partitions: list[ReadMirrorOffsetsPartitionResult] = field()


@struct
class ReadMirrorOffsetsPartitionResult:
    partition_index: Int32 = 0
    source_offset: Int64 = -1
    destination_offset: Int64 = -1
