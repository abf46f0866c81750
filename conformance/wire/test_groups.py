"""Membership of classic groups: joining, choosing a protocol, generations, rebalances, leaving, timeouts (B052)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from conformance.wire.client import Broker
from conformance.wire.groups import (
    BAD_SESSION_TIMEOUT,
    GROUP_KEY,
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    INVALID_GROUP,
    INVALID_REQUEST,
    LOWEST_SESSION_MS,
    MEMBER_ID_REQUIRED,
    REBALANCING,
    TRANSACTION_KEY,
    UNKNOWN_MEMBER,
    Member,
    describe,
    join_all,
    new_group,
    rebalance,
    state_of,
    wait_for_coordinator,
    wait_for_state,
)
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity

SHORT_REBALANCE_MS = 1_500
MakeMember = Callable[..., Member]


@pytest.fixture
def group(broker: Broker) -> str:
    return new_group(broker, "group")


@pytest.fixture
def make(broker: Broker, group: str) -> Iterator[MakeMember]:
    """make(**options) -> a member of the test's group, whose connection ends with the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Member(broker, group, **options))


def silent_for(member: Member, seconds: float) -> bool:
    """Does the broker say nothing on the member's connection for that long?"""
    member.connection.socket.settimeout(seconds)
    try:
        member.connection.socket.recv(1, 2)  # MSG_PEEK
    except TimeoutError:
        return True
    finally:
        member.connection.socket.settimeout(20)
    return False


# --- finding the coordinator


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("key_type", [GROUP_KEY, TRANSACTION_KEY])
def test_find_coordinator_at_every_version(broker: Broker, group: str, version: int, key_type: int) -> None:
    if key_type and not version:
        return  # v0 knows groups only
    wait_for_coordinator(broker, group, key_type)
    if version >= 4:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[group, group + "-2"])
        rows = broker.request(request, version).coordinators
        assert [row.key for row in rows] == [group, group + "-2"]
    else:
        rows = [broker.request(FindCoordinatorRequest(key=group, key_type=key_type), version)]
    for row in rows:
        assert (row.error_code, f"{row.host}:{row.port}") == (0, broker.address)


@pytest.mark.parametrize("version", [3, 4, 6])
def test_find_coordinator_of_an_unknown_kind(broker: Broker, version: int) -> None:
    request = FindCoordinatorRequest(key_type=7)
    if version >= 4:
        request.coordinator_keys = ["x"]
        row = broker.request(request, version).coordinators[0]
    else:
        request.key = "x"
        row = broker.request(request, version)
    assert (row.error_code, row.node_id, row.host, row.port) == (INVALID_REQUEST, -1, "", -1)


# --- joining


@pytest.mark.parametrize("version", range(10))
def test_one_member_at_every_version(broker: Broker, make: MakeMember, version: int) -> None:
    """Join, sync, heartbeat and leave; from JoinGroup v4 on the member id is asked for first."""
    member = make(protocols=[("range", b"r"), ("sticky", b"s")])
    joined = member.join_once(version=version)
    if version >= 4:
        assert joined.error_code == MEMBER_ID_REQUIRED and joined.member_id.startswith("wire-")
        assert (joined.generation_id, joined.leader, joined.members) == (-1, "", [])
        joined = member.join_once(version=version)
    assert joined.error_code == 0 and joined.generation_id == 1
    assert joined.leader == joined.member_id == member.member_id and member.member_id.startswith("wire-")
    assert joined.protocol_name == "range" and not joined.skip_assignment
    if version >= 7:
        assert joined.protocol_type == "consumer"
    assert [(row.member_id, bytes(row.metadata)) for row in joined.members] == [(member.member_id, b"r")]
    assert member.heartbeat(version=min(version, 4)) == 0
    synced = member.sync({member.member_id: b"all"}, version=min(version, 5))
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert member.heartbeat(version=min(version, 4)) == 0
    assert member.leave(version=min(version, 5)) == 0
    assert state_of(broker, member.group) == "Empty"
    assert member.heartbeat(version=min(version, 4)) == UNKNOWN_MEMBER


