"""May this producer write here as part of its transaction? Asked before records are appended (KIP-890). L3.

Kafka: ReplicaManager.maybeSendPartitionsToTransactionCoordinator, AddPartitionsToTxnManager,
UnifiedLog.maybeStartTransactionVerification. A partition where the producer's transaction is open already is not asked
about again. Otherwise a client of transactions v1 must have added the partition (it is verified), and a client of v2
adds it by writing (it is added, and on disk as added before anything is written: else a power cut could leave records
of a transaction that the coordinator does not know, and that nobody would ever end).

What must hold: between the last look at the coordinator's state and the append nothing else runs. So whoever waited
for `admit` asks `still_admitted` right before it appends.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kmirror.broker.partition import Partition
from kmirror.coordinator.transactions import Answer, Producer
from kmirror.effects import Place, Promise, Timer
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kmirror.broker.transactions import TransactionCoordinator
    from kmirror.broker.world import World

RETRY_LIMIT: Final = "add.partitions.to.txn.retry.backoff.max.ms"
VERIFICATION: Final = "transaction.partition.verification.enable"
ADDS_AS_VERSION: Final = 2
"""The client's transaction.version, when writing adds the partition."""

Codes = dict[Place, ErrorCode]


class Support(enum.Enum):
    """What the client understands (AddPartitionsToTxnManager.TransactionSupportedOperation)."""

    DEFAULT_ERROR = enum.auto()
    """Not TRANSACTION_ABORTABLE: Produce below 11, TxnOffsetCommit below 4."""
    GENERIC_ERROR = enum.auto()
    ADD_PARTITION = enum.auto()
    """Transactions v2: Produce from 12, TxnOffsetCommit from 5."""


def of_produce(api_version: int) -> Support:
    if api_version > 11:
        return Support.ADD_PARTITION
    return Support.GENERIC_ERROR if api_version > 10 else Support.DEFAULT_ERROR


def of_txn_offset_commit(api_version: int) -> Support:
    if api_version > 4:
        return Support.ADD_PARTITION
    return Support.GENERIC_ERROR if api_version > 3 else Support.DEFAULT_ERROR


@dataclass(frozen=True, slots=True)
class _WaitEnds:
    """No longer wait for the transaction before to end."""

    waited: Promise[None]

    def over(self) -> None:
        if not self.waited.done:
            self.waited.resolve(None)


class Admission:
    """See the module head. `world.transactions.admission`."""

    def __init__(self, world: World, coordinator: TransactionCoordinator) -> None:
        self._world = world
        self._coordinator = coordinator
        self._waits = 0
        world.runtime.on_timer(_WaitEnds, lambda event: event.over())

    def admit(
        self, transactional_id: str, producer: Producer, partitions: Sequence[Partition], support: Support
    ) -> Promise[Codes]:
        """One code per partition, 0 where the producer may append: else 42, 47, 48, 49, 51, 56, 120.

        Settled at once when nothing has to be written or waited for.
        """
        codes: Codes = {}
        asked: list[Place] = []
        for partition in partitions:
            place = (partition.topic_name, partition.index)
            try:
                code = standing(partition, producer)
            except ApiError as error:
                code = ErrorCode(error.code)
            if code is None:
                asked.append(place)
            else:
                codes[place] = code
        if not asked or (support is not Support.ADD_PARTITION and not self._world.config.boolean(VERIFICATION)):
            return Promise.of(codes | dict.fromkeys(asked, ErrorCode.NONE))
        admitted: Promise[Codes] = Promise()
        if support is Support.ADD_PARTITION:
            config = self._world.config
            patience_ms = min(config.integer(RETRY_LIMIT), config.integer("request.timeout.ms"))
            added: Promise[ErrorCode] = Promise()
            added.then(lambda promise: admitted.resolve(codes | dict.fromkeys(asked, promise.result())))
            self._add(transactional_id, producer, frozenset(asked), self._now_ms() + patience_ms, added)
        else:
            found = self._coordinator.machine.verify(transactional_id, producer, asked)
            codes |= {place: _told(code, support) for place, code in found.items()}
            self._coordinator.when_durable(transactional_id).then(lambda _done: admitted.resolve(codes))
        return admitted

    def still_admitted(
        self, transactional_id: str, producer: Producer, partition: Partition, support: Support
    ) -> ErrorCode:
        """The same, now and without a change: for whoever has waited since `admit`."""
        code = standing(partition, producer)
        if code is not None:
            return code
        place = (partition.topic_name, partition.index)
        if support is not Support.ADD_PARTITION and not self._world.config.boolean(VERIFICATION):
            return ErrorCode.NONE
        return _told(self._coordinator.machine.verify(transactional_id, producer, [place])[place], support)

    def _now_ms(self) -> int:
        return self._world.clock.monotonic_ms()

    def _add(
        self,
        transactional_id: str,
        producer: Producer,
        places: frozenset[Place],
        until_ms: int,
        added: Promise[ErrorCode],
    ) -> None:
        """Add; while the transaction before is still being ended, wait for its end and try again."""

        def answered(promise: Promise[Answer]) -> None:
            code = promise.result().code
            left_ms = until_ms - self._now_ms()
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS or left_ms <= 0:
                added.resolve(_told(code, Support.ADD_PARTITION))
                return
            self._ended_within(transactional_id, left_ms).then(
                lambda _done: self._add(transactional_id, producer, places, until_ms, added)
            )

        self._coordinator.add(transactional_id, producer, places, client_version=ADDS_AS_VERSION).then(answered)

    def _ended_within(self, transactional_id: str, limit_ms: int) -> Promise[None]:
        waited: Promise[None] = Promise()
        event = _WaitEnds(waited)
        self._waits += 1
        key = f"transactions: wait {self._waits}"
        self._world.runtime.set_timer(Timer(key, limit_ms, event))

        def ended(_promise: Promise[None]) -> None:
            self._world.runtime.cancel_timer(key)
            event.over()

        self._coordinator.when_decided(transactional_id).then(ended)
        return waited


def standing(partition: Partition, producer: Producer) -> ErrorCode | None:
    """What the partition alone says: 0 while the producer's transaction is open in it, 47 for an epoch below the last
    one seen, None when the coordinator has to be asked. Raises ApiError when there is no such log."""
    entry = partition.log.producers.entries.get(producer.producer_id)
    if entry is None or producer.epoch > entry.producer_epoch:
        return None
    if producer.epoch < entry.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.NONE if entry.txn_first_offset >= 0 else None


def _told(code: ErrorCode, support: Support) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and support is Support.DEFAULT_ERROR:
        return ErrorCode.INVALID_TXN_STATE
    return code
