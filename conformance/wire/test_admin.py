"""Metadata and administration (B034, B058, B060, B062), and the small identity APIs."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.wire.batches import batch
from conformance.wire.client import Broker, Row, Topic
from kmirror.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kmirror.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.api.describe_cluster import DescribeClusterRequest
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS = 3, 5, 17, 36, 37
INVALID_REPLICATION, INVALID_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_ID = 38, 39, 40, 42, 100
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def metadata(broker: Broker, version: int, topics: list[MetadataRequestTopic] | None, *, create: bool = False) -> Any:
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create if version >= 4 else True)
    return broker.request(request, broker.version("Metadata", version))


def by_name(name: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name)]


@pytest.mark.parametrize("version", range(14))
def test_metadata_at_every_version(broker: Broker, topic: Topic, version: int) -> None:
    version = broker.version("Metadata", version)
    answer = metadata(broker, version, by_name(topic.name))
    (found,) = answer.topics
    assert (found.error_code, found.name, len(found.partitions)) == (0, topic.name, 1)
    (node,) = answer.brokers
    partition = found.partitions[0]
    assert partition.leader_id == node.node_id and partition.replica_nodes == partition.isr_nodes == [node.node_id]
    assert f"{node.host}:{node.port}" == broker.address
    if version >= 2:
        assert answer.cluster_id
    if version >= 7:
        assert partition.leader_epoch >= 0
    if version >= 10:
        assert found.topic_id == topic.topic_id


def test_which_topics_metadata_lists(broker: Broker, topic: Topic) -> None:
    """B058: null is all and creates nothing, [] is none (v0: all)."""
    for version in (1, 4, 12):
        assert topic.name in {row.name for row in metadata(broker, version, None).topics}
        assert metadata(broker, version, []).topics == []
    if broker.ranges[3][0] == 0:
        assert topic.name in {row.name for row in metadata(broker, 0, []).topics}


def test_asking_for_a_topic_does_not_create_it(broker: Broker) -> None:
    """B058: with allow false the answer is 3, twice."""
    name = broker.new_name("absent")
    for version in (4, 9, 12):
        for _ in range(2):
            assert metadata(broker, version, by_name(name)).topics[0].error_code == UNKNOWN_TOPIC
    assert name not in {row.name for row in metadata(broker, 12, None).topics}


@pytest.mark.parametrize("name", ["", "..", ".", "x" * 250, "no spaces", "a/b"])
def test_names_that_no_topic_can_have(broker: Broker, name: str) -> None:
    """B058: 17, when asked for by someone who would create it."""
    assert metadata(broker, 12, by_name(name), create=True).topics[0].error_code == INVALID_TOPIC


def test_metadata_by_topic_id(broker: Broker, topic: Topic) -> None:
    """B058: v12 takes an id; an unknown one answers 100 with a null name."""
    known = [MetadataRequestTopic(topic_id=topic.topic_id, name=None)]
    found = metadata(broker, 12, known).topics[0]
    assert (found.error_code, found.name) == (0, topic.name)
    unknown = metadata(broker, 12, [MetadataRequestTopic(topic_id=bytes(range(1, 17)), name=None)]).topics[0]
    assert (unknown.error_code, unknown.name) == (UNKNOWN_ID, None)


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_is_refused_before_version_12(broker: Broker, topic: Topic, version: int) -> None:
    """B058: 42 for a null name or an id, where the schema has the field and the broker does not take it."""
    with broker.connect() as connection:
        asked = [MetadataRequestTopic(topic_id=topic.topic_id, name=None)]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        connection.send(request, version)
        try:
            answer = connection.receive()
        except ConnectionError:
            return  # a null name below v12 cannot be answered in its own row: Kafka may close instead
        assert {row.error_code for row in answer.topics} <= {INVALID_REQUEST}


def create(broker: Broker, *topics: CreatableTopic, validate_only: bool = False, version: int | None = None) -> Any:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=20_000, validate_only=validate_only)
    return broker.request(request, version)


def creatable(name: str, *, partitions: int = 1, replication: int = 1, **configs: str | None) -> CreatableTopic:
    entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication, configs=entries)


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_at_every_version(broker: Broker, version: int) -> None:
    version = broker.version("CreateTopics", version)
    name = broker.new_name()
    row = create(broker, creatable(name, partitions=3, retention_ms="60000"), version=version).topics[0]
    assert (row.error_code, row.name) == (0, name)
    if version >= 5:
        assert (row.num_partitions, row.replication_factor) == (3, 1)
        configs = {entry.name: entry.value for entry in row.configs}
        assert configs["retention.ms"] == "60000" and configs["cleanup.policy"] == "delete"
    if version >= 7:
        assert row.topic_id != bytes(16)
    assert create(broker, creatable(name), version=version).topics[0].error_code == TOPIC_EXISTS


def test_twenty_topics_are_usable_at_once(broker: Broker) -> None:
    """B058: what CreateTopics has acknowledged works in whatever order it is asked for (FINDINGS: retriable codes)."""
    names = [broker.new_name() for _ in range(20)]
    answer = create(broker, *[creatable(name) for name in names])
    assert [row.error_code for row in answer.topics] == [0] * 20
    for row in reversed(answer.topics):
        topic = Topic(row.name, bytes(row.topic_id), 1)
        assert broker.produce_when_ready(topic, batch()).base_offset == 0
        assert broker.describe_topic(row.name).error_code == 0
        assert broker.latest(topic) == 1


BAD_TOPICS = {
    "no partitions": (creatable("bad-1", partitions=0), INVALID_PARTITIONS),
    "minus two partitions": (creatable("bad-2", partitions=-2), INVALID_PARTITIONS),
    "two replicas on one broker": (creatable("bad-3", replication=2), INVALID_REPLICATION),
    "no replicas": (creatable("bad-4", replication=0), INVALID_REPLICATION),
    "an empty name": (creatable(""), INVALID_TOPIC),
    "two dots": (creatable(".."), INVALID_TOPIC),
    "250 characters": (creatable("x" * 250), INVALID_TOPIC),
    "a slash": (creatable("a/b"), INVALID_TOPIC),
    "an unknown config": (creatable("bad-5", no_such_config="1"), INVALID_CONFIG),
    "a config that does not parse": (creatable("bad-6", retention_ms="soon"), INVALID_CONFIG),
    "a config out of its range": (creatable("bad-7", cleanup_policy="shred"), INVALID_CONFIG),
    "a null config": (creatable("bad-8", retention_ms=None), INVALID_CONFIG),
    "an assignment and a count": (
        CreatableTopic(
            name="bad-9",
            num_partitions=1,
            replication_factor=1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
        ),
        INVALID_REQUEST,
    ),
    "an assignment with a gap": (
        CreatableTopic(
            name="bad-10",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=1, broker_ids=[1])],
        ),
        INVALID_ASSIGNMENT,
    ),
    "an unknown broker": (
        CreatableTopic(
            name="bad-11",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[4711])],
        ),
        INVALID_ASSIGNMENT,
    ),
}


@pytest.mark.parametrize("name", BAD_TOPICS)
def test_topics_that_cannot_be_created(broker: Broker, name: str) -> None:
    asked, code = BAD_TOPICS[name]
    for validate_only in (True, False):
        row = create(broker, asked, validate_only=validate_only).topics[0]
        assert row.error_code == code, row
        assert row.error_message
    if asked.name.startswith("bad-"):
        assert broker.describe_topic(asked.name).error_code == UNKNOWN_TOPIC


def test_create_defaults_validation_and_repeats(broker: Broker) -> None:
    """B060: -1 means the broker's defaults; validate_only creates nothing; one name twice is refused."""
    name = broker.new_name()
    row = create(broker, creatable(name, partitions=-1, replication=-1), validate_only=True).topics[0]
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 1, 1)
    assert broker.describe_topic(name).error_code == UNKNOWN_TOPIC
    twice = create(broker, creatable(name), creatable(name))
    assert {row.error_code for row in twice.topics} == {INVALID_REQUEST}
    assert broker.describe_topic(name).error_code == UNKNOWN_TOPIC


