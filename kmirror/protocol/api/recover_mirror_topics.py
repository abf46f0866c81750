"""RecoverMirrorTopics, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Int16, Int32, String, field, request, response, struct


@request(key=mirror_numbers.RECOVER_MIRROR_TOPICS, versions="0", flexible="0+")
class RecoverMirrorTopicsRequest:
    """Restart the failed partitions of topics."""

    mirror_name: String = ""
    topics: list[RecoverMirrorTopic] = field()


@struct
class RecoverMirrorTopic:
    topic_name: String = ""


@response(key=mirror_numbers.RECOVER_MIRROR_TOPICS, versions="0", flexible="0+")
class RecoverMirrorTopicsResponse:
    """One result per topic."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[RecoverMirrorTopicResult] = field()


@struct
class RecoverMirrorTopicResult:
    topic_name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
