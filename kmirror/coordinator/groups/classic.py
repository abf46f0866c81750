"""A classic group: its members, its generation, its state. Kafka: ClassicGroup. L2, pure.

What may live here: what a group *is* and the changes that touch nothing outside it. When they happen, who is answered
and what is recorded is decided in `joining`, `syncing`, `leaving` and `rebalance`.

What must hold: every protocol's count in `_supporters` is the number of members that offer it, and `_awaiting_join` are
the members with `joins`, so that a join costs the same in a large group; the leader is a member
(or None in a group without members); a static instance id names exactly one member; `pending` ids are of nobody yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final

from kmirror.coordinator.groups.member import Member
from kmirror.coordinator.groups.messages import (
    DescribedMember,
    Description,
    JoinAnswer,
    JoinedMember,
    MemberProtocol,
)
from kmirror.effects import Promise
from kmirror.errors import ApiError, DecodeError
from kmirror.limits import GROUP_SUBSCRIPTIONS_READ_BYTES
from kmirror.protocol.compile import decode
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_offsets import GroupMember, GroupMetadataValue
from kmirror.protocol.internal.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolSubscription
from kmirror.protocol.java_hash import java_hash

GENERATION_AFTER_THE_LAST: Final = 0
"""Generation ids are int32. Below 0 they mean "no member", so the one after the highest is this."""
_LAST_GENERATION: Final = 2**31 - 1
_VERSION_SIZE_BYTES: Final = 2


class State(StrEnum):
    """As DescribeGroups names them (Kafka: ClassicGroupState)."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_BEFORE: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.PREPARING}),
    State.PREPARING: frozenset({State.EMPTY, State.COMPLETING, State.STABLE}),
    State.COMPLETING: frozenset({State.PREPARING}),
    State.STABLE: frozenset({State.COMPLETING}),
}


