"""What is asked of a classic group and what it answers, without versions: handlers translate both ways.

Every request carries bytes of its own, never views of a frame, since members outlive the frames they came in.
`error_code` is a value of `kmirror.protocol.errors.ErrorCode`. L2, pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

NO_GENERATION: Final = -1
NO_MEMBER: Final = ""


class MemberProtocol(NamedTuple):
    """One assignor that a member offers, with what it has to say to it. In order of preference."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: str
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    needs_member_id: bool = True
    """From JoinGroup 4 on: a new dynamic member is told its id first and joins with it (KIP-394)."""
    can_skip_assignment: bool = True
    """From JoinGroup 9 on: a static leader that comes back is told not to assign again (KIP-814)."""
    reason: str | None = None

    @property
    def metadata_bytes(self) -> int:
        return sum(len(protocol.metadata) for protocol in self.protocols)


class JoinedMember(NamedTuple):
    """A member as the leader sees it; `metadata` is for the protocol that was chosen."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    error_code: int = 0
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    member_id: str = NO_MEMBER
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    """Both are named from SyncGroup 5 on only."""
    assignments: Mapping[str, bytes]
    """By member id; of the leader only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Leaving(NamedTuple):
    """Who leaves: a member id, or only an instance id (an operator removes a static member)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    group_id: str
    members: tuple[Leaving, ...]


class Left(NamedTuple):
    member_id: str
    instance_id: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAnswer:
    error_code: int = 0
    members: tuple[Left, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """Empty while the group is not stable."""
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A group as DescribeGroups and ListGroups show it; `state` Dead and no members for one that does not exist."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()
    exists: bool = True
