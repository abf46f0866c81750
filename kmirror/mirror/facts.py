"""What a machine may know of its partition: numbers read from the log at the moment of a step. Pure.

The machines never see a log. The binding hands in an object of this shape; properties are read on demand, so a step
costs only what it looks at. Tests hand in `kmirror.mirror.facts.Numbers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kmirror.mirror.agreement import LocalBatch
from kmirror.mirror.epochs import EpochEntry


class OpenTransaction(Protocol):
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def coordinator_epoch(self) -> int: ...


class Facts(Protocol):
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def latest_epoch(self) -> int:
        """Newest epoch in the log, -1 when it holds no batch."""
        ...

    @property
    def epoch_entries(self) -> Sequence[EpochEntry]: ...
    @property
    def open_transactions(self) -> Sequence[OpenTransaction]:
        """Ascending producer id."""
        ...

    @property
    def last_pid_reset_offset(self) -> int:
        """Offset of the last MIRROR_PID_RESET batch in the log, -1 when there is none."""
        ...

    @property
    def max_producer_id(self) -> int:
        """Largest producer id ever seen in this log, -1 when there was none."""
        ...

    @property
    def next_producer_id(self) -> int:
        """The smallest id the local allocator may still hand out."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The partition's (DLE)."""
        ...

    @property
    def generation(self) -> int: ...
    @property
    def unclean_allowed(self) -> bool:
        """The topic opted in to `mirror.unclean.leader.election.enable`."""
        ...

    def batch_below(self, offset: int) -> LocalBatch | None:
        """The last batch that begins below `offset`."""
        ...

    def only_own_records(self, from_offset: int) -> bool:
        """Whether nothing but ABORT markers of a stop and MIRROR_PID_RESET lies at or above `from_offset`."""
        ...


@dataclass(slots=True, kw_only=True)
class OpenTransactionNumbers:
    producer_id: int
    producer_epoch: int = 0
    first_offset: int = 0
    coordinator_epoch: int = 0


@dataclass(slots=True, kw_only=True)
class Numbers:
    """Facts as plain values, for tests and for what is read once."""

    log_start_offset: int = 0
    log_end_offset: int = 0
    flushed_offset: int = 0
    high_watermark: int = 0
    epoch_entries: Sequence[EpochEntry] = ()
    open_transactions: Sequence[OpenTransactionNumbers] = ()
    last_pid_reset_offset: int = -1
    max_producer_id: int = -1
    next_producer_id: int = 0
    leader_epoch: int = 0
    generation: int = 0
    unclean_allowed: bool = False
    batches: Sequence[LocalBatch] = ()
    foreign_from: Sequence[int] = field(default_factory=tuple)
    """Offsets of records that are not our own markers."""

    @property
    def latest_epoch(self) -> int:
        return self.epoch_entries[-1][0] if self.epoch_entries else -1

    def batch_below(self, offset: int) -> LocalBatch | None:
        return next((b for b in reversed(self.batches) if b.base_offset < offset), None)

    def only_own_records(self, from_offset: int) -> bool:
        return all(offset < from_offset for offset in self.foreign_from)
