"""CreatePartitions, API key 37."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, String, field, request, response, struct


@request(key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """Raise the number of partitions."""

    topics: list[CreatePartitionsTopic] = field()
    timeout_ms: Int32 = 0
    validate_only: Bool = False


@struct
class CreatePartitionsTopic:
    name: String = ""
    # the new total
    count: Int32 = 0
    # of the new partitions; null: the broker assigns
    assignments: list[CreatePartitionsAssignment] | None = field()


@struct
class CreatePartitionsAssignment:
    broker_ids: list[Int32] = field()


@response(key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """One result per topic."""

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = field()


@struct
class CreatePartitionsTopicResult:
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
