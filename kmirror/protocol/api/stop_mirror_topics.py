"""StopMirrorTopics, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Int16, Int32, Int64, String, field, request, response, struct


@request(key=mirror_numbers.STOP_MIRROR_TOPICS, versions="0", flexible="0+")
class StopMirrorTopicsRequest:
    """Fail topics over: make them writable. Answers when everything is sealed."""

    mirror_name: String = ""
    topics: list[StopMirrorTopic] = field()
    # set by the broker that forwards to the controller
    state_offset: Int64 = -1
    # also every topic of the mirror that matches one of these
    patterns: list[String] = field(tag=0)


@struct
class StopMirrorTopic:
    topic_name: String = ""


@response(key=mirror_numbers.STOP_MIRROR_TOPICS, versions="0", flexible="0+")
class StopMirrorTopicsResponse:
    """One result per topic."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[StopMirrorTopicResult] = field()


@struct
class StopMirrorTopicResult:
    topic_name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
    partitions: list[StoppedPartition] = field(tag=0)


@struct
class StoppedPartition:
    partition_index: Int32 = 0
    # the log end offset at the moment of the stop
    last_mirrored_offset: Int64 = 0
    # the last one known; -1: never known
    source_end_offset: Int64 = -1
    # what the source had beyond it; -1: unknown
    missing_offsets: Int64 = -1
    # open transactions that got an ABORT marker
    aborted_transactions: Int32 = 0
