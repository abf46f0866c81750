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
from dataclasses import dataclass
from typing import Any

from kmirror.broker.partition import Partition
from kmirror.clock import Clock
from kmirror.effects import Effects, LogId, Promise, StateRecord, Timer
from kmirror.errors import ApiError, CorruptData
from kmirror.protocol.records import Record, build_batch, check_crc, read_records

Replayer = Callable[[StateRecord], None]


@dataclass(frozen=True, slots=True)
class RecordCodec:
    """How the records of one internal topic become bytes and come back. A None value is a tombstone."""

    encode: Callable[[Any, Any], tuple[bytes | None, bytes | None]]
    decode: Callable[[bytes | None, bytes | None], tuple[Any, Any]]


class Runtime:
    """`partition_of` finds the log that a LogId names: an internal one, or a data partition named in `durable`."""

    def __init__(self, clock: Clock, partition_of: Callable[[LogId], Partition]) -> None:
        self._clock = clock
        self._partition_of = partition_of
        self._topics: dict[str, tuple[RecordCodec, Replayer]] = {}
        self._executors: dict[type, Callable[[Any], None]] = {}
        self._timer_handlers: dict[type, Callable[[Any], None]] = {}
        self._timers: dict[str, tuple[int, object]] = {}

    def register(self, topic: str, codec: RecordCodec, replay: Replayer) -> None:
        """Who owns the state kept in `topic`."""
        self._topics[topic] = (codec, replay)

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
                self._append(log_id, records)
            except ApiError as error:
                for promise, _value in effects.replies:
                    if not promise.done:
                        promise.fail(ApiError(error.code, error.message))
                return False
        self._start_timers(effects.timers)
        self._release_after(effects.durable or list(by_log), effects)
        return True

    def _append(self, log_id: LogId, records: list[StateRecord]) -> None:
        codec, replay = self._topics[log_id.topic]
        encoded = [Record(*codec.encode(record.key, record.value)) for record in records]
        self._partition_of(log_id).append_coordinator(build_batch(encoded, timestamp_ms=self._clock.time_ms()))
        for record in records:
            replay(record)

    def _release_after(self, logs: list[LogId], effects: Effects) -> None:
        """Flush `logs` one after the other (data before mirror state before metadata), then let the world know."""
        if not logs:
            self._release(effects)
            return

        def flushed(_promise: Promise[None]) -> None:
            self._release_after(logs[1:], effects)

        try:
            first = self._partition_of(logs[0]).when_flushed()
        except ApiError:  # deleted meanwhile: there is nothing left to be flushed
            first = Promise.of(None)
        first.then(flushed)

    def _release(self, effects: Effects) -> None:
        for promise, value in effects.replies:
            if not promise.done:
                promise.resolve(value)
        for action in effects.actions:
            self._executors[type(action)](action)

    # -- timers --------------------------------------------------------------------------------------------------

    def _start_timers(self, timers: list[Timer]) -> None:
        now_ms = self._clock.monotonic_ms()
        for timer in timers:
            self._timers[timer.key] = (now_ms + timer.delay_ms, timer.event)

    def cancel_timer(self, key: str) -> None:
        self._timers.pop(key, None)

    def next_timer_ms(self) -> int | None:
        """Milliseconds until the next timer is due, 0 when one is overdue, None without timers."""
        if not self._timers:
            return None
        return max(0, min(due for due, _event in self._timers.values()) - self._clock.monotonic_ms())

    def fire_timers(self) -> None:
        """Hand out the events of all timers that are due, the earliest first."""
        now_ms = self._clock.monotonic_ms()
        due = sorted((at, key) for key, (at, _event) in self._timers.items() if at <= now_ms)
        for at, key in due:
            entry = self._timers.get(key)
            if entry is not None and entry[0] == at:
                del self._timers[key]
                self._timer_handlers[type(entry[1])](entry[1])

    # -- start ---------------------------------------------------------------------------------------------------

    def replay_log(self, log_id: LogId) -> int:
        """Replay everything that the log holds, at start. Returns the number of records. Raises CorruptData."""
        codec, replay = self._topics[log_id.topic]
        partition = self._partition_of(log_id)
        if not partition.is_on_disk:
            return 0
        log = partition.log
        count = 0
        for header, data in log.batches(log.log_start_offset, log.log_end_offset):
            try:  # recovery does not look below its point, and a flipped bit here is a lie
                check_crc(data, 0, header)
            except CorruptData as error:
                raise CorruptData(f"{log.directory} is damaged: {error}. Restore it from a copy") from error
            if header.is_control:
                continue
            for record in read_records(data):
                key, value = codec.decode(record.key, record.value)
                replay(StateRecord(log_id, key, value))
                count += 1
        return count
