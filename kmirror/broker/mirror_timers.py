"""When which partition's machine wants to be woken: a heap, so that no call looks at every partition. L3.

A machine changes its mind often; `set` then pushes another entry and the old one is skipped when it comes up. What must
hold: an entry counts only while it is what its partition last asked for, and while the partition still has timers
(`alive`: detached partitions and forgotten decisions do not).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kmirror.broker.mirror_partition import MirroredPartition

_COMPACT_ABOVE: Final = 1_024
"""Entries, most of them out of date, before the heap is cleaned."""


class Timers:
    def __init__(self, alive: Callable[[MirroredPartition], bool]) -> None:
        self._alive = alive
        self._heap: list[tuple[int, int, MirroredPartition]] = []
        self._serial = 0
        self._compact_at = _COMPACT_ABOVE

    def set(self, partition: MirroredPartition, at_ms: int | None) -> None:
        """Wake `partition` at `at_ms` and at no other time; None: not at all."""
        partition.wake_at_ms = at_ms
        if at_ms is None:
            return
        self._serial += 1
        heappush(self._heap, (at_ms, self._serial, partition))
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)
            self._compact_at = max(_COMPACT_ABOVE, 2 * len(self._heap))

    def next_ms(self) -> int | None:
        """The earliest time, None without any."""
        while self._heap and not self._counts(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def overdue(self, now_ms: int) -> list[MirroredPartition]:
        """Those whose time has come, earliest first. Each is told once; what it wants next it has to `set`."""
        found = []
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            partition = heappop(self._heap)[2]
            partition.wake_at_ms = None
            found.append(partition)
        return found

    def _counts(self, entry: tuple[int, int, MirroredPartition]) -> bool:
        at_ms, _, partition = entry
        return partition.wake_at_ms == at_ms and self._alive(partition)
