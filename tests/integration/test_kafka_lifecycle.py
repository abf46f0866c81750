"""Show 5: the source restarts, goes away, and grows its epochs; a Java consumer that checks epochs goes on reading."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.peers.fixtures import MakeKafka, MakeKmirror
from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import eventually, pause
from conformance.wire.batches import batch
from conformance.wire.client import Broker
from tests.integration.source_topics import Source
from tests.integration.watching import (
    batches_on_disk,
    describe,
    states,
    stored,
    topic_of,
    wait_for_state,
    wait_until_equal_ends,
)

pytestmark = pytest.mark.kafka
EPOCH_GROWTH = 20
AWAY_S = 60.0
BACK_S = 45.0
"""Until a source that is back has been caught up with: the longest pause between two tries is shorter than this."""


@pytest.fixture
def source(make_kafka: MakeKafka) -> Source:
    return Source(make_kafka())


def mirror(make_kmirror: MakeKmirror, source: Source, topic: str) -> KmirrorBroker:
    destination = make_kmirror(settings={"mirror.metadata.refresh.interval.ms": "1000"})
    destination.run("mirror", "create", "m", "--source", source.bootstrap, "--topics", topic, "--start")
    wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic)
    return destination


def assert_identical(source: Source, destination: KmirrorBroker, topic: str) -> None:
    theirs = stored(source.kafka.data_directory, topic, 0, log_start=0)
    assert stored(destination.data_directory, topic, 0, log_start=0) == theirs


def leader_epoch(address: str, topic: str) -> int:
    return int(Broker(address).describe_topic(topic).partitions[0].leader_epoch)


def seek_with_epoch(
    installation: KafkaInstallation, bootstrap: str, topic: str, *, offset: int, epoch: int, count: int
) -> list[str]:
    """Runs the Java consumer; its lines `offset epoch value`. It fails when the records do not come within 30 s."""
    program = Path(__file__).parent / "java" / "SeekWithEpoch.java"
    done = subprocess.run(
        [installation.java, "-cp", f"{installation.jars}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
         str(program), bootstrap, topic, "0", str(offset), str(epoch), str(count)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()


def test_source_restarts_and_epochs_grow_by_20(
    source: Source, make_kmirror: MakeKmirror, kafka_installation: Callable[[str], KafkaInstallation]
) -> None:
    """The mirror follows each restart; in the end its leader epoch is at or above the source's, and a consumer that
    seeks with an epoch from each life of the source is let through."""
    topic = source.create("restarts")
    source.write(topic, 10, tag="first life")
    destination = mirror(make_kmirror, source, topic)
    first = leader_epoch(source.bootstrap, topic)
    number = 0
    while leader_epoch(source.bootstrap, topic) < first + EPOCH_GROWTH:
        number += 1
        source.kafka.restart()
        if number % 4 == 1:
            source.write(topic, 5, tag=f"life {number}")
    source.write(topic, 5, tag="last life")
    wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic)
    wait_for_state(destination, "MIRRORING")
    assert_identical(source, destination, topic)
    assert leader_epoch(destination.bootstrap, topic) >= leader_epoch(source.bootstrap, topic)
    installation = kafka_installation("4.4.0")
    batches = batches_on_disk(destination.data_directory, topic, 0)
    end = batches[-1].last_offset + 1
    for entry in (batches[0], batches[len(batches) // 2], batches[-1]):
        count = end - entry.base_offset
        lines = seek_with_epoch(
            installation, destination.bootstrap, topic, offset=entry.base_offset, epoch=entry.leader_epoch, count=count
        )
        assert [int(line.split()[0]) for line in lines] == list(range(entry.base_offset, end))
        assert int(lines[0].split()[1]) == entry.leader_epoch


def test_the_source_killed_and_away(source: Source, make_kmirror: MakeKmirror) -> None:
    """kill -9 of the source, the mirror stays readable and read-only, and catches up when it is back."""
    topic = source.create("away")
    source.write(topic, 20)
    destination = mirror(make_kmirror, source, topic)
    source.kafka.kill()
    ours = Broker(destination.bootstrap)
    known = topic_of(ours, topic)
    for _ in range(3):
        assert ours.latest(known) == 20
        assert ours.produce(known, batch([b"refused"])).error_code == 147
        assert states(destination) <= {"MIRRORING", "PREPARING", "FAILED"}
    source.kafka.start()
    source.write(topic, 20, tag="back")
    wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic)
    assert_identical(source, destination, topic)
    eventually(lambda: describe(destination)[0]["lag"] == 0, what="lag 0")


def watch_while_away(destination: KmirrorBroker, topic: str, *, end: int) -> list[dict[str, Any]]:
    """A full minute with the source away: every look at the mirror is answered, reading goes on, writing is refused.
    Returns what `mirror describe` said, look by look."""
    ours = Broker(destination.bootstrap)
    known = topic_of(ours, topic)
    looks: list[dict[str, Any]] = []
    until = time.monotonic() + AWAY_S
    while time.monotonic() < until:
        started = time.monotonic()
        (row,) = describe(destination)
        assert ours.latest(known) == end
        assert ours.produce(known, batch([b"refused"])).error_code == 147
        assert time.monotonic() - started < 10, "a broker without its source hangs"
        looks.append(row)
        pause(1.0)
    assert {row["state"] for row in looks} <= {"MIRRORING", "PREPARING", "FAILED"}
    return looks


@pytest.mark.parametrize("how", ["stopped", "silent"])
def test_the_source_away_for_a_minute(source: Source, make_kmirror: MakeKmirror, how: str) -> None:
    """Away for a full minute: shut down, or stopped in its tracks with all connections open (SIGSTOP), so that nobody
    is told. Meanwhile the mirror says what it waits for; afterwards it has everything, without an operator."""
    topic = source.create(f"minute-{how}")
    source.write(topic, 20)
    destination = mirror(make_kmirror, source, topic)
    if how == "stopped":
        source.kafka.stop()
    else:
        source.kafka.process.pause()
    try:
        looks = watch_while_away(destination, topic, end=20)
    finally:
        if how == "silent":
            source.kafka.process.resume()
    shown = [row for row in looks if row["error"] or row["retry"]]
    assert shown, f"a minute without a source, and nothing is shown: {looks[-1]}"
    attempts = [row["retry"]["attempt"] for row in looks if row["retry"]]
    assert attempts == sorted(attempts)
    if how == "stopped":
        source.kafka.start()
    source.write(topic, 20, tag="back")
    wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic, timeout_s=BACK_S)
    wait_for_state(destination, "MIRRORING", timeout_s=BACK_S)
    eventually(lambda: describe(destination)[0]["lag"] == 0, what="lag 0")
    eventually(lambda: not describe(destination)[0]["error"], what="no error shown any more")
    assert_identical(source, destination, topic)
    destination.run("verify", "m")


def test_stop_and_start_again_without_private_records(source: Source, make_kmirror: MakeKmirror) -> None:
    """Aligned with a real Kafka: our reset goes, the source's records of meanwhile come."""
    topic = source.create("failback")
    source.write(topic, 10)
    destination = mirror(make_kmirror, source, topic)
    destination.run("mirror", "stop", "m", "--topics", topic)
    source.write(topic, 10, tag="meanwhile")
    destination.run("mirror", "start", "m", "--topics", topic)
    wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic)
    assert_identical(source, destination, topic)
    destination.run("verify", "m")


