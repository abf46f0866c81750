"""Compaction as a running broker does it: when, in a process of its own, and what clients see of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kmirror import app
from kmirror.broker.partition import Partition
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.world import World
from kmirror.protocol.records import Record, build_batch, read_records, walk
from kmirror.workers.cleaner import CleanerTask
from tests.server.harness import fetch, produce, serving

BACKOFF_S = 15
COMPACTED = {"cleanup_policy": "compact", "segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0.1"}


def keyed(key: bytes, value: bytes | None, **parts: Any) -> bytes:
    return build_batch([Record(key, value)], **parts)


def values(data: bytes) -> list[tuple[int, bytes | None, int]]:
    return [
        (record.offset, record.key, len(record.value or b""))
        for position, _ in walk(data)
        for record in read_records(data, position)
    ]


async def fill(client: Any, now_ms: int) -> None:
    """Ten versions of each of three keys, over several segments, and one more that keeps the last segment active."""
    for version in range(10):
        for key in (b"a", b"b", b"c"):
            data = keyed(key, b"%d" % version * 200_000, timestamp_ms=now_ms)
            answer = await client.ask("Produce", 11, produce(data))
            assert answer.responses[0].partition_responses[0].error_code == 0


async def test_old_values_go_while_clients_read(autojump_clock: MockClock) -> None:
    async with serving() as broker:
        await broker.create_topic("t", **COMPACTED)
        client = broker.connect()
        await fill(client, broker.world.clock.time_ms())
        partition = broker.world.partition("t", 0)
        size_bytes = partition.log.size_bytes
        assert len(partition.log.segments) > 3
        await trio.sleep(BACKOFF_S + 1)
        assert partition.log.size_bytes < size_bytes / 2
        clean = partition.cleaned_up_to
        assert 0 < clean <= partition.log.active.base_offset
        answer = await client.ask("Fetch", 11, fetch(0, max_bytes=1 << 30, partition_max_bytes=1 << 30))
        row = answer.responses[0].partitions[0]
        assert (row.error_code, row.high_watermark, row.log_start_offset) == (0, 30, 0)
        found = values(bytes(row.records))
        below = [key for offset, key, _ in found if offset < clean]
        assert sorted(set(below)) == sorted(below)
        assert [offset for offset, _, _ in found if offset >= clean] == list(range(clean, 30))
        name = "/data/cleaner-offset-checkpoint"
        assert f"t 0 {clean}".encode() in broker.filesystem.read_file(name)


async def test_what_is_not_dirty_enough_is_left_alone(autojump_clock: MockClock) -> None:
    async with serving() as broker:
        await broker.create_topic("t", cleanup_policy="compact", segment_bytes="1048576", min_compaction_lag_ms="60000")
        client = broker.connect()
        await fill(client, broker.world.clock.time_ms())
        partition = broker.world.partition("t", 0)
        await trio.sleep(2 * BACKOFF_S)
        assert partition.cleaned_up_to == -1
        await trio.sleep(60)
        assert partition.cleaned_up_to > 0


async def test_a_damaged_batch_is_reported_and_nothing_is_lost(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as broker:
        await broker.create_topic("t", **COMPACTED)
        client = broker.connect()
        await fill(client, broker.world.clock.time_ms())
        partition = broker.world.partition("t", 0)
        first = partition.log.segments[0].file
        first._node.data[500] ^= 1  # type: ignore[attr-defined]
        before = [segment.base_offset for segment in partition.log.segments]
        await trio.sleep(2 * BACKOFF_S)
        assert [segment.base_offset for segment in partition.log.segments] == before
        assert caplog.text.count("is not compacted any more") == 1
        assert "checksum" in caplog.text
        assert not [name for name in broker.filesystem.list_dir("/data/t-0") if "cleaned" in name]


@asynccontextmanager
async def compacted_topic(directory: Path) -> AsyncIterator[tuple[World, Partition]]:
    """A broker on real files, and the one partition of its topic `t`."""
    properties = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)}
    async with app.running(properties) as running:
        world = running.world
        configs: dict[str, str | None] = {name.replace("_", "."): value for name, value in COMPACTED.items()}
        created = trio.Event()
        world.create_topic(CreateTopicSpec("t", 1, configs=configs)).then(lambda _: created.set())
        await created.wait()
        yield world, world.partition("t", 0)


async def test_the_round_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Real files and a real process; the same log is as clean as one that was cleaned inline."""
    async with compacted_topic(tmp_path) as (world, partition):
        for version in range(10):
            for key in (b"a", b"b", b"c"):
                partition.produce(keyed(key, b"%d" % version * 200_000), now_ms=world.clock.time_ms(), acks=1)
        flushed = trio.Event()
        partition.when_committed(30).then(lambda _: flushed.set())
        await flushed.wait()
        task = CleanerTask(world, fatal=lambda error: None)
        assert await task.round()
        assert not await task.round()
        assert partition.cleaned_up_to == partition.log.active.base_offset
        kept = [header.base_offset for header, _ in partition.log.batches(0, partition.cleaned_up_to)]
        assert kept == list(range(partition.cleaned_up_to - 3, partition.cleaned_up_to))
        first = sorted(path.name for path in (tmp_path / "t-0").glob("00000000000000000000.*"))
        assert [name for name in first if not name.endswith(".deleted")] == [
            "00000000000000000000.index",
            "00000000000000000000.log",
            "00000000000000000000.timeindex",
        ]


async def test_a_log_that_is_cut_during_the_round_stays_as_it_was(tmp_path: Path) -> None:
    async with compacted_topic(tmp_path) as (world, partition):
        for number in range(20):
            partition.produce(keyed(b"a", b"%d" % number * 200_000), now_ms=world.clock.time_ms(), acks=1)
        flushed = trio.Event()
        partition.when_flushed().then(lambda _: flushed.set())
        await flushed.wait()
        task = CleanerTask(world, fatal=lambda error: None)
        async with trio.open_nursery() as nursery:
            outcome: list[bool] = []

            async def clean() -> None:
                outcome.append(await task.round())

            nursery.start_soon(clean)
            await trio.testing.wait_all_tasks_blocked()
            partition.truncate_to(7)
        assert outcome == [False]
        assert [header.base_offset for header, _ in partition.log.batches(0, 100)] == list(range(7))
        assert not [path for path in (tmp_path / "t-0").iterdir() if "cleaned" in path.name]
