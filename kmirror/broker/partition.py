"""One partition as the broker sees it: its log, its leader epoch, who may write, how far readers may look. L3.

What may live here: the rules between a client's (or a coordinator's, or a mirror's) call and one log. Every method
checks first and changes state afterwards, without a wait in between, so what was true at entry is true at exit.

What must hold:
- the high watermark never passes what is on disk, unless the topic chose page-cache durability (`flush.messages` above
  1), never goes back except by a cut, and with it the last stable offset: a transaction counts as decided only when
  its marker is below the high watermark;
- whoever waits (`when_committed`, `subscribe`) is woken from `_advance` and nowhere else;
- storage errors become Kafka codes in `storage_codes` and nowhere else; a DiskFailure goes to `fatal`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kmirror.broker.durability import FlushPort
from kmirror.broker.storage_codes import api_error
from kmirror.clock import Clock
from kmirror.effects import Promise
from kmirror.errors import ApiError, CorruptData, DiskFailure, StorageError
from kmirror.protocol.compression import Compression
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import (
    CODEC_MASK,
    CRC_START,
    HEADER_SIZE_BYTES,
    MAGIC_POSITION,
    NEWEST_MAGIC,
    Buffer,
    parse_header,
)
from kmirror.slices import FileSlice
from kmirror.storage.errors import InvalidRecord, NotOneBatch
from kmirror.storage.log import AppendResult, Log, LogConfig, LogMode
from kmirror.storage.producer_state import AppendOrigin
from kmirror.storage.space import SpaceGuard
from kmirror.storage.txn_index import AbortedTransaction
from kmirror.storage.validation import Inspection, single_batch
from kmirror.storage.values import LONG_MAX

if TYPE_CHECKING:
    from kmirror.storage.cleaning import CleanedGroup

_log = logging.getLogger("kmirror.broker")

T = TypeVar("T")

READ_UNCOMMITTED, READ_COMMITTED = 0, 1

# ListOffsets timestamps that are questions, not times (ListOffsetsRequest), and the first version that may ask each.
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SENTINEL_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
NEWEST_LIST_OFFSETS = 11
FIRST_PRODUCE_WITH_ZSTD = 7

NO_EPOCH = -1
"""Only this number means that no epoch is given; other negative ones are epochs older than all (so in Kafka)."""
UNKNOWN = (-1, -1)
_CODEC_AT = CRC_START + 1
"""The low byte of a batch's attributes."""


@dataclass(slots=True)
class Services:
    """What every partition needs of its surroundings. `fatal` is told of a disk that cannot be trusted any more."""

    flush: FlushPort
    clock: Clock
    space: SpaceGuard
    fatal: Callable[[BaseException], None]


@dataclass(slots=True)
class PartitionRead:
    """One partition's part of a Fetch. `aborted` is None at READ_UNCOMMITTED; `diverging` is (epoch, end offset)."""

    slices: list[FileSlice]
    size_bytes: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction] | None = None
    diverging: tuple[int, int] | None = None


def check_sentinel(timestamp: int, api_version: int) -> None:
    """Is this a time, or a question that this version of ListOffsets knows? Raises ApiError 35."""
    if timestamp < 0 and SENTINEL_VERSIONS.get(timestamp, api_version + 1) > api_version:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION, f"ListOffsets version {api_version} does not know timestamp {timestamp}"
        )


