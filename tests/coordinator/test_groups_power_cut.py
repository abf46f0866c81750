"""Groups of a whole broker world on a file system that loses what was not flushed: power cuts at every step."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from kmirror.coordinator.groups.classic import State
from kmirror.coordinator.groups.messages import JoinRequest, LeaveRequest, Leaving, MemberProtocol, SyncRequest
from kmirror.effects import Promise
from tests.broker.harness import Broker


def join_request(group: str, member_id: str = "", *, client: str = "c", instance: str | None = None) -> JoinRequest:
    return JoinRequest(
        group_id=group,
        member_id=member_id,
        instance_id=instance,
        client_id=client,
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(MemberProtocol("range", client.encode()),),
        needs_member_id=False,
    )


def run_timers(broker: Broker) -> None:
    broker.flush.run()
    while broker.world.runtime.next_timer_ms() == 0:
        broker.world.runtime.fire_timers()
        broker.flush.run()


def wait(broker: Broker, duration_ms: int) -> None:
    for _ in range(0, duration_ms, 500):
        broker.clock.advance(500)
        run_timers(broker)


def settle(broker: Broker, promise: Promise[Any]) -> Any:
    run_timers(broker)
    return promise.result()


def stable_pair(broker: Broker, group: str) -> tuple[str, str]:
    """Two members with assignments; their ids. Generation 2."""
    groups = broker.world.groups
    first = settle(broker, groups.join(join_request(group, client="a"))).member_id
    follower = groups.join(join_request(group, client="b"))
    run_timers(broker)
    leader = groups.join(join_request(group, first, client="a"))
    second = settle(broker, follower).member_id
    assert leader.result().leader == first
    waiting = groups.sync(sync_request(group, 2, second))
    sync = groups.sync(sync_request(group, 2, first, {first: b"1", second: b"2"}))
    assert not waiting.done and not sync.done
    assert settle(broker, sync).assignment == b"1"
    assert waiting.result().assignment == b"2"
    return first, second


def sync_request(
    group: str, generation: int, member_id: str, assignments: dict[str, bytes] | None = None
) -> SyncRequest:
    return SyncRequest(group_id=group, generation_id=generation, member_id=member_id, assignments=assignments or {})


def test_a_stable_group_survives_and_its_sessions_begin_anew() -> None:
    broker = Broker()
    first, second = stable_pair(broker, "g")
    wait(broker, 9_000)
    broker.crash()
    groups = broker.world.groups
    wait(broker, 9_000)
    assert groups.heartbeat("g", first, 2, None) == 0
    assert groups.sync(sync_request("g", 2, second)).result().assignment == b"2"
    wait(broker, 11_000)
    assert groups.state_of("g") == State.EMPTY
    assert groups.heartbeat("g", first, 2, None) == 25


def test_the_assignment_waits_for_the_disk() -> None:
    """Nobody has it before it is flushed; after a cut in between nobody ever had it."""
    broker = Broker()
    groups = broker.world.groups
    member = settle(broker, groups.join(join_request("g"))).member_id
    sync = groups.sync(sync_request("g", 1, member, {member: b"1"}))
    assert not sync.done
    broker.crash()
    assert broker.world.groups.heartbeat("g", member, 1, None) in (25, 22, 0)
    description = settle(broker, broker.world.groups.describe(["g"]))[0]
    assert description.state in (State.EMPTY, State.STABLE)


def test_a_deleted_group_is_told_of_only_when_it_is_gone_from_disk() -> None:
    broker = Broker()
    groups = broker.world.groups
    member = settle(broker, groups.join(join_request("g"))).member_id
    settle(broker, groups.leave(LeaveRequest(group_id="g", members=(Leaving(member),))))
    deleted = groups.delete("g")
    described = groups.describe(["g"])
    listed = groups.listed()
    assert not deleted.done and not described.done and not listed.done
    assert settle(broker, deleted) == 0
    assert not described.result()[0].exists
    assert listed.result() == []
    broker.crash()
    assert broker.world.groups.state_of("g") is None


def test_a_log_that_is_full_refuses_the_assignment_and_nothing_is_lost() -> None:
    broker = Broker()
    groups = broker.world.groups
    member = settle(broker, groups.join(join_request("g"))).member_id
    log_id = groups.log_of("g")
    broker.fs.fail("write", f"{log_id.topic}-{log_id.partition}/00000000000000000000.log", error=errno.ENOSPC)
    sync = groups.sync(sync_request("g", 1, member, {member: b"1"}))
    assert settle(broker, sync).error_code == 16
    assert groups.state_of("g") == State.PREPARING
    again = settle(broker, groups.join(join_request("g", member)))
    assert again.generation_id == 2
    assert settle(broker, groups.sync(sync_request("g", 2, member, {member: b"1"}))).assignment == b"1"


def test_deleting_the_topic_unloads_every_group() -> None:
    broker = Broker()
    first, _second = stable_pair(broker, "g")
    groups = broker.world.groups
    waiting = groups.join(join_request("g", client="late"))
    broker.settle(broker.world.delete_topic("__consumer_offsets"))
    run_timers(broker)
    assert waiting.result().error_code == 16
    assert groups.heartbeat("g", first, 2, None) == 25
    assert settle(broker, groups.join(join_request("g"))).generation_id == 1


@pytest.mark.parametrize("number", range(40))
def test_power_cuts_anywhere(rng: random.Random, number: int) -> None:
    """What a member was told before the cut is what the group is after it, unless a later record says otherwise."""
    broker = Broker(seed=rng.getrandbits(30))
    for _ in range(3):
        told = _live(broker, rng)
        broker.crash()
        groups = broker.world.groups
        for group, (generation, assignment) in told.items():
            live = groups.groups.table[group]
            if live.generation_id == generation and live.members:
                assert {one.assignment for one in live.members.values()} == {assignment}
            else:
                assert live.generation_id > generation
        run_timers(broker)


def _live(broker: Broker, rng: random.Random) -> dict[str, tuple[int, bytes]]:
    """Members come, sync and go, flushed now and then. The last (generation, assignment) that somebody was told: all
    members of a generation get the same here."""
    groups = broker.world.groups
    told: dict[str, tuple[int, bytes]] = {}
    joined: dict[str, dict[str, int]] = {"g": {}, "h": {}}
    serial = 0
    for _ in range(rng.randrange(5, 60)):
        group = rng.choice("gh")
        members = joined[group]
        live = groups.groups.table.get(group)
        action = rng.random()
        if action < 0.4:
            known = rng.choice([*members, ""])
            promise = groups.join(join_request(group, known))
            promise.then(lambda done, group=group: _remember(joined[group], done))  # type: ignore[misc]
        elif action < 0.8 and live is not None and live.leader is not None:
            serial += 1
            assignments = {one: f"{serial}".encode() for one in live.members}
            generation = live.generation_id
            promise_of_sync = groups.sync(sync_request(group, generation, live.leader, assignments))

            def answered(done: Promise[Any], group: str = group, generation: int = generation) -> None:
                answer = done.result()
                if not answer.error_code:
                    before = told.get(group)
                    assert before is None or before[0] != generation or before[1] == answer.assignment
                    told[group] = (generation, answer.assignment)

            promise_of_sync.then(answered)
        elif action < 0.9 and members:
            gone = rng.choice(list(members))
            groups.leave(LeaveRequest(group_id=group, members=(Leaving(gone),)))
            members.pop(gone)
        if rng.random() < 0.6:
            run_timers(broker)
    return told


def _remember(members: dict[str, int], done: Promise[Any]) -> None:
    answer = done.result()
    if not answer.error_code:
        members[answer.member_id] = answer.generation_id
