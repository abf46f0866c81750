"""What groups there are and what they are doing: states, members, committed offsets and lag, from any Kafka since 2.1.

Groups are listed by every broker for itself and described by their coordinators. A group of the newer protocol
(KIP-848) is described by another request, which is asked first where the broker has it, as Kafka's own tools do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import trio

from kmirror.cli import group_offsets
from kmirror.cli.coordinator import ASK_AGAIN, Coordinator, as_is
from kmirror.cli.display import known, print_table
from kmirror.cli.failure import Failure
from kmirror.cli.group_offsets import Committed
from kmirror.cli.patience import Patience
from kmirror.cli.session import check, refusal
from kmirror.errors import DecodeError
from kmirror.protocol import registry
from kmirror.protocol.api.consumer_group_describe import ConsumerGroupDescribeRequest
from kmirror.protocol.api.describe_groups import DescribeGroupsRequest
from kmirror.protocol.api.list_groups import ListGroupsRequest
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import consumer_protocol
from kmirror.source.calls import LATEST, Partition
from kmirror.source.cluster import Cluster, Node

LIST_PATIENCE_S = 10.0
STATES_SINCE_VERSION, TYPES_SINCE_VERSION = 4, 5
DEAD = "Dead"
INACTIVE = ("Empty", DEAD)
"""States in which somebody outside the group may change its offsets."""
NO_SUCH_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


@dataclass(frozen=True, slots=True)
class Listed:
    group: str
    protocol_type: str
    state: str | None
    kind: str | None
    """`classic`, `consumer`, `share`, `streams`; None where the broker is too old to tell."""


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[Partition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Row:
    """One partition of a group: committed, or assigned to a member, or both."""

    topic: str
    partition: int
    committed: Committed | None
    log_end_offset: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.log_end_offset is None:
            return None
        return max(0, self.log_end_offset - self.committed.offset)


@dataclass(slots=True, kw_only=True)
class Group:
    group: str
    kind: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: list[Member] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        """A classic coordinator calls a group that it does not know Dead; its offsets are then gone too."""
        return self.state != DEAD or bool(self.rows)


# --- listing ----------------------------------------------------------------------------------------------------------


async def listing(cluster: Cluster) -> list[Listed]:
    """All groups of all brokers. Raises Failure, PeerError, DecodeError."""
    await cluster.metadata([])
    found: dict[str, Listed] = {}
    for node_id in sorted(cluster.nodes):
        for group in await _listed_by(cluster, node_id):
            found[group.group_id] = Listed(
                group.group_id, group.protocol_type, group.group_state or None, group.group_type or None
            )
    return [found[name] for name in sorted(found)]


async def _listed_by(cluster: Cluster, node_id: int) -> list[Any]:
    patience = Patience(trio.current_time() + LIST_PATIENCE_S)
    while True:
        response = await cluster.request(ListGroupsRequest(), node_id)
        if response.error_code not in ASK_AGAIN or patience.over:
            check(response.error_code, None, f"broker {node_id} does not list its groups")
            return list(response.groups)
        await patience.pause()


async def with_states(cluster: Cluster, groups: Sequence[Listed]) -> list[Listed]:
    """Brokers before 2.6 list no states: those groups are described one by one."""
    found = []
    for group in groups:
        state = group.state or (await describe(cluster, group.group, with_offsets=False)).state
        found.append(Listed(group.group, group.protocol_type, state, group.kind))
    return found


# --- describing -------------------------------------------------------------------------------------------------------


async def describe(cluster: Cluster, name: str, *, with_offsets: bool = True) -> Group:
    """Raises Failure (the coordinator refuses), PeerError, DecodeError. A group that is not there has state Dead."""
    coordinator = Coordinator(cluster, name)
    coordinator.node = await coordinator.find()
    group = await _described_consumer_group(coordinator)
    if group is None:
        group = await _described_classic_group(coordinator)
    if with_offsets and group.kind in ("classic", "consumer"):
        offsets = await group_offsets.committed(coordinator)
        group.rows = await _rows(cluster, offsets, group.members)
    return group


async def _described_consumer_group(coordinator: Coordinator) -> Group | None:
    """None when the coordinator does not know the request, or the group is not of that kind."""
    node = coordinator.node
    assert node is not None
    key = registry.by_name["ConsumerGroupDescribe"].key
    if key not in (await coordinator.cluster.connection(node.node_id)).peer.versions:
        return None
    request = ConsumerGroupDescribeRequest(group_ids=[coordinator.key])
    answer = (await coordinator.ask(as_is(request), _group_code)).groups[0]
    if answer.error_code in NO_SUCH_GROUP:
        return None
    check(answer.error_code, answer.error_message, f"group {coordinator.key} cannot be described")
    members = [
        Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host.lstrip("/"),
            partitions=[
                (topic.topic_name, index) for topic in member.assignment.topic_partitions for index in topic.partitions
            ],
        )
        for member in answer.members
    ]
    return Group(
        group=coordinator.key,
        kind="consumer",
        state=answer.group_state,
        protocol_type=consumer_protocol.PROTOCOL_TYPE,
        assignor=answer.assignor_name,
        coordinator=node,
        members=members,
    )


async def _described_classic_group(coordinator: Coordinator) -> Group:
    request = DescribeGroupsRequest(groups=[coordinator.key])
    answer = (await coordinator.ask(as_is(request), _group_code)).groups[0]
    if answer.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        check(answer.error_code, getattr(answer, "error_message", None), f"group {coordinator.key} cannot be described")
    node = coordinator.node
    assert node is not None
    return Group(
        group=coordinator.key,
        kind="classic",
        state=answer.group_state or DEAD,
        protocol_type=answer.protocol_type,
        assignor=answer.protocol_data,
        coordinator=node,
        members=[_classic_member(member, answer.protocol_type) for member in answer.members],
    )


def _group_code(response: Any) -> int:
    """Of the only group that was asked for."""
    return int(response.groups[0].error_code)


def _classic_member(member: Any, protocol_type: str) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host.lstrip("/"),
        partitions=_assigned(member.member_assignment) if protocol_type == consumer_protocol.PROTOCOL_TYPE else [],
    )


def _assigned(data: Any) -> list[Partition]:
    """The partitions in an assignment; none in one that is not the consumer protocol's (the broker never looks)."""
    try:
        assignment = consumer_protocol.decode_assignment(data)
    except DecodeError:
        return []
    return [(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions]


async def _rows(cluster: Cluster, offsets: dict[Partition, Committed], members: Iterable[Member]) -> list[Row]:
    owners = {partition: member for member in members for partition in member.partitions}
    partitions = sorted(offsets.keys() | owners.keys())
    ends = await cluster.list_offsets(dict.fromkeys(partitions, LATEST)) if partitions else {}
    rows = []
    for topic, index in partitions:
        end = ends.get((topic, index))
        rows.append(
            Row(
                topic=topic,
                partition=index,
                committed=offsets.get((topic, index)),
                log_end_offset=end.offset if end is not None and not end.error_code else None,
                member=owners.get((topic, index)),
            )
        )
    return rows


def check_exists(group: Group) -> None:
    """Raises Failure for a group that is not there."""
    if not group.exists:
        raise Failure(
            f"group {group.group}: {refusal(ErrorCode.GROUP_ID_NOT_FOUND, None)}",
            next_step="List what there is with: kmirror group list",
        )


# --- how it looks -----------------------------------------------------------------------------------------------------

OFFSET_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "COMMITTED-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "MEMBER-ID",
    "CLIENT-ID",
    "HOST",
)
MEMBER_COLUMNS = ("GROUP", "MEMBER-ID", "INSTANCE-ID", "CLIENT-ID", "HOST", "PARTITIONS", "ASSIGNMENT")


