"""Comparing a mirror partition with its source, batch by batch.

What is promised, and so what is compared: the bytes of every batch, header included, over the range both sides still
hold, up to the last mirrored offset of a partition that has failed over. Anything outside that range is named with its
reason, never counted as a difference: trimmed by retention, cleaned by compaction on one side, our own records after a
failover. Ends are read from the destination first, so a source that goes on growing is never behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kmirror.cli.failure import Failure
from kmirror.cli.partition_reader import Batch, OutOfRange, PartitionReader
from kmirror.cli.session import refusal
from kmirror.source import calls
from kmirror.source.cluster import Cluster


@dataclass(slots=True, kw_only=True)
class Result:
    """`identical` is about the offsets from `start` to `end` (exclusive)."""

    topic: str
    partition: int
    state: str
    start: int = 0
    end: int = 0
    batch_count: int = 0
    size_bytes: int = 0
    difference_offset: int | None = None
    difference: str | None = None
    not_compared: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return self.difference is None

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "state": self.state,
            "identical": self.identical,
            "from": self.start,
            "to": self.end,
            "batches": self.batch_count,
            "bytes": self.size_bytes,
            "difference": None
            if self.difference is None
            else {"offset": self.difference_offset, "reason": self.difference},
            "not_compared": self.not_compared,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One partition to compare. `last_mirror_offset`: of a STOPPED partition, else None."""

    topic: str
    partition: int
    state: str
    last_mirror_offset: int | None
    compacted: bool


class Side:
    """One cluster's batches, in order, with the next one always in view."""

    def __init__(self, reader: PartitionReader) -> None:
        self.reader = reader
        self._batches: list[Batch] = []
        self._at = 0

    async def head(self) -> Batch | None:
        """The next batch that is not taken yet; None at the end of the range. Raises OutOfRange: trimmed meanwhile."""
        if self._at >= len(self._batches):
            self._batches, _ = await self.reader.fetch()
            self._at = 0
        return self._batches[self._at] if self._batches else None

    def take(self) -> None:
        self._at += 1

    @property
    def position(self) -> int:
        """Offset of the next batch as far as it is known."""
        return self._batches[self._at].header.base_offset if self._at < len(self._batches) else self.reader.next_offset

    def skip_to(self, offset: int) -> None:
        """Go on with the first batch that ends behind `offset`, fetched already or not."""
        while self._at < len(self._batches) and self._batches[self._at].header.next_offset <= offset:
            self._at += 1
        self.reader.next_offset = max(self.reader.next_offset, offset)


async def compare(
    source: Cluster, destination: Cluster, task: Task, progress: Callable[[int], None] = lambda _: None
) -> Result:
    """`progress` gets the number of offsets done since its last call. Raises Failure, PeerError, DecodeError."""
    result = Result(topic=task.topic, partition=task.partition, state=task.state)
    if not await _set_range(source, destination, task, result):
        return result
    sides = [
        Side(PartitionReader(cluster, task.topic, task.partition, offset=result.start, end=result.end))
        for cluster in (source, destination)
    ]
    skipped = 0
    done = result.start
    while result.identical:
        try:
            theirs, ours = await sides[0].head(), await sides[1].head()
        except OutOfRange as trimmed:
            if not _skip_trimmed(trimmed, sides, result):
                raise
            continue
        if theirs is None and ours is None:
            break
        if theirs is not None and ours is not None and theirs.data == ours.data:
            result.batch_count += 1
            result.size_bytes += ours.header.size_bytes
            sides[0].take()
            sides[1].take()
        elif task.compacted and not _same_shape(theirs, ours):
            skipped += _skip_cleaned(theirs, ours, sides)
        else:
            result.difference_offset, result.difference = _difference(theirs, ours)
        progress(max(0, sides[1].reader.next_offset - done))
        done = max(done, sides[1].reader.next_offset)
    if skipped:
        result.not_compared.append(f"{skipped} batches that compaction cleaned on one side")
    return result


