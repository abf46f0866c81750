"""Do the source and we hold the same bytes below an offset? A dialog of OffsetForLeaderEpoch answers. Pure.

Controllers assign epochs independently, so equal epochs prove nothing by themselves: after the epochs agree, our own
last batch is fetched again and compared; when it differs, bisection over our batches finds where the logs part
(docs/MIRRORING.md, "Agreement"; KIP-101, KIP-320). The caller asks `question`, feeds the answer to `epoch_end` or
`compared`, and goes on until `result` is set. One object serves one round under one source leader epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kmirror.mirror.epochs import EpochEntry, end_of, epoch_below, next_lower

MAX_STEPS_BACK: Final = 8
"""When the last batch cannot be compared (cleaned or gone at the source), at most so many before it are tried."""


@dataclass(frozen=True, slots=True)
class AskEpochEnd:
    """OffsetForLeaderEpoch for `epoch`, fenced with the source leader epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AskBatch:
    """Fetch the batch of ours that starts at `offset` from the source and compare; `size_bytes` is ours."""

    offset: int
    size_bytes: int


class Compared(Enum):
    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_COMPARED = "not compared"
    """Cleaned at one side, or gone at the source: says nothing."""


@dataclass(frozen=True, slots=True)
class LocalBatch:
    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Agreed:
    tail_compared: bool


@dataclass(frozen=True, slots=True)
class Diverged:
    common_offset: int
    """First offset that is not known to be shared; may lie below our log start."""
    reason: str


BatchBelow = Callable[[int], LocalBatch | None]
"""Our last batch that begins below an offset, None when the log holds none."""


class Agreement:
    """Compares the log below `bound` (exclusive) with the source."""

    def __init__(
        self,
        entries: Sequence[EpochEntry],
        *,
        log_start_offset: int,
        bound: int,
        batch_below: BatchBelow,
    ) -> None:
        self._entries = tuple(entries)
        self._start = log_start_offset
        self._bound = bound
        self._batch_below = batch_below
        self._upper = bound
        self._lowest_different: int | None = None
        self._steps_back = 0
        self._highest_equal = log_start_offset
        self._reason = ""
        self.result: Agreed | Diverged | None = None
        self.question: AskEpochEnd | AskBatch | None = None
        self._ask_from(bound)

    def _ask_from(self, upper: int) -> None:
        self._upper = upper
        epoch = epoch_below(self._entries, upper)
        if epoch < 0:
            self._nothing_below()
        else:
            self.question = AskEpochEnd(epoch)

    def _nothing_below(self) -> None:
        """No epoch of ours lies below `_upper`."""
        if self._upper >= self._bound:
            self._epochs_agree()
        else:
            self._diverged(min(self._upper, self._start), "no leader epoch of ours is known to the source")

    def epoch_end(self, epoch: int, end_offset: int) -> bool:
        """Take the answer to an `AskEpochEnd`. False when it contradicts the question (a broken source): ask again."""
        asked = self.question
        assert isinstance(asked, AskEpochEnd)
        if epoch < 0 or end_offset < 0:
            self._unknown(asked.epoch)
        elif epoch > asked.epoch:
            return False
        elif epoch == asked.epoch:
            if end_offset < self._upper:
                self._reason = f"the source's epoch {epoch} ends at {end_offset}, ours later"
                self._upper = end_offset
            elif self._upper < self._bound:
                self._reason = f"the source's history parts from ours after epoch {epoch}"
            self._epochs_agree()
        else:
            self._ask_from(min(end_of(self._entries, epoch, self._upper), end_offset))
        return True

    def _unknown(self, epoch: int) -> None:
        lower = next_lower(self._entries, epoch)
        if lower < 0:
            self._diverged(self._start, f"the source knows neither epoch {epoch} nor any older one of ours")
        else:
            self._upper = end_of(self._entries, lower, self._upper)
            self.question = AskEpochEnd(lower)

    def _epochs_agree(self) -> None:
        """Below `_upper`, that is; now our last batch there. One that the point goes through is not shared anyway."""
        batch = self._batch_below(self._upper)
        if batch is not None and batch.next_offset > self._upper:
            batch = self._batch_below(batch.base_offset)
        if batch is None:
            self._shared(tail_compared=False)
        else:
            self.question = AskBatch(batch.base_offset, batch.size_bytes)

    def _shared(self, *, tail_compared: bool) -> None:
        if self._upper < self._bound:
            self._diverged(self._upper, self._reason)
        else:
            self._finish(Agreed(tail_compared=tail_compared))

    def compared(self, outcome: Compared) -> None:
        """Take the answer to an `AskBatch`."""
        asked = self.question
        assert isinstance(asked, AskBatch)
        if self._lowest_different is None and outcome is not Compared.DIFFERENT:
            earlier = self._batch_below(asked.offset) if outcome is Compared.NOT_COMPARED else None
            if earlier is None or self._steps_back >= MAX_STEPS_BACK:
                self._shared(tail_compared=outcome is Compared.EQUAL and not self._steps_back)
            else:
                self._steps_back += 1
                self.question = AskBatch(earlier.base_offset, earlier.size_bytes)
            return
        if outcome is Compared.EQUAL:
            batch = self._batch_below(asked.offset + 1)
            assert batch is not None
            self._highest_equal = batch.next_offset
        else:
            if self._lowest_different is None:
                self._reason = f"the batch at offset {asked.offset} differs from the source's"
            self._lowest_different = asked.offset
        self._bisect()

    def _bisect(self) -> None:
        """`[.., _highest_equal)` is shared, the batch at `_lowest_different` is not: look at one between."""
        low, high = self._highest_equal, self._lowest_different
        assert high is not None
        if low < high:
            batch = self._batch_below(low + (high - low + 1) // 2)
            if batch is None or batch.base_offset < low:
                batch = self._batch_below(high)
            if batch is not None and low <= batch.base_offset < high:
                self.question = AskBatch(batch.base_offset, batch.size_bytes)
                return
        self._diverged(high, self._reason)

    def _diverged(self, common: int, reason: str) -> None:
        self._finish(Diverged(common, reason))

    def _finish(self, result: Agreed | Diverged) -> None:
        self.question = None
        self.result = result
