"""One transactional id: its state, what may follow it, and its form in `__transaction_state`. Pure.

Kafka: TransactionMetadata and TransactionState (4.4). Every change of the coordinator is one of the functions below,
which make the next entry from the present one; nothing here decides whether the change is allowed to be asked for.

What must hold: an entry is never changed, only replaced; `previous_producer_id` is the producer id of the entry before;
an epoch of `MAX_EPOCH` is never given to a client, so that whoever is to be fenced always can be (`epoch_exhausted`).
`last_producer_epoch` is not recorded (Kafka's record has no place for it): after a restart a repeated InitProducerId
whose answer was lost is refused as fenced, and an EndTxn of version 5 needs it not.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from kmirror.effects import Place
from kmirror.errors import CorruptData
from kmirror.protocol.internal.transaction_state import PartitionsSchema, TransactionLogValue

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
MAX_EPOCH: Final = 2**15 - 1
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a two-phase commit (KIP-939): such a transaction is never aborted for its age."""
EPOCH_BUMPS: Final = 2
"""From this level of transaction.version on every end of a transaction raises the epoch (KIP-890)."""


class State(enum.IntEnum):
    """Kafka's TransactionState; the numbers are those of the record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def shown(self) -> str:
        """As ListTransactions and DescribeTransactions name it."""
        return _SHOWN[self]

    @property
    def deciding(self) -> bool:
        """The decision is recorded; markers are being written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def idle(self) -> bool:
        """No transaction is open: the id may expire."""
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


_SHOWN: Final = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in State}
STATES_BY_NAME: Final = {shown: state for state, shown in _SHOWN.items()}

PREDECESSORS: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
}
"""TransactionState.validPreviousStates, without the two states that are never recorded: kmirror removes an expired id
with its tombstone, and fences a producer in the step that records PREPARE_ABORT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What is known of one transactional id. Times are wall times in milliseconds."""

    state: State = State.EMPTY
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    """The epoch before the last one, while whoever held it may ask again for the answer that raised it."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Takes over when the transaction that is being ended has ended."""
    timeout_ms: int = 0
    places: frozenset[Place] = frozenset()
    start_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    client_version: int = 0
    """transaction.version as the client spoke it when the state was entered."""

    @property
    def epoch_exhausted(self) -> bool:
        return exhausted(self.producer_epoch)

    @property
    def by_topic(self) -> dict[str, list[int]]:
        """Its partitions, in order."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.places):
            topics.setdefault(topic, []).append(partition)
        return topics

    @property
    def commits(self) -> bool:
        """Of a state that is deciding."""
        return self.state is State.PREPARE_COMMIT

    def timed_out(self, now_ms: int) -> bool:
        return (
            self.state is State.ONGOING
            and self.timeout_ms != NO_TIMEOUT_MS
            and self.start_ms + self.timeout_ms < now_ms
        )


def exhausted(epoch: int) -> bool:
    """One more epoch is kept back for fencing (TransactionMetadata.isEpochExhausted)."""
    return epoch >= MAX_EPOCH - 1


def fresh(producer_id: int, *, timeout_ms: int, now_ms: int) -> Transaction:
    """An id nobody has used: not recorded as such, its first epoch is given to it by `next_epoch`."""
    return Transaction(producer_id=producer_id, timeout_ms=timeout_ms, updated_ms=now_ms)


def initialized(
    entry: Transaction, *, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> Transaction:
    """EMPTY, after InitProducerId (prepareIncrementProducerEpoch, prepareProducerIdRotation)."""
    return _next(
        entry,
        State.EMPTY,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        places=frozenset(),
        start_ms=NO_TIME,
        updated_ms=now_ms,
    )


def with_places(entry: Transaction, places: frozenset[Place], *, client_version: int, now_ms: int) -> Transaction:
    """ONGOING, with these partitions too (prepareAddPartitions)."""
    return _next(
        entry,
        State.ONGOING,
        places=entry.places | places,
        start_ms=now_ms if entry.state.idle else entry.start_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def ending(
    entry: Transaction, *, commit: bool, client_version: int, next_producer_id: int, fence: bool, now_ms: int
) -> Transaction:
    """PREPARE_COMMIT or PREPARE_ABORT (prepareAbortOrCommit). `fence`: the client has not asked for it."""
    epoch, last_epoch = entry.producer_epoch, entry.last_producer_epoch
    if client_version >= EPOCH_BUMPS:
        last_epoch = epoch
        epoch = min(epoch + 1, MAX_EPOCH)
    elif fence:
        last_epoch = NO_EPOCH
        epoch = min(epoch + 1, MAX_EPOCH)
    return _next(
        entry,
        State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        next_producer_id=next_producer_id,
        start_ms=entry.start_ms if entry.state is State.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def ended(entry: Transaction, *, now_ms: int) -> Transaction:
    """COMPLETE_COMMIT or COMPLETE_ABORT (prepareComplete)."""
    rotates = entry.client_version >= EPOCH_BUMPS and entry.next_producer_id != NO_PRODUCER_ID
    return _next(
        entry,
        State.COMPLETE_COMMIT if entry.commits else State.COMPLETE_ABORT,
        producer_id=entry.next_producer_id if rotates else entry.producer_id,
        producer_epoch=0 if rotates else entry.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        places=frozenset(),
        updated_ms=now_ms,
    )


def _next(entry: Transaction, state: State, **changes: object) -> Transaction:
    if entry.state not in PREDECESSORS[state]:
        raise RuntimeError(f"a transaction in state {entry.state.shown} cannot become {state.shown}")
    changes.setdefault("producer_id", entry.producer_id)
    return replace(entry, state=state, previous_producer_id=entry.producer_id, **changes)  # type: ignore[arg-type]


# -- the record ------------------------------------------------------------------------------------------------------


def to_record(entry: Transaction) -> TransactionLogValue:
    partitions = [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in entry.by_topic.items()]
    return TransactionLogValue(
        producer_id=entry.producer_id,
        previous_producer_id=entry.previous_producer_id,
        next_producer_id=entry.next_producer_id,
        producer_epoch=entry.producer_epoch,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_status=entry.state,
        transaction_partitions=None if entry.state is State.EMPTY else partitions,
        transaction_last_update_timestamp_ms=entry.updated_ms,
        transaction_start_timestamp_ms=entry.start_ms,
        client_transaction_version=entry.client_version,
    )


def from_record(value: TransactionLogValue) -> Transaction:
    """Raises CorruptData for a state that nobody knows, or that is never recorded."""
    try:
        state = State(value.transaction_status)
        if state not in PREDECESSORS:
            raise ValueError
    except ValueError:
        raise CorruptData(
            f"a transaction is recorded in state {value.transaction_status}, which does not exist"
        ) from None
    return Transaction(
        state=state,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        timeout_ms=value.transaction_timeout_ms,
        places=frozenset(
            (topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )
