"""Groups and their offsets over kill -9 of the real process: what was answered stays true (B031, B044)."""

from __future__ import annotations

import pytest

from conformance.peers.fixtures import MakeKmirror
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.wire.client import Broker
from conformance.wire.groups import (
    UNSTABLE_OFFSETS,
    Member,
    commit,
    committed,
    describe,
    fetch_offsets,
    rebalance,
    stable_group,
    state_of,
    wait_for_coordinator,
    wait_for_state,
)
from conformance.wire.transactions import TransactionalProducer, until_settled
from kmirror.protocol.api.delete_groups import DeleteGroupsRequest

pytestmark = pytest.mark.integration


def killed_and_back(kmirror: KmirrorBroker, *members: Member) -> Broker:
    """A new life; the members go on with what they know, on new connections."""
    for member in members:
        member.close()
    kmirror.kill()
    kmirror.start()
    broker = Broker(kmirror.bootstrap)
    for member in members:
        member.broker, member.connection = broker, broker.connect()
    return broker


def test_a_stable_group_goes_on(make_kmirror: MakeKmirror) -> None:
    """No rebalance: the same generation, members and assignments, static ones too, and the deleted stay deleted."""
    kmirror = make_kmirror()
    broker = Broker(kmirror.bootstrap)
    topic = broker.create_topic()
    for name in ("group", "deleted"):
        wait_for_coordinator(broker, name, 0)
        assert commit(broker, name, topic, 3) == 0
    assert broker.request(DeleteGroupsRequest(groups_names=["deleted"])).results[0].error_code == 0
    members = stable_group(broker, "group", 2)
    static = stable_group(broker, "static", 1, instance="one")
    before = {name: describe(broker, name) for name in ("group", "static")}
    for _ in range(2):
        broker = killed_and_back(kmirror, *members, *static)
        assert state_of(broker, "deleted") == "Dead" and committed(broker, "deleted", topic) == -1
        assert {name: describe(broker, name) for name in ("group", "static")} == before
        for number, member in enumerate(members):
            assert member.heartbeat() == 0
            assert bytes(member.sync().assignment) == f"assignment {number}".encode()
            assert member.commit(topic, 10 + number) == 0
    rebalance(members)
    for member in (*members, *static):
        assert member.leave() == 0
        member.close()
    assert committed(broker, "group", topic) == 11


def test_a_kill_in_the_middle_of_a_rebalance(make_kmirror: MakeKmirror) -> None:
    """While members join, and again while the leader assigns: the group forms anew, and its offsets are there."""
    kmirror = make_kmirror()
    broker = Broker(kmirror.bootstrap)
    topic = broker.create_topic()
    members = stable_group(broker, "group", 2)
    assert members[0].commit(topic, 5) == 0
    leader = next(member for member in members if member.is_leader)
    generation = leader.generation
    leader.send_join()
    wait_for_state(broker, "group", "PreparingRebalance")
    broker = killed_and_back(kmirror, *members)
    assert committed(broker, "group", topic) == 5
    rebalance(members)
    assert leader.generation > generation
    follower = next(member for member in members if member is not leader)
    leader.send_join()
    wait_for_state(broker, "group", "PreparingRebalance")
    follower.send_join()
    assert leader.receive_join().error_code == follower.receive_join().error_code == 0
    broker = killed_and_back(kmirror, *members)
    rebalance(members)
    assert [member.heartbeat() for member in members] == [0, 0]
    assert committed(broker, "group", topic) == 5
    for member in members:
        member.close()


def test_offsets_keep_their_epochs_and_their_transactions(make_kmirror: MakeKmirror) -> None:
    """B031: 7, -1, -1 each time; what is pending is pending again, and its end decides as if nothing had happened."""
    kmirror = make_kmirror()
    broker = Broker(kmirror.bootstrap)
    topics = [broker.create_topic() for _ in range(4)]
    wait_for_coordinator(broker, "group", 0)
    assert commit(broker, "group", topics[0], 40, leader_epoch=7, metadata="note") == 0
    assert commit(broker, "group", topics[1], 5) == 0
    assert commit(broker, "group", topics[2], 9, version=2) == 0
    kept = {
        (topics[0].name, 0): (40, 7, "note", 0),
        (topics[1].name, 0): (5, -1, "", 0),
        (topics[2].name, 0): (9, -1, "", 0),
    }
    committing, aborting = TransactionalProducer(broker).init(), TransactionalProducer(broker).init()
    for producer, topic in ((committing, topics[3]), (aborting, topics[0])):
        assert producer.add_offsets("group") == 0
        assert producer.commit_offset("group", topic, 20, leader_epoch=3) == 0
    broker = killed_and_back(kmirror)
    assert fetch_offsets(broker, "group", None, version=9) == (0, list(kept), kept)
    unstable = fetch_offsets(broker, "group", [(topic, [0]) for topic in topics], version=9, stable=True)[2]
    assert {key for key, row in unstable.items() if row[3] == UNSTABLE_OFFSETS} == {
        (topics[0].name, 0), (topics[3].name, 0)
    }  # fmt: skip
    committing.broker = aborting.broker = broker
    committing.commit()
    aborting.abort()
    for _ in range(2):
        rows = until_settled(
            lambda: fetch_offsets(broker, "group", None, version=9, stable=True)[2],  # noqa: B023
            lambda found: 51 if any(row[3] == UNSTABLE_OFFSETS for row in found.values()) else 0,
        )
        assert rows == kept | {(topics[3].name, 0): (20, 3, "", 0)}
        broker = killed_and_back(kmirror)
