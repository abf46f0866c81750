"""OffsetDelete (47): delete some of a group's committed offsets (KIP-496).

Versions: 0.

Behaviour: a topic the group is subscribed to is GROUP_SUBSCRIBED_TO_TOPIC, an unknown partition
UNKNOWN_TOPIC_OR_PARTITION; a partition without an offset is no error. For the whole: GROUP_ID_NOT_FOUND, or
NON_EMPTY_GROUP for a group with members that do not use the consumer protocol. Offsets that an open transaction holds
are deleted too. Answered once the deletion is on disk.

Deviations: none known.
"""

from __future__ import annotations

from kmirror.broker.group_offsets import client_code
from kmirror.effects import Place
from kmirror.errors import ApiError
from kmirror.limits import ROWS_PER_TURN
from kmirror.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, parts, settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    image = context.world.image
    known: list[Place] = []
    rows: list[tuple[Place, int]] = []
    turn = Turn()
    for topic in request.topics:
        await turn.let_others()
        state = image.topics_by_name.get(topic.name)
        count = 0 if state is None else len(state.partitions)
        for asked in topic.partitions:
            place = (topic.name, asked.partition_index)
            if 0 <= place[1] < count:
                known.append(place)
            else:
                rows.append((place, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    codes: list[int] = []
    try:
        for places in parts(known, ROWS_PER_TURN) if known else [known]:
            await turn.let_others()
            some = await settled(context.world.groups.offsets.delete(request.group_id, places))
            codes += some
    except ApiError as error:
        return OffsetDeleteResponse(error_code=client_code(error.code))
    topics: dict[str, OffsetDeleteResponseTopic] = {}
    for (name, index), code in [*rows, *zip(known, codes, strict=True)]:
        topic_row = topics.setdefault(name, OffsetDeleteResponseTopic(name=name))
        topic_row.partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
    return OffsetDeleteResponse(topics=list(topics.values()))
