"""When bytes count as written: the flush port, and its inline implementation for tests and the simulator.

L3 never syncs a file while it serves: it says that a log is dirty, and somebody (the commit thread of L4, or
`InlineFlush`) runs `begin_flush` on the loop, `sync` wherever it likes, `finish_flush` on the loop, and then calls
back. Rounds may cover any number of logs.

What must hold: a callback runs on the loop after the flush that covers everything appended before `dirty` was called
(or after the log was cut). A sync that fails is never tried again; the port reports it to `fatal` and calls nobody
back. One that finds no space for its small files is (DiskFull: nothing was half done), and nobody is called before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kmirror.errors import DiskFailure, DiskFull
from kmirror.limits import MAX_INLINE_FLUSH_ROUNDS
from kmirror.storage.log import Log

Done = Callable[[], None]


class FlushPort(Protocol):
    def dirty(self, log: Log, done: Done) -> None:
        """Flush `log` in the next round, then call `done`. The same `done` asked twice for one round runs once."""
        ...


def flush_now(log: Log) -> None:
    """Flush on the caller's thread: for start, close and nothing else. Raises DiskFailure."""
    log.flush()


class InlineFlush:
    """A flush port without threads. Rounds run in `run()`, or inside `dirty` itself when `at_once` is set."""

    def __init__(self, *, at_once: bool = False, fatal: Callable[[BaseException], None] | None = None) -> None:
        self.at_once = at_once
        self.fatal = fatal
        self.failed = False
        self._waiting: dict[int, tuple[Log, list[Done]]] = {}
        self._running = False

    def dirty(self, log: Log, done: Done) -> None:
        entry = self._waiting.setdefault(id(log), (log, []))
        if done not in entry[1]:
            entry[1].append(done)
        if self.at_once and not self._running:
            self.run()

    def run(self) -> None:
        """Rounds until nothing is dirty; callbacks may make more. Raises DiskFailure unless `fatal` is set."""
        self._running = True
        try:
            for _ in range(MAX_INLINE_FLUSH_ROUNDS):
                if not self._waiting or self.failed:
                    return
                waiting, self._waiting = self._waiting, {}
                if not self._round(list(waiting.values())):
                    return
            raise RuntimeError(f"logs are still dirty after {MAX_INLINE_FLUSH_ROUNDS} rounds")
        finally:
            self._running = False

    def _round(self, entries: list[tuple[Log, list[Done]]]) -> bool:
        """False when there was no space: the round is left for the next run."""
        try:
            for log, _callbacks in entries:
                flush_now(log)
        except DiskFull:
            self._waiting = {id(log): (log, callbacks) for log, callbacks in entries}
            return False
        except DiskFailure as error:
            self.failed = True
            if self.fatal is None:
                raise
            self.fatal(error)
            return True
        for _log, callbacks in entries:
            for done in callbacks:
                done()
        return True