def test_partitions_and_configs_follow_the_source(source: Source, make_kmirror: MakeKmirror) -> None:
    topic = source.create("grows", configs={"retention.ms": "777000000"})
    source.write(topic, 10)
    destination = mirror(make_kmirror, source, topic)
    kafka: KafkaBroker = source.kafka
    kafka.tool("topics", "--bootstrap-server", kafka.bootstrap, "--alter", "--topic", topic, "--partitions", "3")
    kafka.tool(
        "configs", "--bootstrap-server", kafka.bootstrap, "--alter", "--entity-type", "topics", "--entity-name", topic,
        "--add-config", "max.message.bytes=123456",
    )  # fmt: skip
    source.write(topic, 10, partition=2)
    wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic)

    def configs() -> dict[str, str]:
        shown = kafka.tool(
            "configs", "--bootstrap-server", destination.bootstrap, "--describe", "--entity-type", "topics",
            "--entity-name", topic,
        )  # fmt: skip
        return dict(
            word.split("=", 1)
            for line in shown.stdout.splitlines()
            if line.startswith("  ")
            for word in line.split()[:1]
        )

    wanted = {"retention.ms": "777000000", "max.message.bytes": "123456"}
    eventually(lambda: wanted.items() <= configs().items(), what=f"configs {wanted}", timeout_s=90)
