"""A snapshot of the metadata in the whole broker: steps in slices, syncs in the commit thread, a disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kmirror.app import running
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.server.waiting import settled
from tests.broker.metadata_history import facts

pytestmark = pytest.mark.integration


async def test_it_is_written_while_topics_are_made_and_read_at_the_next_start(tmp_path: Path) -> None:
    properties = {
        "log.dirs": str(tmp_path / "data"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "metadata.log.max.record.bytes.between.snapshots": "10000",
        "metadata.max.retention.bytes": "1",
    }
    directory = tmp_path / "data" / "__cluster_metadata-0"
    with trio.fail_after(60):
        async with running(properties) as app:
            for number in range(200):
                await settled(app.world.create_topic(CreateTopicSpec(f"t{number}", 3)))
                if number % 20 == 0:
                    app.world.snapshots.tick()
            while not app.world.snapshots.known or app.world.snapshots._writing:
                await trio.lowlevel.checkpoint()
            (newest,) = app.world.snapshots.known
            assert 0 < newest.end_offset <= app.world._metadata.log_end_offset
            assert app.world._metadata.log.log_start_offset in (0, newest.end_offset)
            expected = facts(app.world.image)
        assert [path.name for path in directory.glob("*.checkpoint")] == [newest.name]
        async with running(properties) as app:
            assert facts(app.world.image) == expected
            assert app.world.snapshots.known == [newest]
