"""What a mirrored partition has on disk in `__mirror_state`, as the machine sees it. Pure.

One state record, at most one lineage record, and a gap ledger per (mirror, topic id, partition). The codec of the keys
and values is `kmirror.protocol.internal.mirror_state`; this module only says what the fields mean to the machine and
where a record lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kmirror.mirror.states import State
from kmirror.protocol import mirror_numbers as numbers
from kmirror.protocol import uuids
from kmirror.protocol.java_hash import partition_for

EARLIEST: Final = -2
LATEST: Final = -1
"""`start_from`: a timestamp in ms, or one of these (ListOffsets' own numbers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The state record. Nothing recorded = UNKNOWN."""

    state: State = State.UNKNOWN
    leader_epoch: int = -1
    """The partition's leader epoch when this *state* was entered; later records of the same state keep it."""
    state_epoch: int = 0
    error: str | None = None
    retry_attempt: int = 0
    """Failures in a row; -1 = not retried."""
    previous_state: State = State.UNKNOWN
    """FAILED only: the state it failed from."""
    cut_to: int = -1
    """Decided cut that is not confirmed yet (tagged CutTo), always at a batch's base offset. -1 = none."""
    restart_at: int = -1
    """As `cut_to`, but the whole log goes and begins again, empty, at this offset."""
    mirrored: bool = False
    """The log holds (a prefix shared with) the source's bytes, and no LME of an earlier stop stands for them."""
    history_end: int = -1
    """After a failback or a restart: the source's log start is not followed below this."""
    start_from: int = EARLIEST
    force: bool = False
    """The operator said --replace; ends with the first fetch that succeeds after the alignment."""

    @property
    def retryable(self) -> bool:
        return self.retry_attempt >= 0

    @property
    def cut_pending(self) -> bool:
        return self.cut_to >= 0 or self.restart_at >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRecord:
    """Offsets [from, to) that the source had dropped before we fetched them."""

    from_offset: int
    to_offset: int
    at_ms: int


def state_partition(
    mirror: str, topic_id: bytes, partition: int, partition_count: int = numbers.STATE_TOPIC_PARTITIONS
) -> int:
    """The partition of `__mirror_state` that holds everything about one mirrored partition."""
    return partition_for(f"{mirror}:{uuids.to_text(topic_id)}:{partition}", partition_count)
