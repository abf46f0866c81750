"""Backups in a world on a file system in memory: whatever happens between the cut and the end, the copy is the moment.

The work that a broker gives to a thread, and the steps that it takes in slices, run here when the test lets them, with
random operations in between. Then a second world is opened on the copy, and compared with what was there at the cut.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from kmirror.broker.backup import Backup, Backups
from kmirror.broker.chores import Steps
from kmirror.broker.cleaner import Cleaner
from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.elsewhere import Check
from kmirror.broker.partition import Partition
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.effects import Promise
from kmirror.errors import ApiError, StorageError
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import Record, build_batch, end_txn_marker
from kmirror.storage import cleaning
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import Kind, MemoryFileSystem, Phase
from tests.broker.harness import DIRECTORY, Broker, QuietMirrors
from tests.power_cut import PowerCut, powered_until

T = TypeVar("T")
COPY = "/copies/one"
SMALL = 500
META = "__cluster_metadata-0"


class Held:
    """Chores and the thread: both wait until the test lets them go on."""

    def __init__(self) -> None:
        self.steps: list[Steps] = []
        self.works: list[Callable[[], None]] = []
        self.during: Callable[[], None] = lambda: None
        """Called between two parts of the thread's work."""

    def install(self, world: World) -> None:
        world.chores = self.chores = _Chores(self)
        world.elsewhere = _Elsewhere(self)

    def go_on(self, between: Callable[[], None] = lambda: None) -> None:
        """Everything to its end, `between` after each step."""
        for _ in range(100_000):
            if self.steps:
                if next(self.steps[0], StopIteration) is StopIteration:
                    self.steps.pop(0)
            elif self.works:
                self.works.pop(0)()
            else:
                return
            between()
        raise AssertionError("it does not end")


class _Chores:
    def __init__(self, held: Held) -> None:
        self._held = held

    def run(self, steps: Steps) -> None:
        self._held.steps.append(steps)


class _Elsewhere:
    def __init__(self, held: Held) -> None:
        self._held = held

    def run(self, work: Callable[[Check], T]) -> Promise[T]:
        promise: Promise[T] = Promise()

        def do() -> None:
            try:
                value = work(lambda: self._held.during())
            except Exception as error:
                promise.fail(error)
            else:
                promise.resolve(value)

        self._held.works.append(do)
        return promise


def make_small(partition: Partition) -> None:
    partition.log.apply_config(replace(partition.log.config, segment_bytes=SMALL, index_interval_bytes=64))


