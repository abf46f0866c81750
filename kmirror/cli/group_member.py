"""A member of a consumer group (classic protocol), with Kafka's `range` assignor and eager rebalances.

One task calls `join`, `commit` and `leave`; another runs `heartbeats`, which only watches and raises `rejoin_needed`.
What holds: an assignment is used only between `join` and `rejoin_needed`; whoever reads commits before joining again;
a member that was thrown out forgets its id and its partitions before it joins as a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio

from kmirror.cli import group_offsets, range_assignor
from kmirror.cli.coordinator import Coordinator, as_is
from kmirror.cli.display import note
from kmirror.cli.failure import Failure
from kmirror.cli.group_offsets import Committed, Identity
from kmirror.cli.patience import Patience
from kmirror.cli.session import code_name, refusal
from kmirror.errors import DecodeError
from kmirror.protocol.api.heartbeat import HeartbeatRequest
from kmirror.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from kmirror.protocol.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import consumer_protocol
from kmirror.protocol.internal.consumer_protocol import AssignedTopicPartitions, ConsumerProtocolAssignment
from kmirror.source.calls import Partition
from kmirror.source.cluster import Cluster
from kmirror.source.connection import Connection
from kmirror.source.errors import UnsupportedByPeer

ANSWER_MARGIN_MS = 5_000
"""A JoinGroup may wait for the whole rebalance timeout before it is answered."""
STATIC_JOIN_VERSION, STATIC_VERSION = 5, 3
"""From these versions on JoinGroup, and the other requests, carry a group instance id (KIP-345)."""
LEAVE_BY_LIST_VERSION = 3
TOPICS_REFRESH_S = 30.0
"""How often the leader looks whether a topic of the group has got more partitions."""
THROWN_OUT = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Kafka's consumer properties, its names and its defaults."""

    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    instance_id: str | None = None


