"""Metadata requests per second on one connection, by hand-built frames, one and fifty in flight."""

from __future__ import annotations

import time

from conformance.bench.wire import connect, metadata_request, read_frame
from conformance.peers.processes import receive_exactly

_CHUNK_BYTES = 1 << 16


def metadata_per_second(bootstrap: str, topic: str, *, in_flight: int, seconds: float) -> float:
    """Answers per second; the window is refilled with as many requests as answers came in."""
    sock = connect(bootstrap)
    request = metadata_request(topic, 7)
    sock.sendall(request)
    answer_bytes = 4 + len(read_frame(sock))  # every answer to one request has one size
    answered, pending_bytes = 0, 0
    sock.sendall(request * in_flight)
    started = time.perf_counter()
    while (now := time.perf_counter()) - started < seconds:
        received = len(sock.recv(_CHUNK_BYTES))
        if not received:
            raise ConnectionError("the broker closed the connection")
        complete, pending_bytes = divmod(pending_bytes + received, answer_bytes)
        if complete:
            answered += complete
            sock.sendall(request * complete)
    spent = now - started
    receive_exactly(sock, in_flight * answer_bytes - pending_bytes)
    sock.close()
    return answered / spent
