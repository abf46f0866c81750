"""PauseMirrorTopics, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Int16, Int32, Int64, String, field, request, response, struct


@request(key=mirror_numbers.PAUSE_MIRROR_TOPICS, versions="0", flexible="0+")
class PauseMirrorTopicsRequest:
    """Stop fetching; the topics stay read-only."""

    mirror_name: String = ""
    topics: list[PauseMirrorTopic] = field()
    state_offset: Int64 = -1


@struct
class PauseMirrorTopic:
    topic_name: String = ""


@response(key=mirror_numbers.PAUSE_MIRROR_TOPICS, versions="0", flexible="0+")
class PauseMirrorTopicsResponse:
    """One result per topic."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[PauseMirrorTopicResult] = field()


@struct
class PauseMirrorTopicResult:
    topic_name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
