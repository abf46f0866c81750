"""The few frames that the benchmark sends by hand, built with `struct`: a client library's own cost must not show.

Only old, inflexible versions that every contestant serves: Produce v3, Metadata v4, ListOffsets v1, Fetch v4.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from conformance.peers.processes import receive_exactly, split_address

_CLIENT_ID = b"bench"


def connect(address: str) -> socket.socket:
    sock = socket.create_connection(split_address(address), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _frame(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, version, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
    return struct.pack(">i", len(header) + len(body)) + header + body


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def metadata_request(topic: str, correlation_id: int) -> bytes:
    return _frame(3, 4, correlation_id, struct.pack(">i", 1) + _string(topic) + b"\x00")


def read_frame(sock: socket.socket) -> bytes:
    (size_bytes,) = struct.unpack(">i", receive_exactly(sock, 4))
    return receive_exactly(sock, size_bytes)


def end_offset(sock: socket.socket, topic: str, partition: int) -> int:
    """The latest offset (high watermark) by ListOffsets v1; -1 while the partition answers an error."""
    body = struct.pack(">ii", -1, 1) + _string(topic) + struct.pack(">iiq", 1, partition, -1)
    sock.sendall(_frame(2, 1, 1, body))
    reply = read_frame(sock)
    error_code, _, offset = struct.unpack(">hqq", reply[-18:])
    return -1 if error_code else int(offset)


class Fetched(NamedTuple):
    high_watermark: int
    records: memoryview


def fetch(sock: socket.socket, topic: str, *, offset: int, max_bytes: int) -> Fetched:
    """Fetch v4 of partition 0. ValueError for an error code."""
    body = struct.pack(">iiiib", -1, 500, 1, max_bytes, 0)
    body += struct.pack(">i", 1) + _string(topic) + struct.pack(">iiqi", 1, 0, offset, max_bytes)
    sock.sendall(_frame(1, 4, 1, body))
    reply = memoryview(read_frame(sock))
    # correlation id, throttle time, topic count, topic name, partition count, then the one partition
    position = 4 + 4 + 4 + 2 + len(topic.encode()) + 4
    _, error_code, high_watermark, _ = struct.unpack_from(">ihqq", reply, position)
    if error_code:
        raise ValueError(f"Fetch answered error {error_code}")
    position += 22
    (aborted_count,) = struct.unpack_from(">i", reply, position)
    position += 4 + 16 * max(aborted_count, 0)
    (size_bytes,) = struct.unpack_from(">i", reply, position)
    return Fetched(high_watermark, reply[position + 4 : position + 4 + max(size_bytes, 0)])


def produce_request(topic: str, partition: int, batch: bytes, correlation_id: int) -> bytes:
    """Produce v3, acks=all, one batch for one partition."""
    body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + _string(topic)
    return _frame(0, 3, correlation_id, body + struct.pack(">iii", 1, partition, len(batch)) + batch)


def check_produced(reply: bytes, topic: str) -> None:
    """ValueError for an error code in the answer to `produce_request`."""
    position = 4 + 4 + 2 + len(topic.encode()) + 4 + 4  # correlation id, topic count, topic, partition count, index
    (error_code,) = struct.unpack_from(">h", reply, position)
    if error_code:
        raise ValueError(f"Produce answered error {error_code}")
