"""Effects become facts here: append, replay, flush in order, then replies and actions. L3.

The only place where internal state changes. A machine (a mirror, a coordinator, the metadata itself) says what should
be recorded; `commit` appends it, one batch per log, replays each record into the image that owns the log, and lets
nobody know before the logs named in `durable` are on disk, one after the other. At start `replay_log` feeds the same
replayers from the same bytes.

What must hold: records of one log in one commit are one batch, so they survive together or not at all. When a write is
refused for lack of space, nothing of that batch is kept, the replies fail with KAFKA_STORAGE_ERROR and `commit` answers
False; what earlier logs of the same commit took stays and is replayed, since it is in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kmirror.broker.partition import Partition
from kmirror.broker.timers import TimerTable
from kmirror.clock import Clock
from kmirror.effects import Effects, LogId, ProducerBatch, Promise, StateRecord, Timer
from kmirror.errors import ApiError, CorruptData
from kmirror.limits import TIMERS_PER_TURN
from kmirror.protocol.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    Record,
    build_batch,
    check_crc,
    control_type,
    end_txn_marker,
    read_records,
)

Replayer = Callable[[StateRecord], None]
Ended = Callable[[LogId, int, bool], None]
"""(log, producer id, committed): a transaction that wrote into the log is decided."""
Frees = Callable[[StateRecord], bool]
"""Whether the record ends something, so that it may be written on the last of the disk (`storage.space`)."""


@dataclass(frozen=True, slots=True)
class RecordCodec:
    """How the records of one internal topic become bytes and come back. A None value is a tombstone."""

    encode: Callable[[Any, Any], tuple[bytes | None, bytes | None]]
    decode: Callable[[bytes | None, bytes | None], tuple[Any, Any]]


class _Owner(NamedTuple):
    codec: RecordCodec
    replay: Replayer
    ended: Ended | None
    frees: Frees | None


class Runtime:
    """`partition_of` finds the log that a LogId names: an internal one, or a data partition named in `durable`."""

    def __init__(self, clock: Clock, partition_of: Callable[[LogId], Partition]) -> None:
        self._clock = clock
        self._partition_of = partition_of
        self._topics: dict[str, _Owner] = {}
        self._executors: dict[type, Callable[[Any], None]] = {}
        self._timer_handlers: dict[type, Callable[[Any], None]] = {}
        self.timers = TimerTable()

    def register(
        self,
        topic: str,
        codec: RecordCodec,
        replay: Replayer,
        ended: Ended | None = None,
        frees: Frees | None = None,
    ) -> None:
        """Who owns the state kept in `topic`. `ended` is told of every transaction marker in its logs, in log order
        with the records that are replayed. Without `frees` every record may use the reserve of the disk: of clients'
        records, which come without end, only those may that end something."""
        self._topics[topic] = _Owner(codec, replay, ended, frees)

    def on_action(self, kind: type, execute: Callable[[Any], None]) -> None:
        """Run `execute(action)` for each action of exactly this type, once its commit is durable."""
        self._executors[kind] = execute

    def on_timer(self, event_kind: type, handle: Callable[[Any], None]) -> None:
        """Run `handle(event)` when a Timer with an event of this type is due."""
        self._timer_handlers[event_kind] = handle

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, effects: Effects) -> bool:
        """See the module head. False when a log refused its records. Raises DiskFailure (after `fatal`)."""
        by_log: dict[LogId, list[StateRecord]] = {}
        for record in effects.records:
            by_log.setdefault(record.log, []).append(record)
        for log_id, records in by_log.items():
            try:
                self._append(log_id, records, effects.producer)
            except ApiError as error:
                for promise, _value in effects.replies:
                    if not promise.done:
                        promise.fail(ApiError(error.code, error.message))
                return False
        for timer in effects.timers:
            self.set_timer(timer)
        self._release_after(effects.durable or list(by_log), effects)
        return True

    def _append(self, log_id: LogId, records: list[StateRecord], producer: ProducerBatch | None) -> None:
        owner = self._topics[log_id.topic]
        encoded = [Record(*owner.codec.encode(record.key, record.value)) for record in records]
        now_ms = self._clock.time_ms()
        if producer is None:
            batch = build_batch(encoded, timestamp_ms=now_ms)
        else:
            batch = build_batch(
                encoded,
                timestamp_ms=now_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transactional=True,
            )
            records = [replace(record, producer_id=producer.producer_id) for record in records]
        frees = owner.frees is None or all(owner.frees(record) for record in records)
        self._partition_of(log_id).append_coordinator(batch, may_use_reserve=frees)
        for record in records:
            owner.replay(record)

    def append_marker(
        self,
        log_id: LogId,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int = 0,
    ) -> Promise[None]:
        """End a producer's transaction in one log, of data or of an internal topic (WriteTxnMarkers).

        Settled when it is on disk. Raises ApiError before anything is written: 3 for no such partition, 147 where the
        log is read-only, 47 for an epoch below the producer's, 52 for an older coordinator's.
        """
        partition = self._partition_of(log_id)
        marker = end_txn_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self._clock.time_ms(),
        )
        partition.append_coordinator(marker, transaction_version=transaction_version)
        owner = self._topics.get(log_id.topic)
        if owner is not None and owner.ended is not None:
            owner.ended(log_id, producer_id, commit)
        return partition.when_flushed()

    def _release_after(self, logs: list[LogId], effects: Effects) -> None:
        """Flush `logs` one after the other (data before mirror state before metadata), then let the world know."""
        left = iter(logs)

        def go_on(_promise: Promise[None] | None = None) -> None:
            for log_id in left:
                flushed = self._when_flushed(log_id)
                if not flushed.done:
                    flushed.then(go_on)
                    return
            self._release(effects)

        go_on()

    def _when_flushed(self, log_id: LogId) -> Promise[None]:
        try:
            return self._partition_of(log_id).when_flushed()
        except ApiError:  # deleted meanwhile: there is nothing left to be flushed
            return Promise.of(None)

    def _release(self, effects: Effects) -> None:
        for promise, value in effects.replies:
            if not promise.done:
                promise.resolve(value)
        for action in effects.actions:
            self._executors[type(action)](action)

    # -- timers --------------------------------------------------------------------------------------------------

    def set_timer(self, timer: Timer) -> None:
        """Outside a commit: timers of soft state."""
        self.timers.set(timer.key, self._clock.monotonic_ms() + timer.delay_ms, timer.event)

    def cancel_timer(self, key: str) -> None:
        self.timers.cancel(key)

    def next_timer_ms(self) -> int | None:
        """Milliseconds until the next timer is due, 0 when one is overdue, None without timers."""
        at_ms = self.timers.next_ms()
        return None if at_ms is None else max(0, at_ms - self._clock.monotonic_ms())

    def fire_timers(self) -> None:
        """Hand out the events of the timers that are due, the earliest first; of very many the rest waits.

        Those that come due meanwhile wait too: whoever goes on in steps, by a timer, lets others have a turn.
        """
        now_ms = self._clock.monotonic_ms()
        for _ in range(TIMERS_PER_TURN):
            event = self.timers.take_due(now_ms)
            if event is None:
                return
            self._timer_handlers[type(event)](event)

    # -- start ---------------------------------------------------------------------------------------------------

    def replay_log(self, log_id: LogId, first_offset: int = 0) -> int:
        """Replay what the log holds, at start, or what lies behind a snapshot of it: from the batch at `first_offset`
        on. Returns the number of records. Raises CorruptData."""
        owner = self._topics[log_id.topic]
        partition = self._partition_of(log_id)
        if not partition.is_on_disk:
            return 0
        try:
            log = partition.log
        except ApiError as error:  # nobody can be served without this state
            raise CorruptData(error.message) from error
        count = 0
        for header, data in log.batches(max(log.log_start_offset, first_offset), log.log_end_offset):
            try:  # recovery does not look below its point, and a flipped bit here is a lie
                check_crc(data, 0, header)
            except CorruptData as error:
                raise CorruptData(f"{log.directory} is damaged: {error}. Restore it from a copy") from error
            if header.is_control:
                kind = control_type(data, 0) if owner.ended is not None and header.record_count else None
                if owner.ended is not None and kind in (CONTROL_COMMIT, CONTROL_ABORT):
                    owner.ended(log_id, header.producer_id, kind == CONTROL_COMMIT)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in read_records(data):
                key, value = owner.codec.decode(record.key, record.value)
                owner.replay(StateRecord(log_id, key, value, producer_id))
                count += 1
        return count
