"""`kmirror backup` of a real process that is written to without a pause, and brokers that are started on the copies.

Idempotent and transactional producers, committed offsets, segments that roll, retention and compaction go on while each
copy is made. A copy holds all that was acknowledged before the command was given, once and in order, and no half of
anything; the live broker and the copies never see each other's writes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from conformance.peers.fixtures import MakeKmirror
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import eventually, pause
from conformance.wire.batches import Rec, batch
from conformance.wire.client import Broker, Connection, Row, Topic
from conformance.wire.groups import commit, committed, wait_for_coordinator
from conformance.wire.transactions import TransactionalProducer, last_stable_offset
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.records import CONTROL_COMMIT, control_type, read_records, walk
from tests.integration.test_kill import read_all
from tests.integration.watching import segments

pytestmark = pytest.mark.integration
ROUNDS = int(os.environ.get("KMIRROR_BACKUP_ROUNDS", "3"))
WINDOW = 4
VALUE_BYTES = 30_000
GROUP = "readers"
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "100",
}
FOREVER = {"retention.ms": "-1"}
"""The suite's batches are years old."""
SMALL = {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "100"}


class Writer(threading.Thread):
    """Numbered records of one idempotent producer, some in flight; `acknowledged` counts those of which it was told."""

    def __init__(self, broker: Broker, topic: Topic, *, key_count: int = 0) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.failure: object = None
        self.halt = False
        self._broker, self._topic, self._key_count = broker, topic, key_count

    def run(self) -> None:
        version = self._broker.version("Produce")
        identity = self._broker.request(InitProducerIdRequest(transaction_timeout_ms=60_000))
        sent = 0
        with Connection(self._broker.address) as connection:
            while not self.halt or self.acknowledged < sent:
                while sent < self.acknowledged + WINDOW and not self.halt:
                    key = b"%d" % (sent % self._key_count) if self._key_count else None
                    record = Rec(b"%d" % sent + b"." * VALUE_BYTES, key)
                    data = batch(
                        [record], producer_id=identity.producer_id, producer_epoch=identity.producer_epoch,
                        base_sequence=sent,
                    )  # fmt: skip
                    connection.send(self._broker.produce_request(self._topic, data, version=version), version)
                    sent += 1
                row = connection.receive().responses[0].partition_responses[0]
                if row.error_code:
                    self.failure = row
                    return
                self.acknowledged += 1


class Transactions(threading.Thread):
    """Transaction n writes n to two partitions and commits the offset n + 1; every fourth is aborted."""

    def __init__(self, broker: Broker, topic: Topic, transactional_id: str) -> None:
        super().__init__(daemon=True)
        self.decided = 0
        self.failure: object = None
        self.halt = False
        self._broker, self._topic, self._id = broker, topic, transactional_id

    def run(self) -> None:
        try:
            producer = TransactionalProducer(self._broker, self._id).init()
            while not self.halt:
                number = self.decided
                assert set(producer.add_partitions((self._topic, 0), (self._topic, 1)).values()) == {0}
                for partition in range(2):
                    assert producer.produce(self._topic, [b"%d" % number], partition=partition).error_code == 0
                assert producer.add_offsets(GROUP) == 0
                assert producer.commit_offset(GROUP, self._topic, number + 1) == 0
                assert producer.end(is_committed(number)) == 0
                self.decided = number + 1
        except AssertionError as error:
            self.failure = error


def is_committed(number: int) -> bool:
    return number % 4 != 3


class Commits(threading.Thread):
    """Commits rising offsets, none above what the writer was told of."""

    def __init__(self, broker: Broker, topic: Topic, writer: Writer) -> None:
        super().__init__(daemon=True)
        self.acknowledged = -1
        self.failure: object = None
        self.halt = False
        self._broker, self._topic, self._writer = broker, topic, writer

    def run(self) -> None:
        wait_for_coordinator(self._broker, "g", 0)
        while not self.halt:
            offset = self._writer.acknowledged
            self.failure = commit(self._broker, "g", self._topic, offset) or None
            if self.failure is not None:
                return
            self.acknowledged = offset


def visible(broker: Broker, topic: Topic, partition: int) -> list[int]:
    """The numbers of the committed transactions in a partition, in order; none may be open."""
    found: list[int] = []
    waiting: dict[int, list[int]] = {}
    offset, end = 0, broker.latest(topic, partition)
    while offset < end:
        row = broker.fetch(Row(topic, offset, partition)).row()
        data = bytes(row.records or b"")  # type: ignore[arg-type]
        assert data, row
        for position, header in walk(data):
            numbers = waiting.setdefault(header.producer_id, [])
            records = read_records(data, position)
            if not header.is_control:
                numbers += [int(record.value or b"") for record in records]
            else:
                if control_type(data, position) == CONTROL_COMMIT:
                    found += numbers
                numbers.clear()
            offset = header.next_offset
    assert not any(waiting.values()), "a transaction hangs"
    return found


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def back_up(live: KmirrorBroker, name: str) -> Path:
    """Where another broker of this name looks for its data."""
    home = live.directory.parent / name
    home.mkdir()
    report = live.run("backup", str(home / "data"), "--json").json()
    assert report["destination"] == str(home / "data")
    return home / "data"


def check_prefix(broker: Broker, topic: Topic, at_least: int) -> None:
    """Numbers from the log start on, each once, in order, without a gap, up to what was acknowledged or further."""
    numbers = {offset: int(value) for offset, value in read_all(broker, topic, 0).items()}
    assert numbers and all(offset == number for offset, number in numbers.items())
    assert sorted(numbers) == list(range(min(numbers), max(numbers) + 1)) and max(numbers) + 1 >= at_least


