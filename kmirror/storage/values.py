"""What goes into and comes out of a log: its mode, its settings, the results of its operations. L2 storage.

Plain values, apart from `log.py` so that the modules which do the work can import them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from kmirror.slices import FileSlice

LONG_MAX = 2**63 - 1


class LogMode(enum.Enum):
    """Who may append. SEALING (a mirror's STOPPING) lets COORDINATOR write ABORT markers and MIRROR_PID_RESET only,
    DRAINING (a topic about to be aligned) ABORT and COMMIT markers."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    DRAINING = "draining"
    SEALING = "sealing"


@dataclass(slots=True)
class LogConfig:
    """The topic settings that a log needs, with Kafka's defaults (LogConfig)."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 60 * 60 * 1000
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    compression_type: str = "producer"
    cleanup_policy: str = "delete"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 24 * 60 * 60 * 1000
    flush_messages: int = 1
    flush_ms: int = LONG_MAX
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy


class AppendResult(NamedTuple):
    """`log_append_time_ms` is -1 on CreateTime topics; a duplicate names the offsets of the batch kept the first time
    (and, as Kafka does, that batch's largest timestamp as append time)."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    duplicate: bool = False
    batch_count: int = 1
    size_bytes: int = 0


@dataclass(slots=True)
class LogRead:
    """Whole batches. `next_offset`: where a reader that takes all of it goes on."""

    slices: list[FileSlice]
    size_bytes: int
    next_offset: int


class TimestampOffset(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(slots=True)
class RecoveryReport:
    """What opening found and did, in sentences for the broker's log."""

    notes: list[str] = field(default_factory=list)
