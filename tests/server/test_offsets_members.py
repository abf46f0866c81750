"""Committed offsets of groups with members: who may commit, what a commit keeps alive, when offsets expire (B054)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kmirror.protocol.api.delete_groups import DeleteGroupsRequest
from kmirror.protocol.api.heartbeat import HeartbeatRequest
from kmirror.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from kmirror.protocol.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kmirror.protocol.errors import ErrorCode
from tests.server.harness import Client, serving
from tests.server.test_groups import alone, join, state_of, sync
from tests.server.test_offsets import NONE, codes, commit, deletion, fetched

Virtual = trio.abc.Clock
RETENTION = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}


async def commit_as(
    client: Client, member_id: str, generation: int, *rows: tuple[Any, ...], version: int = 9, **parts: Any
) -> list[int]:
    request = commit(*rows, member_id=member_id, generation_id_or_member_epoch=generation, **parts)
    return codes(await client.ask("OffsetCommit", version, request))


async def beat(client: Client, member_id: str, generation: int = 1, *, group: str = "g") -> int:
    request = HeartbeatRequest(group_id=group, member_id=member_id, generation_id=generation)
    code: int = (await client.ask("Heartbeat", 4, request)).error_code
    return code


async def beat_for(client: Client, member_id: str, duration_s: int, *, group: str = "g") -> None:
    for _ in range(duration_s // 5):
        await trio.sleep(5)
        assert await beat(client, member_id, group=group) == 0


async def leave(client: Client, member_id: str, *, group: str = "g") -> None:
    request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member_id)])
    assert (await client.ask("LeaveGroup", 5, request)).error_code == 0


async def connect_worker(client: Client, *, group: str) -> str:
    """One member of a group whose protocol type is not "consumer"; its id."""
    request = JoinGroupRequest(
        group_id=group,
        protocol_type="connect",
        protocols=[JoinGroupRequestProtocol(name="default", metadata=b"x")],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
    )
    request.member_id = (await client.ask("JoinGroup", 9, request)).member_id
    joined = await client.ask("JoinGroup", 9, request)
    assert joined.error_code == 0
    assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
    synced = SyncGroupRequest(group_id=group, generation_id=1, member_id=joined.member_id, assignments=assignments)
    assert (await client.ask("SyncGroup", 4, synced)).error_code == 0
    return str(joined.member_id)


async def test_members_commit_in_their_generation(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client, other = broker.connect(), broker.connect()
        member = await alone(client)
        assert await commit_as(client, member, 1, (0, 1)) == [0]
        assert await commit_as(client, member, 0, (0, 2)) == [ErrorCode.ILLEGAL_GENERATION]
        assert await commit_as(client, member, 2, (0, 2)) == [ErrorCode.ILLEGAL_GENERATION]
        assert await commit_as(client, "nobody", 1, (0, 2)) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await commit_as(client, "", -1, (0, 2)) == [ErrorCode.UNKNOWN_MEMBER_ID], "it has a member"
        assert await fetched(client, 9) == {0: (1, -1, "", 0)}
        # another one joins: who has not joined again may still commit, nobody may before the assignment is there
        pending = await other.ask("JoinGroup", 9, join())
        await other.send("JoinGroup", 9, join(pending.member_id))
        await trio.sleep(1)
        assert await state_of(client) == "PreparingRebalance"
        assert await commit_as(client, member, 1, (0, 3)) == [0]
        await client.ask("JoinGroup", 9, join(member))
        await other.receive("JoinGroup", 9)
        assert await state_of(client) == "CompletingRebalance"
        assert await commit_as(client, member, 2, (0, 4)) == [ErrorCode.REBALANCE_IN_PROGRESS]
        await client.ask("SyncGroup", 5, sync(2, member, {member: b"1"}))
        assert await commit_as(client, member, 2, (0, 5)) == [0]
        assert await fetched(client, 9) == {0: (5, -1, "", 0)}


async def test_a_commit_is_a_sign_of_life(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        member = await alone(client)
        for offset in range(5):
            await trio.sleep(8)
            assert await commit_as(client, member, 1, (0, offset)) == [0]
        assert await state_of(client) == "Stable"
        await trio.sleep(12)
        assert await state_of(client) == "Empty"
        assert await commit_as(client, "", -1, (0, 9)) == [0], "without members anybody may"


async def test_a_member_that_left_is_unknown_and_its_offsets_stay(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        member = await alone(client)
        await commit_as(client, member, 1, (0, 7))
        await leave(client, member)
        assert await commit_as(client, member, 1, (0, 8)) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await fetched(client, 9) == {0: (7, -1, "", 0)}


async def test_offsets_of_what_a_group_reads_are_not_deleted(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        await broker.create_topic("u")
        client = broker.connect()
        member = await alone(client)
        await commit_as(client, member, 1, (0, 1))
        await commit_as(client, member, 1, (0, 1), topic="u")
        answer = await client.ask("OffsetDelete", 0, deletion(("t", 0), ("u", 0)))
        assert answer.error_code == 0
        found = {topic.name: row.error_code for topic in answer.topics for row in topic.partitions}
        assert found == {"t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "u": 0}
        assert await fetched(client, 9) == {0: (1, -1, "", 0)}
        assert await fetched(client, 9, topic="u") == {0: NONE}
        await leave(client, member)
        answer = await client.ask("OffsetDelete", 0, deletion(("t", 0)))
        assert codes(answer) == [0]


async def test_a_group_of_another_protocol_is_not_touched_while_it_has_members(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        member = await connect_worker(client, group="w")
        await commit_as(client, member, 1, (0, 1), group="w")
        answer = await client.ask("OffsetDelete", 0, deletion(("t", 0), group="w"))
        assert (answer.error_code, answer.topics) == (ErrorCode.NON_EMPTY_GROUP, [])
        await leave(client, member, group="w")
        assert codes(await client.ask("OffsetDelete", 0, deletion(("t", 0), group="w"))) == [0]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_deleted_group_takes_its_offsets_along(autojump_clock: Virtual, restart: bool) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        member = await alone(client)
        await commit_as(client, member, 1, (0, 1))
        await client.ask("OffsetCommit", 9, commit((0, 2), group="simple"))
        refused = await client.ask("DeleteGroups", 2, DeleteGroupsRequest(groups_names=["g"]))
        assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        await leave(client, member)
        answer = await client.ask("DeleteGroups", 2, DeleteGroupsRequest(groups_names=["g", "simple"]))
        assert [row.error_code for row in answer.results] == [0, 0]
        assert await fetched(client, 9) == {0: NONE}
        filesystem = broker.filesystem
    if restart:
        async with serving(filesystem=filesystem) as broker:
            for group in ("g", "simple"):
                assert await fetched(broker.connect(), 9, group=group, partitions=None) == {}


# -- expiry (B054) ---------------------------------------------------------------------------------------------------


async def test_a_stable_group_keeps_what_it_is_subscribed_to(autojump_clock: Virtual) -> None:
    """G1: of an active group only offsets of topics that it does not read any more expire."""
    async with serving(RETENTION) as broker:
        await broker.create_topic("t")
        await broker.create_topic("u")
        client = broker.connect()
        member = await alone(client)
        await commit_as(client, member, 1, (0, 1))
        await commit_as(client, member, 1, (0, 1), topic="u")
        await beat_for(client, member, 50)
        assert await fetched(client, 9, topic="u") == {0: (1, -1, "", 0)}
        await beat_for(client, member, 100)
        assert await fetched(client, 9) == {0: (1, -1, "", 0)}
        assert await fetched(client, 9, topic="u") == {0: NONE}


async def test_nothing_expires_during_a_rebalance(autojump_clock: Virtual) -> None:
    """G1, held in PreparingRebalance for longer than the retention."""
    async with serving({**RETENTION, "group.max.session.timeout.ms": "600000"}) as broker:
        await broker.create_topic("t")
        await broker.create_topic("u")
        client, other = broker.connect(), broker.connect()
        pending = await client.ask("JoinGroup", 9, join())
        long: dict[str, Any] = {"session_timeout_ms": 300_000, "rebalance_timeout_ms": 300_000}
        member = (await client.ask("JoinGroup", 9, join(pending.member_id, **long))).member_id
        await client.ask("SyncGroup", 5, sync(1, member, {member: b"1"}))
        await commit_as(client, member, 1, (0, 1))
        await commit_as(client, member, 1, (0, 1), topic="u")
        pending = await other.ask("JoinGroup", 9, join(**long))
        await other.send("JoinGroup", 9, join(pending.member_id, **long))
        await trio.sleep(150)
        assert await state_of(client) == "PreparingRebalance"
        assert await fetched(client, 9) == {0: (1, -1, "", 0)}
        assert await fetched(client, 9, topic="u") == {0: (1, -1, "", 0)}


@pytest.mark.parametrize("restart", [False, True])
async def test_retention_begins_when_the_last_member_leaves(autojump_clock: Virtual, restart: bool) -> None:
    """G3: neither the time of the commit nor a restart counts."""
    async with serving(RETENTION) as broker:
        await broker.create_topic("t")
        client = broker.connect()
        member = await alone(client)
        await commit_as(client, member, 1, (0, 1))
        await beat_for(client, member, 100)
        await leave(client, member)
        await trio.sleep(40)
        assert await fetched(client, 9) == {0: (1, -1, "", 0)}
        if not restart:
            await trio.sleep(15)
            assert await fetched(client, 9) == {0: (1, -1, "", 0)}
            await trio.sleep(7)
            assert await fetched(client, 9) == {0: NONE}
            assert "g" not in broker.world.groups.group_ids()
            return
        filesystem = broker.filesystem
    async with serving(RETENTION, filesystem=filesystem) as broker:
        client = broker.connect()
        await trio.sleep(15)
        assert await fetched(client, 9) == {0: (1, -1, "", 0)}
        await trio.sleep(7)
        assert await fetched(client, 9) == {0: NONE}
        assert "g" not in broker.world.groups.group_ids()


async def test_groups_of_other_protocols_keep_everything_while_active(autojump_clock: Virtual) -> None:
    """G4."""
    async with serving(RETENTION) as broker:
        await broker.create_topic("t")
        client = broker.connect()
        member = await connect_worker(client, group="w")
        await commit_as(client, member, 1, (0, 1), group="w")
        await beat_for(client, member, 150, group="w")
        assert await fetched(client, 9, group="w") == {0: (1, -1, "", 0)}
