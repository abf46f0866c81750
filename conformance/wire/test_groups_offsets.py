"""Committed offsets: who may commit, what OffsetFetch answers (B055), leader epochs (B031), OffsetDelete."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.wire.client import Broker, Topic
from conformance.wire.groups import (
    GROUP_NOT_FOUND,
    ILLEGAL_GENERATION,
    INVALID_GROUP,
    METADATA_TOO_LARGE,
    NON_EMPTY_GROUP,
    REBALANCING,
    SUBSCRIBED,
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    Member,
    commit,
    committed,
    fetch_offsets,
    new_group,
    offset_fetch_request,
    state_of,
)
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

COMMIT_VERSIONS, FETCH_VERSIONS = range(2, 11), range(1, 11)
FIRST_EPOCH_COMMIT, FIRST_EPOCH_FETCH = 6, 5
NONE = (-1, -1, "", 0)


@pytest.fixture
def group(broker: Broker) -> str:
    return new_group(broker, "offsets")


def name_at(topic: Topic, version: int) -> object:
    return topic.topic_id if version >= 10 else topic.name


# --- commit and fetch


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_commit_at_every_version(broker: Broker, topic: Topic, group: str, version: int) -> None:
    """B031: the leader epoch comes back as it was committed, and as -1 where the request had no field for it."""
    assert commit(broker, group, topic, 40, leader_epoch=7, metadata="note", version=version) == 0
    epoch = 7 if version >= FIRST_EPOCH_COMMIT else -1
    for fetch_version in FETCH_VERSIONS:
        key = (name_at(topic, fetch_version), 0)
        expected = (40, epoch if fetch_version >= FIRST_EPOCH_FETCH else -1, "note", 0)
        for asked in ([(topic, [0])], None):
            if asked is None and fetch_version < 2:
                continue
            code, _, rows = fetch_offsets(broker, group, asked, version=fetch_version)
            assert (code, rows) == (0, {key: expected})


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_every_partition_is_answered_once(broker: Broker, group: str, version: int) -> None:
    """B055: one row for each partition asked for, in every version; null is all that is committed, [] is nothing."""
    topic = broker.create_topic(partition_count=6)
    for partition in (1, 4):
        assert commit(broker, group, topic, 10 + partition, partition=partition) == 0
    name = name_at(topic, version)
    asked = [5, 4, 1, 0]
    code, order, rows = fetch_offsets(broker, group, [(topic, asked)], version=version)
    assert (code, order) == (0, [(name, index) for index in asked])
    assert rows == {(name, 5): NONE, (name, 0): NONE, (name, 1): (11, -1, "", 0), (name, 4): (14, -1, "", 0)}
    code, _, rows = fetch_offsets(broker, group, [(topic, [77])], version=version)
    assert (code, rows) == (0, {(name, 77): NONE}), "a partition that does not exist is one without an offset"
    assert fetch_offsets(broker, group, [], version=version) == (0, [], {})
    if version >= 2:
        code, order, _ = fetch_offsets(broker, group, None, version=version)
        assert (code, sorted(order)) == (0, [(name, 1), (name, 4)])
    unknown = broker.new_name("unknown")
    assert fetch_offsets(broker, unknown, [(topic, [0])], version=version)[::2] == (0, {(name, 0): NONE})
    if version >= 2:
        assert fetch_offsets(broker, unknown, None, version=version) == (0, [], {})


@pytest.mark.parametrize("version", [8, 9, 10])
def test_several_groups_at_once(broker: Broker, topic: Topic, group: str, version: int) -> None:
    other, unknown = broker.new_name("other"), broker.new_name("unknown")
    assert commit(broker, group, topic, 1) == commit(broker, other, topic, 2) == 0
    request = offset_fetch_request({other: [(topic, [0])], unknown: [(topic, [0])], group: None}, version=version)
    answer = broker.request(request, version)
    found = {row.group_id: [part.committed_offset for row_ in row.topics for part in row_.partitions]
             for row in answer.groups}  # fmt: skip
    assert found == {other: [2], unknown: [-1], group: [1]}
    assert {row.error_code for row in answer.groups} == {0}


def test_topics_by_id_that_are_not(broker: Broker, topic: Topic, group: str) -> None:
    """v10: an unknown topic id is 100 on its partitions."""
    stranger = Topic("x", bytes(range(16)), 1)
    assert commit(broker, group, stranger, 1, version=broker.version("OffsetCommit", 10)) == UNKNOWN_TOPIC_ID
    _, _, rows = fetch_offsets(broker, group, [(stranger, [0])], version=broker.version("OffsetFetch", 10))
    assert rows == {(stranger.topic_id, 0): (-1, -1, "", UNKNOWN_TOPIC_ID)}


@pytest.mark.parametrize("version", [2, 5, 8, 9])
def test_commits_of_partitions_that_do_not_exist(broker: Broker, topic: Topic, group: str, version: int) -> None:
    absent = Topic(broker.new_name("absent"), bytes(16), 1)
    assert commit(broker, group, absent, 1, version=version) == UNKNOWN_TOPIC
    assert commit(broker, group, topic, 1, partition=9, version=version) == UNKNOWN_TOPIC
    assert commit(broker, group, topic, 1, partition=-1, version=version) == UNKNOWN_TOPIC


def test_metadata_of_a_commit(broker: Broker, topic: Topic, group: str) -> None:
    """Null reads back as empty; up to 4096 bytes are kept, more is 12 and leaves the old offset."""
    assert commit(broker, group, topic, 3, metadata=None) == 0
    assert fetch_offsets(broker, group, [(topic, [0])])[2].popitem()[1] == (3, -1, "", 0)
    assert commit(broker, group, topic, 4, metadata="m" * 4096) == 0
    assert commit(broker, group, topic, 5, metadata="m" * 4097) == METADATA_TOO_LARGE
    assert committed(broker, group, topic) == 4


# --- who may commit


@pytest.mark.parametrize("version", [2, 6, 8, 9])
def test_commits_of_members(
    broker: Broker, topic: Topic, make_group: Callable[..., list[Member]], version: int
) -> None:
    (member,) = make_group()
    assert member.commit(topic, 10, version=version) == 0
    assert member.commit(topic, 11, generation=member.generation + 1, version=version) == ILLEGAL_GENERATION
    assert member.commit(topic, 11, generation=member.generation - 1, version=version) == ILLEGAL_GENERATION
    assert member.commit(topic, 11, member_id="nobody", version=version) == UNKNOWN_MEMBER
    assert commit(broker, member.group, topic, 11, version=version) == UNKNOWN_MEMBER, "a simple commit beside members"
    assert committed(broker, member.group, topic) == 10
    assert member.leave() == 0
    assert member.commit(topic, 12, version=version) == UNKNOWN_MEMBER
    assert commit(broker, member.group, topic, 12, version=version) == 0, "an empty group takes simple commits"
    assert committed(broker, member.group, topic) == 12


def test_commits_during_a_rebalance(broker: Broker, topic: Topic, make_group: Callable[..., list[Member]]) -> None:
    """While members join, the old generation may still commit; once the new one is formed and not assigned: 27."""
    leader, follower = sorted(make_group(2), key=lambda member: not member.is_leader)
    leader.send_join()
    while leader.heartbeat() == 0:
        pass
    assert follower.commit(topic, 5) == 0
    follower.send_join()
    assert leader.receive_join().error_code == follower.receive_join().error_code == 0
    assert follower.commit(topic, 6) == REBALANCING
    follower.send_sync()
    assert leader.sync().error_code == follower.connection.receive().error_code == 0
    assert follower.commit(topic, 7) == 0
    assert committed(broker, leader.group, topic) == 7


@pytest.mark.parametrize("version", [2, 8, 9])
def test_commits_to_groups_that_are_not(broker: Broker, topic: Topic, group: str, version: int) -> None:
    """A generation that nobody gave: 22, from v9 on 69; an empty group id with a generation: 24."""
    expected = GROUP_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
    assert commit(broker, group, topic, 1, generation=3, member_id="x", version=version) == expected
    assert fetch_offsets(broker, group, None)[2] == {}


# --- OffsetDelete


def delete_offsets(broker: Broker, group: str, *partitions: tuple[str, int]) -> tuple[int, dict[tuple[str, int], int]]:
    topics: dict[str, OffsetDeleteRequestTopic] = {}
    for name, index in partitions:
        entry = topics.setdefault(name, OffsetDeleteRequestTopic(name=name))
        entry.partitions.append(OffsetDeleteRequestPartition(partition_index=index))
    version = broker.version("OffsetDelete")
    answer = broker.request(OffsetDeleteRequest(group_id=group, topics=list(topics.values())), version)
    rows = {(topic.name, row.partition_index): row.error_code for topic in answer.topics for row in topic.partitions}
    return answer.error_code, rows


def test_offset_delete(broker: Broker, group: str) -> None:
    """Of an empty group: each partition by itself; one without an offset is no error, an unknown topic is 3."""
    topic = broker.create_topic(partition_count=3)
    assert delete_offsets(broker, group, (topic.name, 0)) == (GROUP_NOT_FOUND, {})
    for partition in (0, 1):
        assert commit(broker, group, topic, 5, partition=partition) == 0
    absent = broker.new_name("absent")
    code, rows = delete_offsets(broker, group, (topic.name, 0), (topic.name, 2), (absent, 0))
    assert (code, rows) == (0, {(topic.name, 0): 0, (topic.name, 2): 0, (absent, 0): UNKNOWN_TOPIC})
    assert committed(broker, group, topic, 0) == -1 and committed(broker, group, topic, 1) == 5


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription v0 of these topics: what consumers send as metadata."""
    data = len(topics).to_bytes(4, "big")
    for name in topics:
        data += len(name).to_bytes(2, "big") + name.encode()
    return b"\0\0" + data + b"\xff\xff\xff\xff"


