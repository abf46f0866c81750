"""The commit thread: grouping, order after a round, failures. Logs are scripted; the thread is real."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
import trio.testing

from kmirror.errors import DiskFailure
from kmirror.storage.log import Log
from kmirror.workers.group_commit import GroupCommit


class Ticket:
    def __init__(self, log: ScriptedLog) -> None:
        self.log = log

    def sync(self) -> None:
        """In the commit thread: wait until the test lets it go on."""
        assert threading.current_thread().name == "commit"
        assert self.log.may_sync.wait(10)
        if self.log.failure is not None:
            raise self.log.failure
        self.log.events.append(f"sync {self.log.name}")


class ScriptedLog:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.failure: Exception | None = None
        self.unsynced = True

    def begin_flush(self) -> Ticket | None:
        self.events.append(f"begin {self.name}")
        return Ticket(self) if self.unsynced else None

    def finish_flush(self, ticket: Ticket) -> None:
        assert ticket.log is self
        self.events.append(f"finish {self.name}")


class Commit:
    """A started GroupCommit; `events` is everything that happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.failures: list[BaseException] = []
        self._turned = trio.Event()
        self.port = GroupCommit(fatal=self._fatal)
        self.port.before_replies = lambda: self.events.append("collect")
        self.port.after_replies = self._sent
        self.port.start()

    def _fatal(self, error: BaseException) -> None:
        self.failures.append(error)
        self._turned.set()

    def _sent(self) -> None:
        self.events.append("send")
        self._turned.set()

    def log(self, name: str) -> ScriptedLog:
        return ScriptedLog(name, self.events)

    def dirty(self, log: ScriptedLog, done: Callable[[], None]) -> None:
        self.port.dirty(cast(Log, log), done)

    def note(self, text: str) -> Callable[[], None]:
        return lambda: self.events.append(text)

    async def until(self, text: str) -> None:
        """Wait for an event; all of them happen in rounds."""
        await self._until(lambda: text in self.events)

    async def until_failed(self) -> None:
        await self._until(lambda: bool(self.failures))

    async def _until(self, true: Callable[[], bool]) -> None:
        with trio.fail_after(10):
            while not true():
                self._turned = trio.Event()
                await self._turned.wait()


@pytest.fixture
async def commit() -> Any:
    made = Commit()
    yield made
    made.port.close()


async def test_a_round(commit: Commit) -> None:
    commit.dirty(commit.log("a"), commit.note("done"))
    await commit.until("send")
    assert commit.events == ["begin a", "sync a", "collect", "finish a", "done", "send"]


async def test_what_comes_during_a_round_shares_the_next_one(commit: Commit) -> None:
    slow, other = commit.log("slow"), commit.log("other")
    slow.may_sync.clear()
    commit.dirty(slow, commit.note("first"))
    for number in range(5):
        commit.dirty(slow, commit.note(f"slow {number}"))
        commit.dirty(other, commit.note(f"other {number}"))
    assert commit.events == ["begin slow"]
    slow.may_sync.set()
    await commit.until("other 4")
    assert commit.events.count("begin slow") == 2
    assert commit.events.count("begin other") == 1
    assert all(f"slow {number}" in commit.events for number in range(5))


async def test_the_next_round_starts_before_anybody_is_told_of_the_last(commit: Commit) -> None:
    first, second = commit.log("first"), commit.log("second")
    first.may_sync.clear()
    second.may_sync.clear()
    commit.dirty(first, commit.note("told"))
    commit.dirty(second, commit.note("second told"))
    first.may_sync.set()
    await commit.until("told")
    assert commit.events.index("begin second") < commit.events.index("told")
    second.may_sync.set()
    await commit.until("second told")


async def test_the_same_callback_runs_once_in_a_round(commit: Commit) -> None:
    log = commit.log("a")
    told = commit.note("told")
    commit.port.hold()
    commit.dirty(log, told)
    commit.dirty(log, told)
    commit.port.release()
    await commit.until("send")
    assert commit.events.count("told") == 1


async def test_what_is_held_is_flushed_together(commit: Commit) -> None:
    logs = [commit.log(str(number)) for number in range(3)]
    commit.port.hold()
    for log in logs:
        commit.dirty(log, commit.note(f"done {log.name}"))
    assert commit.events == []
    commit.port.release()
    assert commit.events == ["begin 0", "begin 1", "begin 2"]
    await commit.until("send")
    assert commit.events.count("send") == 1


async def test_a_log_without_anything_to_flush_is_done_at_once(commit: Commit) -> None:
    log = commit.log("a")
    log.unsynced = False
    commit.dirty(log, commit.note("done"))
    assert commit.events == ["begin a", "done"]


async def test_a_failed_flush_stops_everything_and_tells_nobody(commit: Commit) -> None:
    bad, good = commit.log("bad"), commit.log("good")
    bad.failure = DiskFailure("EIO")
    bad.may_sync.clear()
    commit.dirty(bad, commit.note("bad told"))
    commit.dirty(good, commit.note("good told"))
    bad.may_sync.set()
    await commit.until_failed()
    assert commit.failures == [bad.failure]
    commit.dirty(good, commit.note("later told"))
    await trio.testing.wait_all_tasks_blocked()
    assert not any("told" in event or event.startswith("sync") for event in commit.events)


async def test_a_callback_that_raises_is_fatal_and_does_not_end_the_run(commit: Commit) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a broken invariant")

    commit.dirty(commit.log("a"), broken)
    await commit.until_failed()
    assert isinstance(commit.failures[0], ZeroDivisionError)
    commit.dirty(commit.log("b"), commit.note("told"))
    await trio.testing.wait_all_tasks_blocked()
    assert "begin b" not in commit.events


async def test_close_waits_for_the_round_in_the_thread() -> None:
    commit = Commit()
    log = commit.log("a")
    commit.dirty(log, commit.note("told"))
    commit.port.close()
    assert "sync a" in commit.events
