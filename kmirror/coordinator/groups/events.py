"""What classic groups ask to be told later: timers that run out, records that are on disk. L2, pure.

None of them is ever assumed to be current: each names what it was set for, and is ignored when that is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kmirror.coordinator.groups.member import Member


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """Timer: a member, or one whose id was handed out, was silent for its session timeout."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class InitialDelayOver:
    """Timer: the wait for more members of a new group. `remaining_ms`: how much longer it may still be made."""

    group_id: str
    delay_ms: int
    remaining_ms: int


@dataclass(frozen=True, slots=True)
class JoinPhaseOver:
    """Timer: members had the rebalance timeout to join again."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncPhaseOver:
    """Timer: members of that generation had the rebalance timeout to ask for their assignment."""

    group_id: str
    generation_id: int


TimerEvent = SessionExpired | InitialDelayOver | JoinPhaseOver | SyncPhaseOver


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Action."""

    key: str


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """Action: the leader's assignment of that generation is on disk, and may be handed out."""

    group_id: str
    generation_id: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StaticMemberStored:
    """Action: the new id of a static member that came back is on disk. The rest is what it takes to undo the return."""

    group_id: str
    member_id: str
    generation_id: int
    old: Member
    old_leader: str | None
    can_skip_assignment: bool


StoredAction = AssignmentStored | StaticMemberStored


def session_key(group_id: str, member_id: str) -> str:
    """Ids may hold any character: the length keeps two pairs from meeting in one key."""
    return f"group-session/{len(group_id)}/{group_id}/{member_id}"


def join_key(group_id: str) -> str:
    return f"group-join/{group_id}"


def sync_key(group_id: str) -> str:
    return f"group-sync/{group_id}"
