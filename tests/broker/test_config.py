"""Broker properties: Kafka's names and defaults, and a clear answer for each that cannot be honoured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmirror.broker import config_table
from kmirror.broker.config import BrokerConfig, Listener
from kmirror.broker.config_table import STORE_TYPES
from kmirror.errors import ConfigError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "kafka-4.4.0-configs.json").read_text())


def load(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("__", "."): text for name, text in properties.items()})


def test_the_table_is_kafkas() -> None:
    ours = [[name, kind, default, dynamic] for name, kind, default, dynamic, _handling in config_table.PROPERTIES]
    assert ours[: len(GOLDEN["broker"])] == GOLDEN["broker"]
    added = [row[0] for row in ours[len(GOLDEN["broker"]) :]]
    assert all(name.startswith("mirror.") or name == "sasl.mechanism.mirror.admin.protocol" for name in added)


def test_different_defaults_are_in_force_and_have_reasons() -> None:
    config = BrokerConfig.from_properties({})
    kafka = {name: default for name, _kind, default, _dynamic in GOLDEN["broker"]}
    for name, value, reason in config_table.DIFFERENT_DEFAULTS:
        assert config.raw(name) == value
        assert kafka.get(name) != value
        assert len(reason) > 10
    assert config.integer("num.partitions") == 1
    assert config.boolean("auto.create.topics.enable")


def test_unknown_property_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"log\.retention\.ms"):
        load(log__retention__msx="1")
    with pytest.raises(ConfigError, match=r"unknown property xyzzy$"):
        load(xyzzy="1")


@pytest.mark.parametrize(
    ("name", "value", "way_round"),
    [
        ("zookeeper.connect", "h:2181", "no ZooKeeper"),
        ("log.dirs", "/a,/b", "exactly one"),
        ("ssl.keystore.location", "/x.jks", "not available yet"),
        ("ssl.keystore.type", "JKS", "convert them to PEM"),
        ("ssl.truststore.type", "pkcs12", "convert them to PEM"),
        ("ssl.keystore.type", "PEM", "not available yet"),
        ("sasl.enabled.mechanisms", "PLAIN", "not available yet"),
        ("listener.name.internal.ssl.keystore.location", "/x", "per listener"),
        ("super.users", "User:a", "authorizers"),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "authorizers"),
        ("remote.log.storage.system.enable", "true", "tiered"),
        ("default.replication.factor", "3", "one node"),
        ("create.topic.policy.class.name", "x.Y", "Java"),
        ("num.partitions", "0", "below 1"),
        ("num.partitions", "many", "whole number"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.cleanup.policy", "shrink", "compact"),
        ("listeners", "SSL://localhost:9093", "SSL"),
        ("listeners", "localhost:9092", "NAME://HOST:PORT"),
        ("listeners", "OTHER://localhost:9092", "listener.security.protocol.map"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "clients can reach"),
        ("log.retention.bytes", "99999999999999999999", "does not fit"),
    ],
)
def test_refused(name: str, value: str, way_round: str) -> None:
    with pytest.raises(ConfigError, match=way_round):
        BrokerConfig.from_properties({name: value})


def test_every_default_of_kafka_is_accepted() -> None:
    """Configuration files of real clusters spell out defaults, also of what kmirror does not do; but who says JKS means
    to use TLS."""
    spelled = {
        name: default
        for name, _kind, default, _dynamic in GOLDEN["broker"]
        if default is not None and "replication.factor" not in name and name not in STORE_TYPES
    }
    spelled["listeners"] = "PLAINTEXT://127.0.0.1:9092"
    BrokerConfig.from_properties(spelled)


def test_without_meaning_is_a_warning() -> None:
    config = load(num__network__threads="3", inter__broker__protocol__version="3.9", num__partitions="2")
    assert len(config.warnings) == 2
    assert config.integer("num.partitions") == 2


def test_listeners() -> None:
    config = load(
        listeners="PLAINTEXT://127.0.0.1:0, EXTERNAL://:9094,CONTROLLER://127.0.0.1:9093",
        listener__security__protocol__map="PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        controller__listener__names="CONTROLLER",
        advertised__listeners="EXTERNAL://kafka.example.org:19094",
    )
    assert config.listeners == (
        Listener("PLAINTEXT", "127.0.0.1", 0, "PLAINTEXT"),
        Listener("EXTERNAL", "", 9094, "PLAINTEXT"),
    )
    assert config.advertised_listeners == (Listener("EXTERNAL", "kafka.example.org", 19094, "PLAINTEXT"),)
    assert load(listeners="PLAINTEXT://[::1]:9092").listeners[0].host == "::1"
    with pytest.raises(ConfigError, match="not in listeners"):
        load(advertised__listeners="SSL://host:1")


def test_directories_and_node_id() -> None:
    assert BrokerConfig.from_properties({}).log_directory == "./kmirror-data"
    assert load(log__dir="/x").log_directory == "/x"
    assert load(log__dir="/x", log__dirs="/y").log_directory == "/y"
    assert load(broker__id="7").node_id == 7
    assert load(broker__id="7", node__id="8").node_id == 8


def test_times_from_coarser_properties() -> None:
    assert load(log__retention__hours="2").effective_ms("log.retention.ms") == 7_200_000
    assert load(log__retention__hours="2", log__retention__minutes="5").effective_ms("log.retention.ms") == 300_000
    assert load(log__retention__minutes="-1").effective_ms("log.retention.ms") == -1
    assert load(log__retention__ms="9", log__retention__hours="2").effective_ms("log.retention.ms") == 9


def test_overlaid_values_win() -> None:
    config = load(message__max__bytes="100")
    assert (
        config.overlaid({"message.max.bytes": "200"}, {"message.max.bytes": "300"}).integer("message.max.bytes") == 300
    )
    assert config.integer("message.max.bytes") == 100
