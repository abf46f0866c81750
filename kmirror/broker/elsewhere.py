"""Work that waits for the disk for long, and must not make the loop wait: the port, and what does it at once. L3.

Who really does it elsewhere, in a thread, is L4 (`kmirror.workers.backup`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from kmirror.effects import Promise

T = TypeVar("T")

Check = Callable[[], None]
"""Raises when the work is to end, because the broker does. To be called between two parts of the work."""


class Elsewhere(Protocol):
    def run(self, work: Callable[[Check], T]) -> Promise[T]:
        """Call `work`, which touches nothing that the loop may change; the promise is settled on the loop."""
        ...


class RightHere:
    """For tests, the simulator and whoever has no loop."""

    def run(self, work: Callable[[Check], T]) -> Promise[T]:
        promise: Promise[T] = Promise()
        try:
            value = work(_go_on)
        except Exception as error:
            promise.fail(error)
        else:
            promise.resolve(value)
        return promise


def _go_on() -> None:
    return None
