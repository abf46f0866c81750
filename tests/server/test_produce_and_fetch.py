"""Produce and Fetch through the whole broker: acks, refusals, long polls, sessions (B008-B021)."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing

from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from kmirror.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import read_records, walk
from tests.server.harness import Broker, Client, batch, fetch, produce, serving

Virtual = trio.testing.MockClock


async def produced(client: Client, request: ProduceRequest, version: int = 9) -> Any:
    return (await client.ask("Produce", version, request)).responses[0].partition_responses[0]


async def fetched(client: Client, request: FetchRequest, version: int = 12) -> Any:
    return (await client.ask("Fetch", version, request)).responses[0].partitions[0]


def values(records: memoryview) -> list[bytes | None]:
    return [record.value for position, _ in walk(records) for record in read_records(records, position)]


# --- produce ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [1, -1])
async def test_what_was_acknowledged_can_be_read(broker: Broker, version: int, acks: int) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    row = await produced(client, produce(batch(b"a", b"b"), acks=acks), version)
    assert (row.error_code, row.base_offset) == (0, 0)
    row = await produced(client, produce(batch(b"c"), acks=acks), version)
    assert (row.error_code, row.base_offset) == (0, 2)
    got = await fetched(client, fetch())
    assert values(got.records) == [b"a", b"b", b"c"]
    assert (got.high_watermark, got.last_stable_offset, got.log_start_offset) == (3, 3, 0)


async def test_topics_by_id(broker: Broker) -> None:
    await broker.create_topic("t")
    topic_id = broker.world.image.topics_by_name["t"].topic_id
    client = broker.connect()
    row = await produced(client, produce(batch(b"a"), topic="", topic_id=topic_id), 13)
    assert (row.error_code, row.base_offset) == (0, 0)
    row = await produced(client, produce(batch(b"a"), topic="", topic_id=b"\1" * 16), 13)
    assert (row.error_code, row.base_offset) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)
    request = fetch()
    request.topics[0].topic_id = topic_id
    got = await fetched(client, request, 13)
    assert values(got.records) == [b"a"]


@pytest.mark.parametrize("acks", [2, -2, 32_767])
async def test_other_acks_are_refused(broker: Broker, acks: int) -> None:
    await broker.create_topic("t")
    row = await produced(broker.connect(), produce(batch(b"a"), acks=acks))
    assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert broker.world.partition("t", 0).log_end_offset == 0


async def test_each_partition_is_answered_on_its_own(broker: Broker) -> None:
    await broker.create_topic("t", 2)
    good, bad = batch(b"a"), bytearray(batch(b"b"))
    bad[-1] ^= 1
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name="t",
                partition_data=[
                    PartitionProduceData(index=1, records=bytes(bad)),
                    PartitionProduceData(index=0, records=good),
                    PartitionProduceData(index=7, records=good),
                ],
            ),
            TopicProduceData(name="nowhere", partition_data=[PartitionProduceData(index=0, records=good)]),
        ],
    )
    answer = await broker.connect().ask("Produce", 9, request)
    codes = {(topic.name, row.index): row.error_code for topic in answer.responses for row in topic.partition_responses}
    assert codes == {("t", 1): 2, ("t", 0): 0, ("t", 7): 3, ("nowhere", 0): 3}


MALFORMED = {
    "null": (None, 11, ErrorCode.INVALID_RECORD),
    "empty": (b"", 11, ErrorCode.INVALID_RECORD),
    "two batches": (batch(b"a") + batch(b"b"), 11, ErrorCode.INVALID_RECORD),
    "control batch": (
        batch(b"a", producer_id=5, producer_epoch=0, control=True),
        11,
        ErrorCode.INVALID_RECORD,
    ),
    "zstd too early": (batch(b"a" * 100, compression=4), 6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "too large": (batch(b"a" * 1_100_000), 11, ErrorCode.MESSAGE_TOO_LARGE),
    "from the future": (batch(b"a", timestamp_ms=1 << 50), 11, ErrorCode.INVALID_TIMESTAMP),
    "transactional without id": (
        batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True),
        11,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_refused_batches_leave_no_trace(broker: Broker, name: str) -> None:
    records, version, code = MALFORMED[name]
    await broker.create_topic("t")
    client = broker.connect()
    row = await produced(client, produce(records), version)
    assert (ErrorCode(row.error_code), row.base_offset) == (code, -1)
    row = await produced(client, produce(batch(b"good")))
    assert (row.error_code, row.base_offset) == (0, 0)


async def test_a_transactional_id_is_not_known_here(broker: Broker) -> None:
    await broker.create_topic("t")
    records = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    row = await produced(broker.connect(), produce(records, transactional_id="x"))
    assert row.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_log_append_time_is_told(broker: Broker, autojump_clock: Virtual) -> None:
    await broker.create_topic("t", message_timestamp_type="LogAppendTime")
    await trio.sleep(3)
    row = await produced(broker.connect(), produce(batch(b"a", timestamp_ms=5)))
    assert row.log_append_time_ms == broker.world.clock.time_ms()


async def test_an_idempotent_retry_is_answered_with_the_first_offset(broker: Broker) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    first = batch(b"a", producer_id=9, producer_epoch=0, base_sequence=0)
    second = batch(b"b", producer_id=9, producer_epoch=0, base_sequence=1)
    for records, offset in ((first, 0), (second, 1), (first, 0)):
        row = await produced(client, produce(records))
        assert (row.error_code, row.base_offset) == (0, offset)
    gap = batch(b"z", producer_id=9, producer_epoch=0, base_sequence=7)
    row = await produced(client, produce(gap))
    assert (row.error_code, row.log_start_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)


async def test_nothing_is_acknowledged_or_shown_before_it_is_on_disk(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        broker.flush.at_once = False
        writer, reader = broker.connect(), broker.connect()
        await writer.send("Produce", 9, produce(batch(b"a"), acks=1))
        with trio.move_on_after(60) as scope:
            await writer.frame()
        assert scope.cancelled_caught
        row = await fetched(reader, fetch())
        assert (row.high_watermark, bytes(row.records)) == (0, b"")
        broker.flush.run()
        await writer.receive("Produce", 9)
        assert values((await fetched(reader, fetch())).records) == [b"a"]


async def test_a_produce_is_decided_by_its_own_flush_though_the_topic_is_being_deleted() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        broker.flush.at_once = False
        writer = broker.connect()
        await writer.send("Produce", 9, produce(batch(b"a")))
        await trio.testing.wait_all_tasks_blocked()
        admin = broker.connect()
        await admin.send("DeleteTopics", 6, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000))
        await trio.testing.wait_all_tasks_blocked()
        broker.flush.run()
        await admin.receive("DeleteTopics", 6)
        _, answer = await writer.receive("Produce", 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert "t" not in broker.world.image.topics_by_name


# --- fetch: waiting (B021) --------------------------------------------------------------------------------------------


async def test_an_idle_fetch_waits_its_time(broker: Broker, autojump_clock: Virtual) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    began = trio.current_time()
    row = await fetched(client, fetch(max_wait_ms=1000))
    assert trio.current_time() - began == 1
    assert (row.error_code, bytes(row.records)) == (0, b"")


@pytest.mark.parametrize("hurry", [{"min_bytes": 0}, {"max_wait_ms": 0}])
async def test_a_fetch_that_wants_nothing_is_answered_at_once(
    broker: Broker, autojump_clock: Virtual, hurry: dict[str, int]
) -> None:
    await broker.create_topic("t")
    began = trio.current_time()
    await fetched(broker.connect(), fetch(**{"max_wait_ms": 1000, **hurry}))
    assert trio.current_time() == began


async def test_a_parked_fetch_is_woken_by_a_produce(broker: Broker, autojump_clock: Virtual) -> None:
    await broker.create_topic("t")
    reader, writer = broker.connect(), broker.connect()
    began = trio.current_time()
    await reader.send("Fetch", 12, fetch(max_wait_ms=5000))
    await trio.sleep(0.3)
    await produced(writer, produce(batch(b"a")))
    _, answer = await reader.receive("Fetch", 12)
    assert values(answer.responses[0].partitions[0].records) == [b"a"]
    assert trio.current_time() - began == pytest.approx(0.3)


async def test_too_few_bytes_wait_for_more_or_for_the_end(broker: Broker, autojump_clock: Virtual) -> None:
    await broker.create_topic("t")
    reader, writer = broker.connect(), broker.connect()
    await produced(writer, produce(batch(bytes(1000))))
    began = trio.current_time()
    await reader.send("Fetch", 12, fetch(max_wait_ms=1000, min_bytes=100_000))
    await trio.sleep(0.5)
    await produced(writer, produce(batch(bytes(1000))))
    _, answer = await reader.receive("Fetch", 12)
    assert trio.current_time() - began == 1
    assert len(values(answer.responses[0].partitions[0].records)) == 2
    await reader.send("Fetch", 12, fetch(max_wait_ms=1000, min_bytes=100_000))
    await trio.sleep(0.5)
    await produced(writer, produce(batch(bytes(100_000))))
    await reader.receive("Fetch", 12)
    assert trio.current_time() - began == pytest.approx(1.5)


async def test_data_or_an_error_in_one_row_answers_for_all(broker: Broker, autojump_clock: Virtual) -> None:
    await broker.create_topic("t", 2)
    client = broker.connect()
    await produced(client, produce(batch(b"a"), partition=1))
    began = trio.current_time()
    both = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in (0, 1)]
    request = FetchRequest(
        max_wait_ms=1000, min_bytes=1, session_epoch=-1, topics=[FetchTopic(topic="t", partitions=both)]
    )
    answer = await client.ask("Fetch", 12, request)
    assert {row.partition_index: bool(row.records) for row in answer.responses[0].partitions} == {0: False, 1: True}
    both[1].fetch_offset = 99
    answer = await client.ask("Fetch", 12, request)
    codes = {row.partition_index: row.error_code for row in answer.responses[0].partitions}
    assert codes == {0: 0, 1: ErrorCode.OFFSET_OUT_OF_RANGE}
    assert trio.current_time() == began


async def test_a_deleted_topic_wakes_its_fetches_with_a_code_they_know(broker: Broker, autojump_clock: Virtual) -> None:
    await broker.create_topic("t")
    reader = broker.connect()
    await reader.send("Fetch", 12, fetch(max_wait_ms=60_000))
    await trio.testing.wait_all_tasks_blocked()
    admin = broker.connect()
    await admin.ask("DeleteTopics", 6, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000))
    _, answer = await reader.receive("Fetch", 12)
    assert answer.responses[0].partitions[0].error_code in (3, 6)


async def test_a_parked_fetch_leaves_nothing_behind(broker: Broker, autojump_clock: Virtual) -> None:
    await broker.create_topic("t")
    for _ in range(3):
        client = broker.connect("reader")
        await client.send("Fetch", 12, fetch(max_wait_ms=3000))
        await trio.testing.wait_all_tasks_blocked()
        (connection,) = [known for known in broker.server.connections if known.peer.host == "reader"]
        connection.close()
        assert await client.is_closed()
    await trio.testing.wait_all_tasks_blocked()  # the parked tasks end in any order
    assert not broker.world.partition("t", 0)._subscribers
    assert not broker.server.connections


# --- fetch: content ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 12])
async def test_the_first_batch_is_larger_than_every_limit(broker: Broker, version: int) -> None:
    """B012."""
    await broker.create_topic("t")
    client = broker.connect()
    for _ in range(2):
        await produced(client, produce(batch(bytes(500_000))))
    for offset in (0, 1):
        row = await fetched(client, fetch(offset, max_bytes=1, partition_max_bytes=1), version)
        headers = [header for _, header in walk(row.records)]
        assert [header.base_offset for header in headers] == [offset]
        assert headers[0].size_bytes == len(row.records)


@pytest.mark.parametrize("version", range(4, 13))
async def test_records_are_never_null(broker: Broker, version: int) -> None:
    """B015: caught up, out of range, unknown."""
    await broker.create_topic("t")
    client = broker.connect()
    for request in (fetch(), fetch(5), fetch(topic="nowhere")):
        row = await fetched(client, request, version)
        assert row.records is not None
        assert len(row.records) == 0


async def test_a_large_answer_crosses_segments(broker: Broker, rng: random.Random) -> None:
    await broker.create_topic("t", segment_bytes="1048576")
    client = broker.connect()
    sent = [rng.randbytes(rng.choice([10, 5_000, 300_000])) for _ in range(40)]
    for value in sent:
        await produced(client, produce(batch(value)))
    row = await fetched(client, fetch(partition_max_bytes=1 << 26, max_bytes=1 << 26))
    got = values(row.records)
    assert got == sent[: len(got)]
    assert len(got) > 1


# --- fetch: sessions (B017) -------------------------------------------------------------------------------------------


def session_fetch(session_id: int, epoch: int, *rows: tuple[int, int], forget: tuple[int, ...] = ()) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20) for index, offset in rows
    ]
    return FetchRequest(
        max_wait_ms=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=list(forget))] if forget else [],
    )


def served(answer: Any) -> list[int]:
    return sorted(row.partition_index for topic in answer.responses for row in topic.partitions)


async def test_a_session_moves_forgets_and_ends(broker: Broker) -> None:
    await broker.create_topic("t", 2)
    client = broker.connect()
    for index in (0, 1):
        for number in range(5):
            await produced(client, produce(batch(b"%d" % number), partition=index))
    answer = await client.ask("Fetch", 10, session_fetch(0, 0, (0, 0), (1, 0)))
    session = answer.session_id
    assert session != 0
    assert served(answer) == [0, 1]
    answer = await client.ask("Fetch", 10, session_fetch(session, 1, (0, 3), (1, 5)))
    assert served(answer) == [0]
    assert next(walk(answer.responses[0].partitions[0].records))[1].base_offset == 3
    answer = await client.ask("Fetch", 10, session_fetch(session, 2, forget=(0,)))
    assert served(answer) == []
    await produced(client, produce(batch(b"x"), partition=0))
    await produced(client, produce(batch(b"y"), partition=1))
    answer = await client.ask("Fetch", 10, session_fetch(session, 3))
    assert served(answer) == [1]
    wrong_epoch = await client.ask("Fetch", 10, session_fetch(session, 9))
    assert wrong_epoch.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = await client.ask("Fetch", 10, session_fetch(session ^ 1, 1))
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    await client.ask("Fetch", 10, session_fetch(session, 4, forget=(1,)))
    gone = await client.ask("Fetch", 10, session_fetch(session, 5))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_closed_session_gets_one_full_answer(broker: Broker) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    session = (await client.ask("Fetch", 10, session_fetch(0, 0, (0, 0)))).session_id
    answer = await client.ask("Fetch", 10, session_fetch(session, -1, (0, 0)))
    assert (answer.error_code, answer.session_id, served(answer)) == (0, 0, [0])
    assert len(broker.world.fetch_sessions) == 0
