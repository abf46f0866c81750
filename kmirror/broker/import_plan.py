"""What `kmirror import` would do with each topic it finds, before anything is done: pure decisions. L3.

What must hold: a topic is imported whole or not at all, and nothing that is there already is touched. A refusal names
what is in the way and the way on. Settings that nobody knows never cost a record: such a topic is kept for ever until
somebody says what it shall be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kmirror.broker import topic_config
from kmirror.broker.kafka_directory import KafkaDirectory, SourcePartition
from kmirror.broker.kafka_metadata import KafkaMetadata
from kmirror.broker.metadata import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kmirror.broker.topic_admin import colliding_name
from kmirror.errors import ConfigError
from kmirror.protocol import uuids

IMPORTED_INTERNALLY = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
"""Last of all and in this order: their records speak of the other topics."""
KEPT_FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of a topic whose own are not known."""
_NAMED = 10
"""Partitions that one message names."""


@dataclass(frozen=True, slots=True)
class Destination:
    """What is taken there: topics (ids by name), ids, and (`has_directory(topic, index)`) partition directories."""

    topics: Mapping[str, bytes]
    has_id: Callable[[bytes], bool]
    has_directory: Callable[[str, int], bool]


@dataclass(slots=True)
class TopicPlan:
    """One topic: what was found, what will come of it. `refusal`: why it is not imported, None when it is."""

    name: str
    topic_id: bytes | None = None
    partitions: list[SourcePartition | None] = field(default_factory=list)
    """None for one without records that has no directory."""
    leader_epochs: list[int] = field(default_factory=list)
    """By partition, as the metadata has them; -1 where that is not known."""
    configs: dict[str, str] = field(default_factory=dict)
    settings_known: bool = False
    """Whether the metadata has them; those of internal topics are always known."""
    refusal: str | None = None
    notes: list[str] = field(default_factory=list)
    size_bytes: int = 0
    """Of its files, as far as they are copied."""
    offsets: int | None = None
    """Of all partitions together, from log start to log end; None before it was read."""
    done: bool = False


class Refused(Exception):
    """Why a topic cannot be imported."""


