"""DescribeTopicPartitions, API key 75."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, String, Uuid, field, request, response, struct
from kmirror.protocol.uuids import ZERO


@request(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """Page through the partitions of topics."""

    # empty: all
    topics: list[DescribeTopicPartitionsTopicRequest] = field()
    response_partition_limit: Int32 = 2000
    # where the page begins
    cursor: Cursor | None = None


@struct
class DescribeTopicPartitionsTopicRequest:
    name: String = ""


@struct
class Cursor:
    topic_name: String = ""
    partition_index: Int32 = 0


@response(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """One page."""

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = field()
    # null: this was the last page
    next_cursor: Cursor | None = None


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: Int16 = 0
    name: String | None = ""
    topic_id: Uuid = ZERO
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = field()
    topic_authorized_operations: Int32 = -(2**31)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    # may become leader without losing data although not in sync (KIP-966)
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = field()
