"""Long work is done in slices; everybody else runs in between. Virtual time: a step takes as long as it says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import trio
import trio.testing

from kmirror.errors import DiskFailure, DiskFull
from kmirror.limits import CHORE_MS, TURN_MS
from kmirror.server.waiting import Turn
from kmirror.workers.chores import SlicedChores

Virtual = trio.testing.MockClock
STEPS = 40


async def test_others_run_between_two_slices(mock_clock: Virtual) -> None:
    done: list[float] = []
    fatal: list[BaseException] = []

    def steps() -> Iterator[None]:
        for _ in range(STEPS):
            mock_clock.jump(0.001)
            done.append(trio.current_time())
            yield

    chores = SlicedChores(fatal=fatal.append)
    chores.run(steps())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chores.serve)
        turns: list[int] = []
        while len(done) < 2 * STEPS:
            turns.append(len(done))
            if len(done) == STEPS:
                chores.run(steps())  # it slept until now
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    longest = max(after - before for before, after in pairwise(turns))
    assert longest <= 2 * CHORE_MS and len(turns) > 2 * STEPS // (CHORE_MS + 1)
    assert not fatal


async def test_what_fails_is_given_up_or_stops_the_broker(mock_clock: Virtual) -> None:
    fatal: list[BaseException] = []
    seen: list[str] = []

    def failing(error: Exception) -> Iterator[None]:
        yield
        seen.append(type(error).__name__)
        raise error

    chores = SlicedChores(fatal=fatal.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chores.serve)
        for error in (DiskFull("no space"), DiskFailure("gone"), KeyError("a bug")):
            chores.run(failing(error))
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert seen == ["DiskFull", "DiskFailure", "KeyError"]
    assert [type(error) for error in fatal] == [DiskFailure, KeyError]


async def test_a_handlers_turn(mock_clock: Virtual) -> None:
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        turn = Turn()
        for _ in range(STEPS):
            mock_clock.jump(0.001)
            await turn.let_others()
        assert STEPS // TURN_MS - 2 <= others <= STEPS // TURN_MS + 1
        nursery.cancel_scope.cancel()
