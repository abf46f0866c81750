"""Topic configuration: the table of every topic property, its checks, and the `LogConfig` that the log layer gets.

What may live here: facts about topic properties and the functions that read the table. Names, types, defaults,
synonyms and the order are those a Kafka 4.4.0 broker answers to DescribeConfigs (compared with one); the sentences are
ours. kmirror adds the two topic properties of KIP-1279 at the end.

What must hold: a topic's effective value is its own override, else the broker's (dynamic for this node, dynamic for
all nodes, static), else the default; `synonyms` tells the same chain that `effective` walks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kmirror.broker import config_table as broker_table
from kmirror.broker.config import BrokerConfig, Value, nearest_name, parse_value
from kmirror.broker.config_table import BOOLEAN, DOUBLE, INT, LIST, LONG, STRING
from kmirror.errors import ConfigError
from kmirror.storage.log import LogConfig

# ConfigEntry.ConfigSource ids as they go over the wire.
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT = range(1, 6)

Row = tuple[str, int, str, str, str]
"""(name, type, Kafka's default, broker property that provides it or "", what it does)"""

_MAX_LONG = str(2**63 - 1)
_THROTTLED_REPLICA = re.compile(r"\d+:\d+\Z")

# fmt: off
TOPIC_CONFIGS: tuple[Row, ...] = (
    ("compression.type", STRING, "producer", "compression.type",
     "Codec of the stored batches; `producer` keeps what the producer sent."),
    ("errors.deadletterqueue.group.enable", BOOLEAN, "false", "",
     "Whether share groups may use this topic as their dead-letter queue."),
    ("remote.copy.lag.bytes", LONG, "-1", "log.remote.copy.lag.bytes",
     "Tiered storage: bytes a segment stays local before it is uploaded. Not used by kmirror."),
    ("remote.log.delete.on.disable", BOOLEAN, "false", "",
     "Tiered storage: delete remote data when it is switched off. Not used by kmirror."),
    ("leader.replication.throttled.replicas", LIST, "", "",
     "Replicas whose leader-side replication is throttled. There is no replication inside kmirror."),
    ("remote.storage.enable", BOOLEAN, "false", "", "Tiered storage. Cannot be switched on in kmirror."),
    ("min.insync.replicas", INT, "1", "min.insync.replicas",
     "Replicas that must have a write before acks=all is answered, at most as many as there are: one (KIP-966)."),
    ("segment.jitter.ms", LONG, "0", "log.roll.jitter.ms",
     "Up to this much is taken from segment.ms at random, so that segments do not roll together."),
    ("remote.log.copy.disable", BOOLEAN, "false", "", "Tiered storage: stop uploading. Not used by kmirror."),
    ("local.retention.ms", LONG, "-2", "log.local.retention.ms",
     "Tiered storage: how long data stays local; -2 means retention.ms. Not used by kmirror."),
    ("cleanup.policy", LIST, "delete", "log.cleanup.policy",
     "`delete` drops old segments, `compact` keeps the last record of each key; both may be combined."),
    ("flush.ms", LONG, _MAX_LONG, "log.flush.interval.ms",
     "Data that was not yet forced to disk is, after this long."),
    ("follower.replication.throttled.replicas", LIST, "", "",
     "Replicas whose follower-side replication is throttled. There is no replication inside kmirror."),
    ("compression.lz4.level", INT, "9", "compression.lz4.level", "Level used when compression.type is lz4."),
    ("segment.bytes", INT, "1073741824", "log.segment.bytes", "A new segment file is begun at this size."),
    ("retention.ms", LONG, "604800000", "log.retention.ms",
     "Age at which a segment is dropped under the `delete` policy; -1 keeps everything."),
    ("compression.gzip.level", INT, "-1", "compression.gzip.level", "Level used when compression.type is gzip."),
    ("remote.copy.lag.ms", LONG, "0", "log.remote.copy.lag.ms",
     "Tiered storage: time a segment stays local before it is uploaded. Not used by kmirror."),
    ("flush.messages", LONG, _MAX_LONG, "log.flush.interval.messages",
     "1 forces a write to disk before it is acknowledged; any higher value leaves that to the page cache."),
    ("compression.zstd.level", INT, "3", "compression.zstd.level", "Level used when compression.type is zstd."),
    ("max.compaction.lag.ms", LONG, _MAX_LONG, "log.cleaner.max.compaction.lag.ms",
     "A record is cleaned at the latest this long after it was written."),
    ("file.delete.delay.ms", LONG, "60000", "log.segment.delete.delay.ms",
     "Time between taking a file out of the log and removing it."),
    ("max.message.bytes", INT, "1048588", "message.max.bytes", "Largest batch that is accepted, as it is stored."),
    ("min.compaction.lag.ms", LONG, "0", "log.cleaner.min.compaction.lag.ms",
     "A record is not cleaned earlier than this after it was written."),
    ("message.timestamp.type", STRING, "CreateTime", "log.message.timestamp.type",
     "Whose time a record carries: the producer's (CreateTime) or the broker's (LogAppendTime)."),
    ("local.retention.bytes", LONG, "-2", "log.local.retention.bytes",
     "Tiered storage: bytes kept local; -2 means retention.bytes. Not used by kmirror."),
    ("preallocate", BOOLEAN, "false", "log.preallocate", "Allocate a segment file at its full size when it is begun."),
    ("index.interval.bytes", INT, "4096", "log.index.interval.bytes",
     "An index entry is written after every so many bytes of log."),
    ("min.cleanable.dirty.ratio", DOUBLE, "0.5", "log.cleaner.min.cleanable.ratio",
     "Share of the log that must be uncleaned before compaction starts."),
    ("unclean.leader.election.enable", BOOLEAN, "false", "unclean.leader.election.enable",
     "Whether a replica that is behind may become leader. kmirror has one replica."),
    ("retention.bytes", LONG, "-1", "log.retention.bytes",
     "Size of a partition above which its oldest segments are dropped under the `delete` policy; -1 is no limit."),
    ("delete.retention.ms", LONG, "86400000", "log.cleaner.delete.retention.ms",
     "How long a tombstone of a compacted topic can still be read."),
    ("message.timestamp.after.max.ms", LONG, "3600000", "log.message.timestamp.after.max.ms",
     "How far a record's timestamp may lie ahead of the broker's clock."),
    ("max.decompressed.message.bytes", INT, "2147483639", "max.decompressed.message.bytes",
     "Largest size that one record may have once it is decompressed."),
    ("message.timestamp.before.max.ms", LONG, _MAX_LONG, "log.message.timestamp.before.max.ms",
     "How far a record's timestamp may lie behind the broker's clock."),
    ("segment.ms", LONG, "604800000", "log.roll.ms", "A new segment file is begun after this long."),
    ("segment.index.bytes", INT, "10485760", "log.index.size.max.bytes",
     "Size limit of the offset index of a segment."),
    # KIP-1279
    ("mirror.unclean.leader.election.enable", BOOLEAN, "false", "",
     "Follow the source through an unclean election: cut to the common point instead of stopping."),
    ("mirror.replication.throttled.replicas", LIST, "", "",
     "Replicas that mirror.replication.throttled.rate applies to."),
)
# fmt: on

INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka's hidden property for tests: a segment size below the 1 MiB that segment.bytes allows. Never described."""

BOUNDS: dict[str, tuple[float, float | None]] = {
    "segment.bytes": (1024 * 1024, None),
    "segment.ms": (1, None),
    "segment.jitter.ms": (0, None),
    "segment.index.bytes": (4, None),
    "flush.messages": (1, None),
    "flush.ms": (0, None),
    "retention.ms": (-1, None),
    "max.message.bytes": (0, None),
    "index.interval.bytes": (0, None),
    "delete.retention.ms": (0, None),
    "min.compaction.lag.ms": (0, None),
    "max.compaction.lag.ms": (1, None),
    "file.delete.delay.ms": (0, None),
    "min.cleanable.dirty.ratio": (0, 1),
    "min.insync.replicas": (1, None),
    "message.timestamp.before.max.ms": (0, None),
    "message.timestamp.after.max.ms": (0, None),
    "local.retention.ms": (-2, None),
    "local.retention.bytes": (-2, None),
    "remote.copy.lag.ms": (-1, None),
    "remote.copy.lag.bytes": (-1, None),
    "compression.gzip.level": (-1, 9),
    "compression.lz4.level": (1, 17),
    "compression.zstd.level": (-131072, 22),
    "max.decompressed.message.bytes": (0, None),
}

CHOICES: dict[str, tuple[str, ...]] = {
    "compression.type": broker_table.CHOICES["compression.type"],
    "message.timestamp.type": broker_table.CHOICES["log.message.timestamp.type"],
    "cleanup.policy": broker_table.CHOICES["log.cleanup.policy"],
}

_ROWS = {row[0]: row for row in TOPIC_CONFIGS}


@dataclass(slots=True)
class ConfigEntry:
    """One row of a DescribeConfigs answer. `source` and `kind` are Kafka's ids, synonyms are (name, value, source)."""

    name: str
    value: str | None
    source: int
    kind: int
    read_only: bool = False
    sensitive: bool = False
    synonyms: list[tuple[str, str | None, int]] = field(default_factory=list)
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """What the broker contributes: its static configuration below two layers that can be changed at run time."""

    static: BrokerConfig
    all_nodes: Mapping[str, str]
    this_node: Mapping[str, str]

    def chain(self, name: str) -> list[tuple[str, str | None, int]]:
        """Values of a broker property from the strongest to the default: (name, text, source id).

        A property that takes its value from coarser ones lists those behind it, and lists nothing at all as long as
        nobody set it itself (so does Kafka: DynamicBrokerConfig.brokerConfigSynonyms).
        """
        chain = self._own(name)
        fallbacks = broker_table.FALLBACKS.get(name, ())
        if fallbacks and chain:
            for other, _factor in fallbacks:
                chain += self._own(other)
        return chain

    def _own(self, name: str) -> list[tuple[str, str | None, int]]:
        chain: list[tuple[str, str | None, int]] = []
        for layer, source in ((self.this_node, DYNAMIC_BROKER), (self.all_nodes, DYNAMIC_DEFAULT_BROKER)):
            if name in layer:
                chain.append((name, layer[name], source))
        if name in self.static.explicit:
            chain.append((name, self.static.explicit[name], STATIC_BROKER))
        default = BrokerConfig.default_text(name)
        if default is not None:
            chain.append((name, default, DEFAULT))
        return chain

    def effective(self) -> BrokerConfig:
        if not self.all_nodes and not self.this_node:
            return self.static
        return self.static.overlaid(self.all_nodes, self.this_node)


def is_known(name: str) -> bool:
    return name in _ROWS or name == INTERNAL_SEGMENT_BYTES


def kind_of(name: str) -> int:
    return _ROWS[name][1] if name in _ROWS else INT


def check(configs: Mapping[str, str]) -> None:
    """Every name known, every value in range, and the values together make sense. Raises ConfigError."""
    for name, text in configs.items():
        if not is_known(name):
            near = nearest_name(name, _ROWS)
            raise ConfigError(f"Unknown topic config name: {name}" + (f" (did you mean {near}?)" if near else ""))
        value = parse_value(name, kind_of(name), text)
        _check_value(name, value)
    if "true" in (configs.get("remote.storage.enable") or "").lower():
        raise ConfigError("remote.storage.enable: tiered storage is not supported, leave it false")
    low, high = configs.get("min.compaction.lag.ms"), configs.get("max.compaction.lag.ms")
    if low is not None and high is not None and int(low) > int(high):
        raise ConfigError(f"min.compaction.lag.ms ({low}) is above max.compaction.lag.ms ({high})")


def _check_value(name: str, value: Value) -> None:
    if name in BOUNDS and isinstance(value, (int, float)):
        low, high = BOUNDS[name]
        if value < low or (high is not None and value > high):
            limit = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ConfigError(f"Invalid value {value} for configuration {name}: it must be {limit}")
    if name in CHOICES:
        for item in value if isinstance(value, list) else [str(value)]:
            if item not in CHOICES[name]:
                raise ConfigError(
                    f"Invalid value {item} for configuration {name}: it must be one of {', '.join(CHOICES[name])}"
                )
    if name == "compression.gzip.level" and value == 0:
        raise ConfigError(f"Invalid value 0 for configuration {name}: it must be between 1 and 9 or equal to -1")
    if name.endswith(".replication.throttled.replicas") and isinstance(value, list):
        for item in value if value != ["*"] else []:
            if not _THROTTLED_REPLICA.match(item):
                raise ConfigError(
                    f"Invalid value {item} for configuration {name}: it must be * or a list of PARTITION:BROKER"
                )


def effective(name: str, overrides: Mapping[str, str], layers: BrokerLayers) -> tuple[str | None, int]:
    """A topic property's text and where it comes from (source id)."""
    if name in overrides:
        return overrides[name], DYNAMIC_TOPIC
    _name, _kind, default, broker_name, _doc = _ROWS[name]
    if not broker_name:
        return default, DEFAULT
    chain = layers.chain(broker_name)
    if chain:
        return chain[0][1], chain[0][2]
    if broker_name in broker_table.FALLBACKS:
        coarse = layers.effective().effective_ms(broker_name)
        return (str(coarse) if coarse is not None else default), DEFAULT
    return default, DEFAULT


def canonical(name: str, kind: int, text: str) -> str:
    """A value as Kafka says it again: parsed and written anew (ConfigDef.convertToString)."""
    try:
        value = parse_value(name, kind, text)
    except ConfigError:
        return text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(dict.fromkeys(value) if name == "cleanup.policy" else value)
    return text.strip() if isinstance(value, float) else str(value)


def describe(overrides: Mapping[str, str], layers: BrokerLayers) -> list[ConfigEntry]:
    """All topic properties in Kafka's order."""
    entries: list[ConfigEntry] = []
    for name, kind, _default, broker_name, documentation in TOPIC_CONFIGS:
        value, source = effective(name, overrides, layers)
        synonyms: list[tuple[str, str | None, int]] = []
        if name in overrides:
            value = canonical(name, kind, overrides[name])
            synonyms.append((name, value, DYNAMIC_TOPIC))
        if broker_name:
            synonyms += layers.chain(broker_name)
        entries.append(ConfigEntry(name, value, source, kind, synonyms=synonyms, documentation=documentation))
    return entries


def describe_broker(layers: BrokerLayers) -> list[ConfigEntry]:
    """All broker properties in Kafka's order, KIP-1279's at the end."""
    entries: list[ConfigEntry] = []
    for name, kind, _default, dynamic, _handling in broker_table.PROPERTIES:
        chain = layers.chain(name)
        value, source = (chain[0][1], chain[0][2]) if chain else (None, DEFAULT)
        sensitive = kind == broker_table.PASSWORD
        entries.append(
            ConfigEntry(
                name,
                None if sensitive else value,
                source,
                kind,
                read_only=not dynamic,
                sensitive=sensitive,
                synonyms=[] if sensitive else chain,
            )
        )
    return entries


def describe_dynamic(layer: Mapping[str, str], source: int) -> list[ConfigEntry]:
    """What was set at run time and nothing else: the answer for the broker resource with the empty name."""
    kinds = {row[0]: row[1] for row in broker_table.PROPERTIES}
    return [
        ConfigEntry(name, text, source, kinds.get(name, STRING), synonyms=[(name, text, source)])
        for name, text in layer.items()
    ]


def log_config(overrides: Mapping[str, str], layers: BrokerLayers) -> LogConfig:
    """The log layer's view of a topic. `overrides` must have passed `check`."""

    def value(name: str) -> Value:
        text, _source = effective(name, overrides, layers)
        return None if text is None else parse_value(name, kind_of(name), text)

    def integer(name: str) -> int:
        number = value(name)
        if not isinstance(number, int):
            raise ConfigError(f"{name} has no value")
        return number

    internal_segment_bytes = overrides.get(INTERNAL_SEGMENT_BYTES)
    policy = value("cleanup.policy")
    return LogConfig(
        segment_bytes=int(internal_segment_bytes) if internal_segment_bytes else integer("segment.bytes"),
        segment_ms=integer("segment.ms"),
        index_interval_bytes=integer("index.interval.bytes"),
        segment_index_bytes=integer("segment.index.bytes"),
        max_message_bytes=integer("max.message.bytes"),
        message_timestamp_type=str(value("message.timestamp.type")),
        message_timestamp_before_max_ms=integer("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=integer("message.timestamp.after.max.ms"),
        compression_type=str(value("compression.type")),
        cleanup_policy=",".join(policy) if isinstance(policy, list) else str(policy),
        min_cleanable_dirty_ratio=float(str(value("min.cleanable.dirty.ratio"))),
        min_compaction_lag_ms=integer("min.compaction.lag.ms"),
        max_compaction_lag_ms=integer("max.compaction.lag.ms"),
        delete_retention_ms=integer("delete.retention.ms"),
        flush_messages=integer("flush.messages"),
        flush_ms=integer("flush.ms"),
        retention_ms=integer("retention.ms"),
        retention_bytes=integer("retention.bytes"),
        file_delete_delay_ms=integer("file.delete.delay.ms"),
    )
