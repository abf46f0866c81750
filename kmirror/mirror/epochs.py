"""Leader epochs of a mirrored partition: source (SLE), destination (DLE), and when ours must be raised. Pure.

A destination consumer commits offsets with the epoch of the batch it read, and after a restart demands metadata at
least that new: DLE must never be below an epoch inside a stored batch
(docs/MIRRORING.md, "Leader epochs"). Ours is therefore raised
ahead of need (within `THRESHOLD` of it), by `INCREMENT`, so that it happens rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

THRESHOLD: Final = 3
INCREMENT: Final = 10

EpochEntry = tuple[int, int]
"""(epoch, its first offset), ascending in both."""


def must_fence(last_batch_epoch: int, destination_epoch: int) -> bool:
    """Reactive: data of a newer epoch than ours is rejected until ours is raised."""
    return last_batch_epoch > destination_epoch


def should_raise(source_epoch: int, destination_epoch: int) -> bool:
    """Proactive and periodic: the source comes within THRESHOLD of ours."""
    return source_epoch > destination_epoch - THRESHOLD


def raise_minimum(source_epoch: int) -> int:
    """The minimum to ask for: the new epoch becomes at least this + 1."""
    return source_epoch + INCREMENT


def epoch_below(entries: Sequence[EpochEntry], offset: int) -> int:
    """Epoch of the batch that ends at or before `offset`, -1 when nothing lies below it."""
    found = -1
    for epoch, start in entries:
        if start >= offset:
            break
        found = epoch
    return found


def next_lower(entries: Sequence[EpochEntry], epoch: int) -> int:
    """The newest epoch below `epoch` in the log, -1 when there is none."""
    return max((e for e, _ in entries if e < epoch), default=-1)


def end_of(entries: Sequence[EpochEntry], epoch: int, log_end_offset: int) -> int:
    """Base offset of the first batch with an epoch above `epoch`, else the log end (docs/MIRRORING.md, "Alignment")."""
    for e, start in entries:
        if e > epoch:
            return min(start, log_end_offset)
    return log_end_offset
