"""Wires a broker together: config, world, listeners, workers, links; and takes it apart in the opposite order.

What must hold: nothing listens before recovery is complete, and "ready" is said after everything listens; background
tasks live in one nursery; after a failure that must stop the process nothing touches the disk any more.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import FlushPort
from kmirror.broker.world import World
from kmirror.clock import Clock, SystemClock
from kmirror.errors import ConfigError, DiskFailure, KmirrorError
from kmirror.server.listener import OpenListener
from kmirror.server.server import Server
from kmirror.storage.filesystem import FileSystem, OsFileSystem
from kmirror.storage.open_files import raise_descriptor_limit
from kmirror.workers.backup import BackupThread
from kmirror.workers.chores import SlicedChores
from kmirror.workers.cleaner import CleanerTask
from kmirror.workers.group_commit import GroupCommit
from kmirror.workers.ticks import Ticks
from kmirror.workers.timers import TimerTask

if TYPE_CHECKING:
    from kmirror.broker.mirroring import Mirrors

log = logging.getLogger("kmirror")

Announce = Callable[["App"], None]


class BrokerStopped(KmirrorError):
    """The broker met something after which it must not go on; `__cause__` is what."""


class App:
    """One running broker. `bootstrap` is "HOST:PORT" of its first listener."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        filesystem: FileSystem | None = None,
        flush: FlushPort | None = None,
    ) -> None:
        """Recovers the directory and binds the listeners. Raises ConfigError and StorageError.

        `flush` replaces the commit thread in simulated runs, which must not use threads.
        """
        self.config = config
        self.failure: BaseException | None = None
        self._scope: trio.CancelScope | None = None
        self._commit: GroupCommit | None = None
        self._copier: BackupThread | None = None
        self._chores = SlicedChores(fatal=self._stop_after)
        if flush is None:
            flush = self._commit = GroupCommit(fatal=self._stop_after)
        self.world = World.open(
            filesystem or OsFileSystem(),
            config.log_directory,
            config,
            clock or SystemClock(),
            flush,
            fatal=self._stop_after,
            chores=self._chores,
        )
        if self._commit is not None:
            self.world.elsewhere = self._copier = BackupThread()
        self.listeners: list[OpenListener] = []
        try:
            self._listen()
        except BaseException:
            self.world.close(clean=True)
            raise
        self.server = Server(self.world, fatal=self._stop_after, threads=self._commit is not None)
        if self._commit is not None:
            self._commit.before_replies = self.server.pusher.begin
            self._commit.after_replies = self.server.pusher.end
            self.server.hold = self._commit.hold
            self.server.release = self._commit.release

    def _listen(self) -> None:
        advertised = {listener.name: listener for listener in self.config.advertised_listeners}
        backlog = self.config.integer("socket.listen.backlog.size")
        for listener in self.config.listeners:
            opened = OpenListener(listener, advertised=advertised.get(listener.name), backlog=backlog)
            self.listeners.append(opened)

    @property
    def bootstrap(self) -> str:
        return self.listeners[0].address

    def _stop_after(self, error: BaseException) -> None:
        """A disk failure, or a broken invariant: stop everything, keep the first cause."""
        if self.failure is None:
            self.failure = error
            expected = isinstance(error, KmirrorError)  # its text says it all; anything else is a bug of ours
            log.critical("the broker stops: %s", error, exc_info=None if expected else error)
        if self._scope is not None:
            self._scope.cancel()

    def start(self, nursery: trio.Nursery) -> None:
        self._scope = nursery.cancel_scope
        if self.failure is not None:
            nursery.cancel_scope.cancel()
        self.server.attach(nursery)
        if self._commit is not None:
            self._commit.start()
        if self._copier is not None:
            self._copier.attach(nursery)
        nursery.start_soon(self._chores.serve)
        nursery.start_soon(Ticks(self.world, self.server, fatal=self._stop_after).run)
        nursery.start_soon(CleanerTask(self.world, fatal=self._stop_after, inline=self._commit is None).run)
        nursery.start_soon(TimerTask(self.world.runtime, fatal=self._stop_after).run)
        # The client side is imported with the first mirror: a broker without one starts faster and stays smaller.
        self.world.when_mirrors(lambda mirrors: nursery.start_soon(self._run_links, mirrors))
        for listener in self.listeners:
            nursery.start_soon(listener.serve, self.server)

    async def _run_links(self, mirrors: Mirrors) -> None:
        from kmirror.source.links import Links

        try:
            await Links(mirrors, self.world.clock).run()
        except* DiskFailure as failures:
            self._stop_after(failures)

    def close(self) -> None:
        """Last step, after every task has ended."""
        for listener in self.listeners:
            listener.close()
        self.server.close()
        if self._commit is not None:
            self._commit.close()
        self.world.close(clean=self.failure is None)

    def ready_json(self) -> str:
        """The content of the ready file."""
        return json.dumps(
            {
                "bootstrap": self.bootstrap,
                "listeners": {listener.name: listener.address for listener in self.listeners},
                "http": None,
                "pid": os.getpid(),
                "cluster_id": self.world.cluster_id,
                "node_id": self.world.node_id,
            }
        )


@asynccontextmanager
async def running(
    properties: Mapping[str, str],
    *,
    clock: Clock | None = None,
    filesystem: FileSystem | None = None,
    flush: FlushPort | None = None,
) -> AsyncIterator[App]:
    """A broker that serves for as long as the block runs. Raises ConfigError, StorageError, BrokerStopped."""
    config = BrokerConfig.from_properties(properties)
    for warning in config.warnings:
        log.warning("%s", warning)
    app = App(config, clock=clock, filesystem=filesystem, flush=flush)
    try:
        async with trio.open_nursery() as nursery:
            app.start(nursery)
            yield app
            nursery.cancel_scope.cancel()
    finally:
        app.close()
    if app.failure is not None:
        raise BrokerStopped(str(app.failure)) from app.failure


def run(properties: Mapping[str, str], *, announce: Announce, ready_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises what `running` raises."""
    raise_descriptor_limit()
    trio.run(_serve, properties, announce, ready_file)


async def _serve(properties: Mapping[str, str], announce: Announce, ready_file: Path | None) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with running(properties) as app:
            unwritable = _write_ready_file(ready_file, app.ready_json()) if ready_file is not None else None
            if unwritable is None:
                announce(app)
                gc.freeze()
                async for number in signals:
                    log.info("%s: stopping", signal.Signals(number).name)
                    break
        if unwritable is not None:  # raised out here: the block's nursery would wrap it in a group
            raise unwritable


def _write_ready_file(path: Path, text: str) -> ConfigError | None:
    """All of it or nothing: who waits for the file never reads half of it. Returns why it could not be written."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        return ConfigError(f"cannot write --ready-file {path}: {error.strerror or error}")
    return None
