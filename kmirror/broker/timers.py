"""Timers of the synchronous layers: a heap, so that neither setting nor asking looks at all of them. L3.

What must hold: a timer fires once, at or after its time, earliest first; setting one again replaces it. Whoever sets
timers changes its mind often (a heartbeat resets its session's every few seconds), so a replaced entry stays in the
heap until it comes up, and is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

_COMPACT_ABOVE: Final = 1_024
"""Entries, most of them out of date, before a heap is cleaned."""

T = TypeVar("T")


class TimerHeap(Generic[T]):
    """Times and what they are for. `counts` says of (time in ms, what for) whether that still stands."""

    def __init__(self, counts: Callable[[int, T], bool]) -> None:
        self._counts = counts
        self._heap: list[tuple[int, int, T]] = []
        """(time, serial, what for): the serial keeps two at one time in order, and from being compared."""
        self._serial = 0
        self._compact_at = _COMPACT_ABOVE

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, at_ms: int, target: T) -> None:
        self._serial += 1
        heappush(self._heap, (at_ms, self._serial, target))
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if self._counts(entry[0], entry[2])]
            heapify(self._heap)
            self._compact_at = max(_COMPACT_ABOVE, 2 * len(self._heap))

    def next_ms(self) -> int | None:
        """The earliest time, None without any."""
        while self._heap and not self._counts(self._heap[0][0], self._heap[0][2]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> T | None:
        """What the earliest timer is for, if its time has come; it is out of the heap then. None when it has not."""
        at_ms = self.next_ms()
        return None if at_ms is None or at_ms > now_ms else heappop(self._heap)[2]


class TimerTable:
    """Timers by name. `on_sooner` is called when one was set that is due before all others: whoever sleeps looks
    again."""

    def __init__(self) -> None:
        self.on_sooner: Callable[[], None] = _nobody
        self._current: dict[str, tuple[str, object]] = {}
        """key: (key, event), the very object that is in the heap."""
        self._heap: TimerHeap[tuple[str, object]] = TimerHeap(self._counts)

    def set(self, key: str, at_ms: int, event: object) -> None:
        """Hand out `event` at `at_ms` (monotonic time), and at no other time that was asked for under this key."""
        earliest = self.next_ms()
        timer = self._current[key] = (key, event)
        self._heap.push(at_ms, timer)
        if earliest is None or at_ms < earliest:
            self.on_sooner()

    def cancel(self, key: str) -> None:
        self._current.pop(key, None)

    def next_ms(self) -> int | None:
        """When the next timer is due (monotonic time), None without timers."""
        return self._heap.next_ms()

    def take_due(self, now_ms: int) -> object | None:
        """The event of the earliest timer that is due, which is over with that; None when none is."""
        timer = self._heap.take_due(now_ms)
        if timer is None:
            return None
        del self._current[timer[0]]
        return timer[1]

    def _counts(self, _at_ms: int, timer: tuple[str, object]) -> bool:
        return self._current.get(timer[0]) is timer


def _nobody() -> None:
    return None
