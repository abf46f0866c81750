"""Comparing two clusters batch by batch: what counts as a difference, and what is only named."""

from __future__ import annotations

from typing import Any

import pytest

from kmirror.cli.comparison import Result, Task, compare
from kmirror.cli.failure import Failure
from kmirror.cli.mirror_status import Description
from kmirror.cli.verify import verify
from tests.cli.scripted_cluster import ScriptedCluster, ScriptedPartition, batch

KEY = ("t", 0)


async def compared(theirs: ScriptedPartition, ours: ScriptedPartition, **task: Any) -> Result:
    settings = {"state": "MIRRORING", "last_mirror_offset": None, "compacted": False} | task
    source, destination = ScriptedCluster({KEY: theirs}), ScriptedCluster({KEY: ours})
    return await compare(source, destination, Task(topic="t", partition=0, **settings))  # type: ignore[arg-type]


def log(*offsets: int, **header: Any) -> list[bytes]:
    return [batch(offset, **header) for offset in offsets]


async def test_equal_logs_are_identical() -> None:
    result = await compared(ScriptedPartition(log(0, 2, 4, 6, 8)), ScriptedPartition(log(0, 2, 4, 6, 8)))
    assert result.identical
    assert (result.start, result.end, result.batch_count, result.not_compared) == (0, 10, 5, [])
    assert result.size_bytes == sum(len(data) for data in log(0, 2, 4, 6, 8))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (batch(4, epoch=1), "leader epoch"),
        (batch(4, text="w"), "crc"),
        (batch(4, compression=1), "length"),
        (batch(4, producer_id=3, producer_epoch=0, base_sequence=0), "crc"),
        (batch(5, 1), "base offset"),
    ],
)
async def test_any_other_byte_is_a_difference(other: bytes, reason: str) -> None:
    result = await compared(ScriptedPartition(log(0, 2, 4, 6)), ScriptedPartition([*log(0, 2), other, *log(6)]))
    assert not result.identical
    assert result.difference_offset == 4
    assert reason in (result.difference or "")
    assert result.batch_count == 2


async def test_a_difference_in_the_records_alone_names_the_byte() -> None:
    """The header is equal, checksum and all; only a damaged disk makes such a batch."""
    damaged = bytearray(batch(2))
    damaged[-1] ^= 1
    result = await compared(ScriptedPartition(log(0, 2)), ScriptedPartition([batch(0), bytes(damaged)]))
    assert result.difference_offset == 2
    assert f"byte {len(damaged) - 1}" in (result.difference or "")


async def test_a_missing_batch_is_a_difference() -> None:
    result = await compared(ScriptedPartition(log(0, 2, 4)), ScriptedPartition(log(0, 4)))
    assert (result.identical, result.difference_offset) == (False, 2)
    result = await compared(ScriptedPartition(log(0, 4)), ScriptedPartition(log(0, 2, 4)))
    assert (result.identical, result.difference_offset) == (False, 2)


async def test_what_is_not_mirrored_yet_is_named() -> None:
    result = await compared(ScriptedPartition(log(0, 2, 4)), ScriptedPartition(log(0, 2)))
    assert result.identical
    assert result.not_compared == ["4 to 6: not mirrored yet"]


async def test_trimmed_ranges_are_named() -> None:
    result = await compared(ScriptedPartition(log(4, 6), log_start_offset=4), ScriptedPartition(log(0, 2, 4, 6)))
    assert result.identical
    assert (result.start, result.end) == (4, 8)
    assert result.not_compared == ["0 to 4: trimmed at the source"]
    result = await compared(ScriptedPartition(log(0, 2, 4, 6)), ScriptedPartition(log(4, 6), log_start_offset=4))
    assert result.identical
    assert result.not_compared == ["0 to 4: not held here"]


async def test_own_records_after_a_failover_are_named() -> None:
    ours = [*log(0, 2), batch(4, epoch=1, text="own")]
    result = await compared(
        ScriptedPartition(log(0, 2, 4)), ScriptedPartition(ours), state="STOPPED", last_mirror_offset=4
    )
    assert result.identical
    assert (result.end, result.not_compared) == (4, ["4 to 6: written here since the failover"])


async def test_a_source_that_is_shorter_than_a_stopped_mirror_is_named() -> None:
    result = await compared(
        ScriptedPartition(log(0)), ScriptedPartition(log(0, 2)), state="STOPPED", last_mirror_offset=4
    )
    assert result.identical
    assert result.not_compared == ["2 to 4: the source ends before them"]


async def test_a_source_that_is_shorter_than_a_running_mirror_is_a_difference() -> None:
    result = await compared(ScriptedPartition(log(0)), ScriptedPartition(log(0, 2)))
    assert (result.identical, result.difference_offset) == (False, 2)


async def test_empty_and_fully_trimmed_partitions() -> None:
    result = await compared(ScriptedPartition([]), ScriptedPartition([]))
    assert (result.identical, result.batch_count) == (True, 0)
    result = await compared(ScriptedPartition([], log_start_offset=8), ScriptedPartition(log(0, 2)))
    assert result.identical
    assert result.not_compared == ["0 to 4: trimmed at the source"]


async def test_compaction_on_one_side_is_no_difference() -> None:
    theirs = [batch(0), batch(4, 1, last_offset_delta=1), batch(6)]
    result = await compared(ScriptedPartition(theirs), ScriptedPartition(log(0, 2, 4, 6)), compacted=True)
    assert result.identical
    assert result.batch_count == 2
    assert "compaction" in result.not_compared[0]


async def test_damage_in_a_compacted_topic_is_a_difference() -> None:
    result = await compared(
        ScriptedPartition(log(0, 2, 4)), ScriptedPartition([batch(0), batch(2, text="w"), batch(4)]), compacted=True
    )
    assert (result.identical, result.difference_offset) == (False, 2)


async def test_a_corrupt_answer_is_a_failure() -> None:
    rubbish = ScriptedPartition([batch(0)], end=4, rubbish=batch(2)[:16] + b"\x09" + batch(2)[17:])
    with pytest.raises(Failure, match="corrupt"):
        await compared(rubbish, ScriptedPartition(log(0, 2)))


def row(topic: str, partition: int = 0) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "state": "MIRRORING",
        "last_mirror_offset": None,
        "destination_offset": 4,
    }


async def test_verify_takes_the_topics_it_was_given() -> None:
    source = ScriptedCluster({(name, 0): ScriptedPartition(log(0, 2)) for name in ("a", "b")}, compacted={"b"})
    destination = ScriptedCluster({("a", 0): ScriptedPartition(log(0, 2)), ("b", 0): ScriptedPartition(log(2))})
    mirror = Description("m", "scripted:1", "id", [row("a"), row("b")])
    results = await verify(source, destination, mirror, [])  # type: ignore[arg-type]
    assert [(result.topic, result.identical) for result in results] == [("a", True), ("b", True)]
    assert results[1].not_compared == ["1 batches that compaction cleaned on one side"]
    only = await verify(source, destination, mirror, ["a"])  # type: ignore[arg-type]
    assert [result.topic for result in only] == ["a"]
    with pytest.raises(Failure, match="no such topics"):
        await verify(source, destination, mirror, ["c"])  # type: ignore[arg-type]


async def test_the_json_of_a_result() -> None:
    result = await compared(ScriptedPartition(log(0, 2)), ScriptedPartition([batch(0), batch(2, text="w")]))
    shown = result.as_json()
    assert shown["identical"] is False
    assert shown["difference"]["offset"] == 2
    assert {"topic", "partition", "state", "from", "to", "batches", "bytes", "not_compared"} <= set(shown)
