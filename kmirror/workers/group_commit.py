"""Group commit: the one thread that makes appends durable, the only caller of fdatasync at run time. L4.

Measured: one dedicated thread (a queue in, `run_sync_soon` out, 58 microseconds a round trip) beats a worker thread per
flush (98, with a tail four times as long) and flushing on the loop (which cannot group). While a round is in the
thread, whatever becomes dirty waits for the next one; that is the grouping.

What must hold:
- a `done` callback runs on the loop, after the log's `finish_flush`, for every append that the round covered;
- the order after a round: start the next one, move the flushed offsets (and with them the high watermarks, which wakes
  parked fetches), then send the replies that became ready, each connection's in one call;
- a flush that failed is never tried again: memory and disk may disagree, the process stops (`fatal`);
- a flush whose small files find no space has not failed: they are written whole or not at all. It goes on when there is
  some, and until then nobody is told that anything is on disk.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import trio

from kmirror.errors import DiskFull
from kmirror.limits import SPACE_RETRY_MS
from kmirror.storage.flush import FlushTicket
from kmirror.storage.log import Log

log = logging.getLogger("kmirror.workers")

Done = Callable[[], None]


class GroupCommit:
    """The flush port of a running broker. Used on the loop only; `start` before the first `dirty`."""

    def __init__(self, *, fatal: Callable[[BaseException], None]) -> None:
        self.before_replies: Done = _nothing
        """Called before the round's `done` callbacks, `after_replies` after them: the server collects replies."""
        self.after_replies: Done = _nothing
        self._fatal = fatal
        self._dirty: dict[int, tuple[Log, dict[Done, None]]] = {}
        self._round: list[tuple[Log, FlushTicket, dict[Done, None]]] = []
        self._in_thread = False
        self._held = 0
        self._failed = False
        self._closing = threading.Event()
        self._work: queue.SimpleQueue[list[FlushTicket] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._sync_rounds, name="commit", daemon=True)
        self._thread.start()
        if self._dirty:
            self._begin_round()

    def dirty(self, log: Log, done: Done) -> None:
        """Flush `log` in the next round and call `done` on the loop when everything appended so far is on disk.

        The same `done` asked twice for one round runs once.
        """
        entry = self._dirty.get(id(log))
        if entry is None:
            self._dirty[id(log)] = (log, {done: None})
        else:
            entry[1][done] = None
        if not self._in_thread and not self._held:
            self._begin_round()

    def hold(self) -> None:
        """Until `release`, start no round: one request's partitions shall be flushed together."""
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        if self._dirty and not self._held and not self._in_thread:
            self._begin_round()

    def _begin_round(self) -> None:
        """Hand everything dirty to the thread. Logs with nothing to flush are done at once."""
        if self._thread is None or self._failed:
            return
        dirty, self._dirty = self._dirty, {}
        clean: list[Done] = []
        for log, waiting in dirty.values():
            ticket = log.begin_flush()
            if ticket is None:
                clean.extend(waiting)
            else:
                self._round.append((log, ticket, waiting))
        if self._round:
            self._in_thread = True
            self._work.put([ticket for _, ticket, _ in self._round])
        for done in clean:
            done()

    def _sync_rounds(self) -> None:
        """The thread."""
        assert self._token is not None
        while (tickets := self._work.get()) is not None:
            failure: Exception | None = None
            try:
                for ticket in tickets:
                    self._sync(ticket)
            except DiskFull:
                return  # the broker ends; what is dirty stays so
            except Exception as error:
                failure = error
            try:
                self._token.run_sync_soon(self._finish_round, failure)
            except trio.RunFinishedError:
                return

    def _sync(self, ticket: FlushTicket) -> None:
        """Raises DiskFailure; DiskFull only when the end did not wait for space."""
        told = False
        while True:
            try:
                ticket.sync()
                return
            except DiskFull as error:
                if not told:
                    log.error("a flush waits for space: %s", error)
                    told = True
                if self._closing.wait(SPACE_RETRY_MS / 1000):
                    raise

    def _finish_round(self, failure: Exception | None) -> None:
        """On the loop. An exception here would end the whole run without a word, so none leaves."""
        try:
            if failure is not None:
                raise failure
            done_round, self._round = self._round, []
            self._in_thread = False
            if self._dirty:
                self._begin_round()
            self.before_replies()
            try:
                for log, ticket, waiting in done_round:
                    log.finish_flush(ticket)
                    for done in waiting:
                        done()
            finally:
                self.after_replies()
        except Exception as error:
            self._failed = True
            self._fatal(error)

    def close(self) -> None:
        """Let the running round end and stop the thread; blocks for as long as one flush takes, space or no space.

        What is still dirty stays so: closing the logs flushes them.
        """
        if self._thread is not None:
            self._closing.set()
            self._work.put(None)
            self._thread.join()
            self._thread = None


def _nothing() -> None:
    return None
