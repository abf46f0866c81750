"""Steps that change the cluster: topics, partitions, configurations."""

from __future__ import annotations

from typing import Any

from conformance.differential.sides import Side
from conformance.differential.story import NO_ID, UNKNOWN_ID, Step, Story
from kmirror.protocol.api.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from kmirror.protocol.api.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kmirror.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kmirror.protocol.api.update_features import FeatureUpdateKey, UpdateFeaturesRequest

TIMEOUT_MS = 20_000
MAX_TOPICS = 7
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
UNKNOWN_TYPES = (0, 1, 3, 99, -1)

GOOD_CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"message.timestamp.type": "LogAppendTime"},
    {"compression.type": "gzip"},
    {"compression.type": "lz4"},
    {"compression.type": "zstd"},
    {"compression.type": "snappy"},
    {"compression.type": "uncompressed"},
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact,delete"},
    {"max.message.bytes": "300"},
    {"message.timestamp.before.max.ms": "1000", "retention.ms": "100000"},
    {"flush.messages": "10000", "min.insync.replicas": "1"},
    {"segment.bytes": "1048576", "index.interval.bytes": "0"},
)
BAD_CONFIGS: tuple[tuple[str, str | None], ...] = (
    ("retention.mx", "1"),
    ("", "1"),
    ("retention.ms", None),
    ("retention.ms", ""),
    ("retention.ms", "abc"),
    ("retention.ms", "1.5"),
    ("retention.ms", " 77 "),
    ("retention.ms", "-2"),
    ("retention.ms", "9223372036854775808"),
    ("retention.bytes", "-3"),
    ("compression.type", "brotli"),
    ("compression.type", "GZIP"),
    ("cleanup.policy", "shred"),
    ("cleanup.policy", ""),
    ("cleanup.policy", "delete,delete"),
    ("cleanup.policy", "compact,,delete"),
    ("segment.bytes", "100"),
    ("segment.bytes", "3000000000"),
    ("min.insync.replicas", "0"),
    ("min.insync.replicas", "2"),
    ("message.timestamp.type", "Whenever"),
    ("min.cleanable.dirty.ratio", "1.5"),
    ("min.cleanable.dirty.ratio", "0.25"),
    ("preallocate", "maybe"),
    ("preallocate", "TRUE"),
    ("compression.gzip.level", "0"),
    ("compression.lz4.level", "18"),
    ("max.compaction.lag.ms", "0"),
    ("leader.replication.throttled.replicas", "0:1,1:1"),
    ("leader.replication.throttled.replicas", "x"),
    ("follower.replication.throttled.replicas", "*"),
    ("local.retention.ms", "-2"),
    ("local.retention.ms", "999999999999"),
    ("delete.retention.ms", "5"),
    ("file.delete.delay.ms", "1000"),
    ("unclean.leader.election.enable", "true"),
    ("message.format.version", "2.8"),
    ("message.downconversion.enable", "false"),
)
ODD_NAMES = ("", ".", "..", "a b", "ä", "x" * 249, "x" * 250, "a/b", "__cluster_metadata", "tab\t", "-", "_", "A" * 300)


def create_topics(story: Story) -> Step:
    rng = story.rng
    version = story.version("CreateTopics")
    validate_only = story.one_in(8)
    room = MAX_TOPICS - len(story.topics)
    if room <= 0 and not validate_only:
        return delete_topics(story)
    topics = [_creatable(story, version, calm=story.one_in(2)) for _ in range(rng.choice([1, 1, 1, 2]))]
    if story.one_in(15):
        topics.append(topics[0])

    def build(side: Side) -> CreateTopicsRequest:
        return CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS, validate_only=validate_only)

    def after(left: Any, _right: Any) -> None:
        for row in left.topics:
            if row.error_code == 0 and not validate_only:
                asked = next(topic for topic in topics if topic.name == row.name)
                count = len(asked.assignments) or asked.num_partitions
                story.zstd_topics |= any(config.value == "zstd" for config in asked.configs)
                story.expect(
                    row.name,
                    story.sides[0].default_partitions if count == -1 else count,
                    {config.name: config.value or "" for config in asked.configs},
                )

    what = f"{'validate ' if validate_only else ''}{[topic.name[:40] for topic in topics]}"
    return Step("CreateTopics", version, what, build, after, settle=not validate_only)