def check_keys(broker: Broker, topic: Topic, at_least: int, keys: int) -> None:
    """A compacted topic: whatever went, the newest value of each key is that of what was acknowledged, or newer."""
    newest: dict[int, int] = {}
    for value in read_all(broker, topic, 0).values():
        newest[int(value) % keys] = int(value)
    assert max(newest.values()) + 1 >= at_least
    assert all(newest[key] >= at_least - keys for key in range(min(keys, at_least)))


def check_transactions(broker: Broker, topic: Topic, decided: int, transactional_id: str) -> None:
    """All or nothing of each, in both partitions and in the offsets; what is open ends with the next producer."""
    producer = TransactionalProducer(broker, transactional_id).init()
    for partition in range(2):
        eventually(
            lambda partition=partition: last_stable_offset(broker, topic, partition) == broker.latest(topic, partition),  # type: ignore[misc]
            what="no open transaction",
        )
    one, two = visible(broker, topic, 0), visible(broker, topic, 1)
    assert one == two == [number for number in range(max(one) + 1) if is_committed(number)]
    assert set(one) >= {number for number in range(decided) if is_committed(number)}
    assert committed(broker, GROUP, topic) == max(one) + 1
    producer.add(topic)
    assert producer.produce(topic, [b"999999"]).error_code == 0
    producer.commit()


def test_copies_of_a_broker_under_load(make_kmirror: MakeKmirror) -> None:
    live = make_kmirror("live", settings=SETTINGS)
    broker = Broker(live.bootstrap)
    plain = broker.create_topic(configs=SMALL | FOREVER | {"retention.bytes": str(6 << 20)})
    compacted = broker.create_topic(
        configs=SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000"}
    )
    numbered = broker.create_topic(partition_count=2, configs=FOREVER)
    keys, transactional_id = 7, "transactions"
    writer = Writer(broker, plain)
    keyed = Writer(broker, compacted, key_count=keys)
    transactions = Transactions(broker, numbered, transactional_id)
    commits = Commits(broker, plain, writer)
    threads = (writer, keyed, transactions, commits)
    for thread in threads:
        thread.start()
    eventually(lambda: writer.acknowledged > 50 and transactions.decided > 5 and commits.acknowledged > 0, what="load")
    kept: dict[Path, dict[str, str]] = {}
    for number in range(ROUNDS):
        untouched = back_up(live, f"kept-{number}")
        kept[untouched] = digests(untouched)
        before = (writer.acknowledged, keyed.acknowledged, transactions.decided, commits.acknowledged)
        back_up(live, f"copy-{number}")
        copy = make_kmirror(f"copy-{number}", settings=SETTINGS)
        restored = Broker(copy.bootstrap)
        assert restored.describe_topic(plain.name).topic_id == plain.topic_id
        check_prefix(restored, plain, before[0])
        check_keys(restored, compacted, before[1], keys)
        check_transactions(restored, numbered, before[2], transactional_id)
        assert before[3] <= committed(restored, "g", plain) <= restored.latest(plain)
        more = [Writer(restored, topic) for topic in (plain,)]
        more.append(Writer(restored, compacted, key_count=keys))
        for other in more:
            other.start()
        eventually(lambda: all(other.acknowledged > 60 for other in more), what="writes to the copy")  # noqa: B023
        for other in more:
            other.halt = True
            other.join(30)
            assert not other.is_alive() and other.failure is None
        assert copy.stop() == 0
        assert "ERROR" not in copy.log_text()
        pause(0.5)  # the live one goes on, with retention and compaction
    for thread in threads:
        thread.halt = True
        thread.join(30)
        assert not thread.is_alive() and thread.failure is None, thread.failure
    assert all(digests(directory) == found for directory, found in kept.items()), "a copy changed"
    check_prefix(broker, plain, writer.acknowledged)
    check_keys(broker, compacted, keyed.acknowledged, keys)
    check_transactions(broker, numbered, transactions.decided, transactional_id)
    counted = Counter(read_all(broker, plain, 0).values())
    assert max(counted.values()) == 1
    assert broker.earliest(plain) > 0, "retention had nothing to do"
    first = segments(live.data_directory, compacted.name, 0)[0].stat().st_size
    assert first < 1 << 20, "compaction had nothing to do"
    assert not list(live.data_directory.glob("backup-*")) and "ERROR" not in live.log_text()


def has_begun(live: KmirrorBroker, home: Path) -> bool:
    return any(live.data_directory.glob("backup-*")) or (home / "data").exists()


def test_a_kill_in_the_middle_leaves_nothing(make_kmirror: MakeKmirror) -> None:
    """Wherever it is killed: the next start removes what was begun, or the copy is there and whole."""
    live = make_kmirror("live")
    broker = Broker(live.bootstrap)
    topic = broker.create_topic(partition_count=50)
    for partition in range(50):
        broker.produce(topic, batch([b"v" * 1000]), partition=partition)
    complete = 0
    for number in range(ROUNDS * 2):
        home = live.directory.parent / f"copy-{number}"
        home.mkdir()
        asking = threading.Thread(
            target=lambda home=home: live.run("backup", str(home / "data"), check=False), daemon=True
        )
        asking.start()
        eventually(lambda home=home: has_begun(live, home), what="a beginning")  # type: ignore[misc]
        pause(0.003 * number)
        live.kill()
        asking.join(30)
        live.start()
        assert not list(live.data_directory.glob("backup-*"))
        left = [path.name for path in home.iterdir()]
        assert left in ([], ["data"])
        if left:
            complete += 1
            copy = make_kmirror(f"copy-{number}")
            assert Broker(copy.bootstrap).latest(topic, 49) == 1
            assert copy.stop() == 0
    assert complete < ROUNDS * 2, "no kill was in the middle of a backup"