class Partition:
    """See the module head. `leader_epoch` is the durable one that clients are told and fenced by."""

    def __init__(
        self,
        topic_name: str,
        topic_id: bytes,
        index: int,
        leader_epoch: int,
        *,
        services: Services,
        open_log: Callable[[], Log],
        exists: Callable[[], bool],
        internal: bool = False,
        cleaned_up_to: int = -1,
    ) -> None:
        self.topic_name = topic_name
        self.topic_id = topic_id
        self.index = index
        self.leader_epoch = leader_epoch
        self.internal = internal
        self.read_only_reason: str | None = None
        self.settings_awaited = False
        """It copies a topic whose settings have not been seen yet: retention by others could delete what they keep."""
        self.deleted = False
        self._services = services
        self._open_log = open_log
        self._exists = exists
        self._log: Log | None = None
        self._damage: str | None = None
        """Why the log cannot be opened: found out once, not by reading all of it for every request."""
        self._mode = LogMode.WRITABLE
        self._high_watermark = 0
        self._undecided: deque[tuple[int, int]] = deque()
        self._waiters: list[tuple[int, Promise[None]]] = []
        self._subscribers: dict[int, Callable[[], None]] = {}
        self._next_handle = 0
        self._told = (-1, -1, -1)
        self._unflushed_since_ms: int | None = None
        self.cleaned_up_to = cleaned_up_to
        """Below it the log is compacted (`broker.cleaner`); -1 when it never was."""

    def __str__(self) -> str:
        return f"{self.topic_name}-{self.index}"

    # -- the log -------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        """The partition's log, opened (and recovered) at first use."""
        if self._log is None:
            if self.deleted:
                raise self._gone()
            if self._damage is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self._damage)
            try:
                log = self._open_log()
            except CorruptData as error:
                self._damage = f"{self} cannot be opened: {error}"
                _log.error("%s; its clients get KAFKA_STORAGE_ERROR until the next start", self._damage)
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self._damage) from error
            except StorageError as error:
                raise self._refusal(error) from error
            log.mode = self._mode
            self._log = log
            self._high_watermark = min(log.flushed_offset, log.log_end_offset) if self.durable else log.log_end_offset
            self._told = self._seen()
        return self._log

    @property
    def opened_log(self) -> Log | None:
        """The log when it is open already: for checkpoints, retention and closing, which must not open any."""
        return self._log

    @property
    def is_damaged(self) -> bool:
        """Whether opening found damage, so that nothing of the log was recovered."""
        return self._damage is not None

    @property
    def is_on_disk(self) -> bool:
        """Whether the partition has a directory: one that was never written to has none."""
        return self._log is not None or self._exists()

    @property
    def durable(self) -> bool:
        """Whether an acknowledged write is on disk (`flush.messages` = 1); otherwise it is in the page cache."""
        return self.log.config.flush_messages <= 1

    @property
    def mode(self) -> LogMode:
        return self._mode

    def set_mode(self, mode: LogMode, reason: str | None = None) -> None:
        """Who may append from now on; `reason` is what a refused writer is told. Wakes subscribers."""
        self._mode = mode
        self.read_only_reason = reason
        if mode is LogMode.WRITABLE:
            self.settings_awaited = False
        if self._log is not None:
            self._log.mode = mode
            self._advance(force=True)

    @property
    def high_watermark(self) -> int:
        """Readers see what is below it. Opens the log."""
        if self._log is None:
            self._log = self.log
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """min(first undecided offset, high watermark); a decision counts once it is below the high watermark."""
        log = self.log
        first = self._undecided[0][1] if self._undecided else log.first_undecided_offset
        if first is None:
            return self._high_watermark
        return max(log.log_start_offset, min(first, self._high_watermark))

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    # -- writing -------------------------------------------------------------------------------------------------

    def produce(
        self,
        records: Buffer | None,
        *,
        now_ms: int,
        acks: int,
        api_version: int = 13,
        internal_allowed: bool = False,
        epoch_bumps: bool = False,
        inspection: Inspection | None = None,
    ) -> AppendResult:
        """A client's append: exactly one batch of magic 2. Raises ApiError with the code of the partition's answer.

        `epoch_bumps`: the client speaks transactions v2 (KIP-890). The caller then waits for
        `when_committed(result.last_offset + 1)` unless acks is 0. `inspection`: see `Log.append`.
        """
        if self.deleted:
            raise self._gone()
        self._check_records(records, api_version)
        assert records is not None
        if acks not in (-1, 0, 1):
            self._check_shape(records)
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        if self.internal and not internal_allowed:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {self.topic_name}")
        return self._append(
            records, AppendOrigin.CLIENT, now_ms, self.leader_epoch, epoch_bumps=epoch_bumps, inspection=inspection
        )

    def note_refused(self, records: Buffer | None) -> None:
        """A transactional batch was not admitted: none behind it is taken before it (`ProducerState.note_refused`)."""
        with suppress(CorruptData):
            self.log.producers.note_refused(parse_header(records or b""), self._services.clock.time_ms())

    def append_coordinator(
        self,
        data: Buffer,
        *,
        leader_epoch: int | None = None,
        transaction_version: int = 0,
        may_use_reserve: bool = True,
    ) -> AppendResult:
        """Transaction markers, the producer-id reset and records of internal topics. Raises ApiError.

        `may_use_reserve`: also the last of the disk, which clients do not get.
        `transaction_version` from 2 on wants a marker's epoch above the producer's (WriteTxnMarkers, KIP-890).
        """
        epoch = self.leader_epoch if leader_epoch is None else leader_epoch
        now_ms = self._services.clock.time_ms()
        return self._append(
            data,
            AppendOrigin.COORDINATOR,
            now_ms,
            epoch,
            transaction_version=transaction_version,
            may_use_reserve=may_use_reserve,
        )

    def append_replicated(self, data: Buffer) -> AppendResult:
        """A mirror's append: batches exactly as the source sent them. Raises ApiError; the log is as it was then."""
        return self._append(data, AppendOrigin.REPLICATION, self._services.clock.time_ms(), self.leader_epoch)

    def _append(
        self,
        data: Buffer,
        origin: AppendOrigin,
        now_ms: int,
        leader_epoch: int,
        *,
        transaction_version: int = 0,
        epoch_bumps: bool = False,
        inspection: Inspection | None = None,
        may_use_reserve: bool = False,
    ) -> AppendResult:
        if self.deleted:
            raise self._gone()
        log = self.log
        before = log.first_undecided_offset
        try:
            if not may_use_reserve:
                self._services.space.take(len(data))
            result = log.append(
                data,
                origin=origin,
                leader_epoch=leader_epoch,
                now_ms=now_ms,
                transaction_version=transaction_version,
                epoch_bumps=epoch_bumps,
                inspection=inspection,
            )
        except StorageError as error:
            raise self._refusal(error) from error
        if before is not None and log.first_undecided_offset != before:
            self._undecided.append((log.log_end_offset, before))
        if self._flush_is_due(log):
            self._services.flush.dirty(log, self._advance)
        self._advance()
        return result

    def _flush_is_due(self, log: Log) -> bool:
        """After `flush.messages` offsets, and for what a roll has sealed (UnifiedLog.append and roll): with page-cache
        durability everything else is the operating system's to write."""
        waiting = log.log_end_offset - log.flushed_offset
        return waiting >= max(1, log.config.flush_messages) or log.flushed_offset < log.active.base_offset

    def flush_if_overdue(self, now_ms: int) -> None:
        """`flush.ms`, counted from the first look that finds something unflushed; `now_ms` is monotonic time."""
        log = self._log
        if log is None or log.config.flush_ms == LONG_MAX:
            return
        if log.flushed_offset >= log.log_end_offset:
            self._unflushed_since_ms = None
        elif self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        elif now_ms - self._unflushed_since_ms >= log.config.flush_ms:
            self._unflushed_since_ms = None
            self._services.flush.dirty(log, self._advance)

    def _check_shape(self, records: Buffer) -> None:
        """One batch or not: what Kafka looks at before it looks at acks. Raises ApiError 2, 87."""
        try:
            single_batch(records)
        except (NotOneBatch, CorruptData) as error:
            raise api_error(error) from error
        except InvalidRecord:
            return

    def _check_records(self, records: Buffer | None, api_version: int) -> None:
        """What the log cannot know: that there is something, and what this version may carry (KIP-110)."""
        if records is None or len(records) == 0:
            raise ApiError(ErrorCode.INVALID_RECORD, f"a Produce request needs one record batch for {self}")
        readable = len(records) >= HEADER_SIZE_BYTES and records[MAGIC_POSITION] == NEWEST_MAGIC
        if api_version < FIRST_PRODUCE_WITH_ZSTD and readable and records[_CODEC_AT] & CODEC_MASK == Compression.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")

    # -- waiting -------------------------------------------------------------------------------------------------

    def when_committed(self, offset: int) -> Promise[None]:
        """Settled when the high watermark is at or above `offset`; fails with ApiError on deletion or a cut below."""
        promise: Promise[None] = Promise()
        if self.deleted:
            promise.fail(self._gone())
        elif self.high_watermark >= offset:
            promise.resolve(None)
        else:
            self._waiters.append((offset, promise))
        return promise

    def when_flushed(self) -> Promise[None]:
        """Settled when everything appended (and cut) so far is on disk, whatever durability the topic chose."""
        if self.log.is_clean:
            return Promise.of(None)
        promise: Promise[None] = Promise()
        self._services.flush.dirty(self.log, lambda: promise.resolve(None))
        return promise

    def subscribe(self, callback: Callable[[], None]) -> int:
        """Call `callback` when high watermark, last stable offset, log start or mode change, on cut and deletion."""
        self._next_handle += 1
        self._subscribers[self._next_handle] = callback
        return self._next_handle

    def unsubscribe(self, handle: int) -> None:
        self._subscribers.pop(handle, None)

    def _advance(self, *, force: bool = False) -> None:
        """The one place that moves the high watermark up and wakes whoever waits for that."""
        log = self._log
        if log is None:
            return
        committed = min(log.flushed_offset, log.log_end_offset) if self.durable else log.log_end_offset
        if committed > self._high_watermark:
            self._high_watermark = committed
            while self._undecided and self._undecided[0][0] <= committed:
                self._undecided.popleft()
            if self._waiters:
                self._settle(committed)
        seen = self._seen()
        if force or seen != self._told:
            self._told = seen
            for callback in list(self._subscribers.values()):
                callback()

    def _settle(self, committed: int) -> None:
        ready = [promise for offset, promise in self._waiters if offset <= committed]
        if ready:
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > committed]
            for promise in ready:
                promise.resolve(None)

    def _seen(self) -> tuple[int, int, int]:
        return self._high_watermark, self.last_stable_offset, self.log.log_start_offset

    # -- reading -------------------------------------------------------------------------------------------------

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Fencing by the epoch a client has from Metadata (KIP-320); -1 asks for none. Raises ApiError 74, 75."""
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self} has leader epoch {self.leader_epoch}, not {current_leader_epoch}",
            )
        raise ApiError(
            ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self} has leader epoch {self.leader_epoch}, below {current_leader_epoch}"
        )

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        isolation_level: int = READ_UNCOMMITTED,
        at_least_one: bool = True,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> PartitionRead:
        """Whole batches from the first one that contains `offset`, below the high watermark or last stable offset.

        Empty from the limit up to the log end. Raises ApiError: 1 outside [log start, log end], 3, 74, 75.
        """
        if self.deleted:
            raise self._gone()
        self.check_leader_epoch(current_leader_epoch)
        log = self.log
        committed = isolation_level == READ_COMMITTED
        last_stable_offset = self.last_stable_offset
        limit = last_stable_offset if committed else self._high_watermark
        answer = PartitionRead(
            [], 0, offset, self._high_watermark, last_stable_offset, log.log_start_offset, [] if committed else None
        )
        if last_fetched_epoch >= 0:
            answer.diverging = self._diverging(offset, last_fetched_epoch)
            if answer.diverging is not None:
                return answer
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self} is outside {log.log_start_offset} to {log.log_end_offset}",
            )
        if offset >= limit or (max_bytes <= 0 and not at_least_one):
            return answer
        try:
            found = log.read(offset, max_bytes=max_bytes, limit_offset=limit, at_least_one=at_least_one)
        except StorageError as error:
            raise self._refusal(error) from error
        answer.slices = found.slices
        answer.size_bytes = found.size_bytes
        answer.next_offset = found.next_offset
        if committed and found.size_bytes:
            answer.aborted = log.aborted_transactions(offset, found.next_offset)
        return answer

    def _diverging(self, offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """Where the reader's log leaves ours (KIP-595), or None when it does not. Raises ApiError 1."""
        epoch, end = self.end_offset_for_epoch(last_fetched_epoch)
        if epoch < 0 or end < 0:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{self} does not know the end of leader epoch {last_fetched_epoch}"
            )
        return (epoch, end) if epoch < last_fetched_epoch or end < offset else None

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int = -1) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (largest epoch at or below the asked one, where it ends), or (-1, -1) for none.

        Between the newest epoch in the log and the partition's own epoch the answer is (newest, log end): nothing was
        written since, so nothing is missing (KIP-279; docs/MIRRORING.md, "Agreement").
        """
        if self.deleted:
            raise self._gone()
        self.check_leader_epoch(current_leader_epoch)
        log = self.log
        latest = log.epochs.latest
        if epoch == NO_EPOCH or epoch > max(self.leader_epoch, latest):
            return UNKNOWN
        if latest < 0:
            return epoch, log.log_end_offset
        if epoch >= latest:
            return latest, log.log_end_offset
        return log.epochs.end_offset_for(epoch, log.log_end_offset)

    def list_offset(
        self,
        timestamp: int,
        isolation_level: int = READ_UNCOMMITTED,
        current_leader_epoch: int = -1,
        *,
        api_version: int = NEWEST_LIST_OFFSETS,
    ) -> tuple[int, int, int]:
        """(offset, timestamp, leader epoch), -1 for what there is not (UnifiedLog.fetchOffsetByTimestamp).

        A timestamp finds the first record at or after it that readers of this isolation may see. Raises ApiError: 35
        for a sentinel that is unknown or newer than `api_version`, 3, 74, 75.
        """
        if self.deleted:
            raise self._gone()
        check_sentinel(timestamp, api_version)
        self.check_leader_epoch(current_leader_epoch)
        log = self.log
        limit = self.last_stable_offset if isolation_level == READ_COMMITTED else self.high_watermark
        if timestamp == LATEST:
            return limit, -1, self._epoch_for_readers()
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            entries = log.epochs.entries
            if not entries and self._mode is LogMode.WRITABLE:
                return log.log_start_offset, -1, self.leader_epoch  # which begins where the empty log does
            known = bool(entries) and entries[0][1] <= log.log_start_offset
            return log.log_start_offset, -1, entries[0][0] if known else -1
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return -1, -1, -1
        if timestamp == MAX_TIMESTAMP:
            found = log.max_timestamp_offset(limit)
        else:
            found = log.offset_for_timestamp(timestamp, limit)
        if found is None or found.offset >= limit:
            return -1, -1, -1
        return found.offset, found.timestamp_ms, found.leader_epoch

    def _epoch_for_readers(self) -> int:
        """The epoch of the log end: ours where we write, the log's where a mirror does."""
        latest = self.log.epochs.latest
        return self.leader_epoch if self._mode is LogMode.WRITABLE or latest < 0 else latest

    # -- cutting (mirroring, DeleteRecords, deletion) ------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """DeleteRecords: raise the log start to `offset` (-1: the high watermark). Returns the new low watermark.

        Not durable by itself: `World.delete_records` writes the checkpoint. Raises ApiError: 1, 3, 17, 44.
        """
        if self.deleted:
            raise self._gone()
        if self.internal:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {self.topic_name}"
            )
        log = self.log
        if log.config.compact and not log.config.delete:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"{self} has cleanup.policy={log.config.cleanup_policy}: add delete to it"
            )
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self} ends at {self.high_watermark}, not at {target}")
        self.advance_log_start(target)
        return log.log_start_offset

    def advance_log_start(self, offset: int) -> None:
        """Readers see nothing below `offset` any more; segments wholly below it go later."""
        log = self.log
        if offset > log.log_start_offset:
            self._guard(lambda: log.advance_log_start(offset))
            self._advance(force=True)

    def apply_retention(self) -> int:
        """Delete whole old segments below the high watermark, and files whose delay is over. Returns segments."""
        now_ms = self._services.clock.time_ms()
        log = self.log
        count = 0
        if not self.settings_awaited:
            count = self._guard(lambda: log.apply_retention(now_ms, self._high_watermark))
        self._guard(lambda: log.delete_doomed(now_ms))
        if count:
            self._services.flush.dirty(log, self._advance)
            self._advance(force=True)
        return count

    def swap_in(self, group: CleanedGroup) -> bool:
        """Put a cleaned segment in place of those it was made of (`storage.cleaning`). False when they have changed
        meanwhile. Readers notice nothing: the offsets are the same, and slices handed out keep the old files."""
        from kmirror.storage import cleaning  # not needed before the first round

        log = self.log
        swapped = self._guard(lambda: cleaning.swap(log, group, self._services.clock.time_ms()))
        self._services.flush.dirty(log, self._advance)
        return swapped

    def truncate_to(self, offset: int) -> int:
        """Cut everything from `offset` on (from the batch that contains it). Returns the new log end."""
        end = self._guard(lambda: self.log.truncate_to(offset))
        self._after_cut()
        return end

    def restart_at(self, offset: int) -> None:
        """Drop everything; the log begins and ends at `offset`."""
        self._guard(lambda: self.log.truncate_fully_and_start_at(offset))
        self._after_cut()

    def _after_cut(self) -> None:
        end = self.log.log_end_offset
        self.cleaned_up_to = min(self.cleaned_up_to, end)
        self._undecided.clear()
        self._high_watermark = min(self._high_watermark, end)
        lost = [promise for offset, promise in self._waiters if offset > end]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] <= end]
        for promise in lost:
            promise.fail(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self} was cut to {end}"))
        self._services.flush.dirty(self.log, self._advance)
        self._advance(force=True)

    def withdraw(self) -> None:
        """The topic is gone: nothing more is written or read; fail and wake everybody. `let_go` comes after it."""
        self.deleted = True
        waiters, self._waiters = self._waiters, []
        for _offset, promise in waiters:
            promise.fail(self._gone())
        subscribers, self._subscribers = self._subscribers, {}
        for callback in subscribers.values():
            callback()

    def let_go(self) -> Promise[None]:
        """Settled when no flush touches the files any more, so that the directory may be renamed."""
        closed: Promise[None] = Promise()
        log = self._log
        if log is None:
            closed.resolve(None)
            return closed

        def last_flush_done() -> None:
            self._log = None
            log.close(clean=False)
            closed.resolve(None)

        self._services.flush.dirty(log, last_flush_done)
        return closed

    def apply_config(self, config: LogConfig) -> None:
        """The topic's configuration changed. The log must be open."""
        self.log.apply_config(config)
        if self.log.flushed_offset < self.log.log_end_offset:
            self._services.flush.dirty(self.log, self._advance)
        self._advance()

    def set_leader_epoch(self, leader_epoch: int) -> None:
        """Called once the PartitionRecord that says so is on disk. Parked fetches look again: they may be fenced."""
        self.leader_epoch = max(self.leader_epoch, leader_epoch)
        self._advance(force=True)

    # -- errors --------------------------------------------------------------------------------------------------

    def _guard(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except StorageError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: StorageError) -> ApiError:
        if isinstance(error, DiskFailure):
            self._services.fatal(error)
            raise error
        refusal = api_error(error)
        if refusal.code == ErrorCode.READ_ONLY_TOPIC and self.read_only_reason is not None:
            return ApiError(refusal.code, self.read_only_reason)
        return refusal

    def _gone(self) -> ApiError:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self} was deleted")
