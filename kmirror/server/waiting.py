"""Waiting for the promises of the synchronous layers. L4.

A wait costs one task switch and nothing else: no event object, no channel, no cancel scope unless a timeout is asked
for (measured: they cost 8 to 30 microseconds each).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import trio

from kmirror.effects import Promise
from kmirror.limits import TURN_MS

T = TypeVar("T")


async def settled(promise: Promise[T], timeout_ms: int | None = None) -> T:
    """The promise's value; raises what it was failed with, or `trio.TooSlowError` after `timeout_ms`."""
    if not promise.done:
        if timeout_ms is None:
            await parked(lambda wake: promise.then(lambda _: wake()))
        else:
            with trio.fail_after(max(0, timeout_ms) / 1000):
                await parked(lambda wake: promise.then(lambda _: wake()))
    return promise.result()


async def parked(register: Callable[[Callable[[], None]], Any]) -> None:
    """Park this task until the callback that `register` was given is called; further calls of it do nothing.

    A task that is cancelled meanwhile is never woken by the callback; whoever registered it also removes it.
    """
    task = trio.lowlevel.current_task()
    woken = False
    is_parked = False

    def wake() -> None:
        nonlocal woken, is_parked
        woken = True
        if is_parked:
            is_parked = False
            trio.lowlevel.reschedule(task)

    def abort(_: object) -> trio.lowlevel.Abort:
        nonlocal is_parked
        is_parked = False
        return trio.lowlevel.Abort.SUCCEEDED

    register(wake)
    if not woken:
        is_parked = True
        await trio.lowlevel.wait_task_rescheduled(abort)


class Turn:
    """The time one request may take of the loop before others are served: for handlers with a list of large things."""

    def __init__(self) -> None:
        self._ends_at = trio.current_time() + TURN_MS / 1000

    async def let_others(self) -> None:
        """Wait for one pass of the loop when the turn is over. Between two things, never between check and change."""
        if trio.current_time() >= self._ends_at:
            await trio.lowlevel.checkpoint()
            self._ends_at = trio.current_time() + TURN_MS / 1000


async def settled_until(promises: Sequence[Promise[Any]], *, timeout_ms: int | None = None) -> None:
    """Wait until every promise is settled, or until the time is up; a time of 0 or below means no limit.

    What they were settled with is the caller's to read, and so is whether they are.
    """
    if timeout_ms is None or timeout_ms <= 0:
        await _all(promises)
        return
    with trio.move_on_after(timeout_ms / 1000):
        await _all(promises)


async def _all(promises: Sequence[Promise[Any]]) -> None:
    for promise in promises:
        if not promise.done:
            await parked(lambda wake: promise.then(lambda _: wake()))  # noqa: B023 - called before the next turn


def parts(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size` rows, none when there are none: what is done between two turns."""
    left = iter(rows)
    while part := list(islice(left, size)):
        yield part