def test_offset_delete_beside_members(broker: Broker, topic: Topic, make_group: Callable[..., list[Member]]) -> None:
    """What the group is subscribed to is 86; what it left behind may go."""
    left = broker.create_topic()
    (member,) = make_group(protocols=[("range", subscription(topic.name))])
    assert member.commit(topic, 5) == member.commit(left, 6) == 0
    code, rows = delete_offsets(broker, member.group, (topic.name, 0), (left.name, 0))
    assert (code, rows) == (0, {(topic.name, 0): SUBSCRIBED, (left.name, 0): 0})
    assert committed(broker, member.group, topic) == 5 and committed(broker, member.group, left) == -1


def test_offset_delete_beside_members_of_another_kind(
    broker: Broker, topic: Topic, make_group: Callable[..., list[Member]]
) -> None:
    """A group whose subscriptions cannot be known (not consumers): 68 while it has members."""
    (member,) = make_group(protocol_type="connect")
    assert member.commit(topic, 5) == 0
    assert delete_offsets(broker, member.group, (topic.name, 0)) == (NON_EMPTY_GROUP, {})


def test_offsets_go_with_their_topic(broker: Broker, topic: Topic, group: str) -> None:
    other = broker.create_topic()
    assert commit(broker, group, topic, 5) == commit(broker, group, other, 6) == 0
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic.name)], timeout_ms=10_000)
    assert broker.request(request).responses[0].error_code == 0
    for _ in range(500):  # Kafka tells its group coordinator a moment later
        _, order, _ = fetch_offsets(broker, group, None, version=7)
        if order == [(other.name, 0)]:
            break
    assert order == [(other.name, 0)]
    assert state_of(broker, group) == "Empty"


def test_the_empty_group_id(broker: Broker, topic: Topic) -> None:
    """Old consumers commit and fetch under no name at all; a generation makes no sense there."""
    assert commit(broker, "", topic, 5) == 0
    assert committed(broker, "", topic) == 5
    assert commit(broker, "", topic, 6, generation=1, member_id="x") in (
        INVALID_GROUP,
        ILLEGAL_GENERATION,
        UNKNOWN_MEMBER,
    )