def log_state(log: Log) -> tuple[Any, ...]:
    """What clients can see of a log, and what its next appends depend on."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        b"".join(bytes(data) for _, data in log.batches(log.log_start_offset, log.log_end_offset)),
        [entry for entry in log.epochs.entries if entry[1] < log.log_end_offset],  # recovery drops one of an empty log
        log.first_undecided_offset,
        log.aborted_transactions(log.log_start_offset, log.log_end_offset),
        {
            producer_id: (entry.producer_epoch, entry.batches[-1].last_sequence if entry.batches else -1)
            for producer_id, entry in log.producers.entries.items()
        },
        log.pid_reset_offsets,
    )


def topics_of(world: World) -> dict[str, Any]:
    return {
        f"{topic.name}-{index}": (topic.topic_id, dict(topic.configs))
        for topic in world.image.all_topics()
        for index, _ in enumerate(topic.registrations)
    }


def state_of(world: World) -> dict[str, Any]:
    """By partition, and what the metadata says. Opens every log."""
    logs = {str(partition): (log_state(partition.log), partition.cleaned_up_to) for partition in world.partitions()}
    return {"metadata end": world._metadata.log.log_end_offset, "topics": topics_of(world), "logs": logs}


def state_of_copy(fs: MemoryFileSystem, path: str, clock: ManualClock) -> dict[str, Any]:
    """As another broker that is started on it sees it, before it writes anything."""

    class Reader(World):
        def _raise_epochs(self) -> None:
            """An unclean start raises leader epochs; here the image is wanted as the disk has it."""

    world = Reader.open(fs, path, BrokerConfig.from_properties({}), clock, InlineFlush(), mirrors=QuietMirrors)
    assert not [note for p in world.all_partitions() if p.opened_log for note in p.opened_log.report.notes]
    return state_of(world)


def files_of(fs: MemoryFileSystem, path: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in fs.list_dir(path):
        try:
            found |= {f"{name}/{inner}": data for inner, data in files_of(fs, f"{path}/{name}").items()}
        except FileNotFoundError:
            found[name] = fs.read_file(f"{path}/{name}")
    return found


@dataclass
class Life:
    """Random operations on a broker's world."""

    broker: Broker
    chance: random.Random
    held: Held = field(default_factory=Held)
    made: int = 0

    def opened(self) -> None:
        self.held.install(self.world)

    @property
    def world(self) -> World:
        return self.broker.world

    def partition(self) -> Partition | None:
        partitions = [partition for partition in self.world.partitions() if not partition.deleted]
        if not partitions:
            return None
        chosen = self.chance.choice(partitions)
        make_small(chosen)
        return chosen

    def produce(self, partition: Partition) -> None:
        producer_id = self.chance.randint(1, 3)
        known = partition.log.producers.entries.get(producer_id)
        last = known.batches[-1].last_sequence if known is not None and known.batches else -1
        record = Record(b"%d" % self.chance.randint(0, 4), self.chance.randbytes(self.chance.randint(1, 60)))
        data = build_batch(
            [record],
            timestamp_ms=self.broker.clock.time_ms(),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=last + 1,
            transactional=producer_id == 3,
        )
        partition.produce(data, now_ms=self.broker.clock.time_ms(), acks=-1)
        if self.chance.random() < 0.6:
            self.broker.flush.run()

    def end_transaction(self, partition: Partition) -> None:
        if partition.log.first_undecided_offset is not None:
            commit = self.chance.random() < 0.5
            marker = end_txn_marker(producer_id=3, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp_ms=1)
            partition.append_coordinator(marker)

    def cut(self, partition: Partition) -> None:
        log = partition.log
        if self.chance.random() < 0.15:
            partition.restart_at(log.log_end_offset + self.chance.randint(0, 3))
        else:
            partition.truncate_to(self.chance.randint(log.log_start_offset, log.log_end_offset))

    def trim(self, partition: Partition) -> None:
        self.broker.flush.run()
        partition.advance_log_start(self.chance.randint(partition.log_start_offset, partition.high_watermark))
        self.world.write_log_starts()
        partition.apply_retention()

    def compact(self, partition: Partition) -> None:
        self.broker.flush.run()
        log = partition.log
        if not log.config.compact:
            return
        found = cleaning.dirt(
            log, cleaned_up_to=-1, last_stable_offset=partition.last_stable_offset, now_ms=self.broker.clock.time_ms()
        )
        job = cleaning.plan(log, found, now_ms=self.broker.clock.time_ms(), memory_bytes=1 << 20)
        for step in cleaning.clean(self.world.fs, job) if job is not None else ():
            if isinstance(step, int):
                Cleaner(self.world).finished(partition, step)
            else:
                assert partition.swap_in(step)

    def create(self) -> None:
        self.made += 1
        policy = self.chance.choice(["delete", "compact"])
        self.broker.create(f"topic{self.made}", self.chance.randint(1, 2), cleanup__policy=policy)

    def delete(self) -> None:
        names = sorted(self.world.image.topics_by_name)
        if len(names) > 2:
            promise = self.world.delete_topic(self.chance.choice(names))
            self.broker.flush.run()
            promise.then(lambda _: None)

    def snapshot(self) -> None:
        self.world.snapshots.write()
        self.broker.flush.run()

    def step(self) -> None:
        kind = self.chance.choices(
            ["produce", "end_transaction", "cut", "trim", "compact", "create", "delete", "snapshot", "tick", "flush"],
            [40, 6, 6, 5, 5, 3, 2, 2, 3, 6],
        )[0]
        if kind in ("create", "delete", "snapshot"):
            getattr(self, kind)()
        elif kind == "tick":
            self.broker.clock.advance(70_000)
            self.world.tick()
        elif kind == "flush":
            self.broker.flush.run()
        elif (partition := self.partition()) is not None:
            getattr(self, kind)(partition)


