"""The way back: A is mirrored by B, B is failed over to, A mirrors B again; real processes, sockets and disks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.peers.fixtures import MakeKmirror
from conformance.peers.kmirror_process import CommandResult, KmirrorBroker
from conformance.peers.waiting import eventually
from conformance.wire.batches import batch
from conformance.wire.client import Broker, Topic
from conformance.wire.transactions import TransactionalProducer
from kmirror.protocol.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kmirror.protocol.api.describe_cluster_mirrors import DescribeClusterMirrorsRequest
from kmirror.protocol.records import read_records
from tests.integration.watching import (
    batches_on_disk,
    describe,
    segments,
    stored,
    wait_for_state,
    wait_until_equal_ends,
)

pytestmark = pytest.mark.integration
THERE, BACK = "there", "back"
PARTITIONS = 2
ROUNDS = 3
READ_ONLY_TOPIC = 147


def produce(cluster: KmirrorBroker, topic: Topic, *values: bytes, partition: int = 0) -> None:
    row = Broker(cluster.bootstrap).produce(topic, batch(list(values)), partition=partition)
    assert row.error_code == 0, row


def fill(cluster: KmirrorBroker, topic: Topic, *, batch_count: int) -> None:
    broker = Broker(cluster.bootstrap)
    with broker.connect() as connection:
        for index in range(topic.partition_count):
            for number in range(batch_count):
                row = broker.produce(
                    topic, batch([f"{number}".encode() + b"." * 10_000]), partition=index, connection=connection
                )
                assert row.error_code == 0, row


def create(destination: KmirrorBroker, source: KmirrorBroker, name: str) -> None:
    destination.run("mirror", "create", name, "--source", source.bootstrap)


def command(
    cluster: KmirrorBroker, verb: str, name: str, topic: Topic, *options: str, check: bool = True
) -> CommandResult:
    return cluster.run("mirror", verb, name, "--topics", topic.name, *options, check=check)


def assert_equal(one: KmirrorBroker, other: KmirrorBroker, topic: Topic) -> None:
    for index in range(topic.partition_count):
        first = stored(one.data_directory, topic.name, index, log_start=0)
        assert first == stored(other.data_directory, topic.name, index, log_start=0) != b""


def values_saved(cluster: KmirrorBroker, topic: Topic, partition: int = 0) -> list[bytes]:
    """Everything that lies under cut/ for a partition."""
    found: list[bytes] = []
    for path in sorted(Path(cluster.data_directory, "cut", f"{topic.name}-{partition}").rglob("*.log")):
        data = path.read_bytes()
        position = 0
        while position < len(data):
            found += [record.value or b"" for record in read_records(data, position)]
            position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


def rows(cluster: KmirrorBroker, mirror: str) -> list[Any]:
    """Partitions as DescribeClusterMirrors tells them."""
    request = DescribeClusterMirrorsRequest(
        mirror_names=[mirror], include_mirror_state=True, include_mirror_offset=True
    )
    answer = Broker(cluster.bootstrap).request(request)
    return [row for described in answer.mirrors for topic in described.topics for row in topic.partitions]


def log_bytes(cluster: KmirrorBroker, topic: Topic) -> int:
    return sum(
        path.stat().st_size
        for index in range(topic.partition_count)
        for path in segments(cluster.data_directory, topic.name, index)
    )


def test_three_rounds_there_and_back(make_kmirror: MakeKmirror) -> None:
    """What was written at the losing side after a failover is cut, kept and reported; only the difference moves."""
    a, b = make_kmirror("a"), make_kmirror("b")
    topic = Broker(a.bootstrap).create_topic(partition_count=PARTITIONS)
    fill(a, topic, batch_count=60)
    create(b, a, THERE)
    create(a, b, BACK)
    command(b, "start", THERE, topic)
    for number in range(ROUNDS):
        for loser, winner, mirror, back in ((a, b, THERE, BACK), (b, a, BACK, THERE)):
            wait_until_equal_ends(loser.bootstrap, winner.bootstrap, topic.name)
            command(winner, "stop", mirror, topic)
            private = f"private {number} of {loser.directory.name}".encode()
            produce(loser, topic, private, private + b" again")
            produce(winner, topic, f"round {number} at {winner.directory.name}".encode())
            # a topic that was a mirror before has records of its own now: those are cut only when told to
            first = loser is a and number == 0
            if not first:
                refused = command(loser, "start", back, topic, check=False)
                assert refused.returncode == 1 and "--replace" in refused.stdout + refused.stderr, refused
                produce(loser, topic, private + b" still writable")
            size_bytes = log_bytes(winner, topic)
            command(loser, "start", back, topic, *(() if first else ("--replace",)))
            wait_until_equal_ends(winner.bootstrap, loser.bootstrap, topic.name)
            assert_equal(a, b, topic)
            assert private in values_saved(loser, topic) and private + b" again" in values_saved(loser, topic)
            moved = sum(row.copied_bytes for row in rows(loser, back))
            assert 0 < moved < size_bytes / 100, f"{moved} bytes were copied of {size_bytes}"
            row = rows(loser, back)[0]
            assert row.cut_offsets >= 2 and row.cut_saved and Path(row.cut_saved).is_dir()
            log = loser.log_text()
            assert "what is cut is kept in" in log and "has caught up with the source at offset" in log
            assert Broker(loser.bootstrap).produce(topic, batch([b"no"])).error_code == READ_ONLY_TOPIC
    for cluster in (a, b):
        for index in range(PARTITIONS):
            batches_on_disk(cluster.data_directory, topic.name, index)
    a_log, b_log = a.log_text(), b.log_text()
    assert "Traceback" not in a_log + b_log


def test_a_failback_that_is_killed_goes_on(make_kmirror: MakeKmirror) -> None:
    a, b = make_kmirror("a"), make_kmirror("b")
    topic = Broker(a.bootstrap).create_topic(partition_count=PARTITIONS)
    fill(a, topic, batch_count=5)
    create(b, a, THERE)
    command(b, "start", THERE, topic)
    wait_until_equal_ends(a.bootstrap, b.bootstrap, topic.name)
    command(b, "stop", THERE, topic)
    produce(a, topic, b"private")
    produce(b, topic, b"new")
    create(a, b, BACK)
    command(a, "start", BACK, topic, "--no-wait")
    a.restart(clean=False)
    b.restart(clean=False)
    wait_for_state(a, "MIRRORING", BACK)
    wait_until_equal_ends(b.bootstrap, a.bootstrap, topic.name)
    assert_equal(a, b, topic)
    assert values_saved(a, topic) == [b"private"]


def test_a_peer_that_trimmed_beyond_the_cut_halts_it(make_kmirror: MakeKmirror) -> None:
    """It says what would go, leaves the topic as it is, and --replace begins at the peer's log start."""
    a, b = make_kmirror("a"), make_kmirror("b")
    topic = Broker(a.bootstrap).create_topic()
    produce(a, topic, b"1", b"2", b"3")
    create(b, a, THERE)
    command(b, "start", THERE, topic)
    wait_until_equal_ends(a.bootstrap, b.bootstrap, topic.name)
    command(b, "stop", THERE, topic)
    produce(b, topic, b"5", b"6")
    produce(b, topic, b"7")
    at_b = Broker(b.bootstrap)
    end = at_b.latest(topic)
    trim = DeleteRecordsPartition(partition_index=0, offset=end - 1)
    at_b.request(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic.name, partitions=[trim])], timeout_ms=9000))
    assert at_b.earliest(topic) == end - 1
    create(a, b, BACK)
    halted = command(a, "start", BACK, topic, check=False)
    text = " ".join((halted.stdout + halted.stderr).split())
    assert halted.returncode == 1 and f"log starts at {end - 1}, beyond the cut at 3" in text and "--replace" in text
    produce(a, topic, b"still mine")
    assert Broker(a.bootstrap).earliest(topic) == 0
    command(a, "start", BACK, topic, "--replace")
    wait_until_equal_ends(b.bootstrap, a.bootstrap, topic.name)
    assert Broker(a.bootstrap).earliest(topic) == end - 1
    assert values_saved(a, topic) == [b"1", b"2", b"3", b"still mine"]


