"""Framing, order of replies, and what a connection costs when the peer is not Kafka (B001, B002, B005, B006)."""

from __future__ import annotations

import logging
import random
import struct

import pytest
import trio
import trio.testing

from kmirror.limits import LAST_REPLIES_MS, REPLY_QUEUE_ENTRIES
from kmirror.protocol import registry
from kmirror.protocol.api.api_versions import ApiVersionsRequest
from kmirror.protocol.api.fetch import FetchRequest
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from tests.server.harness import Broker, Client, batch, fetch, produce, serving

SOFTWARE = ApiVersionsRequest(client_software_name="probe", client_software_version="1.0")


def header(api_key: int, version: int, correlation_id: int = 1, client_id: bytes = b"probe") -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def alive(broker: Broker) -> bool:
    answer = await broker.connect().ask("Metadata", 12, MetadataRequest(topics=[]))
    return bool(answer.brokers[0].node_id == 1)


# --- B001, B002 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [6, 99, 32_767])
async def test_unknown_api_versions_version_is_answered_in_version_0(broker: Broker, version: int) -> None:
    client = broker.connect()
    await client.send_bytes(framed(header(18, version, 7) + b"\0" + random.Random(version).randbytes(16)))
    reply = await client.frame()
    assert reply == struct.pack(">ihihhh", 7, 35, 1, 18, 0, 5)
    answer = await client.ask("ApiVersions", 3, SOFTWARE)
    assert answer.error_code == 0


@pytest.mark.parametrize("version", range(6))
async def test_api_versions_reply_header_is_version_0(broker: Broker, version: int) -> None:
    client = broker.connect()
    await client.send("ApiVersions", version, SOFTWARE if version >= 3 else ApiVersionsRequest())
    reply = await client.frame()
    assert reply[4:6] == b"\0\0"


async def test_flexible_replies_have_a_tag_count_behind_the_correlation_id(broker: Broker) -> None:
    client = broker.connect()
    await client.send("Metadata", 12, MetadataRequest(topics=[]))
    assert (await client.frame())[4] == 0


async def test_unknown_tags_in_a_request_are_skipped(broker: Broker) -> None:
    client = broker.connect()
    tag = b"\x01\xe8\x07\x03abc"  # one tagged field, tag 1000, three bytes
    body = b"\x02" + bytes(16) + b"\x02t" + tag + b"\x01\x00" + tag
    await client.send_bytes(framed(header(3, 12) + tag + body))
    _, answer = await client.receive("Metadata", 12)
    assert [topic.name for topic in answer.topics] == ["t"]


# --- B006 -------------------------------------------------------------------------------------------------------------

RUBBISH = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "negative size": struct.pack(">i", -1),
    "size 0": struct.pack(">i", 0),
    "size above the limit": struct.pack(">i", 104_857_601),
    "6 bytes": framed(b"abcdef"),
    "unknown API": framed(header(9999, 0)),
    "negative client id": framed(struct.pack(">hhih", 3, 1, 1, -7530)),
    "client id beyond the end": framed(struct.pack(">hhih", 3, 1, 1, 500) + b"x"),
    "TLS hello": bytes.fromhex("160301020001fc0303") + bytes(500),
    "Produce version 100": framed(header(0, 100)),
    "Produce version 2": framed(header(0, 2) + bytes(20)),
    "negative version": framed(header(3, -1)),
    "truncated body": framed(header(3, 1) + struct.pack(">i", 3)),
    "count beyond the end": framed(header(3, 1) + struct.pack(">i", 2**31 - 1)),
}