def delete(broker: Broker, *topics: DeleteTopicState) -> Any:
    return broker.request(DeleteTopicsRequest(topics=list(topics), timeout_ms=20_000), broker.version("DeleteTopics"))


def test_delete_topics(broker: Broker) -> None:
    """By name and by id; a recreated topic has another id and starts empty."""
    if broker.version("DeleteTopics") < 6:
        pytest.skip("needs DeleteTopics v6")
    topic = broker.create_topic()
    broker.produce(topic, batch())
    row = delete(broker, DeleteTopicState(name=topic.name)).responses[0]
    assert (row.error_code, row.name, row.topic_id) == (0, topic.name, topic.topic_id)
    assert delete(broker, DeleteTopicState(name=topic.name)).responses[0].error_code == UNKNOWN_TOPIC
    again = create(broker, creatable(topic.name)).topics[0]
    assert again.error_code == 0 and again.topic_id != topic.topic_id
    reborn = Topic(topic.name, bytes(again.topic_id), 1)
    assert broker.produce_when_ready(reborn, batch()).base_offset == 0
    assert broker.fetch(Row(topic, 0)).row().error_code == UNKNOWN_ID
    by_id = delete(broker, DeleteTopicState(name=None, topic_id=again.topic_id)).responses[0]
    assert (by_id.error_code, by_id.name) == (0, topic.name)
    unknown = delete(broker, DeleteTopicState(name=None, topic_id=bytes(range(1, 17)))).responses[0]
    assert unknown.error_code == UNKNOWN_ID


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics_at_every_version(broker: Broker, topic: Topic, version: int) -> None:
    version = broker.version("DeleteTopics", version)
    request = DeleteTopicsRequest(timeout_ms=20_000)
    absent = broker.new_name("absent")
    if version >= 6:
        request.topics = [DeleteTopicState(name=topic.name), DeleteTopicState(name=absent)]
    else:
        request.topic_names = [topic.name, absent]
    rows = {row.name: row.error_code for row in broker.request(request, version).responses}
    assert rows == {topic.name: 0, absent: UNKNOWN_TOPIC}


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_at_every_version(broker: Broker, topic: Topic, version: int) -> None:
    asked = [CreatePartitionsTopic(name=name, count=2, assignments=None) for name in (topic.name, "absent-topic")]
    request = CreatePartitionsRequest(topics=asked, timeout_ms=20_000)
    answer = broker.request(request, broker.version("CreatePartitions", version))
    assert {row.name: row.error_code for row in answer.results} == {topic.name: 0, "absent-topic": UNKNOWN_TOPIC}


