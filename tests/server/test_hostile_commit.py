"""The commit thread on a disk without space: it waits, tells nobody too early, and ends when the broker stops."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kmirror.errors import DiskFull
from kmirror.workers import group_commit
from kmirror.workers.group_commit import GroupCommit


class FullDisk:
    """A log with one ticket, whose sync finds no space a few times, or always."""

    def __init__(self, refusals: int | None) -> None:
        self.refusals = refusals
        self.syncs = 0
        self.finished = False

    def begin_flush(self) -> Any:
        return self

    def sync(self) -> None:
        self.syncs += 1
        if self.refusals is None or self.syncs <= self.refusals:
            raise DiskFull("write of log-facts: No space left on device")

    def finish_flush(self, _ticket: Any) -> None:
        self.finished = True


async def test_a_flush_goes_on_when_there_is_space_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "SPACE_RETRY_MS", 0)
    fatal: list[BaseException] = []
    commit = GroupCommit(fatal=fatal.append)
    log: Any = FullDisk(refusals=3)
    done = trio.Event()
    commit.start()
    commit.dirty(log, done.set)
    await done.wait()
    commit.close()
    assert log.finished
    assert log.syncs == 4
    assert not fatal


async def test_a_flush_that_waits_for_space_does_not_stop_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    fatal: list[BaseException] = []
    commit = GroupCommit(fatal=fatal.append)
    log: Any = FullDisk(refusals=None)
    told: list[str] = []
    commit.start()
    commit.dirty(log, lambda: told.append("flushed"))
    commit.close()
    await trio.testing.wait_all_tasks_blocked()
    assert log.syncs >= 1
    assert not told
    assert not fatal, "a broker that was asked to stop has not failed"
