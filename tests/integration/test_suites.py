"""The black-box suite of conformance/wire, against kmirror and, to keep the suite honest, against Apache Kafka."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.peers.fixtures import MakeKafka, MakeKmirror
from conformance.wire.batches import batch
from conformance.wire.client import Broker, Topic
from conformance.wire.conftest import QUICK
from kmirror.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest

REPOSITORY = Path(__file__).resolve().parents[2]


def run_wire_suite(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "conformance.wire", "--address", address, "-q", "--no-header"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.integration
def test_the_wire_suite_against_kmirror(make_kmirror: MakeKmirror) -> None:
    run_wire_suite(make_kmirror(settings=QUICK).bootstrap)


@pytest.mark.kafka
def test_the_wire_suite_against_kafka(make_kafka: MakeKafka) -> None:
    run_wire_suite(make_kafka(overrides=QUICK).bootstrap)


@pytest.mark.integration
def test_what_create_topics_acknowledged_works_on_the_first_try(make_kmirror: MakeKmirror) -> None:
    """Where Kafka needs a moment (conformance/wire/FINDINGS.md), kmirror does not."""
    broker = Broker(make_kmirror().bootstrap)
    names = [f"first-try-{index}" for index in range(20)]
    creatable = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
    answer = broker.request(CreateTopicsRequest(topics=creatable, timeout_ms=20_000))
    for row in reversed(answer.topics):
        topic = Topic(row.name, bytes(row.topic_id), 2)
        for partition in (1, 0):
            produced = broker.produce(topic, batch(), partition=partition)
            assert (produced.error_code, produced.base_offset) == (0, 0)
            assert broker.latest(topic, partition) == 1
        assert broker.describe_topic(row.name).error_code == 0