def watch_cut(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What there was at each cut. Looking opens no log that was closed: it reads a copy of the whole disk."""
    seen: list[dict[str, Any]] = []
    cut = Backups._cut

    def watched(self: Backups, backup: Backup) -> None:
        cut(self, backup)
        seen.append(_state_without_opening(self._world))

    monkeypatch.setattr(Backups, "_cut", watched)
    return seen


def _state_without_opening(world: World) -> dict[str, Any]:
    """As `state_of`; logs that are closed are read in a copy of the whole disk."""
    fs, directory = world.fs, world.directory
    assert isinstance(fs, MemoryFileSystem)
    twin = MemoryFileSystem()
    logs: dict[str, Any] = {}
    for partition in world.partitions():
        log, name = partition.opened_log, str(partition)
        if log is None:
            path, key = (
                directory.partition_path(partition.topic_name, partition.index),
                (partition.topic_name, partition.index),
            )
            twin.make_dirs(path)
            for inner, data in files_of(fs, path).items() if fs.exists(path) else ():
                twin.write_atomic(f"{path}/{inner}", data)
            start = directory.log_starts.offsets.get(key, 0)
            log = Log.open(twin, path, config=LogConfig(), clock=world.clock, clean=True, log_start_offset=start)
        logs[name] = (log_state(log), partition.cleaned_up_to)
    return {"metadata end": world._metadata.log.log_end_offset, "topics": topics_of(world), "logs": logs}


def compare(copy: dict[str, Any], then: dict[str, Any]) -> None:
    assert (copy["metadata end"], copy["topics"]) == (then["metadata end"], then["topics"])
    for name, state in then["logs"].items():
        for number, (ours, theirs) in enumerate(zip(copy["logs"][name][0], state[0], strict=True)):
            assert ours == theirs, f"{name}, fact {number}"
        assert copy["logs"][name] == state, name
    created = {name: state for name, state in copy["logs"].items() if name not in then["logs"]}
    assert all(state[0][:2] == (0, 0) for state in created.values()), "a topic that was being created has records"


@pytest.mark.parametrize("number", range(25))
def test_a_copy_is_the_moment_of_the_cut(
    rng: random.Random, seed: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(Broker(seed=seed), rng)
    life.opened()
    fs = life.broker.fs
    fs.make_dirs("/copies")
    if number % 2:
        fs.mounts.add("/copies")
    for _ in range(3):
        life.create()
    for _ in range(60):
        life.step()
        life.held.go_on()
    if number % 3 == 0:
        life.broker.restart()
        life.opened()
    life.snapshot()
    life.held.go_on()
    seen = watch_cut(monkeypatch)
    backup = life.world.backups.begin(COPY)
    busy = rng.randint(0, 3)
    left = 60

    def something() -> None:
        nonlocal left
        for _ in range(rng.randint(0, busy)):
            if left > 0:
                left -= 1
                life.step()

    life.held.during = something
    life.held.go_on(something)
    assert backup.finished.done and backup.error is None, backup.error
    assert backup.linked_bytes + backup.copied_bytes == backup.total_bytes
    files = files_of(fs, COPY)
    for _ in range(30):
        life.step()
        life.held.go_on()
    assert files_of(fs, COPY) == files, "the broker wrote into the copy"
    assert not any(
        name.startswith("backup-") or name.endswith(".kafka_cleanshutdown") for name in fs.list_dir(DIRECTORY)
    )
    assert fs.list_dir("/copies") == ["one"]
    assert not life.broker.fatal
    life.broker.flush.run()
    held = state_of(life.world)
    before = files_of(fs, DIRECTORY)
    compare(state_of_copy(fs, COPY, life.broker.clock), seen[0])
    assert files_of(fs, DIRECTORY) == before, "the other broker wrote into the directory"
    assert state_of(life.world) == held


# --- one after the other --------------------------------------------------------------------------------------------


def broker_with_records(seed: int = 1) -> tuple[Broker, Held]:
    """Two topics with several segments each, and a place for copies."""
    broker, held = Broker(seed=seed), Held()
    broker.fs.make_dirs("/copies")
    for name in ("a", "b"):
        broker.create(name)
        make_small(broker.world.partition(name, 0))
        for number in range(12):
            broker.produce(name, b"%d" % number * 20)
    held.install(broker.world)
    return broker, held


def made(broker: Broker, held: Held, destination: str = COPY) -> Backup:
    backup = broker.world.backups.begin(destination)
    held.go_on()
    assert backup.finished.done
    return backup


def is_as_if_nothing_was(broker: Broker) -> None:
    """Nothing of a backup is left, and the next one succeeds."""
    is_left_clean(broker)
    broker.produce("a", b"later")


def is_left_clean(broker: Broker) -> None:
    assert not any("backup" in name for name in broker.fs.list_dir(DIRECTORY))
    assert broker.fs.list_dir("/copies") == [] and not broker.fatal


def test_what_is_linked_and_what_is_copied() -> None:
    broker, held = broker_with_records()
    fs, log = broker.fs, broker.world.partition("a", 0).log
    backup = made(broker, held)
    assert backup.error is None and backup.partition_count == 3
    for segment in log.segments[:-1]:
        assert fs.link_count(segment.path()) == 2
    assert fs.link_count(log.active.path()) == 1
    assert fs.file_size(f"{COPY}/a-0/{log.active.path().rpartition('/')[2]}") == log.active.size_bytes
    assert backup.linked_bytes > sum(segment.size_bytes for segment in log.segments[:-1])
    fs.mounts.add("/copies")
    again = made(broker, held, "/copies/two")
    assert again.error is None and again.linked_bytes == 0 and again.total_bytes == again.copied_bytes
    assert files_of(fs, "/copies/two") == files_of(fs, COPY)


@pytest.mark.parametrize("destination", ["", "copies/one", "/", "//", "/copies/o\0ne"])
def test_a_destination_that_is_no_absolute_path(destination: str) -> None:
    broker, _ = broker_with_records()
    with pytest.raises(ApiError, match="not an absolute path") as refused:
        broker.world.backups.begin(destination)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("destination", "reason"),
    [
        (DIRECTORY, "is inside the data directory"),
        (f"{DIRECTORY}/x", "is inside the data directory"),
        (f"/copies/../{DIRECTORY}/a-0/x", "is inside the data directory"),
        ("/copies/full", "already"),
        ("/copies/file", "already"),
        ("/none/one", "no directory /none: make it first"),
    ],
)
def test_a_destination_that_is_refused(destination: str, reason: str) -> None:
    broker, held = broker_with_records()
    broker.fs.make_dirs("/copies/full")
    for path in ("/copies/full/x", "/copies/file"):
        broker.fs.write_atomic(path, b"mine")
    before = files_of(broker.fs, "/")
    backup = made(broker, held, destination)
    assert backup.error is not None and backup.error.code == ErrorCode.INVALID_REQUEST
    assert reason in (backup.error.message or "")
    assert files_of(broker.fs, "/") == before


def test_an_empty_directory_is_replaced() -> None:
    broker, held = broker_with_records()
    broker.fs.make_dirs(COPY)
    assert made(broker, held, f"{COPY}/").error is None
    assert broker.fs.exists(f"{COPY}/meta.properties") and broker.fs.list_dir("/copies") == ["one"]


def test_one_at_a_time() -> None:
    broker, held = broker_with_records()
    backups = broker.world.backups
    first = backups.begin(COPY)
    with pytest.raises(ApiError, match="a backup to /copies/one is being made") as refused:
        backups.begin("/copies/two")
    assert refused.value.code == ErrorCode.DUPLICATE_RESOURCE
    held.go_on()
    assert first.error is None and backups.find(first.id) is first
    second = made(broker, held, "/copies/two")
    assert second.error is None and backups.find(second.id) is second
    with pytest.raises(ApiError) as unknown:
        backups.find(first.id)
    assert unknown.value.code == ErrorCode.RESOURCE_NOT_FOUND


def test_a_backup_can_be_stopped_at_any_time() -> None:
    for point in range(100):
        broker, held = broker_with_records()
        backup = broker.world.backups.begin(COPY)
        left = point

        def step(backup: Backup = backup) -> None:
            nonlocal left
            left -= 1
            backup.stopped = backup.stopped or left < 0

        held.during = step
        held.go_on(step)
        assert backup.finished.done
        if backup.error is None:
            break
        assert "stopped" in (backup.error.message or "")
        is_as_if_nothing_was(broker)
    assert 5 < point < 99


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_or_fails_costs_the_backup_only(error: int, far: bool) -> None:
    """At each operation of a backup, one after the other."""
    for point in range(1, 1000):
        broker, held = broker_with_records()
        if far:
            broker.fs.mounts.add("/copies")
        left = point

        def observer(kind: Kind, path: str, phase: Phase, fs: MemoryFileSystem = broker.fs) -> None:
            nonlocal left
            if phase == "before" and kind != "remove":
                left -= 1
                if left == 0:
                    fs.refuse(error, f"{kind} of {path}")

        broker.fs.observer = observer
        backup = made(broker, held)
        broker.fs.observer = None
        if left > 0:
            assert backup.error is None
            break
        assert (backup.error is None) == broker.fs.exists(COPY)
        if backup.error is not None:
            assert backup.error.code == ErrorCode.KAFKA_STORAGE_ERROR
            is_as_if_nothing_was(broker)
            assert made(broker, held).error is None
    assert 30 < point < 999


@pytest.mark.parametrize("fails", [False, True])
def test_what_cannot_be_removed_keeps_no_space_and_goes_with_the_next_start(fails: bool) -> None:
    """The disk of the copy, or that of the data directory, refuses to remove anything when the backup is at its end."""
    broker, held = broker_with_records()
    fs = broker.fs
    if fails:
        fs.fail("rename", "/one", error=errno.ENOSPC)
        fs.fail("remove", ".tmp", times=100)
    else:
        fs.fail("remove", "00000004", times=100)
    backup = made(broker, held)
    assert (backup.error is not None) == fails and fs.exists(COPY) != fails
    fs.heal()
    (left,) = (name for name in fs.list_dir(DIRECTORY) if "backup" in name)
    if fails:
        assert fs.list_dir(f"{DIRECTORY}/{left}") == ["unfinished-copy"]
        assert [name for name in fs.list_dir("/copies") if name.startswith(".one.")]
    broker.world.close()
    broker._open()
    assert not any("backup" in name for name in fs.list_dir(DIRECTORY)) and not broker.fatal
    assert fs.list_dir("/copies") == ([] if fails else ["one"])


def test_a_log_is_taken_in_steps_and_to_its_end_before_it_is_cut() -> None:
    """However many segments it has, no step takes long; a cut in the middle finds all of them taken."""
    broker, held = broker_with_records()
    log = broker.world.partition("a", 0).log
    then, count = log_state(log), len(log.segments)
    backup = broker.world.backups.begin(COPY)
    held.works.pop(0)()
    parts = [0]
    while parts[-1] < 2:
        next(held.steps[0])
        parts.append(len([piece for piece in backup.staging.pieces if piece.path.startswith("a-0/")]))
    assert count > 2 and parts[-1] < 6
    log.truncate_to(0)
    held.go_on()
    copy = state_of_copy(broker.fs, COPY, broker.clock)
    assert backup.error is None and copy["logs"]["a-0"][0] == then


def test_what_was_copied_is_as_old_as_before() -> None:
    """Retention asks the file where no record has a time."""
    broker, held = broker_with_records()
    path = broker.world.partition("a", 0).log.active.path()
    broker.fs.set_modified_ms(path, 12_345)
    assert made(broker, held).error is None
    assert broker.fs.modified_ms(f"{COPY}/a-0/{path.rpartition('/')[2]}") == 12_345


def test_the_reserve_of_the_disk_is_left_alone() -> None:
    """What a backup would copy does not fit beside it: no write of the broker's own ever finds the disk full."""
    broker, held = broker_with_records()
    fs = broker.fs
    fs.capacity_bytes = fs.used_bytes() * 100 // 80
    least = fs.capacity_bytes // 16
    held.during = lambda: None if fs.space("/")[1] >= least else pytest.fail("the reserve is used up")
    for partition in broker.world.partitions():
        partition.log.apply_config(replace(partition.log.config, segment_bytes=1 << 20))
    for _ in range(40):
        if fs.space("/")[1] < least + 300:
            break
        broker.produce("a", b"x" * 100)
    backup = made(broker, held)
    assert backup.error is not None and "kept for metadata" in (backup.error.message or "")
    is_left_clean(broker)


def test_a_file_that_somebody_cut_or_took_away_is_told() -> None:
    for harm, reason in (
        (lambda fs, path: fs.remove(path), "is gone"),
        (lambda fs, path: fs.open(path).truncate(3), "now it has 3"),
    ):
        broker, held = broker_with_records()
        harm(broker.fs, broker.world.partition("a", 0).log.segments[0].path())  # type: ignore[no-untyped-call]
        backup = made(broker, held)
        assert backup.error is not None and reason in (backup.error.message or "")
        is_as_if_nothing_was(broker)


def test_a_copy_that_somebody_removes_while_it_is_made_is_told() -> None:
    broker, held = broker_with_records()
    fs = broker.fs

    def remove() -> None:
        for name in fs.list_dir("/copies"):
            fs.remove_tree(f"/copies/{name}")

    held.during = remove
    backup = made(broker, held)
    assert backup.error is not None and "somebody removed it" in (backup.error.message or "")
    is_as_if_nothing_was(broker)


def test_a_log_that_cannot_be_opened_is_copied_as_it_is() -> None:
    broker, held = broker_with_records()
    path = broker.world.partition("a", 0).log.active.path()
    broker.world.write_checkpoints()
    broker.fs = broker.fs.crash(keep_nothing=True)
    data = bytearray(broker.fs.read_file(path))
    data[8:12] = b"\xff" * 4
    broker.fs.write_atomic(path, bytes(data))
    broker._open()
    held.install(broker.world)
    with pytest.raises(ApiError):
        _ = broker.world.partition("a", 0).log
    assert made(broker, held).error is None
    other = World.open(
        broker.fs, COPY, BrokerConfig.from_properties({}), broker.clock, InlineFlush(), mirrors=QuietMirrors
    )
    with pytest.raises(ApiError, match="cannot be opened"):
        _ = other.partition("a", 0).log
    assert other.partition("b", 0).log_end_offset == 12


def test_an_open_backup_is_removed_when_the_broker_ends() -> None:
    for steps in range(1, 8):
        broker, held = broker_with_records()
        broker.world.backups.begin(COPY)
        held.works.pop(0)()
        for _ in range(min(steps, 4)):
            next(held.steps[0], None)
        broker.flush.run()
        broker.world.close()
        assert broker.fs.list_dir("/copies") == []
        assert not any("backup" in name for name in broker.fs.list_dir(DIRECTORY))


# --- a power cut ----------------------------------------------------------------------------------------------------


def die_with_the_power(fs: MemoryFileSystem) -> None:
    """What tidies up behind an error has no power either."""
    cut = fs.observer
    assert cut is not None

    def observer(kind: Kind, path: str, phase: Phase) -> None:
        try:
            cut(kind, path, phase)
        except PowerCut:
            fs.dead = True
            raise

    fs.observer = observer


def cut_points(*, far: bool, skip_sync: Callable[[str], bool] = lambda _path: False) -> Iterator[tuple[int, str]]:
    """(operation, what is wrong after the power went there) for each operation of a backup; "" when nothing is."""
    for operation in range(1, 5000):
        broker, held = broker_with_records(operation)
        if far:
            broker.fs.mounts.add("/copies")
        then = state_of(broker.world)
        broker.fs.skip_sync = skip_sync
        with powered_until(broker.fs, operation) as power:
            die_with_the_power(broker.fs)
            made(broker, held)
        for keep_nothing in (True, False):
            after = broker.fs.crash(keep_nothing=keep_nothing)
            yield operation, _wrong_after(after, then, broker.clock, complete=power.lasted)
        if power.lasted:
            return


def _wrong_after(fs: MemoryFileSystem, then: dict[str, Any], clock: ManualClock, *, complete: bool) -> str:
    copies = [name for name in fs.list_dir("/copies") if not name.startswith(".")]
    if complete and not copies:
        return "a backup that was said to be made is gone"
    try:
        if copies:
            compare(state_of_copy(fs, COPY, clock), then)
        compare(state_of_copy(fs, DIRECTORY, clock), then)
    except (AssertionError, StorageError, ApiError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"
    if any("backup" in name for name in fs.list_dir(DIRECTORY)) or fs.list_dir("/copies") != copies:
        return "a start left something of a backup"
    return ""


@pytest.mark.parametrize("far", [False, True])
def test_a_copy_with_its_name_is_whole_wherever_the_power_is_cut(far: bool) -> None:
    points = list(cut_points(far=far))
    assert [point for point in points if point[1]] == []
    assert len(points) > 200


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda path: path.startswith("/copies/.one") and path.endswith(".log"), id="tails"),
        pytest.param(lambda path: path.startswith("/copies/.one") and path.endswith("-0"), id="names of files"),
        pytest.param(lambda path: path.endswith(".tmp") and path.startswith("/copies/"), id="names of directories"),
        pytest.param(lambda path: path == "/copies", id="name of the copy"),
        pytest.param(lambda path: path.endswith("unfinished-copy.tmp"), id="where the copy is made"),
        pytest.param(lambda path: path.endswith("log-facts"), id="small files"),
    ],
)
def test_a_sync_that_is_left_out_is_found(lie: Callable[[str], bool]) -> None:
    assert any(wrong for _, wrong in cut_points(far=False, skip_sync=lie))


def test_what_is_not_synced_yet_is_synced_in_the_copy() -> None:
    """Segments that were sealed a moment ago, their indexes and snapshots, the tail: none of it is on disk here."""
    for unsynced in range(20):
        broker, held = broker_with_records(unsynced)
        for number in range(unsynced):
            broker.produce("a", b"%d" % number * 25, flush=False, producer_id=1, producer_epoch=0, base_sequence=number)
        then = state_of(broker.world)
        assert made(broker, held).error is None
        for keep_nothing in (True, False):
            after = broker.fs.crash(keep_nothing=keep_nothing)
            compare(state_of_copy(after, COPY, broker.clock), then)
