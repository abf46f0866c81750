"""A transactional producer in raw requests: the vocabulary of the transaction cases.

A producer keeps its id, its epoch and the next sequence of each partition, and sends what a client would; the cases
replace what they want to be wrong. `error` codes come back as numbers; only CONCURRENT_TRANSACTIONS and a coordinator
that is still loading are tried again, as every client does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from conformance.wire.batches import batch
from conformance.wire.client import TIMEOUT_S, Broker, Row, Topic
from conformance.wire.groups import LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TRANSACTION_KEY, wait_for_coordinator
from kmirror.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from kmirror.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kmirror.protocol.api.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from kmirror.protocol.api.describe_transactions import DescribeTransactionsRequest
from kmirror.protocol.api.end_txn import EndTxnRequest
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.api.list_transactions import ListTransactionsRequest
from kmirror.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

OUT_OF_ORDER, INVALID_EPOCH, INVALID_TXN_STATE, INVALID_PID_MAPPING, INVALID_TIMEOUT = 45, 47, 48, 49, 50
CONCURRENT, NOT_ATTEMPTED, UNKNOWN_PID, FENCED, NO_SUCH_TRANSACTIONAL_ID, ABORTABLE = 51, 55, 59, 90, 105, 120
TIMEOUT_MS = 60_000
BEFORE_TV2 = {"Produce": 11, "EndTxn": 4, "TxnOffsetCommit": 4, "AddPartitionsToTxn": 3, "AddOffsetsToTxn": 4}
"""The last version of each request that belongs to the protocol before KIP-890's transaction version 2."""
_FIRST_BATCH_ADD = 4  # AddPartitionsToTxn: several transactions from this version on, and only between brokers
_RETRIED = {LOADING, NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT}
_CONCURRENT_FOR_OLD_PRODUCERS = 19  # NOT_ENOUGH_REPLICAS: what they know as "try again" (KIP-890)


