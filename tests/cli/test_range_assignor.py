"""The range assignment, by Kafka's own examples and by what must hold whatever the members are."""

from __future__ import annotations

import random

from kmirror.cli.range_assignor import Subscriber, assign


def test_the_example_of_kafkas_documentation() -> None:
    """RangeAssignor's own: two members, two topics of three partitions each."""
    members = [Subscriber("c1", ["t0", "t1"]), Subscriber("c0", ["t0", "t1"])]
    assert assign(members, {"t0": 3, "t1": 3}) == {
        "c0": {"t0": [0, 1], "t1": [0, 1]},
        "c1": {"t0": [2], "t1": [2]},
    }


def test_more_members_than_partitions_and_topics_nobody_has() -> None:
    members = [Subscriber(f"c{number}", ["t", "gone"]) for number in range(3)]
    assert assign(members, {"t": 2}) == {"c0": {"t": [0]}, "c1": {"t": [1]}, "c2": {}}
    assert assign([], {"t": 2}) == {}


def test_a_topic_goes_to_those_who_want_it() -> None:
    members = [Subscriber("a", ["x"]), Subscriber("b", ["x", "y"]), Subscriber("c", ["y"])]
    assert assign(members, {"x": 3, "y": 1}) == {"a": {"x": [0, 1]}, "b": {"x": [2], "y": [0]}, "c": {}}


def test_static_members_come_first_and_keep_their_place() -> None:
    """Java's MemberInfo.compareTo: by instance id before everybody who has none."""
    members = [Subscriber("a", ["t"]), Subscriber("z-new-id", ["t"], "i2"), Subscriber("y", ["t"], "i1")]
    assert assign(members, {"t": 3}) == {"y": {"t": [0]}, "z-new-id": {"t": [1]}, "a": {"t": [2]}}


def test_every_partition_has_one_owner_and_shares_differ_by_one_at_most() -> None:
    seed = 20261130
    chance = random.Random(seed)
    for _ in range(200):
        topics = {f"t{number}": chance.randrange(0, 12) for number in range(chance.randrange(1, 5))}
        members = [
            Subscriber(f"m{number}", chance.sample(sorted(topics), chance.randrange(1, len(topics) + 1)))
            for number in range(chance.randrange(1, 6))
        ]
        assigned = assign(members, topics)
        for topic, count in topics.items():
            wanted = [member.member_id for member in members if topic in member.topics]
            shares = [assigned[member_id].get(topic, []) for member_id in wanted]
            if wanted:
                assert sorted(index for share in shares for index in share) == list(range(count)), seed
                assert max(map(len, shares)) - min(map(len, shares)) <= 1, seed
            assert all(topic not in assigned[member.member_id] for member in members if topic not in member.topics), (
                seed
            )
