"""A log that cannot even be looked at does not keep the others from being compacted."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kmirror.storage.memory import MemoryFileSystem
from tests.server.harness import fetch, produce, serving
from tests.server.test_compaction import BACKOFF_S, COMPACTED, keyed

MAGIC_AT = 16
BATCHES = 12
BATCH_BYTES = 200_000


async def test_a_segment_that_begins_with_no_batch_stops_its_own_log_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    filesystem = MemoryFileSystem()
    async with serving(filesystem=filesystem) as broker:
        client = broker.connect()
        for topic in ("damaged", "sound"):
            await broker.create_topic(topic, **COMPACTED, max_compaction_lag_ms="1000000000")
            for number in range(BATCHES):
                data = keyed(b"k", bytes([number]) * BATCH_BYTES, timestamp_ms=broker.world.clock.time_ms())
                answer = await client.ask("Produce", 11, produce(data, topic=topic))
                assert answer.responses[0].partition_responses[0].error_code == 0
        first = broker.world.partition("damaged", 0).log.segments[0].file
        first._node.data[MAGIC_AT] = 9  # type: ignore[attr-defined]
    async with serving(filesystem=filesystem) as broker:
        client = broker.connect()
        damaged, sound = (broker.world.partition(topic, 0) for topic in ("damaged", "sound"))
        for partition in (damaged, sound):  # opened, as by anybody who reads
            await client.ask("Fetch", 11, fetch(BATCHES, topic=partition.topic_name))
        before = [segment.base_offset for segment in damaged.log.segments]
        await trio.sleep(3 * BACKOFF_S)
        assert sound.cleaned_up_to == sound.log.active.base_offset > 0
        assert damaged.cleaned_up_to == -1
        assert [segment.base_offset for segment in damaged.log.segments] == before
        assert caplog.text.count("damaged-0 is not compacted any more") == 1
