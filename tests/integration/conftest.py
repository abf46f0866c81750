"""Integration tests: real processes, sockets and disks. `integration` needs only this package; `kafka` needs a JVM.

Peers come from `conformance.peers.fixtures`. Waiting here is polling with a deadline, since time is real; nothing
sleeps for a fixed while and then hopes.
"""

from __future__ import annotations

from importlib.util import find_spec

from conformance.peers.fixtures import kafka_installation, kcat, make_kafka, make_kmirror

# `make test` has only the package's own dependencies; these modules need the `peers` extra to be imported at all
collect_ignore_glob = [] if find_spec("confluent_kafka") else ["test_kafka_*.py", "test_*_peers.py"]

__all__ = ["kafka_installation", "kcat", "make_kafka", "make_kmirror"]