@pytest.mark.parametrize("version", [0, 3, 5, 9])
def test_joins_that_are_refused(broker: Broker, make: MakeMember, version: int) -> None:
    def refused(**options: Any) -> int:
        member = make(**{name: value for name, value in options.items() if name != "member_id"})
        member.group = options.get("group_id", member.group)
        answer = member.join_once(version=version, member_id=options.get("member_id"))
        assert answer.generation_id == -1
        return int(answer.error_code)

    assert refused(member_id="nobody") == UNKNOWN_MEMBER
    assert refused(session_timeout_ms=10) == BAD_SESSION_TIMEOUT
    assert refused(session_timeout_ms=24 * 3600 * 1000) == BAD_SESSION_TIMEOUT
    assert refused(protocols=[]) == INCONSISTENT_PROTOCOL
    assert refused(protocol_type="") == INCONSISTENT_PROTOCOL
    member = make()
    member.group = ""
    assert member.join_once(version=version).error_code == INVALID_GROUP


def test_a_member_that_fits_not_in(make: MakeMember, make_group: Callable[..., list[Member]]) -> None:
    """Another protocol type, or no protocol that all members have: 23, and the group goes on."""
    (first,) = make_group(protocols=[("a", b""), ("b", b"")])
    for options in ({"protocols": [("c", b"")]}, {"protocols": [("a", b"")], "protocol_type": "connect"}):
        stranger = make(**options)
        assert stranger.join_once().error_code == INCONSISTENT_PROTOCOL
        assert stranger.join_once(version=3).error_code == INCONSISTENT_PROTOCOL
    assert first.heartbeat() == 0


def test_the_protocol_is_voted_on(broker: Broker, make: MakeMember) -> None:
    """Each member votes for the first of its list that all can do; most votes win."""
    lists = [["x", "a", "b"], ["b", "a"], ["y", "b", "a"]]
    members = [make(protocols=[(name, name.encode()) for name in names]) for names in lists]
    for member in members:
        member.take_id()
    join_all(members)
    (leader,) = [member for member in members if member.is_leader]
    assert {bytes(row.metadata) for row in leader.members.values()} == {b"b"} and len(leader.members) == 3
    assert describe(broker, leader.group).protocol_data == ""
    leader.send_sync()
    leader.connection.receive()
    assert describe(broker, leader.group).protocol_data == "b"


def test_a_second_member_makes_a_new_generation(
    broker: Broker, make_group: Callable[..., list[Member]], make: MakeMember
) -> None:
    (first,) = make_group()
    second = make()
    second.take_id()
    assert first.heartbeat() == 0, "an id that has not joined disturbs nobody"
    second.send_join()
    assert silent_for(second, 0.3)
    assert state_of(broker, first.group) == "PreparingRebalance"
    assert first.heartbeat() == REBALANCING
    assert first.sync().error_code == REBALANCING
    first.join()
    answer = second.receive_join()
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (0, 2, first.member_id, [])
    assert set(first.members) == {first.member_id, second.member_id} and first.is_leader
    assert state_of(broker, first.group) == "CompletingRebalance"
    assert (first.heartbeat(), second.heartbeat()) == (0, 0)
    second.send_sync()
    assert silent_for(second, 0.3), "a follower waits for its leader"
    mine = first.sync({first.member_id: b"one", second.member_id: b"two"})
    assert (bytes(mine.assignment), bytes(second.connection.receive().assignment)) == (b"one", b"two")
    assert state_of(broker, first.group) == "Stable"
    assert bytes(second.sync().assignment) == b"two", "once stable, a sync repeats the assignment"


def test_whoever_the_leader_forgets_gets_nothing(make_group: Callable[..., list[Member]]) -> None:
    first, second = make_group(2)
    assert rebalance([first, second], {first.member_id: b"all"}) == {first.member_id: b"all", second.member_id: b""}