class GroupMember:
    """See the module head."""

    def __init__(self, cluster: Cluster, group: str, topics: list[str], settings: MemberSettings | None = None) -> None:
        self.cluster = cluster
        self.coordinator = Coordinator(cluster, group)
        self.topics = topics
        self.settings = settings or MemberSettings()
        self.member_id = ""
        self.generation_id = -1
        self.rejoin_needed = True
        self.was_thrown_out = False
        """Since the last `join`: what was read and not committed is read again by somebody."""
        self._joined = trio.Event()
        self._waits_for_others = False
        """A join was begun and not ended: the coordinator answers nothing on that connection until it is."""
        self._watched_counts: dict[str, int] = {}
        """Of a leader: partitions of every topic of the group, as they were assigned."""

    @property
    def identity(self) -> Identity:
        return Identity(self.generation_id, self.member_id, self.settings.instance_id)

    # --- joining

    async def join(self) -> list[Partition]:
        """Become part of the next generation, however often that has to be tried. What this member shall read.

        Raises Failure (the group cannot be joined), PeerError, DecodeError.
        """
        self.was_thrown_out = False
        self._waits_for_others = True
        patience = Patience()
        while True:
            joined = await self._join_once()
            if joined is not None:
                assignment = await self._sync(joined)
                if assignment is not None:
                    self.rejoin_needed = self._waits_for_others = False
                    self._joined.set()
                    return assignment
            await patience.pause()

    async def _join_once(self) -> Any | None:
        """The generation's JoinGroup answer, or None to try again."""
        subscription = consumer_protocol.ConsumerProtocolSubscription(topics=self.topics)
        settings = self.settings
        request = JoinGroupRequest(
            group_id=self.coordinator.key,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=settings.instance_id,
            protocol_type=consumer_protocol.PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=range_assignor.NAME, metadata=consumer_protocol.encode_subscription(subscription)
                )
            ],
        )

        def build(connection: Connection) -> tuple[Any, int | None]:
            if settings.instance_id is not None and connection.version_of("JoinGroup") < STATIC_JOIN_VERSION:
                raise UnsupportedByPeer(f"{connection.host}:{connection.port} has no static members (Kafka 2.3)")
            return request, None

        answer = await self.coordinator.ask(build, timeout_ms=settings.rebalance_timeout_ms + ANSWER_MARGIN_MS)
        if answer.error_code == ErrorCode.NONE:
            self.member_id = answer.member_id
            self.generation_id = answer.generation_id
            return answer
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error_code in THROWN_OUT:
            self._forget()
        elif answer.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            raise self._refused("cannot be joined", answer.error_code)
        return None

    async def _sync(self, joined: Any) -> list[Partition] | None:
        """The assignment, computed here first if this member leads; None when the group moved on meanwhile."""
        assignments = await self._assign(joined) if joined.leader == joined.member_id else []
        request = SyncGroupRequest(
            group_id=self.coordinator.key,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.settings.instance_id,
            protocol_type=consumer_protocol.PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        limit_ms = self.settings.rebalance_timeout_ms + ANSWER_MARGIN_MS
        answer = await self.coordinator.ask(as_is(request), timeout_ms=limit_ms)
        if answer.error_code in THROWN_OUT:
            self._forget()
            return None
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if answer.error_code:
            raise self._refused("gives no assignment", answer.error_code)
        try:
            assignment = consumer_protocol.decode_assignment(answer.assignment)
        except DecodeError as error:
            raise Failure(
                f"the leader of group {self.coordinator.key} sent an assignment that is none: {error}"
            ) from error
        return sorted((topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions)

    async def _assign(self, joined: Any) -> list[SyncGroupRequestAssignment]:
        subscribers = []
        for member in joined.members:
            try:
                topics = consumer_protocol.decode_subscription(member.metadata).topics
            except DecodeError as error:
                raise Failure(f"member {member.member_id} sent a subscription that is none: {error}") from error
            subscribers.append(range_assignor.Subscriber(member.member_id, topics, member.group_instance_id))
        self._watched_counts = await self._partition_counts({topic for item in subscribers for topic in item.topics})
        return [
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=consumer_protocol.encode_assignment(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[
                            AssignedTopicPartitions(topic=topic, partitions=partitions)
                            for topic, partitions in topics.items()
                        ]
                    )
                ),
            )
            for member_id, topics in range_assignor.assign(subscribers, self._watched_counts).items()
        ]

    async def _partition_counts(self, topics: set[str]) -> dict[str, int]:
        response = await self.cluster.metadata(sorted(topics))
        return {topic.name: len(topic.partitions) for topic in response.topics if not topic.error_code}

    def _forget(self) -> None:
        self.member_id = ""
        self.generation_id = -1
        self.was_thrown_out = True
        self.rejoin_needed = True

    def _refused(self, what: str, code: int) -> Failure:
        steps: dict[int, str] = {
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "Its members share no assignor with this one (range) or are no "
            "consumers; see: kmirror group describe " + self.coordinator.key,
            ErrorCode.FENCED_INSTANCE_ID: f"Another member uses the instance id {self.settings.instance_id}.",
            ErrorCode.GROUP_MAX_SIZE_REACHED: "The broker allows no more members (group.max.size).",
        }
        return Failure(
            f"group {self.coordinator.key} {what}: {refusal(code, None)}",
            next_step=steps.get(code, ""),
        )

    # --- staying

    async def heartbeats(self) -> None:
        """Runs until cancelled. Raises Failure (fenced), PeerError (coordinator lost for too long), DecodeError."""
        await self._joined.wait()
        looked_at_s = trio.current_time()
        while True:
            await trio.sleep(self.settings.heartbeat_interval_ms / 1000)
            if self.rejoin_needed:
                continue
            generation_id = self.generation_id
            request = HeartbeatRequest(
                group_id=self.coordinator.key,
                generation_id=generation_id,
                member_id=self.member_id,
                group_instance_id=self.settings.instance_id,
            )
            answer = await self.coordinator.ask(as_is(request))
            if generation_id == self.generation_id:  # else the other task has joined again meanwhile
                self._heard(answer.error_code)
            if trio.current_time() - looked_at_s >= TOPICS_REFRESH_S:
                looked_at_s = trio.current_time()
                await self._watch_topics()

    def _heard(self, code: int) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin_needed = True
        elif code in THROWN_OUT:
            self._forget()
        elif code:
            raise self._refused("ended the membership", code)

    async def _watch_topics(self) -> None:
        if self._watched_counts and await self._partition_counts(set(self._watched_counts)) != self._watched_counts:
            self.rejoin_needed = True

    # --- offsets, and the end

    async def commit(self, offsets: Mapping[Partition, Committed], *, timeout_ms: int | None = None) -> bool:
        """Whether they were stored; if not, the group has moved on, which is noted. Raises Failure, PeerError."""
        if not offsets or self.generation_id < 0:
            return not offsets
        codes = await group_offsets.commit(self.coordinator, offsets, self.identity, timeout_ms=timeout_ms)
        refused = {code for code in codes.values() if code}
        if not refused:
            return True
        if refused & THROWN_OUT:
            self._forget()
        elif ErrorCode.REBALANCE_IN_PROGRESS in refused:
            self.rejoin_needed = True
        else:
            raise self._refused("does not take offsets", refused.pop())
        note(f"offsets were not committed ({code_name(refused.pop())}); records since the last commit are read again")
        return False

    async def leave(self) -> None:
        """Hand the partitions over now. A static member stays a member until its session ends: it may come back."""
        if not self.member_id or self.settings.instance_id is not None:
            return

        def build(connection: Connection) -> tuple[Any, int | None]:
            if connection.version_of("LeaveGroup") >= LEAVE_BY_LIST_VERSION:
                members = [MemberIdentity(member_id=self.member_id, reason="the consumer was stopped")]
                return LeaveGroupRequest(group_id=self.coordinator.key, members=members), None
            return LeaveGroupRequest(group_id=self.coordinator.key, member_id=self.member_id), None

        if self._waits_for_others:
            await self.coordinator.hang_up()
        await self.coordinator.ask(build)
        self._forget()
