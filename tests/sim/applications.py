"""Applications against one broker without sockets: requests go straight to the handlers, the disk is in memory.

`Node` is the broker; it flushes and lets time pass only where a caller waits. `Pipeline` is consume-transform-produce
with transactions of both protocol generations, `Member` one consumer of a classic group. Both remember what they were
promised, so that a test can hold the broker to it after the power went.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.effects import Promise
from kmirror.protocol import registry
from kmirror.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from kmirror.protocol.api.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kmirror.protocol.api.end_txn import EndTxnRequest
from kmirror.protocol.api.heartbeat import HeartbeatRequest
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kmirror.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kmirror.protocol.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kmirror.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kmirror.protocol.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kmirror.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kmirror.protocol.records import CONTROL_COMMIT, Record, build_batch, control_type, read_records
from kmirror.server.context import Peer, RequestContext
from kmirror.server.handlers import TABLE
from kmirror.storage.memory import MemoryFileSystem
from tests.power_cut import PowerCut

DIRECTORY = "/data"
PROPERTIES = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
PEER = Peer(listener="PLAINTEXT", advertised_host="127.0.0.1", advertised_port=9092, host="127.0.0.1", port=-1)

INPUT, OUTPUT, GROUP = "in", "out", "g"
NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 0, 25, 27, 79
ILLEGAL_GENERATION = 22
RETRIABLE = frozenset({14, 15, 16, 51, 88})
"""Coordinator loading, not available, not here; CONCURRENT_TRANSACTIONS; UNSTABLE_OFFSET_COMMIT."""
MAX_WAITS = 200
RETRY_MS = 20
TURNS_BEFORE_TIME_PASSES = 10
"""A handler may wait for several flushes in a row; that takes turns, not time."""


class Node:
    """See the module head."""

    def __init__(self, *, seed: int) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFileSystem(seed=seed, clock=self.clock)
        self.world: World
        self.flush: InlineFlush
        self._open()

    def _open(self) -> None:
        self.flush = InlineFlush()
        config = BrokerConfig.from_properties(PROPERTIES)
        self.world = World.open(self.fs, DIRECTORY, config, self.clock, self.flush)
        self.flush.run()

    def create(self, name: str, partition_count: int) -> None:
        self.settle(self.world.create_topic(CreateTopicSpec(name, partition_count)))

    def restart(self) -> None:
        self.flush.run()
        self.world.close(clean=True)
        self._open()

    def crash(self, *, keep_nothing: bool) -> None:
        self.fs.observer = None
        self.fs = self.fs.crash(keep_nothing=keep_nothing)
        self._open()

    def pass_time(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.world.runtime.fire_timers()
        self.world.tick()
        self.flush.run()

    def _let_something_happen(self) -> None:
        """A flush round if one is due, else the time until the next timer."""
        self.flush.run()
        wait_ms = self.world.runtime.next_timer_ms()
        self.pass_time(RETRY_MS if wait_ms is None else min(wait_ms, 60_000))

    def settle(self, promise: Promise[Any]) -> Any:
        for _ in range(MAX_WAITS):
            self.flush.run()
            if promise.done:
                return promise.result()
            self._let_something_happen()
        raise AssertionError("an answer never came")

    async def call(self, api: str, version: int, request: object) -> Any:
        """One request's answer. Raises PowerCut."""
        answer = self.ask(api, version, request)
        if inspect.iscoroutine(answer):
            answer = await self._drive(answer)
        return self.settle(answer) if isinstance(answer, Promise) else answer

    def ask(self, api: str, version: int, request: object) -> Any:
        """What the handler returned: the answer, a promise, or a coroutine."""
        module = importlib.import_module(f"kmirror.server.handlers.{TABLE[registry.by_name[api].key].module}")
        return module.handle(RequestContext(self.world, PEER, version, "app"), request)

    async def _drive(self, coroutine: Awaitable[Any]) -> Any:
        outcome: list[Any] = []
        failure: list[BaseException] = []

        async def work() -> None:
            try:
                outcome.append(await coroutine)
            except (Exception, PowerCut) as error:
                failure.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            for turn in range(MAX_WAITS):
                await trio.lowlevel.checkpoint()
                if outcome or failure:
                    break
                try:
                    if turn < TURNS_BEFORE_TIME_PASSES:
                        self.flush.run()
                    else:
                        self._let_something_happen()
                except PowerCut as error:
                    failure.append(error)
                    break
            nursery.cancel_scope.cancel()
        if failure:
            raise failure[0]
        assert outcome, "an answer never came"
        return outcome[0]

    async def patiently(self, ask: Callable[[], Awaitable[tuple[int, Any]]]) -> Any:
        """Repeat while the answer's code says so; fails on any other code."""
        for _ in range(MAX_WAITS):
            code, answer = await ask()
            if code == NONE:
                return answer
            assert code in RETRIABLE, f"error {code}: {answer}"
            self.pass_time(RETRY_MS)
        raise AssertionError("retriable errors without end")

    def decided(self, topic: str, index: int) -> tuple[list[bytes], list[bytes], int]:
        """Values of committed and of aborted transactions in log order of their markers, and how many are open."""
        log = self.world.partition(topic, index).log
        pending: dict[int, list[bytes]] = {}
        committed: list[bytes] = []
        aborted: list[bytes] = []
        for header, data in log.batches(log.log_start_offset, log.log_end_offset):
            if not header.is_transactional:
                continue
            if header.is_control:
                values = pending.pop(header.producer_id, [])
                (committed if control_type(data, 0) == CONTROL_COMMIT else aborted).extend(values)
            else:
                values = [bytes(record.value or b"") for record in read_records(data)]
                pending.setdefault(header.producer_id, []).extend(values)
        return committed, aborted, len(pending)


