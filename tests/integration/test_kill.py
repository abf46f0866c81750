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
from conformance.wire.batches import Rec, batch, parse
from conformance.wire.client import Broker, Connection, Row, Topic
from conformance.wire.transactions import TransactionalProducer
from kmirror.protocol.records import CONTROL_COMMIT, Record, control_type, read_records
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
            if not data:  # retention was faster
                offset = max(offset + 1, broker.earliest(topic, partition))
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


# --- everything at once -----------------------------------------------------------------------------------------

BUSY = {
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0",
    "log.retention.check.interval.ms": "50",
    "log.retention.ms": "-1",
}
SMALL = {"internal.segment.bytes": "8000", "file.delete.delay.ms": "0"}
KEYS = [b"key-%d" % number for number in range(7)]


class KeyedWriter(threading.Thread):
    """Sends values of a few keys, one at a time, until the connection breaks; keeps the newest acknowledged of each."""

    def __init__(self, broker: Broker, topic: Topic, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[bytes, tuple[int, bytes]] = {}
        self.sent: set[bytes] = set()
        self._broker, self._topic, self._rng = broker, topic, rng

    def run(self) -> None:
        version = self._broker.version("Produce")
        try:
            with Connection(self._broker.address) as connection:
                while True:
                    key, value = self._rng.choice(KEYS), b"%d" % self._rng.getrandbits(60)
                    self.sent.add(value)
                    records = batch([Rec(value + b"." * 300, key)])
                    connection.send(self._broker.produce_request(self._topic, records, version=version), version)
                    row = connection.receive().responses[0].partition_responses[0]
                    assert not row.error_code
                    self.acknowledged[key] = (row.base_offset, value)
        except OSError:
            return


class TransactionWriter(threading.Thread):
    """One record in each partition per transaction, every third aborted, until the connection breaks."""

    def __init__(self, broker: Broker, topic: Topic, tag: str) -> None:
        super().__init__(daemon=True)
        self.committed: list[bytes] = []
        self.ending: bytes | None = None
        """The commit that was on its way when the connection broke."""
        self._topic, self._tag = topic, tag
        self._producer = TransactionalProducer(broker, "kill-loop")

    def run(self) -> None:
        number = 0
        try:
            self._producer.init()
            while True:
                value = f"{self._tag}-{number}".encode()
                self._producer.add_partitions(*((self._topic, index) for index in range(PARTITIONS)))
                for index in range(PARTITIONS):
                    assert self._producer.produce(self._topic, [value], partition=index).error_code == 0
                if number % 3 == 2:
                    self._producer.abort()
                else:
                    self.ending = value
                    self._producer.commit()
                    self.committed.append(value)
                    self.ending = None
                number += 1
        except OSError:
            return


def decided(broker: Broker, topic: Topic, partition: int) -> list[bytes]:
    """Values of committed transactions, in log order; every transaction must have ended."""
    found: list[bytes] = []
    waiting: dict[int, list[bytes]] = {}
    for data, position in batches_of(broker, topic, partition):
        (entry,) = parse(data[position : position + 12 + int.from_bytes(data[position + 8 : position + 12])])
        if entry.attributes & 0x20:
            values = waiting.pop(entry.producer_id, [])
            found += values if control_type(data, position) == CONTROL_COMMIT else []
        else:
            values = [record.value or b"" for record in read_records(data, position)]
            waiting.setdefault(entry.producer_id, []).extend(values)
    assert not waiting, "a transaction hangs"
    return found


def batches_of(broker: Broker, topic: Topic, partition: int) -> list[tuple[bytes, int]]:
    found = []
    offset, end = broker.earliest(topic, partition), broker.latest(topic, partition)
    with broker.connect() as connection:
        while offset < end:
            data = bytes(broker.fetch(Row(topic, offset, partition), connection=connection).row().records or b"")  # type: ignore[arg-type]
            position = 0
            for entry in parse(data):
                assert entry.crc_ok
                found.append((data, position))
                position += entry.size_bytes
                offset = entry.last_offset + 1
            if not position:
                break  # compaction has left nothing up to the end
    return found


def newest_of(broker: Broker, topic: Topic) -> dict[bytes, Record]:
    return {
        record.key or b"": record
        for data, position in batches_of(broker, topic, 0)
        for record in read_records(data, position)
    }


def test_everything_at_once_survives_kills(make_kmirror: MakeKmirror, rng: random.Random) -> None:
    """Produce, keys under compaction, transactions, rolls, retention and a mirror, and the broker is killed amid it."""
    source, kmirror = make_kmirror("source"), make_kmirror("kmirror", settings=BUSY)
    there, broker = Broker(source.bootstrap), Broker(kmirror.bootstrap)
    mirrored = there.create_topic(configs=SMALL, prefix="mirrored")
    there.produce(mirrored, batch([b"first"]))
    plain = broker.create_topic(configs=SMALL | {"retention.bytes": "60000"}, prefix="plain")
    keyed = broker.create_topic(configs=SMALL | {"cleanup.policy": "compact"}, prefix="keyed")
    paired = broker.create_topic(partition_count=PARTITIONS, configs=SMALL, prefix="paired")
    kmirror.run("mirror", "create", "m", "--source", source.bootstrap, "--topics", mirrored.name, "--start")
    acknowledged: dict[bytes, int] = {}
    newest: dict[bytes, tuple[int, bytes]] = {}
    sent: set[bytes] = set()
    committed: list[bytes] = []
    compactions = 0
    for number in range(ROUNDS):
        broker = Broker(kmirror.bootstrap)
        far = Writer(there, mirrored, 0, tag=f"m{number}")
        writer, keys = Writer(broker, plain, 0, tag=f"r{number}"), KeyedWriter(broker, keyed, rng)
        pairs = TransactionWriter(broker, paired, f"t{number}")
        threads: list[threading.Thread] = [far, writer, keys, pairs]
        for thread in threads:
            thread.start()
        eventually(lambda: writer.acknowledged and keys.acknowledged, what="first acknowledgements")  # noqa: B023
        if number % 4 == 3:
            pause(0.9)  # retention is looked at once a second
        kill_at_a_random_moment(kmirror, rng)
        far.halt = True
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert not writer.refused and not far.refused
        acknowledged |= writer.acknowledged
        newest |= keys.acknowledged
        sent |= keys.sent
        kmirror.start()
        broker = Broker(kmirror.bootstrap)
        TransactionalProducer(broker, "kill-loop").init()  # ends what was left open
        found = read_all(broker, plain, 0)
        start = broker.earliest(plain, 0)
        for value, offset in acknowledged.items():
            assert offset < start or found.get(offset) == value, f"round {number}: {value!r} acknowledged at {offset}"
        assert max(Counter(found.values()).values(), default=1) == 1, "a record was stored twice"
        mine = [int(value.split(b"-")[1]) for value in found.values() if value.startswith(f"r{number}-".encode())]
        assert mine == sorted(mine), "out of order"
        kept = newest_of(broker, keyed)
        for key, (offset, value) in newest.items():
            record = kept[key]
            stored_value = (record.value or b"").rstrip(b".")
            assert record.offset > offset or (record.offset, stored_value) == (offset, value), f"{key!r} is old"
            assert stored_value in sent
        compactions += len(batches_of(broker, keyed, 0)) < broker.latest(keyed, 0)
        committed += pairs.committed
        halves = [decided(broker, paired, index) for index in range(PARTITIONS)]
        if pairs.ending is not None and pairs.ending in halves[0]:
            committed.append(pairs.ending)  # its answer was lost, not its commit
        assert halves == [committed] * PARTITIONS, f"round {number}: transactions"
    wait_until_equal_ends(source.bootstrap, kmirror.bootstrap, mirrored.name)
    theirs = stored(source.data_directory, mirrored.name, 0, log_start=0)
    same = stored(kmirror.data_directory, mirrored.name, 0, log_start=0) == theirs
    assert same, "the mirror has other bytes than its source"
    assert compactions and committed and broker.earliest(plain, 0) > 0, "it was not all at once"
    print(f"{ROUNDS} rounds, {len(acknowledged)} records, {len(committed)} transactions, {compactions} compacted")
