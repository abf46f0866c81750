"""WriteMirrorStates, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Bool, Int8, Int16, Int32, Int64, String, field, request, response, struct


@request(key=mirror_numbers.WRITE_MIRROR_STATES, versions="0", flexible="0+")
class WriteMirrorStatesRequest:
    """Record states of partitions. Fenced by the leader epoch and the state epoch."""

    mirror_name: String = ""
    topics: list[WriteMirrorStatesTopic] = field()


@struct
class WriteMirrorStatesTopic:
    topic_name: String = ""
    partitions: list[WriteMirrorStatesPartition] = field()


@struct
class WriteMirrorStatesPartition:
    partition_index: Int32 = 0
    # a byte of `mirror_numbers`
    state: Int8 = 0
    # -1: do not fence
    leader_epoch: Int32 = -1
    # the one expected; -1: do not check
    state_epoch: Int32 = -1
    last_mirror_epoch: Int32 = -1
    last_mirror_offset: Int64 = -1
    error_message: String | None = None
    retry_attempt: Int32 = -1
    non_retryable: Bool = False


@response(key=mirror_numbers.WRITE_MIRROR_STATES, versions="0", flexible="0+")
class WriteMirrorStatesResponse:
    """The new state epochs."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[WriteMirrorStatesTopicResult] = field()


@struct
class WriteMirrorStatesTopicResult:
    topic_name: String = ""
    partitions: list[WriteMirrorStatesPartitionResult] = field()


@struct
class WriteMirrorStatesPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = -1
