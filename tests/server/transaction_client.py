"""A transactional producer that says exactly what a test wants it to say, in the versions it wants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trio

from kmirror.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from kmirror.protocol.api.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kmirror.protocol.api.describe_transactions import DescribeTransactionsRequest
from kmirror.protocol.api.end_txn import EndTxnRequest
from kmirror.protocol.api.fetch import FetchRequest
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import control_type, read_records, walk
from tests.server.harness import Broker, Client, batch, fetch, produce

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
RETRY_MS = 20
MAX_TRIES = 500


@dataclass
class TransactionClient:
    """`second`: the protocol of transactions v2, in which writing adds the partition and an end raises the epoch."""

    client: Client
    name: str = "x"
    second: bool = False
    timeout_ms: int = 60_000
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    async def init(self, version: int = 4, **parts: Any) -> Any:
        """Once, whatever the answer is."""
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=parts.pop("timeout_ms", self.timeout_ms), **parts
        )
        answer = await self.client.ask("InitProducerId", version, request)
        if answer.error_code == 0:
            self.become(answer)
        return answer

    async def start(self) -> None:
        """As real clients do: again while a transaction is being ended."""
        for _ in range(MAX_TRIES):
            answer = await self.init()
            if answer.error_code != CONCURRENT:
                break
            await trio.sleep(RETRY_MS / 1000)
        assert answer.error_code == 0

    def become(self, answer: Any) -> None:
        if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def adding(self, *places: tuple[str, int]) -> AddPartitionsToTxnRequest:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=[index]) for topic, index in places]
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )

    async def add(self, *places: tuple[str, int], version: int = 3) -> list[int]:
        answer = await self.client.ask("AddPartitionsToTxn", version, self.adding(*places))
        return [
            row.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        ]

    async def add_offsets(self, group: str = "g", version: int = 3) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
        )
        code: int = (await self.client.ask("AddOffsetsToTxn", version, request)).error_code
        return code

    def request(self, *values: bytes, topic: str = "t", partition: int = 0, **parts: Any) -> Any:
        data = batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=parts.pop("sequence", self.sequences.get((topic, partition), 0)),
            transactional=True,
        )
        return produce(data, topic=topic, partition=partition, transactional_id=self.name, **parts)

    async def send(self, *values: bytes, version: int | None = None, **parts: Any) -> Any:
        version = version or (12 if self.second else 9)
        request = self.request(*values, **parts)
        row = (await self.client.ask("Produce", version, request)).responses[0].partition_responses[0]
        if row.error_code == 0:
            key = (parts.get("topic", "t"), parts.get("partition", 0))
            self.sequences[key] = self.sequences.get(key, 0) + len(values)
        return row

    async def end(self, *, commit: bool, version: int | None = None) -> Any:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        return await self.client.ask("EndTxn", version or (5 if self.second else 3), request)

    async def transact(self, *values: bytes, commit: bool = True, partitions: tuple[int, ...] = (0,)) -> None:
        """A whole transaction, until its markers are there."""
        for partition in partitions:
            if not self.second:
                assert await self.add(("t", partition)) == [0]
            assert (await self.send(*values, partition=partition)).error_code == 0
        answer = await self.end(commit=commit)
        assert answer.error_code == 0
        if self.second:
            self.become(answer)
        await decided(self.client, self.name)


async def described(client: Client, name: str = "x") -> Any:
    request = DescribeTransactionsRequest(transactional_ids=[name])
    return (await client.ask("DescribeTransactions", 0, request)).transaction_states[0]


async def decided(client: Client, name: str = "x") -> str:
    """Waits until no decision of the id is being carried out; its state."""
    for _ in range(MAX_TRIES):
        state: str = (await described(client, name)).transaction_state
        if not state.startswith("Prepare"):
            return state
        await trio.sleep(RETRY_MS / 1000)
    raise AssertionError("the transaction hangs")


async def fetched(client: Client, request: FetchRequest, version: int = 12) -> Any:
    return (await client.ask("Fetch", version, request)).responses[0].partitions[0]


async def visible(client: Client, *, partition: int = 0, topic: str = "t") -> list[bytes | None]:
    """What a read_committed consumer gets: it drops what the aborted list names."""
    values: list[bytes | None] = []
    row = await fetched(client, fetch(0, topic=topic, partition=partition, isolation_level=1))
    aborted = sorted((entry.first_offset, entry.producer_id) for entry in row.aborted_transactions or ())
    active: set[int] = set()
    for position, header in walk(row.records):
        while aborted and aborted[0][0] <= header.last_offset:
            active.add(aborted.pop(0)[1])
        if header.is_control:
            active.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in active):
            values += [record.value for record in read_records(row.records, position)]
    return values


def markers(broker: Broker, topic: str = "t", partition: int = 0) -> list[tuple[str, int, int]]:
    """(kind, producer id, epoch) of every marker in the log."""
    log = broker.world.partition(topic, partition).log
    return [
        ("COMMIT" if control_type(data, 0) == 1 else "ABORT", header.producer_id, header.producer_epoch)
        for header, data in log.batches(0, log.log_end_offset)
        if header.is_control
    ]