def test_joining_again(broker: Broker, make_group: Callable[..., list[Member]]) -> None:
    """A follower with the same metadata gets the current generation; new metadata, or the leader, start a rebalance."""
    leader, follower = make_group(2)
    if follower.is_leader:
        leader, follower = follower, leader
    generation = leader.generation
    answer = follower.join_once()
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, generation, leader.member_id)
    assert (leader.heartbeat(), follower.heartbeat()) == (0, 0)
    follower.protocols = [("range", b"other")]
    follower.send_join()
    assert silent_for(follower, 0.2) and leader.heartbeat() == REBALANCING
    leader.join()
    assert follower.receive_join().generation_id == leader.generation == generation + 1
    assert bytes(leader.members[follower.member_id].metadata) == b"other"
    follower.send_sync()
    assert leader.sync().error_code == follower.connection.receive().error_code == 0
    leader.send_join()
    assert silent_for(leader, 0.2) and follower.heartbeat() == REBALANCING
    follower.join()
    assert leader.receive_join().error_code == 0


def test_a_join_while_the_generation_is_being_assigned(make: MakeMember) -> None:
    """CompletingRebalance: the same metadata gives the same generation again, also to the leader, with all members."""
    first = make()
    first.join()
    again = first.join_once()
    assert (again.error_code, again.generation_id, again.leader) == (0, 1, first.member_id)
    assert [row.member_id for row in again.members] == [first.member_id]


def test_an_id_that_was_given_is_waited_for(
    broker: Broker, make_group: Callable[..., list[Member]], make: MakeMember
) -> None:
    """A rebalance waits for members that were given an id and have not joined with it; they can leave."""
    first, second = make_group(2)
    leader = first if first.is_leader else second
    follower = second if leader is first else first
    pending = make()
    pending.take_id()
    leader.send_join()
    wait_for_state(broker, leader.group, "PreparingRebalance")
    follower.send_join()
    assert silent_for(leader, 0.3) and silent_for(follower, 0.1)
    assert pending.leave() == 0
    assert leader.receive_join().error_code == 0 and follower.receive_join().error_code == 0
    assert set(leader.members) == {first.member_id, second.member_id}
    assert pending.join_once().error_code == UNKNOWN_MEMBER


# --- errors


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_generations_and_members_that_are_not(
    broker: Broker, make_group: Callable[..., list[Member]], version: int
) -> None:
    (member,) = make_group()
    beat, sync, leave = min(version, 4), version, version
    for generation in (member.generation - 1, member.generation + 1, -1):
        assert member.heartbeat(generation=generation, version=beat) == ILLEGAL_GENERATION
        assert member.sync(generation=generation, version=sync).error_code == ILLEGAL_GENERATION
    for stranger in ("nobody", ""):
        assert member.heartbeat(member_id=stranger, version=beat) == UNKNOWN_MEMBER
        assert member.sync(member_id=stranger, version=sync).error_code == UNKNOWN_MEMBER
        assert member.leave(member_id=stranger, version=leave) == UNKNOWN_MEMBER
    member.group = broker.new_name("absent")
    assert member.heartbeat(version=beat) == UNKNOWN_MEMBER
    assert member.sync(version=sync).error_code == UNKNOWN_MEMBER
    assert member.leave(version=leave) == UNKNOWN_MEMBER
    member.group = ""
    assert member.heartbeat(version=beat) == INVALID_GROUP
    assert member.sync(version=sync).error_code == INVALID_GROUP
    assert member.leave(version=leave) == INVALID_GROUP


def test_a_sync_that_names_another_protocol(make_group: Callable[..., list[Member]]) -> None:
    """v5 carries the protocol: what the group did not choose is 23."""
    (member,) = make_group()
    assert member.sync(protocol_name="other").error_code == INCONSISTENT_PROTOCOL
    assert member.sync(protocol_type="connect").error_code == INCONSISTENT_PROTOCOL
    assert member.sync().error_code == 0


# --- leaving


def test_leaving(broker: Broker, make_group: Callable[..., list[Member]]) -> None:
    """The leader leaves: the others rebalance under a new one. The last one leaves: the group is empty."""
    members = make_group(3)
    (leader,) = [member for member in members if member.is_leader]
    rest = [member for member in members if member is not leader]
    generation = leader.generation
    assert leader.leave() == 0
    assert [member.heartbeat() for member in rest] == [REBALANCING] * 2
    rebalance(rest)
    assert rest[0].generation == generation + 1
    assert rest[0].leader in {member.member_id for member in rest}
    assert [member.leave() for member in rest] == [0, 0]
    row = describe(broker, leader.group)
    assert (row.error_code, row.group_state, row.members, row.protocol_type) == (0, "Empty", [], "consumer")
    (again,) = make_group()
    assert again.generation > generation + 1


