"""The two brokers: connections, paired requests, and waiting until both have taken in what they were told.

Both get a request before either answer is read, so that long polls run side by side and can be timed. A broker may
answer, close the connection or stay silent; all three are outcomes to compare.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conformance.peers.processes import receive_exactly, split_address
from kmirror.errors import DecodeError
from kmirror.protocol import frames, registry
from kmirror.protocol.api.api_versions import ApiVersionsRequest
from kmirror.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.describe_groups import DescribeGroupsRequest
from kmirror.protocol.api.describe_transactions import DescribeTransactionsRequest
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterableConfig as AlterableConfig,
)
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kmirror.protocol.api.metadata import MetadataRequest
from kmirror.protocol.compile import decode

ANSWER_TIMEOUT_S = 15.0
SETTLE_TIMEOUT_S = 20.0
POLL_S = 0.003
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
BARRIER_TOPIC = "differential-barrier"
_BARRIER_CONFIG = "retention.ms"
MAIN_LANE, NAMELESS_LANE = "", "client-3"
ANSWER, CLOSED, SILENT, UNREADABLE = "answer", "closed", "silent", "unreadable"


class NotSettled(RuntimeError):
    """A broker did not reach, in time, the state that it had confirmed."""


@dataclass(slots=True)
class Outcome:
    """What one broker did with a request. `message` only for ANSWER; `seconds` until the first byte came."""

    kind: str
    message: Any = None
    frame: bytes = b""
    seconds: float = 0.0
    detail: str = ""


@dataclass(slots=True)
class Side:
    """One broker. `index` 0 is left, the reference; 1 is right, the broker under test."""

    index: int
    name: str
    address: str
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    node_id: int = 1
    default_partitions: int = 1
    _sockets: dict[str, socket.socket] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    _correlation_id: int = 0
    _barriers: int = 1_000_000_000

    def open(self) -> None:
        """Learns the served versions and the node id, and makes the topic that barriers change."""
        answer = self.ask(ApiVersionsRequest(), 0)
        self.ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        metadata = self.ask(MetadataRequest(topics=[]), 4)
        self.node_id = metadata.brokers[0].node_id
        asked = DescribeConfigsResource(resource_type=BROKER_RESOURCE, resource_name=str(self.node_id),
                                        configuration_keys=["num.partitions"])  # fmt: skip
        described = self.ask(DescribeConfigsRequest(resources=[asked]), 1).results[0]
        self.default_partitions = int(described.configs[0].value)
        if BARRIER_TOPIC not in self.topics():
            topic = CreatableTopic(name=BARRIER_TOPIC, num_partitions=1, replication_factor=1)
            self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 4)
        self.wait("the barrier topic", lambda: BARRIER_TOPIC in self.topics())
        self.wait("coordinators", lambda: all(self._coordinates(kind) for kind in (0, 1)))
        self.wait("producer ids", self._hands_out_producer_ids)

    def _coordinates(self, key_type: int) -> bool:
        """The first question of this kind makes Kafka create an internal topic."""
        return bool(self.ask(FindCoordinatorRequest(key="g", key_type=key_type), 1).error_code == 0)

    def _hands_out_producer_ids(self) -> bool:
        return bool(self.ask(InitProducerIdRequest(transactional_id=None), 1).error_code == 0)

    def close(self, lane: str | None = None) -> None:
        """Closes one connection, or all of them."""
        for name in [lane] if lane is not None else list(self._sockets):
            if name in self._sockets:
                self._sockets.pop(name).close()

    # -- one request ---------------------------------------------------------------------------------------------

    def send(self, message: object, version: int, lane: str = MAIN_LANE) -> None:
        """Sends on the connection of that name, whose client id follows from it; opened at first use."""
        if lane not in self._sockets:
            opened = socket.create_connection(split_address(self.address), timeout=ANSWER_TIMEOUT_S)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[lane] = opened
        self._correlation_id += 1
        self._asked[lane] = self._correlation_id
        api = registry.api_of(message)
        frame = frames.request_frame(api, version, self._correlation_id, client_id(lane), message)
        self._sockets[lane].sendall(frame)

    def read(self, message: object, version: int, lane: str = MAIN_LANE) -> Outcome:
        """The answer to the request sent last on that connection, whose first byte is there."""
        api = registry.api_of(message)
        try:
            (size_bytes,) = struct.unpack(">i", receive_exactly(self._sockets[lane], 4))
            frame = receive_exactly(self._sockets[lane], size_bytes)
        except (ConnectionError, TimeoutError) as error:
            self.close(lane)
            return Outcome(CLOSED, detail=str(error))
        try:
            (correlation_id,) = struct.unpack_from(">i", frame)
            if correlation_id != self._asked[lane]:
                raise DecodeError(f"correlation id {correlation_id}, not {self._asked[lane]}")
            offset = 4 + (1 if registry.response_header_version(api, version) else 0)
            return Outcome(ANSWER, decode(api.response, frame, version, offset=offset, exact=True), frame)
        except (DecodeError, struct.error) as error:
            self.close(lane)
            return Outcome(UNREADABLE, frame=frame, detail=str(error))

    def answering(self, lane: str, timeout_s: float) -> bool:
        """Is there the first byte of an answer, or the end, on that connection within that time?"""
        ready, _, _ = select.select([self._sockets[lane]], [], [], timeout_s)
        return bool(ready)

    def socket(self, lane: str = MAIN_LANE) -> socket.socket:
        return self._sockets[lane]

    def ask(self, message: object, version: int) -> Any:
        """One request outside the comparison; its answer. NotSettled when there is none."""
        self.send(message, version)
        outcome = self.read(message, version)
        if outcome.kind != ANSWER:
            raise NotSettled(f"{self.name}: {type(message).__name__} v{version}: {outcome.kind} {outcome.detail}")
        return outcome.message

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Polls `ready`. NotSettled names `what` when it never is."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not ready():
            if time.monotonic() > deadline:
                raise NotSettled(f"{self.name}: no {what} after {SETTLE_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def topics(self) -> dict[str, tuple[bytes, int]]:
        """Topic id and number of partitions of every topic there is."""
        rows = self.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), 10).topics
        return {row.name: (bytes(row.topic_id), len(row.partitions)) for row in rows if row.error_code == 0}

    def latest(self, topic: str, partition: int) -> int:
        """Its log end for readers; -1 minus the error code when there is one."""
        return self._offset(topic, partition, -1)

    def earliest(self, topic: str, partition: int) -> int:
        """Its log start; as `latest`."""
        return self._offset(topic, partition, -2)

    def stable(self, topic: str, partition: int) -> int:
        """Its last stable offset; as `latest`."""
        return self._offset(topic, partition, -1, isolation_level=1)

    def _offset(self, topic: str, partition: int, timestamp: int, *, isolation_level: int = 0) -> int:
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = [ListOffsetsTopic(name=topic, partitions=[asked])]
        request = ListOffsetsRequest(replica_id=-1, topics=topics, isolation_level=isolation_level)
        row = self.ask(request, 4).topics[0].partitions[0]
        return -1 - row.error_code if row.error_code else int(row.offset)

    def group(self, name: str) -> Any:
        """The row of DescribeGroups: `group_state` (Dead when there is none) and `members`."""
        return self.ask(DescribeGroupsRequest(groups=[name]), 4).groups[0]

    def transaction_state(self, transactional_id: str) -> str:
        """As DescribeTransactions says it; empty when nobody has used that id."""
        row = self.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states[0]
        return str(row.transaction_state)

    def barrier(self) -> None:
        """Returns when everything that was confirmed before is in force.

        A Kafka broker takes in committed metadata a moment after the controller has confirmed it, one batch after the
        other. The first change being visible means that all earlier ones are at least in the batch at hand; the second
        being visible means that this batch is done.
        """
        for _ in range(2):
            self._barriers += 1
            value = str(self._barriers)
            change = IncrementalAlterConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=BARRIER_TOPIC,
                configs=[AlterableConfig(name=_BARRIER_CONFIG, config_operation=0, value=value)],
            )
            self.ask(IncrementalAlterConfigsRequest(resources=[change]), 0)
            self.wait("barrier", lambda value=value: self._barrier_value() == value)  # type: ignore[misc]

    def _barrier_value(self) -> str | None:
        asked = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=BARRIER_TOPIC, configuration_keys=[_BARRIER_CONFIG]
        )
        configs = self.ask(DescribeConfigsRequest(resources=[asked]), 1).results[0].configs
        return configs[0].value if configs else None


def client_id(lane: str) -> str:
    """Members of groups are known by it; one of them has none."""
    return {MAIN_LANE: "differential", NAMELESS_LANE: ""}.get(lane, lane)


def exchange(
    sides: tuple[Side, Side], messages: tuple[object, object], version: int, *, answered: bool, timeout_s: float,
    lane: str = MAIN_LANE,
) -> tuple[Outcome, Outcome]:  # fmt: skip
    """The same request to both; what each did. `answered` false for Produce with acks=0, where silence is right."""
    for side, message in zip(sides, messages, strict=True):
        side.send(message, version, lane)
    if not answered:
        return Outcome(SILENT), Outcome(SILENT)
    started = time.monotonic()
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(sides):
        waiting = [side for side in sides if side.index not in outcomes]
        left_s = started + timeout_s - time.monotonic()
        ready, _, _ = select.select([side.socket(lane) for side in waiting], [], [], max(0.0, left_s))
        seconds = time.monotonic() - started
        for side in waiting:
            if side.socket(lane) in ready:
                outcomes[side.index] = side.read(messages[side.index], version, lane)
                outcomes[side.index].seconds = seconds
            elif not ready:
                side.close(lane)
                outcomes[side.index] = Outcome(SILENT, seconds=seconds)
    return outcomes[0], outcomes[1]
