"""The transactional producer: which requests it sends in which protocol, and what it makes of refusals."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from kmirror.cli.failure import Failure
from kmirror.cli.transactional_producer import TransactionalProducer
from kmirror.protocol.api import add_partitions_to_txn, produce
from kmirror.protocol.api.end_txn import EndTxnResponse
from kmirror.protocol.api.init_producer_id import InitProducerIdResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import BatchHeader, Record, parse_header
from tests.cli.scripted_coordinator import ScriptedCoordinators, in_turn

RECORDS = [Record(None, b"a"), Record(None, b"b")]


def added(code: int = 0) -> add_partitions_to_txn.AddPartitionsToTxnResponse:
    partition = add_partitions_to_txn.AddPartitionsToTxnPartitionResult(partition_error_code=code)
    topic = add_partitions_to_txn.AddPartitionsToTxnTopicResult(name="t", results_by_partition=[partition])
    return add_partitions_to_txn.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])


def produced(code: int = 0) -> produce.ProduceResponse:
    partition = produce.PartitionProduceResponse(index=0, error_code=code, base_offset=7)
    return produce.ProduceResponse(responses=[produce.TopicProduceResponse(name="t", partition_responses=[partition])])


def scripted(level: int = 0, **answers: Any) -> ScriptedCoordinators:
    usual: dict[str, Any] = {
        "InitProducerId": InitProducerIdResponse(producer_id=5, producer_epoch=0),
        "AddPartitionsToTxn": added(),
        "Produce": produced(),
        "EndTxn": EndTxnResponse(),
    }
    found = {name: answer if callable(answer) else in_turn(answer) for name, answer in (usual | answers).items()}
    return ScriptedCoordinators(found, transaction_version=level)


async def started(cluster: ScriptedCoordinators) -> TransactionalProducer:
    producer = TransactionalProducer(cluster, "x")  # type: ignore[arg-type]
    await producer.start()
    return producer


def headers(cluster: ScriptedCoordinators) -> list[BatchHeader]:
    return [parse_header(request.topic_data[0].partition_data[0].records) for request in cluster.messages("Produce")]


def sent(cluster: ScriptedCoordinators) -> list[tuple[str, int]]:
    return [(asked.name, asked.version) for asked in cluster.asked if asked.name != "FindCoordinator"]


async def test_the_classic_protocol_adds_partitions_first_and_keeps_its_epoch(autojump_clock: MockClock) -> None:
    cluster = scripted()
    producer = await started(cluster)
    for _ in range(2):
        await producer.send("t", 0, RECORDS)
        await producer.send("t", 0, RECORDS)
        await producer.end(commit=True)
    assert sent(cluster) == [
        ("InitProducerId", 5),
        *[("AddPartitionsToTxn", 3), ("Produce", 11), ("Produce", 11), ("EndTxn", 4)] * 2,
    ]
    batches = [(header.producer_id, header.producer_epoch, header.base_sequence) for header in headers(cluster)]
    assert batches == [(5, 0, 0), (5, 0, 2), (5, 0, 4), (5, 0, 6)]
    assert all(header.is_transactional for header in headers(cluster))
    assert {request.transactional_id for request in cluster.messages("Produce")} == {"x"}
    assert [request.committed for request in cluster.messages("EndTxn")] == [True, True]


async def test_the_newer_protocol_adds_by_writing_and_raises_the_epoch(autojump_clock: MockClock) -> None:
    """KIP-890: the next transaction has the epoch that EndTxn handed out, and counts from 0."""
    cluster = scripted(
        2,
        EndTxn=in_turn(
            EndTxnResponse(producer_id=5, producer_epoch=1), EndTxnResponse(producer_id=6, producer_epoch=0)
        ),
    )
    producer = await started(cluster)
    for commit in (True, False):
        await producer.send("t", 0, RECORDS)
        await producer.end(commit=commit)
    await producer.send("t", 0, RECORDS)
    assert sent(cluster) == [("InitProducerId", 5), *[("Produce", 13), ("EndTxn", 5)] * 2, ("Produce", 13)]
    batches = [(header.producer_id, header.producer_epoch, header.base_sequence) for header in headers(cluster)]
    assert batches == [(5, 0, 0), (5, 1, 0), (6, 0, 0)]


@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
async def test_the_newer_protocol_needs_all_of_it(api: str, autojump_clock: MockClock) -> None:
    cluster = scripted(2)
    cluster.versions = {"Produce": 11} if api == "Produce" else {"EndTxn": 4}
    producer = await started(cluster)
    await producer.send("t", 0, RECORDS)
    assert not producer.implicit
    assert "AddPartitionsToTxn" in cluster.names()


async def test_a_transaction_without_records_has_nothing_to_end(autojump_clock: MockClock) -> None:
    cluster = scripted()
    producer = await started(cluster)
    await producer.end(commit=True)
    assert (producer.is_open, cluster.messages("EndTxn")) == (False, [])


async def test_what_is_still_being_completed_is_waited_for(autojump_clock: MockClock) -> None:
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    cluster = scripted(
        InitProducerId=in_turn(
            InitProducerIdResponse(error_code=busy), InitProducerIdResponse(producer_id=5, producer_epoch=3)
        ),
        AddPartitionsToTxn=in_turn(added(busy), added(busy), added()),
        Produce=in_turn(produced(busy), produced(ErrorCode.NOT_LEADER_OR_FOLLOWER), produced()),
        EndTxn=in_turn(EndTxnResponse(error_code=busy), EndTxnResponse()),
    )
    producer = await started(cluster)
    assert (await producer.send("t", 0, RECORDS)).base_offset == 7
    await producer.end(commit=True)
    assert [header.base_sequence for header in headers(cluster)] == [0, 0, 0], "the same batch, so it is stored once"
    counts = {name: len(cluster.messages(name)) for name in ("InitProducerId", "AddPartitionsToTxn", "EndTxn")}
    assert counts == {"InitProducerId": 2, "AddPartitionsToTxn": 3, "EndTxn": 2}


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn"])
@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
async def test_a_fenced_producer_says_so(api: str, code: int, autojump_clock: MockClock) -> None:
    answers: dict[str, Any] = {
        "InitProducerId": InitProducerIdResponse(error_code=code),
        "AddPartitionsToTxn": added(code),
        "Produce": produced(code),
        "EndTxn": EndTxnResponse(error_code=code),
    }
    cluster = scripted(**{api: answers[api]})
    with pytest.raises(Failure, match=ErrorCode(code).name) as raised:
        producer = await started(cluster)
        await producer.send("t", 0, RECORDS)
        await producer.end(commit=True)
    assert "taken this id over" in raised.value.next_step


async def test_other_refusals(autojump_clock: MockClock) -> None:
    cluster = scripted(Produce=produced(ErrorCode.MESSAGE_TOO_LARGE))
    producer = await started(cluster)
    assert (await producer.send("t", 0, RECORDS)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert producer.is_open, "there is something to abort"
    cluster = scripted(EndTxn=EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE))
    producer = await started(cluster)
    await producer.send("t", 0, RECORDS)
    with pytest.raises(Failure, match="could not abort") as raised:
        await producer.end(commit=False)
    assert "begin again" in raised.value.next_step
    refused = InitProducerIdResponse(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    with pytest.raises(Failure) as raised:
        await started(scripted(InitProducerId=refused))
    assert "transaction.max.timeout.ms" in raised.value.next_step