class ClassicGroup:
    """`state_since_ms` is wall time; None when a record of an old version did not say."""

    def __init__(self, group_id: str, *, now_ms: int | None) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.previous_state = State.DEAD
        self.state_since_ms = now_ms
        self.protocol_type: str | None = None
        """None: a group that never had a member ("simple": it only keeps offsets)."""
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        """Static members: instance id to member id."""
        self.pending: set[str] = set()
        """Member ids that were handed out and have not joined yet."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.subscribed_topics: frozenset[str] | None = None
        """None: not known (another protocol type, unreadable subscriptions)."""
        self.assignment_under_way = False
        """This generation's assignment is being stored: a leader that sends another one is too late."""
        self.new_member_added = False
        """Somebody joined during the initial delay, which is a reason to wait for more."""
        self.metadata_bytes = 0
        """What all members say to all their protocols."""
        self._supporters: dict[str, int] = {}
        self._awaiting_join: set[str] = set()

    @classmethod
    def restored(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """As it was recorded: stable with those members, or empty."""
        since_ms = value.current_state_timestamp
        group = cls(group_id, now_ms=None if since_ms == -1 else since_ms)
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol
        group.generation_id = value.generation
        group.leader = value.leader
        for recorded in value.members:
            timeout_ms = recorded.rebalance_timeout
            group.add(
                Member(
                    member_id=recorded.member_id,
                    instance_id=recorded.group_instance_id,
                    client_id=recorded.client_id,
                    client_host=recorded.client_host,
                    session_timeout_ms=recorded.session_timeout,
                    rebalance_timeout_ms=recorded.session_timeout if timeout_ms == -1 else timeout_ms,
                    protocols=(MemberProtocol(value.protocol or "", bytes(recorded.subscription)),),
                    assignment=bytes(recorded.assignment),
                ),
                value.protocol_type,
            )
        if value.members:
            group.state = State.STABLE
        group.subscribed_topics = group._find_subscribed_topics()
        return group

    def recorded(self, assignments: Mapping[str, bytes], *, state_since_ms: int | None = None) -> GroupMetadataValue:
        """The value to write: this generation with these assignments."""
        since_ms = self.state_since_ms if state_since_ms is None else state_since_ms
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=-1 if since_ms is None else since_ms,
            members=[
                GroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    # -- questions -----------------------------------------------------------------------------------------------

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def can_rebalance(self) -> bool:
        return self.state in _BEFORE[State.PREPARING]

    @property
    def awaiting_count(self) -> int:
        """Members that wait for the answer of their join."""
        return len(self._awaiting_join)

    @property
    def all_joined(self) -> bool:
        return not self.pending and len(self._awaiting_join) == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether somebody with these protocols can be a member: one of them is known to all others."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(names)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self._supporters.get(name, 0) == count for name in names)

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raises ApiError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member has the instance id."""
        if instance_id is not None:
            existing = self.instances.get(instance_id)
            if existing is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if existing != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def select_protocol(self) -> str:
        """The protocol with the most votes among those that all members know.

        A tie goes to the one that comes first in a Java HashMap, as it does in Kafka.
        """
        count = len(self.members)
        candidates = {name for name, supporters in self._supporters.items() if supporters == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(in_hash_map_order(votes), key=lambda name: votes[name])

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """What the leader is told of the generation."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    def described(self) -> Description:
        is_stable = self.state is State.STABLE
        return Description(
            group_id=self.group_id,
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol_name=(self.protocol_name or "") if is_stable else "",
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(self.protocol_name) if is_stable else b"",
                    assignment=member.assignment,
                )
                for member in self.members.values()
            ),
        )

    # -- changes -------------------------------------------------------------------------------------------------

    def transition(self, state: State, now_ms: int) -> None:
        if self.state not in _BEFORE[state]:
            raise RuntimeError(f"group {self.group_id} cannot go from {self.state} to {state}")
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = now_ms

    def next_generation(self, now_ms: int) -> None:
        """The joined members become a generation that waits for its assignment; without members the group is empty."""
        self.generation_id = (
            GENERATION_AFTER_THE_LAST if self.generation_id >= _LAST_GENERATION else self.generation_id + 1
        )
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self._find_subscribed_topics()
        self.transition(State.COMPLETING if self.members else State.EMPTY, now_ms)
        self.pending_syncs.clear()
        self.assignment_under_way = False

    def add(self, member: Member, protocol_type: str) -> None:
        """The first member decides the group's protocol type, and leads."""
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        self.pending.discard(member.member_id)

    def remove(self, member_id: str) -> Member | None:
        """Forget a member, or the id of one that never joined. Who leads next is the first of the others."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.instance_id is not None:
                self.instances.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.discard(member_id)
        self.pending_syncs.discard(member_id)
        return member

    def replace_static(self, instance_id: str, new_member_id: str) -> tuple[Member, Member]:
        """(old, new): the instance came back; all but its member id stays. What the old one waits for is the caller's
        to refuse."""
        old_member_id = self.instances[instance_id]
        old = self.members.pop(old_member_id)
        new = replace(old, member_id=new_member_id, is_new=False, joins=[], syncs=[])
        self.members[new_member_id] = new
        self.instances[instance_id] = new_member_id
        if self.leader == old_member_id:
            self.leader = new_member_id
        return old, new

    def await_join(self, member: Member, answer: Promise[JoinAnswer]) -> None:
        """The answer comes with the next generation."""
        member.joins.append(answer)
        self._awaiting_join.add(member.member_id)

    def take_joins(self, member: Member) -> list[Promise[JoinAnswer]]:
        """What waits for the answer of the member's join, which it does no longer."""
        waiting, member.joins = member.joins, []
        self._awaiting_join.discard(member.member_id)
        return waiting

    def update(
        self,
        member: Member,
        *,
        protocols: tuple[MemberProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def elect_joined_leader(self) -> bool:
        """The leader has to be one who joined. False when nobody did."""
        if self.leader is None:
            return False
        if self.members[self.leader].awaits_join:
            return True
        for member in self.members.values():
            if member.awaits_join:
                self.leader = member.member_id
                return True
        return False

    def _count(self, member: Member, change: int) -> None:
        self.metadata_bytes += change * sum(len(protocol.metadata) for protocol in member.protocols)
        for name in member.protocol_names:
            count = self._supporters.get(name, 0) + change
            if count:
                self._supporters[name] = count
            else:
                self._supporters.pop(name, None)

    def _find_subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        subscriptions = [member.metadata(self.protocol_name) for member in self.members.values()]
        if sum(map(len, subscriptions)) > GROUP_SUBSCRIPTIONS_READ_BYTES:
            return None
        topics: set[str] = set()
        for subscription in subscriptions:
            subscribed = subscribed_topics(subscription)
            if subscribed is None:
                return None
            topics.update(subscribed)
        return frozenset(topics)


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """Read as version 0, which begins every version of a subscription; None when it is no such thing."""
    if int.from_bytes(metadata[:_VERSION_SIZE_BYTES], "big", signed=True) < 0:
        return None
    try:
        return decode(ConsumerProtocolSubscription, metadata, 0, offset=_VERSION_SIZE_BYTES).topics
    except DecodeError:
        return None


def in_hash_map_order(names: Iterable[str]) -> Iterator[str]:
    """The order in which a java.util.HashMap that was filled with these strings hands them out."""
    listed = list(names)
    buckets = 16
    while len(listed) > buckets * 3 // 4:
        buckets *= 2

    def bucket(name: str) -> int:
        value = java_hash(name) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return iter(sorted(listed, key=bucket))
