"""Transactions: the binding between the pure machine, `__transaction_state`, markers and waiting clients. L3.

What may live here: which log an id belongs to, producer ids for the machine, the timers, and the order of work: the
decision on disk, then the markers, then the record of the end. Who may write as part of a transaction is asked in
`transaction_admission`.

What must hold: markers are written for decisions that are on disk only, and at boot not before every writable partition
has its new leader epoch, since a marker in the old one could hide what a power cut took from it. Kafka looks for
transactions that are too old every transaction.abort.timed.out.transaction.cleanup.interval.ms, and so does kmirror.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmirror.broker.chores import Steps
from kmirror.broker.metadata import OFFSETS_TOPIC, TRANSACTION_VERSION_FEATURE, TRANSACTIONS_TOPIC, TopicState
from kmirror.broker.partition import Partition
from kmirror.broker.runtime import RecordCodec
from kmirror.broker.transaction_admission import Admission
from kmirror.broker.transaction_markers import MarkerRound
from kmirror.coordinator import transaction_entry as entries
from kmirror.coordinator.transactions import (
    Answer,
    Limits,
    Producer,
    ProducerIdNeeded,
    State,
    Transactions,
    WriteMarkers,
)
from kmirror.effects import Effects, LogId, Place, Promise, StateRecord, Timer
from kmirror.errors import ApiError
from kmirror.limits import ROWS_PER_TURN, TRANSACTION_MARKER_RETRY_MS
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import transaction_state as records
from kmirror.protocol.java_hash import partition_for

if TYPE_CHECKING:
    from kmirror.broker.world import World

log = logging.getLogger("kmirror.broker")

ABORT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
EXPIRY_INTERVAL = "transaction.remove.expired.transaction.cleanup.interval.ms"


Decide = Callable[[int | None, Promise[Answer]], Effects]
"""A method of the machine with all but (a producer id nobody has used, the promise of its answer)."""


@dataclass(frozen=True, slots=True)
class _Resume:
    """Carry out the decisions found at boot."""


@dataclass(frozen=True, slots=True)
class _AbortOld:
    """Look for transactions that are open for too long."""


@dataclass(frozen=True, slots=True)
class _ExpireIds:
    """Look for transactional ids that nobody uses."""


@dataclass(frozen=True, slots=True)
class _Abort:
    """Try again to abort a transaction."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class _Again:
    """Go on with a transaction whose markers, or whose end, could not be written."""

    transactional_id: str


