"""Classic groups over the wire: versions, what a connection waits for, clients that go away."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kmirror.protocol.api.delete_groups import DeleteGroupsRequest
from kmirror.protocol.api.describe_groups import DescribeGroupsRequest
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.api.heartbeat import HeartbeatRequest
from kmirror.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from kmirror.protocol.api.list_groups import ListGroupsRequest
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kmirror.protocol.errors import ErrorCode
from tests.server.harness import Client, serving

SAID = b"\0\0\0\0\0\1\0\1t\0\0\0\0"


def join(member_id: str = "", *, group: str = "g", **fields: Any) -> JoinGroupRequest:
    protocols, said = fields.pop("protocols", ("range",)), fields.pop("said", SAID)
    settings: dict[str, Any] = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000, **fields}
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=name, metadata=said) for name in protocols],
        **settings,
    )


def sync(
    generation: int, member_id: str, assignments: dict[str, bytes] | None = None, *, group: str = "g", **fields: Any
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequestAssignment(member_id=one, assignment=value) for one, value in (assignments or {}).items()
        ],
        **fields,
    )


async def alone(client: Client, *, group: str = "g") -> str:
    """One member, stable in generation 1; its id."""
    first = await client.ask("JoinGroup", 9, join(group=group))
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = await client.ask("JoinGroup", 9, join(first.member_id, group=group))
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, first.member_id)
    synced = await client.ask("SyncGroup", 5, sync(1, first.member_id, {first.member_id: b"P"}, group=group))
    assert (synced.error_code, synced.assignment, synced.protocol_name) == (0, b"P", "range")
    return str(first.member_id)


async def test_a_group_of_two_and_its_end(autojump_clock: Any) -> None:
    async with serving() as broker:
        one, two = broker.connect(), broker.connect()
        first = await alone(one)
        pending = await two.ask("JoinGroup", 9, join())
        await two.send("JoinGroup", 9, join(pending.member_id))
        await trio.sleep(1)
        beat = await one.ask("Heartbeat", 4, HeartbeatRequest(group_id="g", member_id=first, generation_id=1))
        assert beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        leader = await one.ask("JoinGroup", 9, join(first))
        _, follower = await two.receive("JoinGroup", 9)
        assert (leader.generation_id, follower.generation_id, follower.leader) == (2, 2, first)
        assert {member.member_id for member in leader.members} == {first, follower.member_id}
        assert [bytes(member.metadata) for member in leader.members] == [SAID, SAID]
        assert follower.members == []
        await two.send("SyncGroup", 5, sync(2, follower.member_id))
        synced = await one.ask("SyncGroup", 5, sync(2, first, {first: b"1", follower.member_id: b"2"}))
        assert synced.assignment == b"1"
        assert (await two.receive("SyncGroup", 5))[1].assignment == b"2"
        members = [MemberIdentity(member_id=one_id) for one_id in (first, follower.member_id, "nobody")]
        left = await one.ask("LeaveGroup", 5, LeaveGroupRequest(group_id="g", members=members))
        assert [row.error_code for row in left.members] == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
        assert await state_of(one) == "Empty"


async def state_of(client: Client, group: str = "g") -> str:
    described = await client.ask("DescribeGroups", 6, DescribeGroupsRequest(groups=[group]))
    return str(described.groups[0].group_state)


@pytest.mark.parametrize("version", range(10))
async def test_every_version_of_a_first_join(version: int, autojump_clock: Any) -> None:
    async with serving() as broker:
        client = broker.connect()
        answer = await client.ask("JoinGroup", version, join())
        if version >= 4:
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            answer = await client.ask("JoinGroup", version, join(answer.member_id))
        assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
        assert answer.protocol_type == ("consumer" if version >= 7 else None)
        sync_version = min(version, 5)
        synced = await client.ask("SyncGroup", sync_version, sync(1, answer.member_id, {answer.member_id: b"P"}))
        assert bytes(synced.assignment) == b"P"
        beat = HeartbeatRequest(group_id="g", member_id=answer.member_id, generation_id=1)
        assert (await client.ask("Heartbeat", min(version, 4), beat)).error_code == 0
        leave_version = min(version, 5)
        if leave_version < 3:
            leaving = LeaveGroupRequest(group_id="g", member_id=answer.member_id)
        else:
            leaving = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=answer.member_id)])
        assert (await client.ask("LeaveGroup", leave_version, leaving)).error_code == 0
        again = await client.ask("LeaveGroup", leave_version, leaving)
        codes = {again.error_code} if leave_version < 3 else {row.error_code for row in again.members}
        assert codes == {ErrorCode.UNKNOWN_MEMBER_ID}


async def test_the_session_of_version_0_is_its_rebalance_timeout(autojump_clock: Any) -> None:
    async with serving() as broker:
        one, two = broker.connect(), broker.connect()
        request = join(session_timeout_ms=8_000)
        member = (await one.ask("JoinGroup", 0, request)).member_id
        assert broker.world.groups.groups.table["g"].members[member].rebalance_timeout_ms == 8_000
        await one.ask("SyncGroup", 0, sync(1, member))
        await two.send("JoinGroup", 0, request)
        before = trio.current_time()
        _, joined = await two.receive("JoinGroup", 0)
        assert trio.current_time() - before == pytest.approx(8, abs=0.1)
        assert joined.leader == joined.member_id


async def test_nothing_else_is_answered_while_a_join_waits(autojump_clock: Any) -> None:
    async with serving() as broker:
        one, two = broker.connect(), broker.connect()
        first = await alone(one)
        await two.send("JoinGroup", 3, join())
        await two.send("Heartbeat", 4, HeartbeatRequest(group_id="nobody"))
        with trio.move_on_after(5) as waited:
            await two.frame()
        assert waited.cancelled_caught
        await one.ask("JoinGroup", 9, join(first))
        assert (await two.receive("JoinGroup", 3))[1].error_code == 0
        assert (await two.receive("Heartbeat", 4))[1].error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_clients_that_go_away_while_they_wait(autojump_clock: Any) -> None:
    """Their members go with the session or the rebalance, the promises with them, and the others go on."""
    async with serving() as broker:
        one = broker.connect()
        first = await alone(one)
        for _ in range(20):
            gone = broker.connect()
            await gone.send("JoinGroup", 3, join())
            await trio.sleep(0.1)
            gone.close()
        joined = await one.ask("JoinGroup", 9, join(first))
        assert len(joined.members) == 21
        assignments = {member.member_id: b"x" for member in joined.members}
        await one.ask("SyncGroup", 5, sync(2, first, assignments))
        for _ in range(6):
            await trio.sleep(4)
            await one.ask("Heartbeat", 4, HeartbeatRequest(group_id="g", member_id=first, generation_id=2))
        again = await one.ask("JoinGroup", 9, join(first))
        assert [member.member_id for member in again.members] == [first]
        table = broker.world.groups.groups.table
        assert not any(member.joins or member.syncs for member in table["g"].members.values())


async def test_the_topic_comes_with_the_first_question(autojump_clock: Any) -> None:
    async with serving({"offsets.topic.num.partitions": "7"}) as broker:
        client = broker.connect()
        found = await client.ask("FindCoordinator", 4, FindCoordinatorRequest(coordinator_keys=["g"]))
        assert (found.coordinators[0].error_code, found.coordinators[0].node_id) == (0, broker.world.node_id)
        await alone(client)
        topics = [MetadataRequestTopic(name="__consumer_offsets")]
        metadata = await client.ask("Metadata", 12, MetadataRequest(topics=topics))
        assert (len(metadata.topics[0].partitions), metadata.topics[0].is_internal) == (7, True)


async def test_nobody_needs_to_find_the_coordinator_first(autojump_clock: Any) -> None:
    async with serving(at_once=False) as broker:
        client = broker.connect()
        assert (await client.ask("Heartbeat", 4, HeartbeatRequest(group_id="g"))).error_code == 25
        assert (await client.ask("ListGroups", 5, ListGroupsRequest())).groups == []
        await client.send("JoinGroup", 9, join())
        with trio.move_on_after(1) as waited:
            await client.frame()
        assert waited.cancelled_caught  # the topic's record is not on disk yet
        broker.flush.run()
        assert (await client.receive("JoinGroup", 9))[1].error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_an_assignment_leaves_when_it_is_on_disk(autojump_clock: Any) -> None:
    async with serving() as broker:
        client = broker.connect()
        first = await client.ask("JoinGroup", 3, join())
        broker.flush.at_once = False
        await client.send("SyncGroup", 5, sync(1, first.member_id, {first.member_id: b"P"}))
        with trio.move_on_after(1) as waited:
            await client.frame()
        assert waited.cancelled_caught
        broker.flush.run()
        assert (await client.receive("SyncGroup", 5))[1].assignment == b"P"


async def test_members_survive_a_restart(autojump_clock: Any) -> None:
    async with serving() as broker:
        first = await alone(broker.connect())
        filesystem = broker.filesystem
    async with serving(filesystem=filesystem) as broker:
        client = broker.connect()
        described = (await client.ask("DescribeGroups", 6, DescribeGroupsRequest(groups=["g"]))).groups[0]
        assert (described.group_state, described.members[0].member_assignment) == ("Stable", b"P")
        assert (described.members[0].client_id, described.members[0].client_host) == ("test", "/client")
        beat = HeartbeatRequest(group_id="g", member_id=first, generation_id=1)
        assert (await client.ask("Heartbeat", 4, beat)).error_code == 0
        await trio.sleep(11)
        assert (await client.ask("Heartbeat", 4, beat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert await state_of(client) == "Empty"


async def test_listing_with_filters(autojump_clock: Any) -> None:
    async with serving() as broker:
        client = broker.connect()
        await alone(client, group="full")
        await client.ask("JoinGroup", 9, join(group="asked"))

        async def listed(version: int = 5, **filters: list[str]) -> set[str]:
            answer = await client.ask("ListGroups", version, ListGroupsRequest(**filters))
            return {group.group_id for group in answer.groups}

        assert await listed(0) == await listed() == {"full", "asked"}
        assert await listed(states_filter=["stable"]) == {"full"}
        assert await listed(states_filter=[" EMPTY ", "Dead"]) == {"asked"}
        assert await listed(types_filter=["Classic"]) == {"full", "asked"}
        assert await listed(types_filter=["consumer"]) == set()
        assert await listed(types_filter=["no such type"]) == set()
        row = (await client.ask("ListGroups", 5, ListGroupsRequest(states_filter=["Stable"]))).groups[0]
        assert (row.protocol_type, row.group_state, row.group_type) == ("consumer", "Stable", "classic")


async def test_describing_what_is_not_there(autojump_clock: Any) -> None:
    async with serving() as broker:
        client = broker.connect()
        asked = DescribeGroupsRequest(groups=["x"], include_authorized_operations=True)
        old = (await client.ask("DescribeGroups", 5, asked)).groups[0]
        assert (old.error_code, old.group_state, old.authorized_operations) == (0, "Dead", 3400)
        new = (await client.ask("DescribeGroups", 6, asked)).groups[0]
        assert (new.error_code, new.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group x not found.")
        assert (new.group_state, new.authorized_operations) == ("Dead", -(2**31))


async def test_deleting(autojump_clock: Any) -> None:
    async with serving() as broker:
        client = broker.connect()
        member = await alone(client)
        asked = DeleteGroupsRequest(groups_names=["g", "x", "g", ""])
        answer = await client.ask("DeleteGroups", 3, asked)
        not_found = ErrorCode.GROUP_ID_NOT_FOUND
        assert {row.group_id: row.error_code for row in answer.results} == {
            "g": ErrorCode.NON_EMPTY_GROUP,
            "x": not_found,
            "": not_found,
        }
        leaving = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member)])
        await client.ask("LeaveGroup", 5, leaving)
        answer = await client.ask("DeleteGroups", 0, DeleteGroupsRequest(groups_names=["g"]))
        assert [row.error_code for row in answer.results] == [0]
        assert await state_of(client) == "Dead"


async def test_refusals_at_every_version(autojump_clock: Any) -> None:
    async with serving() as broker:
        client = broker.connect()
        for version in range(10):
            answer = await client.ask("JoinGroup", version, join(session_timeout_ms=5_999))
            assert (answer.error_code, answer.generation_id) == (ErrorCode.INVALID_SESSION_TIMEOUT, -1)
            assert answer.protocol_name == (None if version >= 7 else "")
        no_name = SyncGroupRequest(group_id="g", generation_id=1, member_id="m")
        assert (await client.ask("SyncGroup", 5, no_name)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await client.ask("SyncGroup", 4, no_name)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        for api, version, request in (
            ("JoinGroup", 9, join(group="")),
            ("SyncGroup", 5, sync(1, "m", group="")),
            ("Heartbeat", 4, HeartbeatRequest()),
            ("LeaveGroup", 5, LeaveGroupRequest()),
        ):
            assert (await client.ask(api, version, request)).error_code == ErrorCode.INVALID_GROUP_ID


async def test_a_static_leader_that_comes_back(autojump_clock: Any) -> None:
    async with serving() as broker:
        one, two = broker.connect(), broker.connect()
        first = await one.ask("JoinGroup", 9, join(group_instance_id="i"))
        await one.ask("SyncGroup", 5, sync(1, first.member_id, {first.member_id: b"P"}, group_instance_id="i"))
        back = await two.ask("JoinGroup", 9, join(group_instance_id="i"))
        assert (back.generation_id, back.skip_assignment, back.leader) == (1, True, back.member_id)
        older = await two.ask("JoinGroup", 8, join(group_instance_id="i"))
        assert (older.generation_id, older.skip_assignment, older.leader) == (1, False, back.member_id)
        beat = HeartbeatRequest(group_id="g", member_id=first.member_id, generation_id=1, group_instance_id="i")
        assert (await one.ask("Heartbeat", 4, beat)).error_code == ErrorCode.FENCED_INSTANCE_ID


async def test_two_hundred_members_over_the_wire(autojump_clock: Any) -> None:
    """Who says something new makes everybody join again: so both rounds end in one generation with all of them."""
    async with serving({"group.initial.rebalance.delay.ms": "1000"}) as broker:
        clients = [broker.connect() for _ in range(200)]
        members = await _all_join(clients, [""] * 200, said=SAID)
        assert await _all_join(clients, members, said=SAID + b"!") == members
        for client, member in zip(clients, members, strict=True):
            leaving = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member)])
            assert (await client.ask("LeaveGroup", 5, leaving)).members[0].error_code == 0
        assert await state_of(clients[0]) == "Empty"


async def _all_join(clients: list[Client], members: list[str], *, said: bytes) -> list[str]:
    """All in one generation, each with its own assignment; their ids."""
    for client, member in zip(clients, members, strict=True):
        await client.send("JoinGroup", 3, join(member, said=said))
    answers = [(await client.receive("JoinGroup", 3))[1] for client in clients]
    assert len({answer.generation_id for answer in answers}) == 1
    members = [answer.member_id for answer in answers]
    leader = next(i for i, answer in enumerate(answers) if answer.members)
    assert {member.member_id for member in answers[leader].members} == set(members)
    assignments = {member: member.encode() for member in members}
    for i, client in enumerate(clients):
        asked = sync(answers[i].generation_id, members[i], assignments if i == leader else None)
        await client.send("SyncGroup", 5, asked)
    for i, client in enumerate(clients):
        synced = (await client.receive("SyncGroup", 5))[1]
        assert (synced.error_code, bytes(synced.assignment).decode()) == (0, members[i])
    return members
