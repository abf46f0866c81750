"""A recording proxy between a client and a broker: every frame, both ways, kept as sent.

Used to take golden frames from clients that are not ours. It listens on one port and forwards to one broker, which
must advertise the proxy's address on the listener it is reached by (`KafkaBroker(proxied_port=…)`), or clients would
go round it. Frames are split by their size prefix; a response belongs to the oldest unanswered request of its
connection (Kafka answers in order; a Produce with acks=0 has no answer, told apart by the correlation id).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

from conformance.peers.processes import receive_exactly, split_address

_RESPONSE, _REQUEST = "response", "request"


@dataclass(slots=True, frozen=True)
class Frame:
    """One frame without its size prefix. `correlation_id` ties a response to its request."""

    api_key: int
    version: int
    direction: str
    correlation_id: int
    payload: bytes


@dataclass(slots=True)
class _Connection:
    client: socket.socket
    broker: socket.socket
    waiting: deque[tuple[int, int, int]] = field(default_factory=deque)  # correlation id, api key, version


class RecordingProxy:
    """`with RecordingProxy() as proxy: proxy.forward_to("127.0.0.1:9092")`; frames collect in `frames`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.frames: list[Frame] = []
        self._target: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> RecordingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def forward_to(self, address: str) -> None:
        """Starts accepting; every connection goes to `address`."""
        self._target = split_address(address)
        threading.Thread(target=self._accept, name="capture", daemon=True).start()

    def take(self) -> list[Frame]:
        """The frames since the last call."""
        with self._lock:
            frames, self.frames = self.frames, []
        return frames

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        assert self._target is not None
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                broker = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            connection = _Connection(client, broker)
            with self._lock:
                self._sockets += [client, broker]
            for pump in (self._pump_requests, self._pump_responses):
                threading.Thread(target=self._run_pump, args=(pump, connection), daemon=True).start()

    @staticmethod
    def _run_pump(pump: object, connection: _Connection) -> None:
        assert callable(pump)
        try:
            pump(connection)
        except OSError:
            pass  # either side went away; the other pump ends the same way
        finally:
            for sock in (connection.client, connection.broker):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _pump_requests(self, connection: _Connection) -> None:
        while True:
            payload = _read_frame(connection.client)
            api_key, version, correlation_id = struct.unpack_from(">hhi", payload)
            with self._lock:
                connection.waiting.append((correlation_id, api_key, version))
                self.frames.append(Frame(api_key, version, _REQUEST, correlation_id, payload))
            connection.broker.sendall(struct.pack(">i", len(payload)) + payload)

    def _pump_responses(self, connection: _Connection) -> None:
        while True:
            payload = _read_frame(connection.broker)
            (correlation_id,) = struct.unpack_from(">i", payload)
            with self._lock:
                while connection.waiting:
                    asked, api_key, version = connection.waiting.popleft()
                    if asked == correlation_id:
                        self.frames.append(Frame(api_key, version, _RESPONSE, correlation_id, payload))
                        break
            connection.client.sendall(struct.pack(">i", len(payload)) + payload)


def _read_frame(sock: socket.socket) -> bytes:
    (size_bytes,) = struct.unpack(">i", receive_exactly(sock, 4))
    return receive_exactly(sock, size_bytes)
