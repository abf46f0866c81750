"""The thread that copies and syncs the files of a backup. L4.

Almost all of its time is spent in the system, where it does not hold the interpreter: copies are made by the system in
large pieces. What to do is said in `kmirror.broker.backup`; when the broker stops, the thread is told so between two
pieces, tidies up and ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from kmirror.broker.elsewhere import Check
from kmirror.effects import Promise

T = TypeVar("T")


class BackupThread:
    """`kmirror.broker.elsewhere.Elsewhere` of a running broker. Used on the loop only."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    def attach(self, nursery: trio.Nursery) -> None:
        """Where the waiting for the thread is done. Before the first `run`."""
        self._nursery = nursery

    def run(self, work: Callable[[Check], T]) -> Promise[T]:
        promise: Promise[T] = Promise()
        assert self._nursery is not None, "attach comes first"
        self._nursery.start_soon(self._wait, work, promise)
        return promise

    async def _wait(self, work: Callable[[Check], T], promise: Promise[T]) -> None:
        try:
            value = await trio.to_thread.run_sync(work, trio.from_thread.check_cancelled)
        except Exception as error:
            promise.fail(error)
        else:
            promise.resolve(value)