def _skip_trimmed(trimmed: OutOfRange, sides: list[Side], result: Result) -> bool:
    """A side dropped its oldest segments while it was read: the rest is compared. False when that is not what it is."""
    at = min(side.position for side in sides)
    if not at < trimmed.start:
        return False
    to = min(trimmed.start, result.end)
    for side in sides:
        side.skip_to(to)
    result.not_compared.append(f"{at} to {to}: trimmed while it was read")
    return True


async def _set_range(source: Cluster, destination: Cluster, task: Task, result: Result) -> bool:
    """Fill in `start` and `end` and what lies outside; False when nothing is left to compare."""
    our_start, our_end = await _bounds(destination, task)
    their_start, their_end = await _bounds(source, task)
    limit = our_end
    if task.last_mirror_offset is not None:
        limit = min(our_end, task.last_mirror_offset)
        if our_end > limit:
            result.not_compared.append(f"{limit} to {our_end}: written here since the failover")
    result.start = max(our_start, their_start)
    result.end = max(result.start, min(limit, their_end))
    if their_start > our_start and our_start < limit:
        result.not_compared.append(f"{our_start} to {min(their_start, limit)}: trimmed at the source")
    if our_start > their_start and their_start < their_end:
        result.not_compared.append(f"{their_start} to {min(our_start, their_end)}: not held here")
    if limit > their_end and task.last_mirror_offset is not None:
        result.not_compared.append(f"{their_end} to {limit}: the source ends before them")
    elif limit > their_end:
        result.difference_offset = their_end
        result.difference = f"the mirror holds offsets {their_end} to {limit}, the source ends at {their_end}"
        return False
    ahead = max(limit, their_start)
    if task.last_mirror_offset is None and their_end > ahead:
        result.not_compared.append(f"{ahead} to {their_end}: not mirrored yet")
    return result.start < result.end


async def _bounds(cluster: Cluster, task: Task) -> tuple[int, int]:
    """Log start offset and high watermark. Raises Failure."""
    key = (task.topic, task.partition)
    found = []
    for timestamp in (calls.LATEST, calls.EARLIEST):
        answer = (await cluster.list_offsets({key: timestamp})).get(key)
        if answer is None or answer.error_code:
            code = answer.error_code if answer else -1
            where = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
            raise Failure(f"{task.topic}-{task.partition} at {where}: {refusal(code, None)}")
        found.append(answer.offset)
    return found[1], found[0]


def _same_shape(theirs: Batch | None, ours: Batch | None) -> bool:
    """Both hold all of this batch's records: cleaning cannot be why their bytes differ."""
    if theirs is None or ours is None:
        return False
    one, other = theirs.header, ours.header
    cleaned = one.delete_horizon_ms is not None or other.delete_horizon_ms is not None
    same = (one.base_offset, one.last_offset, one.record_count) == (
        other.base_offset,
        other.last_offset,
        other.record_count,
    )
    return same and not cleaned


def _skip_cleaned(theirs: Batch | None, ours: Batch | None, sides: list[Side]) -> int:
    """Step over what only one side has, or has in another shape. Offsets decide which side is behind."""
    skipped = 0
    their_last = theirs.header.last_offset if theirs else None
    our_last = ours.header.last_offset if ours else None
    if their_last is not None and (our_last is None or their_last <= our_last):
        sides[0].take()
        skipped = 1
    if our_last is not None and (their_last is None or our_last <= their_last):
        sides[1].take()
        skipped = 1
    return skipped


def _difference(theirs: Batch | None, ours: Batch | None) -> tuple[int, str]:
    """Where the two first differ, and how, in words."""
    if ours is None:
        assert theirs is not None
        return theirs.header.base_offset, "the mirror has no batch here, the source has one"
    if theirs is None:
        return ours.header.base_offset, "the source has no batch here, the mirror has one"
    offset = min(theirs.header.base_offset, ours.header.base_offset)
    for name in ours.header._fields:
        there, here = getattr(theirs.header, name), getattr(ours.header, name)
        if there != here:
            return offset, f"{name.replace('_', ' ')} is {there} at the source and {here} here"
    position = next(at for at, pair in enumerate(zip(theirs.data, ours.data, strict=False)) if pair[0] != pair[1])
    return offset, f"the bytes differ from byte {position} of the batch on"
