"""Periodic work: timers, retention, checkpoints, idle connections. L4.

One task looks once a second what is due. Each job is short and synchronous; nothing here decides anything, the rules
are in the world, in the logs and in the server. A job that fails for lack of space is logged and tried again at its
next turn; a disk that cannot be trusted any more stops the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from kmirror.broker.world import World
from kmirror.errors import DiskFailure, StorageError
from kmirror.limits import IDLE_CHECK_MS, PRODUCER_EXPIRY_CHECK_MS, TICK_MS
from kmirror.server.server import Server

log = logging.getLogger("kmirror.workers")

Job = Callable[[], None]


class Ticks:
    def __init__(self, world: World, server: Server, *, fatal: Callable[[BaseException], None]) -> None:
        self._world = world
        self._fatal = fatal
        self._last_ms: dict[str, int] = {}
        self._jobs: list[tuple[str, Callable[[], int], Job]] = [
            ("timers", lambda: 0, world.tick),
            ("deleted files", lambda: 0, self._remove_doomed),
            ("vanished peers", lambda: 0, server.close_vanished),
            ("idle connections", lambda: IDLE_CHECK_MS, server.close_idle),
            ("retention", lambda: self._interval("log.retention.check.interval.ms"), world.apply_retention),
            ("idle producers", self._producer_interval, self._forget_producers),
            ("checkpoints", lambda: self._interval("log.flush.offset.checkpoint.interval.ms"), world.write_checkpoints),
        ]

    def _interval(self, name: str) -> int:
        return self._world.config.integer(name)

    async def run(self) -> None:
        now_ms = self._world.clock.monotonic_ms()
        self._last_ms = {name: now_ms for name, _, _ in self._jobs}
        while True:
            await trio.sleep(TICK_MS / 1000)
            self.turn()

    def turn(self) -> None:
        """Run every job whose interval is over."""
        now_ms = self._world.clock.monotonic_ms()
        for name, interval_ms, job in self._jobs:
            if now_ms - self._last_ms.get(name, now_ms) < interval_ms():
                continue
            self._last_ms[name] = now_ms
            try:
                job()
            except DiskFailure as error:
                self._fatal(error)
                return
            except StorageError as error:
                log.error("%s: %s; tried again later", name, error)

    def _producer_interval(self) -> int:
        return min(PRODUCER_EXPIRY_CHECK_MS, self._interval("producer.id.expiration.ms"))

    def _forget_producers(self) -> None:
        count = self._world.expire_producers()
        if count:
            log.info("%d producers were idle for producer.id.expiration.ms and are forgotten", count)

    def _remove_doomed(self) -> None:
        now_ms = self._world.clock.time_ms()
        for partition in self._world.partitions():
            if partition.opened_log is not None:
                partition.opened_log.delete_doomed(now_ms)
