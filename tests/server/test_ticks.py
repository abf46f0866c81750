"""Periodic work, in virtual time: what is due runs, what fails for lack of space is tried again."""

from __future__ import annotations

import errno

import trio
import trio.testing

from kmirror.errors import DiskFailure
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.api.metadata import MetadataRequest
from kmirror.workers.ticks import Ticks
from tests.server.harness import START_MS, Broker, batch, produce, serving

Virtual = trio.testing.MockClock


async def fill(broker: Broker, count: int) -> None:
    client = broker.connect()
    for _ in range(count):
        await client.ask("Produce", 9, produce(batch(bytes(300_000), timestamp_ms=START_MS)))


async def test_retention_by_time_and_the_files_behind_it(autojump_clock: Virtual) -> None:
    async with serving({"log.retention.check.interval.ms": "10000"}) as broker:
        await broker.create_topic("t", segment_bytes="1048576", retention_ms="60000", file_delete_delay_ms="1000")
        await fill(broker, 10)
        log = broker.world.partition("t", 0).log
        before = log.size_bytes
        await trio.sleep(30)
        assert (log.log_start_offset, log.size_bytes) == (0, before)
        await trio.sleep(60)
        assert log.log_start_offset > 0
        assert log.size_bytes < before
        await trio.sleep(30)
        assert not [name for name in broker.filesystem.list_dir("/data/t-0") if name.endswith(".deleted")]


async def test_a_deleted_topics_directory_goes_after_its_delay(autojump_clock: Virtual) -> None:
    async with serving({"log.segment.delete.delay.ms": "5000"}) as broker:
        await broker.create_topic("t")
        await fill(broker, 1)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
        await broker.connect().ask("DeleteTopics", 6, request)
        await trio.sleep(2)
        left = [name for name in broker.filesystem.list_dir("/data") if name.startswith("t")]
        assert left
        await trio.sleep(10)
        assert not [name for name in broker.filesystem.list_dir("/data") if name.startswith("t")]


async def test_idle_connections_are_closed_and_busy_ones_are_not(autojump_clock: Virtual) -> None:
    async with serving({"connections.max.idle.ms": "30000"}) as broker:
        idle, busy = broker.connect("idle"), broker.connect("busy")
        for _ in range(6):
            await busy.ask("Metadata", 9, MetadataRequest(topics=[]))
            await trio.sleep(10)
        assert await idle.is_closed()
        await busy.ask("Metadata", 9, MetadataRequest(topics=[]))


async def test_checkpoints_are_written_and_a_full_disk_is_survived(autojump_clock: Virtual) -> None:
    async with serving({"log.flush.offset.checkpoint.interval.ms": "10000"}) as broker:
        await broker.create_topic("t")
        await fill(broker, 3)
        broker.filesystem.fail("write", "recovery-point-offset-checkpoint", error=errno.ENOSPC)
        broker.filesystem.fail("write", "recovery-point-offset-checkpoint.tmp", error=errno.ENOSPC)
        await trio.sleep(35)
        broker.filesystem.heal()
        await trio.sleep(15)
        assert b"t 0 3" in broker.filesystem.read_file("/data/recovery-point-offset-checkpoint")
        assert broker.app.failure is None


async def test_a_disk_that_cannot_be_trusted_stops_the_broker(broker: Broker) -> None:
    failures: list[BaseException] = []
    ticks = Ticks(broker.world, broker.server, fatal=failures.append)
    error = DiskFailure("EIO")

    def broken() -> None:
        raise error

    ticks._jobs.insert(0, ("broken", lambda: 0, broken))
    ticks.turn()
    assert failures == [error]
