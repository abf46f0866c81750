"""CreateTopics, API key 19."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int8, Int16, Int32, String, Uuid, field, request, response, struct


@request(key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    """Create topics. v5 answers with the configuration, v7 with the id."""

    topics: list[CreatableTopic] = field()
    timeout_ms: Int32 = 60000
    # check, create nothing
    validate_only: Bool = False


@struct
class CreatableTopic:
    name: String = ""
    # -1: the broker's default, or given by `assignments`
    num_partitions: Int32 = 0
    # -1: the broker's default, or given by `assignments`
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = field()
    configs: list[CreatableTopicConfig] = field()


@struct
class CreatableReplicaAssignment:
    partition_index: Int32 = 0
    broker_ids: list[Int32] = field()


@struct
class CreatableTopicConfig:
    name: String = ""
    value: String | None = ""


@response(key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """One result per topic."""

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = field()


@struct
class CreatableTopicResult:
    name: String = ""
    topic_id: Uuid = field(versions="7+", ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = ""
    # why `configs` is null
    topic_config_error_code: Int16 = field(versions="5+", tag=0, ignorable=True)
    num_partitions: Int32 = field(versions="5+", ignorable=True, default=-1)
    replication_factor: Int16 = field(versions="5+", ignorable=True, default=-1)
    configs: list[CreatableTopicConfigs] | None = field(versions="5+", ignorable=True)


@struct
class CreatableTopicConfigs:
    name: String = field(versions="5+")
    value: String | None = field(versions="5+")
    read_only: Bool = field(versions="5+")
    # see DescribeConfigs
    config_source: Int8 = field(versions="5+", ignorable=True, default=-1)
    is_sensitive: Bool = field(versions="5+")