def _creatable(story: Story, version: int, *, calm: bool) -> CreatableTopic:
    rng = story.rng
    topic = CreatableTopic(name=_name(story, calm=calm), num_partitions=rng.choice([1, 2, 3]), replication_factor=1)
    configs = dict[str, str | None](rng.choice(GOOD_CONFIGS))
    if not calm and story.one_in(3):
        name, value = rng.choice(BAD_CONFIGS)
        configs[name] = value
    topic.configs = [CreatableTopicConfig(name=name, value=value) for name, value in configs.items()]
    if calm:
        return topic
    pick = rng.randrange(8)
    if pick == 0:
        topic.num_partitions = rng.choice([0, -1, -2, 20_000]) if version >= 4 else rng.choice([0, -2])
    elif pick == 1:
        topic.replication_factor = rng.choice([0, -1, -2, 2]) if version >= 4 else rng.choice([0, -2, 2])
    elif pick == 2:
        topic.num_partitions = topic.replication_factor = -1
        topic.assignments = _assignments(story)
    elif pick == 3:
        topic.assignments = _assignments(story)
        topic.num_partitions = rng.choice([-1, 1])
        topic.replication_factor = rng.choice([-1, 1])
    elif pick == 4:
        topic.configs.append(CreatableTopicConfig(name="retention.ms", value="1000000"))
        topic.configs.append(CreatableTopicConfig(name="retention.ms", value="2000000"))
    return topic


def _name(story: Story, *, calm: bool) -> str:
    existing = story.topic()
    pick = 99 if calm else story.rng.randrange(12)
    if pick == 0 and existing is not None:
        return existing.name
    if pick == 1:
        return story.rng.choice(ODD_NAMES)
    if pick == 2 and existing is not None:
        return existing.name.replace(".", "_") if "." in existing.name else existing.name.replace("_", ".")
    name = story.fresh_name()
    return name + story.rng.choice(["", "", ".x", "_x", ".a_b"])


def _assignments(story: Story) -> list[CreatableReplicaAssignment]:
    node = story.sides[0].node_id
    shapes: tuple[tuple[tuple[int, list[int]], ...], ...] = (
        ((0, [node]),),
        ((0, [node]), (1, [node])),
        ((1, [node]),),
        ((0, [node]), (2, [node])),
        ((0, []),),
        ((0, [node, node]),),
        ((0, [node + 100]),),
        ((0, [node, node + 100]),),
        ((0, [node]), (0, [node])),
        ((-1, [node]),),
    )
    return [
        CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
        for index, brokers in story.rng.choice(shapes)
    ]


def create_partitions(story: Story) -> Step:
    rng, node = story.rng, story.sides[0].node_id
    version = story.version("CreatePartitions")
    validate_only = story.one_in(5)
    topic = story.topic()
    name = rng.choice(["", "no-such-topic", "a b"]) if topic is None or story.one_in(8) else topic.name
    count = (topic.partition_count if topic else 1) + rng.choice([1, 1, 1, 2, 0, -1, -9, 20_000])
    asked = CreatePartitionsTopic(name=name, count=count, assignments=None)
    if story.one_in(3):
        shapes: tuple[list[list[int]], ...] = ([[node]], [[node], [node]], [[]], [[node, node]], [[node + 100]], [])
        asked.assignments = [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in rng.choice(shapes)]
    topics = [asked, asked] if story.one_in(15) else [asked]

    def build(side: Side) -> CreatePartitionsRequest:
        return CreatePartitionsRequest(topics=topics, timeout_ms=TIMEOUT_MS, validate_only=validate_only)

    def after(left: Any, _right: Any) -> None:
        for row in left.results:
            if row.error_code == 0 and not validate_only:
                story.topics[row.name].partition_count = count

    return Step("CreatePartitions", version, f"{name} to {count}", build, after, settle=not validate_only)


