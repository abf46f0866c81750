"""Steps that only ask."""

from __future__ import annotations

from conformance.differential.sides import Side
from conformance.differential.steps_admin import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, UNKNOWN_TYPES
from conformance.differential.steps_data import TIMESTAMP_MS
from conformance.differential.story import UNKNOWN_ID, Step, Story
from kmirror.protocol.api.api_versions import ApiVersionsRequest
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
from kmirror.protocol.api.list_config_resources import ListConfigResourcesRequest
from kmirror.protocol.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

ABSENT_NAMES = ("no-such-topic", "", "a b", ".", "x" * 250)
SENTINELS = (-1, -2, -3, -4, -5, -6, -7, -99)


def api_versions(story: Story) -> Step:
    version = story.version("ApiVersions")
    software = story.rng.choice([("probe", "1.0"), ("probe", "1.0"), ("", "1"), ("a b", "1"), ("-x", "")])

    def build(side: Side) -> ApiVersionsRequest:
        return ApiVersionsRequest(client_software_name=software[0], client_software_version=software[1])

    return Step("ApiVersions", version, f"software {software}", build)


def metadata(story: Story) -> Step:
    rng = story.rng
    version = story.version("Metadata")
    every = story.one_in(5)
    names = [] if every else [_any_name(story) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    create = not every and story.one_in(8) and version >= 4 and len(story.topics) < 7
    if version < 4:  # creates without being asked
        names = [name for name in names if name in story.topics or not _legal(name)]
    created = story.fresh_name() if create else None
    if created is not None:
        names = [*(name for name in names if name in story.topics or not _legal(name)), created]
    by_id = version >= 10 and story.one_in(4) and created is None
    if by_id:  # all unknown ones have the same id
        names = list({name if name in story.topics else "": name for name in names}.values())
    mixed = by_id and story.one_in(5)
    operations = (version >= 8 and story.one_in(3), 8 <= version <= 10 and story.one_in(3))

    def build(side: Side) -> MetadataRequest:
        topics: list[MetadataRequestTopic] = []
        for name in names:
            known = story.topics.get(name)
            topic_id = known.ids[side.index] if known else UNKNOWN_ID  # no id and no name: a null pointer in Kafka
            if by_id:
                topics.append(MetadataRequestTopic(name=name if mixed else None, topic_id=topic_id))
            else:
                topics.append(MetadataRequestTopic(name=name))
        request = MetadataRequest(topics=topics, include_topic_authorized_operations=operations[0])
        if every:
            request.topics = None if version >= 1 else []
        request.include_cluster_authorized_operations = operations[1]
        if version >= 4:
            request.allow_auto_topic_creation = create
        return request

    def after(_left: object, _right: object) -> None:
        if created is not None:
            story.expect(created, story.sides[0].default_partitions)

    what = f"{'all' if every else names}{' by id' if by_id else ''}{' creating' if create else ''}"
    return Step("Metadata", version, what, build, after, settle=created is not None)


def _any_name(story: Story) -> str:
    topic = story.topic()
    return story.rng.choice(ABSENT_NAMES) if topic is None or story.one_in(4) else topic.name


def _legal(name: str) -> bool:
    return name not in ("", ".", "a b") and len(name) < 250


def describe_cluster(story: Story) -> Step:
    version = story.version("DescribeCluster")
    endpoint = story.rng.choice([1, 1, 1, 2, 3, 0]) if version >= 1 else 1
    operations, fenced = story.one_in(2), version >= 2 and story.one_in(2)

    def build(side: Side) -> DescribeClusterRequest:
        request = DescribeClusterRequest(include_cluster_authorized_operations=operations)
        if version >= 1:
            request.endpoint_type = endpoint
        if version >= 2:
            request.include_fenced_brokers = fenced
        return request

    return Step("DescribeCluster", version, f"endpoint type {endpoint}", build)


def describe_configs(story: Story) -> Step:
    rng = story.rng
    version = story.version("DescribeConfigs")
    resources: list[DescribeConfigsResource] = []
    for _ in range(rng.choice([1, 1, 2])):
        kind, name = TOPIC, _any_name(story)
        if story.one_in(4):
            kind, name = BROKER, rng.choice(["1", "1", "", "77", "abc"])
        elif story.one_in(12):
            kind, name = rng.choice([*UNKNOWN_TYPES, BROKER_LOGGER, CLIENT_METRICS, GROUP]), "1"
        keys = rng.choice([None, None, [], ["retention.ms"], ["retention.ms", "no.such"], ["cleanup.policy"] * 2])
        resources.append(DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys))
    synonyms, documentation = story.one_in(2), version >= 3 and story.one_in(4)

    def build(side: Side) -> DescribeConfigsRequest:
        request = DescribeConfigsRequest(resources=resources, include_synonyms=synonyms)
        if version >= 3:
            request.include_documentation = documentation
        return request

    what = f"{[(r.resource_type, r.resource_name[:30], r.configuration_keys) for r in resources]}"
    return Step("DescribeConfigs", version, what, build)