class Pipeline:
    """Each record of INPUT becomes one record in each partition of OUTPUT, in the transaction that commits its offset.

    Every third offset is aborted at its first try. `second`: transactions v2 (KIP-890): partitions are added by what is
    written to them, every EndTxn answers with the epoch to go on with.
    """

    def __init__(self, *, total: int, second: bool, partition_count: int = 2) -> None:
        self.total = total
        self.second = second
        self.partition_count = partition_count
        self.acknowledged = 0
        """Offsets below it were committed, and the application was told so."""
        self.aborted_once: set[int] = set()
        self._producer = (-1, -1)
        self._sequences = [0] * partition_count

    async def run(self, node: Node) -> None:
        """As a process: starts from nothing, ends when every input is done. Raises PowerCut."""
        await self.start(node)
        offset = await self.committed(node)
        while offset < self.total:
            commit = offset % 3 != 1 or offset in self.aborted_once
            await self._transaction(node, offset, commit)
            if commit:
                offset += 1
                self.acknowledged = max(self.acknowledged, offset)
            else:
                self.aborted_once.add(offset)

    async def start(self, node: Node) -> None:
        """InitProducerId: fences the process before, and ends what it left open."""

        async def ask() -> tuple[int, Any]:
            request = InitProducerIdRequest(transactional_id="pipeline", transaction_timeout_ms=60_000)
            answer = await node.call("InitProducerId", 4, request)
            return answer.error_code, answer

        answer = await node.patiently(ask)
        self._go_on_with(answer.producer_id, answer.producer_epoch)

    def _go_on_with(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != self._producer:
            self._sequences = [0] * self.partition_count
        self._producer = (producer_id, producer_epoch)

    async def committed(self, node: Node) -> int:
        """The group's offset; 0 when there is none. Waits for transactions that may change it."""

        async def ask() -> tuple[int, Any]:
            topics = [OffsetFetchRequestTopic(name=INPUT, partition_indexes=[0])]
            request = OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=True)
            answer = await node.call("OffsetFetch", 7, request)
            row = answer.topics[0].partitions[0]
            return answer.error_code or row.error_code, row

        return max(0, (await node.patiently(ask)).committed_offset)

    async def _transaction(self, node: Node, offset: int, commit: bool) -> None:
        producer_id, epoch = self._producer
        named = {"transactional_id": "pipeline", "producer_id": producer_id, "producer_epoch": epoch}
        if not self.second:
            await node.patiently(lambda: self._add_partitions(node))
        for index in range(self.partition_count):
            await node.patiently(lambda index=index: self._produce(node, index, b"%d" % offset))  # type: ignore[misc]
            self._sequences[index] += 1

        async def add_offsets() -> tuple[int, Any]:
            answer = await node.call("AddOffsetsToTxn", 3, AddOffsetsToTxnRequest(group_id=GROUP, **named))
            return answer.error_code, answer

        async def commit_offset() -> tuple[int, Any]:
            rows = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset + 1)]
            topics = [TxnOffsetCommitRequestTopic(name=INPUT, partitions=rows)]
            request = TxnOffsetCommitRequest(
                group_id=GROUP, topics=topics, generation_id_or_member_epoch=-1, member_id="", **named
            )
            answer = await node.call("TxnOffsetCommit", 5 if self.second else 3, request)
            return answer.topics[0].partitions[0].error_code, answer

        async def end() -> tuple[int, Any]:
            request = EndTxnRequest(committed=commit, **named)
            answer = await node.call("EndTxn", 5 if self.second else 3, request)
            return answer.error_code, answer

        if not self.second:
            await node.patiently(add_offsets)
        await node.patiently(commit_offset)
        ended = await node.patiently(end)
        if self.second:
            self._go_on_with(ended.producer_id, ended.producer_epoch)

    async def _add_partitions(self, node: Node) -> tuple[int, Any]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="pipeline",
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=OUTPUT, partitions=list(range(self.partition_count)))],
        )
        answer = await node.call("AddPartitionsToTxn", 3, request)
        rows = answer.results_by_topic_v3_and_below[0].results_by_partition
        return max(row.partition_error_code for row in rows), answer

    async def _produce(self, node: Node, index: int, value: bytes) -> tuple[int, Any]:
        batch = build_batch(
            [Record(value=value)],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequences[index],
            transactional=True,
            timestamp_ms=node.clock.time_ms(),
        )
        data = [TopicProduceData(name=OUTPUT, partition_data=[PartitionProduceData(index=index, records=batch)])]
        request = ProduceRequest(transactional_id="pipeline", acks=-1, timeout_ms=30_000, topic_data=data)
        answer = await node.call("Produce", 12 if self.second else 11, request)
        return answer.responses[0].partition_responses[0].error_code, answer


