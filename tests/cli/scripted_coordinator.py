"""A cluster whose answers are written down: the part of `Cluster` and `Connection` that coordinators' clients use.

A test gives one function per request class; each request is recorded with the version it would have gone out in. The
clock is Trio's, so with an autojump clock nothing here takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kmirror.protocol import registry
from kmirror.protocol.api.find_coordinator import Coordinator as Found
from kmirror.protocol.api.find_coordinator import FindCoordinatorResponse
from kmirror.protocol.api.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kmirror.source.calls import ListedOffset, Partition
from kmirror.source.cluster import ClientSettings, Node
from kmirror.source.connection import Feature, Peer
from kmirror.source.errors import PeerUnreachable

Answer = Callable[[Any], Any]


@dataclass
class ScriptedConnection:
    cluster: ScriptedCoordinators
    node_id: int | None
    closed: bool = False
    host: str = "scripted"
    port: int = 1

    @property
    def peer(self) -> Peer:
        return self.cluster.peer

    def version_of(self, name: str, highest: int | None = None) -> int:
        top = min(registry.by_name[name].max_version, self.cluster.versions.get(name, 99))
        return top if highest is None else min(top, highest)

    async def request(self, message: Any, version: int | None = None, *, timeout_ms: int | None = None) -> Any:
        name = type(message).__name__.removesuffix("Request")
        self.cluster.asked.append(Asked(name, message, self.version_of(name) if version is None else version, self))
        answer = self.cluster.answers[name](message)
        if isinstance(answer, BaseException):
            self.closed = True
            raise answer
        return answer if not callable(answer) else await answer()

    def close(self) -> None:
        self.closed = True


@dataclass
class Asked:
    name: str
    message: Any
    version: int
    connection: ScriptedConnection


@dataclass
class ScriptedCoordinators:
    """`answers`: by API name, a function of the request; an exception it returns is raised. One per node."""

    answers: dict[str, Answer]
    versions: dict[str, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    """Partition counts."""
    coordinator_ids: list[int] = field(default_factory=lambda: [1])
    """Who is named: the first one, then the next at each further question; the last stays."""
    transaction_version: int = 0
    unreachable: bool = False
    nodes: dict[int, Node] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    settings: ClientSettings = field(default_factory=ClientSettings)
    _connections: dict[tuple[int | None, str], ScriptedConnection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answers.setdefault("FindCoordinator", self._find)
        level = self.transaction_version
        self.peer = Peer(features={"transaction.version": Feature("transaction.version", 0, 2, level)})

    def _find(self, request: Any) -> FindCoordinatorResponse:
        node_id = self.coordinator_ids.pop(0) if len(self.coordinator_ids) > 1 else self.coordinator_ids[0]
        found = Found(key="", node_id=node_id, host="scripted", port=node_id)
        return FindCoordinatorResponse(coordinators=[found], node_id=node_id, host="scripted", port=node_id)

    def names(self, *wanted: str) -> list[str]:
        """The APIs that were asked, in order; `wanted` narrows it."""
        return [asked.name for asked in self.asked if not wanted or asked.name in wanted]

    def messages(self, name: str) -> list[Any]:
        return [asked.message for asked in self.asked if asked.name == name]

    async def connection(self, node_id: int | None = None, *, purpose: str = "") -> ScriptedConnection:
        if self.unreachable:
            raise PeerUnreachable("nobody is there")
        found = self._connections.get((node_id, purpose))
        if found is None or found.closed:
            found = self._connections[node_id, purpose] = ScriptedConnection(self, node_id)
        return found

    async def metadata(self, names: Sequence[str] | None) -> MetadataResponse:
        self.asked.append(Asked("Metadata", names, 0, ScriptedConnection(self, None)))
        return MetadataResponse(
            topics=[
                MetadataResponseTopic(
                    name=name,
                    error_code=0 if name in self.topics else 3,
                    partitions=[
                        MetadataResponsePartition(partition_index=at) for at in range(self.topics.get(name, 0))
                    ],
                )
                for name in names or ()
            ]
        )

    async def list_offsets(self, asked: dict[Partition, int]) -> dict[Partition, ListedOffset]:
        return {key: ListedOffset(offset=0) for key in asked}

    async def leader_of(self, topic: str, partition: int, *, refresh: bool = False) -> int:
        return 1

    def topic_id(self, topic: str) -> bytes:
        return bytes(15) + b"\1"


def in_turn(*answers: Any) -> Answer:
    """One after the other; the last one stays."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]