def delete_topics(story: Story) -> Step:
    rng = story.rng
    version = story.version("DeleteTopics")
    topic = story.topic()
    by_id = version >= 6 and story.one_in(2)
    names: list[str] = [] if topic is None or story.one_in(6) else [topic.name]
    if not names or story.one_in(5):
        names.append(rng.choice(["no-such-topic", "", "a b", "__cluster_metadata"]))
    if story.one_in(10):
        names.append(names[0])
    both = story.one_in(12)

    def build(side: Side) -> DeleteTopicsRequest:
        if version < 6:
            return DeleteTopicsRequest(topic_names=names, timeout_ms=TIMEOUT_MS)
        states = []
        for name in names:
            known = story.topics.get(name)
            topic_id = UNKNOWN_ID if known is None else known.ids[side.index]
            if by_id:
                states.append(DeleteTopicState(name=name if both else None, topic_id=topic_id))
            else:
                states.append(DeleteTopicState(name=None if both and name == "" else name, topic_id=NO_ID))
        return DeleteTopicsRequest(topics=states, timeout_ms=TIMEOUT_MS)

    def after(left: Any, _right: Any) -> None:
        for row in left.responses:
            if row.error_code == 0:
                story.forget(row.name)

    return Step("DeleteTopics", version, f"{names}{' by id' if by_id else ''}", build, after, settle=True)


# -- configurations --------------------------------------------------------------------------------------------------

UNKNOWN_OPERATION = 9
UNKNOWN_PROPERTY = "unknown.property"
BROKER_CHANGES: tuple[tuple[str, str | None], ...] = (
    ("log.cleaner.threads", "2"),
    ("background.threads", "11"),
    ("log.retention.bytes", "-1"),
    (UNKNOWN_PROPERTY, "1"),
    ("node.id", "9"),
    ("num.partitions", "4"),
    ("log.cleaner.threads", "x"),
    ("log.cleaner.threads", None),
    ("message.max.bytes", "2000000"),
    ("log.cleanup.policy", "shred"),
)


def _resource(story: Story) -> tuple[int, str]:
    topic = story.topic()
    pick = story.rng.randrange(14)
    if pick == 0:
        return TOPIC, story.rng.choice(["no-such-topic", "", "a b"])
    if pick == 1:
        return story.rng.choice(UNKNOWN_TYPES), "x"
    if pick == 2:
        return BROKER, story.rng.choice(["77", "abc", "", "", str(story.sides[0].node_id)])
    return (TOPIC, topic.name) if topic is not None else (TOPIC, "no-such-topic")


def _topic_change(story: Story) -> tuple[str, str | None]:
    rng = story.rng
    if story.one_in(3):
        return rng.choice(BAD_CONFIGS)
    chosen = list(rng.choice([configs for configs in GOOD_CONFIGS if configs]).items())
    return chosen[0]