@pytest.mark.parametrize("name", RUBBISH)
async def test_rubbish_costs_its_connection_and_one_log_line(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kmirror.server")
    client = broker.connect("scanner")
    await client.send_bytes(RUBBISH[name])
    assert await client.is_closed()
    lines = [record for record in caplog.records if "scanner" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].levelno == logging.INFO
    assert lines[0].exc_info is None
    assert len(lines[0].getMessage()) < 200
    assert await alive(broker)


async def test_a_claimed_size_is_not_allocated(broker: Broker) -> None:
    client = broker.connect()
    await client.send_bytes(struct.pack(">i", 104_857_600) + b"x")
    assert await alive(broker)
    await trio.testing.wait_all_tasks_blocked()
    assert broker.server.budget.used_bytes < 2 * 1024 * 1024
    client.close()
    await trio.testing.wait_all_tasks_blocked()
    assert broker.server.budget.used_bytes == 0


async def test_silence_within_a_frame_ends_with_the_idle_time(autojump_clock: trio.testing.MockClock) -> None:
    async with serving({"connections.max.idle.ms": "60000"}) as broker:
        client = broker.connect()
        await client.send_bytes(struct.pack(">i", 1000) + b"x")
        began = trio.current_time()
        assert await client.is_closed(within_s=120)
        assert 60 <= trio.current_time() - began <= 75


async def test_an_unexpected_exception_costs_one_connection_and_a_traceback(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.connect().ask("Metadata", 12, MetadataRequest(topics=[]))
    route = broker.server.routes.find(3, 12)
    assert route is not None
    client = broker.connect()

    def broken(context: object, request: object) -> object:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(route, "handle", broken)
    await client.send("Metadata", 12, MetadataRequest(topics=[]))
    assert await client.is_closed()
    assert any(record.exc_info for record in caplog.records)
    monkeypatch.undo()
    assert await alive(broker)


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max.connections", "max.connections.per.ip"])
async def test_connections_beyond_the_limit_are_turned_away(autojump_clock: trio.testing.MockClock, name: str) -> None:
    async with serving({name: "2"}) as broker:
        first, second = broker.connect(), broker.connect()
        third = broker.connect()
        assert await third.is_closed()
        for client in (first, second):
            assert (await client.ask("Metadata", 12, MetadataRequest(topics=[]))).brokers
        first.close()
        await trio.testing.wait_all_tasks_blocked()
        assert await alive(broker)


# --- B005: order ------------------------------------------------------------------------------------------------------


async def test_replies_leave_in_the_order_of_their_requests(
    broker: Broker, autojump_clock: trio.testing.MockClock
) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    began = trio.current_time()
    await client.send("Fetch", 12, FetchRequest(max_wait_ms=2000, min_bytes=1, session_epoch=-1, topics=fetch().topics))
    await client.send("Metadata", 9, MetadataRequest(topics=[]))
    await client.send("Produce", 9, produce(batch(b"0"), acks=0, topic="other"))
    seen = [(await client.receive("Fetch", 12))[0], (await client.receive("Metadata", 9))[0]]
    assert seen == [1, 2]
    assert trio.current_time() - began == 2
    assert await client.is_closed()  # the acks=0 produce had no topic to write to: that is how the client learns


async def test_a_produce_without_acks_leaves_no_gap(broker: Broker) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    await client.send("Metadata", 9, MetadataRequest(topics=[]))
    await client.send("Produce", 9, produce(batch(b"0"), acks=0))
    await client.send("ApiVersions", 3, SOFTWARE)
    await client.send("Produce", 9, produce(batch(b"1"), acks=1))
    assert (await client.receive("Metadata", 9))[0] == 1
    assert (await client.receive("ApiVersions", 3))[0] == 3
    correlation_id, answer = await client.receive("Produce", 9)
    assert correlation_id == 4
    assert answer.responses[0].partition_responses[0].base_offset == 1


async def test_random_interleavings_keep_their_order(
    autojump_clock: trio.testing.MockClock, rng: random.Random
) -> None:
    """Small and large frames, replies at once, after a flush, after a wait; flushes happen at random moments."""
    async with serving(at_once=False) as broker, trio.open_nursery() as nursery:
        nursery.start_soon(_flush_now_and_then, broker, rng)
        await broker.create_topic("t")
        client = broker.connect()
        expected: list[tuple[str, int, int]] = []

        async def send_all() -> None:
            for _ in range(150):
                await _send_one(client, rng, expected)

        nursery.start_soon(send_all)
        seen = 0
        while client.sent < 150 or seen < len(expected):
            if seen == len(expected):
                await trio.sleep(0.001)
                continue
            api, version, correlation_id = expected[seen]
            assert (await client.receive(api, version))[0] == correlation_id
            seen += 1
        nursery.cancel_scope.cancel()


async def _flush_now_and_then(broker: Broker, rng: random.Random) -> None:
    while True:
        await trio.sleep(rng.random() / 50)
        broker.flush.run()


async def _send_one(client: Client, rng: random.Random, expected: list[tuple[str, int, int]]) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        expected.append(("Metadata", 9, client.sent + 1))
        await client.send("Metadata", 9, MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
    elif kind == 1:
        expected.append(("ApiVersions", 3, client.sent + 1))
        await client.send("ApiVersions", 3, SOFTWARE)
    elif kind == 2:
        expected.append(("Fetch", 12, client.sent + 1))
        await client.send("Fetch", 12, fetch(max_wait_ms=rng.choice([0, 5]), min_bytes=1 << 23))
    else:
        acks = rng.choice([0, 1, -1])
        if acks:
            expected.append(("Produce", 9, client.sent + 1))
        value = rng.randbytes(rng.choice([10, 4_000, 70_000, 900_000]))
        await client.send("Produce", 9, produce(batch(value), acks=acks))


async def test_a_produce_that_waits_for_its_flush_does_not_stop_the_reading(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving(at_once=False) as broker:
        await _create_unflushed(broker, "t")
        client = broker.connect()
        for number in range(3):
            await client.send("Produce", 9, produce(batch(b"%d" % number)))
        await client.send("Metadata", 9, MetadataRequest(topics=[]))
        await trio.testing.wait_all_tasks_blocked()
        assert broker.world.partition("t", 0).log_end_offset == 3
        with trio.move_on_after(1) as scope:
            await client.frame()
        assert scope.cancelled_caught  # the metadata reply waits behind the produces
        broker.flush.run()
        offsets = [
            (await client.receive("Produce", 9))[1].responses[0].partition_responses[0].base_offset for _ in range(3)
        ]
        assert offsets == [0, 1, 2]
        assert (await client.receive("Metadata", 9))[0] == 4


async def test_what_was_asked_before_rubbish_is_answered_first(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(at_once=False) as broker:
        await _create_unflushed(broker, "t")
        client = broker.connect()
        await client.send("Produce", 9, produce(batch(b"0")))
        await client.send("Metadata", 9, MetadataRequest(topics=[]))
        await client.send_bytes(framed(header(9999, 0)))
        await trio.testing.wait_all_tasks_blocked()
        broker.flush.run()
        assert [(await client.receive("Produce", 9))[0], (await client.receive("Metadata", 9))[0]] == [1, 2]
        assert await client.is_closed()


async def test_a_connection_that_ends_does_not_wait_for_ever_for_a_flush(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving(at_once=False) as broker:
        await _create_unflushed(broker, "t")
        client = broker.connect()
        await client.send("Produce", 9, produce(batch(b"0")))
        await client.send_bytes(framed(header(9999, 0)))
        assert await client.is_closed(within_s=2 * LAST_REPLIES_MS / 1000)
        broker.flush.run()  # its answer has nobody to go to
        assert await alive(broker)


async def test_the_reply_queue_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(at_once=False) as broker:
        await _create_unflushed(broker, "t")
        client = broker.connect()
        for number in range(REPLY_QUEUE_ENTRIES + 10):
            await client.send("Produce", 9, produce(batch(b"%d" % number)))
        await trio.testing.wait_all_tasks_blocked()
        assert broker.world.partition("t", 0).log_end_offset == REPLY_QUEUE_ENTRIES
        broker.flush.run()
        await trio.testing.wait_all_tasks_blocked()
        broker.flush.run()
        for _ in range(REPLY_QUEUE_ENTRIES + 10):
            await client.receive("Produce", 9)


async def _create_unflushed(broker: Broker, name: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.create_topic, name)
        await trio.testing.wait_all_tasks_blocked()
        broker.flush.run()


# --- back-pressure ----------------------------------------------------------------------------------------------------


async def test_a_peer_that_does_not_read_is_not_read_from(
    broker: Broker, autojump_clock: trio.testing.MockClock
) -> None:
    """Its requests stay in the kernel; other connections go on."""
    await broker.create_topic("t", 100)
    client = broker.connect()
    sent = 0
    with trio.move_on_after(5):
        while sent < 20_000:
            await client.send("Metadata", 9, MetadataRequest(topics=None))
            sent += 1
    assert 0 < sent < 20_000
    assert await alive(broker)
    for _ in range(sent):
        await client.frame()


async def test_a_frame_in_pieces_is_one_frame(broker: Broker, rng: random.Random) -> None:
    client = broker.connect()
    api = registry.by_name["ApiVersions"]
    data = framed(header(api.key, 0, 5))
    for position in range(len(data)):
        await client.send_bytes(data[position : position + 1])
        await trio.testing.wait_all_tasks_blocked()
    assert (await client.receive("ApiVersions", 0))[0] == 5


# --- peers that vanish ------------------------------------------------------------------------------------------------


async def test_a_parked_fetch_goes_with_its_client(autojump_clock: trio.testing.MockClock) -> None:
    """It stayed for its whole max_wait_ms, which the client chooses; a peer that is there keeps waiting."""
    async with serving() as broker:
        await broker.create_topic("t")
        gone, there = broker.connect(), broker.connect()
        for client in (gone, there):
            await client.send("Fetch", 12, fetch(max_wait_ms=3_600_000))
        await trio.sleep(2)
        partition = broker.world.partition("t", 0)
        before = len(broker.server.connections)
        assert len(partition._subscribers) == 2
        gone.close()
        await trio.sleep(2)
        assert len(partition._subscribers) == 1
        assert len(broker.server.connections) == before - 1
        await broker.connect().ask("Produce", 9, produce(batch(b"x")))
        _, answer = await there.receive("Fetch", 12)
        assert answer.responses[0].partitions[0].high_watermark == 1
