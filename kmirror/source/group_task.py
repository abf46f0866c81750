"""One task per link: looks at the source's groups from time to time and hands over what they have committed.

Every refresh interval, and sooner when the mirror says so (a partition has caught up), but never without a pause. It
decides nothing: which groups, which partitions and which values is the mirror's business, when the answers arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import trio

from kmirror.effects import Place
from kmirror.errors import ApiError, DecodeError
from kmirror.limits import MIRROR_GROUP_SYNC_PAUSE_MS
from kmirror.mirror.group_sync import GroupOffset, ListedGroup
from kmirror.source import groups
from kmirror.source.cluster import Cluster
from kmirror.source.errors import PeerError
from kmirror.source.wakeup import Wakeup

log = logging.getLogger(__name__)


class GroupPort(Protocol):
    """The part of `kmirror.broker.mirror_groups.GroupSync` that a link uses."""

    def topics(self, mirror: str) -> Sequence[str]: ...
    def requested(self, mirror: str) -> bool: ...
    def begun(self, mirror: str) -> None: ...
    def wanted(self, mirror: str, listed: Iterable[ListedGroup]) -> Sequence[str]: ...
    def take(self, mirror: str, group_id: str, offsets: Mapping[Place, GroupOffset]) -> None: ...


async def keep_groups(
    port: GroupPort, mirror: str, cluster: Cluster, wakeup: Wakeup, *, refresh_interval_ms: int
) -> None:
    """Until cancelled."""
    next_at_s = trio.current_time()
    last_at_s = -float("inf")
    failed = False
    while True:
        seen = wakeup.serial
        now_s = trio.current_time()
        earliest_s = last_at_s + MIRROR_GROUP_SYNC_PAUSE_MS / 1000
        wanted_at_s = min(next_at_s, earliest_s) if port.requested(mirror) else next_at_s
        if now_s < wanted_at_s or not cluster.nodes or not port.topics(mirror):
            # without topics or brokers there is nothing to ask, until something wakes the link
            idle = not cluster.nodes or now_s >= wanted_at_s
            await wakeup.wait(seen, timeout_s=refresh_interval_ms / 1000 if idle else wanted_at_s - now_s)
            continue
        last_at_s, next_at_s = now_s, now_s + refresh_interval_ms / 1000
        port.begun(mirror)
        try:
            await _look(port, mirror, cluster)
        except (PeerError, DecodeError, ApiError) as error:
            if not failed:
                log.warning("mirror %s: the source's group offsets could not be read: %s", mirror, error)
            failed = True
        else:
            failed = False


async def _look(port: GroupPort, mirror: str, cluster: Cluster) -> None:
    wanted = port.wanted(mirror, await groups.list_groups(cluster))
    await groups.read_offsets(cluster, wanted, partial(port.take, mirror))
