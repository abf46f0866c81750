"""DeleteTopics, API key 20."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, String, Uuid, field, request, response, struct


@request(key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    """Delete topics: by name up to v5, by name or id from v6 on."""

    topics: list[DeleteTopicState] = field(versions="6+")
    topic_names: list[String] = field(versions="0-5", ignorable=True)
    timeout_ms: Int32 = 0


@struct
class DeleteTopicState:
    # null when the id is given
    name: String | None = field(versions="6+", default=None)
    topic_id: Uuid = field(versions="6+")


@response(key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """One result per topic."""

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = field()


@struct
class DeletableTopicResult:
    name: String | None = field(nullable="6+")
    topic_id: Uuid = field(versions="6+", ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = field(versions="5+", ignorable=True, default=None)
