"""Members of a classic group, one connection each, and the group's offsets: the vocabulary of the group cases.

A member keeps what it was told (its id, generation, the leader) and sends what a client would; every field can be
replaced, so that a case can also send what no client would. JoinGroup and SyncGroup wait for others, so they come in
two halves, `send_…` and `receive_…`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from conformance.wire.client import TIMEOUT_S, Broker, Topic
from kmirror.protocol.api.describe_groups import DescribeGroupsRequest
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.api.heartbeat import HeartbeatRequest
from kmirror.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from kmirror.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kmirror.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kmirror.protocol.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

UNKNOWN_TOPIC, METADATA_TOO_LARGE, LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 3, 12, 14, 15, 16
ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, INVALID_GROUP, UNKNOWN_MEMBER, BAD_SESSION_TIMEOUT = 22, 23, 24, 25, 26
REBALANCING, INVALID_REQUEST, NON_EMPTY_GROUP, GROUP_NOT_FOUND, MEMBER_ID_REQUIRED = 27, 42, 68, 69, 79
FENCED_INSTANCE, SUBSCRIBED, UNSTABLE_OFFSETS, UNKNOWN_TOPIC_ID = 82, 86, 88, 100
GROUP_KEY, TRANSACTION_KEY = 0, 1
SESSION_MS, REBALANCE_MS = 10_000, 5_000
LOWEST_SESSION_MS = 6_000
"""Kafka's group.min.session.timeout.ms: what a suite for any broker may ask for at least."""
_COORDINATOR_MOVES = {LOADING, NOT_AVAILABLE, NOT_COORDINATOR}
_TOPIC_IDS_FROM = 10  # OffsetCommit and OffsetFetch name topics by id from this version on
_GROUPS_FROM = 8  # OffsetFetch asks for several groups from this version on


def wait_for_coordinator(broker: Broker, key: str, key_type: int) -> None:
    """Until FindCoordinator names somebody: a fresh broker creates its internal topic first."""
    version = broker.version("FindCoordinator", 3)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        code = broker.request(FindCoordinatorRequest(key=key, key_type=key_type), version).error_code
        if not code:
            return
        assert code in _COORDINATOR_MOVES and time.monotonic() < deadline, code


def new_group(broker: Broker, prefix: str) -> str:
    """The name of a group that is not there yet, with a coordinator."""
    name = broker.new_name(prefix)
    wait_for_coordinator(broker, name, GROUP_KEY)
    return name


