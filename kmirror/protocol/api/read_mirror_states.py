"""ReadMirrorStates, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Int8, Int16, Int32, Int64, String, field, request, response, struct


@request(key=mirror_numbers.READ_MIRROR_STATES, versions="0", flexible="0+")
class ReadMirrorStatesRequest:
    """Read the recorded states of partitions from their coordinator."""

    mirror_name: String = ""
    topics: list[ReadMirrorStatesTopic] = field()


@struct
class ReadMirrorStatesTopic:
    topic_name: String = ""
    partitions: list[ReadMirrorStatesPartition] = field()


@struct
class ReadMirrorStatesPartition:
    partition_index: Int32 = 0


@response(key=mirror_numbers.READ_MIRROR_STATES, versions="0", flexible="0+")
class ReadMirrorStatesResponse:
    """The recorded states."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[ReadMirrorStatesTopicResult] = field()


@struct
class ReadMirrorStatesTopicResult:
    topic_name: String = ""
    partitions: list[ReadMirrorStatesPartitionResult] = field()


@struct
class ReadMirrorStatesPartitionResult:
    partition_index: Int32 = 0
    # a byte of `mirror_numbers`
    state: Int8 = 0
    leader_epoch: Int32 = -1
    state_epoch: Int32 = 0
    last_mirror_epoch: Int32 = -1
    last_mirror_offset: Int64 = -1
    error_code: Int16 = 0
    error_message: String | None = None
    retry_attempt: Int16 = 0
    previous_state: Int8 = -1
