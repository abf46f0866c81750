"""DescribeLogDirs asks about everything at once, so it must neither open everything nor fail for one bad log."""

from __future__ import annotations

from kmirror.protocol.api.describe_log_dirs import DescribeLogDirsRequest
from kmirror.storage.memory import MemoryFileSystem
from tests.server.harness import batch, produce, serving


async def test_partitions_never_written_to_are_listed_and_not_made() -> None:
    async with serving() as broker:
        await broker.create_topic("t", partitions=50)
        client = broker.connect()
        await client.ask("Produce", 9, produce(batch(b"x"), partition=7))
        before = broker.filesystem.list_dir("/data")
        answer = await client.ask("DescribeLogDirs", 4, DescribeLogDirsRequest(topics=None))
        (topic,) = answer.results[0].topics
        assert len(topic.partitions) == 50
        assert [row.partition_index for row in topic.partitions if row.partition_size] == [7]
        assert broker.filesystem.list_dir("/data") == before


async def test_a_log_that_cannot_be_opened_is_left_out() -> None:
    filesystem = MemoryFileSystem()
    async with serving(filesystem=filesystem) as broker:
        await broker.create_topic("t", partitions=2)
        client = broker.connect()
        for partition in (0, 1):
            await client.ask("Produce", 9, produce(batch(b"x"), partition=partition))
    segment = filesystem.open("/data/t-1/00000000000000000000.log")
    segment.truncate(segment.size_bytes - 5)
    async with serving(filesystem=filesystem) as broker:
        answer = await broker.connect().ask("DescribeLogDirs", 4, DescribeLogDirsRequest(topics=None))
        (topic,) = answer.results[0].topics
        assert [row.partition_index for row in topic.partitions] == [0]
