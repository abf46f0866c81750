"""Transactions over the wire: a whole broker in this process, virtual time (known bugs B022, B046, B048, B049, B050).

What the coordinator decides is in `tests/coordinator/test_transactions.py`; here it is who waits for what, what is on
disk when somebody is told of it, and what the other APIs say of it.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kmirror.coordinator.transactions import WriteMarkers
from kmirror.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kmirror.protocol.api.api_versions import ApiVersionsRequest
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.api.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from kmirror.protocol.api.describe_transactions import DescribeTransactionsRequest
from kmirror.protocol.api.end_txn import EndTxnRequest
from kmirror.protocol.api.list_transactions import ListTransactionsRequest
from kmirror.protocol.api.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kmirror.protocol.api.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import transaction_state as records
from kmirror.protocol.records import read_records
from kmirror.server.waiting import settled
from kmirror.storage.log import LogMode
from tests.server.harness import Broker, batch, fetch, produce, serving
from tests.server.transaction_client import (
    CONCURRENT,
    TransactionClient,
    decided,
    described,
    fetched,
    markers,
    visible,
)

Virtual = trio.testing.MockClock
FENCED, OLD_EPOCH = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
UNKNOWN_ID, WRONG_STATE = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE
SWEEP_S = 11
"""Longer than the interval in which transactions that are too old are looked for."""

both_protocols = pytest.mark.parametrize("second", [False, True], ids=["v1", "v2"])


def producer(broker: Broker, name: str = "x", **parts: Any) -> TransactionClient:
    return TransactionClient(broker.connect(), name, **parts)


# -- a life ----------------------------------------------------------------------------------------------------------


@both_protocols
async def test_committed_is_seen_and_aborted_is_not(autojump_clock: Virtual, second: bool) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        client = producer(broker, second=second)
        await client.start()
        await client.transact(b"a", partitions=(0, 1))
        await client.transact(b"b", commit=False, partitions=(0,))
        await client.transact(b"c", partitions=(0, 1))
        reader = broker.connect()
        assert await visible(reader) == [b"a", b"c"]
        assert await visible(reader, partition=1) == [b"a", b"c"]
        row = await fetched(reader, fetch(0, isolation_level=0))
        assert [record.value for position in (0,) for record in read_records(row.records, position)] == [b"a"]
        assert row.aborted_transactions is None, "B022: no list for read_uncommitted"
        row = await fetched(reader, fetch(4, isolation_level=1))
        assert row.aborted_transactions == []
        kinds = [kind for kind, _pid, _epoch in markers(broker)]
        assert kinds == ["COMMIT", "ABORT", "COMMIT"]
        epochs = [epoch for _kind, _pid, epoch in markers(broker)]
        assert epochs == ([1, 2, 3] if second else [0, 0, 0])


async def test_an_open_transaction_holds_readers_back(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client, reader = producer(broker), broker.connect()
        await client.start()
        await client.add(("t", 0))
        await client.send(b"a")
        await reader.ask("Produce", 9, produce(batch(b"plain")))
        row = await fetched(reader, fetch(0, isolation_level=1))
        assert (row.high_watermark, row.last_stable_offset, bytes(row.records)) == (2, 0, b"")
        await client.end(commit=True)
        await decided(reader)
        assert await visible(reader) == [b"a", b"plain"]


async def test_a_producer_that_begins_again_aborts_what_was_left_open(autojump_clock: Virtual) -> None:
    """B048."""
    async with serving() as broker:
        await broker.create_topic("t")
        first, second = producer(broker), producer(broker)
        await first.start()
        await first.add(("t", 0))
        await first.send(b"1", b"2", b"3")
        assert (await second.init()).error_code == CONCURRENT
        await second.start()
        assert (second.producer_id, second.epoch) == (first.producer_id, 2)
        await second.transact(b"last")
        assert await visible(first.client) == [b"last"]
        row = await fetched(first.client, fetch(0, isolation_level=1))
        assert [(entry.producer_id, entry.first_offset) for entry in row.aborted_transactions] == [
            (first.producer_id, 0)
        ]
        assert (await first.send(b"late")).error_code == OLD_EPOCH
        assert (await first.end(commit=True)).error_code == FENCED
        assert (await first.end(commit=True, version=1)).error_code == OLD_EPOCH


@pytest.mark.parametrize("restart", [False, True])
async def test_a_transaction_that_is_too_old_is_aborted_and_fenced(autojump_clock: Virtual, restart: bool) -> None:
    """B049."""
    async with serving() as broker:
        await broker.create_topic("t")
        client = producer(broker, timeout_ms=2000)
        await client.start()
        await client.add(("t", 0))
        await client.send(b"1")
        if not restart:
            await _check_timeout(broker, client)
            return
        filesystem = broker.filesystem
    async with serving(filesystem=filesystem) as broker:
        client.client = broker.connect()
        await _check_timeout(broker, client)


async def _check_timeout(broker: Broker, client: TransactionClient) -> None:
    assert broker.world.partition("t", 0).last_stable_offset == 0
    await trio.sleep(SWEEP_S)
    await decided(client.client)
    assert broker.world.partition("t", 0).last_stable_offset == 2
    assert markers(broker) == [("ABORT", client.producer_id, 1)]
    assert (await client.send(b"2")).error_code == OLD_EPOCH
    assert await client.add(("t", 0)) == [FENCED]
    assert await client.add(("t", 0), version=1) == [OLD_EPOCH]
    assert await client.add_offsets() == FENCED
    assert await client.add_offsets(version=1) == OLD_EPOCH
    assert (await client.end(commit=True)).error_code == FENCED
    await client.start()
    await client.transact(b"new")
    assert await visible(client.client) == [b"new"]
    too_long = await client.init(timeout_ms=900_001)
    assert too_long.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


async def test_end_txn_by_version(autojump_clock: Virtual) -> None:
    """B050."""
    async with serving() as broker:
        await broker.create_topic("t")
        client = producer(broker)
        await client.start()
        await client.add(("t", 0))
        fenced: int
        for version, fenced in ((1, OLD_EPOCH), (2, FENCED), (4, FENCED)):
            for epoch, producer_id, name, code in (
                (1, client.producer_id, "x", fenced),
                (-1, client.producer_id, "x", fenced),
                (0, client.producer_id + 1, "x", UNKNOWN_ID),
                (0, client.producer_id, "nobody", UNKNOWN_ID),
            ):
                request = EndTxnRequest(
                    transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True
                )
                assert (await client.client.ask("EndTxn", version, request)).error_code == code
        for commit, expected in ((True, 0), (True, 0), (False, WRONG_STATE)):
            assert (await client.end(commit=commit)).error_code == expected
            await decided(client.client)
        stale = {"producer_id": client.producer_id, "producer_epoch": 7}
        assert (await client.init(3, **stale)).error_code == OLD_EPOCH
        assert (await client.init(4, **stale)).error_code == FENCED


async def test_a_repeated_end_of_the_second_protocol_is_answered_alike(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = producer(broker, second=True)
        await client.start()
        await client.send(b"a")
        first = await client.end(commit=True)
        await decided(client.client)
        again = await client.end(commit=True)
        assert (first.error_code, first.producer_id, first.producer_epoch) == (0, client.producer_id, 1)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, client.producer_id, 1)
        assert (await client.end(commit=False)).error_code == WRONG_STATE


# -- who may write ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, WRONG_STATE), (10, WRONG_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE), (12, ErrorCode.NONE)],
)
async def test_a_partition_that_was_not_added(autojump_clock: Virtual, version: int, code: ErrorCode) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = producer(broker)
        await client.start()
        row = await client.send(b"a", version=version)
        assert (row.error_code, row.log_start_offset if code else -1) == (code, -1)
        assert broker.world.partition("t", 0).log_end_offset == (0 if code else 1)
        state = await described(client.client)
        assert state.transaction_state == ("Empty" if code else "Ongoing")


async def test_the_second_batch_in_flight_is_not_stored_before_the_first(autojump_clock: Virtual) -> None:
    """The first is refused, since its partition is not added yet; the second comes when it is."""
    async with serving() as broker:
        await broker.create_topic("t")
        client = producer(broker)
        await client.start()
        assert (await client.send(b"first")).error_code == WRONG_STATE
        assert await client.add(("t", 0)) == [0]
        client.sequences["t", 0] = 1
        assert (await client.send(b"second")).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        client.sequences["t", 0] = 0
        for value in (b"first", b"second"):
            assert (await client.send(value)).error_code == 0
        assert (await client.end(commit=True)).error_code == 0
        await decided(client.client)
        assert await visible(client.client) == [b"first", b"second"]


async def test_verification_can_be_switched_off(autojump_clock: Virtual) -> None:
    async with serving({"transaction.partition.verification.enable": "false"}) as broker:
        await broker.create_topic("t")
        client = producer(broker)
        await client.start()
        assert (await client.send(b"a")).error_code == 0


async def test_what_a_transactional_batch_needs(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        client = producer(broker)
        await client.start()
        await client.add(("t", 0))
        request = client.request(b"a")
        request.transactional_id = None
        row = (await client.client.ask("Produce", 9, request)).responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        request = client.request(b"a")
        client.epoch += 1
        other = client.request(b"b", partition=1)
        client.epoch -= 1
        request.topic_data += other.topic_data
        answer = await client.client.ask("Produce", 9, request)
        assert [topic.partition_responses[0].error_code for topic in answer.responses] == [UNKNOWN_ID, UNKNOWN_ID]
        client.producer_id += 1
        assert (await client.send(b"a")).error_code == UNKNOWN_ID
        client.name, client.producer_id = "nobody", client.producer_id - 1
        assert (await client.send(b"a", version=12)).error_code == UNKNOWN_ID
        assert broker.world.partition("t", 0).log_end_offset == 0


@both_protocols
async def test_records_are_written_when_the_coordinator_s_are_on_disk(autojump_clock: Virtual, second: bool) -> None:
    """A power cut must not leave records of a transaction that nobody knows."""
    version = 12 if second else 9
    async with serving(at_once=False) as broker:
        client = await _started_and_flushed(broker, second=second)
        partition = broker.world.partition("t", 0)
        if not second:  # another connection does not wait for the answer to this
            await broker.connect().send("AddPartitionsToTxn", 3, client.adding(("t", 0)))
            await trio.sleep(0.1)
        await client.client.send("Produce", version, client.request(b"a"))
        await trio.sleep(0.1)
        assert partition.log_end_offset == 0
        broker.flush.run()
        assert partition.log_end_offset == 1
        await trio.sleep(0.1)
        broker.flush.run()
        _, answer = await client.client.receive("Produce", version)
        assert answer.responses[0].partition_responses[0].error_code == 0


async def _started_and_flushed(broker: Broker, *, partitions: int = 1, second: bool) -> TransactionClient:
    """A producer of the new topic `t` that has started, all of it on disk; from then on only the test flushes."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_flush_for_ever, broker)
        await broker.create_topic("t", partitions)
        client = producer(broker, second=second)
        await client.start()
        nursery.cancel_scope.cancel()
    return client