def test_two_clusters_never_mirror_each_other(make_kmirror: MakeKmirror) -> None:
    a, b = make_kmirror("a"), make_kmirror("b")
    topic = Broker(a.bootstrap).create_topic()
    produce(a, topic, b"1")
    create(b, a, THERE)
    create(a, b, BACK)
    command(b, "start", THERE, topic)

    def start_back() -> str:
        result = command(a, "start", BACK, topic, check=False)
        assert result.returncode == 1, result
        return " ".join((result.stdout + result.stderr).split())

    assert f"Detected mirror loop for mirror '{THERE}'" in start_back()
    command(b, "pause", THERE, topic)
    assert "is PAUSED: stop it there first" in start_back()
    produce(a, topic, b"2")
    command(b, "stop", THERE, topic)
    # the refused starts left nothing behind that begins by itself
    assert describe(a, BACK) == []
    shown = a.run("config", "describe", "mirror", BACK, "--json").stdout
    assert topic.name not in shown
    produce(a, topic, b"3")
    command(a, "start", BACK, topic)
    wait_until_equal_ends(b.bootstrap, a.bootstrap, topic.name)
    assert_equal(a, b, topic)


def test_a_deleted_mirror_s_lineage_still_leads_back(make_kmirror: MakeKmirror) -> None:
    a, b = make_kmirror("a"), make_kmirror("b")
    topic = Broker(a.bootstrap).create_topic()
    produce(a, topic, b"1", b"2")
    create(b, a, THERE)
    command(b, "start", THERE, topic)
    wait_until_equal_ends(a.bootstrap, b.bootstrap, topic.name)
    command(b, "stop", THERE, topic)
    b.run("mirror", "delete", THERE, "--yes")
    b.restart()
    produce(b, topic, b"4")
    produce(a, topic, b"private")
    create(a, b, BACK)
    command(a, "start", BACK, topic)
    wait_until_equal_ends(b.bootstrap, a.bootstrap, topic.name)
    assert_equal(a, b, topic)
    assert values_saved(a, topic) == [b"private"]


