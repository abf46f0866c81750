"""StartMirrorTopics, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, Uuid, field, request, response, struct
from kmirror.protocol.uuids import ZERO


@request(key=mirror_numbers.START_MIRROR_TOPICS, versions="0", flexible="0+")
class StartMirrorTopicsRequest:
    """Ask that topics be mirrored. Creates them when needed, with the source's ids."""

    mirror_name: String = ""
    topics: list[StartMirrorTopic] = field()
    # set by the broker that forwards to the controller
    state_offset: Int64 = -1
    # also every source topic that matches one of these
    include_patterns: list[String] = field(tag=0)
    exclude_patterns: list[String] = field(tag=1)
    # cut local records that the source does not have
    replace: Bool = field(tag=2)
    # where a topic that was never copied begins: a timestamp in ms, -1 latest, -2 earliest (as in ListOffsets); ours
    start_from: Int64 = field(tag=3, default=-2)


@struct
class StartMirrorTopic:
    # the source's
    topic_id: Uuid = ZERO
    topic_name: String = ""
    num_partitions: Int32 = 0


@response(key=mirror_numbers.START_MIRROR_TOPICS, versions="0", flexible="0+")
class StartMirrorTopicsResponse:
    """One result per topic."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[StartMirrorTopicResult] = field()


@struct
class StartMirrorTopicResult:
    topic_name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