class Planner:
    """`settings`: what the user gave, by topic; `internal_configs(name)`: those an internal topic is made with."""

    def __init__(
        self,
        sources: Sequence[KafkaDirectory],
        metadata: KafkaMetadata | None,
        destination: Destination,
        *,
        settings: Mapping[str, Mapping[str, str]],
        internal_configs: Callable[[str], dict[str, str]],
    ) -> None:
        self._sources = sources
        self._metadata = metadata
        self._destination = destination
        self._settings = settings
        self._internal_configs = internal_configs
        self._names = set(destination.topics)
        self._planned: dict[bytes, str] = {}
        """Names of the topics that are imported, by id."""

    def plan(self, wants: Callable[[str], bool]) -> list[TopicPlan]:
        """In the order in which they are imported. Raises ConfigError for settings that are none."""
        names = {name for source in self._sources for name in (*source.topics, *source.unreadable)}
        if self._metadata is not None and any(source.is_kmirrors for source in self._sources):
            names |= self._metadata.topics.keys()
        ordered = [name for name in sorted(names) if name not in INTERNAL_TOPICS]
        ordered += [name for name in IMPORTED_INTERNALLY if name in names]
        plans = []
        for name in filter(wants, ordered):
            plan = TopicPlan(name)
            try:
                self._decide(plan)
            except Refused as error:
                plan.refusal = str(error)
            else:
                self._names.add(name)
                if plan.topic_id is not None:
                    self._planned[plan.topic_id] = name
            plans.append(plan)
        self._check_settings(plans)
        return plans

    def _check_settings(self, plans: list[TopicPlan]) -> None:
        planned = {plan.name for plan in plans}
        for name, configs in self._settings.items():
            if name not in planned:
                raise ConfigError(f"--set {name}:...: no such topic is imported")
            try:
                topic_config.check(configs)
            except ConfigError as error:
                raise ConfigError(f"--set {name}:...: {error}") from error

    def _decide(self, plan: TopicPlan) -> None:
        self._check_name(plan.name)
        unreadable = [source.unreadable[plan.name] for source in self._sources if plan.name in source.unreadable]
        if unreadable:
            raise Refused(f"{'; '.join(unreadable)}. Make it readable, restore it, or leave the topic out (--topics)")
        found = self._partitions(plan.name)
        plan.topic_id = self._topic_id(plan.name, found)
        count = self._count(plan, found)
        plan.partitions = [found.get(index) for index in range(count)]
        if plan.topic_id is not None and self._destination.has_id(plan.topic_id):
            raise Refused(
                f"its topic id {uuids.to_text(plan.topic_id)} belongs to another topic of the destination: "
                "it is there already, under another name"
            )
        if plan.topic_id in self._planned:
            raise Refused(
                f"its topic id {uuids.to_text(plan.topic_id)} is that of topic {self._planned[plan.topic_id]} of this "
                "import as well: directories were copied or renamed. Leave one of the two out (--topics)"
            )
        for index in range(count):
            if self._destination.has_directory(plan.name, index):
                raise Refused(
                    f"the destination has a directory {plan.name}-{index} that belongs to no topic: move it away first"
                )
        self._choose_configs(plan)

    def _check_name(self, name: str) -> None:
        if name in self._names:
            ids = {one.topic_id for source in self._sources for one in source.topics.get(name, {}).values()}
            if self._destination.topics.get(name) in ids:
                raise Refused("the destination has it already, with the same topic id: it was imported before")
            raise Refused("the destination has a topic of this name. Delete it there first, or import into another one")
        other = colliding_name(name, self._names)
        if other is not None:
            raise Refused(f"its name collides with topic {other} ('.' and '_' are one in metric names)")

    def _partitions(self, name: str) -> dict[int, SourcePartition]:
        found: dict[int, SourcePartition] = {}
        for source in self._sources:
            for index, partition in source.topics.get(name, {}).items():
                if index in found:
                    raise Refused(
                        f"partition {index} is there twice: {found[index].path} and {partition.path}. Import the "
                        "directories of one broker only, or move the copy away that shall not be used"
                    )
                found[index] = partition
        return found

    def _topic_id(self, name: str, found: Mapping[int, SourcePartition]) -> bytes | None:
        """Raises Refused when the directories are of different topics, or of one that is not the cluster's."""
        by_id = {partition.topic_id: partition.path for partition in found.values() if partition.topic_id is not None}
        if len(by_id) > 1:
            texts = [f"{path} ({uuids.to_text(topic_id)})" for topic_id, path in by_id.items()]
            raise Refused(f"directories of different topics of this name: {', '.join(texts)}. Move the older ones away")
        topic_id = next(iter(by_id), None)
        if self._metadata is None:
            return topic_id
        known = self._metadata.topics.get(name)
        if known is not None and topic_id in (None, known.topic_id):
            return known.topic_id
        if known is None and self._metadata.damage is not None:
            return topic_id
        removed = topic_id in self._metadata.removed_ids
        raise Refused(
            f"its cluster's metadata says that it was {'deleted' if removed else 'deleted, or never made'}"
            + ("" if known is None else f"; the topic of this name there is {uuids.to_text(known.topic_id)}")
            + f". To import it all the same, copy its directories ({next(iter(found.values())).path}, ...) into a "
            "folder of their own and name that"
        )

    def _count(self, plan: TopicPlan, found: Mapping[int, SourcePartition]) -> int:
        known = None if self._metadata is None else self._metadata.topics.get(plan.name)
        count = max(max(found, default=-1) + 1, 0 if known is None else len(known.leader_epochs))
        empty = [] if known is None else [source for source in self._sources if source.is_kmirrors]
        missing = (index for index in range(count) if index not in found)
        if empty:
            missing = (index for index in missing if not all(source.is_empty(plan.name, index) for source in empty))
        named = list(islice(missing, _NAMED + 1))
        if named:
            texts = ", ".join(map(str, named[:_NAMED])) + (" and more" if len(named) > _NAMED else "")
            raise Refused(
                f"it has {count} partitions, and these are missing: {texts}. Name the log directories that "
                "hold them as well (other disks, other brokers), or leave the topic out (--topics)"
            )
        epochs = () if known is None else known.leader_epochs
        plan.leader_epochs = [epochs[index] if index < len(epochs) else -1 for index in range(count)]
        return count

    # -- settings ------------------------------------------------------------------------------------------------

    def _choose_configs(self, plan: TopicPlan) -> None:
        known = None if self._metadata is None else self._metadata.topics.get(plan.name)
        given = dict(self._settings.get(plan.name, {}))
        plan.settings_known = known is not None or plan.name in INTERNAL_TOPICS
        if plan.name in INTERNAL_TOPICS:
            plan.configs = self._internal_configs(plan.name) | given
            return
        if known is None:
            plan.configs = KEPT_FOR_EVER | given
            return
        plan.configs = self._usable(plan, known.configs) | given

    def _usable(self, plan: TopicPlan, configs: Mapping[str, str]) -> dict[str, str]:
        """Those that kmirror can honour; the others are named."""
        kept: dict[str, str] = {}
        for name, value in configs.items():
            try:
                topic_config.check({**kept, name: value})
                kept[name] = value
            except ConfigError as error:
                plan.notes.append(f"setting {name}={value} is not taken over: {error}")
        return kept
