"""Keeps one link running for every mirror that wants one, and turns the mirrors' clock.

What holds: a link that fails in a way nobody foresaw is logged with its traceback, reported as an unreachable source,
and started again after a pause; the others go on. Only a disk that cannot be trusted (`DiskFailure`) goes through,
since then the process must stop. A changed `LinkConfig.generation` ends the old link before the new one begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

import trio

from kmirror.broker.mirror_seam import LinkConfig
from kmirror.clock import Clock
from kmirror.errors import ConfigError, DiskFailure
from kmirror.source.backoff import Backoff
from kmirror.source.cluster import ClientSettings
from kmirror.source.link import Link, MirrorPort
from kmirror.source.wakeup import Wakeup

log = logging.getLogger(__name__)

_RESTART_INITIAL_MS = 1_000
_RESTART_MAX_MS = 60_000
CLIENT_ID_PREFIX = "kmirror-"


class MirrorsPort(MirrorPort, Protocol):
    def links(self) -> Mapping[str, LinkConfig]: ...
    def set_waker(self, callback: Callable[[str], None]) -> None: ...
    def due(self, now_ms: int) -> int | None: ...
    def tick(self, now_ms: int) -> None: ...


class _Running:
    def __init__(self, config: LinkConfig) -> None:
        self.config = config
        self.scope = trio.CancelScope()
        self.link: Link | None = None
        self.ended = trio.Event()


class Links:
    """`nursery.start_soon(Links(...).run)`; cancel to end all links."""

    def __init__(
        self,
        mirrors: MirrorsPort,
        clock: Clock,
        *,
        settings: ClientSettings | None = None,
        rng: Random | None = None,
    ) -> None:
        self._mirrors = mirrors
        self._clock = clock
        self._settings = settings if settings is not None else ClientSettings()
        self._rng = rng if rng is not None else Random()
        self._changed = Wakeup()
        self._timers = Wakeup()
        self._running: dict[str, _Running] = {}

    async def run(self) -> None:
        self._mirrors.set_waker(self._wake)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._turn_clock)
                while True:
                    seen = self._changed.serial
                    await self._reconcile(nursery)
                    await self._changed.wait(seen)
        finally:
            self._mirrors.set_waker(_nobody)

    def _wake(self, mirror: str) -> None:
        running = self._running.get(mirror)
        if running is not None and running.link is not None:
            running.link.wakeup.wake()
        self._changed.wake()
        self._timers.wake()

    async def _reconcile(self, nursery: trio.Nursery) -> None:
        wanted = self._mirrors.links()
        for name, running in list(self._running.items()):
            config = wanted.get(name)
            if config is None or config.generation != running.config.generation:
                running.scope.cancel()
                await running.ended.wait()
                del self._running[name]
        for name, config in self._mirrors.links().items():
            if name not in self._running:
                running = self._running[name] = _Running(config)
                nursery.start_soon(self._keep, running)

    async def _keep(self, running: _Running) -> None:
        config = running.config
        backoff = Backoff(initial_ms=_RESTART_INITIAL_MS, max_ms=_RESTART_MAX_MS, rng=self._rng)
        try:
            with running.scope:
                while True:
                    await self._once(running, config)
                    await trio.sleep(backoff.failed() / 1000)
        finally:
            running.ended.set()

    async def _once(self, running: _Running, config: LinkConfig) -> None:
        reason = ""
        try:
            running.link = Link(self._mirrors, config, self._settings, rng=self._rng)
            await running.link.run()
        except ConfigError as error:
            reason = str(error)
        except Exception as error:
            if _holds(error, DiskFailure):
                raise
            log.exception("mirror %s: the link failed and will be started again", config.mirror)
            reason = f"internal error: {_innermost(error)!r}"
        running.link = None
        self._mirrors.source_unreachable(config.mirror, None, reason)

    async def _turn_clock(self) -> None:
        while True:
            seen = self._timers.serial
            wait_ms = self._mirrors.due(self._clock.monotonic_ms())
            if wait_ms is not None and wait_ms <= 0:
                self._mirrors.tick(self._clock.monotonic_ms())
                await trio.lowlevel.checkpoint()
                continue
            await self._timers.wait(seen, timeout_s=float("inf") if wait_ms is None else wait_ms / 1000)


def _nobody(mirror: str) -> None:
    """Hears the wakes when no link runs any more."""


def _holds(error: BaseException, kind: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_holds(inner, kind) for inner in error.exceptions)
    return isinstance(error, kind)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