@pytest.mark.parametrize("version", [3, 5])
def test_several_leave_at_once(broker: Broker, make_group: Callable[..., list[Member]], version: int) -> None:
    members = make_group(3)
    asked = [members[0].member_id, "nobody", members[1].member_id]
    request = LeaveGroupRequest(group_id=members[0].group, members=[MemberIdentity(member_id=name) for name in asked])
    answer = broker.request(request, version)
    assert answer.error_code == 0
    assert [(row.member_id, row.error_code) for row in answer.members] == [
        (asked[0], 0), (asked[1], UNKNOWN_MEMBER), (asked[2], 0)
    ]  # fmt: skip
    assert members[2].heartbeat() == REBALANCING
    rebalance(members[2:])


# --- time


def test_a_silent_member_is_put_out(make_group: Callable[..., list[Member]]) -> None:
    """After its session timeout, and not before; whoever beats, or waits in a join, stays."""
    first, second = make_group(2, session_timeout_ms=LOWEST_SESSION_MS, rebalance_timeout_ms=30_000)
    started = time.monotonic()
    while (code := first.heartbeat()) == 0:
        assert time.monotonic() - started < 2 * LOWEST_SESSION_MS / 1000
        time.sleep(0.2)
    assert code == REBALANCING and time.monotonic() - started > 0.9 * LOWEST_SESSION_MS / 1000
    assert second.heartbeat() == UNKNOWN_MEMBER
    first.join()
    assert set(first.members) == {first.member_id}


def test_a_rebalance_does_not_wait_for_ever(make: MakeMember, make_group: Callable[..., list[Member]]) -> None:
    """A member that beats and does not join again is put out when the rebalance timeout is over."""
    (idle,) = make_group(rebalance_timeout_ms=SHORT_REBALANCE_MS)
    second = make(rebalance_timeout_ms=SHORT_REBALANCE_MS)
    second.take_id()
    started = time.monotonic()
    second.send_join()
    assert idle.heartbeat() == REBALANCING
    answer = second.receive_join()
    seconds = time.monotonic() - started
    assert SHORT_REBALANCE_MS / 1000 * 0.9 < seconds < SHORT_REBALANCE_MS / 1000 + 5
    assert answer.leader == second.member_id and set(second.members) == {second.member_id}
    assert idle.heartbeat() == UNKNOWN_MEMBER


@pytest.mark.parametrize("who", ["leader", "follower", "leader hangs up"])
def test_members_that_join_and_never_sync(make: MakeMember, who: str) -> None:
    """B052: heartbeats do not keep a member that never syncs; the others rebalance after the rebalance timeout."""
    members = [make(rebalance_timeout_ms=SHORT_REBALANCE_MS) for _ in range(2)]
    for member in members:
        member.take_id()
    join_all(members)
    leader, follower = members if members[0].is_leader else members[::-1]
    lazy, eager = (follower, leader) if who == "follower" else (leader, follower)
    started = time.monotonic()
    eager.send_sync({eager.member_id: b"all"} if eager is leader else None)
    if who == "follower":
        assert eager.connection.receive().error_code == 0
    elif who == "leader hangs up":
        lazy.close()
    assert lazy.heartbeat() == 0 and eager.heartbeat() == 0
    if who != "follower":
        assert eager.connection.receive().error_code == REBALANCING
    while eager.heartbeat() == 0:
        assert time.monotonic() - started < SHORT_REBALANCE_MS / 1000 + 5
        time.sleep(0.1)
    assert time.monotonic() - started > SHORT_REBALANCE_MS / 1000 * 0.9
    assert lazy.heartbeat() == UNKNOWN_MEMBER
    rebalance([eager])
    assert eager.heartbeat() == 0
