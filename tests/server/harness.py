"""A whole broker in this process: virtual time, a file system in memory, connections over socket pairs.

No port, no thread, no disk. `Broker.connect()` gives a client that sends and receives frames by itself, so that a test
decides what is on the wire.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from kmirror import app
from kmirror.broker.durability import InlineFlush
from kmirror.protocol import frames, registry
from kmirror.protocol.api.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from kmirror.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kmirror.protocol.records import Record, build_batch
from kmirror.server.context import Peer
from kmirror.storage.memory import MemoryFileSystem

START_MS = 1_700_000_000_000
CLIENT_ID = "test"


class VirtualClock:
    """The clock port on top of Trio's clock, which the autojump fixture moves."""

    def time_ms(self) -> int:
        return START_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(trio.current_time() * 1000)


class Client:
    """One connection. Correlation ids count from 1."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = trio.socket.from_stdlib_socket(sock)
        self.sent = 0
        self._received = bytearray()

    async def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self.sock.send(view) :]

    async def send(self, api: str, version: int, message: object) -> int:
        """Send one request; its correlation id."""
        self.sent += 1
        await self.send_bytes(frames.request_frame(registry.by_name[api], version, self.sent, CLIENT_ID, message))
        return self.sent

    async def frame(self) -> bytes:
        """The next frame, without its size. Raises EOFError when the server has closed."""
        (size_bytes,) = struct.unpack(">i", await self._exactly(4))
        return await self._exactly(size_bytes)

    async def receive(self, api: str, version: int) -> tuple[int, Any]:
        return frames.parse_response(registry.by_name[api], version, await self.frame())

    async def ask(self, api: str, version: int, message: object) -> Any:
        sent = await self.send(api, version, message)
        correlation_id, answer = await self.receive(api, version)
        assert correlation_id == sent
        return answer

    async def is_closed(self, *, within_s: float = 10) -> bool:
        """Whether the server ends the connection without another byte, long before it would do so as idle."""
        with trio.move_on_after(within_s):
            try:
                await self._exactly(1)
            except EOFError:
                return True
        return False

    async def _exactly(self, size_bytes: int) -> bytes:
        while len(self._received) < size_bytes:
            try:
                data = await self.sock.recv(1 << 16)
            except OSError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            self._received += data
        taken = bytes(self._received[:size_bytes])
        del self._received[:size_bytes]
        return taken

    def close(self) -> None:
        self.sock.close()


class Broker:
    def __init__(self, running: app.App, flush: InlineFlush, filesystem: MemoryFileSystem) -> None:
        self.app = running
        self.world = running.world
        self.server = running.server
        self.flush = flush
        self.filesystem = filesystem
        self._clients: list[Client] = []

    def connect(self, host: str = "client", *, same_host: bool = False) -> Client:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        client = Client(ours)
        self._clients.append(client)
        peer = Peer(
            listener="PLAINTEXT", advertised_host="broker", advertised_port=9092, host=host, port=1, same_host=same_host
        )
        self.server.accept(theirs, peer)
        return client

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """`configs` with underscores for dots."""
        client = self.connect()
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
        )
        answer = await client.ask("CreateTopics", 7, CreateTopicsRequest(topics=[topic], timeout_ms=5000))
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        client.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def serving(
    properties: Mapping[str, str] | None = None,
    *,
    at_once: bool = True,
    filesystem: MemoryFileSystem | None = None,
) -> AsyncIterator[Broker]:
    """A broker for one test. With `at_once` false nothing is flushed before `broker.flush.run()`."""
    flush = InlineFlush(at_once=at_once)
    fs = filesystem or MemoryFileSystem()
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data", **(properties or {})}
    async with app.running(settings, clock=VirtualClock(), filesystem=fs, flush=flush) as running:
        broker = Broker(running, flush, fs)
        try:
            yield broker
        finally:
            broker.close()


class Threads:
    """In place of threads: counts what is handed over, and holds it back until the test lets it go."""

    def __init__(self, broker: Broker) -> None:
        self.count = 0
        self.gate = trio.Event()
        broker.server.in_thread = self.run  # type: ignore[method-assign]

    async def run(self, work: Callable[[], None]) -> None:
        self.count += 1
        await self.gate.wait()
        work()


def batch(*values: bytes | None, timestamp_ms: int = START_MS, **parts: Any) -> bytes:
    return build_batch([Record(None, value) for value in values], timestamp_ms=timestamp_ms, **parts)


def produce(
    records: bytes | None, *, topic: str = "t", partition: int = 0, acks: int = -1, **parts: Any
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        transactional_id=parts.pop("transactional_id", None),
        topic_data=[TopicProduceData(name=topic, partition_data=[data], **parts)],
    )


def fetch(offset: int = 0, *, topic: str = "t", partition: int = 0, **parts: Any) -> FetchRequest:
    """A sessionless Fetch of one partition; `max_wait_ms` 0, `min_bytes` 1 unless said otherwise."""
    row = FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=parts.pop("partition_max_bytes", 1 << 20)
    )
    settings = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, "session_epoch": -1, **parts}
    return FetchRequest(topics=[FetchTopic(topic=topic, partitions=[row])], **settings)