class TransactionCoordinator:
    """See the module head. Every method answers with a promise that is settled when what it says is on disk."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.machine = Transactions(self._log_of, self._limits)
        self.admission = Admission(world, self)
        self._rounds: dict[str, MarkerRound] = {}
        self._ends: dict[str, int] = {}
        """End of the log behind an id's last record, since the start."""
        self._waiting: dict[str, list[Promise[None]]] = {}
        """For the end of an id's transaction that is being decided."""
        self._partition_count = 0
        self._at_home: set[str] | None = None
        """While the log is replayed at start: ids that have a record in the partition where they belong now."""
        runtime = world.runtime
        runtime.register(TRANSACTIONS_TOPIC, RecordCodec(self._encode, decode), self._replay, frees=_frees)
        runtime.on_action(WriteMarkers, lambda action: self._write_markers(action.transactional_id))
        runtime.on_timer(_Again, lambda event: self._write_markers(event.transactional_id))
        runtime.on_timer(_Abort, lambda event: self._abort(event.transactional_id))
        runtime.on_timer(_Resume, lambda _event: world.chores.run(self._resume()))
        runtime.on_timer(_AbortOld, lambda _event: self._abort_old())
        runtime.on_timer(_ExpireIds, lambda _event: self._expire_ids())

    def recovered(self) -> None:
        """Replay `__transaction_state`, then go on with what was under way; before anybody is served."""
        topic = self._world.image.topics_by_name.get(TRANSACTIONS_TOPIC)
        self._at_home = set()
        for partition in topic.partitions if topic is not None else ():
            self._world.runtime.replay_log(LogId(TRANSACTIONS_TOPIC, partition.index))
        self._at_home = None
        if self.machine.deciding():
            self._set_timer(_Resume(), 0)
        self._set_timer(_AbortOld(), self._world.config.integer(ABORT_INTERVAL))
        self._set_timer(_ExpireIds(), self._world.config.integer(EXPIRY_INTERVAL))

    def topic_deleted(self, topic: TopicState) -> None:
        """The topic's removal is on disk: a transaction that waits to write a marker there need not wait any more.

        Without `__transaction_state` there are no transactional ids: what was open stays so in its partitions, as in
        Kafka, until an operator ends it (WriteTxnMarkers).
        """
        if topic.name == TRANSACTIONS_TOPIC:
            self._unload()
        for transactional_id in self.machine.open_in(topic.name):
            if transactional_id in self._rounds:
                self._set_timer(_Again(transactional_id), 0)

    # -- where things are ----------------------------------------------------------------------------------------

    def _unload(self) -> None:
        self.machine.unload()
        self._partition_count = 0
        self._rounds.clear()
        self._ends.clear()
        waiting, self._waiting = self._waiting, {}
        for promises in waiting.values():
            for promise in promises:
                promise.resolve(None)

    def _log_of(self, transactional_id: str) -> LogId:
        """By the number of partitions when it was first used: a topic that grows must not move ids before the next
        start (as Groups do). Without the topic any will do, since it takes no record."""
        if self._partition_count == 0:
            topic = self._world.image.topics_by_name.get(TRANSACTIONS_TOPIC)
            self._partition_count = 0 if topic is None else len(topic.partitions)
        return LogId(TRANSACTIONS_TOPIC, partition_for(transactional_id, self._partition_count or 1))

    def _limits(self) -> Limits:
        config = self._world.config
        return Limits(
            max_timeout_ms=config.integer("transaction.max.timeout.ms"),
            expiration_ms=config.integer("transactional.id.expiration.ms"),
            server_version=self.server_version,
        )

    @property
    def server_version(self) -> int:
        """The finalized level of transaction.version."""
        return self._world.image.features.get(TRANSACTION_VERSION_FEATURE, 0)

    def _encode(self, key: str, entry: entries.Transaction | None) -> tuple[bytes, bytes | None]:
        version = 1 if self.server_version else 0
        value = None if entry is None else records.encode_value(entries.to_record(entry), version)
        return records.encode_key(key), value

    def _replay(self, record: StateRecord) -> None:
        """Run time and boot. Where the topic has grown since, an id may have older records in another partition."""
        if not isinstance(record.key, str):
            return
        if self._at_home is not None:
            if record.log == self._log_of(record.key):
                self._at_home.add(record.key)
            elif record.key in self._at_home:
                return
        self.machine.replay(record)

    def _set_timer(self, event: object, delay_ms: int) -> None:
        self._world.runtime.set_timer(Timer(f"transactions: {event}", delay_ms, event))

    # -- requests ------------------------------------------------------------------------------------------------

    def init_producer_id(self, transactional_id: str, *, timeout_ms: int, expected: Producer | None) -> Promise[Answer]:
        """`Transactions.init_producer_id`; makes `__transaction_state` when it is the first."""
        answered: Promise[Answer] = Promise()

        def decide(fresh: int | None, reply: Promise[Answer]) -> Effects:
            return self.machine.init_producer_id(
                transactional_id,
                timeout_ms=timeout_ms,
                expected=expected,
                fresh=fresh,
                now_ms=self._now_ms(),
                reply=reply,
            )

        self._with_topic(TRANSACTIONS_TOPIC, answered, lambda: self._decide(transactional_id, decide, answered))
        return answered

    def _with_topic(self, name: str, answered: Promise[Answer], go_on: Callable[[], None]) -> None:
        """When the internal topic is there, made for this if need be; else the answer is COORDINATOR_NOT_AVAILABLE."""

        def made(topic: Promise[TopicState]) -> None:
            try:
                topic.result()
            except ApiError as error:
                log.warning("%s cannot be made: %s", name, error.message)
                answered.resolve(Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            else:
                go_on()

        self._world.ensure_internal_topic(name).then(made)

    def add(
        self, transactional_id: str, producer: Producer, places: frozenset[Place], *, client_version: int
    ) -> Promise[Answer]:
        """`Transactions.add`; that the partitions exist and may be written to is checked by the caller."""
        return self._decided(
            transactional_id,
            lambda _fresh, reply: self.machine.add(
                transactional_id,
                producer,
                places,
                client_version=client_version,
                now_ms=self._now_ms(),
                reply=reply,
            ),
        )

    def add_offsets(self, transactional_id: str, producer: Producer, group_id: str) -> Promise[Answer]:
        """The group's partition of `__consumer_offsets` as part of the transaction (AddOffsetsToTxn)."""
        answered: Promise[Answer] = Promise()

        def add() -> None:
            group_log = self._world.groups.log_of(group_id)
            place = (group_log.topic, group_log.partition)
            self.add(transactional_id, producer, frozenset({place}), client_version=0).then(answered.follow)

        self._with_topic(OFFSETS_TOPIC, answered, add)
        return answered

    def end(self, transactional_id: str, producer: Producer, *, commit: bool, client_version: int) -> Promise[Answer]:
        """`Transactions.end`. Settled with the decision on disk; the markers follow."""
        return self._decided(
            transactional_id,
            lambda fresh, reply: self.machine.end(
                transactional_id,
                producer,
                commit=commit,
                client_version=client_version,
                fresh=fresh,
                now_ms=self._now_ms(),
                reply=reply,
            ),
        )

    def end_for_alignment(self, topic: str, partition: int | None = None) -> Promise[None]:
        """End every open transaction that includes the topic (or the partition): a decided one is carried out, others
        are aborted. Settled when their markers are on disk. The caller sees to it that no new ones include it."""
        done: Promise[None] = Promise()

        def step(_settled: object = None) -> None:
            names = self.machine.open_in(topic, partition)
            if not names:
                done.resolve(None)
                return
            for name in names:
                self._abort(name)
            self.when_decided(names[0]).then(step)

        step()
        return done

    def is_durable(self, transactional_id: str) -> bool:
        """Whether what is known of the id is on disk (nothing of it is, when the topic has just been deleted)."""
        end = self._ends.get(transactional_id, 0)
        return end == 0 or self._is_gone or self._partition_of(transactional_id).high_watermark >= end

    def when_durable(self, transactional_id: str) -> Promise[None]:
        if self.is_durable(transactional_id):
            return Promise.of(None)
        return self._partition_of(transactional_id).when_committed(self._ends[transactional_id])

    def when_decided(self, transactional_id: str) -> Promise[None]:
        """Settled when the open transaction of the id has ended; at once when none is open."""
        entry = self.machine.get(transactional_id)
        if entry is None or entry.state.idle:
            return Promise.of(None)
        promise: Promise[None] = Promise()
        self._waiting.setdefault(transactional_id, []).append(promise)
        return promise

    @property
    def _is_gone(self) -> bool:
        """`__transaction_state` is deleted, or about to be: nothing can be recorded."""
        return TRANSACTIONS_TOPIC not in self._world.image.topics_by_name

    def _partition_of(self, transactional_id: str) -> Partition:
        return self._world.partition(TRANSACTIONS_TOPIC, self._log_of(transactional_id).partition)

    # -- deciding ------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._world.clock.time_ms()

    def _decided(self, transactional_id: str, decide: Decide) -> Promise[Answer]:
        answered: Promise[Answer] = Promise()
        self._decide(transactional_id, decide, answered)
        return answered

    def _decide(
        self,
        transactional_id: str,
        decide: Decide,
        answered: Promise[Answer],
        fresh: int | None = None,
    ) -> None:
        """Let the machine decide and make it so; where it needs a producer id, take one and ask again."""
        reply: Promise[Answer] = Promise()
        try:
            effects = decide(fresh, reply)
        except ProducerIdNeeded:
            self._world.producer_ids.next().then(lambda taken: self._taken(transactional_id, decide, answered, taken))
            return
        reply.then(lambda promise: answered.resolve(_answer_of(promise)))
        self._commit(transactional_id, effects)

    def _taken(
        self,
        transactional_id: str,
        decide: Decide,
        answered: Promise[Answer],
        taken: Promise[int],
    ) -> None:
        try:
            producer_id = taken.result()
        except ApiError as error:
            log.warning("no producer id for %s: %s", transactional_id, error.message)
            answered.resolve(Answer(ErrorCode(error.code)))
            return
        self._decide(transactional_id, decide, answered, producer_id)

    def _commit(self, transactional_id: str, effects: Effects) -> bool:
        done = self._world.commit(effects)
        if done and effects.records:
            self._ends[transactional_id] = self._partition_of(transactional_id).log_end_offset
        return done

    # -- carrying out --------------------------------------------------------------------------------------------

    def _resume(self) -> Steps:
        for transactional_id in self.machine.deciding():
            log.info("transaction of %s: going on with what was decided before the start", transactional_id)
            self._write_markers(transactional_id)
            yield

    def _write_markers(self, transactional_id: str) -> None:
        entry = self.machine.get(transactional_id)
        if entry is None or not entry.state.deciding or self._is_gone:
            return
        current = self._rounds.get(transactional_id)
        if current is None:
            current = self._rounds[transactional_id] = MarkerRound(
                self._world.runtime,
                transactional_id,
                entry,
                coordinator_epoch=self._partition_of(transactional_id).leader_epoch,
                done=self._complete,
            )
        elif current.finished:
            self._complete(current)
            return
        wait_ms = current.write()
        if wait_ms is not None:
            self._set_timer(_Again(transactional_id), wait_ms)

    def _complete(self, finished: MarkerRound) -> None:
        transactional_id = finished.transactional_id
        if self._rounds.get(transactional_id) is not finished:
            return  # of a log that was deleted meanwhile
        effects = self.machine.complete(transactional_id, now_ms=self._now_ms(), reply=Promise())
        if not self._commit(transactional_id, effects):
            self._set_timer(_Again(transactional_id), TRANSACTION_MARKER_RETRY_MS)
            return
        del self._rounds[transactional_id]
        for promise in self._waiting.pop(transactional_id, ()):
            promise.resolve(None)

    # -- time ----------------------------------------------------------------------------------------------------

    def _abort_old(self) -> None:
        self._set_timer(_AbortOld(), self._world.config.integer(ABORT_INTERVAL))
        self._world.chores.run(self._abort_timed_out())

    def _abort_timed_out(self) -> Steps:
        """One a step: a fleet of producers that died together has thousands."""
        for transactional_id in self.machine.timed_out(self._now_ms()):
            entry = self.machine.get(transactional_id)
            if entry is not None and entry.timed_out(self._now_ms()):  # by now it may be another transaction
                log.info("transaction of %s: open for longer than its timeout, aborting it", transactional_id)
                self._abort(transactional_id)
            yield

    def _abort(self, transactional_id: str) -> None:
        def decide(fresh: int | None, reply: Promise[Answer]) -> Effects:
            return self.machine.abort(transactional_id, fresh=fresh, now_ms=self._now_ms(), reply=reply)

        def answered(promise: Promise[Answer]) -> None:
            code = promise.result().code
            entry = self.machine.get(transactional_id)
            if code and entry is not None and entry.state is State.ONGOING:
                log.warning("transaction of %s: cannot be aborted now: %s", transactional_id, code.name)
                self._set_timer(_Abort(transactional_id), TRANSACTION_MARKER_RETRY_MS)

        self._decided(transactional_id, decide).then(answered)

    def _expire_ids(self) -> None:
        self._set_timer(_ExpireIds(), self._world.config.integer(EXPIRY_INTERVAL))
        self._world.chores.run(self._forget_unused())

    def _forget_unused(self) -> Steps:
        """Some a step, each a batch per log: all of them could pass max.message.bytes, and would never go."""
        left = [str(record.key) for record in self.machine.expire(self._now_ms()).records]
        count = 0
        while left:
            some, left = left[:ROWS_PER_TURN], left[ROWS_PER_TURN:]
            effects = self.machine.expire(self._now_ms(), some)
            if effects.records and self._world.commit(effects):
                for record in effects.records:
                    self._ends.pop(str(record.key), None)
                count += len(effects.records)
            yield
        if count:
            log.info("%d transactional ids were not used for transactional.id.expiration.ms and are forgotten", count)


def _frees(record: StateRecord) -> bool:
    """Ends of transactions, so that what is open on a full disk can be ended."""
    entry = record.value
    return not (isinstance(entry, entries.Transaction) and entry.state in (State.EMPTY, State.ONGOING))


def decode(key: bytes | None, value: bytes | None) -> tuple[str | None, entries.Transaction | None]:
    """A record of `__transaction_state`: (transactional id, its entry, None for a tombstone). Raises DecodeError."""
    typed = records.decode_key(key or b"")
    if isinstance(typed, records.UnknownKey):
        return None, None
    decoded = records.decode_value(typed, value)
    return typed.transactional_id, None if decoded is None else entries.from_record(decoded)


def _answer_of(promise: Promise[Answer]) -> Answer:
    """What a log that takes no record means to a client: find the coordinator again (appendTransactionToLog)."""
    try:
        return promise.result()
    except ApiError as error:
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            return Answer(ErrorCode.NOT_COORDINATOR)
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Answer(ErrorCode.UNKNOWN_SERVER_ERROR)