@pytest.mark.parametrize("version", [0, 1])
def test_incremental_alter_configs_at_every_version(broker: Broker, topic: Topic, version: int) -> None:
    entry = IncrementalAlterableConfig(name="retention.ms", config_operation=SET, value="1000")
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic.name, configs=[entry])
    version = broker.version("IncrementalAlterConfigs", version)
    assert broker.request(IncrementalAlterConfigsRequest(resources=[resource]), version).responses[0].error_code == 0
    assert value_of(broker, topic, "retention.ms") == "1000"


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_at_every_version(broker: Broker, version: int) -> None:
    version = broker.version("FindCoordinator", version)
    if version >= 4:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
        row = broker.request(request, version).coordinators[0]
    else:
        row = broker.request(FindCoordinatorRequest(key="group"), version)
    assert row.error_code in (0, 15)


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_at_every_version(broker: Broker, version: int) -> None:
    assert len(broker.request(DescribeClusterRequest(), broker.version("DescribeCluster", version)).brokers) == 1


def test_create_partitions(broker: Broker, topic: Topic) -> None:
    def grow(count: int, *, validate_only: bool = False, name: str = topic.name) -> int:
        asked = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[asked], timeout_ms=20_000, validate_only=validate_only)
        return int(broker.request(request).results[0].error_code)

    assert grow(4, validate_only=True) == 0
    assert len(broker.describe_topic(topic.name).partitions) == 1
    assert grow(1) == INVALID_PARTITIONS and grow(0) == INVALID_PARTITIONS
    assert grow(3) == 0
    assert grow(2) == INVALID_PARTITIONS
    assert grow(3, name=broker.new_name("absent")) == UNKNOWN_TOPIC
    grown = Topic(topic.name, topic.topic_id, 3)
    assert broker.produce_when_ready(grown, batch(), partition=2).base_offset == 0
    assert len(broker.describe_topic(topic.name).partitions) == 3


def describe(
    broker: Broker,
    resource_type: int,
    name: str,
    keys: list[str] | None,
    *,
    version: int | None = None,
    **options: bool,
) -> Any:
    resource = DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[resource], **options)
    return broker.request(request, version).results[0]


