"""Mirroring bound to the world: mirrors, their topics and partitions, boot, and the seam to the links. L3.

What may live here: who owns which machine, loading and replaying `__mirror_state`, the hooks that the world calls, and
the pull interface of `kmirror.source.link`. Operator requests are in `mirror_operator`, the source's metadata and
configs in `mirror_source`, the data path in `mirror_fetch`, one partition in `mirror_partition`.

What must hold: a partition of a mirrored topic is never writable unless STOPPED is recorded for its current association
(at boot too, before anybody is served); only the current association's records count; whatever was begun before a crash
(tombstones of a deleted mirror, of a taken-over topic) is completed at boot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from kmirror.broker import mirror_describe, mirror_fetch, mirror_operator, mirror_source
from kmirror.broker import mirror_seam as seam
from kmirror.broker.metadata import MIRROR_STATE_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicState
from kmirror.broker.mirror_groups import GroupSync
from kmirror.broker.mirror_partition import Continue, MirroredPartition
from kmirror.broker.mirror_records import CODEC, PartitionKey, RecordMaker, StateImage
from kmirror.broker.mirror_timers import Timers
from kmirror.broker.mirror_waiting import Pending, gather
from kmirror.broker.partition import Partition
from kmirror.broker.topic_config import ConfigEntry
from kmirror.effects import Effects, LogId, Promise, StateRecord
from kmirror.errors import ApiError
from kmirror.mirror import config as mirror_config
from kmirror.mirror import desired as wishes
from kmirror.mirror import events as ev
from kmirror.mirror.alignment import Lineage
from kmirror.mirror.behaviour import Machine
from kmirror.mirror.config import MirrorConfig
from kmirror.mirror.desired import Association
from kmirror.mirror.machine import Settings
from kmirror.mirror.retry import RetryPolicy
from kmirror.mirror.states import Desired, State
from kmirror.mirror.sync import Lists, Missing
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kmirror.broker.world import World

log = logging.getLogger("kmirror.mirror")


@dataclass(slots=True)
class MirroredTopic:
    """A topic's current association with a mirror."""

    association: Association
    partitions: list[MirroredPartition] = field(default_factory=list)
    settings_known: bool = False
    """The source's topic configs were seen since the start, or the source will not tell them."""


class Mirror:
    """One mirror: configuration, settings shared by its machines, topics, and what its link needs to know."""

    def __init__(self, name: str, configs: Mapping[str, str]) -> None:
        self.name = name
        self.config = MirrorConfig({})
        self.settings = Settings(retry=RetryPolicy())
        self.topics: dict[str, MirroredTopic] = {}
        self.candidates: dict[str, list[MirroredPartition]] = {}
        """Partitions whose start is being decided, of topics that are not (or not yet) associated."""
        self.starting: set[str] = set()
        """All topics whose start is being decided."""
        self.creating: dict[str, Promise[TopicState]] = {}
        """Topics that do not exist yet but are being made, for a start."""
        self.missing = Missing()
        self.generation = 0
        self.metadata_wanted = True
        self.counters: dict[str, int] = {}
        self.configure(configs)

    def configure(self, configs: Mapping[str, str]) -> None:
        before = self.config.connection_part()
        self.config = MirrorConfig(wishes.visible(configs))
        if self.config.connection_part() != before:
            self.generation += 1
        for partition in self.partitions():
            partition.idle_at = -1
        settings = self.settings
        settings.source_cluster_id = self.config.text("source.cluster.id")
        settings.fetch_backoff_ms = self.config.number("fetch.backoff.ms")
        settings.save_cut = self.config.flag("alignment.save.cut")
        settings.gap_halts = self.config.text("gap.action") == "halt"
        settings.truncate_open = self.config.text("open.transactions.on.stop") == "truncate"

    def partitions(self) -> Iterator[MirroredPartition]:
        """All, those of candidates too."""
        for topic in self.topics.values():
            yield from topic.partitions
        for candidates in self.candidates.values():
            yield from candidates

    @property
    def lists(self) -> Lists:
        return Lists(tuple(self.config.items("topics.include")), tuple(self.config.items("topics.exclude")))


