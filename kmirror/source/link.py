"""The link of one mirror: carries messages between the source's brokers and `Mirrors`, and decides nothing.

Tasks of one link: one for metadata and topic configs, one for the offsets of groups, one that hands out questions, one
per group of questions to a broker, and one fetch task per source broker. Questions, groups and fetches use connections
of their own, so a long poll never delays them.

What holds:
- Whatever the source answers is handed to `Mirrors` as it is, error codes included; so are failures to reach it.
- A fetch answer is examined (headers only), the next Fetch goes out, then the answer is applied: the source works while
  we do. The answer's bytes are views of the connection's one buffer and are applied before the next answer is read.
- Memory: one buffer of about `fetch.response.max.bytes` per source broker, whatever the source sends.
- Everything ends by cancellation. A peer's misbehaviour ends a connection, never the link.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

import trio

from kmirror.broker.mirror_seam import (
    Answer,
    ErrorAnswer,
    Examined,
    FetchAnswer,
    FetchItem,
    LinkConfig,
    Query,
    SourceMetadata,
    SourcePartition,
    SourceTopic,
)
from kmirror.errors import ConfigError, DecodeError
from kmirror.limits import MAX_CONFIG_TOPICS_PER_REQUEST
from kmirror.source import calls
from kmirror.source.backoff import Backoff
from kmirror.source.cluster import ClientSettings, Cluster
from kmirror.source.connection import Connection
from kmirror.source.errors import PeerError
from kmirror.source.fetch_session import LAST_WITH_NAMES, FetchSession, has_ids
from kmirror.source.group_task import GroupPort, keep_groups
from kmirror.source.questions import ask
from kmirror.source.wakeup import Wakeup

log = logging.getLogger(__name__)

PLAINTEXT = "PLAINTEXT"
CONTROL = "control"
FETCH = "fetch"
_EARLY_REFRESH_INITIAL_MS = 100
_EARLY_REFRESH_MAX_MS = 1_000
"""Metadata asked for out of turn: Kafka's retry.backoff.ms and retry.backoff.max.ms."""
_PEER_BACKOFF_MAX_MS = 30_000
"""A broker that accepts connections and then fails every Fetch is asked again at most this rarely."""
_PAUSE_MS = 50
"""After an answer that brought news but no bytes (errors come without a long poll): whatever the plan, never spin."""
_MAX_SESSIONS = 3
"""New fetch sessions in a row that a broker may refuse before its connection is given up."""
_YIELD_AFTER_BYTES = 1024 * 1024
"""Applied in a row before other tasks get their turn."""


class MirrorPort(Protocol):
    """The part of `kmirror.broker.mirroring.Mirrors` that a link uses."""

    @property
    def group_sync(self) -> GroupPort: ...
    def metadata_topics(self, mirror: str) -> Sequence[str] | None: ...
    def metadata_requested(self, mirror: str) -> bool: ...
    def config_topics(self, mirror: str) -> Sequence[str]: ...
    def source_metadata(self, mirror: str, metadata: SourceMetadata) -> None: ...
    def source_unreachable(self, mirror: str, broker_id: int | None, reason: str) -> None: ...
    def source_configs(self, mirror: str, configs: dict[str, dict[str, str | None]]) -> None: ...
    def source_configs_refused(self, mirror: str, refusals: dict[str, int]) -> None: ...
    def queries(self, mirror: str) -> Sequence[Query]: ...
    def answered(self, query: Query, answer: Answer) -> None: ...
    def plan_fetch(self, mirror: str, broker_id: int, *, after: Sequence[Examined] = ()) -> Sequence[FetchItem]: ...
    def examine(self, mirror: str, item: FetchItem, answer: FetchAnswer) -> Examined: ...
    def apply(self, examined: Examined) -> None: ...