class Member:
    """One member. `protocols` are (name, metadata) in order of preference."""

    def __init__(
        self, broker: Broker, group: str, *, instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"range metadata"),), protocol_type: str = "consumer",
        session_timeout_ms: int = SESSION_MS, rebalance_timeout_ms: int = REBALANCE_MS,
    ) -> None:  # fmt: skip
        self.broker, self.group, self.instance = broker, group, instance
        self.protocols, self.protocol_type = protocols, protocol_type
        self.session_timeout_ms, self.rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms
        self.connection = broker.connect()
        self.member_id = ""
        self.generation = -1
        self.leader = self.protocol_name = ""
        self.members: dict[str, Any] = {}

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    def _version(self, name: str, version: int | None) -> int:
        return self.broker.version(name, version)

    @property
    def is_leader(self) -> bool:
        return self.member_id != "" and self.leader == self.member_id

    # --- membership

    def send_join(self, *, version: int | None = None, member_id: str | None = None) -> None:
        protocols = [JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in self.protocols]
        version = self._version("JoinGroup", version)
        request = JoinGroupRequest(
            group_id=self.group, session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms, protocol_type=self.protocol_type, protocols=protocols,
            member_id=self.member_id if member_id is None else member_id,
        )  # fmt: skip
        if version >= 5:
            request.group_instance_id = self.instance
        self.connection.send(request, version)

    def receive_join(self) -> Any:
        """The answer; a good one, or one with a new member id, is kept."""
        answer = self.connection.receive()
        if answer.error_code in (0, MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
        if answer.error_code == 0:
            self.generation, self.leader = answer.generation_id, answer.leader
            self.protocol_name = answer.protocol_name
            self.members = {row.member_id: row for row in answer.members}
        return answer

    def join_once(self, *, version: int | None = None, member_id: str | None = None) -> Any:
        self.send_join(version=version, member_id=member_id)
        return self.receive_join()

    def take_id(self, version: int | None = None) -> None:
        """A dynamic member's first join from v4 on: it only gets an id."""
        if self._version("JoinGroup", version) >= 4 and not self.member_id and self.instance is None:
            answer = self.join_once(version=version)
            assert answer.error_code == MEMBER_ID_REQUIRED and answer.member_id, answer

    def join(self, version: int | None = None) -> Any:
        """Joins as clients do, with the id that the first try gives. For a group that needs to wait for nobody."""
        self.take_id(version)
        answer = self.join_once(version=version)
        assert answer.error_code == 0, answer
        return answer

    def send_sync(
        self, assignments: dict[str, bytes] | None = None, *, version: int | None = None, generation: int | None = None,
        member_id: str | None = None, protocol_type: str | None = None, protocol_name: str | None = None,
    ) -> None:  # fmt: skip
        version = self._version("SyncGroup", version)
        request = SyncGroupRequest(
            group_id=self.group, generation_id=self.generation if generation is None else generation,
            member_id=self.member_id if member_id is None else member_id,
            protocol_type=protocol_type, protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )  # fmt: skip
        if version >= 5:
            request.protocol_type = protocol_type or self.protocol_type
            request.protocol_name = protocol_name or self.protocol_name
        if version >= 3:
            request.group_instance_id = self.instance
        self.connection.send(request, version)

    def sync(self, assignments: dict[str, bytes] | None = None, **options: Any) -> Any:
        self.send_sync(assignments, **options)
        return self.connection.receive()

    def heartbeat(
        self, *, version: int | None = None, generation: int | None = None, member_id: str | None = None
    ) -> int:
        version = self._version("Heartbeat", version)
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation if generation is None else generation,
            member_id=self.member_id if member_id is None else member_id,
        )  # fmt: skip
        if version >= 3:
            request.group_instance_id = self.instance
        with self.broker.connect() as connection:  # its own: the member's may wait in a join
            return int(connection.request(request, version).error_code)

    def leave(self, *, version: int | None = None, member_id: str | None = None) -> int:
        """The one error code that says how it went."""
        version = self._version("LeaveGroup", version)
        who = self.member_id if member_id is None else member_id
        request = LeaveGroupRequest(group_id=self.group)
        if version >= 3:
            request.members = [MemberIdentity(member_id=who, group_instance_id=self.instance)]
        else:
            request.member_id = who
        answer = self.broker.request(request, version)
        return int(answer.error_code or (answer.members[0].error_code if version >= 3 else 0))

    def commit(self, topic: Topic, offset: int, **options: Any) -> int:
        """Commits as this member; the partition's error code."""
        mine = {"member_id": self.member_id, "generation": self.generation, "instance": self.instance}
        return commit(self.broker, self.group, topic, offset, **(mine | options))


def stable_group(broker: Broker, group: str, count: int = 1, **options: Any) -> list[Member]:
    """A group with that many members, all in sync; the first one leads. Assignments are the member's number."""
    members = [Member(broker, group, **options) for _ in range(count)]
    for member in members:
        member.take_id()
    rebalance(members)
    return members


def join_all(members: Sequence[Member]) -> None:
    """A new generation of exactly these members. One join opens it, the others follow when it is open.

    In that order, since a follower that joins with what it joined with before opens nothing.
    """
    first, *others = sorted(members, key=lambda member: not member.is_leader)
    if others and first.generation < 0:
        first.join()  # alone for now: what opens the next generation is that others come
        first, others = others[0], [first, *others[1:]]
    first.send_join()
    if others:
        wait_for_state(first.broker, first.group, "PreparingRebalance")
    for member in others:
        member.send_join()
    for member in members:
        answer = member.receive_join()
        assert answer.error_code == 0, answer
    assert len({member.generation for member in members}) == 1


