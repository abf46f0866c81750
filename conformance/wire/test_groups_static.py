"""Static members (KIP-345): an instance keeps its place over restarts, and fences whoever it replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from conformance.wire.client import Broker, Topic
from conformance.wire.groups import (
    FENCED_INSTANCE,
    REBALANCING,
    UNKNOWN_MEMBER,
    Member,
    describe,
    new_group,
    rebalance,
    wait_for_state,
)
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity

PROTOCOLS = (("range", b"range metadata"), ("sticky", b""))


@pytest.fixture
def members(broker: Broker) -> Iterator[list[Member]]:
    """Two static members, `one` and `two`; the first leads."""
    group = new_group(broker, "static")
    with ExitStack() as stack:
        formed = [
            stack.enter_context(Member(broker, group, instance=name, protocols=PROTOCOLS)) for name in ("one", "two")
        ]
        rebalance(formed)
        yield sorted(formed, key=lambda member: not member.is_leader)


def restarted(member: Member) -> Member:
    """The same instance as a new process: without a member id."""
    return Member(
        member.broker, member.group, instance=member.instance, protocols=member.protocols,
        session_timeout_ms=member.session_timeout_ms, rebalance_timeout_ms=member.rebalance_timeout_ms,
    )  # fmt: skip


def test_a_static_member_needs_no_second_try(broker: Broker, members: list[Member]) -> None:
    leader, follower = members
    for member in members:
        assert member.member_id.startswith(f"{member.instance}-") and member.heartbeat() == 0
    assert {row.group_instance_id for row in leader.members.values()} == {"one", "two"}
    assert follower.members == {}
    for version in (4, 5, 6):
        rows = describe(broker, leader.group, version).members
        assert {(row.member_id, row.group_instance_id) for row in rows} == {
            (member.member_id, member.instance) for member in members
        }


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_follower_that_comes_back_disturbs_nobody(broker: Broker, members: list[Member], version: int) -> None:
    leader, follower = members
    held = bytes(follower.sync().assignment)
    with restarted(follower) as again:
        answer = again.join_once(version=version)
        assert answer.error_code == 0 and answer.generation_id == leader.generation
        assert answer.member_id not in ("", follower.member_id)
        assert (answer.leader, answer.members, answer.skip_assignment) == (leader.member_id, [], False)
        assert leader.heartbeat() == 0
        assert bytes(again.sync().assignment) == held
        assert follower.heartbeat() == FENCED_INSTANCE


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_leader_that_comes_back(members: list[Member], version: int) -> None:
    """v9 makes it leader again and lets it skip the assignment; before, it is told another leader: its old self."""
    leader, follower = members
    with restarted(leader) as again:
        answer = again.join_once(version=version)
        assert answer.error_code == 0 and answer.generation_id == follower.generation
        if version >= 9:
            assert answer.skip_assignment and answer.leader == again.member_id
            assert {row.group_instance_id for row in answer.members} == {"one", "two"}
        else:
            assert answer.leader == leader.member_id and answer.members == []
        assert follower.heartbeat() == 0 and again.heartbeat() == 0
        assert again.sync().error_code == 0


def test_the_replaced_one_is_fenced_everywhere(broker: Broker, topic: Topic, members: list[Member]) -> None:
    """82 in every request that names the instance; without the instance its id is simply unknown."""
    _, follower = members
    with restarted(follower) as again:
        assert again.join_once().error_code == 0
        assert follower.heartbeat() == FENCED_INSTANCE
        assert follower.sync().error_code == FENCED_INSTANCE
        assert follower.join_once().error_code == FENCED_INSTANCE
        assert follower.commit(topic, 5) == FENCED_INSTANCE
        assert follower.leave() == FENCED_INSTANCE
        assert again.heartbeat() == 0 and again.commit(topic, 5) == 0
        follower.instance = None
        assert follower.heartbeat() == UNKNOWN_MEMBER
        assert follower.sync().error_code == UNKNOWN_MEMBER
        assert follower.commit(topic, 5) == UNKNOWN_MEMBER


def test_an_instance_that_nobody_knows(topic: Topic, members: list[Member]) -> None:
    leader, _ = members
    leader.instance = "three"
    assert leader.heartbeat() == UNKNOWN_MEMBER
    assert leader.sync().error_code == UNKNOWN_MEMBER
    assert leader.commit(topic, 5) == UNKNOWN_MEMBER
    assert leader.leave() == UNKNOWN_MEMBER
    assert leader.join_once().error_code == UNKNOWN_MEMBER


def test_a_static_member_may_leave_its_instance_out(topic: Topic, members: list[Member]) -> None:
    """Older requests have no field for it: the member id alone is good."""
    leader, _ = members
    assert leader.heartbeat(version=2) == 0
    assert leader.sync(version=2).error_code == 0
    assert leader.commit(topic, 5, version=6) == 0


def test_new_metadata_on_the_way_back(members: list[Member]) -> None:
    """A restarted member with other metadata disturbs nobody, as long as the group's protocol stays the same."""
    leader, follower = members
    with restarted(follower) as again:
        again.protocols = [("range", b"other topics"), ("sticky", b"")]
        assert again.join_once().generation_id == leader.generation
        assert leader.heartbeat() == again.heartbeat() == 0


def test_another_protocol_on_the_way_back(members: list[Member]) -> None:
    """A restarted member that can no longer do what the group does starts a rebalance."""
    leader, follower = members
    with restarted(follower) as again:
        again.protocols = [("sticky", b"sticky metadata")]
        again.send_join()
        wait_for_state(leader.broker, leader.group, "PreparingRebalance")
        assert leader.heartbeat() == REBALANCING
        assert leader.join_once().protocol_name == "sticky"
        assert again.receive_join().error_code == 0
        assert leader.generation == again.generation > follower.generation
        assert bytes(leader.members[again.member_id].metadata) == b"sticky metadata"


def test_fenced_while_it_waits_in_a_join(members: list[Member]) -> None:
    """The instance starts a second time while its first join waits: that one is answered 82 at once."""
    leader, follower = members
    leader.send_join()
    wait_for_state(leader.broker, leader.group, "PreparingRebalance")
    with restarted(leader) as again:
        again.send_join()
        assert leader.connection.receive().error_code == FENCED_INSTANCE
        join_of = follower.join_once()
        assert join_of.error_code == 0 and again.receive_join().error_code == 0
        assert again.generation == follower.generation


def test_an_operator_removes_instances(broker: Broker, members: list[Member]) -> None:
    """LeaveGroup v3 by instance alone, as `kafka-consumer-groups`-like tools and the admin client send it."""
    leader, follower = members
    asked = [("", "two"), ("", "nobody"), ("wrong id", "one")]
    request = LeaveGroupRequest(
        group_id=leader.group,
        members=[MemberIdentity(member_id=member_id, group_instance_id=name) for member_id, name in asked],
    )
    answer = broker.request(request, broker.version("LeaveGroup"))
    codes = {row.group_instance_id: row.error_code for row in answer.members}
    assert (answer.error_code, codes) == (0, {"two": 0, "nobody": UNKNOWN_MEMBER, "one": FENCED_INSTANCE})
    gone, stays = (follower, leader) if leader.instance == "one" else (leader, follower)
    assert gone.heartbeat() == UNKNOWN_MEMBER and stays.heartbeat() == REBALANCING
