"""A member of a group and what it does with every answer of a coordinator, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kmirror.cli import coordinator as client
from kmirror.cli.coordinator import Coordinator, as_is
from kmirror.cli.failure import Failure
from kmirror.cli.group_member import GroupMember, MemberSettings
from kmirror.cli.group_offsets import Committed, Identity, commit, committed, delete
from kmirror.protocol.api import offset_commit, offset_delete, offset_fetch
from kmirror.protocol.api.find_coordinator import Coordinator as Found
from kmirror.protocol.api.find_coordinator import FindCoordinatorResponse
from kmirror.protocol.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from kmirror.protocol.api.join_group import JoinGroupResponse, JoinGroupResponseMember
from kmirror.protocol.api.leave_group import LeaveGroupResponse
from kmirror.protocol.api.sync_group import SyncGroupResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kmirror.source.errors import PeerClosed, PeerUnreachable, UnsupportedByPeer
from tests.cli.scripted_coordinator import ScriptedCoordinators, in_turn


def scripted(**answers: Any) -> ScriptedCoordinators:
    names = {name: answer if callable(answer) else in_turn(answer) for name, answer in answers.items()}
    return ScriptedCoordinators(names, topics={"t": 3})


def member_of(cluster: ScriptedCoordinators, **settings: Any) -> GroupMember:
    return GroupMember(cluster, "g", ["t"], MemberSettings(**settings))  # type: ignore[arg-type]


def joined(generation: int = 1, member_id: str = "m", *, leader: str = "other", others: tuple[str, ...] = ()) -> Any:
    members = [
        JoinGroupResponseMember(
            member_id=name, metadata=encode_subscription(ConsumerProtocolSubscription(topics=["t"]), 3)
        )
        for name in ((member_id, *others) if leader == member_id else ())
    ]
    return JoinGroupResponse(
        generation_id=generation, member_id=member_id, leader=leader, protocol_name="range", members=members
    )


def synced(*partitions: int) -> SyncGroupResponse:
    topics = [AssignedTopicPartitions(topic="t", partitions=list(partitions))]
    return SyncGroupResponse(assignment=encode_assignment(ConsumerProtocolAssignment(assigned_partitions=topics)))


# --- finding the coordinator ------------------------------------------------------------------------------------------


async def test_a_coordinator_that_moved_is_found_again(autojump_clock: MockClock) -> None:
    cluster = scripted(
        Heartbeat=in_turn(
            HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR),
            HeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            HeartbeatResponse(),
        )
    )
    cluster.coordinator_ids = [1, 2]
    answer = await Coordinator(cluster, "g").ask(as_is(HeartbeatRequest()))  # type: ignore[arg-type]
    assert answer.error_code == 0
    assert [asked.connection.node_id for asked in cluster.asked if asked.name == "Heartbeat"] == [1, 2, 2]


async def test_patience_ends(autojump_clock: MockClock) -> None:
    cluster = scripted(Heartbeat=HeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    began_s = trio.current_time()
    answer = await Coordinator(cluster, "g").ask(as_is(HeartbeatRequest()))  # type: ignore[arg-type]
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert trio.current_time() - began_s == pytest.approx(client.PATIENCE_S)


async def test_a_lost_connection_is_opened_anew_once_it_worked(autojump_clock: MockClock) -> None:
    cluster = scripted(Heartbeat=in_turn(HeartbeatResponse(), PeerClosed("gone"), HeartbeatResponse()))
    coordinator = Coordinator(cluster, "g")  # type: ignore[arg-type]
    for _ in range(2):
        assert (await coordinator.ask(as_is(HeartbeatRequest()))).error_code == 0
    cluster.unreachable = True
    cluster._connections.clear()
    with pytest.raises(PeerUnreachable):
        await coordinator.ask(as_is(HeartbeatRequest()))
    began_s = trio.current_time()
    with pytest.raises(PeerUnreachable):
        await Coordinator(cluster, "g").ask(as_is(HeartbeatRequest()))  # type: ignore[arg-type]
    assert trio.current_time() == began_s, "somebody who was never there is not waited for"


@pytest.mark.parametrize("version", [0, 3, 4, 6])
async def test_who_coordinates_is_asked_in_every_version(version: int, autojump_clock: MockClock) -> None:
    cluster = scripted()
    cluster.versions["FindCoordinator"] = version
    assert (await Coordinator(cluster, "g", client.TRANSACTION).find()).node_id == 1  # type: ignore[arg-type]
    (request,) = cluster.messages("FindCoordinator")
    assert (request.key, request.coordinator_keys) == (("g", []) if version < 4 else ("", ["g"]))


async def test_no_coordinator_at_all(autojump_clock: MockClock) -> None:
    def unavailable(code: int) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(coordinators=[Found(error_code=code, error_message=None)])

    later = scripted(FindCoordinator=in_turn(unavailable(15), unavailable(15), unavailable(0)))
    await Coordinator(later, "g").find()  # type: ignore[arg-type]
    for code, name in ((15, "COORDINATOR_NOT_AVAILABLE"), (30, "GROUP_AUTHORIZATION_FAILED")):
        with pytest.raises(Failure, match=name):
            await Coordinator(scripted(FindCoordinator=unavailable(code)), "g").find()  # type: ignore[arg-type]


# --- joining ----------------------------------------------------------------------------------------------------------


async def test_a_follower_gets_its_share(autojump_clock: MockClock) -> None:
    cluster = scripted(
        JoinGroup=in_turn(
            JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m"), joined(7, leader="other")
        ),
        SyncGroup=synced(2, 0),
    )
    member = member_of(cluster)
    assert await member.join() == [("t", 0), ("t", 2)]
    assert (member.identity, member.rejoin_needed) == (Identity(7, "m"), False)
    first, second = cluster.messages("JoinGroup")
    assert (first.member_id, second.member_id) == ("", "m")
    assert [protocol.name for protocol in first.protocols] == ["range"]
    assert decode_subscription(first.protocols[0].metadata).topics == ["t"]
    (sync,) = cluster.messages("SyncGroup")
    assert (sync.generation_id, sync.member_id, sync.protocol_name, sync.assignments) == (7, "m", "range", [])


async def test_a_leader_assigns_for_everybody(autojump_clock: MockClock) -> None:
    cluster = scripted(JoinGroup=joined(leader="m", others=("a",)), SyncGroup=synced(2))
    await member_of(cluster).join()
    (sync,) = cluster.messages("SyncGroup")
    shares = {item.member_id: decode_assignment(item.assignment).assigned_partitions for item in sync.assignments}
    assert {name: share[0].partitions for name, share in shares.items()} == {"a": [0, 1], "m": [2]}


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
async def test_a_member_that_is_not_known_joins_as_a_new_one(code: int, autojump_clock: MockClock) -> None:
    cluster = scripted(
        JoinGroup=in_turn(joined(1, "old"), joined(2, "new")),
        SyncGroup=in_turn(SyncGroupResponse(error_code=code), synced(0)),
    )
    member = member_of(cluster)
    assert await member.join() == [("t", 0)]
    assert [request.member_id for request in cluster.messages("JoinGroup")] == ["", ""]
    assert member.identity == Identity(2, "new")


async def test_a_group_that_moves_on_is_joined_again_under_the_same_id(autojump_clock: MockClock) -> None:
    cluster = scripted(
        JoinGroup=in_turn(joined(1), JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), joined(3)),
        SyncGroup=in_turn(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), synced(1)),
    )
    assert await member_of(cluster).join() == [("t", 1)]
    assert [request.member_id for request in cluster.messages("JoinGroup")] == ["", "m", "m"]


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no assignor"),
        (ErrorCode.FENCED_INSTANCE_ID, "instance id one"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, ""),
    ],
)
async def test_refusals_say_what_to_do(code: int, step: str, autojump_clock: MockClock) -> None:
    cluster = scripted(JoinGroup=JoinGroupResponse(error_code=code))
    with pytest.raises(Failure, match=ErrorCode(code).name) as raised:
        await member_of(cluster, instance_id="one").join()
    assert step in raised.value.next_step


async def test_rubbish_from_other_members_is_named(autojump_clock: MockClock) -> None:
    answer = joined(leader="m", others=("a",))
    answer.members[1].metadata = b"\0"
    with pytest.raises(Failure, match="member a sent a subscription"):
        await member_of(scripted(JoinGroup=answer)).join()
    rubbish = SyncGroupResponse(assignment=b"\0")
    with pytest.raises(Failure, match="an assignment that is none"):
        await member_of(scripted(JoinGroup=joined(), SyncGroup=rubbish)).join()


async def test_static_members_need_a_broker_that_has_them(autojump_clock: MockClock) -> None:
    cluster = scripted(JoinGroup=joined())
    cluster.versions["JoinGroup"] = 4
    with pytest.raises(UnsupportedByPeer, match="static members"):
        await member_of(cluster, instance_id="one").join()


# --- staying ----------------------------------------------------------------------------------------------------------


async def heartbeat(answer: HeartbeatResponse) -> GroupMember:
    """A member that has joined, some heartbeats later."""
    cluster = scripted(JoinGroup=joined(), SyncGroup=synced(0), Heartbeat=answer)
    member = member_of(cluster)
    await member.join()
    with trio.move_on_after(10):
        await member.heartbeats()
    assert cluster.messages("Heartbeat")[0].generation_id == 1
    return member


async def test_heartbeats(autojump_clock: MockClock) -> None:
    member = await heartbeat(HeartbeatResponse())
    assert (member.rejoin_needed, member.member_id) == (False, "m")
    member = await heartbeat(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert (member.rejoin_needed, member.was_thrown_out, member.member_id) == (True, False, "m")
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
        member = await heartbeat(HeartbeatResponse(error_code=code))
        assert (member.rejoin_needed, member.was_thrown_out, member.member_id) == (True, True, "")
    with pytest.raises(Failure, match="FENCED_INSTANCE_ID"):
        await heartbeat(HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))


async def test_no_heartbeat_before_joining_and_none_while_joining_again(autojump_clock: MockClock) -> None:
    cluster = scripted(JoinGroup=joined(), SyncGroup=synced(0), Heartbeat=HeartbeatResponse(error_code=27))
    member = member_of(cluster)
    with trio.move_on_after(100):
        await member.heartbeats()
    assert cluster.messages("Heartbeat") == []
    await member.join()
    with trio.move_on_after(100):
        await member.heartbeats()
    assert len(cluster.messages("Heartbeat")) == 1


async def test_a_leader_notices_new_partitions(autojump_clock: MockClock) -> None:
    cluster = scripted(JoinGroup=joined(leader="m"), SyncGroup=synced(0, 1, 2), Heartbeat=HeartbeatResponse())
    member = member_of(cluster)
    await member.join()
    with trio.move_on_after(100):
        await member.heartbeats()
    assert not member.rejoin_needed
    cluster.topics["t"] = 4
    with trio.move_on_after(100):
        await member.heartbeats()
    assert member.rejoin_needed


# --- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "by_list"), [(2, False), (5, True)])
async def test_leaving_in_old_and_new_versions(version: int, by_list: bool, autojump_clock: MockClock) -> None:
    cluster = scripted(JoinGroup=joined(), SyncGroup=synced(0), LeaveGroup=LeaveGroupResponse())
    cluster.versions["LeaveGroup"] = version
    member = member_of(cluster)
    await member.join()
    await member.leave()
    await member.leave()
    (request,) = cluster.messages("LeaveGroup")
    assert request.member_id == ("" if by_list else "m")
    assert [entry.member_id for entry in request.members] == (["m"] if by_list else [])


async def test_a_static_member_stays(autojump_clock: MockClock) -> None:
    cluster = scripted(JoinGroup=joined(), SyncGroup=synced(0))
    member = member_of(cluster, instance_id="one")
    await member.join()
    await member.leave()
    assert "LeaveGroup" not in cluster.names()


async def test_leaving_does_not_wait_behind_a_join_that_is_not_answered(autojump_clock: MockClock) -> None:
    """A broker answers one request of a connection after the other, and a JoinGroup may take minutes."""
    cluster = scripted(
        JoinGroup=in_turn(
            JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m"), trio.sleep_forever
        ),
        LeaveGroup=LeaveGroupResponse(),
    )
    member = member_of(cluster)
    with trio.move_on_after(5):
        await member.join()
    await member.leave()
    join, leave = (
        next(asked for asked in reversed(cluster.asked) if asked.name == name) for name in ("JoinGroup", "LeaveGroup")
    )
    assert join.connection is not leave.connection
    assert join.connection.closed


# --- offsets ----------------------------------------------------------------------------------------------------------


def stored(*codes: int) -> offset_commit.OffsetCommitResponse:
    partitions = [
        offset_commit.OffsetCommitResponsePartition(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    return offset_commit.OffsetCommitResponse(
        topics=[offset_commit.OffsetCommitResponseTopic(name="t", partitions=partitions)]
    )


async def test_commits_of_a_member(capsys: pytest.CaptureFixture[str], autojump_clock: MockClock) -> None:
    answers = [stored(0), stored(27), stored(0, 25), stored(12)]
    cluster = scripted(JoinGroup=joined(), SyncGroup=synced(0), OffsetCommit=in_turn(*answers))
    member = member_of(cluster)
    offsets = {("t", 0): Committed(5, 2)}
    assert not await member.commit(offsets), "nobody commits who has not joined"
    await member.join()
    assert await member.commit({})
    assert await member.commit(offsets)
    (request,) = cluster.messages("OffsetCommit")
    assert (request.generation_id_or_member_epoch, request.member_id) == (1, "m")
    partition = request.topics[0].partitions[0]
    assert (partition.committed_offset, partition.committed_leader_epoch) == (5, 2)
    assert not await member.commit(offsets)
    assert (member.rejoin_needed, member.was_thrown_out) == (True, False)
    assert not await member.commit(offsets)
    assert member.was_thrown_out
    assert "are read again" in capsys.readouterr().err
    await member.join()
    with pytest.raises(Failure, match="OFFSET_METADATA_TOO_LARGE"):
        await member.commit(offsets)


@pytest.mark.parametrize("version", [1, 2, 5, 7, 8, 9])
async def test_offsets_are_read_in_every_version(version: int, autojump_clock: MockClock) -> None:
    old = offset_fetch.OffsetFetchResponsePartition(partition_index=0, committed_offset=4, metadata=None)
    none = offset_fetch.OffsetFetchResponsePartition(partition_index=1, committed_offset=-1, metadata="")
    new = [
        offset_fetch.OffsetFetchResponsePartitions(partition_index=0, committed_offset=4, metadata="m"),
        offset_fetch.OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1, metadata=""),
    ]
    answer = offset_fetch.OffsetFetchResponse()
    if version < 8:
        answer.topics = [offset_fetch.OffsetFetchResponseTopic(name="t", partitions=[old, none])]
    else:
        topics = [offset_fetch.OffsetFetchResponseTopics(name="t", partitions=new)]
        answer.groups = [offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=topics)]
    cluster = scripted(OffsetFetch=answer)
    cluster.versions["OffsetFetch"] = version
    found = await committed(Coordinator(cluster, "g"), [("t", 0), ("t", 1)], stable=True)  # type: ignore[arg-type]
    assert found == {("t", 0): Committed(4, -1, "" if version < 8 else "m")}
    (request,) = cluster.messages("OffsetFetch")
    assert request.require_stable == (version >= 7)
    assert (request.group_id, len(request.groups)) == (("g", 0) if version < 8 else ("", 1))


async def test_offsets_of_an_open_transaction_are_waited_for(autojump_clock: MockClock) -> None:
    def answer(code: int) -> offset_fetch.OffsetFetchResponse:
        partition = offset_fetch.OffsetFetchResponsePartitions(partition_index=0, committed_offset=1, error_code=code)
        topics = [offset_fetch.OffsetFetchResponseTopics(name="t", partitions=[partition])]
        return offset_fetch.OffsetFetchResponse(groups=[offset_fetch.OffsetFetchResponseGroup(topics=topics)])

    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    cluster = scripted(OffsetFetch=in_turn(answer(unstable), answer(unstable), answer(0)))
    assert await committed(Coordinator(cluster, "g"), stable=True) == {("t", 0): Committed(1)}  # type: ignore[arg-type]
    assert cluster.messages("OffsetFetch")[0].groups[0].topics is None
    for code in (unstable, ErrorCode.GROUP_AUTHORIZATION_FAILED):
        with pytest.raises(Failure, match=ErrorCode(code).name):
            await committed(Coordinator(scripted(OffsetFetch=answer(code)), "g"))  # type: ignore[arg-type]


async def test_an_outsider_commits_and_deletes(autojump_clock: MockClock) -> None:
    answer = offset_delete.OffsetDeleteResponse(
        topics=[
            offset_delete.OffsetDeleteResponseTopic(
                name="t", partitions=[offset_delete.OffsetDeleteResponsePartition(partition_index=0, error_code=86)]
            )
        ]
    )
    cluster = scripted(
        OffsetCommit=stored(0, 3),
        OffsetDelete=in_turn(answer, offset_delete.OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)),
    )
    coordinator = Coordinator(cluster, "g")  # type: ignore[arg-type]
    offsets = {("t", 1): Committed(1), ("t", 0): Committed(2)}
    assert await commit(coordinator, offsets) == {("t", 0): 0, ("t", 1): 3}
    request = cluster.messages("OffsetCommit")[0]
    assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
    assert [partition.partition_index for partition in request.topics[0].partitions] == [0, 1]
    assert await delete(coordinator, [("t", 0)]) == {("t", 0): 86}
    with pytest.raises(Failure, match="NON_EMPTY_GROUP"):
        await delete(coordinator, [("t", 0)])
