"""The transaction coordinator: what each request does to a transactional id, as Kafka 4.4 decides it. Pure.

Kafka: TransactionCoordinator, TransactionStateManager; KIP-98, KIP-360, KIP-447, KIP-664, KIP-890. A method takes the
request, the time and a promise, and returns effects: the entry to record, the answer (an error is an answer too, since
what it tells must be on disk), and `WriteMarkers` once a decision is durable. Two protocols live side by side: below
version 5 of EndTxn an epoch lasts until InitProducerId (TV1), from 5 on each end raises it (TV2) and the answer carries
the new one, which is also how a repeated EndTxn is told from the next.

What must hold: entries change in `replay` and nowhere else; between the record of a decision and that of its end
nothing but the end can happen to the id, so no transaction is both committed and aborted, and a decision found at boot
is carried out. Kafka answers CONCURRENT_TRANSACTIONS also while a record is on its way to the disk; here the next
request is decided on what was appended, and its answer waits for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from kmirror.coordinator import transaction_entry as entries
from kmirror.coordinator.transaction_entry import (
    EPOCH_BUMPS,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    STATES_BY_NAME,
    State,
    Transaction,
    exhausted,
)
from kmirror.effects import Effects, LogId, Place, Promise, StateRecord
from kmirror.protocol.errors import ErrorCode

_NONE: Final = ErrorCode.NONE


class Answer(NamedTuple):
    """What the client is told. The identity is -1, -1 unless the answer carries one."""

    code: ErrorCode = _NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Producer(NamedTuple):
    """Whom a request says it comes from."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """The decision on this id is on disk: end its transaction in every partition, then call `complete`."""

    transactional_id: str


class ProducerIdNeeded(Exception):
    """The request can only be decided with a producer id that nobody has used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """transaction.max.timeout.ms, transactional.id.expiration.ms, and the finalized transaction.version."""

    max_timeout_ms: int
    expiration_ms: int
    server_version: int


