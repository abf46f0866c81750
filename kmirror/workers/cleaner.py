"""Compaction in the background: a round at a time, in a process of its own. L4. Kafka: LogCleaner.

Pure Python holds the interpreter while it works, so a round on the loop, or in a thread, would stop everybody for
minutes. The process gets the job (`storage.cleaning.CleanJob`) and hands back one group of segments after the other;
putting them in place is a few renames, done here. In simulated runs, which may not have processes, the round runs
inline.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from kmirror.broker.partition import Partition
from kmirror.broker.world import World
from kmirror.errors import ApiError, CorruptData, DiskFailure, StorageError

if TYPE_CHECKING:
    from kmirror.broker.cleaner import Cleaner
    from kmirror.storage.cleaning import CleanJob

log = logging.getLogger("kmirror.workers")


class CleanerTask:
    """`inline`: no processes."""

    def __init__(self, world: World, *, fatal: Callable[[BaseException], None], inline: bool = False) -> None:
        self._world = world
        self._fatal = fatal
        self._inline = inline
        self._cleaner: Cleaner | None = None

    async def run(self) -> None:
        """Every log.cleaner.backoff.ms: one round after the other until no log is dirty enough."""
        config = self._world.config
        if not config.boolean("log.cleaner.enable"):
            return
        while True:
            await trio.sleep(self._world.config.integer("log.cleaner.backoff.ms") / 1000)
            try:
                while await self.round():
                    await trio.lowlevel.checkpoint()
            except DiskFailure as error:
                self._fatal(error)
                return
            except (StorageError, ApiError) as error:
                log.error("compaction: %s; tried again later", error)

    async def round(self) -> bool:
        """Clean the dirtiest log. False when there is none, or it could not be done. Raises StorageError."""
        if self._cleaner is None:
            from kmirror.broker.cleaner import Cleaner  # most brokers have nothing to compact in their first seconds

            self._cleaner = Cleaner(self._world)
        chosen = self._cleaner.choose()
        if chosen is None:
            return False
        partition, job = chosen
        if self._inline:
            return self._here(self._cleaner, partition, job)
        return await self._elsewhere(self._cleaner, partition, job)

    def _here(self, cleaner: Cleaner, partition: Partition, job: CleanJob) -> bool:
        from kmirror.storage import cleaning

        try:
            for step in cleaning.clean(self._world.fs, job):
                if isinstance(step, int):
                    cleaner.finished(partition, step)
                elif not cleaner.swap_in(partition, step):
                    return False
        except CorruptData as error:
            cleaner.failed(partition, str(error), damaged=True)
            return False
        return True

    async def _elsewhere(self, cleaner: Cleaner, partition: Partition, job: CleanJob) -> bool:
        from kmirror.storage.cleaning import CleanedGroup, Source
        from kmirror.storage.segment import IndexChecksums
        from kmirror.workers.clean import DAMAGED_STATUS

        # A process of a broker that was killed may live a moment longer than it: their files have different names.
        job.suffix = f".{os.urandom(4).hex()}{job.suffix}"
        given = {
            "job": job.to_plain(),
            "bytes_per_second": float(self._world.config.raw("log.cleaner.io.max.bytes.per.second") or "inf"),
        }
        command = [sys.executable, "-m", "kmirror.workers.clean"]
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        reason = "the cleaner's process ended without a word"
        done = void = False
        try:
            await process.stdin.send_all(json.dumps(given).encode() + b"\n")
            async for line in _lines(process.stdout):
                if "error" in line:
                    reason = line["error"]
                elif "end" in line:
                    cleaner.finished(partition, line["end"])
                    done = True
                else:
                    sources, next_offset, size_bytes, suffix, checksums = line["group"]
                    made_of = [Source(*source) for source in sources]
                    group = CleanedGroup(made_of, next_offset, size_bytes, suffix, IndexChecksums(*checksums))
                    if not cleaner.swap_in(partition, group):
                        void = True
                        break
        finally:
            if not done:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()
        if not done:
            reason = "the log was cut meanwhile" if void else reason
            cleaner.failed(partition, reason, damaged=process.returncode == DAMAGED_STATUS)
        return done


async def _lines(stream: trio.abc.ReceiveStream) -> Any:
    """The JSON of each whole line."""
    rest = b""
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)
