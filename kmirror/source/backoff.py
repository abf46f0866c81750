"""How long to wait before asking a broker again that just failed: exponential, with jitter, times injected.

Jitter matters more here than in most clients: one source broker that dies takes a connection of every mirror with it,
and all of them would come back in the same millisecond.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """Delays grow from `initial_ms` by doubling up to `max_ms`; each drawn from ±20 % (Kafka: ExponentialBackoff)."""

    JITTER = 0.2

    def __init__(self, *, initial_ms: int, max_ms: int, rng: Random) -> None:
        self.initial_ms = initial_ms
        self.max_ms = max(initial_ms, max_ms)
        self.failures = 0
        self._rng = rng

    def delay_ms(self) -> float:
        """The delay that belongs to the failures so far."""
        exponent = min(self.failures, 30)  # 2 ** 30 ms is beyond any maximum, and larger floats gain nothing
        delay_ms = min(float(self.max_ms), self.initial_ms * 2.0**exponent)
        return delay_ms * self._rng.uniform(1 - self.JITTER, 1 + self.JITTER)

    def failed(self) -> float:
        """Count one more failure; the delay to keep after it, in ms."""
        delay_ms = self.delay_ms()
        self.failures += 1
        return delay_ms

    def succeeded(self) -> None:
        self.failures = 0
