"""Sleeps until the next timer of the synchronous layers is due, to the millisecond. L4.

Sessions, rebalances and transactions end by these timers; a client that joins a group waits for one of them, so the
second of `workers.ticks` would be too coarse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from kmirror.broker.runtime import Runtime
from kmirror.errors import DiskFailure

log = logging.getLogger("kmirror.workers")


class TimerTask:
    def __init__(self, runtime: Runtime, *, fatal: Callable[[BaseException], None]) -> None:
        self._runtime = runtime
        self._fatal = fatal
        self._sleep: trio.CancelScope | None = None
        runtime.timers.on_sooner = self._look_again

    def _look_again(self) -> None:
        if self._sleep is not None:
            self._sleep.cancel()

    async def run(self) -> None:
        while True:
            wait_ms = self._runtime.next_timer_ms()
            with trio.CancelScope() as self._sleep:
                if wait_ms is None:
                    await trio.sleep_forever()
                await trio.sleep(wait_ms / 1000)
            self._sleep = None
            try:
                self._runtime.fire_timers()
            except DiskFailure as error:
                self._fatal(error)
                return