def test_open_transactions_end_before_the_alignment(make_kmirror: MakeKmirror) -> None:
    a, b = make_kmirror("a"), make_kmirror("b")
    topic = Broker(a.bootstrap).create_topic()
    produce(a, topic, b"1")
    create(b, a, THERE)
    command(b, "start", THERE, topic)
    wait_until_equal_ends(a.bootstrap, b.bootstrap, topic.name)
    command(b, "stop", THERE, topic)
    at_a = Broker(a.bootstrap)
    elsewhere = at_a.create_topic()
    producer = TransactionalProducer(at_a, "tx").init()
    producer.add(topic, elsewhere)
    producer.produce(topic, [b"open"])
    producer.produce(elsewhere, [b"open too"])
    create(a, b, BACK)
    command(a, "start", BACK, topic)
    wait_until_equal_ends(b.bootstrap, a.bootstrap, topic.name)
    assert producer.end(True) != 0, "the transaction was aborted under its producer"
    assert [bool(one.attributes & 0x20) for one in at_a.scan(elsewhere)] == [False, True]
    assert_equal(a, b, topic)
    assert b"open" in values_saved(a, topic)
    again = TransactionalProducer(at_a, "tx").init()
    refused = again.add_partitions((topic, 0), (elsewhere, 0))
    assert refused[topic.name, 0] == READ_ONLY_TOPIC and refused[elsewhere.name, 0] == 55


def test_a_third_cluster_notices_that_the_second_was_regrown(make_kmirror: MakeKmirror) -> None:
    """A to B to C. B fails over, C copies B's own records, B starts again from A: offsets that C has, other bytes."""
    a, b, c = make_kmirror("a"), make_kmirror("b"), make_kmirror("c")
    topic = Broker(a.bootstrap).create_topic()
    produce(a, topic, b"1", b"2")
    create(b, a, THERE)
    create(c, b, "m")
    command(b, "start", THERE, topic)
    command(c, "start", "m", topic)
    wait_until_equal_ends(a.bootstrap, c.bootstrap, topic.name)
    command(b, "stop", THERE, topic)
    produce(b, topic, b"of b")
    wait_until_equal_ends(b.bootstrap, c.bootstrap, topic.name)
    before = stored(c.data_directory, topic.name, 0, log_start=0)
    for number in range(4):
        produce(a, topic, f"of a {number}".encode())
    command(b, "start", THERE, topic, "--replace")
    wait_until_equal_ends(a.bootstrap, b.bootstrap, topic.name)
    produce(a, topic, b"last")

    def failed() -> bool:
        now = stored(c.data_directory, topic.name, 0, log_start=0)
        assert now == before, "C appended to a history that is not B's any more"
        return describe(c)[0]["state"] == "FAILED"

    eventually(failed, what="C to notice")
    (row,) = describe(c)
    assert "differs from offset 2 on" in row["error"] and not row["retry"]["retryable"]
    c.restart()
    assert describe(c)[0]["state"] == "FAILED"
    command(c, "start", "m", topic, "--replace")
    wait_until_equal_ends(b.bootstrap, c.bootstrap, topic.name)
    for cluster in (b, c):
        assert_equal(a, cluster, topic)
    assert values_saved(c, topic)[-1] == b"of b"