class Link:
    """Made for one `LinkConfig`; a changed configuration gets a new link."""

    def __init__(self, mirrors: MirrorPort, config: LinkConfig, settings: ClientSettings, *, rng: Random) -> None:
        """Raises ConfigError: a bad address, or a security protocol that the client side does not speak."""
        protocol = config.client_properties.get("security.protocol", PLAINTEXT)
        if protocol.upper() != PLAINTEXT and settings.security is None:
            raise ConfigError(
                f"security.protocol={protocol} of mirror {config.mirror} is not supported for sources yet: "
                f"name a {PLAINTEXT} listener of the source in bootstrap.servers"
            )
        self.config = config
        self.wakeup = Wakeup()
        self.cluster = Cluster(
            [part for part in config.bootstrap_servers.split(",") if part.strip()],
            replace(
                settings,
                request_timeout_ms=config.request_timeout_ms,
                connection_setup_timeout_ms=config.connection_setup_timeout_ms,
                connection_setup_timeout_max_ms=config.connection_setup_timeout_max_ms,
                connections_max_idle_ms=config.connections_max_idle_ms,
                rng=rng,
            ),
        )
        self._mirrors = mirrors
        self._name = config.mirror
        self._rng = rng
        self._asked: set[int] = set()
        self._fetching: set[int] = set()
        self._down: set[int | None] = set()
        self._refresh_at_s = 0.0
        self._early_at_s = 0.0
        self._early = Backoff(initial_ms=_EARLY_REFRESH_INITIAL_MS, max_ms=_EARLY_REFRESH_MAX_MS, rng=rng)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_metadata)
                nursery.start_soon(self._keep_groups)
                while True:
                    seen = self.wakeup.serial
                    self._hand_out(nursery)
                    self._start_fetching(nursery)
                    await self.wakeup.wait(seen)
        finally:
            self.cluster.close()

    # --- metadata

    async def _keep_metadata(self) -> None:
        """A task of its own: a bootstrap address that swallows packets must not delay questions to living brokers."""
        self._refresh_at_s = trio.current_time()
        while True:
            seen = self.wakeup.serial
            now_s = trio.current_time()
            if now_s >= self._refresh_at_s:
                self._refresh_at_s = now_s + self.config.refresh_interval_ms / 1000
                if await self._refresh():
                    await self._sync_configs()
                self.cluster.close_idle()
            elif now_s >= self._early_at_s and self._mirrors.metadata_requested(self._name):
                self._early_at_s = now_s + self._early.failed() / 1000
                await self._refresh()
            elif now_s >= self._early_at_s + _EARLY_REFRESH_MAX_MS / 1000:
                self._early.succeeded()
            wake_at_s = self._refresh_at_s
            if self._mirrors.metadata_requested(self._name):
                wake_at_s = min(wake_at_s, self._early_at_s)
            await self.wakeup.wait(seen, timeout_s=wake_at_s - trio.current_time())

    async def _refresh(self) -> bool:
        """Ask for metadata once and hand it over; False when the source could not be asked."""
        topics = self._mirrors.metadata_topics(self._name)
        try:
            response = await self.cluster.metadata(topics, purpose=CONTROL)
            connection = await self.cluster.connection(purpose=CONTROL)
        except (PeerError, DecodeError) as error:
            self._unreachable(None, str(error))
            self._refresh_at_s = trio.current_time()  # again at once: the addresses have their own back-off
            return False
        self._reached(None)
        capable = calls.speaks_mirror_apis(connection)
        metadata = _source_metadata(response, topics, cluster_id=response.cluster_id, capable=capable)
        self._mirrors.source_metadata(self._name, metadata)
        self.wakeup.wake()
        return True

    def _unreachable(self, broker_id: int | None, reason: str) -> None:
        """Told to `Mirrors` every time, and to the log once until it is reached again."""
        if broker_id not in self._down:
            self._down.add(broker_id)
            whom = "the source" if broker_id is None else f"source broker {broker_id}"
            log.warning("mirror %s: %s cannot be reached: %s", self._name, whom, reason)
        self._mirrors.source_unreachable(self._name, broker_id, reason)

    def _reached(self, broker_id: int | None) -> None:
        if broker_id in self._down:
            self._down.discard(broker_id)
            whom = "the source" if broker_id is None else f"source broker {broker_id}"
            log.info("mirror %s: %s is reached again", self._name, whom)

    async def _sync_configs(self) -> None:
        topics = self._mirrors.config_topics(self._name)
        found: dict[str, dict[str, str | None]] = {}
        refusals: dict[str, int] = {}
        try:
            for at in range(0, len(topics), MAX_CONFIG_TOPICS_PER_REQUEST):
                part = topics[at : at + MAX_CONFIG_TOPICS_PER_REQUEST]
                connection = await self.cluster.connection(purpose=CONTROL)
                response = await connection.request(calls.describe_topic_configs_request(part))
                for name, configs in calls.topic_configs(response).items():
                    if configs.error_code:
                        refusals[name] = configs.error_code
                        continue
                    found[name] = {
                        key: entry.value for key, entry in configs.entries.items() if entry.is_dynamic_topic_config
                    }
        except (PeerError, DecodeError) as error:
            log.warning("mirror %s: topic configs could not be read: %s", self._name, error)
        if found:
            self._mirrors.source_configs(self._name, found)
        if refusals:
            self._mirrors.source_configs_refused(self._name, refusals)

    async def _keep_groups(self) -> None:
        await keep_groups(
            self._mirrors.group_sync,
            self._name,
            self.cluster,
            self.wakeup,
            refresh_interval_ms=self.config.refresh_interval_ms,
        )

    # --- questions

    def _hand_out(self, nursery: trio.Nursery) -> None:
        if not self.cluster.nodes:  # the first metadata is on its way, and with it the brokers' addresses
            return
        groups: dict[int, list[Query]] = {}
        for query in self._mirrors.queries(self._name):
            if query.id not in self._asked:
                self._asked.add(query.id)
                groups.setdefault(query.leader, []).append(query)
        for leader, queries in groups.items():
            nursery.start_soon(self._ask, leader, queries)

    async def _ask(self, leader: int, queries: list[Query]) -> None:
        try:
            connection = await self.cluster.connection(leader, purpose=CONTROL)
            await ask(connection, queries, self._answered)
        except (PeerError, DecodeError) as error:
            failure = ErrorAnswer(transport=True, message=str(error))
            for query in queries:
                self._answered(query, failure)
        self.wakeup.wake()

    def _answered(self, query: Query, answer: Answer) -> None:
        if query.id in self._asked:
            self._asked.discard(query.id)
            self._mirrors.answered(query, answer)

    # --- fetching

    def _start_fetching(self, nursery: trio.Nursery) -> None:
        for broker_id in self.cluster.nodes:
            if broker_id not in self._fetching:
                self._fetching.add(broker_id)
                nursery.start_soon(self._fetch_from, broker_id)

    async def _fetch_from(self, broker_id: int) -> None:
        """As long as the broker is part of the cluster."""
        backoff = Backoff(initial_ms=self.config.fetch_backoff_ms, max_ms=_PEER_BACKOFF_MAX_MS, rng=self._rng)
        try:
            while broker_id in self.cluster.nodes:
                seen = self.wakeup.serial
                items = self._mirrors.plan_fetch(self._name, broker_id)
                if not items:
                    await self.wakeup.wait(seen)
                    continue
                connection: Connection | None = None
                try:
                    connection = await self.cluster.connection(broker_id, purpose=FETCH, reuse_buffer=True)
                    await self._fetch_on(connection, broker_id, backoff)
                except (PeerError, DecodeError) as error:
                    if connection is not None:
                        connection.close()
                    self._unreachable(broker_id, str(error))
                    await trio.sleep(backoff.failed() / 1000)
        finally:
            self._fetching.discard(broker_id)

    async def _fetch_on(self, connection: Connection, broker_id: int, backoff: Backoff) -> None:
        """Until there is nothing to fetch from this broker, or the connection fails."""
        session = FetchSession()
        timeout_ms = self.config.socket_timeout_ms + self.config.fetch_wait_max_ms
        refusals = 0
        items = self._mirrors.plan_fetch(self._name, broker_id)
        while items:
            ticket = await self._send(connection, session, items)
            while ticket is not None:
                response = await connection.receive(ticket, timeout_ms=timeout_ms)
                refusals = refusals + 1 if response.error_code else 0
                if response.error_code and (refusals > _MAX_SESSIONS or not session.renewable(response.error_code)):
                    raise PeerError(f"broker {broker_id} refused the whole Fetch with error {response.error_code}")
                backoff.succeeded()
                self._reached(broker_id)
                self.cluster.learn_nodes(response.node_endpoints)
                examined = [
                    self._mirrors.examine(self._name, item, _fetch_answer(data))
                    for item, data in session.take(response)
                ]
                if examined and not any(one.accepted for one in examined):
                    await self._apply(examined)  # the plan depends on what becomes of the errors
                    examined = []
                    await trio.sleep(_PAUSE_MS / 1000)
                items = self._mirrors.plan_fetch(self._name, broker_id, after=examined)
                ticket = await self._send(connection, session, items) if items else None
                await self._apply(examined)
            items = self._mirrors.plan_fetch(self._name, broker_id)

    async def _send(self, connection: Connection, session: FetchSession, items: Sequence[FetchItem]) -> Any:
        version = connection.version_of("Fetch", None if has_ids(items) else LAST_WITH_NAMES)
        request = session.request(items, version)
        request.max_wait_ms = 0 if session.has_newcomers else self.config.fetch_wait_max_ms
        request.min_bytes = self.config.fetch_min_bytes
        request.max_bytes = self.config.fetch_response_max_bytes
        request.isolation_level = calls.READ_UNCOMMITTED
        return await connection.send(request, version)

    async def _apply(self, examined: Sequence[Examined]) -> None:
        """Everything that was examined, before the connection's buffer is filled anew."""
        size_bytes = 0
        for one in examined:
            self._mirrors.apply(one)
            size_bytes += one.size_bytes
            if size_bytes >= _YIELD_AFTER_BYTES:
                size_bytes = 0
                await trio.lowlevel.checkpoint()


def _fetch_answer(data: Any) -> FetchAnswer:
    return FetchAnswer(
        error_code=data.error_code,
        high_watermark=data.high_watermark,
        log_start_offset=data.log_start_offset,
        records=data.records if data.records is not None else b"",
        current_leader_id=data.current_leader.leader_id,
        current_leader_epoch=data.current_leader.leader_epoch,
    )


def _source_metadata(
    response: Any, asked: Sequence[str] | None, *, cluster_id: str | None, capable: bool
) -> SourceMetadata:
    topics = {
        topic.name: SourceTopic(
            topic_id=topic.topic_id,
            error_code=topic.error_code,
            internal=topic.is_internal,
            partitions={
                partition.partition_index: SourcePartition(
                    leader=partition.leader_id,
                    leader_epoch=partition.leader_epoch,
                    error_code=partition.error_code,
                )
                for partition in topic.partitions
            },
        )
        for topic in response.topics
        if topic.name is not None
    }
    return SourceMetadata(
        cluster_id=cluster_id,
        brokers={broker.node_id: (broker.host, broker.port) for broker in response.brokers},
        topics=topics,
        capable=capable,
        complete=asked is None,
    )