async def _flush_for_ever(broker: Broker) -> None:
    while True:
        await trio.sleep(0.001)
        broker.flush.run()


async def test_large_records_that_wait_keep_their_bytes(autojump_clock: Virtual) -> None:
    """Large frames lie in a buffer that the next one is read into."""
    async with serving(at_once=False) as broker:
        client = await _started_and_flushed(broker, partitions=2, second=True)
        await client.client.send("Produce", 12, client.request(b"a" * 300_000))
        await trio.sleep(0.1)
        await client.client.send("Produce", 12, produce(batch(b"b" * 300_000), partition=1))
        await trio.sleep(0.1)
        broker.flush.run()
        for partition, value in ((0, b"a"), (1, b"b")):
            log = broker.world.partition("t", partition).log
            (found,) = [record.value for _, data in log.batches(0, 1) for record in read_records(data)]
            assert found == value * 300_000


async def test_a_write_behind_the_end_of_its_transaction_is_refused(autojump_clock: Virtual) -> None:
    """It waited for the disk, and meanwhile the transaction it was added to has been ended."""
    async with serving(at_once=False) as broker:
        client = await _started_and_flushed(broker, second=True)
        await client.client.send("Produce", 12, client.request(b"a"))
        await trio.sleep(0.01)
        other = broker.connect()
        request = EndTxnRequest(transactional_id="x", producer_id=client.producer_id, producer_epoch=0, committed=True)
        await other.send("EndTxn", 3, request)
        await trio.sleep(0.01)
        broker.flush.run()
        _, answer = await client.client.receive("Produce", 12)
        assert answer.responses[0].partition_responses[0].error_code == CONCURRENT
        assert (await other.receive("EndTxn", 3))[1].error_code == 0
        broker.flush.run()
        partition = broker.world.partition("t", 0)
        assert markers(broker) == [("COMMIT", client.producer_id, 0)]
        assert partition.last_stable_offset == partition.log_end_offset == 1


