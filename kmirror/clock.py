"""The clock port. L0: imports nothing of kmirror.

Wall time goes into records and is shown to people; monotonic time measures durations. Nothing below L4 reads the
machine's clock itself: it is handed one of these, so that tests and the simulator own time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def time_ms(self) -> int:
        """Wall time, milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds on a clock that never goes back; only differences mean anything."""
        ...


class SystemClock:
    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, time_ms: int = 1_700_000_000_000) -> None:
        self._time_ms = time_ms
        self._monotonic_ms = 0

    def time_ms(self) -> int:
        return self._time_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, duration_ms: int) -> None:
        if duration_ms < 0:
            raise ValueError("time does not go back")
        self._time_ms += duration_ms
        self._monotonic_ms += duration_ms