class Transactions:
    """See the module head. `log_of` names the log that an id's records go to."""

    def __init__(self, log_of: Callable[[str], LogId], limits: Callable[[], Limits]) -> None:
        self._log_of = log_of
        self._limits = limits
        self._entries: dict[str, Transaction] = {}
        self._open: set[str] = set()
        """Ids in ONGOING or deciding: what time and topics have to be compared with."""

    # -- state ---------------------------------------------------------------------------------------------------

    def replay(self, record: StateRecord) -> None:
        """One record of the log, in log order: (transactional id, entry or None)."""
        transactional_id, entry = record.key, record.value
        assert isinstance(transactional_id, str)
        self._open.discard(transactional_id)
        if entry is None:
            self._entries.pop(transactional_id, None)
            return
        assert isinstance(entry, Transaction)
        self._entries[transactional_id] = entry
        if not entry.state.idle:
            self._open.add(transactional_id)

    def unload(self) -> None:
        """The log is gone, and with it every id: producers have to begin again."""
        self._entries.clear()
        self._open.clear()

    def get(self, transactional_id: str) -> Transaction | None:
        return self._entries.get(transactional_id)

    def items(self) -> Iterator[tuple[str, Transaction]]:
        yield from self._entries.items()

    def deciding(self) -> list[str]:
        """Ids whose decision is recorded and not carried out."""
        return sorted(name for name in self._open if self._entries[name].state.deciding)

    def open_in(self, topic: str, partition: int | None = None) -> list[str]:
        """Ids whose open transaction, decided or not, includes the topic (or one partition of it)."""
        return sorted(
            name
            for name in self._open
            if any(
                place[0] == topic and (partition is None or place[1] == partition)
                for place in self._entries[name].places
            )
        )

    # -- InitProducerId ------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: Producer | None,
        fresh: int | None,
        now_ms: int,
        reply: Promise[Answer],
    ) -> Effects:
        """An identity for a producer. `expected`: the one it has and wants raised (KIP-360).

        `fresh` is a producer id nobody has used, asked for by raising ProducerIdNeeded. Answers 42, 50, 51 (come again:
        an open transaction is being ended), 90. Two-phase commit (KIP-939, version 6) is not served.
        """
        if not transactional_id:
            return self._say(transactional_id, reply, Answer(ErrorCode.INVALID_REQUEST))
        if not 0 < timeout_ms <= self._limits().max_timeout_ms:
            return self._say(transactional_id, reply, Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        entry = self._entries.get(transactional_id)
        if entry is None:
            if fresh is None:
                raise ProducerIdNeeded
            entry = entries.fresh(fresh, timeout_ms=timeout_ms, now_ms=now_ms)
        if entry.state.deciding:
            return self._say(transactional_id, reply, Answer(ErrorCode.CONCURRENT_TRANSACTIONS))
        if expected is not None and not _may_be(expected, entry):
            return self._say(transactional_id, reply, Answer(ErrorCode.PRODUCER_FENCED))
        if entry.state is State.ONGOING:
            return self._abort(transactional_id, entry, fresh, now_ms, reply, Answer(ErrorCode.CONCURRENT_TRANSACTIONS))
        if entry.epoch_exhausted and (expected is None or expected.epoch == entry.producer_epoch):
            if fresh is None:
                raise ProducerIdNeeded
            last = NO_EPOCH if expected is None else entry.producer_epoch
            identity, epoch = fresh, 0
        else:
            chosen = _raised(entry, expected)
            if chosen is None:
                return self._say(transactional_id, reply, Answer(ErrorCode.PRODUCER_FENCED))
            identity, (epoch, last) = entry.producer_id, chosen
        changed = entries.initialized(
            entry, producer_id=identity, epoch=epoch, last_epoch=last, timeout_ms=timeout_ms, now_ms=now_ms
        )
        return self._record(transactional_id, changed, reply, Answer(_NONE, identity, epoch))

    # -- AddPartitionsToTxn, AddOffsetsToTxn ---------------------------------------------------------------------

    def add(
        self,
        transactional_id: str,
        producer: Producer,
        places: Iterable[Place],
        *,
        client_version: int,
        now_ms: int,
        reply: Promise[Answer],
    ) -> Effects:
        """Partitions that the transaction will write to; begins one when none is open. Answers 42, 47, 49, 51, 90."""
        if not transactional_id:
            return self._say(transactional_id, reply, Answer(ErrorCode.INVALID_REQUEST))
        entry = self._entries.get(transactional_id)
        refusal = _refuse_member(entry, producer, wait_first=True)
        if entry is None or refusal is not None:
            return self._say(transactional_id, reply, Answer(refusal or _NONE))
        added = frozenset(places)
        if entry.state is State.ONGOING and added <= entry.places:
            return self._say(transactional_id, reply, Answer())
        changed = entries.with_places(entry, added, client_version=client_version, now_ms=now_ms)
        return self._record(transactional_id, changed, reply, Answer())

    def verify(self, transactional_id: str, producer: Producer, places: Iterable[Place]) -> dict[Place, ErrorCode]:
        """Whether the partitions belong to the producer's transaction (KIP-890): 0 or 120 each, or 42, 49, 51, 90."""
        if not transactional_id:
            return dict.fromkeys(places, ErrorCode.INVALID_REQUEST)
        entry = self._entries.get(transactional_id)
        refusal = _refuse_member(entry, producer, wait_first=False)
        if entry is None or refusal is not None:
            return dict.fromkeys(places, refusal or _NONE)
        return {place: _NONE if place in entry.places else ErrorCode.TRANSACTION_ABORTABLE for place in places}

    # -- EndTxn --------------------------------------------------------------------------------------------------

    def end(
        self,
        transactional_id: str,
        producer: Producer,
        *,
        commit: bool,
        client_version: int,
        fresh: int | None,
        now_ms: int,
        reply: Promise[Answer],
    ) -> Effects:
        """Commit or abort. Answers 42, 48, 49, 51, 90; with TV2 the identity to go on with."""
        if not transactional_id:
            return self._say(transactional_id, reply, Answer(ErrorCode.INVALID_REQUEST))
        entry = self._entries.get(transactional_id)
        if entry is None:
            return self._say(transactional_id, reply, Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        if client_version >= EPOCH_BUMPS:
            verdict = _judge_bumping(entry, producer, commit=commit)
        else:
            verdict = _judge_classic(entry, producer, commit=commit)
        if isinstance(verdict, ErrorCode):
            again = verdict is _NONE and client_version >= EPOCH_BUMPS
            answer = Answer(verdict, entry.producer_id, entry.producer_epoch) if again else Answer(verdict)
            return self._say(transactional_id, reply, answer)
        changed = _ending(entry, commit=commit, version=client_version, fence=False, fresh=fresh, now_ms=now_ms)
        answer = Answer()
        if client_version >= EPOCH_BUMPS:
            then = entries.ended(changed, now_ms=now_ms)
            answer = Answer(_NONE, then.producer_id, then.producer_epoch)
        return self._record(transactional_id, changed, reply, answer)

    def complete(self, transactional_id: str, *, now_ms: int, reply: Promise[Answer]) -> Effects:
        """Every marker is on disk."""
        entry = self._entries[transactional_id]
        return self._record(transactional_id, entries.ended(entry, now_ms=now_ms), reply, Answer())

    # -- time, and what the broker wants -------------------------------------------------------------------------

    def timed_out(self, now_ms: int) -> list[str]:
        """Ids whose transaction has been open for longer than its producer promised."""
        return sorted(name for name in self._open if self._entries[name].timed_out(now_ms))

    def abort(self, transactional_id: str, *, fresh: int | None, now_ms: int, reply: Promise[Answer]) -> Effects:
        """End an open transaction without its producer, which is fenced. Raises ProducerIdNeeded; no-op otherwise."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.state is not State.ONGOING:
            return self._say(transactional_id, reply, Answer())
        return self._abort(transactional_id, entry, fresh, now_ms, reply, Answer())

    def _abort(
        self,
        transactional_id: str,
        entry: Transaction,
        fresh: int | None,
        now_ms: int,
        reply: Promise[Answer],
        answer: Answer,
    ) -> Effects:
        version = self._limits().server_version
        changed = _ending(entry, commit=False, version=version, fence=True, fresh=fresh, now_ms=now_ms)
        return self._record(transactional_id, changed, reply, answer)

    def expire(self, now_ms: int, among: Iterable[str] | None = None) -> Effects:
        """Tombstones for ids (all, or some) that nobody has used for transactional.id.expiration.ms."""
        latest_ms = now_ms - self._limits().expiration_ms
        known = (
            self._entries if among is None else {name: self._entries[name] for name in among if name in self._entries}
        )
        return Effects(
            records=[
                StateRecord(self._log_of(name), name, None)
                for name, entry in known.items()
                if entry.state.idle and entry.updated_ms <= latest_ms
            ]
        )

    # -- listing -------------------------------------------------------------------------------------------------

    def listed(
        self,
        *,
        states: Iterable[str],
        producer_ids: Iterable[int],
        duration_ms: int,
        matches: Callable[[str], bool],
        now_ms: int,
    ) -> tuple[list[tuple[str, Transaction]], list[str]]:
        """Entries that pass all filters, and the names of states that do not exist (ListTransactions)."""
        names = list(dict.fromkeys(states))
        wanted = {STATES_BY_NAME[name] for name in names if name in STATES_BY_NAME}
        producers = set(producer_ids)
        found = [
            (name, entry)
            for name, entry in self._entries.items()
            if (not producers or entry.producer_id in producers)
            and (not names or entry.state in wanted)
            and (duration_ms < 0 or now_ms - entry.start_ms > duration_ms)
            and matches(name)
        ]
        return found, [name for name in names if name not in STATES_BY_NAME]

    # -- effects -------------------------------------------------------------------------------------------------

    def _say(self, transactional_id: str, reply: Promise[Answer], answer: Answer) -> Effects:
        """An answer without a change; what it rests on may still have to reach the disk."""
        known = transactional_id in self._entries
        return Effects(durable=[self._log_of(transactional_id)] if known else [], replies=[(reply, answer)])

    def _record(self, transactional_id: str, entry: Transaction, reply: Promise[Answer], answer: Answer) -> Effects:
        return Effects(
            records=[StateRecord(self._log_of(transactional_id), transactional_id, entry)],
            replies=[(reply, answer)],
            actions=[WriteMarkers(transactional_id)] if entry.state.deciding else [],
        )


def _may_be(expected: Producer, entry: Transaction) -> bool:
    """The producer id that a producer names is this one, or was before its epochs were used up and the answer that said
    so was lost; an entry without an epoch was made just now, for a producer that had been forgotten."""
    return (
        entry.producer_epoch == NO_EPOCH
        or expected.producer_id == entry.producer_id
        or (expected.producer_id == entry.previous_producer_id and exhausted(expected.epoch))
    )


def _raised(entry: Transaction, expected: Producer | None) -> tuple[int, int] | None:
    """(epoch, last epoch) for InitProducerId, None when the producer is fenced (prepareIncrementProducerEpoch)."""
    if expected is None:
        return entry.producer_epoch + 1, NO_EPOCH
    if entry.producer_epoch in (NO_EPOCH, expected.epoch):
        return entry.producer_epoch + 1, entry.producer_epoch
    if expected.epoch == entry.last_producer_epoch:  # the answer to a call that succeeded was lost
        return entry.producer_epoch, entry.last_producer_epoch
    return None


def _refuse_member(entry: Transaction | None, producer: Producer, *, wait_first: bool) -> ErrorCode | None:
    """Why this producer may not work in a transaction of the id. `wait_first`: an end that is under way comes before
    the identity, which it may be about to change (the client has been told the new one)."""
    if entry is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if wait_first and entry.state.deciding:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if entry.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if entry.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if entry.state.deciding else None


def _ending(
    entry: Transaction, *, commit: bool, version: int, fence: bool, fresh: int | None, now_ms: int
) -> Transaction:
    """`entries.ending` under a level of transaction.version. Raises ProducerIdNeeded when the epochs are used up."""
    bumps = version >= EPOCH_BUMPS
    next_producer_id = NO_PRODUCER_ID
    if bumps and entry.epoch_exhausted:
        if fresh is None:
            raise ProducerIdNeeded
        next_producer_id = fresh
    return entries.ending(
        entry,
        commit=commit,
        client_version=version if bumps else 0,
        next_producer_id=next_producer_id,
        fence=fence,
        now_ms=now_ms,
    )


_COMMITTED: Final = {State.COMPLETE_COMMIT: True, State.COMPLETE_ABORT: False}


def _judge_classic(entry: Transaction, producer: Producer, *, commit: bool) -> ErrorCode | None:
    """endTransactionWithTV1. None: do it; NONE: it is done already."""
    if entry.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if entry.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    if entry.state.deciding:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if entry.state is State.ONGOING:
        return None
    return _NONE if _COMMITTED.get(entry.state) is commit else ErrorCode.INVALID_TXN_STATE


def _judge_bumping(entry: Transaction, producer: Producer, *, commit: bool) -> ErrorCode | None:
    """endTransaction of TV2: the epoch before the present one asks again for an answer, the present one is the next
    call. An abort is taken when no transaction is open too, since the client may not know whether one is."""
    if entry.state.deciding:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    epoch = producer.epoch
    rotated = (
        entry.previous_producer_id == producer.producer_id and epoch == MAX_EPOCH - 1 and entry.producer_epoch == 0
    )
    if entry.producer_id != producer.producer_id and not rotated:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    repeated = entry.state in _COMMITTED and (entry.producer_epoch == epoch + 1 or rotated)
    if not repeated and epoch != entry.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if entry.state is State.ONGOING:
        return None
    if repeated:
        return _NONE if _COMMITTED[entry.state] is commit else ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_TXN_STATE if commit else None


__all__ = [
    "NO_TIMEOUT_MS",
    "Answer",
    "Limits",
    "Producer",
    "ProducerIdNeeded",
    "State",
    "Transaction",
    "Transactions",
    "WriteMarkers",
]
