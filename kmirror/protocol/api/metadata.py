"""Metadata, API key 3."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, String, Uuid, field, request, response, struct


@request(key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    """Ask for brokers and topics. In v0 an empty list means all topics, from v1 on null does."""

    # null: all topics; empty: none (in v0 empty: all)
    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: Bool = field(versions="4+", default=True)
    include_cluster_authorized_operations: Bool = field(versions="8-10")
    include_topic_authorized_operations: Bool = field(versions="8+")


@struct
class MetadataRequestTopic:
    topic_id: Uuid = field(versions="10+", ignorable=True)
    # null when the id is given
    name: String | None = field(nullable="10+")


@response(key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    """The cluster as a client should see it."""

    throttle_time_ms: Int32 = field(versions="3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = field()
    cluster_id: String | None = field(versions="2+", ignorable=True, default=None)
    controller_id: Int32 = field(versions="1+", ignorable=True, default=-1)
    topics: list[MetadataResponseTopic] = field()
    cluster_authorized_operations: Int32 = field(versions="8-10", default=-(2**31))
    # only REBOOTSTRAP_REQUIRED
    error_code: Int16 = field(versions="13+", ignorable=True)


@struct
class MetadataResponseBroker:
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = field(versions="1+", ignorable=True, default=None)


@struct
class MetadataResponseTopic:
    error_code: Int16 = 0
    name: String | None = field(nullable="12+")
    topic_id: Uuid = field(versions="10+", ignorable=True)
    is_internal: Bool = field(versions="1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = field()
    # bits by operation; the minimum means that it was not asked for
    topic_authorized_operations: Int32 = field(versions="8+", default=-(2**31))


@struct
class MetadataResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    # -1: none
    leader_id: Int32 = 0
    leader_epoch: Int32 = field(versions="7+", ignorable=True, default=-1)
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    offline_replicas: list[Int32] = field(versions="5+", ignorable=True)
