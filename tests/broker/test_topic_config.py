"""Topic properties: Kafka's table, effective values and where they come from, and altering them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmirror.broker import topic_config
from kmirror.broker.config import BrokerConfig
from kmirror.broker.config_admin import ConfigOp, ConfigOperation
from kmirror.broker.metadata import BROKER_RESOURCE, MIRROR_RESOURCE, TOPIC_RESOURCE
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.topic_config import BrokerLayers
from kmirror.errors import ConfigError
from tests.broker.harness import Broker, error_code

GOLDEN = json.loads((Path(__file__).parent / "golden" / "kafka-4.4.0-configs.json").read_text())
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
DIFFERENT = {"flush.messages": "1"}


def layers(*, default: dict[str, str] | None = None, node: dict[str, str] | None = None, **static: str) -> BrokerLayers:
    config = BrokerConfig.from_properties({name.replace("__", "."): text for name, text in static.items()})
    return BrokerLayers(config, default or {}, node or {})


def test_the_table_is_kafkas() -> None:
    described = topic_config.describe({}, layers())
    ours = [[e.name, e.kind, e.value, [name for name, _value, _source in e.synonyms]] for e in described]
    kafkas = [[name, kind, DIFFERENT.get(name, value), synonyms] for name, kind, value, synonyms in GOLDEN["topic"]]
    assert ours[: len(kafkas)] == kafkas
    assert [row[0] for row in ours[len(kafkas) :]] == [
        "mirror.unclean.leader.election.enable",
        "mirror.replication.throttled.replicas",
    ]
    assert all(e.documentation and e.source == topic_config.DEFAULT and not e.read_only for e in described)


def test_sources_and_synonyms_follow_kafka() -> None:
    """The same settings were given to a Kafka 4.4.0 broker; these are its answers."""
    chain = layers(
        log__retention__hours="100",
        log__roll__hours="50",
        log__flush__interval__ms="1000",
        message__max__bytes="2000000",
        default={"log.retention.ms": "7777", "message.max.bytes": "2000001"},
        node={"message.max.bytes": "2000002"},
    )
    described = {e.name: e for e in topic_config.describe({"max.message.bytes": "3000000"}, chain)}
    entry = described["max.message.bytes"]
    assert (entry.value, entry.source) == ("3000000", 1)
    assert entry.synonyms == [
        ("max.message.bytes", "3000000", 1),
        ("message.max.bytes", "2000002", 2),
        ("message.max.bytes", "2000001", 3),
        ("message.max.bytes", "2000000", 4),
        ("message.max.bytes", "1048588", 5),
    ]
    entry = described["retention.ms"]
    assert (entry.value, entry.source) == ("7777", 3)
    assert entry.synonyms == [
        ("log.retention.ms", "7777", 3),
        ("log.retention.hours", "100", 4),
        ("log.retention.hours", "168", 5),
    ]
    entry = described["flush.ms"]
    assert (entry.value, entry.source) == ("1000", 4)
    assert entry.synonyms == [
        ("log.flush.interval.ms", "1000", 4),
        ("log.flush.scheduler.interval.ms", "9223372036854775807", 5),
    ]
    entry = described["segment.ms"]
    assert (entry.value, entry.source, entry.synonyms) == ("180000000", 5, [])


@pytest.mark.parametrize(
    ("configs", "complaint"),
    [
        ({"retention.mz": "1"}, "Unknown topic config name: retention.mz .did you mean retention.ms"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"cleanup.policy": "compact,shrink"}, "compact, delete"),
        ({"compression.gzip.level": "0"}, "between 1 and 9"),
        ({"leader.replication.throttled.replicas": "1:1,x"}, "PARTITION:BROKER"),
        ({"segment.bytes": "100"}, "at least 1048576"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "between 0 and 1"),
        ({"preallocate": "maybe"}, "true or false"),
        ({"remote.storage.enable": "true"}, "tiered storage"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, "above max.compaction.lag.ms"),
        ({"max.message.bytes": "4000000000"}, "does not fit"),
    ],
)
def test_bad_topic_configs(configs: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        topic_config.check(configs)


def test_log_config_takes_every_level() -> None:
    config = topic_config.log_config(
        {"internal.segment.bytes": "500", "cleanup.policy": "compact,delete"},
        layers(log__message__timestamp__type="LogAppendTime", log__retention__minutes="1"),
    )
    assert (config.segment_bytes, config.cleanup_policy) == (500, "compact,delete")
    assert (config.message_timestamp_type, config.retention_ms, config.flush_messages) == ("LogAppendTime", 60_000, 1)


# --- altering -----------------------------------------------------------------------------------------------------


def alter(broker: Broker, name: str, *ops: ConfigOp, resource: int = TOPIC_RESOURCE, replace: bool = False) -> int:
    promise = broker.world.alter_configs(resource, name, list(ops), replace=replace)
    broker.flush.run()
    return error_code(promise)


def value(broker: Broker, name: str, key: str, resource: int = TOPIC_RESOURCE) -> str | None:
    (entry,) = broker.world.describe_configs(resource, name, [key])
    return entry.value


def test_incremental_and_replacing_changes_survive_a_crash() -> None:
    """B062: incremental touches only what it names, AlterConfigs replaces the whole set."""
    broker = Broker()
    broker.create("t", cleanup__policy="compact", retention__ms="1000")
    assert alter(broker, "t", ConfigOp("cleanup.policy", APPEND, "delete")) == 0
    assert value(broker, "t", "cleanup.policy") == "compact,delete"
    assert value(broker, "t", "retention.ms") == "1000"
    assert alter(broker, "t", ConfigOp("cleanup.policy", SUBTRACT, "compact"), ConfigOp("retention.ms", DELETE)) == 0
    assert (value(broker, "t", "cleanup.policy"), value(broker, "t", "retention.ms")) == ("delete", "604800000")
    assert alter(broker, "t", ConfigOp("flush.messages", SET, "10")) == 0
    broker.crash()
    assert value(broker, "t", "flush.messages") == "10"
    assert alter(broker, "t", ConfigOp("retention.ms", SET, "9000"), replace=True) == 0
    assert (value(broker, "t", "retention.ms"), value(broker, "t", "flush.messages")) == ("9000", "1")
    broker.restart()
    assert broker.world.image.topics_by_name["t"].configs == {"retention.ms": "9000"}


@pytest.mark.parametrize(
    ("op", "code"),
    [
        (ConfigOp("retention.ms", APPEND, "1"), 40),
        (ConfigOp("retention.ms", SET, None), 42),
        (ConfigOp("no.such", SET, "1"), 40),
        (ConfigOp("no.such", APPEND, "1"), 40),
        (ConfigOp("retention.ms", SET, "soon"), 40),
        (ConfigOp("retention.ms", 9, "1"), 42),
    ],
)
def test_refused_changes_apply_nothing(op: ConfigOp, code: int) -> None:
    broker = Broker()
    broker.create("t")
    assert alter(broker, "t", ConfigOp("flush.ms", SET, "5"), op) == code
    assert broker.world.image.topics_by_name["t"].configs == {}
    assert alter(broker, "absent", ConfigOp("flush.ms", SET, "5")) == 3
    assert alter(broker, "a b", ConfigOp("flush.ms", SET, "5")) == 17
    assert alter(broker, "", ConfigOp("flush.ms", SET, "5")) == 42
    assert alter(broker, "t", ConfigOp("flush.ms", SET, "5"), ConfigOp("flush.ms", DELETE)) == 42
    assert alter(broker, "1", ConfigOp("flush.ms", SET, "5"), resource=16) == 42


def test_broker_configs_reach_topics_but_not_their_overrides() -> None:
    """B062: a broker-wide change, twice, leaves topic overrides alone."""
    broker = Broker()
    broker.create("t", retention__ms="1000")
    broker.create("u")
    for text in ("5000", "6000"):
        assert alter(broker, "", ConfigOp("log.retention.ms", SET, text), resource=BROKER_RESOURCE) == 0
        assert (value(broker, "t", "retention.ms"), value(broker, "u", "retention.ms")) == ("1000", text)
    broker.world.partition("u", 0).log  # noqa: B018 (opens it)
    assert alter(broker, "1", ConfigOp("message.max.bytes", SET, "77"), resource=BROKER_RESOURCE) == 0
    assert broker.world.partition("u", 0).log.config.max_message_bytes == 77
    assert broker.world.config.integer("message.max.bytes") == 77
    broker.restart()
    assert value(broker, "u", "max.message.bytes") == "77"
    assert [e.name for e in broker.world.describe_configs(BROKER_RESOURCE, "")] == ["log.retention.ms"]
    assert alter(broker, "1", ConfigOp("num.partitions", SET, "2"), resource=BROKER_RESOURCE) == 42
    assert alter(broker, "2", ConfigOp("message.max.bytes", SET, "2"), resource=BROKER_RESOURCE) == 42
    assert alter(broker, "1", ConfigOp("num.partitions", DELETE), resource=BROKER_RESOURCE) == 0
    assert alter(broker, "1", ConfigOp("log.retention.mz", SET, "2"), resource=BROKER_RESOURCE) == 42
    assert alter(broker, "1", ConfigOp("message.max.bytes", SET, "x"), resource=BROKER_RESOURCE) == 42


def test_describing_the_broker() -> None:
    """B060: tools ask the broker for these."""
    broker = Broker({"num.partitions": "3"})
    entries = {e.name: e for e in broker.world.describe_configs(BROKER_RESOURCE, "1")}
    assert (entries["num.partitions"].value, entries["num.partitions"].source) == ("3", 4)
    assert entries["default.replication.factor"].value == "1"
    assert entries["auto.create.topics.enable"].read_only
    assert not entries["log.retention.ms"].read_only
    assert entries["ssl.key.password"].sensitive


def test_mirror_resources_are_asked_of_mirroring() -> None:
    broker = Broker()
    assert alter(broker, "m", ConfigOp("a", SET, "1"), resource=MIRROR_RESOURCE) == 137
    broker.settle(broker.world.configs.write(MIRROR_RESOURCE, "m", {"bootstrap.servers": "h:1"}))
    assert alter(broker, "m", ConfigOp("bad", SET, "1"), resource=MIRROR_RESOURCE) == 40
    assert alter(broker, "m", ConfigOp("topics.include", APPEND, "a"), resource=MIRROR_RESOURCE) == 0
    broker.restart()
    assert broker.world.image.mirror_configs == {"m": {"bootstrap.servers": "h:1", "topics.include": "a"}}
    broker.settle(broker.world.configs.write(MIRROR_RESOURCE, "m", {"bootstrap.servers": None, "topics.include": None}))
    assert broker.world.image.mirror_configs == {}


def test_create_checks_configs() -> None:
    broker = Broker()
    for configs in ({"cleanup.policy": "shrink"}, {"a": "b"}, {"retention.ms": None}):
        promise = broker.world.create_topic(CreateTopicSpec("t", 1, configs=configs))
        broker.flush.run()
        assert error_code(promise) == 40