class Mirrors:
    """`world.mirrors`. Made while the world opens; `recovered` makes it ready."""

    def __init__(self, world: World, *, chance: Callable[[], float] | None = None) -> None:
        self.world = world
        self.image = StateImage()
        self.records = RecordMaker(1)
        self.mirrors: dict[str, Mirror] = {}
        self.topics: dict[str, tuple[Mirror, MirroredTopic]] = {}
        """Current associations by topic name."""
        self.fetch_serial = 0
        self.growing: str | None = None
        """Topic that the mirror itself is growing at this moment."""
        self.operations: list[Pending] = []
        self.group_sync = GroupSync(self)
        self._chance = chance or Random().random
        self._waker: Callable[[str], None] = _nobody
        self._by_key: dict[PartitionKey, MirroredPartition] = {}
        """Attached partitions by the key of their records."""
        self._timers = Timers(self._ticks)
        self._queries: dict[int, MirroredPartition] = {}
        self._query_ids = 0
        world.runtime.register(MIRROR_STATE_TOPIC, CODEC, self._replay)
        world.runtime.on_action(Continue, lambda done: done.partition.recorded_durably(done.token, done.actions))

    # -- boot --------------------------------------------------------------------------------------------------------

    def recovered(self) -> None:
        """Replay, set the modes, then let every machine take it from there."""
        topic = self.world.image.topics_by_name.get(MIRROR_STATE_TOPIC)
        if topic is not None:
            self.records = RecordMaker(len(topic.partitions))
            for index in range(len(topic.partitions)):
                self.world.runtime.replay_log(LogId(MIRROR_STATE_TOPIC, index))
        for name, configs in self.world.image.mirror_configs.items():
            mirror = self._add_mirror(name, configs)
            for association in wishes.associations(configs):
                self._load(mirror, association)
        self._complete_tombstones()
        for mirror in list(self.mirrors.values()):
            for partition in list(mirror.partitions()):
                partition.step(ev.Loaded())
            for name in list(mirror.topics):
                mirror_operator.self_start(self, mirror, name)

    def _add_mirror(self, name: str, configs: Mapping[str, str]) -> Mirror:
        mirror = Mirror(name, configs)
        config = self.world.config
        mirror.settings.retry = RetryPolicy(
            initial_backoff_ms=config.integer("mirror.failed.retry.initial.backoff.ms"),
            max_backoff_ms=config.integer("mirror.failed.retry.max.backoff.ms"),
            max_attempts=config.integer("mirror.failed.retry.max.attempts"),
        )
        self.mirrors[name] = mirror
        return mirror

    def _load(self, mirror: Mirror, association: Association) -> None:
        topic = self.world.image.topics_by_id.get(association.topic_id)
        if topic is None or topic.name != association.topic:
            return  # deleted: its removal of the association was cut short
        attached = MirroredTopic(association)
        for index in range(len(topic.partitions)):
            attached.partitions.append(self.make_partition(mirror, topic, index, attached=True))
        self.attach(mirror, attached)
        for partition in attached.partitions:
            partition.machine.desired = association.desired
            partition.sync_mode()

    def _complete_tombstones(self) -> None:
        """Records of mirrors that are gone, of topics that are gone, and of associations that were taken over."""
        made: list[StateRecord] = []
        for key, entry in list(self.image.entries.items()):
            name, topic_id, index = key
            topic = self.world.image.topics_by_id.get(topic_id)
            if topic is None:
                made += self.records.tombstones(key, entry, lineage=True)
                continue
            current = self.topics.get(topic.name)
            if current is None:
                if name not in self.mirrors:
                    made += self.records.tombstones(key, entry, lineage=False)
            elif current[0].name != name:
                made += self._taken_over(current[1].partitions, index, key)
        if made:
            self.world.commit(Effects(records=made))

    def _taken_over(self, partitions: Sequence[MirroredPartition], index: int, key: Any) -> list[StateRecord]:
        """The old name's tombstones, once the new name's MIRRORING is recorded."""
        entry = self.image.entries[key]
        aligned = index < len(partitions) and partitions[index].machine.recorded.mirrored
        sealed = index < len(partitions) and partitions[index].machine.lineage is not None
        return self.records.tombstones(key, entry, lineage=True) if aligned or sealed else []

    # -- durable state -----------------------------------------------------------------------------------------------

    def _replay(self, record: StateRecord) -> None:
        key: Any = record.key
        value: Any = record.value
        at, entry = self.image.replay(key, value)
        partition = self._by_key.get(at)
        if partition is not None:
            partition.machine.replay(entry.recorded)
            partition.machine.replay_lineage(entry.lineage)
            partition.machine.gaps = dict(entry.gaps)

    def make_partition(self, mirror: Mirror, topic: TopicState, index: int, *, attached: bool) -> MirroredPartition:
        """A machine for one partition, with everything that is recorded for it under this mirror's name."""
        machine = Machine(
            mirror=mirror.name,
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=index,
            settings=mirror.settings,
            chance=self._chance,
        )
        entry = self.image.entries.get((mirror.name, topic.topic_id, index))
        if entry is not None:
            machine.replay(entry.recorded)
            machine.replay_lineage(entry.lineage)
            machine.gaps = dict(entry.gaps)
        machine.inherited = self._inherited(mirror, topic.topic_id, index)
        return MirroredPartition(self, machine, topic.partitions[index], attached=attached)

    def _inherited(self, mirror: Mirror, topic_id: bytes, index: int) -> Lineage | None:
        """The largest lineage for the same source cluster that another mirror's name recorded."""
        cluster_id = mirror.settings.source_cluster_id
        found = [
            entry.lineage
            for key, entry in self.image.of_topic(topic_id, index)
            if key[0] != mirror.name and entry.lineage is not None and entry.lineage.source_cluster_id == cluster_id
        ]
        return max(found, key=lambda lineage: lineage.last_mirror_offset, default=None)

    def attach(self, mirror: Mirror, topic: MirroredTopic) -> None:
        """The association is current from now on."""
        name = topic.association.topic
        before = self.topics.get(name)
        if before is not None and before[0] is not mirror:
            del before[0].topics[name]
            for partition in before[1].partitions:
                partition.attached = False
                self._by_key.pop(partition.key, None)
        mirror.topics[name] = topic
        self.topics[name] = (mirror, topic)
        for partition in topic.partitions:
            self.adopt(partition)

    def settings_known(self, topic_name: str) -> bool:
        mirrored = self.topics.get(topic_name)
        return mirrored is not None and mirrored[1].settings_known

    def adopt(self, partition: MirroredPartition) -> None:
        """The machine rules this partition's mode, and is told of its records, from now on."""
        partition.attached = True
        self._by_key[partition.key] = partition

    def detach(self, topic_name: str) -> None:
        """The association is gone; the topic is an ordinary one."""
        mirror, topic = self.topics.pop(topic_name)
        del mirror.topics[topic_name]
        for partition in topic.partitions:
            partition.attached = False
            self._by_key.pop(partition.key, None)
            if not partition.partition.deleted:
                partition.partition.set_mode(mirror_operator.ORDINARY, None)

    def is_current(self, partition: MirroredPartition) -> bool:
        return partition.attached

    def schedule(self, partition: MirroredPartition) -> None:
        """Its machine wants to be woken at another time (or no more)."""
        self._timers.set(partition, partition.machine.wake_at_ms)
        self.wake(partition.machine.mirror)

    def _ticks(self, partition: MirroredPartition) -> bool:
        """Whether its timers still count: it is current, or its start is being decided."""
        mirror = self.mirrors.get(partition.machine.mirror)
        if mirror is None or partition.partition.deleted:
            return False
        return partition.attached or partition in mirror.candidates.get(partition.machine.topic, ())

    def end_transactions(self, topic_name: str, partitions: Sequence[MirroredPartition]) -> Promise[Any]:
        """End the local transactions that include one of `partitions` (decided ones as decided, others aborted).
        Settled when the markers are on disk. Nothing to do where clients cannot have written."""
        world = self.world
        if world.transactions_if_loaded is None and TRANSACTIONS_TOPIC not in world.image.topics_by_name:
            return Promise.of(None)
        written = [p for p in partitions if p.state in (State.UNKNOWN, State.STOPPED)]
        return gather([world.transactions.end_for_alignment(topic_name, p.index) for p in written])

    def clamp_groups(self, partition: Partition) -> Promise[None]:
        """Committed offsets beyond the partition's end move to it. Settled when that is on disk."""
        done: Promise[None] = Promise()
        groups = self.world.groups_if_loaded
        topic = self.world.image.topics_by_name.get(OFFSETS_TOPIC)
        if groups is None or topic is None:
            return Promise.of(None)
        groups.offsets.clamp(partition.topic_name, partition.index, partition.log_end_offset)
        durable = [LogId(OFFSETS_TOPIC, p.index) for p in topic.partitions if p.is_on_disk]
        self.world.commit(Effects(durable=durable, replies=[(done, None)]))
        return done

    def state_changed(self, partition: MirroredPartition) -> None:
        """A state is on disk. Wakes the link; completes a takeover."""
        if partition.state is State.MIRRORING:
            machine = partition.machine
            made: list[StateRecord] = []
            for key, entry in self.image.of_topic(machine.topic_id, partition.index):
                if key[0] != machine.mirror:
                    made += self.records.tombstones(key, entry, lineage=True)
            machine.inherited = None
            if made:
                self.world.commit(Effects(records=made))
        self.wake(partition.machine.mirror)

    # -- hooks of the world ------------------------------------------------------------------------------------------

    def change_refusal(self, topic_name: str) -> str | None:
        """Why the topic may not be deleted, grown or trimmed now, or None (docs/MIRRORING.md, "Read-only")."""
        if self.growing == topic_name:
            return None
        for mirror in self.mirrors.values():
            if topic_name in mirror.starting:
                return f"mirror {mirror.name!r} is about to start topic {topic_name}: wait, or stop it first"
        found = self.topics.get(topic_name)
        if found is None:
            return None
        mirror, topic = found
        for partition in topic.partitions:
            if topic.association.desired is not Desired.STOPPED or partition.state is not State.STOPPED:
                shown = f"partition {partition.index} is {partition.state.shown}"
                return f"topic {topic_name} is mirrored by {mirror.name!r} ({shown}): stop it first"
        return None

    def check_configs(self, mirror: str, wanted: Mapping[str, str], changed: set[str]) -> None:
        """Raises ApiError 40 when `wanted` cannot be the mirror's configuration."""
        current = self.world.image.mirror_configs.get(mirror, {})
        for name in changed:
            if wishes.hidden(name):
                raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} is not configuration: start, stop or pause the topic")
            mirror_config.check_change(name, wanted.get(name), current)

    def config_kind(self, name: str) -> int | None:
        return mirror_describe.config_kind(name)

    def describe_configs(self, mirror: str) -> list[ConfigEntry]:
        return mirror_describe.configs(self.world.image.mirror_configs.get(mirror, {}))

    def configs_changed(self, mirror: str) -> None:
        configs = self.world.image.mirror_configs.get(mirror)
        known = self.mirrors.get(mirror)
        if configs is None or known is None:
            return
        known.configure(configs)
        known.metadata_wanted = True
        self.wake(mirror)

    def topic_deleted(self, topic: TopicState) -> None:
        """A STOPPED (or never mirrored) topic is gone: its association and everything recorded about it go too."""
        mirror_operator.forget_topic(self, topic)

    # -- time --------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.world.clock.monotonic_ms()

    def due(self, now_ms: int) -> int | None:
        """Milliseconds until the next timer, 0 when one is overdue, None without any."""
        times = [operation.deadline_ms for operation in self.operations]
        at_ms = self._timers.next_ms()
        if at_ms is not None:
            times.append(at_ms)
        return max(0, min(times) - now_ms) if times else None

    def tick(self, now_ms: int) -> None:
        for partition in self._timers.overdue(now_ms):
            partition.step(ev.TimerFired())
            self.wake(partition.machine.mirror)
        for operation in list(self.operations):
            if operation.deadline_ms <= now_ms:
                operation.expire()

    # -- operator side (see mirror_operator) -------------------------------------------------------------------------

    def create(self, name: str, configs: Mapping[str, str | None]) -> Promise[None]:
        return mirror_operator.create(self, name, configs)

    def start(
        self,
        name: str,
        topics: Sequence[seam.StartTopic],
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        replace: bool = False,
        from_: int = -2,
    ) -> Promise[list[seam.TopicResult]]:
        return mirror_operator.start(
            self, name, topics, include=include, exclude=exclude, replace=replace, start_from=from_
        )

    def stop(self, name: str, topics: Sequence[str], patterns: Sequence[str] = ()) -> Promise[list[seam.StopResult]]:
        return mirror_operator.stop(self, name, topics, patterns)

    def pause(self, name: str, topics: Sequence[str]) -> Promise[list[seam.TopicResult]]:
        return mirror_operator.pause(self, name, topics)

    def resume(self, name: str, topics: Sequence[str]) -> Promise[list[seam.TopicResult]]:
        return mirror_operator.resume(self, name, topics)

    def recover(self, name: str, topics: Sequence[str]) -> Promise[list[seam.TopicResult]]:
        return mirror_operator.recover(self, name, topics)

    def delete(self, name: str) -> Promise[None]:
        return mirror_operator.delete(self, name)

    def list(self, **filters: Any) -> Sequence[seam.MirrorListing]:
        return mirror_describe.listing(self, **filters)

    def describe(self, names: Sequence[str] | None = None, **options: Any) -> Sequence[seam.MirrorDescription]:
        return mirror_describe.describe(self, names, **options)

    def describe_lineage(
        self, source_cluster_id: str, topics: Mapping[str, Sequence[int] | None] | None
    ) -> Sequence[seam.MirrorDescription]:
        """What mirrors that are deleted, or lost a topic to another one, recorded of copying from that cluster."""
        return mirror_describe.describe_lineage(self, source_cluster_id, topics)

    def read_states(self, name: str, topics: Mapping[str, Sequence[int]]) -> Sequence[mirror_describe.StateRow]:
        return mirror_describe.read_states(self, name, topics)

    def write_states(self, name: str, writes: Sequence[mirror_describe.StateWrite]) -> Promise[Any]:
        return mirror_describe.write_states(self, name, writes)

    def read_offsets(self, name: str, topics: Mapping[str, Sequence[int]]) -> Sequence[mirror_describe.OffsetRow]:
        return mirror_describe.read_offsets(self, name, topics)

    def bump_leader_epochs(
        self, bumps: Sequence[tuple[str, int, int]]
    ) -> Sequence[tuple[str, int, Promise[int] | ApiError]]:
        return mirror_describe.bump_leader_epochs(self, bumps)

    # -- link side ---------------------------------------------------------------------------------------------------

    def set_waker(self, callback: Callable[[str], None] | None) -> None:
        """`callback(mirror)` whenever there may be new work for its link, or its configuration changed."""
        self._waker = callback or _nobody

    def wake(self, mirror: str) -> None:
        self._waker(mirror)

    def links(self) -> dict[str, seam.LinkConfig]:
        return {name: mirror_source.link_config(self, m) for name, m in self.mirrors.items() if mirror_source.active(m)}

    def metadata_topics(self, mirror: str) -> Sequence[str] | None:
        """Topics to ask for; None = all (patterns look for new ones)."""
        return mirror_source.metadata_topics(self, mirror)

    def metadata_requested(self, mirror: str) -> bool:
        known = self.mirrors.get(mirror)
        if known is None:
            return False
        return known.metadata_wanted or any(p.machine.wants_metadata for p in known.partitions())

    def config_topics(self, mirror: str) -> Sequence[str]:
        return mirror_source.mirroring_topics(self, mirror)

    def source_metadata(self, mirror: str, metadata: seam.SourceMetadata) -> None:
        mirror_source.metadata_arrived(self, mirror, metadata)

    def source_unreachable(self, mirror: str, broker_id: int | None, reason: str) -> None:
        mirror_source.unreachable(self, mirror, broker_id, reason)

    def source_configs(self, mirror: str, configs: Mapping[str, Mapping[str, str | None]]) -> None:
        mirror_source.configs_arrived(self, mirror, configs)

    def source_configs_refused(self, mirror: str, refusals: Mapping[str, int]) -> None:
        mirror_source.configs_refused(self, mirror, refusals)

    def asked(self, partition: MirroredPartition, ask: ev.Ask) -> None:
        self._query_ids += 1
        if partition.query is not None:
            self._queries.pop(partition.query.id, None)
        partition.query = mirror_source.query(self, partition, ask, self._query_ids)
        self._queries[self._query_ids] = partition
        self.wake(partition.machine.mirror)

    def queries(self, mirror: str) -> Sequence[seam.Query]:
        """Questions that wait for the source, each with an id of its own; asking one twice does no harm."""
        known = self.mirrors.get(mirror)
        if known is None:
            return []
        return [p.query for p in known.partitions() if p.query is not None and p.machine.open_question is not None]

    def answered(self, query: seam.Query, answer: seam.Answer) -> None:
        partition = self._queries.pop(query.id, None)
        if partition is not None and partition.query is query:
            partition.query = None
            mirror_source.answered(partition, query, answer)
            self.wake(query.mirror)

    def plan_fetch(
        self, mirror: str, broker_id: int, *, after: Sequence[seam.Examined] = ()
    ) -> Sequence[seam.FetchItem]:
        """What to ask `broker_id` for next, who waited longest first. `after`: examined and not yet applied."""
        return mirror_fetch.plan_fetch(self, mirror, broker_id, after)

    def examine(self, mirror: str, item: seam.FetchItem, answer: seam.FetchAnswer) -> seam.Examined:
        return mirror_fetch.examine(self, item, answer)

    def apply(self, examined: seam.Examined) -> None:
        """Append what was examined. Raises DiskFailure (after `fatal`)."""
        mirror_fetch.apply(self, examined)

    def source_topic_id(self, topic: str) -> bytes:
        found = self.topics.get(topic)
        return uuids.ZERO if found is None else found[1].association.source_topic_id

    # -- reports -----------------------------------------------------------------------------------------------------

    def report(self, partition: MirroredPartition, action: ev.Report) -> None:
        log.warning("mirror %s: %s", partition.machine.mirror, action.text)
        mirror = self.mirrors.get(partition.machine.mirror)
        if mirror is not None:
            mirror.counters[action.kind] = mirror.counters.get(action.kind, 0) + 1


def _nobody(mirror: str) -> None:
    """Until a waker is set there is no link."""
