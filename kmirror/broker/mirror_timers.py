"""When which partition's machine wants to be woken. L3.

What must hold: an entry counts only while it is what its partition last asked for, and while the partition still has
timers (`alive`: detached partitions and forgotten decisions do not).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kmirror.broker.timers import TimerHeap

if TYPE_CHECKING:
    from kmirror.broker.mirror_partition import MirroredPartition


class Timers:
    def __init__(self, alive: Callable[[MirroredPartition], bool]) -> None:
        self._alive = alive
        self._heap: TimerHeap[MirroredPartition] = TimerHeap(self._counts)

    def set(self, partition: MirroredPartition, at_ms: int | None) -> None:
        """Wake `partition` at `at_ms` and at no other time; None: not at all."""
        partition.wake_at_ms = at_ms
        if at_ms is not None:
            self._heap.push(at_ms, partition)

    def next_ms(self) -> int | None:
        """The earliest time, None without any."""
        return self._heap.next_ms()

    def overdue(self, now_ms: int) -> list[MirroredPartition]:
        """Those whose time has come, earliest first. Each is told once; what it wants next it has to `set`."""
        found = []
        while (partition := self._heap.take_due(now_ms)) is not None:
            partition.wake_at_ms = None
            found.append(partition)
        return found

    def _counts(self, at_ms: int, partition: MirroredPartition) -> bool:
        return partition.wake_at_ms == at_ms and self._alive(partition)
