"""A cluster made of lists of batches, with the part of `Cluster` that reading and comparing use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kmirror.protocol.records import Record, build_batch, parse_header
from kmirror.source.calls import EARLIEST, ConfigEntry, Fetched, ListedOffset, TopicConfigs

OUT_OF_RANGE = 1
BATCHES_PER_FETCH = 2
"""Small, so that reading always goes on over several answers."""


def batch(offset: int, count: int = 2, *, epoch: int = 0, text: str = "v", **header: int | bool) -> bytes:
    records = [Record(b"k", f"{text}{offset + number}".encode()) for number in range(count)]
    return build_batch(records, base_offset=offset, leader_epoch=epoch, timestamp_ms=1, **header)  # type: ignore[arg-type]


@dataclass
class ScriptedPartition:
    batches: list[bytes]
    log_start_offset: int = 0
    end: int | None = None
    rubbish: bytes = b""
    """What an answer holds behind the last batch."""

    @property
    def high_watermark(self) -> int:
        if self.end is not None:
            return self.end
        return parse_header(self.batches[-1]).next_offset if self.batches else self.log_start_offset


@dataclass
class ScriptedCluster:
    partitions: dict[tuple[str, int], ScriptedPartition]
    compacted: set[str] = field(default_factory=set)
    bootstrap: list[tuple[str, int]] = field(default_factory=lambda: [("scripted", 1)])

    async def list_offsets(self, asked: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], ListedOffset]:
        return {
            key: ListedOffset(
                offset=self.partitions[key].log_start_offset
                if timestamp == EARLIEST
                else self.partitions[key].high_watermark
            )
            for key, timestamp in asked.items()
        }

    async def fetch_once(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int, isolation_level: int
    ) -> Fetched:
        held = self.partitions[topic, partition]
        if not held.log_start_offset <= offset <= held.high_watermark:
            return Fetched(error_code=OUT_OF_RANGE)
        found = [data for data in held.batches if parse_header(data).next_offset > offset][:BATCHES_PER_FETCH]
        return Fetched(
            high_watermark=held.high_watermark,
            log_start_offset=held.log_start_offset,
            records=b"".join(found) or held.rubbish,
        )

    async def describe_topic_configs(self, topics: Sequence[str]) -> dict[str, TopicConfigs]:
        policy = {name: "compact" if name in self.compacted else "delete" for name in topics}
        return {
            name: TopicConfigs(entries={"cleanup.policy": ConfigEntry(value=value, source=1)})
            for name, value in policy.items()
        }
