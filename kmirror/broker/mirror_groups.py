"""Group offsets of the source brought here: facts for `mirror.group_sync`, its changes into `__consumer_offsets`. L3.

The link reads the source's groups and hands over what each has committed; whether it still applies is looked at when it
arrives, so an answer that comes after a stop, a pause or a cut changes nothing. A group with members here is left alone
and shown (docs/MIRRORING.md, "Group offsets").
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kmirror.broker.metadata import TopicState
from kmirror.coordinator.groups.offsets import OffsetValue
from kmirror.effects import Place, Promise
from kmirror.errors import ApiError
from kmirror.mirror import group_sync
from kmirror.mirror.group_sync import GroupOffset, Held, ListedGroup, Readable
from kmirror.mirror.states import Desired, State
from kmirror.protocol.errors import ErrorCode, name_of

if TYPE_CHECKING:
    from kmirror.broker.group_offsets import GroupOffsets
    from kmirror.broker.mirror_partition import MirroredPartition
    from kmirror.broker.mirroring import Mirrors

log = logging.getLogger("kmirror.mirror")

_MINUTE_MS: Final = 60_000
_RENEW_SHARE: Final = 2
"""An offset is committed anew when this part of its retention is over: at the source its group may be alive."""


class GroupSync:
    """`mirrors.group_sync`."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._wishes: set[str] = set()
        self._active: dict[str, set[str]] = {}

    # -- what the link asks --------------------------------------------------------------------------------------

    def topics(self, mirror: str) -> list[str]:
        """Topics that take part now; without any the source is not asked."""
        found = self._mirrors.mirrors.get(mirror)
        if found is None:
            return []
        return [
            name
            for name, topic in found.topics.items()
            if any(_takes_part(partition) for partition in topic.partitions)
        ]

    def requested(self, mirror: str) -> bool:
        """Whether a look is wanted before the next one is due: partitions began to take part, or caught up."""
        return mirror in self._wishes

    def begun(self, mirror: str) -> None:
        """A look begins; wishes from now on are for the next one."""
        self._wishes.discard(mirror)

    def wanted(self, mirror: str, listed: Iterable[ListedGroup]) -> list[str]:
        """Which of the source's groups are to be read."""
        found = self._mirrors.mirrors.get(mirror)
        if found is None:
            return []
        include, exclude = found.config.items("groups.include"), found.config.items("groups.exclude")
        groups = group_sync.wanted(listed, include=include, exclude=exclude)
        self._active.setdefault(mirror, set()).intersection_update(groups)
        return groups

    def take(self, mirror: str, group_id: str, offsets: Mapping[Place, GroupOffset]) -> None:
        """What one group has committed at the source."""

        def usable(done: Promise[TopicState]) -> None:
            try:
                done.result()
            except ApiError as error:
                log.warning("mirror %s: no group offset can be kept: %s", mirror, error.message)
            else:
                self._take(mirror, group_id, offsets)

        if any(place[0] in self._mirrors.topics for place in offsets):
            self._offsets.usable().then(usable)

    # -- what others ask -----------------------------------------------------------------------------------------

    def wish(self, mirror: str) -> None:
        """Offsets that could not be right before can be now."""
        self._wishes.add(mirror)
        self._mirrors.wake(mirror)

    def left_alone(self, mirror: str) -> list[str]:
        """Groups that were not touched at the last look, since they have members here. None once nothing is mirrored:
        after a failover members are what is wanted."""
        return sorted(self._active.get(mirror, ())) if self.topics(mirror) else []

    # -- committing ----------------------------------------------------------------------------------------------

    @property
    def _offsets(self) -> GroupOffsets:
        return self._mirrors.world.groups.offsets

    def _take(self, mirror: str, group_id: str, offsets: Mapping[Place, GroupOffset]) -> None:
        readable = self._readable(mirror, offsets)
        if not readable:
            return
        if not self._may_commit(mirror, group_id):
            return
        world = self._mirrors.world
        retention_ms = world.config.integer("offsets.retention.minutes") * _MINUTE_MS
        changes = group_sync.changes(
            offsets,
            readable,
            self._held(group_id, readable),
            now_ms=world.clock.time_ms(),
            renew_after_ms=retention_ms // _RENEW_SHARE,
        )
        if not changes:
            return
        values = {
            place: OffsetValue(offset=value.offset, leader_epoch=value.leader_epoch, metadata=value.metadata)
            for place, value in changes.items()
        }
        try:
            self._offsets.commit_synced(group_id, values).then(lambda done: _look(mirror, group_id, done))
        except ApiError as error:
            log.warning("mirror %s: offsets of group %s: %s", mirror, group_id, error.message)

    def _may_commit(self, mirror: str, group_id: str) -> bool:
        known = self._active.setdefault(mirror, set())
        if not self._offsets.is_active(group_id):
            known.discard(group_id)
            return True
        if group_id not in known:
            known.add(group_id)
            log.warning(
                "mirror %s: group %s has members here, its offsets are not taken from the source", mirror, group_id
            )
        return False

    def _readable(self, mirror: str, places: Collection[Place]) -> dict[Place, Readable]:
        found: dict[Place, Readable] = {}
        for name, index in places:
            owner = self._mirrors.topics.get(name)
            if owner is None or owner[0].name != mirror or not 0 <= index < len(owner[1].partitions):
                continue
            partition = owner[1].partitions[index]
            if _takes_part(partition):
                local = partition.partition
                found[name, index] = Readable(
                    log_start_offset=local.log.log_start_offset,
                    high_watermark=local.high_watermark,
                    epoch_at=local.log.epochs.epoch_at,
                )
        return found

    def _held(self, group_id: str, places: Iterable[Place]) -> dict[Place, Held]:
        held: dict[Place, Held] = {}
        for place in places:
            at_ms = self._offsets.committed_at_ms(group_id, place)
            if at_ms is not None:
                value = self._offsets.current(group_id, place)
                held[place] = Held(GroupOffset(value.offset, value.leader_epoch, value.metadata), at_ms)
        return held


def _takes_part(partition: MirroredPartition) -> bool:
    """MIRRORING as wished and as recorded, and fetched from since the log last went back."""
    return (
        partition.attached
        and not partition.partition.deleted
        and partition.state is State.MIRRORING
        and partition.machine.desired is Desired.MIRRORING
        and partition.fetched_under == partition.partition.log.generation
    )


def _look(mirror: str, group_id: str, done: Promise[None]) -> None:
    try:
        done.result()
    except ApiError as error:
        text = error.message or name_of(error.code)
        level = logging.INFO if error.code == ErrorCode.NON_EMPTY_GROUP else logging.WARNING
        log.log(level, "mirror %s: offsets of group %s were not recorded: %s", mirror, group_id, text)
