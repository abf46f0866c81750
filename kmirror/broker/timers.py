"""Named timers of the synchronous layers: a heap, so that neither setting nor asking looks at all of them. L3.

What must hold: a timer fires once, at or after its time, earliest first; setting one again replaces it. A heartbeat
resets its session's timer every few seconds, so a replaced entry stays in the heap until it comes up, and is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

_COMPACT_ABOVE: Final = 1_024
"""Entries, most of them out of date, before the heap is cleaned."""


class TimerTable:
    """`on_sooner` is called when a timer was set that is due before all others: whoever sleeps looks again."""

    def __init__(self) -> None:
        self.on_sooner: Callable[[], None] = _nobody
        self._current: dict[str, tuple[int, object]] = {}
        """key: (serial, event)"""
        self._heap: list[tuple[int, int, str]] = []
        self._serial = 0
        self._compact_at = _COMPACT_ABOVE

    def set(self, key: str, at_ms: int, event: object) -> None:
        """Hand out `event` at `at_ms` (monotonic time), and at no other time that was asked for under this key."""
        earliest = self.next_ms()
        self._serial += 1
        self._current[key] = (self._serial, event)
        heappush(self._heap, (at_ms, self._serial, key))
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)
            self._compact_at = max(_COMPACT_ABOVE, 2 * len(self._heap))
        if earliest is None or at_ms < earliest:
            self.on_sooner()

    def cancel(self, key: str) -> None:
        self._current.pop(key, None)

    def next_ms(self) -> int | None:
        """When the next timer is due (monotonic time), None without timers."""
        while self._heap and not self._counts(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> object | None:
        """The event of the earliest timer that is due, which is over with that; None when none is."""
        at_ms = self.next_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _at_ms, _serial, key = heappop(self._heap)
        return self._current.pop(key)[1]

    def _counts(self, entry: tuple[int, int, str]) -> bool:
        current = self._current.get(entry[2])
        return current is not None and current[0] == entry[1]


def _nobody() -> None:
    return None