class Member:
    """One consumer that commits plain offsets, and joins again whenever it is told to."""

    def __init__(self, name: str, *, instance: str | None = None, group: str = "members") -> None:
        self.name = name
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.acknowledged = 0
        self.sent = 0
        self.synced: set[tuple[int, str]] = set()
        """(generation, member id) that a SyncGroup was answered for."""

    async def join(self, node: Node) -> None:
        """Alone in the group: it leads, and gives itself the assignment."""
        for _ in range(MAX_WAITS):
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id=self.member_id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=self.name.encode())],
            )
            joined = await node.call("JoinGroup", 7, request)
            if joined.error_code in (MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID):
                self.member_id = joined.member_id if joined.error_code == MEMBER_ID_REQUIRED else ""
                continue
            if joined.error_code in RETRIABLE:
                node.pass_time(RETRY_MS)
                continue
            assert joined.error_code == NONE, joined
            self.member_id, self.generation = joined.member_id, joined.generation_id
            if await self._sync(node, joined):
                return
        raise AssertionError("the member never got into the group")

    async def _sync(self, node: Node, joined: Any) -> bool:
        assignments = []
        if joined.leader == self.member_id:
            assignments = [
                SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"all of it")
                for member in joined.members
            ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        synced = await node.call("SyncGroup", 5, request)
        if synced.error_code == NONE:
            self.synced.add((self.generation, self.member_id))
            return True
        assert synced.error_code in (REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, *RETRIABLE), synced
        return False

    async def heartbeat(self, node: Node) -> int:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return int((await node.call("Heartbeat", 4, request)).error_code)

    async def commit(self, node: Node, offset: int) -> int:
        self.sent = max(self.sent, offset)
        rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            topics=[OffsetCommitRequestTopic(name=INPUT, partitions=rows)],
        )
        code = int((await node.call("OffsetCommit", 8, request)).topics[0].partitions[0].error_code)
        if code == NONE:
            self.acknowledged = max(self.acknowledged, offset)
        return code

    async def fetch(self, node: Node) -> int:
        topics = [OffsetFetchRequestTopic(name=INPUT, partition_indexes=[0])]
        answer = await node.call("OffsetFetch", 7, OffsetFetchRequest(group_id=self.group, topics=topics))
        return int(answer.topics[0].partitions[0].committed_offset)

    async def run(self, node: Node, commits: int) -> None:
        """Join, commit one offset after the other with a heartbeat in between. Raises PowerCut."""
        await self.join(node)
        while self.acknowledged < commits:
            code = await self.commit(node, self.acknowledged + 1)
            assert code in (NONE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS), code
            if code != NONE or await self.heartbeat(node) != NONE:
                await self.join(node)
