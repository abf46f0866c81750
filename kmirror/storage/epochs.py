"""Which leader epoch begins where in a log. L2 storage. Kafka: LeaderEpochFileCache (KIP-101, KIP-279, KIP-320).

Fed from the batches. What must hold: epochs and offsets rise; the file on disk has every epoch of every batch below
the flushed offset (a flush writes it before that offset moves); above it, recovery takes the epochs from the batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

NO_EPOCH = -1
UNDEFINED = (-1, -1)


class EpochCache:
    """(epoch, start offset) entries. `changed` is for the flush: the file is behind."""

    __slots__ = ("_epochs", "_starts", "changed", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = -1
        self.changed = False
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.changed = False

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """A batch of `epoch` begins at `start_offset`. Conflicting later entries go (Kafka: assign)."""
        if epoch < 0:
            return
        if self._epochs and epoch == self.latest and start_offset >= self._starts[-1]:
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self._touch()

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or above `end_offset`."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self._touch()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end at or below `start_offset`; the one that holds it begins there from now on."""
        at = bisect_right(self._starts, start_offset) - 1
        if at < 0 or (at == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:at], self._starts[:at]
        self._starts[0] = start_offset
        self._touch()

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._touch()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest known epoch ≤ `epoch`, its end offset); (-1, -1) when undefined.

        An epoch older than all known ones answers (`epoch`, start of the first known one). Kafka: endOffsetFor.
        """
        if epoch == NO_EPOCH or not self._epochs or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        return (self._epochs[above - 1] if above else epoch), self._starts[above]

    def epoch_at(self, offset: int) -> int:
        """The epoch whose range holds `offset`, -1 when it is below all of them."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else -1

    def _touch(self) -> None:
        self.latest = self._epochs[-1] if self._epochs else -1
        self.changed = True
