"""What committed offsets of the source become here: which groups, which partitions, which values. Pure.

Rules (docs/MIRRORING.md, "Group offsets"): groups.include without groups.exclude; partitions of topics that are wished
and recorded MIRRORING and have fetched at least once since they were aligned; a value is brought inside what can be
read here, `[log start, high watermark]`. A value that fits keeps its leader epoch and metadata; one that does not gets
the epoch that the local log has there, and no metadata. Only what differs is written, and what would expire here while
the group lives on at the source. An offset that the source has no more is left to expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kmirror.effects import Place
from kmirror.mirror.sync import Patterns

NO_EPOCH: Final = -1
SHARE: Final = "share"
"""Share groups have no committed offsets; their name may be another group's here."""


class GroupOffset(NamedTuple):
    """A committed offset: the source's, or what it becomes here."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One row of the source's ListGroups. `group_type` is empty before version 5."""

    group_id: str
    protocol_type: str = ""
    group_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """What a partition has to read: the smallest and the largest position, and epochs by offset (-1: none)."""

    log_start_offset: int
    high_watermark: int
    epoch_at: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Held:
    """What a group has committed here, and when (wall time)."""

    value: GroupOffset
    committed_at_ms: int


def wanted(listed: Iterable[ListedGroup], *, include: Iterable[str], exclude: Iterable[str]) -> list[str]:
    """Groups to take over, in order of their names. Raises ApiError 128 for a bad pattern."""
    taken, left = Patterns(include), Patterns(exclude)
    return sorted(
        {
            group.group_id
            for group in listed
            if SHARE not in (group.group_type.lower(), group.protocol_type.lower())
            and taken.matches(group.group_id)
            and not left.matches(group.group_id)
        }
    )


def clamped(source: GroupOffset, readable: Readable) -> GroupOffset:
    """See the module head. The source's value must be one (not negative)."""
    offset = max(readable.log_start_offset, min(source.offset, readable.high_watermark))
    if offset == source.offset:
        return source
    return GroupOffset(offset, readable.epoch_at(offset))


def changes(
    source: Mapping[Place, GroupOffset],
    readable: Mapping[Place, Readable],
    held: Mapping[Place, Held],
    *,
    now_ms: int,
    renew_after_ms: int,
) -> dict[Place, GroupOffset]:
    """What to commit for one group. `readable` names the partitions that take part."""
    found: dict[Place, GroupOffset] = {}
    for place, value in source.items():
        bounds = readable.get(place)
        if bounds is None or value.offset < 0:
            continue
        final = clamped(value, bounds)
        here = held.get(place)
        if here is None or here.value != final or now_ms - here.committed_at_ms >= renew_after_ms:
            found[place] = final
    return found
