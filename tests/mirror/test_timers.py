"""The mirrors' timers against the plain way to do it: ask every partition."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, cast

from kmirror.broker import timers as timer_heap
from kmirror.broker.mirror_timers import Timers


@dataclass(eq=False)
class Sleeper:
    wake_at_ms: int | None = None
    alive: bool = True


def test_timers_agree_with_asking_everybody(rng: random.Random, monkeypatch: Any) -> None:
    monkeypatch.setattr(timer_heap, "_COMPACT_ABOVE", 32)
    timers = Timers(lambda partition: cast(Sleeper, partition).alive)
    sleepers = [Sleeper() for _ in range(12)]
    now_ms = 0
    for _ in range(3_000):
        sleeper = rng.choice(sleepers)
        kind = rng.random()
        if kind < 0.7:
            timers.set(cast(Any, sleeper), rng.choice([None, now_ms + rng.randint(0, 50)]))
        elif kind < 0.8:
            sleeper.alive = False
            sleepers[sleepers.index(sleeper)] = Sleeper()
        else:
            now_ms += rng.randint(0, 20)
            wanted = [s for s in sleepers if s.wake_at_ms is not None and s.wake_at_ms <= now_ms]
            assert {id(s) for s in timers.overdue(now_ms)} == {id(s) for s in wanted}
            assert all(s.wake_at_ms is None for s in wanted)
        assert timers.next_ms() == min((s.wake_at_ms for s in sleepers if s.wake_at_ms is not None), default=None)


def test_the_heap_does_not_grow_with_changes_of_mind(monkeypatch: Any) -> None:
    monkeypatch.setattr(timer_heap, "_COMPACT_ABOVE", 32)
    timers = Timers(lambda partition: True)
    sleeper = cast(Any, Sleeper())
    timers.set(cast(Any, Sleeper()), 1)
    for at_ms in range(10, 1_000):
        timers.set(sleeper, at_ms)
        assert len(timers._heap) <= 32
    assert timers.next_ms() == 1
