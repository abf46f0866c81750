"""Long work in slices: a few milliseconds of it, then everybody else. L4.

One task, one chore after the other. The rules are in the steps (`kmirror.broker.chores`); nothing here decides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import trio

from kmirror.broker.chores import Steps
from kmirror.errors import DiskFailure, StorageError
from kmirror.limits import CHORE_MS
from kmirror.server.waiting import parked

log = logging.getLogger("kmirror.workers")


class SlicedChores:
    """Takes chores at any time; works on them while `serve` runs."""

    def __init__(self, *, fatal: Callable[[BaseException], None]) -> None:
        self._fatal = fatal
        self._waiting: deque[Steps] = deque()
        self._wake: Callable[[], None] | None = None

    def run(self, steps: Steps) -> None:
        self._waiting.append(steps)
        if self._wake is not None:
            self._wake()

    async def serve(self) -> None:
        while True:
            if self._waiting:
                self._slice()
                await trio.lowlevel.checkpoint()
            else:
                await parked(self._register)
                self._wake = None

    def _register(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def _slice(self) -> None:
        """Work until the time is up or nothing is left."""
        ends_at = trio.current_time() + CHORE_MS / 1000
        while self._waiting:
            try:
                for _ in self._waiting[0]:
                    if trio.current_time() >= ends_at:
                        return
            except DiskFailure as error:
                self._waiting.clear()
                self._fatal(error)
                return
            except StorageError as error:
                log.error("work in the background was given up: %s", error)
            except Exception as error:  # a broken invariant: nobody else would ever hear of it
                self._waiting.clear()
                self._fatal(error)
                return
            self._waiting.popleft()
