"""Work that is large and that nobody waits for on the loop: the port, and its implementation that does it at once. L3.

Nothing in L3 awaits, so what takes seconds (renaming and removing the directories of ten thousand partitions, retention
over all logs) is written as steps, a generator that yields where others may have a turn. Who runs them in slices, and
lets other connections be served meanwhile, is L4 (`kmirror.workers.chores`).

What must hold: between two steps anything may have happened. Steps that are never finished (the process ends) leave
nothing that the next start does not do or repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

Steps = Iterator[None]


class Chores(Protocol):
    def run(self, steps: Steps) -> None:
        """Go through `steps`, now or in slices, after those that came before. A DiskFailure stops the broker."""
        ...


class AtOnce:
    """For tests, the simulator and whoever has no loop."""

    def run(self, steps: Steps) -> None:
        for _ in steps:
            pass
