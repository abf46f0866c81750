"""The coordinator of transactions when there is much to do, and when its own topic grows or goes away."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from kmirror.limits import TRANSACTION_MARKERS_PER_TURN
from kmirror.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.errors import ErrorCode
from tests.server.harness import serving
from tests.server.test_transactions import SWEEP_S, UNKNOWN_ID, producer
from tests.server.transaction_client import decided, described, markers

Virtual = trio.testing.MockClock


async def test_a_large_transaction_is_ended_in_turns(autojump_clock: Virtual) -> None:
    """Markers for a thousand partitions do not keep others waiting, and none is forgotten or written twice."""
    async with serving() as broker:
        count = 2 * TRANSACTION_MARKERS_PER_TURN + 7
        await broker.create_topic("t", count)
        client = producer(broker)
        await client.start()
        places = [("t", index) for index in range(count)]
        await client.add(*places)
        broker.filesystem.fail("write", "t-5/00000000000000000000.log", error=28, times=1)
        turns: list[int] = []
        runtime = broker.world.runtime
        real = runtime.append_marker

        def append_marker(*args: Any, **parts: Any) -> Any:
            turns.append(int(trio.current_time() * 1000))
            return real(*args, **parts)

        runtime.append_marker = append_marker  # type: ignore[method-assign]
        written: list[int] = []

        def fire_timers() -> None:
            before = len(turns)
            fire()
            written.append(len(turns) - before)

        fire = runtime.fire_timers
        runtime.fire_timers = fire_timers  # type: ignore[method-assign]
        assert (await client.end(commit=True)).error_code == 0
        assert await decided(client.client) == "CompleteCommit"
        assert max(written) <= TRANSACTION_MARKERS_PER_TURN
        assert len(turns) == count + 1, "the one that was refused, once more"
        assert all(markers(broker, partition=index) == [("COMMIT", client.producer_id, 0)] for index in range(count))


async def test_without_its_topic_the_coordinator_knows_nobody(autojump_clock: Virtual) -> None:
    """An operator deletes `__transaction_state`: as in Kafka ids are forgotten, and what was open is ended by hand."""
    async with serving() as broker:
        await broker.create_topic("t")
        client, other = producer(broker, timeout_ms=5_000), producer(broker, "other")
        await client.start()
        await other.start()
        await client.add(("t", 0))
        await client.send(b"a")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="__transaction_state")], timeout_ms=1000)
        assert (await broker.connect().ask("DeleteTopics", 6, request)).responses[0].error_code == 0
        await trio.sleep(2 * SWEEP_S)
        assert (await client.end(commit=True)).error_code == UNKNOWN_ID
        assert (await described(client.client)).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        await client.start()
        assert client.epoch == 0
        assert await client.add(("t", 0)) == [0]
        assert (await client.end(commit=False)).error_code == 0
        assert await other.add(("t", 0)) == [UNKNOWN_ID]


async def test_requests_while_the_topic_of_transactions_is_being_deleted(autojump_clock: Virtual) -> None:
    """Between the record of the removal and its flush the coordinator still knows everybody and can record nothing."""
    async with serving() as broker:
        await broker.create_topic("t")
        client, idle, admin = producer(broker, timeout_ms=5_000), producer(broker, "idle"), broker.connect()
        for one in (client, idle):
            await one.start()
        await client.add(("t", 0))
        broker.flush.at_once = False
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="__transaction_state")], timeout_ms=60_000)
        await admin.send("DeleteTopics", 6, request)
        await trio.sleep(SWEEP_S)
        not_now = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await client.end(commit=True)).error_code == not_now
        assert await idle.add(("t", 0)) == [not_now]
        assert (await described(idle.client, "idle")).transaction_state == "Empty"
        broker.flush.at_once = True
        broker.flush.run()
        assert (await admin.receive("DeleteTopics", 6))[1].responses[0].error_code == 0
        assert await idle.add(("t", 0)) == [UNKNOWN_ID]


async def test_ids_outlive_the_growth_of_their_topic(autojump_clock: Virtual) -> None:
    """Their records move to other partitions at the next start; what is older does not win over what is newer."""
    names = [f"id-{number}" for number in range(12)]
    async with serving({"transaction.state.log.num.partitions": "5"}) as broker:
        await broker.create_topic("t")
        producers = [producer(broker, name) for name in names]
        for one in producers:
            await one.start()
        growth = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="__transaction_state", count=7, assignments=None)], timeout_ms=1000
        )
        assert (await broker.connect().ask("CreatePartitions", 2, growth)).results[0].error_code == 0
        for one in producers:
            assert await one.add(("t", 0)) == [0]
        filesystem = broker.filesystem
    for restart in (1, 2):
        async with serving(filesystem=filesystem) as broker:
            reader = broker.connect()
            for one in producers:
                one.client = broker.connect()
                expected = "Ongoing" if restart == 1 else "CompleteCommit"
                assert (await described(reader, one.name)).transaction_state == expected
                await one.send(b"a")
                if restart == 1:
                    await one.end(commit=True)
                    assert await decided(reader, one.name) == "CompleteCommit"
