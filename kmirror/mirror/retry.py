"""When a failed partition is tried again. Pure; chance is handed in.

Exponential back-off of base 2 with a jitter of +-20 percent (docs/MIRRORING.md, "Retry"): the delay after
attempt n is `initial * 2**(n-1)`, never above the maximum. Attempt -1 marks a failure that is not retried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NOT_RETRIED: Final = -1
JITTER: Final = 0.2
MAX_DOUBLINGS: Final = 40
"""2**40 ms is 34 years: beyond it the maximum has long won, and the shift stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    initial_backoff_ms: int = 100
    max_backoff_ms: int = 300_000
    max_attempts: int = 20
    """0 switches automatic retry off."""

    def next_attempt(self, attempt: int) -> int:
        """The number of a failure that follows `attempt` (0 = none yet), capped at the maximum, at least 1."""
        return max(1, min(attempt + 1, self.max_attempts))

    def schedules(self, attempt: int) -> bool:
        """Whether another try is scheduled after failure number `attempt`."""
        return attempt != NOT_RETRIED and attempt < self.max_attempts

    def delay_ms(self, attempt: int, chance: Callable[[], float]) -> int:
        """Delay after failure number `attempt` (>= 1); `chance` returns a float in [0, 1)."""
        doublings = min(max(attempt - 1, 0), MAX_DOUBLINGS)
        delay = min(self.initial_backoff_ms << doublings, self.max_backoff_ms)
        return max(1, round(delay * (1 - JITTER + 2 * JITTER * chance())))
