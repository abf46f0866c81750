"""Classic groups, what transcripts cannot show: sizes, parsing, Java's order, odd logs, the last generation."""

from __future__ import annotations

from typing import Any

import pytest

from kmirror.coordinator.groups.classic import ClassicGroup, State, in_hash_map_order, subscribed_topics
from kmirror.coordinator.groups.machine import GroupLimits, Groups
from kmirror.effects import LogId, StateRecord
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import consumer_offsets as wire
from kmirror.protocol.internal.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from tests.coordinator.group_stage import PARTITION_COUNT, Stage

MEMBERS = 200


def stable(stage: Stage, names: list[str]) -> None:
    """Everybody joins with what they have, syncs, and has an assignment of the same generation."""
    joins = [stage.join(name, version=3) for name in names]
    stage.settle()
    leader = next(name for name, join in zip(names, joins, strict=True) if join.result().members)
    for name in names:
        if name != leader:
            stage.sync(name)
    assignments: dict[str, Any] = {name: f"for {name}" for name in names}
    stage.sync(leader, **assignments)


def test_two_hundred_members_join_roll_and_leave() -> None:
    stage = Stage(initial_rebalance_delay_ms=0)
    names = [f"m{number}" for number in range(MEMBERS)]
    stable(stage, names)
    group = stage.groups.table["g"]
    assert (group.state, group.generation_id, len(group.members)) == (State.STABLE, 1, MEMBERS)
    assert {member.assignment for member in group.members.values()} == {f"for {name}".encode() for name in names}
    for round_number in range(5):  # a rolling restart: one leaves, comes back, everybody joins again
        rolled = names[round_number * 7]
        stage.leave(rolled)
        stage.ids.pop(rolled)
        assert group.state is State.PREPARING
        stable(stage, names)
        assert (group.state, len(group.members)) == (State.STABLE, MEMBERS)
    generation = group.generation_id
    for name in names[:-1]:
        stage.leave(name)
    assert (group.state, len(group.members)) == (State.PREPARING, 1)
    stage.leave(names[-1])
    assert (group.state, group.generation_id) == (State.EMPTY, generation + 1)
    assert stage.outstanding() == []
    assert stage.timers.next_ms() is None


def test_all_of_two_hundred_sessions_end_at_once() -> None:
    stage = Stage()
    stable(stage, [f"m{number}" for number in range(MEMBERS)])
    stage.wait(60_000)
    assert stage.groups.state_of("g") == State.EMPTY
    assert stage.timers.next_ms() is None


def test_the_generation_after_the_last_one_is_not_negative() -> None:
    stage = Stage()
    stable(stage, ["a"])
    stage.groups.table["g"].generation_id = 2**31 - 1
    stage.join("a")
    stage.settle()
    assert stage.generations["a"] == 0
    stage.sync("a", a="1")
    assert stage.beat("a") == ErrorCode.NONE


# -- replay --------------------------------------------------------------------------------------------------------


def groups() -> Groups:
    return Groups(GroupLimits(), lambda: "1", lambda: PARTITION_COUNT)


def record(machine: Groups, group: str, value: wire.GroupMetadataValue | None) -> StateRecord:
    return StateRecord(machine.log_of(group), wire.GroupMetadataKey(group=group), value)


def test_tombstones_of_unknown_groups_are_no_ops() -> None:
    """Compaction leaves a log that begins and ends with tombstones (KAFKA-9065, KAFKA-17306)."""
    machine = groups()
    machine.replay(record(machine, "g", None))
    offset = wire.OffsetCommitKey(group="h", topic="t", partition=0)
    machine.replay(StateRecord(machine.log_of("h"), offset, None))
    machine.restore(0)
    assert machine.table == {}
    machine.replay(StateRecord(machine.log_of("h"), offset, wire.OffsetCommitValue(offset=1)))
    machine.replay(record(machine, "h", wire.GroupMetadataValue(protocol_type="consumer", generation=4)))
    machine.restore(0)
    assert machine.describe("h").state == State.EMPTY
    assert machine.protocol_type_of("h") == "consumer"


def test_records_in_a_partition_where_nobody_looks_are_left_alone() -> None:
    machine = groups()
    value = wire.GroupMetadataValue(protocol_type="consumer", generation=4)
    elsewhere = LogId(wire.TOPIC, (machine.log_of("g").partition + 1) % PARTITION_COUNT)
    machine.replay(StateRecord(elsewhere, wire.GroupMetadataKey(group="g"), value))
    machine.restore(0)
    assert machine.state_of("g") is None


def test_records_of_version_0_have_no_rebalance_timeout_and_no_time() -> None:
    member = wire.GroupMember(member_id="m", session_timeout=7000, subscription=b"s", assignment=b"a")
    value = wire.GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader="m", members=[member]
    )
    group = ClassicGroup.restored("g", value)
    assert (group.state, group.rebalance_timeout_ms, group.state_since_ms) == (State.STABLE, 7000, None)


def test_where_a_group_is_kept() -> None:
    """As Kafka's Utils.abs("...".hashCode) % 50 says."""
    machine = groups()
    assert machine.log_of("g") == LogId("__consumer_offsets", 103 % 50)
    assert machine.log_of("polygenelubricants") == LogId("__consumer_offsets", 0)  # its hash is -2^31


# -- what members say ----------------------------------------------------------------------------------------------


def test_subscriptions_are_read_as_version_0() -> None:
    said = encode_subscription(ConsumerProtocolSubscription(topics=["t", "u"], user_data=b"x"), 0)
    assert subscribed_topics(said) == ["t", "u"]
    assert subscribed_topics(b"\0\7" + said[2:] + b"of a later version") == ["t", "u"]
    assert subscribed_topics(b"\xff\xff" + said[2:]) is None
    assert subscribed_topics(b"") is None
    assert subscribed_topics(b"\0\0\0\0\0\7") is None


def test_subscribed_topics_of_a_group_are_those_of_all_members() -> None:
    stage = Stage()
    for name, topics in (("a", ["t"]), ("b", ["t", "u"])):
        said = encode_subscription(ConsumerProtocolSubscription(topics=topics, user_data=b""), 0)
        stage.join(name, version=3, text=said.decode())
    stage.settle()
    assert stage.groups.subscribed_topics("g") == frozenset({"t", "u"})
    stage.leave("a", "b")
    assert stage.groups.subscribed_topics("g") == frozenset()


def test_other_protocol_types_have_no_topics() -> None:
    stage = Stage()
    stage.join("a", version=3, type="connect")
    stage.settle()
    assert stage.groups.subscribed_topics("g") is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # what java.util.HashMap.keySet() printed
        (["roundrobin", "range"], ["range", "roundrobin"]),
        (["y", "x"], ["x", "y"]),
        (
            ["range", "sticky", "cooperative-sticky", "roundrobin"],
            ["sticky", "range", "roundrobin", "cooperative-sticky"],
        ),
        ([*"abcdefghijklm", "nn", "oo", "pp", "uniform"], ["nn", "oo", "pp", *"abcdefghijklm", "uniform"]),
    ],
)
def test_ties_are_decided_in_javas_order(names: list[str], expected: list[str]) -> None:
    assert list(in_hash_map_order(names)) == expected