async def test_the_next_transaction_waits_for_the_end_of_the_one_before(autojump_clock: Virtual) -> None:
    """Transactions v2: the client goes on with the new epoch while the markers are still on their way."""
    async with serving() as broker:
        await broker.create_topic("t")
        held = hold_markers(broker)
        client = producer(broker, second=True)
        await client.start()
        await client.send(b"a")
        client.become(await client.end(commit=True))
        began = trio.current_time()
        assert (await client.send(b"b")).error_code == CONCURRENT
        assert trio.current_time() - began == pytest.approx(0.1, abs=0.02)
        await client.client.send("Produce", 12, client.request(b"b"))
        await trio.sleep(0.05)
        broker.world.transactions._write_markers(held.pop().transactional_id)
        _, answer = await client.client.receive("Produce", 12)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert trio.current_time() - began == pytest.approx(0.15, abs=0.02)


def hold_markers(broker: Broker) -> list[WriteMarkers]:
    """Decisions stay decisions; what should be carried out."""
    held: list[WriteMarkers] = []
    _ = broker.world.transactions
    broker.world.runtime.on_action(WriteMarkers, held.append)
    return held


@both_protocols
async def test_acks_0(autojump_clock: Virtual, second: bool) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = producer(broker, second=second)
        await client.start()
        if not second:
            await client.add(("t", 0))
        await client.client.send("Produce", 12 if second else 9, client.request(b"a", acks=0))
        await decided(client.client)
        assert broker.world.partition("t", 0).log_end_offset == 1
        client.epoch += 5
        await client.client.send("Produce", 12, client.request(b"a", acks=0))
        assert await client.client.is_closed()


