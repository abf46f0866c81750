"""Reading one partition of any cluster from an offset on, batch by batch, as bytes. For `consume` and `verify`."""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cli.failure import Failure
from kmirror.cli.session import refusal
from kmirror.errors import CorruptData
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import BatchHeader, walk
from kmirror.source import calls
from kmirror.source.cluster import Cluster

FETCH_BYTES = 4 * 1024 * 1024
"""Per request. More brings nothing, less costs round trips."""


class CannotRead(Failure):
    """The broker answered a Fetch with an error code, `code`."""

    def __init__(self, message: str, *, code: int, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.code = code


class OutOfRange(CannotRead):
    """The offset is not in the log, which holds `start` up to `end` (exclusive)."""

    def __init__(self, name: str, offset: int, *, start: int, end: int) -> None:
        super().__init__(
            f"{name} has no offset {offset}: it holds offsets {start} to {end}"
            if end > start
            else f"{name} has no offset {offset}: it is empty, the next record gets {end}",
            code=ErrorCode.OFFSET_OUT_OF_RANGE,
        )
        self.start = start
        self.end = end


@dataclass(frozen=True, slots=True)
class Batch:
    header: BatchHeader
    data: memoryview


class PartitionReader:
    """Batches in order, beginning with the one that contains `offset`. `end` (exclusive) None: to the end, and on."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        *,
        offset: int,
        end: int | None = None,
        isolation_level: int = calls.READ_UNCOMMITTED,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partition = partition
        self.next_offset = offset
        self.end = end
        self.isolation_level = isolation_level
        self.high_watermark = -1
        self.log_start_offset = -1

    async def fetch(self, *, wait_ms: int = 0) -> tuple[list[Batch], list[tuple[int, int]]]:
        """The next batches and the aborted transactions among them; no batches: nothing there yet, or the end.

        Raises OutOfRange, CannotRead (another error code), Failure (a batch that is none, or does not go on where it
        should), PeerError, DecodeError.
        """
        if self.end is not None and self.next_offset >= self.end:
            return [], []
        name = f"{self.topic}-{self.partition}"
        answer = await self.cluster.fetch_once(
            self.topic,
            self.partition,
            self.next_offset,
            max_bytes=FETCH_BYTES,
            wait_ms=wait_ms,
            isolation_level=self.isolation_level,
        )
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise await self._out_of_range(name)
        if answer.error_code:
            raise CannotRead(
                f"{name} cannot be read at offset {self.next_offset}: {refusal(answer.error_code, None)}",
                code=answer.error_code,
            )
        self.high_watermark = answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        batches: list[Batch] = []
        data = memoryview(answer.records)
        try:
            for position, header in walk(data):
                if header.next_offset <= self.next_offset:
                    continue
                if self.end is not None and header.base_offset >= self.end:
                    self.next_offset = self.end
                    break
                batches.append(Batch(header, data[position : position + header.size_bytes]))
                self.next_offset = header.next_offset
        except CorruptData as error:
            raise Failure(f"{name} has a corrupt batch at or behind offset {self.next_offset}: {error}") from error
        if len(data) and not batches and (self.end is None or self.next_offset < self.end):
            raise Failure(f"{name}: a batch at offset {self.next_offset} does not fit {FETCH_BYTES} bytes")
        return batches, list(answer.aborted)

    async def _out_of_range(self, name: str) -> CannotRead:
        """With the range that the log holds now; the answer to a Fetch does not carry it. Never raises it itself."""
        key = (self.topic, self.partition)
        found = []
        for timestamp in (calls.EARLIEST, calls.LATEST):
            listed = (await self.cluster.list_offsets({key: timestamp})).get(key)
            if listed is None or listed.error_code:
                code = listed.error_code if listed else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                return CannotRead(f"{name} cannot be read: {refusal(code, None)}", code=code)
            found.append(listed.offset)
        return OutOfRange(name, self.next_offset, start=found[0], end=found[1])