def list_offsets(story: Story) -> Step:
    rng = story.rng
    version = story.version("ListOffsets")
    asked: list[tuple[str, int, int, int]] = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        topic = story.topic()
        name = rng.choice(["no-such-topic", "", "a b"]) if topic is None or story.one_in(15) else topic.name
        index = story.partition(topic) if topic is not None and not story.one_in(15) else rng.choice([-1, 99])
        timestamp = rng.choice(SENTINELS) if story.one_in(2) else TIMESTAMP_MS + rng.randrange(-60, 60) * 1000
        if story.one_in(10):
            timestamp = rng.choice([0, 1, 2**62, TIMESTAMP_MS * 2])
        epoch = rng.choice([-1, -1, -1, 0, 1]) if version >= 4 else -1
        asked.append((name, index, timestamp, epoch))
    if story.one_in(12):
        asked.append(asked[0])
    isolation = rng.choice([0, 1, 0]) if version >= 2 else 0
    replica = -1

    def build(side: Side) -> ListOffsetsRequest:
        topics: dict[str, ListOffsetsTopic] = {}
        for name, index, timestamp, epoch in asked:
            entry = topics.setdefault(name, ListOffsetsTopic(name=name))
            row = ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
            entry.partitions.append(row)
        request = ListOffsetsRequest(replica_id=replica, topics=list(topics.values()))
        if version >= 2:
            request.isolation_level = isolation
        if version >= 10:
            request.timeout_ms = 10_000
        return request

    trimmed = any(story.topics[name].trimmed for name, _, _, _ in asked if name in story.topics)
    facts = frozenset({"trimmed"}) if trimmed else frozenset[str]()
    return Step("ListOffsets", version, f"{asked} isolation {isolation}", build, facts=facts)


def offset_for_leader_epoch(story: Story) -> Step:
    rng = story.rng
    version = story.version("OffsetForLeaderEpoch")
    topic = story.topic()
    name = rng.choice(["no-such-topic", "", "a b"]) if topic is None or story.one_in(12) else topic.name
    index = story.partition(topic) if topic is not None and not story.one_in(12) else 99
    epoch, current = rng.choice([0, 0, 0, 1, 5, -1, -2]), rng.choice([-1, -1, 0, 1, 7, -2])
    replica = rng.choice([-1, -2]) if version >= 3 else -2

    def build(side: Side) -> OffsetForLeaderEpochRequest:
        row = OffsetForLeaderPartition(partition=index, leader_epoch=epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=name, partitions=[row])])
        if version >= 3:
            request.replica_id = replica
        return request

    return Step("OffsetForLeaderEpoch", version, f"{name}-{index} epoch {epoch} current {current}", build)


def find_coordinator(story: Story) -> Step:
    rng = story.rng
    version = story.version("FindCoordinator")
    key_type = rng.choice([0, 0, 1, 2, 3, -1]) if version >= 1 else 0
    names = ["group", "", "g:x", "g:AAAAAAAAAAAAAAAAAAAAAQ:0", *story.groups]
    keys = [rng.choice(names) for _ in range(rng.choice([1, 1, 2]))]

    def build(side: Side) -> FindCoordinatorRequest:
        if version >= 4:
            return FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
        request = FindCoordinatorRequest(key=keys[0])
        if version >= 1:
            request.key_type = key_type
        return request

    return Step("FindCoordinator", version, f"type {key_type} {keys}", build)


def describe_producers(story: Story) -> Step:
    version = story.version("DescribeProducers")
    topic = story.topic()
    name = _any_name(story)
    indexes = [0, 99] if topic is None or story.one_in(6) else list(range(topic.partition_count))

    def build(side: Side) -> DescribeProducersRequest:
        asked = DescribeProducersTopicRequest(name=name, partition_indexes=indexes)
        return DescribeProducersRequest(topics=[asked])

    return Step("DescribeProducers", version, f"{name[:30]} {indexes}", build)


def list_config_resources(story: Story) -> Step:
    version = story.version("ListConfigResources")
    types = story.rng.choice([[], [TOPIC], [BROKER], [BROKER_LOGGER], [CLIENT_METRICS], [GROUP], [TOPIC, BROKER],
                              [TOPIC, TOPIC], [3], [TOPIC, -1], [99]])  # fmt: skip

    def build(side: Side) -> ListConfigResourcesRequest:
        return ListConfigResourcesRequest(resource_types=types) if version >= 1 else ListConfigResourcesRequest()

    return Step("ListConfigResources", version, f"{types}", build)


def describe_topic_partitions(story: Story) -> Step:
    rng = story.rng
    version = story.version("DescribeTopicPartitions")
    names = [] if story.one_in(4) else [_any_name(story) or "a b" for _ in range(rng.choice([1, 2, 3]))]
    limit = rng.choice([2000, 2000, 1, 2, 3, 0, -1, 5000]) if names else 2000
    cursor = None
    if names and story.one_in(3):
        cursor = (rng.choice([*names, _any_name(story) or "a b", "zzz"]), rng.choice([0, 0, 1, 2, 50, -1]))

    def build(side: Side) -> DescribeTopicPartitionsRequest:
        return DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsTopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )

    what = f"{[name[:30] for name in names]} limit {limit} cursor {cursor}"
    facts = frozenset({"every topic"}) if not names else frozenset[str]()
    return Step("DescribeTopicPartitions", version, what, build, facts=facts)


def describe_log_dirs(story: Story) -> Step:
    """The directories of a broker: bytes per partition, exactly."""
    version = story.version("DescribeLogDirs")
    asked: list[tuple[str, list[int]]] | None = None
    if not story.one_in(4):
        asked = []
        for _ in range(story.rng.choice([0, 1, 1, 2])):
            topic = story.topic()
            indexes = [0, 99] if topic is None or story.one_in(5) else list(range(topic.partition_count))
            asked.append((_any_name(story), indexes))
    names = story.topics if asked is None else [name for name, _ in asked]
    rewritten = any(story.topics[name].rewritten for name in names if name in story.topics)

    def build(side: Side) -> DescribeLogDirsRequest:
        if asked is None:
            return DescribeLogDirsRequest(topics=None)
        topics = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in asked]
        return DescribeLogDirsRequest(topics=topics)

    what = "all" if asked is None else f"{[(name[:30], indexes) for name, indexes in asked]}"
    return Step("DescribeLogDirs", version, what, build, facts=frozenset({"rewritten"} if rewritten else ()))