# -- partitions that are not there, or not ours ----------------------------------------------------------------------


async def test_all_partitions_are_added_or_none(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        await broker.create_topic("mirrored")
        broker.world.partition("mirrored", 0).set_mode(LogMode.READ_ONLY, "a mirror has it")
        client = producer(broker)
        await client.start()
        await client.add_offsets()
        await client.end(commit=False)
        await decided(client.client)
        others = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await client.add(("t", 0), ("nothing", 0), ("t", 1)) == [others, 3, 3]
        assert await client.add(("t", 0), ("mirrored", 0)) == [others, ErrorCode.READ_ONLY_TOPIC]
        internal = await client.add(("t", 0), ("__consumer_offsets", 0))
        assert internal == [others, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        assert (await described(client.client)).transaction_state == "CompleteAbort"
        row = await client.send(b"a", topic="mirrored", version=12)
        assert row.error_code == ErrorCode.READ_ONLY_TOPIC
        assert (await described(client.client)).topics == []


async def test_several_transactions_at_once_as_brokers_ask(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        client = producer(broker)
        await client.start()
        await client.add(("t", 0))
        topics = [AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]

        def asked(name: str, epoch: int = 0, *, verify_only: bool = True) -> AddPartitionsToTxnTransaction:
            return AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=client.producer_id,
                producer_epoch=epoch,
                verify_only=verify_only,
                topics=topics,
            )

        request = AddPartitionsToTxnRequest(
            transactions=[
                asked("x"),
                asked("y"),
                asked("x", 3, verify_only=False),
            ]
        )
        answer = await client.client.ask("AddPartitionsToTxn", 5, request)
        rows = [
            (
                result.transactional_id,
                [row.partition_error_code for row in result.topic_results[0].results_by_partition],
            )
            for result in answer.results_by_transaction
        ]
        assert rows == [
            ("x", [0, ErrorCode.TRANSACTION_ABORTABLE]),
            ("y", [UNKNOWN_ID, UNKNOWN_ID]),
            ("x", [FENCED, FENCED]),
        ]


async def test_a_deleted_topic_does_not_keep_a_transaction_from_ending(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        await broker.create_topic("gone")
        client = producer(broker)
        await client.start()
        await client.add(("t", 0), ("gone", 0))
        await client.send(b"a")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=1000)
        await broker.connect().ask("DeleteTopics", 6, request)
        assert (await client.end(commit=True)).error_code == 0
        assert await decided(client.client) == "CompleteCommit"
        assert await visible(client.client) == [b"a"]


async def test_a_full_disk_delays_the_end_and_no_more(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        client = producer(broker)
        await client.start()
        await client.add(("t", 0), ("t", 1))
        await client.send(b"a")
        broker.filesystem.fail("write", "t-1/00000000000000000000.log", error=28, times=3)
        assert (await client.end(commit=True)).error_code == 0
        await trio.sleep(1.5)
        assert (await described(client.client)).transaction_state == "PrepareCommit"
        assert await client.add(("t", 0)) == [CONCURRENT]
        await trio.sleep(5)
        assert await decided(client.client) == "CompleteCommit"
        assert markers(broker) == markers(broker, partition=1) == [("COMMIT", client.producer_id, 0)]


async def test_a_coordinator_without_space_is_looked_for_again(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = producer(broker)
        await client.start()
        index = broker.world.transactions._log_of("x").partition
        broker.filesystem.fail("write", f"__transaction_state-{index}/00000000000000000000.log", error=28, times=2)
        assert await client.add(("t", 0)) == [ErrorCode.NOT_COORDINATOR]
        assert (await client.init()).error_code == ErrorCode.NOT_COORDINATOR
        assert await client.add(("t", 0)) == [0]


# -- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("commit", [True, False])
async def test_a_decision_is_carried_out_by_the_next_start(autojump_clock: Virtual, commit: bool, clean: bool) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        hold_markers(broker)
        client = producer(broker)
        await client.start()
        await client.add(("t", 0), ("t", 1))
        await client.send(b"a")
        assert (await client.end(commit=commit)).error_code == 0
        assert markers(broker) == []
        filesystem = broker.filesystem
    if not clean:
        filesystem.remove("/data/.kafka_cleanshutdown")
    async with serving(filesystem=filesystem) as broker:
        reader = broker.connect()
        state = await decided(reader)
        assert state == ("CompleteCommit" if commit else "CompleteAbort")
        kind = "COMMIT" if commit else "ABORT"
        assert markers(broker) == markers(broker, partition=1) == [(kind, client.producer_id, 0)]
        assert await visible(reader) == ([b"a"] if commit else [])
        partition = broker.world.partition("t", 0)
        epochs = [header.leader_epoch for header, _ in partition.log.batches(0, 2)]
        assert epochs[1] == partition.leader_epoch == (0 if clean else 1), "no marker in the epoch of the crash"


async def test_ids_expire_with_a_tombstone(autojump_clock: Virtual) -> None:
    async with serving({"transactional.id.expiration.ms": "7200000"}) as broker:
        client = producer(broker)
        await client.start()
        log_id = broker.world.transactions._log_of("x")
        await trio.sleep(2 * 3600 - 10)
        assert (await described(broker.connect())).transaction_state == "Empty"
        await trio.sleep(3600)
        state = await described(broker.connect())
        assert state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        log = broker.world.partition(log_id.topic, log_id.partition).log
        last = [record for _, data in log.batches(0, log.log_end_offset) for record in read_records(data)][-1]
        assert (last.key, last.value) == (records.encode_key("x"), None)


def _describe(*names: str) -> Any:
    return DescribeTransactionsRequest(transactional_ids=list(names))


# -- looking, and ending by hand -------------------------------------------------------------------------------------


async def test_listing_and_describing(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 3)
        reader = broker.connect()
        assert (await reader.ask("ListTransactions", 2, ListTransactionsRequest())).transaction_states == []
        idle, busy = producer(broker, "idle"), producer(broker, "busy", timeout_ms=30_000)
        await idle.start()
        await busy.start()
        await trio.sleep(1)
        await busy.add(("t", 2), ("t", 0))
        await trio.sleep(5)

        async def listed(version: int = 2, **parts: Any) -> list[tuple[str, str]]:
            answer = await reader.ask("ListTransactions", version, ListTransactionsRequest(**parts))
            return sorted((row.transactional_id, row.transaction_state) for row in answer.transaction_states)

        assert await listed(0) == [("busy", "Ongoing"), ("idle", "Empty")]
        assert await listed(state_filters=["Ongoing"]) == [("busy", "Ongoing")]
        assert await listed(producer_id_filters=[idle.producer_id]) == [("idle", "Empty")]
        assert await listed(duration_filter=4000, state_filters=["Ongoing"]) == [("busy", "Ongoing")]
        assert await listed(duration_filter=6000, state_filters=["Ongoing"]) == []
        assert await listed(transactional_id_pattern="b.*y") == [("busy", "Ongoing")]
        assert await listed(transactional_id_pattern="b") == []
        answer = await reader.ask("ListTransactions", 2, ListTransactionsRequest(transactional_id_pattern="("))
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        answer = await reader.ask("ListTransactions", 0, ListTransactionsRequest(state_filters=["Odd", "Dead"]))
        assert (answer.unknown_state_filters, answer.transaction_states) == (["Odd"], [])
        answer = await reader.ask("DescribeTransactions", 0, _describe("busy", "nobody", ""))
        first, second, third = answer.transaction_states
        assert (first.producer_id, first.producer_epoch, first.transaction_timeout_ms) == (busy.producer_id, 0, 30_000)
        assert [(topic.topic, topic.partitions) for topic in first.topics] == [("t", [0, 2])]
        assert first.transaction_start_time_ms == broker.world.clock.time_ms() - 5000
        assert (second.error_code, third.error_code) == (
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            ErrorCode.INVALID_REQUEST,
        )


async def _producers(broker: Broker) -> list[Any]:
    request = DescribeProducersRequest(topics=[DescribeProducersTopicRequest(name="t", partition_indexes=[0])])
    answer = await broker.connect().ask("DescribeProducers", 0, request)
    found: list[Any] = answer.topics[0].partitions[0].active_producers
    return found


async def test_a_hanging_transaction_is_found_and_ended_by_hand(autojump_clock: Virtual) -> None:
    """KIP-664: what `kafka-transactions find-hanging` and `abort` do."""
    async with serving({"transaction.partition.verification.enable": "false"}) as broker:
        await broker.create_topic("t")
        client = producer(broker)
        await client.start()
        await client.start()
        await client.send(b"hangs")
        (found,) = await _producers(broker)
        assert (found.producer_id, found.current_txn_start_offset, found.last_sequence) == (client.producer_id, 0, 0)
        assert found.coordinator_epoch == -1

        async def abort(epoch: int = 1, version: int = 1, **parts: Any) -> list[int]:
            topics = [WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1])]
            marker = WritableTxnMarker(
                producer_id=client.producer_id, producer_epoch=epoch, topics=topics, coordinator_epoch=0, **parts
            )
            answer = await client.client.ask("WriteTxnMarkers", version, WriteTxnMarkersRequest(markers=[marker]))
            return [row.error_code for row in answer.markers[0].topics[0].partitions]

        assert await abort(0) == [OLD_EPOCH, 3]
        assert await abort(1, 2, transaction_version=2) == [OLD_EPOCH, 3]
        assert await abort(-1) == [ErrorCode.INVALID_REQUEST, 3]
        assert await abort() == [0, 3]
        assert markers(broker) == [("ABORT", client.producer_id, 1)]
        (found,) = await _producers(broker)
        assert (found.current_txn_start_offset, found.coordinator_epoch) == (-1, 0)
        assert await visible(client.client) == []


async def test_a_log_that_knows_a_newer_coordinator_does_not_keep_a_transaction_from_ending(
    autojump_clock: Virtual,
) -> None:
    """Somebody ended a transaction by hand, as a later coordinator: the next one needs no marker from this one."""
    async with serving() as broker:
        await broker.create_topic("t", 2)
        client = producer(broker)
        await client.start()
        topics = [WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
        marker = WritableTxnMarker(
            producer_id=client.producer_id, producer_epoch=client.epoch, topics=topics, coordinator_epoch=5
        )
        await client.client.ask("WriteTxnMarkers", 1, WriteTxnMarkersRequest(markers=[marker]))
        await client.add(("t", 0), ("t", 1))
        assert (await client.end(commit=True)).error_code == 0
        assert await decided(client.client) == "CompleteCommit"
        assert markers(broker) == [("ABORT", client.producer_id, 0)]
        assert markers(broker, partition=1) == [("COMMIT", client.producer_id, 0)]


async def test_an_epoch_below_that_of_the_partition_is_not_added(autojump_clock: Virtual) -> None:
    """What the partition knows comes first (UnifiedLog.maybeStartTransactionVerification)."""
    async with serving() as broker:
        await broker.create_topic("t")
        client = producer(broker)
        await client.start()
        topics = [WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
        marker = WritableTxnMarker(producer_id=client.producer_id, producer_epoch=3, topics=topics)
        await client.client.ask("WriteTxnMarkers", 1, WriteTxnMarkersRequest(markers=[marker]))
        row = await client.send(b"a", version=12)
        assert (row.error_code, row.log_start_offset) == (OLD_EPOCH, -1)
        assert (await described(client.client)).transaction_state == "Empty"


async def test_idle_producers_are_forgotten(autojump_clock: Virtual) -> None:
    """B046."""
    async with serving({"producer.id.expiration.ms": "5000"}) as broker:
        await broker.create_topic("t")
        client = producer(broker, second=True)
        await client.start()
        await client.transact(b"a")
        reader = broker.connect()
        for timestamp_ms in (-1, 0):
            data = batch(b"v", producer_id=77, producer_epoch=0, base_sequence=0, timestamp_ms=timestamp_ms)
            await reader.ask("Produce", 9, produce(data))
            await trio.sleep(1)
            assert 77 in {found.producer_id for found in await _producers(broker)}
            await trio.sleep(SWEEP_S)
            assert await _producers(broker) == []
        data = batch(b"v", producer_id=77, producer_epoch=0, base_sequence=7)
        row = (await reader.ask("Produce", 9, produce(data))).responses[0].partition_responses[0]
        assert row.error_code == 0, "no state, any sequence"
        client.producer_id = -1
        await client.start()
        row = await client.send(b"b", sequence=7)
        assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "KIP-890: a transaction begins at 0"


async def test_an_open_transaction_is_never_forgotten(autojump_clock: Virtual) -> None:
    async with serving({"producer.id.expiration.ms": "5000"}) as broker:
        await broker.create_topic("t")
        client = producer(broker)
        await client.start()
        await client.add(("t", 0))
        await client.send(b"a")
        await trio.sleep(30)
        assert [found.producer_id for found in await _producers(broker)] == [client.producer_id]


# -- levels, alignment -----------------------------------------------------------------------------------------------


async def test_the_level_of_transactions_can_be_lowered(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        client = producer(broker)
        answer = await client.client.ask(
            "ApiVersions", 4, ApiVersionsRequest(client_software_name="test", client_software_version="1")
        )
        assert {f.name: (f.min_version, f.max_version) for f in answer.supported_features}["transaction.version"] == (
            0,
            2,
        )
        assert {f.name: f.max_version_level for f in answer.finalized_features}["transaction.version"] == 2
        update = FeatureUpdateKey(feature="transaction.version", max_version_level=0, upgrade_type=2)
        lowered = await client.client.ask("UpdateFeatures", 1, UpdateFeaturesRequest(feature_updates=[update]))
        assert lowered.error_code == 0
        await client.start()
        log_id = broker.world.transactions._log_of("x")
        log = broker.world.partition(log_id.topic, log_id.partition).log
        (record,) = [record for _, data in log.batches(0, log.log_end_offset) for record in read_records(data)]
        assert record.value is not None
        assert record.value[:2] == b"\0\0", "Kafka of that level reads version 0 only"


@both_protocols
async def test_alignment_ends_what_is_open_on_a_topic(autojump_clock: Virtual, second: bool) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        await broker.create_topic("other")
        one, two, aside = (producer(broker, name, second=second) for name in ("one", "two", "aside"))
        for client, topic, partition in ((one, "t", 0), (two, "t", 1), (aside, "other", 0)):
            await client.start()
            if not second:
                await client.add((topic, partition))
            await client.send(b"a", topic=topic, partition=partition)
        await settled(broker.world.transactions.end_for_alignment("t", 1))
        assert markers(broker) == []
        assert markers(broker, partition=1) == [("ABORT", two.producer_id, 1)]
        await settled(broker.world.transactions.end_for_alignment("t"))
        assert markers(broker) == [("ABORT", one.producer_id, 1)]
        assert (await described(aside.client, "aside")).transaction_state == "Ongoing"
        assert (await one.end(commit=True)).error_code == (WRONG_STATE if second else FENCED)


async def test_alignment_waits_for_the_last_of_what_is_open(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        first, last = producer(broker, "first"), producer(broker, "last")
        for client, partition in ((first, 0), (last, 1)):
            await client.start()
            await client.add(("t", partition))
        broker.filesystem.fail("write", "t-1/00000000000000000000.log", error=28, times=2)
        ended = broker.world.transactions.end_for_alignment("t")
        assert (markers(broker), ended.done) == ([("ABORT", first.producer_id, 1)], False)
        await settled(ended)
        assert markers(broker, partition=1) == [("ABORT", last.producer_id, 1)]
        assert (await described(last.client, "last")).transaction_state == "CompleteAbort"


async def test_a_log_that_a_mirror_has_takes_no_marker(autojump_clock: Virtual) -> None:
    """Whatever the transaction wrote there was ended or cut before; the transaction ends without it."""
    async with serving() as broker:
        await broker.create_topic("t", 2)
        client = producer(broker)
        await client.start()
        await client.add(("t", 0), ("t", 1))
        await client.send(b"a")
        broker.world.partition("t", 1).set_mode(LogMode.READ_ONLY, "a mirror has it")
        assert (await client.end(commit=True)).error_code == 0
        assert await decided(client.client) == "CompleteCommit"
        assert (markers(broker), markers(broker, partition=1)) == ([("COMMIT", client.producer_id, 0)], [])
