"""kill -9 of the real process: every acknowledged record is there exactly once, whatever it was doing.

Five rounds by default; CI asks for more with KMIRROR_KILL_ROUNDS. The moment of the kill comes from a seed.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter

import pytest

from conformance.peers.fixtures import MakeKmirror
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import eventually, pause
from conformance.wire.batches import batch, parse
from conformance.wire.client import Broker, Connection, Row, Topic
from kmirror.protocol.records import read_records
from tests.integration.watching import batches_on_disk, stored, topic_of, wait_until_equal_ends

pytestmark = pytest.mark.integration
ROUNDS = int(os.environ.get("KMIRROR_KILL_ROUNDS", "5"))
WINDOW = 20
PARTITIONS = 2


class Writer(threading.Thread):
    """Sends numbered records, a window of them in flight, until the connection breaks; keeps what was acknowledged."""

    def __init__(self, broker: Broker, topic: Topic, partition: int, *, tag: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[bytes, int] = {}
        self.sent: set[bytes] = set()
        self.refused: list[int] = []
        self._broker, self._topic, self._partition, self._tag = broker, topic, partition, tag
        self.halt = False

    def run(self) -> None:
        version = self._broker.version("Produce")
        waiting: list[bytes] = []
        number = 0
        try:
            with Connection(self._broker.address) as connection:
                while not self.halt:
                    while len(waiting) < WINDOW:
                        value = f"{self._tag}-{number}".encode()
                        number += 1
                        records = batch([value + b"." * 200])
                        request = self._broker.produce_request(
                            self._topic, records, version=version, partition=self._partition
                        )
                        self.sent.add(value)
                        connection.send(request, version)
                        waiting.append(value)
                    self._collect(connection, waiting)
                while waiting:
                    self._collect(connection, waiting)
        except OSError:
            return  # killed: what is still waiting was not acknowledged

    def _collect(self, connection: Connection, waiting: list[bytes]) -> None:
        row = connection.receive().responses[0].partition_responses[0]
        value = waiting.pop(0)
        if row.error_code:
            self.refused.append(row.error_code)
        else:
            self.acknowledged[value] = row.base_offset


def read_all(broker: Broker, topic: Topic, partition: int) -> dict[int, bytes]:
    """offset -> value, dots removed, for the whole partition."""
    found: dict[int, bytes] = {}
    offset, end = broker.earliest(topic, partition), broker.latest(topic, partition)
    with broker.connect() as connection:
        while offset < end:
            data = bytes(broker.fetch(Row(topic, offset, partition), connection=connection).row().records or b"")  # type: ignore[arg-type]
            position = 0
            for entry in parse(data):
                assert entry.crc_ok
                for record in read_records(data, position):
                    assert record.offset not in found
                    found[record.offset] = (record.value or b"").rstrip(b".")
                position += entry.size_bytes
                offset = entry.last_offset + 1
    return found


def kill_at_a_random_moment(victim: KmirrorBroker, rng: random.Random) -> None:
    """Between 20 and 400 ms from now. Here a test waits on purpose: the moment is the test."""
    pause(rng.uniform(0.02, 0.4))
    victim.kill()


def test_acknowledged_records_survive_a_kill(make_kmirror: MakeKmirror, rng: random.Random) -> None:
    kmirror = make_kmirror()
    topic = Broker(kmirror.bootstrap).create_topic(partition_count=PARTITIONS)
    acknowledged: list[dict[bytes, int]] = [{} for _ in range(PARTITIONS)]
    sent: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
    for number in range(ROUNDS):
        broker = Broker(kmirror.bootstrap)
        writers = [Writer(broker, topic, index, tag=f"r{number}p{index}") for index in range(PARTITIONS)]
        for writer in writers:
            writer.start()
        eventually(lambda: all(writer.acknowledged for writer in writers), what="first acknowledgements")  # noqa: B023
        kill_at_a_random_moment(kmirror, rng)
        for index, writer in enumerate(writers):
            writer.join(30)
            assert not writer.is_alive() and not writer.refused
            acknowledged[index] |= writer.acknowledged
            sent[index] |= writer.sent
        kmirror.start()
        broker = Broker(kmirror.bootstrap)
        for index in range(PARTITIONS):
            found = read_all(broker, topic, index)
            for value, offset in acknowledged[index].items():
                assert found.get(offset) == value, f"round {number}: {value!r} was acknowledged at {offset}"
            counted = Counter(found.values())
            assert set(counted) <= sent[index], "records that nobody sent"
            assert max(counted.values()) == 1, "a record was stored twice"
            batches_on_disk(kmirror.data_directory, topic.name, index)
    assert sum(map(len, acknowledged)) > ROUNDS * PARTITIONS


def test_a_killed_mirror_resumes_to_identity(make_kmirror: MakeKmirror, rng: random.Random) -> None:
    """The destination is killed while the source is written to; it comes back and holds the source's bytes."""
    source, destination = make_kmirror("source"), make_kmirror("destination")
    there = Broker(source.bootstrap)
    topic = there.create_topic(partition_count=PARTITIONS)
    there.produce(topic, batch([b"first"]))
    destination.run("mirror", "create", "m", "--source", source.bootstrap, "--topics", topic.name, "--start")
    for number in range(ROUNDS):
        writers = [Writer(there, topic, index, tag=f"r{number}p{index}") for index in range(PARTITIONS)]
        for writer in writers:
            writer.start()
        kill_at_a_random_moment(destination, rng)
        destination.start()
        kill_at_a_random_moment(destination, rng)  # perhaps in the middle of its recovery, or of resuming
        for writer in writers:
            writer.halt = True
            writer.join(30)
            assert not writer.refused
        destination.start()
        wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic.name)
        for index in range(PARTITIONS):
            theirs = stored(source.data_directory, topic.name, index, log_start=0)
            assert stored(destination.data_directory, topic.name, index, log_start=0) == theirs, f"round {number}"
    assert topic_of(Broker(destination.bootstrap), topic.name).topic_id == topic.topic_id
    destination.run("verify", "m")