def headline(group: Group) -> str:
    count = len(group.members)
    parts = [group.state, group.kind]
    if group.assignor:
        parts.append(f"assignor {group.assignor}")
    parts.append(f"{count} member{'' if count == 1 else 's'}")
    node = group.coordinator
    return f"{group.group}: {', '.join(parts)}, coordinator {node.node_id} ({node.host}:{node.port})"


def offset_cells(group: Group) -> list[Sequence[Any]]:
    return [
        (
            group.group,
            row.topic,
            row.partition,
            row.committed.offset if row.committed else None,
            row.log_end_offset,
            row.lag,
            row.member.member_id if row.member else None,
            row.member.client_id if row.member else None,
            row.member.host if row.member else None,
        )
        for row in group.rows
    ]


def member_cells(group: Group) -> list[Sequence[Any]]:
    return [
        (
            group.group,
            member.member_id,
            member.instance_id,
            member.client_id,
            member.host,
            len(member.partitions),
            ",".join(f"{topic}-{index}" for topic, index in sorted(member.partitions)),
        )
        for member in sorted(group.members, key=lambda member: member.member_id)
    ]


def print_group(group: Group, *, members: bool) -> None:
    click.echo(headline(group))
    if members:
        print_table(MEMBER_COLUMNS, member_cells(group), empty="no members")
    else:
        print_table(OFFSET_COLUMNS, offset_cells(group), empty="no committed offsets and no assigned partitions")


def as_json(group: Group) -> dict[str, Any]:
    """What `group describe --json` promises: one object per group; what is unknown is null."""
    node = group.coordinator
    return {
        "group": group.group,
        "type": group.kind,
        "state": group.state,
        "protocol_type": group.protocol_type or None,
        "assignor": group.assignor or None,
        "coordinator": {"node_id": node.node_id, "host": node.host, "port": node.port},
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [{"topic": topic, "partition": index} for topic, index in sorted(member.partitions)],
            }
            for member in sorted(group.members, key=lambda member: member.member_id)
        ],
        "partitions": [row_as_json(row) for row in group.rows],
    }


def row_as_json(row: Row) -> dict[str, Any]:
    committed, member = row.committed, row.member
    return {
        "topic": row.topic,
        "partition": row.partition,
        "committed_offset": committed.offset if committed else None,
        "leader_epoch": known(committed.leader_epoch) if committed else None,
        "metadata": committed.metadata if committed else None,
        "log_end_offset": row.log_end_offset,
        "lag": row.lag,
        "member_id": member.member_id if member else None,
        "client_id": member.client_id if member else None,
        "host": member.host if member else None,
    }
