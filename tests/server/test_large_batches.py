"""A compressed batch that expands far is looked into in a thread; what its client sees is as if it had not been."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from crc32c import crc32c

from kmirror.limits import EXPANDED_ON_LOOP_BYTES
from kmirror.protocol.compression import Compression
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import HEADER_SIZE_BYTES, parse_header
from tests.server.harness import Broker, Threads, batch, produce, serving

Virtual = trio.testing.MockClock
LARGE = bytes(EXPANDED_ON_LOOP_BYTES)
"""With what is around it a little more than may be expanded on the loop."""
CODECS = [codec for codec in Compression if codec is not Compression.NONE]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with serving() as broker:
        await broker.create_topic("t", max_message_bytes="10000000")
        yield broker


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
async def test_others_are_served_and_the_order_is_kept(broker: Broker, codec: Compression) -> None:
    threads = Threads(broker)
    client, other = broker.connect(), broker.connect()
    numbered = {"producer_id": 9, "producer_epoch": 0}
    for sequence, value in enumerate((LARGE, b"small", b"next")):
        records = batch(value, compression=codec, base_sequence=sequence, **numbered)
        await client.send("Produce", 9, produce(records))
    await trio.testing.wait_all_tasks_blocked()
    answer = await other.ask("Produce", 9, produce(batch(b"meanwhile", compression=codec)))
    assert answer.responses[0].partition_responses[0].base_offset == 0
    threads.gate.set()
    rows = [(await client.receive("Produce", 9))[1].responses[0].partition_responses[0] for _ in range(3)]
    assert [(row.error_code, row.base_offset) for row in rows] == [(0, 1), (0, 2), (0, 3)]
    assert threads.count == 1


async def test_what_is_wrong_with_it_is_said(broker: Broker) -> None:
    """One record more announced than there is: found in the thread, refused where a small batch would be."""
    threads = Threads(broker)
    threads.gate.set()
    data = bytearray(batch(LARGE, b"x", compression=Compression.ZSTD))
    data[23:27], data[57:61] = (2).to_bytes(4, "big"), (3).to_bytes(4, "big")
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    assert parse_header(data).record_count == 3 and len(data) > HEADER_SIZE_BYTES
    answer = await broker.connect().ask("Produce", 9, produce(bytes(data)))
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
    assert threads.count == 1 and broker.world.partition("t", 0).log_end_offset == 0


async def test_a_connection_that_ends_meanwhile_appends_nothing(broker: Broker) -> None:
    threads = Threads(broker)
    client = broker.connect()
    await client.send("Produce", 9, produce(batch(LARGE, compression=Compression.ZSTD)))
    await trio.testing.wait_all_tasks_blocked()
    for connection in list(broker.server.connections):
        connection.close()
    threads.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert threads.count == 1 and broker.world.partition("t", 0).log_end_offset == 0


async def test_a_real_thread(broker: Broker) -> None:
    broker.server.threads = True
    answer = await broker.connect().ask("Produce", 9, produce(batch(LARGE, compression=Compression.GZIP)))
    assert answer.responses[0].partition_responses[0].error_code == 0
