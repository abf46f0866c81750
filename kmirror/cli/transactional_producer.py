"""A transactional producer, one request at a time: InitProducerId, AddPartitionsToTxn, Produce, EndTxn.

Both of Kafka's protocols. In the classic one a partition is added before it is written to, and the epoch stays. With
`transaction.version` at 2 (KIP-890) Produce adds the partition by itself, and every EndTxn hands out the epoch of the
next transaction, whose sequences begin at 0. Which one is spoken follows from what the coordinator announced.

What holds: a record goes out once, whatever is retried, since every batch keeps its sequence; a transaction that was
not ended is aborted by the coordinator after its timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from kmirror.cli.coordinator import PATIENCE_S, TRANSACTION, Coordinator
from kmirror.cli.patience import Patience
from kmirror.cli.session import check
from kmirror.clock import SystemClock
from kmirror.protocol.api.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kmirror.protocol.api.end_txn import EndTxnRequest
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.errors import ErrorCode, is_retriable
from kmirror.protocol.records import Record, build_batch, increment_sequence
from kmirror.source import calls
from kmirror.source.calls import Partition
from kmirror.source.cluster import Cluster
from kmirror.source.connection import Connection
from kmirror.source.errors import PeerClosed, PeerUnreachable

DEFAULT_TIMEOUT_MS = 60_000
"""Kafka's transaction.timeout.ms."""
FEATURE = "transaction.version"
IMPLICIT_LEVEL = 2
IMPLICIT_PRODUCE, IMPLICIT_END = 12, 5
"""From these versions on Produce adds partitions and EndTxn raises the epoch."""
INIT_VERSION, ADD_VERSION = 5, 3
"""The newest versions meant for a client without two-phase commit; later AddPartitionsToTxn are between brokers."""
BUSY = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
"""The coordinator still completes the transaction before this one."""
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
UNKNOWN = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE})


class TransactionalProducer:
    """See the module head. `start` first; then `send` as often as wanted, and `end`."""

    def __init__(self, cluster: Cluster, transactional_id: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        self.cluster = cluster
        self.coordinator = Coordinator(cluster, transactional_id, TRANSACTION)
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.producer_epoch = -1
        self.implicit = False
        """Whether the newer protocol is spoken."""
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()

    @property
    def is_open(self) -> bool:
        """Whether the transaction has any records."""
        return bool(self._added)

    async def start(self) -> None:
        """Take over the transactional id: whoever had it is fenced, and what it left open is aborted.

        Raises Failure, PeerError, DecodeError.
        """

        def build(connection: Connection) -> tuple[Any, int | None]:
            feature = connection.peer.features.get(FEATURE)
            self.implicit = (
                feature is not None
                and feature.finalized_level >= IMPLICIT_LEVEL
                and connection.version_of("Produce") >= IMPLICIT_PRODUCE
                and connection.version_of("EndTxn") >= IMPLICIT_END
            )
            request = InitProducerIdRequest(
                transactional_id=self.coordinator.key, transaction_timeout_ms=self.timeout_ms
            )
            return request, connection.version_of("InitProducerId", INIT_VERSION)

        answer = await self.coordinator.ask(build, again=BUSY)
        self._check(answer.error_code, "got no producer id")
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self._added.clear()

    async def send(
        self, topic: str, partition: int, records: Sequence[Record], *, compression: int = 0
    ) -> calls.Produced:
        """Write one batch as part of the transaction. The answer may carry an error: then only an abort is left.

        Raises Failure (fenced, or the coordinator refuses the partition), PeerError, DecodeError.
        """
        key = (topic, partition)
        if key not in self._added and not self.implicit:
            await self._add(key)
        self._added.add(key)
        sequence = self._sequences.get(key, 0)
        data = build_batch(
            records,
            compression=compression,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=True,
            timestamp_ms=SystemClock().time_ms(),
        )
        answer = await self._produce(key, data)
        if answer.error_code in FENCED:
            self._check(answer.error_code, "cannot write")
        if not answer.error_code:
            self._sequences[key] = increment_sequence(sequence, len(records))
        return answer

    async def end(self, *, commit: bool) -> None:
        """Commit or abort; a transaction without records has nothing to end. Raises Failure, PeerError, DecodeError."""
        if not self._added:
            return
        request = EndTxnRequest(
            transactional_id=self.coordinator.key,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )

        def build(connection: Connection) -> tuple[Any, int | None]:
            return request, connection.version_of("EndTxn", None if self.implicit else IMPLICIT_END - 1)

        answer = await self.coordinator.ask(build, again=BUSY)
        self._check(answer.error_code, f"could not {'commit' if commit else 'abort'}")
        self._added.clear()
        if self.implicit and answer.producer_id >= 0:
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()

    async def _add(self, key: Partition) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.coordinator.key,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=key[0], partitions=[key[1]])],
        )

        def build(connection: Connection) -> tuple[Any, int | None]:
            return request, connection.version_of("AddPartitionsToTxn", ADD_VERSION)

        answer = await self.coordinator.ask(build, _added_code, again=BUSY)
        self._check(_added_code(answer), f"may not write to {key[0]}-{key[1]}")

    async def _produce(self, key: Partition, data: bytes) -> calls.Produced:
        """Until an answer is final; the sequence makes it safe to send a batch again."""
        patience = Patience(trio.current_time() + PATIENCE_S)
        refresh = False
        while True:
            over = patience.over
            try:
                answer = await self._produce_once(key, data, refresh=refresh)
            except (PeerClosed, PeerUnreachable):
                if over:
                    raise
            else:
                if over or not (is_retriable(answer.error_code) or answer.error_code in BUSY):
                    return answer
            refresh = True
            await patience.pause()

    async def _produce_once(self, key: Partition, data: bytes, *, refresh: bool) -> calls.Produced:
        connection = await self.cluster.connection(await self.cluster.leader_of(*key, refresh=refresh))
        by_id = self.implicit and connection.version_of("Produce") > calls.PRODUCE_BY_NAME
        request, version = calls.produce_request(
            connection,
            key,
            data,
            topic_id=self.cluster.topic_id(key[0]) if by_id else calls.ZERO_ID,
            acks=-1,
            timeout_ms=self.cluster.settings.request_timeout_ms,
        )
        request.transactional_id = self.coordinator.key
        if not self.implicit:
            version = min(version, IMPLICIT_PRODUCE - 1)
        return calls.produced(await connection.request(request, version))

    def _check(self, code: int, what: str) -> None:
        """Raises Failure when `code` is an error."""
        step = ""
        if code in FENCED:
            step = "Another producer has taken this id over, or the transaction took longer than its timeout."
        elif code in UNKNOWN:
            step = "The coordinator knows nothing of such a transaction any more; begin again."
        elif code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            step = "The broker allows less (transaction.max.timeout.ms)."
        check(code, None, f"transactional id {self.coordinator.key} {what}", next_step=step)


def _added_code(answer: Any) -> int:
    return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
