"""ListPartitionReassignments, API key 46."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, String, field, request, response, struct


@request(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """List the reassignments that are going on. Null: of all topics."""

    timeout_ms: Int32 = 60000
    # null: all
    topics: list[ListPartitionReassignmentsTopics] | None = None


@struct
class ListPartitionReassignmentsTopics:
    name: String = ""
    partition_indexes: list[Int32] = field()


@response(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """The reassignments."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    topics: list[OngoingTopicReassignment] = field()


@struct
class OngoingTopicReassignment:
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = field()


@struct
class OngoingPartitionReassignment:
    partition_index: Int32 = 0
    # the current set
    replicas: list[Int32] = field()
    adding_replicas: list[Int32] = field()
    removing_replicas: list[Int32] = field()