def rebalance(members: Sequence[Member], assignments: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """All of them join (again) and sync; each member's assignment, by member id. They must be the whole group."""
    join_all(members)
    (leader,) = [member for member in members if member.is_leader]
    if assignments is None:
        assignments = {member.member_id: f"assignment {index}".encode() for index, member in enumerate(members)}
    for member in members:
        member.send_sync(assignments if member is leader else None)
    found = {}
    for member in members:
        answer = member.connection.receive()
        assert answer.error_code == 0, answer
        found[member.member_id] = bytes(answer.assignment)
    return found


def describe(broker: Broker, group: str, version: int | None = None) -> Any:
    """The one row of DescribeGroups."""
    (row,) = broker.request(DescribeGroupsRequest(groups=[group]), broker.version("DescribeGroups", version)).groups
    return row


def state_of(broker: Broker, group: str) -> str:
    return str(describe(broker, group).group_state)


def wait_for_state(broker: Broker, group: str, state: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (seen := state_of(broker, group)) != state:
        assert time.monotonic() < deadline, seen
        time.sleep(0.005)


# --- offsets


def commit(
    broker: Broker, group: str, topic: Topic, offset: int, *, partition: int = 0, member_id: str = "",
    generation: int = -1, instance: str | None = None, leader_epoch: int = -1, metadata: str | None = "",
    version: int | None = None,
) -> int:  # fmt: skip
    """One OffsetCommit of one partition; its error code."""
    version = broker.version("OffsetCommit", version)
    row = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=leader_epoch,
        committed_metadata=metadata,
    )  # fmt: skip
    entry = OffsetCommitRequestTopic(partitions=[row])
    if version >= _TOPIC_IDS_FROM:
        entry.topic_id = topic.topic_id
    else:
        entry.name = topic.name
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member_id, topics=[entry]
    )
    if version >= 7:
        request.group_instance_id = instance
    answer = broker.request(request, version)
    return int(answer.topics[0].partitions[0].error_code)


Offsets = dict[tuple[object, int], tuple[int, int, str | None, int]]


def fetch_offsets(
    broker: Broker, group: str, topics: Sequence[tuple[Topic, Sequence[int]]] | None, *, version: int | None = None,
    stable: bool = False,
) -> tuple[int, list[tuple[object, int]], Offsets]:  # fmt: skip
    """(group error, rows in order, (topic, partition) -> (offset, leader epoch, metadata, error)).

    The topic is its name below v10 and its id from there on; the group error is 0 in v1, which has no field for it.
    """
    version = broker.version("OffsetFetch", version)
    if version >= _GROUPS_FROM:
        answer = broker.request(offset_fetch_request({group: topics}, version=version, stable=stable), version)
        (found,) = answer.groups
        assert found.group_id == group
    else:
        request = OffsetFetchRequest(group_id=group, topics=None)
        if topics is not None:
            request.topics = [
                OffsetFetchRequestTopic(name=topic.name, partition_indexes=list(rows)) for topic, rows in topics
            ]
        if version >= 7:
            request.require_stable = stable
        found = broker.request(request, version)
    return found.error_code, *_rows(found, version)


def offset_fetch_request(
    groups: dict[str, Sequence[tuple[Topic, Sequence[int]]] | None], *, version: int, stable: bool = False
) -> OffsetFetchRequest:
    """v8 and above: several groups."""
    asked = []
    for group, topics in groups.items():
        entry = OffsetFetchRequestGroup(group_id=group, topics=None)
        if topics is not None:
            entry.topics = []
            for topic, rows in topics:
                wanted = OffsetFetchRequestTopics(partition_indexes=list(rows))
                if version >= _TOPIC_IDS_FROM:
                    wanted.topic_id = topic.topic_id
                else:
                    wanted.name = topic.name
                entry.topics.append(wanted)
        asked.append(entry)
    return OffsetFetchRequest(groups=asked, require_stable=stable)


def _rows(found: Any, version: int) -> tuple[list[tuple[object, int]], Offsets]:
    order: list[tuple[object, int]] = []
    offsets: Offsets = {}
    for topic in found.topics:
        name: object = bytes(topic.topic_id) if version >= _TOPIC_IDS_FROM else topic.name
        for row in topic.partitions:
            key = (name, row.partition_index)
            order.append(key)
            offsets[key] = (row.committed_offset, row.committed_leader_epoch, row.metadata, row.error_code)
    return order, offsets


def committed(broker: Broker, group: str, topic: Topic, partition: int = 0, *, version: int | None = None) -> int:
    """The committed offset of one partition, -1 for none."""
    code, _, rows = fetch_offsets(broker, group, [(topic, [partition])], version=version)
    ((offset, _, _, row_code),) = rows.values()
    assert (code, row_code) == (0, 0), (code, row_code)
    return offset