def test_describe_topic_configs(broker: Broker) -> None:
    """B060: null is every key; a list is those that exist; synonyms when asked for."""
    topic = broker.create_topic(configs={"retention.ms": "60000"})
    for version in range(1, 5):
        result = describe(broker, TOPIC_RESOURCE, topic.name, None, version=broker.version("DescribeConfigs", version))
        configs = {entry.name: entry for entry in result.configs}
        assert result.error_code == 0
        assert {"cleanup.policy", "retention.ms", "segment.bytes", "max.message.bytes"} <= set(configs)
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("60000", 1)
        assert configs["cleanup.policy"].config_source == 5
    one = describe(broker, TOPIC_RESOURCE, topic.name, ["cleanup.policy", "no.such"])
    assert [entry.name for entry in one.configs] == ["cleanup.policy"]
    synonyms = describe(broker, TOPIC_RESOURCE, topic.name, ["retention.ms"], include_synonyms=True).configs[0].synonyms
    assert [(entry.name, entry.value, entry.source) for entry in synonyms][:1] == [("retention.ms", "60000", 1)]
    absent = describe(broker, TOPIC_RESOURCE, broker.new_name("absent"), None)
    assert absent.error_code == UNKNOWN_TOPIC and absent.configs == []


def test_describe_broker_configs(broker: Broker) -> None:
    """B060: what Connect, ksqlDB and Schema Registry look for."""
    node_id = metadata(broker, 9, []).brokers[0].node_id
    result = describe(broker, BROKER_RESOURCE, str(node_id), None)
    assert result.error_code == 0
    configs = {entry.name for entry in result.configs}
    wanted = {"num.partitions", "default.replication.factor", "auto.create.topics.enable", "log.retention.ms"}
    assert wanted <= configs, wanted - configs


def alter(broker: Broker, topic: str, *changes: tuple[str, int, str | None], validate_only: bool = False) -> int:
    entries = [IncrementalAlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=entries)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return int(broker.request(request).responses[0].error_code)


def value_of(broker: Broker, topic: Topic, key: str) -> str | None:
    entries = describe(broker, TOPIC_RESOURCE, topic.name, [key]).configs
    return str(entries[0].value)


def test_incremental_alter_configs(broker: Broker, topic: Topic) -> None:
    """B062: only the named keys; lists grow and shrink; a bad change applies nothing."""
    assert alter(broker, topic.name, ("retention.ms", SET, "5000"), ("segment.bytes", SET, "2000000")) == 0
    assert alter(broker, topic.name, ("retention.ms", SET, "6000")) == 0
    assert (value_of(broker, topic, "retention.ms"), value_of(broker, topic, "segment.bytes")) == ("6000", "2000000")
    assert alter(broker, topic.name, ("cleanup.policy", APPEND, "compact")) == 0
    assert value_of(broker, topic, "cleanup.policy") == "delete,compact"
    assert alter(broker, topic.name, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert value_of(broker, topic, "cleanup.policy") == "compact"
    assert alter(broker, topic.name, ("retention.ms", DELETE, None)) == 0
    assert value_of(broker, topic, "retention.ms") == "604800000"
    assert alter(broker, topic.name, ("segment.bytes", SET, "3000000"), validate_only=True) == 0
    assert value_of(broker, topic, "segment.bytes") == "2000000"
    for bad in (
        ("retention.ms", APPEND, "1"),
        ("retention.ms", SET, None),
        ("no.such.config", SET, "1"),
        ("retention.ms", SET, "soon"),
    ):
        code = alter(broker, topic.name, ("segment.bytes", SET, "4000000"), bad)
        assert code in (INVALID_CONFIG, INVALID_REQUEST), (bad, code)
    assert alter(broker, topic.name, ("retention.ms", SET, "1"), ("retention.ms", SET, "2")) == INVALID_REQUEST
    assert value_of(broker, topic, "segment.bytes") == "2000000"
    assert alter(broker, broker.new_name("absent"), ("retention.ms", SET, "1")) == UNKNOWN_TOPIC


def test_describe_cluster_agrees_with_metadata(broker: Broker) -> None:
    answer = broker.request(DescribeClusterRequest())
    listed = metadata(broker, 9, [])
    assert answer.error_code == 0 and answer.cluster_id == listed.cluster_id
    assert [(node.broker_id, node.port) for node in answer.brokers] == [
        (node.node_id, node.port) for node in listed.brokers
    ]


def test_find_coordinator_names_this_node(broker: Broker) -> None:
    """On one node every coordinator is here; it may take a moment until its topic exists (15)."""
    version = broker.version("FindCoordinator")
    for key_type in (0, 1):
        if version >= 4:
            answer = broker.request(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a", "b"]), version)
            rows = [(row.key, row.error_code) for row in answer.coordinators]
            assert [key for key, _ in rows] == ["a", "b"] and {code for _, code in rows} <= {0, 15}
        else:
            assert broker.request(FindCoordinatorRequest(key="a", key_type=key_type), version).error_code in (0, 15)
