"""The source's groups and what they have committed, asked with whatever versions it speaks (Kafka 2.1 and later).

Three questions: ListGroups to every broker (each lists the groups it coordinates), FindCoordinator, OffsetFetch to the
coordinators. Nothing is decided here; a group that cannot be read this time is left out, and asked for again next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import trio

from kmirror.effects import Place
from kmirror.errors import DecodeError
from kmirror.limits import MIRROR_GROUPS_PER_REQUEST
from kmirror.mirror.group_sync import GroupOffset, ListedGroup
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.api.list_groups import ListGroupsRequest
from kmirror.protocol.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kmirror.protocol.errors import name_of
from kmirror.source.cluster import Cluster, Node
from kmirror.source.connection import Connection
from kmirror.source.errors import PeerError

log = logging.getLogger(__name__)

PURPOSE: Final = "groups"
"""Connections of its own: a coordinator that takes its time delays neither metadata nor fetches."""
_GROUP_COORDINATOR: Final = 0
_FIRST_FIND_COORDINATOR_WITH_KEYS: Final = 4
_FIRST_OFFSET_FETCH_WITH_GROUPS: Final = 8
_LAST_OFFSET_FETCH_WITH_NAMES: Final = 9

Take = Callable[[str, dict[Place, GroupOffset]], None]


async def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """All groups of all brokers. A broker that cannot be asked is passed over. Raises PeerError when none can."""
    found: dict[str, ListedGroup] = {}
    failure: PeerError | DecodeError | None = None
    answered = 0
    for node_id in list(cluster.nodes):
        try:
            connection = await cluster.connection(node_id, purpose=PURPOSE)
            response = await connection.request(ListGroupsRequest())
        except (PeerError, DecodeError) as error:
            failure = error
            continue
        answered += 1
        if response.error_code:
            log.info("broker %d does not list its groups: %s", node_id, name_of(response.error_code))
            continue
        for group in response.groups:
            found[group.group_id] = ListedGroup(group.group_id, group.protocol_type, group.group_type)
    if failure is not None and not answered:
        raise failure
    return list(found.values())


async def read_offsets(cluster: Cluster, group_ids: Sequence[str], take: Take) -> None:
    """Calls `take(group, offsets)` with what each group has committed, of all its topics.

    Groups of a coordinator that fails are left out. Raises PeerError, DecodeError when no coordinator can be found.
    """
    for node_id, ids in (await _by_coordinator(cluster, group_ids)).items():
        try:
            connection = await cluster.connection(node_id, purpose=PURPOSE)
            await _read_from(connection, ids, take)
        except (PeerError, DecodeError) as error:
            log.info("broker %d, which coordinates %d groups, cannot be asked: %s", node_id, len(ids), error)


async def _read_from(connection: Connection, group_ids: Sequence[str], take: Take) -> None:
    version = connection.version_of("OffsetFetch", _LAST_OFFSET_FETCH_WITH_NAMES)
    if version >= _FIRST_OFFSET_FETCH_WITH_GROUPS:
        for part in _parts(group_ids):
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=one, topics=None) for one in part])
            response = await connection.request(request, version)
            for group in response.groups:
                if _readable(group.group_id, group.error_code):
                    take(group.group_id, _offsets(group.topics))
                    await trio.lowlevel.checkpoint()  # a group may have committed for thousands of partitions
        return
    for group_id in group_ids:
        response = await connection.request(OffsetFetchRequest(group_id=group_id, topics=None), version)
        if _readable(group_id, response.error_code):
            take(group_id, _offsets(response.topics))


async def _by_coordinator(cluster: Cluster, group_ids: Sequence[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    if not group_ids:
        return found
    connection = await cluster.connection(purpose=PURPOSE)
    if connection.version_of("FindCoordinator") >= _FIRST_FIND_COORDINATOR_WITH_KEYS:
        for part in _parts(group_ids):
            request = FindCoordinatorRequest(key_type=_GROUP_COORDINATOR, coordinator_keys=list(part))
            response = await connection.request(request)
            for coordinator in response.coordinators:
                _note(cluster, found, coordinator.key, coordinator)
    else:
        for group_id in group_ids:
            request = FindCoordinatorRequest(key=group_id, key_type=_GROUP_COORDINATOR)
            _note(cluster, found, group_id, await connection.request(request))
    return found


def _note(cluster: Cluster, found: dict[int, list[str]], group_id: str, answer: Any) -> None:
    if answer.error_code:
        log.info("group %s has no coordinator now: %s", group_id, name_of(answer.error_code))
        return
    if answer.node_id not in cluster.nodes:
        cluster.nodes[answer.node_id] = Node(answer.node_id, answer.host, answer.port, None)
    found.setdefault(answer.node_id, []).append(group_id)


def _readable(group_id: str, error_code: int) -> bool:
    if error_code:
        log.info("the offsets of group %s could not be read: %s", group_id, name_of(error_code))
    return not error_code


def _offsets(topics: Iterable[Any]) -> dict[Place, GroupOffset]:
    return {
        (topic.name, row.partition_index): GroupOffset(
            row.committed_offset, row.committed_leader_epoch, row.metadata or ""
        )
        for topic in topics
        for row in topic.partitions
        if not row.error_code and row.committed_offset >= 0
    }


def _parts(items: Sequence[str]) -> Iterable[Sequence[str]]:
    for at in range(0, len(items), MIRROR_GROUPS_PER_REQUEST):
        yield items[at : at + MIRROR_GROUPS_PER_REQUEST]