def until_settled(ask: Callable[[], Any], code_of: Callable[[Any], int] = lambda answer: int(answer.error_code)) -> Any:
    """Asks again while the coordinator loads, or finishes the transaction before."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        answer = ask()
        if code_of(answer) not in _RETRIED or time.monotonic() > deadline:
            return answer
        time.sleep(0.01)


class TransactionalProducer:
    """One producer under one transactional id."""

    def __init__(self, broker: Broker, transactional_id: str | None = None, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.broker = broker
        self.transactional_id = broker.new_name("txn") if transactional_id is None else transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    def other(self) -> TransactionalProducer:
        """Another process with the same transactional id."""
        return TransactionalProducer(self.broker, self.transactional_id, timeout_ms=self.timeout_ms)

    # --- init

    def init_once(
        self, *, version: int | None = None, producer_id: int = -1, producer_epoch: int = -1,
        timeout_ms: int | None = None,
    ) -> Any:  # fmt: skip
        version = self.broker.version("InitProducerId", version)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms if timeout_ms is None else timeout_ms,
        )
        if version >= 3:
            request.producer_id, request.producer_epoch = producer_id, producer_epoch
        return until_settled(lambda: self.broker.request(request, version))

    def init(self, **options: Any) -> TransactionalProducer:
        """Gets an id and an epoch; the sequences begin again."""
        wait_for_coordinator(self.broker, self.transactional_id, TRANSACTION_KEY)
        answer = self.init_once(**options)
        assert answer.error_code == 0, answer
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()
        return self

    # --- inside a transaction

    def add_partitions(
        self, *partitions: tuple[Topic, int], version: int | None = None, once: bool = False, verify_only: bool = False,
        **wrong: Any,
    ) -> dict[tuple[str, int], int]:  # fmt: skip
        """(topic, partition) -> error code. `once`: a concurrent transaction is not waited for."""
        version = self.broker.version(
            "AddPartitionsToTxn", BEFORE_TV2["AddPartitionsToTxn"] if version is None else version
        )
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for topic, index in partitions:
            topics.setdefault(topic.name, AddPartitionsToTxnTopic(name=topic.name)).partitions.append(index)
        mine = {
            "transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch
        } | wrong  # fmt: skip
        request = AddPartitionsToTxnRequest()
        if version >= _FIRST_BATCH_ADD:
            request.transactions = [
                AddPartitionsToTxnTransaction(**mine, verify_only=verify_only, topics=list(topics.values()))
            ]
        else:
            for name, value in mine.items():
                setattr(request, f"v3_and_below_{name}", value)
            request.v3_and_below_topics = list(topics.values())

        def ask() -> dict[tuple[str, int], int]:
            answer = self.broker.request(request, version)
            if version >= _FIRST_BATCH_ADD:
                assert answer.error_code == 0, answer
                (found,) = answer.results_by_transaction
                rows = found.topic_results
            else:
                rows = answer.results_by_topic_v3_and_below
            return {
                (topic.name, row.partition_index): row.partition_error_code
                for topic in rows
                for row in topic.results_by_partition
            }

        return ask() if once else until_settled(ask, lambda found: next(iter(found.values())))

    def add(self, *topics: Topic) -> None:
        """Adds partition 0 of each topic; it must work."""
        codes = self.add_partitions(*((topic, 0) for topic in topics))
        assert set(codes.values()) == {0}, codes

    def produce(
        self, topic: Topic, values: Sequence[bytes] = (b"v",), *, partition: int = 0, version: int | None = None,
        epoch: int | None = None, producer_id: int | None = None, sequence: int | None = None,
        transactional_id: str | None = "",
    ) -> Any:  # fmt: skip
        """One transactional batch; its row of the answer. Versions above 11 add the partition themselves (KIP-890)."""
        version = self.broker.version("Produce", BEFORE_TV2["Produce"] if version is None else version)
        key = (topic.name, partition)
        base = self.sequences.get(key, 0) if sequence is None else sequence
        records = batch(
            list(values), producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch, base_sequence=base, transactional=True,
        )  # fmt: skip
        request = self.broker.produce_request(topic, records, version=version, partition=partition)
        request.transactional_id = self.transactional_id if transactional_id == "" else transactional_id

        def ask() -> Any:
            return self.broker.request(request, version).responses[0].partition_responses[0]

        row = until_settled(
            ask, lambda found: CONCURRENT if found.error_code == _CONCURRENT_FOR_OLD_PRODUCERS else found.error_code
        )
        if row.error_code == 0:
            self.sequences[key] = base + len(values)
        return row

    def add_offsets(self, group: str, *, version: int | None = None, once: bool = False, **wrong: Any) -> int:
        version = self.broker.version("AddOffsetsToTxn", version)
        mine = {
            "transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch,
            "group_id": group,
        } | wrong  # fmt: skip
        request = AddOffsetsToTxnRequest(**mine)
        if once:
            return int(self.broker.request(request, version).error_code)
        return int(until_settled(lambda: self.broker.request(request, version)).error_code)

    def commit_offset(
        self, group: str, topic: Topic, offset: int, *, partition: int = 0, version: int | None = None,
        leader_epoch: int = -1, metadata: str | None = "", generation: int = -1, member_id: str = "",
        instance: str | None = None, **wrong: Any,
    ) -> int:  # fmt: skip
        """TxnOffsetCommit of one partition; its error code. Versions above 4 add the group by themselves (KIP-890)."""
        version = self.broker.version("TxnOffsetCommit", BEFORE_TV2["TxnOffsetCommit"] if version is None else version)
        row = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=leader_epoch,
            committed_metadata=metadata,
        )  # fmt: skip
        entry = TxnOffsetCommitRequestTopic(partitions=[row])
        if version >= 6:
            entry.topic_id = topic.topic_id
        else:
            entry.name = topic.name
        mine = {
            "transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch
        } | wrong  # fmt: skip
        request = TxnOffsetCommitRequest(group_id=group, topics=[entry], **mine)
        if version >= 3:
            request.generation_id_or_member_epoch, request.member_id = generation, member_id
            request.group_instance_id = instance

        def ask() -> Any:
            return self.broker.request(request, version).topics[0].partitions[0]

        return int(until_settled(ask).error_code)

    # --- the end

    def end_once(self, commit: bool, *, version: int | None = None, **wrong: Any) -> Any:
        version = self.broker.version("EndTxn", BEFORE_TV2["EndTxn"] if version is None else version)
        mine = {
            "transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch
        } | wrong  # fmt: skip
        request = EndTxnRequest(committed=commit, **mine)
        return until_settled(lambda: self.broker.request(request, version))

    def end(self, commit: bool, *, version: int | None = None, **wrong: Any) -> int:
        return int(self.end_once(commit, version=version, **wrong).error_code)

    def commit(self) -> None:
        assert self.end(True) == 0

    def abort(self) -> None:
        assert self.end(False) == 0

    # --- looking at it

    def describe(self) -> Any:
        (row,) = self.broker.request(
            DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        ).transaction_states
        return row

    def wait_for_state(self, state: str) -> Any:
        deadline = time.monotonic() + TIMEOUT_S
        while (row := self.describe()).transaction_state != state:
            assert time.monotonic() < deadline, row
            time.sleep(0.005)
        return row


def last_stable_offset(broker: Broker, topic: Topic, partition: int = 0) -> int:
    row = broker.list_offset(topic, -1, partition=partition, isolation_level=1)
    assert row.error_code == 0, row
    return int(row.offset)


def wait_for_stable_offset(broker: Broker, topic: Topic, offset: int, *, timeout_s: float = TIMEOUT_S) -> None:
    """Until a marker that was promised is in the partition."""
    deadline = time.monotonic() + timeout_s
    while (seen := last_stable_offset(broker, topic)) != offset:
        assert time.monotonic() < deadline, f"last stable offset {seen}, not {offset}"
        time.sleep(0.005)


def active_producers(broker: Broker, topic: Topic, partition: int = 0) -> Any:
    """The one row of DescribeProducers."""
    asked = DescribeProducersTopicRequest(name=topic.name, partition_indexes=[partition])
    return broker.request(DescribeProducersRequest(topics=[asked])).topics[0].partitions[0]


def listed(broker: Broker, *, version: int | None = None, **filters: Any) -> dict[str, tuple[int, str]]:
    """ListTransactions: transactional id -> (producer id, state)."""
    answer = broker.request(ListTransactionsRequest(**filters), broker.version("ListTransactions", version))
    assert answer.error_code == 0, answer
    return {row.transactional_id: (row.producer_id, row.transaction_state) for row in answer.transaction_states}


def aborted(
    broker: Broker, topic: Topic, offset: int, *, version: int, isolation_level: int
) -> list[tuple[int, int]] | None:
    """The aborted list of one Fetch: (producer id, first offset), or null."""
    row = broker.fetch(Row(topic, offset), version=version, isolation_level=isolation_level).row()
    if row.aborted_transactions is None:
        return None
    return [(entry.producer_id, entry.first_offset) for entry in row.aborted_transactions]
