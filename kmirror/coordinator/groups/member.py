"""One member of a classic group (Kafka: ClassicGroupMember). L2, pure.

What must hold: a member has waiting joins only while its group prepares a rebalance (or its static return is being
stored), waiting syncs only while the generation waits for its leader's assignment. Whoever takes a member out of its
group answers what waits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from kmirror.coordinator.groups.messages import JoinAnswer, MemberProtocol, SyncAnswer
from kmirror.effects import Promise


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    """In its first join, and so without an id to send heartbeats with."""
    joins: list[Promise[JoinAnswer]] = field(default_factory=list)
    """Those who wait for the same answer: a client that asked again on another connection waits twice."""
    syncs: list[Promise[SyncAnswer]] = field(default_factory=list)

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def awaits_join(self) -> bool:
        return bool(self.joins)

    @property
    def awaits_sync(self) -> bool:
        return bool(self.syncs)

    @property
    def is_alive_without_heartbeats(self) -> bool:
        """While it waits for us it cannot send any; but a new member must not wait for ever."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(protocol.name for protocol in self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """What it said to that protocol; empty when it does not know it."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def vote(self, candidates: Collection[str]) -> str:
        """The first of its protocols that every member knows. Raises LookupError when there is none."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise LookupError(f"member {self.member_id} knows none of {sorted(candidates)}")
