"""Integration tests: real processes, sockets and disks. `integration` needs only this package; `kafka` needs a JVM.

Peers come from `conformance.peers.fixtures`. Waiting here is polling with a deadline, since time is real; nothing
sleeps for a fixed while and then hopes.
"""

from __future__ import annotations

from conformance.peers.fixtures import kafka_installation, kcat, make_kafka, make_kmirror

__all__ = ["kafka_installation", "kcat", "make_kafka", "make_kmirror"]
