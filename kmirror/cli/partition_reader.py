"""Reading one partition of any cluster from an offset on, batch by batch, as bytes. For `consume` and `verify`."""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cli.failure import Failure
from kmirror.cli.session import refusal
from kmirror.errors import CorruptData
from kmirror.protocol.records import BatchHeader, walk
from kmirror.source import calls
from kmirror.source.cluster import Cluster

FETCH_BYTES = 4 * 1024 * 1024
"""Per request. More brings nothing, less costs round trips."""


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

        Raises Failure for an error code, a batch that is none, or an answer that does not go on where it should.
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
        if answer.error_code:
            raise Failure(f"{name} cannot be read at offset {self.next_offset}: {refusal(answer.error_code, None)}")
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