def incremental_alter_configs(story: Story) -> Step:
    rng = story.rng
    version = story.version("IncrementalAlterConfigs")
    validate_only = story.one_in(6)
    kind, name = _resource(story)
    changes: list[IncrementalAlterableConfig] = []
    for _ in range(rng.choice([1, 1, 2])):
        config, value = rng.choice(BROKER_CHANGES) if kind == BROKER else _topic_change(story)
        operation = UNKNOWN_OPERATION if story.one_in(30) else rng.choice([0, 0, 0, 0, 1, 2, 3])
        if operation in (2, 3) and story.one_in(2):
            config, value = "cleanup.policy", rng.choice(["compact", "delete", "compact,delete", ""])
        if operation == 1:
            value = rng.choice([None, value])
        changes.append(IncrementalAlterableConfig(name=config, config_operation=operation, value=value))
    if story.one_in(12):
        changes.append(changes[0])
    if any(change.config_operation == UNKNOWN_OPERATION for change in changes):
        del changes[1:]  # which of two bad ones Kafka meets first is up to a hash map
    unknown = [change for change in changes if change.name == UNKNOWN_PROPERTY]
    changes = unknown[:1] or changes  # alone: Kafka would take it and what comes with it
    if story.one_in(25):
        changes = []
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    resources = [resource, resource] if story.one_in(20) else [resource]

    def build(side: Side) -> IncrementalAlterConfigsRequest:
        return IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)

    what = f"{kind} {name} {[(c.name, c.config_operation, c.value) for c in changes]}"
    facts = frozenset({"unknown property"} if kind == BROKER and UNKNOWN_PROPERTY in [c.name for c in changes] else ())
    after = _configs_changed(story, name)
    return Step("IncrementalAlterConfigs", version, what, build, after, settle=not validate_only, facts=facts)


def alter_configs(story: Story) -> Step:
    rng = story.rng
    version = story.version("AlterConfigs")
    validate_only = story.one_in(6)
    kind, name = _resource(story)
    if (kind, name) == (BROKER, ""):
        name = "77"  # Kafka refuses to drop the min.insync.replicas that it has recorded there itself
    pairs = [
        rng.choice(BROKER_CHANGES) if kind == BROKER else _topic_change(story) for _ in range(rng.choice([0, 1, 1, 2]))
    ]
    pairs = [pair for pair in pairs if pair[0] == UNKNOWN_PROPERTY][:1] or pairs
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=config, value=value) for config, value in pairs],
    )

    def build(side: Side) -> AlterConfigsRequest:
        return AlterConfigsRequest(resources=[resource], validate_only=validate_only)

    what = f"{kind} {name} {pairs}"
    facts = frozenset({"unknown property"} if kind == BROKER and UNKNOWN_PROPERTY in dict(pairs) else ())
    after = _configs_changed(story, name)
    return Step("AlterConfigs", version, what, build, after, settle=not validate_only, facts=facts)


def _configs_changed(story: Story, name: str) -> Any:
    def after(_left: Any, _right: Any) -> None:
        if name in story.topics:
            # whoever changed compression.type may change it back: what was stored meanwhile stays each broker's own
            story.topics[name].rewritten = True
            story.zstd_topics = True

    return after


# -- features --------------------------------------------------------------------------------------------------------

FEATURES = ("transaction.version", "no.such.feature", "", "metadata.version")
VALIDATE_FROM = 1
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def update_features(story: Story) -> Step:
    """Asks whether a change would do, or for one that cannot be: a change would hold for the whole cluster."""
    rng = story.rng
    version = story.version("UpdateFeatures")
    names = rng.sample(FEATURES, rng.choice([0, 1, 1, 1, 2]))
    if story.one_in(12):
        names = names * 2
    wanted = [(name, rng.choice([0, 1, 2, 3, 99, -1]), rng.choice([UPGRADE] * 3 + [2, 3, 0, 7])) for name in names]
    if version < VALIDATE_FROM:
        wanted = [(name, 99, kind) for name, _, kind in wanted]

    def build(side: Side) -> UpdateFeaturesRequest:
        request = UpdateFeaturesRequest(timeout_ms=TIMEOUT_MS)
        for name, level, kind in wanted:
            update = FeatureUpdateKey(feature=name, max_version_level=level)
            if version >= VALIDATE_FROM:
                update.upgrade_type = kind
            else:
                update.allow_downgrade = kind != UPGRADE
            request.feature_updates.append(update)
        if version >= VALIDATE_FROM:
            request.validate_only = True
        return request

    return Step("UpdateFeatures", version, f"{wanted}", build)
