"""Committed offsets over the wire: a whole broker in this process, groups of one client without membership.

What members of a generation may do is in `test_groups*`; the rules of expiry and of transactions are in
`tests/coordinator/test_offsets.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from kmirror.broker.chores import Steps
from kmirror.protocol import uuids
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest
from kmirror.protocol.api.list_groups import ListGroupsRequest
from kmirror.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kmirror.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kmirror.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.server.harness import Broker, Client, serving

NONE = (-1, -1, "", 0)


def commit(
    *rows: tuple[Any, ...], group: str = "g", topic: str = "t", topic_id: bytes = uuids.ZERO, **parts: Any
) -> OffsetCommitRequest:
    """`rows`: (partition, offset[, epoch[, metadata]])."""
    partitions = []
    for index, offset, *rest in rows:
        row = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        if rest:
            row.committed_leader_epoch = rest[0]
        if rest[1:]:
            row.committed_metadata = rest[1]
        partitions.append(row)
    topics = [OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)]
    return OffsetCommitRequest(group_id=group, topics=topics, **parts)


def codes(answer: Any) -> list[int]:
    return [row.error_code for topic in answer.topics for row in topic.partitions]


async def fetched(
    client: Client,
    version: int,
    *,
    group: str = "g",
    partitions: Sequence[int] | None = (0,),
    topic: str = "t",
    topic_id: bytes = uuids.ZERO,
    stable: bool = False,
) -> dict[int, tuple[int, int, str, int]]:
    """(offset, epoch, metadata, error) by partition; `partitions` None asks for everything. One row per partition."""
    request = OffsetFetchRequest(require_stable=stable)
    if version >= 8:
        topics = None
        if partitions is not None:
            topics = [OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=list(partitions))]
        request.groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
    else:
        request.group_id = group
        request.topics = None
        if partitions is not None:
            request.topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))]
    answer = await client.ask("OffsetFetch", version, request)
    holder = answer.groups[0] if version >= 8 else answer
    assert holder.error_code == 0
    rows = [row for found in holder.topics for row in found.partitions]
    named = {
        row.partition_index: (row.committed_offset, row.committed_leader_epoch, row.metadata, row.error_code)
        for row in rows
    }
    assert len(named) == len(rows), "every partition once"
    return named


async def topic_id_of(broker: Broker, name: str = "t") -> bytes:
    return broker.world.image.topics_by_name[name].topic_id


# -- commit and fetch, every version ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
async def test_every_version_commits(version: int) -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        topic_id = await topic_id_of(broker)
        client = broker.connect()
        answer = await client.ask(
            "OffsetCommit",
            version,
            commit((0, 40, 7 if version >= 6 else -1, "m"), topic_id=topic_id if version >= 10 else uuids.ZERO),
        )
        assert codes(answer) == [0]
        assert (answer.topics[0].topic_id if version >= 10 else answer.topics[0].name) == (
            topic_id if version >= 10 else "t"
        )
        assert await fetched(client, 9, partitions=(0, 1)) == {0: (40, 7 if version >= 6 else -1, "m", 0), 1: NONE}


@pytest.mark.parametrize("version", range(1, 11))
async def test_every_version_fetches(version: int) -> None:
    """B055: every partition once, whatever is asked."""
    async with serving() as broker:
        await broker.create_topic("t", 6)
        topic_id = await topic_id_of(broker) if version >= 10 else uuids.ZERO
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((1, 0), (4, 44, 3, "m")))
        epoch = 3 if version >= 5 else -1
        everything = {1: (0, -1, "", 0), 4: (44, epoch, "m", 0)}
        asked = (0, 1, 2, 3, 4, 5, 17)
        found = await fetched(client, version, partitions=asked, topic_id=topic_id)
        assert found == {index: everything.get(index, NONE) for index in asked}
        assert await fetched(client, version, group="unknown", topic_id=topic_id) == {0: NONE}
        if version >= 2:
            assert await fetched(client, version, partitions=None) == everything
            assert await fetched(client, version, group="unknown", partitions=None) == {}
        assert await fetched(client, version, partitions=(), topic_id=topic_id) == {}


async def test_no_topics_are_none_and_not_all() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((0, 1)))
        answer = await client.ask("OffsetFetch", 7, OffsetFetchRequest(group_id="g", topics=[]))
        assert answer.topics == []
        groups = [OffsetFetchRequestGroup(group_id="g", topics=[])]
        assert (await client.ask("OffsetFetch", 9, OffsetFetchRequest(groups=groups))).groups[0].topics == []


async def test_several_groups_are_answered_at_once_in_order() -> None:
    async with serving() as broker:
        await broker.create_topic("t", 2)
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((0, 1), group="a"))
        await client.ask("OffsetCommit", 9, commit((1, 2), group="b"))
        groups = [
            OffsetFetchRequestGroup(group_id="b", topics=None),
            OffsetFetchRequestGroup(group_id="unknown", topics=None),
            OffsetFetchRequestGroup(
                group_id="a", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[1, 0])]
            ),
        ]
        answer = await client.ask("OffsetFetch", 8, OffsetFetchRequest(groups=groups))
        found = [
            (
                group.group_id,
                group.error_code,
                [(r.partition_index, r.committed_offset) for t in group.topics for r in t.partitions],
            )
            for group in answer.groups
        ]
        assert found == [("b", 0, [(1, 2)]), ("unknown", 0, []), ("a", 0, [(1, -1), (0, 1)])]


async def test_epochs_survive_a_restart() -> None:
    """B031: 7, -1, -1 by list and as everything, before and after."""
    async with serving() as broker:
        await broker.create_topic("t", 3)
        client = broker.connect()
        await client.ask("OffsetCommit", 6, commit((0, 40, 7), (1, 5, -1)))
        await client.ask("OffsetCommit", 2, commit((2, 9)))
        filesystem = broker.filesystem
        expected = {0: (40, 7, "", 0), 1: (5, -1, "", 0), 2: (9, -1, "", 0)}
        for version in range(5, 10):
            assert await fetched(client, version, partitions=(0, 1, 2)) == expected
            assert await fetched(client, version, partitions=None) == expected
    async with serving(filesystem=filesystem) as broker:
        client = broker.connect()
        for version in range(5, 10):
            assert await fetched(client, version, partitions=(0, 1, 2)) == expected
            assert await fetched(client, version, partitions=None) == expected


# -- what is refused -------------------------------------------------------------------------------------------------


async def test_partitions_are_judged_one_by_one() -> None:
    async with serving({"offset.metadata.max.bytes": "4"}) as broker:
        await broker.create_topic("t", 2)
        client = broker.connect()
        answer = await client.ask("OffsetCommit", 9, commit((0, 1), (1, 2, -1, "xxxxx"), (2, 3), (-1, 4)))
        found = {row.partition_index: row.error_code for row in answer.topics[0].partitions}
        assert found == {0: 0, 1: 12, 2: 3, -1: 3}
        assert await fetched(client, 9, partitions=None) == {0: (1, -1, "", 0)}


async def test_unknown_topics_are_refused_by_name_and_by_id() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        assert codes(await client.ask("OffsetCommit", 9, commit((0, 1), (1, 1), topic="no"))) == [3, 3]
        answer = await client.ask("OffsetCommit", 10, commit((0, 1), (1, 1), topic_id=b"\7" * 16))
        assert codes(answer) == [100, 100]
        assert answer.topics[0].topic_id == b"\7" * 16
        assert codes(await client.ask("OffsetCommit", 10, commit((0, 1)))) == [100], "zeros name no topic"
        assert "no" not in broker.world.image.topics_by_name
        found = await fetched(client, 10, partitions=(0, 1), topic_id=b"\7" * 16)
        assert found == {0: (-1, -1, "", 100), 1: (-1, -1, "", 100)}
        assert await fetched(client, 9, topic="no") == {0: NONE}


@pytest.mark.parametrize(("version", "code"), [(2, 22), (8, 22), (9, 69), (10, 69)])
async def test_a_generation_of_a_group_that_does_not_exist(version: int, code: int) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        topic_id = await topic_id_of(broker) if version >= 10 else uuids.ZERO
        client = broker.connect()
        asked = commit((0, 1), topic_id=topic_id, generation_id_or_member_epoch=0, member_id="m")
        assert codes(await client.ask("OffsetCommit", version, asked)) == [code]
        assert await fetched(client, 9) == {0: NONE}


async def test_a_simple_group_is_in_no_generation() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((0, 1)))
        asked = commit((0, 2), generation_id_or_member_epoch=3, member_id="m")
        assert codes(await client.ask("OffsetCommit", 9, asked)) == [25]
        assert (await fetched(client, 9))[0][0] == 1


# -- durability ------------------------------------------------------------------------------------------------------


async def test_nothing_is_answered_or_shown_before_it_is_on_disk(autojump_clock: trio.abc.Clock) -> None:
    async with serving(at_once=False) as broker:
        with trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_flush_all_along, broker)
                await broker.create_topic("t")
                first = broker.connect()
                assert codes(await first.ask("OffsetCommit", 9, commit((0, 1)))) == [0]
                nursery.cancel_scope.cancel()
        committing, reading = broker.connect(), broker.connect()
        await committing.send("OffsetCommit", 9, commit((0, 2)))
        await trio.sleep(1)
        with trio.move_on_after(1) as too_early:
            await fetched(reading, 9)
        assert too_early.cancelled_caught, "the second commit is not on disk, the reader has to wait"
        with trio.move_on_after(1) as too_early:
            await committing.frame()
        assert too_early.cancelled_caught
        broker.flush.run()
        assert codes((await committing.receive("OffsetCommit", 9))[1]) == [0]
        answer = (await reading.receive("OffsetFetch", 9))[1]
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 2


async def test_a_commit_is_read_whole_or_not_at_all(autojump_clock: trio.abc.Clock) -> None:
    """Of two topics in one OffsetFetch: neither is read later than the other, however long the disk takes."""
    async with serving(at_once=False) as broker:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_flush_all_along, broker)
            await broker.create_topic("t")
            await broker.create_topic("u")
            assert codes(await broker.connect().ask("OffsetCommit", 8, commit((0, 0)))) == [0]
            nursery.cancel_scope.cancel()
        first, second, reader = broker.connect(), broker.connect(), broker.connect()
        await first.send("OffsetCommit", 8, _commit_both(1))
        await trio.sleep(1)
        topics = [OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("t", "u")]
        await reader.send("OffsetFetch", 7, OffsetFetchRequest(group_id="g", topics=topics))
        await trio.sleep(1)
        await second.send("OffsetCommit", 8, _commit_both(2))
        await trio.sleep(1)
        broker.flush.run()
        _, answer = await reader.receive("OffsetFetch", 7)
        assert [row.committed_offset for topic in answer.topics for row in topic.partitions] == [1, 1]


def _commit_both(offset: int) -> OffsetCommitRequest:
    request = commit((0, offset))
    request.topics += commit((0, offset), topic="u").topics
    return request


async def _flush_all_along(broker: Broker) -> None:
    while True:
        await trio.sleep(0.01)
        broker.flush.run()


async def test_a_full_disk_refuses_and_keeps_the_old_offset() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((0, 1)))
        broker.filesystem.fail("write", error=28, times=1000)
        assert codes(await client.ask("OffsetCommit", 9, commit((0, 2)))) == [16]
        broker.filesystem.heal()
        assert (await fetched(client, 9))[0][0] == 1
        assert codes(await client.ask("OffsetCommit", 9, commit((0, 3)))) == [0]


# -- deletion and retention ------------------------------------------------------------------------------------------


def deletion(*places: tuple[str, int], group: str = "g") -> OffsetDeleteRequest:
    topics: dict[str, OffsetDeleteRequestTopic] = {}
    for name, index in places:
        topic = topics.setdefault(name, OffsetDeleteRequestTopic(name=name))
        topic.partitions.append(OffsetDeleteRequestPartition(partition_index=index))
    return OffsetDeleteRequest(group_id=group, topics=list(topics.values()))


async def test_offsets_are_deleted_and_stay_so() -> None:
    async with serving() as broker:
        await broker.create_topic("t", 3)
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((0, 1), (1, 2)))
        answer = await client.ask("OffsetDelete", 0, deletion(("t", 0), ("t", 2), ("t", 7), ("no", 0)))
        assert answer.error_code == 0
        found = {(t.name, r.partition_index): r.error_code for t in answer.topics for r in t.partitions}
        assert found == {("t", 0): 0, ("t", 2): 0, ("t", 7): 3, ("no", 0): 3}
        filesystem = broker.filesystem
    async with serving(filesystem=filesystem) as broker:
        assert await fetched(broker.connect(), 9, partitions=None) == {1: (2, -1, "", 0)}


@pytest.mark.parametrize(("group", "code"), [("unknown", 69), ("", 24)])
async def test_offsets_of_no_group_cannot_be_deleted(group: str, code: int) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        answer = await broker.connect().ask("OffsetDelete", 0, deletion(("t", 0), group=group))
        assert (answer.error_code, answer.topics) == (code, [])


async def test_a_topic_made_anew_begins_without_offsets() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        await broker.create_topic("u")
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((0, 41)))
        await client.ask("OffsetCommit", 9, commit((0, 42), topic="u"))
        await client.ask("DeleteTopics", 5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000))
        assert await fetched(client, 9) == {0: NONE}
        await broker.create_topic("t")
        assert await fetched(client, 9) == {0: NONE}
        assert await fetched(client, 9, topic="u") == {0: (42, -1, "", 0)}


async def test_offsets_of_a_deleted_topic_that_a_full_disk_kept_go_with_the_next_start() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((0, 41)))
        log_id = broker.world.groups.log_of("g")
        broker.filesystem.fail("write", f"{log_id.topic}-{log_id.partition}/00000000000000000000.log", error=28)
        await client.ask("DeleteTopics", 5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000))
        assert await fetched(client, 9, partitions=None) == {0: (41, -1, "", 0)}
        await broker.create_topic("t")
        filesystem = broker.filesystem
    async with serving(filesystem=filesystem) as broker:
        assert await fetched(broker.connect(), 9) == {0: NONE}
        assert await fetched(broker.connect(), 9, partitions=None) == {}


async def test_expiry_takes_one_group_at_a_time(autojump_clock: trio.abc.Clock) -> None:
    """A million offsets take seconds: between two groups others are served, and may commit."""
    properties = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "100000"}
    async with serving(properties) as broker:
        await broker.create_topic("t")
        client = broker.connect()
        for number in range(5):
            await client.ask("OffsetCommit", 9, commit((0, number), group=f"g{number}"))
        looks: list[Steps] = []
        broker.world.chores.run = looks.append  # type: ignore[assignment,method-assign]
        await trio.sleep(150)
        (look,) = looks
        for left in (4, 3):
            next(look)
            assert len((await client.ask("ListGroups", 4, ListGroupsRequest())).groups) == left
        listed = (await client.ask("ListGroups", 4, ListGroupsRequest())).groups
        late = listed[0].group_id
        await client.ask("OffsetCommit", 9, commit((0, 7), group=late))
        for _ in look:
            pass
        assert await fetched(client, 9, group=late) == {0: (7, -1, "", 0)}
        assert len((await client.ask("ListGroups", 4, ListGroupsRequest())).groups) == 1
        await trio.sleep(100)
        assert len(looks) == 2


async def test_a_simple_group_s_offsets_expire_after_their_retention(autojump_clock: trio.abc.Clock) -> None:
    """B054, G2: the time of the commit decides, and a restart changes nothing."""
    properties = {"offsets.retention.minutes": "10", "offsets.retention.check.interval.ms": "1000"}
    async with serving(properties) as broker:
        await broker.create_topic("t", 2)
        client = broker.connect()
        await client.ask("OffsetCommit", 9, commit((0, 41)))
        await trio.sleep(300)
        await client.ask("OffsetCommit", 4, commit((1, 42), retention_time_ms=-1))
        await client.ask("OffsetCommit", 4, commit((1, 7), group="short", retention_time_ms=1000))
        await trio.sleep(3)
        assert await fetched(client, 9, group="short", partitions=None) == {}
        await trio.sleep(290)
        assert len(await fetched(client, 9, partitions=None)) == 2
        filesystem = broker.filesystem
    async with serving(properties, filesystem=filesystem) as broker:
        client = broker.connect()
        await trio.sleep(3)
        assert len(await fetched(client, 9, partitions=None)) == 2
        await trio.sleep(6)
        assert await fetched(client, 9, partitions=None) == {1: (42, -1, "", 0)}
        await trio.sleep(300)
        assert await fetched(client, 9, partitions=None) == {}
        assert "g" not in broker.world.groups.group_ids()
