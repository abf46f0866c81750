"""ConsumerGroupDescribe, API key 69."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int8, Int16, Int32, String, Uuid, field, request, response, struct
from kmirror.protocol.uuids import ZERO


@request(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """Describe groups of the newer protocol (KIP-848)."""

    group_ids: list[String] = field()
    include_authorized_operations: Bool = False


@response(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """One description per group."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedConsumerGroup] = field()


@struct
class DescribedConsumerGroup:
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[ConsumerGroupMember] = field()
    authorized_operations: Int32 = -(2**31)


@struct
class ConsumerGroupMember:
    member_id: String = ""
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field()
    subscribed_topic_regex: String | None = None
    assignment: ConsumerGroupAssignment = field()
    target_assignment: ConsumerGroupAssignment = field()
    member_type: Int8 = field(versions="1+", ignorable=True, default=-1)


@struct
class ConsumerGroupAssignment:
    topic_partitions: list[ConsumerGroupTopicPartitions] = field()


@struct
class ConsumerGroupTopicPartitions:
    topic_id: Uuid = ZERO
    topic_name: String = ""
    partitions: list[Int32] = field()
