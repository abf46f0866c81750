"""What OffsetCommit and TxnOffsetCommit share: the rows of their topics, checked against metadata, and their answers.

Both name topics by name or, in their newest version, by id; both answer partitions that do not exist by themselves and
let the group decide about the rest. The order of the answer's rows is Kafka's: refused ones first, topic by topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kmirror.broker.world import World
from kmirror.coordinator.groups.offsets import OffsetRow
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.uuids import ZERO


class AskedOffsets:
    """The rows of one request: `rows` may be committed, the others are refused already."""

    def __init__(self, world: World, topics: Sequence[Any], *, by_id: bool) -> None:
        self.rows: list[OffsetRow] = []
        self._by_id = by_id
        self._refused: list[tuple[str, bytes, int, int]] = []
        for topic in topics:
            self._look_at(world, topic)

    def _look_at(self, world: World, topic: Any) -> None:
        image = world.image
        if self._by_id:
            known = image.topics_by_id.get(bytes(topic.topic_id))
        else:
            known = image.topics_by_name.get(topic.name)
        if known is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if self._by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            asked_id = bytes(topic.topic_id) if self._by_id else ZERO
            self._refused += [(topic.name, asked_id, asked.partition_index, code) for asked in topic.partitions]
            return
        for asked in topic.partitions:
            index = asked.partition_index
            if not 0 <= index < len(known.partitions):
                refused = (known.name, known.topic_id, index, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                self._refused.append(refused)
                continue
            self.rows.append(
                OffsetRow(
                    topic=known.name,
                    partition=index,
                    offset=asked.committed_offset,
                    topic_id=known.topic_id,
                    leader_epoch=asked.committed_leader_epoch,
                    metadata=asked.committed_metadata,
                )
            )

    def answer(self, topic_class: Any, partition_class: Any, codes: Sequence[int]) -> list[Any]:
        """Response topics of the given classes; `codes` are those of `rows`."""
        found: dict[object, Any] = {}
        accepted = [(row.topic, row.topic_id, row.partition, code) for row, code in zip(self.rows, codes, strict=True)]
        for name, topic_id, index, code in [*self._refused, *accepted]:
            key = topic_id if self._by_id else name
            topic = found.get(key)
            if topic is None:
                topic = found[key] = topic_class(topic_id=topic_id) if self._by_id else topic_class(name=name)
            topic.partitions.append(partition_class(partition_index=index, error_code=code))
        return list(found.values())
