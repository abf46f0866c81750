"""Asking again until an answer is final or a deadline is over: the pauses in between, which double up to a longest."""

from __future__ import annotations

import math

import trio

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class Patience:
    """With one question. `deadline_s` is a time of trio's clock: the last pause ends there, for one more look."""

    def __init__(
        self,
        deadline_s: float = math.inf,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self.deadline_s = deadline_s
        self._pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s

    @property
    def over(self) -> bool:
        return trio.current_time() >= self.deadline_s

    async def pause(self) -> None:
        await trio.sleep_until(min(trio.current_time() + self._pause_s, self.deadline_s))
        self._pause_s = min(self._longest_pause_s, self._pause_s * 2)
