"""The simplest thing that a link can carry for: copies the bytes of named partitions, keeps every call.

It follows the contract of `kmirror.broker.mirror_seam` (leases, examine before apply) without any of the real machine's
decisions, so that a link's tests see the link alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kmirror.broker.mirror_seam import (
    Answer,
    Examined,
    FetchAnswer,
    FetchItem,
    Lease,
    LinkConfig,
    Query,
    SourceMetadata,
)
from kmirror.effects import Place
from kmirror.mirror.group_sync import GroupOffset, ListedGroup
from kmirror.protocol.records import walk

Key = tuple[str, int]


def link_config(bootstrap: Sequence[str], **changes: Any) -> LinkConfig:
    values: dict[str, Any] = {
        "mirror": "m",
        "generation": 1,
        "bootstrap_servers": ",".join(bootstrap),
        "source_cluster_id": "source-cluster",
        "client_properties": {},
        "fetch_wait_max_ms": 1_000,
        "fetch_min_bytes": 1,
        "fetch_max_bytes": 1_048_576,
        "fetch_response_max_bytes": 10_485_760,
        "fetch_backoff_ms": 1_000,
        "request_timeout_ms": 30_000,
        "socket_timeout_ms": 30_000,
        "socket_receive_buffer_bytes": 65_536,
        "connection_setup_timeout_ms": 10_000,
        "connection_setup_timeout_max_ms": 30_000,
        "connections_max_idle_ms": 600_000,
        "refresh_interval_ms": 60_000,
    }
    return LinkConfig(**{**values, **changes})


@dataclass
class Copy:
    data: bytearray = field(default_factory=bytearray)
    next_offset: int = 0
    planned_offset: int = 0
    leader: int = -1
    leader_epoch: int = -1
    errors: list[int] = field(default_factory=list)
    active: bool = True


class NoGroups:
    """The groups' port of a mirror that takes none over."""

    def topics(self, mirror: str) -> list[str]:
        return []

    def requested(self, mirror: str) -> bool:
        return False

    def begun(self, mirror: str) -> None:
        raise AssertionError("there is nothing to look for")

    def wanted(self, mirror: str, listed: Iterable[ListedGroup]) -> list[str]:
        raise AssertionError("there is nothing to look for")

    def take(self, mirror: str, group_id: str, offsets: Mapping[Place, GroupOffset]) -> None:
        raise AssertionError("there is nothing to look for")


class CopyingMirrors:
    def __init__(self, *keys: Key, configs: dict[str, LinkConfig] | None = None) -> None:
        self.copies = {key: Copy() for key in keys}
        self.group_sync = NoGroups()
        self.metadata: list[SourceMetadata] = []
        self.unreachable: list[tuple[int | None, str]] = []
        self.configs: list[dict[str, dict[str, str | None]]] = []
        self.refusals: list[dict[str, int]] = []
        self.asked: list[Query] = []
        self.answers: dict[int, Answer] = {}
        self.requested = False
        self.all_topics = False
        self.examined_while_unapplied = 0
        self.max_unapplied = 0
        self.wake: Callable[[str], None] | None = None
        self.link_configs = configs if configs is not None else {}
        self.ticks: list[int] = []
        self.next_tick_ms: int | None = None
        self._ids: dict[str, bytes] = {}

    # --- supervisor's side

    def links(self) -> dict[str, LinkConfig]:
        return self.link_configs

    def set_waker(self, callback: Callable[[str], None]) -> None:
        self.wake = callback

    def due(self, now_ms: int) -> int | None:
        return None if self.next_tick_ms is None else max(0, self.next_tick_ms - now_ms)

    def tick(self, now_ms: int) -> None:
        self.ticks.append(now_ms)
        self.next_tick_ms = None

    # --- link's side

    def metadata_topics(self, mirror: str) -> list[str] | None:
        return None if self.all_topics else sorted({topic for topic, _ in self.copies})

    def metadata_requested(self, mirror: str) -> bool:
        return self.requested

    def config_topics(self, mirror: str) -> list[str]:
        return sorted({topic for topic, _ in self.copies})

    def source_metadata(self, mirror: str, metadata: SourceMetadata) -> None:
        self.metadata.append(metadata)
        self.requested = False
        for (topic, index), copy in self.copies.items():
            found = metadata.topics.get(topic)
            if found is not None and index in found.partitions:
                self._ids[topic] = found.topic_id
                part = found.partitions[index]
                copy.leader, copy.leader_epoch = part.leader, part.leader_epoch

    def source_unreachable(self, mirror: str, broker_id: int | None, reason: str) -> None:
        self.unreachable.append((broker_id, reason))

    def source_configs(self, mirror: str, configs: dict[str, dict[str, str | None]]) -> None:
        self.configs.append(configs)

    def source_configs_refused(self, mirror: str, refusals: dict[str, int]) -> None:
        self.refusals.append(refusals)

    def queries(self, mirror: str) -> Sequence[Query]:
        return [query for query in self.asked if query.id not in self.answers]

    def answered(self, query: Query, answer: Answer) -> None:
        assert query.id not in self.answers
        self.answers[query.id] = answer

    def plan_fetch(self, mirror: str, broker_id: int, *, after: Sequence[Examined] = ()) -> list[FetchItem]:
        ahead = {(one.item.topic, one.item.partition): one.next_offset for one in after if one.accepted}
        return [
            FetchItem(
                mirror=mirror,
                topic=topic,
                topic_id=self._ids[topic],
                partition=index,
                broker_id=broker_id,
                fetch_offset=ahead.get((topic, index), copy.next_offset),
                source_leader_epoch=copy.leader_epoch,
                log_start_offset=-1,
                max_bytes=1_048_576,
                lease=Lease(machine=copy, number=0, generation=0, offset=0),
            )
            for (topic, index), copy in self.copies.items()
            if copy.leader == broker_id and copy.active
        ]

    def examine(self, mirror: str, item: FetchItem, answer: FetchAnswer) -> Examined:
        copy = self.copies[item.topic, item.partition]
        size = 0
        offset = item.fetch_offset
        if answer.error_code:
            copy.errors.append(answer.error_code)
            if answer.current_leader_id >= 0:
                copy.leader, copy.leader_epoch = answer.current_leader_id, answer.current_leader_epoch
            else:
                copy.leader = -1
                self.requested = True
            if self.wake is not None:
                self.wake(mirror)
        else:
            for at, header in walk(answer.records):
                size = at + header.size_bytes
                offset = header.next_offset
        if size:
            self.examined_while_unapplied += 1
            self.max_unapplied = max(self.max_unapplied, self.examined_while_unapplied)
        return Examined(item=item, answer=answer, accepted=size > 0, next_offset=offset, size_bytes=size)

    def apply(self, examined: Examined) -> None:
        if not examined.accepted:
            return
        copy = self.copies[examined.item.topic, examined.item.partition]
        self.examined_while_unapplied -= 1
        assert copy.next_offset == examined.item.fetch_offset
        copy.data += examined.answer.records[: examined.size_bytes]
        copy.next_offset = examined.next_offset
