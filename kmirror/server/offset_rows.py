"""What OffsetCommit and TxnOffsetCommit share: the rows of their topics, checked against metadata, and their answers.

Both name topics by name or, in their newest version, by id; both answer partitions that do not exist by themselves and
let the group decide about the rest. The order of the answer's rows is Kafka's: refused ones first, topic by topic.
Very many rows are looked at, committed and answered in parts of ROWS_PER_TURN, each of which is checked anew and is a
batch of its own; Kafka writes one batch, or refuses all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from kmirror.broker.group_offsets import client_code
from kmirror.broker.world import World
from kmirror.coordinator.groups.offsets import OffsetRow
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.limits import ROWS_PER_TURN
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.uuids import ZERO
from kmirror.server.waiting import Turn, parts, settled


class AskedOffsets:
    """The rows of one request: `rows` may be committed, the others are refused already."""

    def __init__(self, *, by_id: bool) -> None:
        self.rows: list[OffsetRow] = []
        self._by_id = by_id
        self._refused: list[tuple[str, bytes, int, int]] = []

    @classmethod
    async def of(cls, world: World, topics: Sequence[Any], *, by_id: bool) -> AskedOffsets:
        asked = cls(by_id=by_id)
        turn = Turn()
        for topic in topics:
            for partitions in parts(topic.partitions, ROWS_PER_TURN):
                await turn.let_others()
                asked._look_at(world, topic, partitions)
        return asked

    def _look_at(self, world: World, topic: Any, partitions: Sequence[Any]) -> None:
        image = world.image
        if self._by_id:
            known = image.topics_by_id.get(bytes(topic.topic_id))
        else:
            known = image.topics_by_name.get(topic.name)
        if known is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if self._by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            asked_id = bytes(topic.topic_id) if self._by_id else ZERO
            self._refused += [(topic.name, asked_id, asked.partition_index, code) for asked in partitions]
            return
        for asked in partitions:
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

    async def committed(self, commit: Callable[[Sequence[OffsetRow]], Promise[list[int]]]) -> list[int]:
        """A code for each of `rows`; `commit` may raise ApiError, or its promise fail with one, for a whole part."""
        turn = Turn()
        asked: list[tuple[int, Promise[list[int]]]] = []
        for rows in parts(self.rows, ROWS_PER_TURN):
            await turn.let_others()
            try:
                promise = commit(rows)
            except ApiError as error:
                promise = Promise.of([client_code(error.code)] * len(rows))
            asked.append((len(rows), promise))
        codes: list[int] = []
        for count, promise in asked:
            try:
                some = await settled(promise)
            except ApiError as error:
                some = [client_code(error.code)] * count
            codes += some
        return codes

    async def answer(self, topic_class: Any, partition_class: Any, codes: Sequence[int]) -> list[Any]:
        """Response topics of the given classes; `codes` are those of `rows`."""
        found: dict[object, Any] = {}
        turn = Turn()
        accepted = ((row.topic, row.topic_id, row.partition, code) for row, code in zip(self.rows, codes, strict=True))
        for rows in parts(chain(self._refused, accepted), ROWS_PER_TURN):
            await turn.let_others()
            for name, topic_id, index, code in rows:
                key = topic_id if self._by_id else name
                topic = found.get(key)
                if topic is None:
                    topic = found[key] = topic_class(topic_id=topic_id) if self._by_id else topic_class(name=name)
                topic.partitions.append(partition_class(partition_index=index, error_code=code))
        return list(found.values())
