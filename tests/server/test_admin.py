"""Metadata and the administration APIs through the whole broker (B025, B027, B030, B035, B058, B060-B062)."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing

from kmirror.protocol import uuids
from kmirror.protocol.api.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from kmirror.protocol.api.api_versions import ApiVersionsRequest
from kmirror.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kmirror.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kmirror.protocol.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.api.describe_cluster import DescribeClusterRequest
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from kmirror.protocol.api.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from kmirror.protocol.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopicRequest,
)
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.api.list_config_resources import ListConfigResourcesRequest
from kmirror.protocol.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kmirror.protocol.api.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kmirror.protocol.errors import ErrorCode
from tests.server.harness import START_MS, Broker, batch, produce, serving

TOPIC, BROKER = 2, 4


def names(*values: str | None) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=value) for value in values]


def topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


async def create(broker: Broker, *topics: CreatableTopic, validate_only: bool = False, version: int = 7) -> Any:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=5000, validate_only=validate_only)
    answer = await broker.connect().ask("CreateTopics", version, request)
    return {row.name: row for row in answer.topics}


# --- ApiVersions and the cluster --------------------------------------------------------------------------------------


async def test_api_versions_lists_what_is_served(broker: Broker) -> None:
    answer = await broker.connect().ask(
        "ApiVersions", 4, ApiVersionsRequest(client_software_name="a", client_software_version="1")
    )
    ranges = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert ranges[0] == (0, 13)
    assert ranges[1] == (4, 18)
    assert ranges[26] == (0, 5)
    assert 68 not in ranges  # the consumer protocol is not served yet
    supported = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}
    assert (supported["mirror.version"], supported["transaction.version"]) == ((0, 1), (0, 2))
    assert {row.name: row.max_version_level for row in answer.finalized_features} == {
        "metadata.version": 33,
        "mirror.version": 1,
        "transaction.version": 2,
    }
    assert answer.finalized_features_epoch > 0


async def test_features_that_may_be_0_are_hidden_below_version_4(broker: Broker) -> None:
    answer = await broker.connect().ask(
        "ApiVersions", 3, ApiVersionsRequest(client_software_name="a", client_software_version="1")
    )
    assert "mirror.version" not in {row.name for row in answer.supported_features}


@pytest.mark.parametrize(
    ("version", "parts", "code"),
    [
        (3, {"client_software_name": ""}, ErrorCode.INVALID_REQUEST),
        (3, {"client_software_version": "-"}, ErrorCode.INVALID_REQUEST),
        (5, {"cluster_id": "another", "node_id": 1}, ErrorCode.REBOOTSTRAP_REQUIRED),
        (5, {"cluster_id": "another"}, ErrorCode.INVALID_REQUEST),
        (5, {"node_id": 1}, ErrorCode.INVALID_REQUEST),
        (5, {}, ErrorCode.NONE),
    ],
)
async def test_api_versions_refusals(broker: Broker, version: int, parts: dict[str, Any], code: ErrorCode) -> None:
    settings = {"client_software_name": "a", "client_software_version": "1", **parts}
    answer = await broker.connect().ask("ApiVersions", version, ApiVersionsRequest(**settings))
    assert answer.error_code == code
    assert bool(answer.api_keys) == (code == ErrorCode.NONE)


async def test_switching_mirroring_off_hides_its_apis(broker: Broker) -> None:
    client = broker.connect()

    async def listed() -> bool:
        answer = await client.ask("ApiVersions", 0, ApiVersionsRequest())
        return 98 in {row.api_key for row in answer.api_keys}

    async def set_level(level: int, kind: int) -> Any:
        update = FeatureUpdateKey(feature="mirror.version", max_version_level=level, upgrade_type=kind)
        return await client.ask("UpdateFeatures", 1, UpdateFeaturesRequest(feature_updates=[update], timeout_ms=1000))

    assert await listed()
    assert (await set_level(0, 1)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert (await set_level(2, 1)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert (await set_level(0, 2)).error_code == 0
    assert not await listed()
    assert (await set_level(1, 1)).error_code == 0
    assert await listed()


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(1, 0), (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_describe_cluster(broker: Broker, endpoint_type: int, code: int) -> None:
    request = DescribeClusterRequest(endpoint_type=endpoint_type, include_cluster_authorized_operations=True)
    answer = await broker.connect().ask("DescribeCluster", 1, request)
    assert answer.error_code == code
    if code == 0:
        assert answer.cluster_authorized_operations == 8096
        assert [(row.broker_id, row.host, row.port) for row in answer.brokers] == [(1, "broker", 9092)]


# --- Metadata (B058) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
async def test_which_topics_metadata_means(broker: Broker, version: int) -> None:
    await broker.create_topic("b")
    await broker.create_topic("a", 2)
    client = broker.connect()

    async def listed(topics: list[MetadataRequestTopic] | None) -> set[str]:
        answer = await client.ask("Metadata", version, MetadataRequest(topics=topics))
        return {row.name for row in answer.topics}

    assert await listed([]) == ({"a", "b"} if version == 0 else set())
    if version > 0:
        assert await listed(None) == {"a", "b"}
    assert await listed(names("a")) == {"a"}


async def test_metadata_of_a_topic(broker: Broker) -> None:
    await broker.create_topic("t", 2)
    request = MetadataRequest(topics=names("t", "t"), include_topic_authorized_operations=True)
    answer = await broker.connect().ask("Metadata", 12, request)
    (row,) = answer.topics
    assert row.topic_authorized_operations == 3576
    assert row.topic_id != uuids.ZERO
    assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in row.partitions] == [
        (0, 1, [1], [1]),
        (1, 1, [1], [1]),
    ]
    assert all(p.leader_epoch >= 0 for p in row.partitions)
    answer = await broker.connect().ask("Metadata", 10, MetadataRequest(topics=[]))
    assert answer.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("name", "code"), [("nowhere", 3), ("", 17), ("..", 17), ("a" * 250, 17), ("a b", 17), ("__consumer_offsets", 3)]
)
async def test_asking_does_not_create(broker: Broker, name: str, code: int) -> None:
    client = broker.connect()
    request = MetadataRequest(topics=names(name), allow_auto_topic_creation=False)
    for _ in range(2):
        assert (await client.ask("Metadata", 12, request)).topics[0].error_code == code


async def test_asking_may_create(broker: Broker) -> None:
    client = broker.connect()
    request = MetadataRequest(topics=names("new", ".."), allow_auto_topic_creation=True)
    assert [row.error_code for row in (await client.ask("Metadata", 12, request)).topics] == [3, 17]
    assert [row.error_code for row in (await client.ask("Metadata", 12, request)).topics] == [0, 17]
    row = (await client.ask("Produce", 9, produce(batch(b"a"), topic="new"))).responses[0].partition_responses[0]
    assert row.error_code == 0


async def test_a_broker_may_forbid_creation_by_asking() -> None:
    async with serving({"auto.create.topics.enable": "false"}) as broker:
        request = MetadataRequest(topics=names("new"), allow_auto_topic_creation=True)
        client = broker.connect()
        for _ in range(2):
            assert (await client.ask("Metadata", 12, request)).topics[0].error_code == 3


async def test_metadata_by_id(broker: Broker) -> None:
    await broker.create_topic("t")
    known = broker.world.image.topics_by_name["t"].topic_id
    client = broker.connect()
    asked = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in (known, b"\1" * 16)]
    answer = await client.ask("Metadata", 12, MetadataRequest(topics=asked))
    assert [(row.error_code, row.name) for row in answer.topics] == [(0, "t"), (ErrorCode.UNKNOWN_TOPIC_ID, None)]
    for wrong in (MetadataRequestTopic(name=None), MetadataRequestTopic(name="t", topic_id=known)):
        answer = await client.ask("Metadata", 10, MetadataRequest(topics=[wrong]))
        assert [row.error_code for row in answer.topics] == [ErrorCode.INVALID_REQUEST]


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_a_topic_can_be_used_when_its_creation_is_answered(broker: Broker) -> None:
    created = [f"t{number}" for number in range(20)]
    assert all(row.error_code == 0 for row in (await create(broker, *map(topic, created))).values())
    client = broker.connect()
    for name in reversed(created):
        assert (await client.ask("Metadata", 12, MetadataRequest(topics=names(name)))).topics[0].error_code == 0
        row = (await client.ask("Produce", 9, produce(batch(b"a"), topic=name))).responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (0, 0)


async def test_create_topics_answers_each_on_its_own(broker: Broker) -> None:
    await broker.create_topic("there")
    assigned = CreatableTopic(
        name="assigned",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[9])],
    )
    rows = await create(
        broker,
        topic("there"),
        topic("none", partitions=0),
        topic("two", replicas=2),
        topic("bad name"),
        topic("config", no_such="1"),
        topic("value", retention_ms="soon"),
        topic("twice"),
        topic("twice"),
        topic("__cluster_metadata"),
        topic("th.ere"),
        topic("th_ere"),
        assigned,
        topic("defaults", -1, -1),
    )
    assert {name: ErrorCode(row.error_code) for name, row in rows.items()} == {
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
        "none": ErrorCode.INVALID_PARTITIONS,
        "two": ErrorCode.INVALID_REPLICATION_FACTOR,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "config": ErrorCode.INVALID_CONFIG,
        "value": ErrorCode.INVALID_CONFIG,
        "twice": ErrorCode.INVALID_REQUEST,
        "__cluster_metadata": ErrorCode.INVALID_REQUEST,
        "th.ere": ErrorCode.NONE,
        "th_ere": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "assigned": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "defaults": ErrorCode.NONE,
    }
    assert all(row.error_message for row in rows.values() if row.error_code)
    assert (rows["defaults"].num_partitions, rows["defaults"].replication_factor) == (1, 1)
    assert len(rows["defaults"].configs) > 30


async def test_validation_creates_nothing(broker: Broker) -> None:
    rows = await create(broker, topic("t", 3), validate_only=True)
    assert (rows["t"].error_code, rows["t"].num_partitions) == (0, 3)
    assert "t" not in broker.world.image.topics_by_name


async def test_delete_topics(broker: Broker) -> None:
    for name in ("a", "b", "c"):
        await broker.create_topic(name)
    ids = {name: state.topic_id for name, state in broker.world.image.topics_by_name.items()}
    client = broker.connect()
    states = [
        DeleteTopicState(name="a"),
        DeleteTopicState(name=None, topic_id=ids["b"]),
        DeleteTopicState(name="c", topic_id=ids["c"]),
        DeleteTopicState(name="nowhere"),
        DeleteTopicState(name=None, topic_id=b"\1" * 16),
    ]
    answer = await client.ask("DeleteTopics", 6, DeleteTopicsRequest(topics=states, timeout_ms=1000))
    assert [(row.name, row.error_code) for row in answer.responses] == [
        ("a", 0),
        ("b", 0),
        ("c", ErrorCode.INVALID_REQUEST),
        ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    answer = await client.ask("DeleteTopics", 3, DeleteTopicsRequest(topic_names=["c", "c"], timeout_ms=1000))
    assert [row.error_code for row in answer.responses] == [ErrorCode.INVALID_REQUEST]
    assert set(broker.world.image.topics_by_name) == {"c"}


async def test_a_recreated_topic_has_another_id_and_is_empty(broker: Broker) -> None:
    """B034."""
    client = broker.connect()
    seen = set()
    for _ in range(3):
        row = (await create(broker, topic("t")))["t"]
        seen.add(row.topic_id)
        produced = await client.ask("Produce", 9, produce(batch(b"a")))
        assert produced.responses[0].partition_responses[0].base_offset == 0
        await client.ask("DeleteTopics", 6, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000))
    assert len(seen) == 3


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)])
async def test_deletion_can_be_forbidden(version: int, code: ErrorCode) -> None:
    async with serving({"delete.topic.enable": "false"}) as broker:
        await broker.create_topic("t")
        answer = await broker.connect().ask(
            "DeleteTopics", version, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
        )
        assert [row.error_code for row in answer.responses] == [code]


async def test_create_partitions(broker: Broker) -> None:
    await broker.create_topic("t", 2)
    await broker.create_topic("u")
    client = broker.connect()
    request = CreatePartitionsRequest(
        timeout_ms=1000,
        topics=[
            CreatePartitionsTopic(name="t", count=4, assignments=None),
            CreatePartitionsTopic(name="nowhere", count=4, assignments=None),
            CreatePartitionsTopic(name="u", count=1, assignments=None),
        ],
    )
    answer = await client.ask("CreatePartitions", 3, request)
    assert {row.name: row.error_code for row in answer.results} == {
        "t": 0,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "u": ErrorCode.INVALID_PARTITIONS,
    }
    row = (await client.ask("Produce", 9, produce(batch(b"a"), partition=3))).responses[0].partition_responses[0]
    assert row.error_code == 0
    request = CreatePartitionsRequest(timeout_ms=1000, topics=[CreatePartitionsTopic(name="t", count=9)] * 2)
    answer = await client.ask("CreatePartitions", 3, request)
    assert [row.error_code for row in answer.results] == [ErrorCode.INVALID_REQUEST]


async def test_topics_page_by_page(broker: Broker) -> None:
    for name, partitions in (("a", 2), ("b", 3), ("c", 1)):
        await broker.create_topic(name, partitions)
    client = broker.connect()
    seen: list[tuple[str, int]] = []
    cursor: Cursor | None = None
    for _ in range(10):
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        answer = await client.ask("DescribeTopicPartitions", 0, request)
        page = [(row.name, p.partition_index) for row in answer.topics for p in row.partitions]
        assert len(page) <= 2
        seen += page
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    asked = [DescribeTopicPartitionsTopicRequest(name=name) for name in ("b", "nowhere")]
    answer = await client.ask("DescribeTopicPartitions", 0, DescribeTopicPartitionsRequest(topics=asked))
    assert [(row.name, row.error_code) for row in answer.topics] == [("b", 0), ("nowhere", 3)]
    wrong = DescribeTopicPartitionsRequest(topics=asked, cursor=Cursor(topic_name="b", partition_index=-1))
    answer = await client.ask("DescribeTopicPartitions", 0, wrong)
    assert {row.error_code for row in answer.topics} == {ErrorCode.INVALID_REQUEST}


# --- configurations (B060, B062) --------------------------------------------------------------------------------------


async def described(broker: Broker, kind: int, name: str, keys: list[str] | None = None, **parts: bool) -> Any:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)], **parts
    )
    return (await broker.connect().ask("DescribeConfigs", 4, request)).results[0]


async def changed(broker: Broker, kind: int, name: str, *operations: tuple[str, int, str | None]) -> int:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(name=key, config_operation=op, value=v) for key, op, v in operations
                ],
            )
        ]
    )
    answer = await broker.connect().ask("IncrementalAlterConfigs", 1, request)
    return int(answer.responses[0].error_code)


async def test_describe_configs(broker: Broker) -> None:
    await broker.create_topic("t", retention_ms="1234")
    row = await described(broker, TOPIC, "t", include_synonyms=True, include_documentation=True)
    configs = {config.name: config for config in row.configs}
    assert configs["retention.ms"].value == "1234"
    assert configs["retention.ms"].config_source == 1
    assert configs["cleanup.policy"].value == "delete"
    assert configs["cleanup.policy"].synonyms[0].name == "log.cleanup.policy"
    assert all(config.documentation for config in row.configs)
    row = await described(broker, TOPIC, "t", ["cleanup.policy", "no.such"])
    assert [config.name for config in row.configs] == ["cleanup.policy"]
    assert not row.configs[0].synonyms
    assert len((await described(broker, TOPIC, "t", [])).configs) == len(configs)
    names_of_broker = {config.name for config in (await described(broker, BROKER, "1")).configs}
    assert {"num.partitions", "default.replication.factor", "auto.create.topics.enable"} <= names_of_broker
    assert (await described(broker, TOPIC, "nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await described(broker, BROKER, "7")).error_code == ErrorCode.INVALID_REQUEST
    assert (await described(broker, 99, "t")).error_code == ErrorCode.INVALID_REQUEST


async def test_incremental_changes_touch_only_what_they_name(broker: Broker) -> None:
    set_, delete, append, subtract = range(4)
    await broker.create_topic("t", retention_ms="1000", segment_bytes="2000000")
    assert await changed(broker, TOPIC, "t", ("cleanup.policy", append, "compact")) == 0
    assert await changed(broker, TOPIC, "t", ("retention.ms", set_, "5")) == 0
    overrides = broker.world.image.topics_by_name["t"].configs
    assert overrides == {"retention.ms": "5", "segment.bytes": "2000000", "cleanup.policy": "delete,compact"}
    assert (
        await changed(broker, TOPIC, "t", ("cleanup.policy", subtract, "delete"), ("retention.ms", delete, None)) == 0
    )
    assert overrides == {"segment.bytes": "2000000", "cleanup.policy": "compact"}
    before = dict(overrides)
    refused = [
        (("retention.ms", append, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", set_, None), ErrorCode.INVALID_REQUEST),
        (("no.such", set_, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", set_, "soon"), ErrorCode.INVALID_CONFIG),
    ]
    for operation, code in refused:
        assert await changed(broker, TOPIC, "t", ("segment.ms", set_, "77"), operation) == code
    assert overrides == before


async def test_a_broker_change_leaves_topic_overrides_alone(broker: Broker) -> None:
    await broker.create_topic("t", retention_ms="1000")
    for value in ("5000", "6000"):
        assert await changed(broker, BROKER, "", ("log.retention.ms", 0, value)) == 0
    row = await described(broker, TOPIC, "t", ["retention.ms"])
    assert row.configs[0].value == "1000"


async def test_alter_configs_replaces_everything(broker: Broker) -> None:
    await broker.create_topic("t", retention_ms="1000", cleanup_policy="compact")
    resource = AlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=[AlterableConfig(name="retention.ms", value="9000")]
    )
    client = broker.connect()
    answer = await client.ask("AlterConfigs", 2, AlterConfigsRequest(resources=[resource], validate_only=True))
    assert answer.responses[0].error_code == 0
    assert broker.world.image.topics_by_name["t"].configs["retention.ms"] == "1000"
    answer = await client.ask("AlterConfigs", 2, AlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == 0
    assert broker.world.image.topics_by_name["t"].configs == {"retention.ms": "9000"}
    answer = await client.ask("AlterConfigs", 2, AlterConfigsRequest(resources=[resource, resource]))
    assert [row.error_code for row in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2


async def test_list_config_resources(broker: Broker) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    assert (await client.ask("ListConfigResources", 0, ListConfigResourcesRequest())).config_resources == []
    answer = await client.ask("ListConfigResources", 1, ListConfigResourcesRequest(resource_types=[TOPIC, BROKER]))
    assert [(row.resource_type, row.resource_name) for row in answer.config_resources] == [(TOPIC, "t"), (BROKER, "1")]
    answer = await client.ask("ListConfigResources", 1, ListConfigResourcesRequest(resource_types=[99]))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


# --- offsets ----------------------------------------------------------------------------------------------------------


async def offset_of(broker: Broker, timestamp: int, version: int = 7, index: int = 0) -> tuple[int, int, int]:
    row = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[row])])
    answer = (await broker.connect().ask("ListOffsets", version, request)).topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


async def test_list_offsets(broker: Broker) -> None:
    await broker.create_topic("t")
    assert await offset_of(broker, -1) == (0, 0, -1)
    assert await offset_of(broker, -2) == (0, 0, -1)
    client = broker.connect()
    for number in range(3):
        await client.ask("Produce", 9, produce(batch(b"a", b"b", timestamp_ms=START_MS + number)))
    assert await offset_of(broker, -1) == (0, 6, -1)
    assert await offset_of(broker, START_MS + 1) == (0, 2, START_MS + 1)
    assert await offset_of(broker, START_MS + 9) == (0, -1, -1)
    assert await offset_of(broker, -3) == (0, 4, START_MS + 2)
    assert (await offset_of(broker, -3, version=6))[0] == ErrorCode.UNSUPPORTED_VERSION
    assert (await offset_of(broker, -99))[0] == ErrorCode.UNSUPPORTED_VERSION
    assert (await offset_of(broker, -1, index=9))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    twice = [ListOffsetsPartition(partition_index=0, timestamp=t) for t in (-1, -2)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=twice)])
    answer = await client.ask("ListOffsets", 7, request)
    assert [row.error_code for row in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST]


async def test_offset_for_leader_epoch(broker: Broker) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    await client.ask("Produce", 9, produce(batch(b"a", b"b")))
    rows = [
        OffsetForLeaderPartition(partition=0, leader_epoch=0),
        OffsetForLeaderPartition(partition=0, leader_epoch=5),
        OffsetForLeaderPartition(partition=0, leader_epoch=0, current_leader_epoch=5),
        OffsetForLeaderPartition(partition=8, leader_epoch=0),
    ]
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=rows)])
    answer = await client.ask("OffsetForLeaderEpoch", 4, request)
    assert [(row.error_code, row.leader_epoch, row.end_offset) for row in answer.topics[0].partitions] == [
        (0, 0, 2),
        (0, -1, -1),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
    ]


async def test_delete_records(broker: Broker) -> None:
    """B035."""
    await broker.create_topic("t")
    client = broker.connect()
    await client.ask("Produce", 9, produce(batch(*[b"x"] * 100)))

    async def delete(offset: int, name: str = "t") -> tuple[int, int]:
        row = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(timeout_ms=1000, topics=[DeleteRecordsTopic(name=name, partitions=[row])])
        answer = (await client.ask("DeleteRecords", 2, request)).topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    for offset in (30, 30, 10, 0):
        assert await delete(offset) == (0, 30)
    assert await offset_of(broker, -2) == (0, 30, -1)
    assert await delete(101) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete(-1) == (0, 100)
    assert await delete(0, "nowhere") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    await broker.create_topic("compacted", cleanup_policy="compact")
    assert await delete(0, "compacted") == (ErrorCode.POLICY_VIOLATION, -1)


# --- the rest ---------------------------------------------------------------------------------------------------------


async def test_describe_log_dirs(broker: Broker) -> None:
    """B061."""
    await broker.create_topic("t", 2)
    client = broker.connect()
    await client.ask("Produce", 9, produce(batch(bytes(1000))))

    async def sizes(topics: list[DescribableLogDirTopic] | None) -> dict[tuple[str, int], int]:
        answer = await client.ask("DescribeLogDirs", 4, DescribeLogDirsRequest(topics=topics))
        (result,) = answer.results
        assert (result.error_code, result.log_dir) == (0, "/data")
        return {(row.name, p.partition_index): p.partition_size for row in result.topics for p in row.partitions}

    everything = await sizes(None)
    assert everything[("t", 0)] > 1000
    assert everything[("t", 1)] == 0
    assert await sizes([]) == {}
    assert set(await sizes([DescribableLogDirTopic(topic="t", partitions=[1, 9])])) == {("t", 1)}
    assert await sizes([DescribableLogDirTopic(topic="nowhere", partitions=[0])]) == {}


async def test_describe_producers(broker: Broker) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    records = batch(b"a", b"b", producer_id=7, producer_epoch=3, base_sequence=0)
    await client.ask("Produce", 9, produce(records))
    request = DescribeProducersRequest(topics=[DescribeProducersTopicRequest(name="t", partition_indexes=[0, 9])])
    answer = await client.ask("DescribeProducers", 0, request)
    known, unknown = answer.topics[0].partitions
    (producer,) = known.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 3, 1)
    assert producer.current_txn_start_offset == -1
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator(broker: Broker, version: int) -> None:
    client = broker.connect()
    for kind in (0, 1) if version else (0,):
        if version < 4:
            answer = await client.ask("FindCoordinator", version, FindCoordinatorRequest(key="g", key_type=kind))
            found = [answer]
        else:
            request = FindCoordinatorRequest(coordinator_keys=["g", "h"], key_type=kind)
            found = (await client.ask("FindCoordinator", version, request)).coordinators
            assert [row.key for row in found] == ["g", "h"]
        assert {(row.error_code, row.node_id, row.host, row.port) for row in found} == {(0, 1, "broker", 9092)}
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=["g"], key_type=7)
        answer = await client.ask("FindCoordinator", version, request)
        assert answer.coordinators[0].error_code == ErrorCode.INVALID_REQUEST


async def test_producer_ids_are_never_given_twice(broker: Broker) -> None:
    client = broker.connect()
    seen = []
    for _ in range(5):
        answer = await client.ask("InitProducerId", 4, InitProducerIdRequest(transactional_id=None))
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        seen.append(answer.producer_id)
    assert len(set(seen)) == 5
    assert min(seen) >= 1 << 32
    for request, code in (
        (InitProducerIdRequest(transactional_id="x"), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest(transactional_id=""), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(transactional_id=None, producer_id=5, producer_epoch=-1), ErrorCode.INVALID_REQUEST),
    ):
        answer = await client.ask("InitProducerId", 4, request)
        assert (answer.error_code, answer.producer_id) == (code, -1)


async def test_creation_that_outlasts_its_time_is_said_to_go_on(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as broker:
        broker.flush.at_once = False
        rows = await create(broker, topic("t"))
        assert rows["t"].error_code == ErrorCode.REQUEST_TIMED_OUT
        broker.flush.run()
        assert "t" in broker.world.image.topics_by_name
