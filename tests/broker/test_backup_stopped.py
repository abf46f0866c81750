"""Backups of a data directory that no broker has: after a clean stop, after a kill, wherever that was."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from typing import Any

import pytest

from kmirror.broker.backup import copy_stopped
from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.errors import ConfigError, DiskFull
from kmirror.protocol.records import Record, build_batch
from kmirror.storage.backup import BadDestination
from kmirror.storage.errors import StorageLocked
from kmirror.storage.memory import Kind, MemoryFileSystem, Phase
from tests.broker.harness import DIRECTORY, Broker, QuietMirrors
from tests.broker.test_backup import (
    COPY,
    Life,
    broker_with_records,
    compare,
    files_of,
    make_small,
    state_of,
    state_of_copy,
)
from tests.power_cut import PowerCut


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("far", [True, False])
def test_a_broker_that_does_not_run(clean: bool, far: bool) -> None:
    broker, _ = broker_with_records()
    fs = broker.fs
    if far:
        fs.mounts.add("/copies")
    if not clean:
        broker.produce("a", b"not synced", flush=False)
    with pytest.raises(StorageLocked):
        copy_stopped(fs, DIRECTORY, COPY, lambda linked, copied: None)
    then = state_of(broker.world)
    if clean:
        broker.world.close()
    else:
        broker.world.directory.release()
    before = files_of(fs, DIRECTORY)
    told: list[tuple[int, int]] = []
    count, total_bytes = copy_stopped(fs, f"{DIRECTORY}/", COPY, lambda *row: told.append(row))
    assert count == 3 and sum(map(sum, told)) == total_bytes
    assert (sum(linked for linked, _ in told) == 0) == far
    assert files_of(fs, DIRECTORY) == before and not fs.locks
    assert not fs.exists(f"{COPY}/.kafka_cleanshutdown")
    broker._open()
    broker.produce("a", b"later")
    compare(state_of_copy(fs.crash(keep_nothing=True), COPY, broker.clock), then)


def test_a_broker_that_was_killed_while_it_put_a_cleaned_segment_in_place() -> None:
    """The copy becomes what the directory does, wherever that was: done, or not begun."""
    for rename in range(1, 200):
        broker = Broker()
        broker.fs.make_dirs("/copies")
        broker.create("c", cleanup__policy="compact")
        partition = broker.world.partition("c", 0)
        make_small(partition)
        for number in range(18):
            record = Record(b"%d" % (number if number % 2 else 0), b"%d" % number * 20)
            data = build_batch([record], timestamp_ms=number)
            partition.produce(data, now_ms=broker.clock.time_ms(), acks=-1)
            broker.flush.run()
        broker.world.write_checkpoints()
        left = rename

        def observer(kind: Kind, path: str, phase: Phase) -> None:
            nonlocal left
            left -= kind == "rename" and phase == "after" and not path.endswith(".tmp")
            if left == 0:
                raise PowerCut

        broker.fs.observer = observer
        with suppress(PowerCut):
            Life(broker, random.Random(1)).compact(partition)
        broker.fs.observer = None
        broker.world.directory.release()
        copy_stopped(broker.fs, DIRECTORY, COPY, lambda linked, copied: None)
        there, here = (read_by_index(broker.fs, path, broker.clock) for path in (COPY, DIRECTORY))
        assert there == here, f"rename {rename}"
        if left > 0:
            break
    assert 15 < rename < 199


def read_by_index(fs: MemoryFileSystem, path: str, clock: ManualClock) -> tuple[Any, ...]:
    """By offset, the batches that a reader gets from there on; by time, what is found."""
    world = World.open(fs, path, BrokerConfig.from_properties({}), clock, InlineFlush(), mirrors=QuietMirrors)
    log = world.partition("c", 0).log
    found = {
        offset: [header.base_offset for header, _ in log.batches(offset, log.log_end_offset)]
        for offset in range(log.log_start_offset, log.log_end_offset)
    }
    times = [log.offset_for_timestamp(time_ms, log.log_end_offset) for time_ms in range(20)]
    world.directory.release()
    return found, times, [segment.max_timestamp for segment in log.segments]


def test_a_stopped_broker_is_refused_like_a_running_one() -> None:
    broker, _ = broker_with_records()
    broker.world.close()
    for destination, reason in ((f"{DIRECTORY}/x", "inside"), ("/copies", "already"), ("/none/x", "make it first")):
        if destination == "/copies":
            broker.fs.write_atomic("/copies/mine", b"")
        before = files_of(broker.fs, "/")
        with pytest.raises(BadDestination, match=reason):
            copy_stopped(broker.fs, DIRECTORY, destination, lambda linked, copied: None)
        assert files_of(broker.fs, "/") == before and not broker.fs.locks
    with pytest.raises(ConfigError, match="not a data directory"):
        copy_stopped(broker.fs, "/copies", "/elsewhere", lambda linked, copied: None)


def test_a_stopped_broker_on_a_full_disk() -> None:
    for kind, suffix in (("link", "00000003"), ("write", ".log"), ("open", ".one"), ("rename", "/one")):
        broker, _ = broker_with_records()
        broker.world.close()
        broker.fs.fail(kind, suffix, error=errno.ENOSPC)  # type: ignore[arg-type]
        before = files_of(broker.fs, "/")
        if kind == "open":
            broker.fs.observer = lambda at, path, phase, fs=broker.fs: (
                fs.refuse(errno.ENOSPC, path) if at == "open" and ".one." in path and phase == "before" else None
            )
        with pytest.raises(DiskFull):
            copy_stopped(broker.fs, DIRECTORY, COPY, lambda linked, copied: None)
        broker.fs.observer = None
        assert files_of(broker.fs, "/") == before
