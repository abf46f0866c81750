"""A broker whose groups commit, in transactions and outside, through power cuts, restarts, full disks and deletions.

The oracle reads the bytes of `__consumer_offsets` by itself and says what they mean; the broker's answers must be that,
at run time and after every start. What was acknowledged, and what a reader was told, must still be in the log after a
power cut, and no offset may appear that nobody committed. `Walk(seed).run(STEPS)` repeats a failure.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from kmirror.broker.durability import InlineFlush
from kmirror.broker.group_offsets import Committer
from kmirror.coordinator.groups.offsets import OffsetRow, OffsetValue
from kmirror.coordinator.transactions import Producer
from kmirror.effects import LogId, Promise
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_offsets import OffsetCommitKey, OffsetCommitValue, decode_record
from kmirror.protocol.records import control_type, read_records
from tests.broker.harness import Broker, OverlappingFlush

STEPS = 120
SEEDS = range(8)
TOPIC = "__consumer_offsets"
GROUPS = ("a", "b", "c", "d", "e")
PRODUCERS = (11, 12, 13)
RETENTION_MS = 60_000

Place = tuple[str, int]
Key = tuple[str, str, int]
"""(group, topic, partition)."""


class Meaning:
    """What the bytes of one log say."""

    def __init__(self, broker: Broker, log_id: LogId) -> None:
        self.committed: dict[Key, tuple[int, OffsetCommitValue]] = {}
        self.pending: dict[int, dict[Key, tuple[int, OffsetCommitValue]]] = {}
        partition = broker.world.partition(log_id.topic, log_id.partition)
        if not partition.is_on_disk:
            return
        log = partition.log
        for header, data in log.batches(log.log_start_offset, log.log_end_offset):
            if header.is_control:
                self._ended(header.producer_id, committed=control_type(data) == 1)
                continue
            for at, record in enumerate(read_records(data)):
                key, value = decode_record(record.key, record.value)
                if isinstance(key, OffsetCommitKey):
                    place = (key.group, key.topic, key.partition)
                    self._record(place, value, header.base_offset + at, header.producer_id)

    def _record(self, key: Key, value: Any, offset: int, producer_id: int) -> None:
        if value is None:
            self.committed.pop(key, None)
            for entries in self.pending.values():
                entries.pop(key, None)
        elif producer_id >= 0:
            self.pending.setdefault(producer_id, {})[key] = (offset, value)
        else:
            self.committed[key] = (offset, value)

    def _ended(self, producer_id: int, *, committed: bool) -> None:
        for key, entry in self.pending.pop(producer_id, {}).items():
            if committed and (key not in self.committed or self.committed[key][0] < entry[0]):
                self.committed[key] = entry

    def is_pending(self, key: Key) -> bool:
        return any(key in entries for entries in self.pending.values())


class EverybodyMayWrite:
    """Transactions are not what is looked at here."""

    def still_admitted(self, *_asked: object) -> ErrorCode:
        return ErrorCode.NONE


class Walk:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        properties = {
            "offsets.topic.num.partitions": "3",
            "offsets.retention.minutes": "1",
            "offsets.retention.check.interval.ms": "10000",
            "offset.metadata.max.bytes": "8",
        }
        self.broker = Broker(properties, seed=seed, flush=OverlappingFlush if seed % 2 else InlineFlush)
        self.submitted: set[int] = set()
        self.next_offset = 0
        self.durable: dict[LogId, int] = {}
        """Log ends below which somebody was told of everything."""
        self.counts: dict[str, int] = {}
        for name in ("t", "u"):
            self.broker.create(name, 3)
        self.broker.settle(self.offsets.usable())
        self._opened()

    @property
    def offsets(self) -> Any:
        return self.broker.world.groups.offsets

    def _opened(self) -> None:
        self.broker.world.transactions.admission = EverybodyMayWrite()  # type: ignore[assignment]

    def run(self, steps: int) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.commit, 30),
            (self.commit_in_transaction, 16),
            (self.end_transaction, 10),
            (self.fetch, 10),
            (self.delete_offsets, 5),
            (self.delete_group, 2),
            (self.make_topic_anew, 2),
            (self.sync, 4),
            (self.clamp, 3),
            (self.let_time_pass, 8),
            (self.fill_disk, 2),
            (self.flush, 12),
            (self.restart, 2),
            (self.crash, 4),
        ]
        for _ in range(steps):
            (action,) = self.chance.choices([a for a, _ in actions], [w for _, w in actions])
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
            action()
            self.check()
        self.crash()
        self.check()

    # -- what happens --------------------------------------------------------------------------------------------

    def _rows(self) -> list[OffsetRow]:
        rows = []
        for _ in range(self.chance.randrange(1, 4)):
            self.next_offset += 1
            self.submitted.add(self.next_offset)
            topic = self.chance.choice(("t", "u"))
            rows.append(
                OffsetRow(
                    topic=topic,
                    partition=self.chance.randrange(3),
                    offset=self.next_offset,
                    topic_id=self.broker.world.image.topics_by_name[topic].topic_id,
                    leader_epoch=self.chance.randrange(-1, 3),
                    metadata=self.chance.choice(["", "m", None, "far too long"]),
                )
            )
        return rows

    def _told(self, log_id: LogId, promise: Promise[Any]) -> None:
        """Once `promise` is settled, everything up to the log's present end is known to somebody."""
        end = self.broker.world.partition(log_id.topic, log_id.partition).log.log_end_offset

        def settled(done: Promise[Any]) -> None:
            try:
                done.result()
            except ApiError:
                return
            self.durable[log_id] = max(self.durable.get(log_id, 0), end)

        promise.then(settled)

    def _log_of(self, group: str) -> LogId:
        return self.broker.world.groups.log_of(group)

    def commit(self) -> None:
        group = self.chance.choice(GROUPS)
        retention_ms = self.chance.choice([-1, -1, -1, 5_000])
        promise = self.offsets.commit(Committer(group_id=group), self._rows(), api_version=4, retention_ms=retention_ms)
        self._told(self._log_of(group), promise)

    def commit_in_transaction(self) -> None:
        group, producer = self.chance.choice(GROUPS), self.chance.choice(PRODUCERS)
        promise = self.offsets.commit_transactional(
            Committer(group_id=group), self._rows(), "id", Producer(producer, 0), api_version=5
        )
        self._told(self._log_of(group), promise)

    def end_transaction(self) -> None:
        log_id = LogId(TOPIC, self.chance.randrange(3))
        promise = self.broker.world.runtime.append_marker(
            log_id,
            producer_id=self.chance.choice(PRODUCERS),
            producer_epoch=0,
            coordinator_epoch=0,
            commit=self.chance.random() < 0.6,
        )
        self._told(log_id, promise)

    def fetch(self) -> None:
        group = self.chance.choice(GROUPS)
        if self.broker.world.partition(TOPIC, self._log_of(group).partition).is_on_disk:
            self._told(self._log_of(group), self.offsets.fetch_all(group, require_stable=False))

    def delete_offsets(self) -> None:
        group = self.chance.choice(GROUPS)
        places = [(self.chance.choice(("t", "u")), self.chance.randrange(3)) for _ in range(3)]
        try:
            promise = self.offsets.delete(group, places)
        except ApiError as error:
            assert error.code == ErrorCode.GROUP_ID_NOT_FOUND
            return
        if self.broker.world.partition(TOPIC, self._log_of(group).partition).is_on_disk:
            self._told(self._log_of(group), promise)

    def delete_group(self) -> None:
        group = self.chance.choice(GROUPS)
        self.broker.world.groups.delete(group)
        assert not self.offsets.has_offsets(group)

    def make_topic_anew(self) -> None:
        self.broker.settle(self.broker.world.delete_topic("u"))
        self.broker.flush.run()
        self.broker.create("u", 3)
        for group in GROUPS:
            assert not [place for place, _value in self._held(group) if place[0] == "u"]

    def sync(self) -> None:
        group = self.chance.choice(GROUPS)
        self.next_offset += 1
        self.submitted.add(self.next_offset)
        place = (self.chance.choice(("t", "u")), self.chance.randrange(3))
        promise = self.offsets.commit_synced(group, {place: OffsetValue(offset=self.next_offset, metadata="s")})
        self._told(self._log_of(group), promise)

    def clamp(self) -> None:
        topic, index = self.chance.choice(("t", "u")), self.chance.randrange(3)
        end = self.chance.randrange(self.next_offset + 1)
        self.submitted.add(end)
        self.offsets.clamp(topic, index, end)
        for group in GROUPS:
            for place, value in self._held(group):
                assert place != (topic, index) or value.offset <= end

    def let_time_pass(self) -> None:
        before = {log_id: Meaning(self.broker, log_id) for log_id in self._logs()}
        self.broker.clock.advance(self.chance.choice([1_000, 9_000, 10_000, 30_000]))
        due = self.broker.world.runtime.next_timer_ms() == 0
        self.broker.world.tick()
        now_ms = self.broker.clock.time_ms()
        for log_id, meaning in before.items():
            after = Meaning(self.broker, log_id).committed
            for key, (_offset, value) in meaning.committed.items():
                own = value.expire_timestamp
                over = now_ms >= own if own != -1 else now_ms - value.commit_timestamp >= RETENTION_MS
                gone = due and over and not meaning.is_pending(key)
                assert (key not in after) is gone, (key, value, now_ms)

    def fill_disk(self) -> None:
        self.broker.fs.fail("write", error=errno.ENOSPC, times=1)
        group = self.chance.choice(GROUPS)
        before = self._held(group)
        rows = [row for row in self._rows() if row.metadata in ("", "m", None)]
        promise = self.offsets.commit(Committer(group_id=group), rows, api_version=4)
        self.broker.fs.heal()
        if rows:
            with pytest.raises(ApiError):
                promise.result()
        assert self._held(group) == before

    def flush(self) -> None:
        self.broker.flush.run()

    def restart(self) -> None:
        before = {group: sorted(self._held(group)) for group in GROUPS}
        self.broker.restart()
        self._opened()
        assert {group: sorted(self._held(group)) for group in GROUPS} == before

    def crash(self) -> None:
        self.broker.crash()
        self._opened()
        for log_id, end in self.durable.items():
            assert self.broker.world.partition(log_id.topic, log_id.partition).log.log_end_offset >= end

    # -- what must hold ------------------------------------------------------------------------------------------

    def _logs(self) -> list[LogId]:
        return [LogId(TOPIC, index) for index in range(3)]

    def _held(self, group: str) -> list[tuple[Place, Any]]:
        """As it is in memory, without waiting for the disk."""
        return [
            ((topic, index), value)
            for topic in ("t", "u")
            for index in range(3)
            if (value := self.offsets.current(group, (topic, index))).offset >= 0
        ]

    def check(self) -> None:
        with_offsets: set[str] = set()
        for log_id in self._logs():
            meaning = Meaning(self.broker, log_id)
            pending = {key for entries in meaning.pending.values() for key in entries}
            with_offsets |= {key[0] for key in [*meaning.committed, *pending]}
            for group in (name for name in GROUPS if self._log_of(name) == log_id):
                said = {(group, *place): value for place, value in self._held(group)}
                meant = {
                    key: OffsetValue(offset=value.offset, leader_epoch=value.leader_epoch, metadata=value.metadata)
                    for key, (_offset, value) in meaning.committed.items()
                    if key[0] == group
                }
                assert said == meant
                assert {value.offset for value in said.values()} <= self.submitted
                assert self.offsets.has_pending(group) is any(key[0] == group for key in pending)
                for key in said.keys() | pending:
                    if key[0] == group:
                        self._check_stability(key, pending)
        assert self.offsets.groups_with_offsets() == with_offsets

    def _check_stability(self, key: Key, pending: set[Key]) -> None:
        group, topic, index = key
        value = self.offsets._offsets.fetch(group, (topic, index), require_stable=True)
        assert (value.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT) is (key in pending)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk(seed: int) -> None:
    Walk(seed).run(STEPS)


@pytest.mark.slow
def test_the_walks_go_everywhere() -> None:
    """One long walk meets every action."""
    walk = Walk(1000)
    walk.run(400)
    assert len(walk.counts) == 14
