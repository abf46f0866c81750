"""Many more partitions and connections than the process may have files open: everybody is served."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from conformance.peers.fixtures import MakeKmirror
from conformance.peers.waiting import eventually
from conformance.wire.batches import batch
from conformance.wire.client import Broker, Connection, Topic

pytestmark = pytest.mark.integration
OPEN_FILES = 100
PARTITIONS = 150


def served(broker: Broker, topic: Topic) -> bool:
    try:
        return broker.latest(topic) >= 0
    except OSError:
        return False


def test_more_partitions_than_descriptors(make_kmirror: MakeKmirror) -> None:
    """A record into each, read back by a new connection each time; over a clean restart, a kill, and retention that
    rolls all logs at once."""
    kmirror = make_kmirror(open_files=OPEN_FILES, settings={"log.retention.check.interval.ms": "1000"})
    broker = Broker(kmirror.bootstrap)
    topic = broker.create_topic(partition_count=PARTITIONS, configs={"retention.ms": "-1"})
    records = 0
    for restart in (None, "clean", "killed"):
        if restart is not None:
            kmirror.restart(clean=restart == "clean")
        for _ in range(2):
            for index in range(PARTITIONS):
                assert broker.produce(topic, batch([b"x" * 100]), partition=index).error_code == 0
            records += 1
        for index in range(PARTITIONS):
            assert sum(found.record_count for found in broker.scan(topic, index)) == records
        if os.path.isdir(f"/proc/{kmirror.process.pid}/fd"):
            assert len(os.listdir(f"/proc/{kmirror.process.pid}/fd")) < OPEN_FILES
    kmirror.run("config", "alter", "topic", topic.name, "--set", "retention.ms=1000")  # the records are years old
    eventually(lambda: all(broker.earliest(topic, index) == records for index in range(PARTITIONS)), what="retention")
    assert kmirror.stop() == 0
    assert "too many" not in kmirror.log_text().lower() and "Traceback" not in kmirror.log_text()


def test_more_connections_than_descriptors(make_kmirror: MakeKmirror) -> None:
    """Those that are too many are closed at once; the others, and the disk, do not feel it."""
    kmirror = make_kmirror(open_files=OPEN_FILES)
    broker = Broker(kmirror.bootstrap)
    topic = broker.create_topic(partition_count=PARTITIONS)
    with ExitStack() as held:
        for _ in range(2 * OPEN_FILES):
            held.enter_context(Connection(kmirror.bootstrap))
        assert not served(broker, topic)
        assert kmirror.process.running
    eventually(lambda: served(broker, topic), what="answer after the others have gone")
    for index in range(PARTITIONS):
        assert broker.produce_when_ready(topic, batch([b"x"]), partition=index).error_code == 0
    assert kmirror.stop() == 0
