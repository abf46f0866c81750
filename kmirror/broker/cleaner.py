"""Which log is compacted next, and what becomes of a round. L3. Kafka: LogCleanerManager.

The work of a round is done elsewhere (`kmirror.workers.cleaner`); here are the decisions before and after it. What must
hold: one round at a time; a log whose batches turned out to be damaged is not tried again before the next start, and
nothing of it is touched.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kmirror.broker.partition import Partition
from kmirror.errors import ApiError, CorruptData
from kmirror.storage import cleaning

if TYPE_CHECKING:
    from kmirror.broker.world import World

log = logging.getLogger("kmirror.broker")


class Cleaner:
    """See the module head. Used on the loop only."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._uncleanable: set[Partition] = set()

    def choose(self) -> tuple[Partition, cleaning.CleanJob] | None:
        """The log with the largest share of bytes that a round would look at for the first time, above
        min.cleanable.dirty.ratio or beyond max.compaction.lag.ms; None when no log is that dirty."""
        now_ms = self._world.clock.time_ms()
        best: tuple[float, Partition, cleaning.Dirt] | None = None
        for partition in self._world.partitions():
            found = self._dirt(partition, now_ms)
            if found is None or not found.cleanable_bytes:
                continue
            wanted = found.overdue or found.ratio > partition.log.config.min_cleanable_dirty_ratio
            if wanted and (best is None or found.ratio > best[0]):
                best = (found.ratio, partition, found)
        if best is None:
            return None
        memory_bytes = self._world.config.integer("log.cleaner.dedupe.buffer.size")
        job = cleaning.plan(best[1].log, best[2], now_ms=now_ms, memory_bytes=memory_bytes)
        return None if job is None else (best[1], job)

    def _dirt(self, partition: Partition, now_ms: int) -> cleaning.Dirt | None:
        opened = partition.opened_log
        if opened is None or not opened.config.compact or partition in self._uncleanable:
            return None
        try:
            return cleaning.dirt(
                opened,
                cleaned_up_to=partition.cleaned_up_to,
                last_stable_offset=partition.last_stable_offset,
                now_ms=now_ms,
            )
        except ApiError:
            return None  # deleted, or it cannot be read: its clients are told
        except CorruptData as error:  # of one log: the others have their turn
            self.failed(partition, str(error), damaged=True)
            return None

    def swap_in(self, partition: Partition, group: cleaning.CleanedGroup) -> bool:
        """One group is on disk. False: the round is void, the log was cut or trimmed."""
        return not partition.deleted and partition.swap_in(group)

    def finished(self, partition: Partition, end_offset: int) -> None:
        """All groups are in place: the log is clean below `end_offset`. Raises StorageError."""
        if not partition.deleted:
            partition.cleaned_up_to = min(end_offset, partition.log_end_offset)
            self._world.write_cleaned_up_to()

    def failed(self, partition: Partition, reason: str, *, damaged: bool) -> None:
        """Nothing is lost: what was not swapped in yet stays as it was, and the round's files go."""
        if damaged:
            self._uncleanable.add(partition)
            log.error("%s is not compacted any more: %s", partition, reason)
        else:
            log.warning("compaction of %s: %s; tried again later", partition, reason)
        if not partition.deleted and partition.opened_log is not None:
            cleaning.drop_all(partition.opened_log)
