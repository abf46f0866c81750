"""Comparing two clusters batch by batch: what counts as a difference, and what is only named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kmirror.cli.comparison import Result, Task, compare
from kmirror.cli.failure import Failure
from kmirror.cli.mirror_status import Description
from kmirror.cli.verify import verify
from kmirror.source.calls import Fetched
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


# --- a side that trims while it is read -------------------------------------------------------------------------------


@dataclass
class Trimming(ScriptedPartition):
    """Drops everything before `trim_to` after so many reads of the log start (the first tells the range)."""

    trim_to: int = 0
    after: int = 1

    def fetched(self) -> None:
        self.after -= 1
        if self.after == 0:
            self.log_start_offset = self.trim_to


class TrimmingCluster(ScriptedCluster):
    async def fetch_once(self, topic: str, partition: int, offset: int, **options: Any) -> Fetched:
        answer = await super().fetch_once(topic, partition, offset, **options)
        held = self.partitions[topic, partition]
        if isinstance(held, Trimming):
            held.fetched()
        return answer


async def compared_trimming(theirs: ScriptedPartition, ours: ScriptedPartition) -> Result:
    task = Task(topic="t", partition=0, state="MIRRORING", last_mirror_offset=None, compacted=False)
    source, destination = TrimmingCluster({KEY: theirs}), TrimmingCluster({KEY: ours})
    return await compare(source, destination, task)  # type: ignore[arg-type]


@pytest.mark.parametrize("trim_to", [6, 8, 13, 15, 16, 19, 20])
@pytest.mark.parametrize("side", ["source", "destination"])
async def test_what_is_trimmed_meanwhile_is_named_and_the_rest_compared(side: str, trim_to: int) -> None:
    """Ten batches of two records; the first two are compared before the log start moves."""
    offsets = range(0, 20, 2)
    whole, trimming = ScriptedPartition(log(*offsets)), Trimming(log(*offsets), trim_to=trim_to)
    theirs, ours = (trimming, whole) if side == "source" else (whole, trimming)
    result = await compared_trimming(theirs, ours)
    assert result.identical
    assert result.not_compared == [f"4 to {trim_to}: trimmed while it was read"]
    first_left = trim_to - trim_to % 2
    assert result.batch_count == 2 + (20 - first_left) // 2


async def test_a_difference_behind_what_was_trimmed_is_found() -> None:
    trimming = Trimming(log(*range(0, 20, 2)), trim_to=9)
    other = ScriptedPartition([*log(*range(0, 16, 2)), batch(16, text="w"), *log(18)])
    result = await compared_trimming(trimming, other)
    assert (result.identical, result.difference_offset) == (False, 16)


async def test_a_log_that_got_shorter_is_an_error_and_no_trimming() -> None:
    class Cut(Trimming):
        def fetched(self) -> None:
            self.after -= 1
            if self.after == 0:
                self.end = 2

    with pytest.raises(Failure, match="it holds offsets 0 to 2"):
        await compared_trimming(Cut(log(*range(0, 20, 2))), ScriptedPartition(log(*range(0, 20, 2))))
