"""Waiting on processes that run in real time: polling with a deadline, and the rare pause that is the test itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 60.0
POLL_S = 0.05


def eventually(look: Callable[[], T | None], *, what: str, timeout_s: float = DEADLINE_S) -> T:
    """Polls until `look` gives something true, and gives it back. AssertionError names `what` and the last look."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"no {what} within {timeout_s:.0f} s; last seen: {seen!r}"
        time.sleep(POLL_S)


def pause(seconds: float) -> None:
    """Lets the peers run for a while, where the moment of what comes next is the test (a kill)."""
    time.sleep(seconds)
