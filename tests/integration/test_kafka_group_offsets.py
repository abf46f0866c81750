"""Committed offsets of a real Kafka appear here, and a group that moves carries on without loss or repetition."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from conformance.peers.fixtures import MakeKafka, MakeKmirror
from conformance.peers.kafka import KafkaBroker
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import eventually
from tests.integration.source_topics import QUIET
from tests.integration.watching import wait_until_equal_ends

pytestmark = pytest.mark.kafka
TOPIC = "orders"
COUNT = 20
"""Records per partition."""
OFTEN = {"mirror.metadata.refresh.interval.ms": "500"}
VERSIONS = ["2.1.1", "3.9.2", "4.4.0"]


def consumer(bootstrap: str, group: str, **options: Any) -> Consumer:
    names = {key.replace("_", "."): value for key, value in options.items()}
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6_000,
        **QUIET,
        **names,
    }
    return Consumer(settings)


def commit(bootstrap: str, group: str, *offsets: int | None) -> None:
    """From outside: one offset per partition, None for none."""
    rows = [TopicPartition(TOPIC, index, offset) for index, offset in enumerate(offsets) if offset is not None]
    client = consumer(bootstrap, group)
    client.commit(offsets=rows, asynchronous=False)
    client.close()


def committed(bootstrap: str, group: str) -> list[int | None]:
    client = consumer(bootstrap, group)
    rows = client.committed([TopicPartition(TOPIC, index) for index in range(3)], timeout=20)
    client.close()
    return [None if row.offset < 0 else row.offset for row in rows]


def read(bootstrap: str, group: str, count: int) -> list[str]:
    """As a member of the group: `count` values, committed."""
    client = consumer(bootstrap, group)
    client.subscribe([TOPIC])
    values: list[str] = []

    def more() -> bool:
        for message in client.consume(count - len(values), timeout=0.5):
            assert message.error() is None, message.error()
            values.append((message.value() or b"").decode())
        return len(values) >= count

    eventually(more, what=f"{count} records for group {group}", timeout_s=60)
    client.commit(asynchronous=False)
    client.close()
    return values


def table(tools: KafkaBroker, bootstrap: str, group: str) -> set[tuple[str, ...]]:
    """`kafka-consumer-groups --describe`: topic, partition, offset, end, lag."""
    said = tools.tool("consumer-groups", "--bootstrap-server", bootstrap, "--describe", "--group", group).stdout
    rows = [line.split() for line in said.splitlines() if TOPIC in line.split()]
    return {tuple(row[1:6]) for row in rows}


def filled(kafka: KafkaBroker) -> KafkaBroker:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
    admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, **QUIET})
    for number in range(3 * COUNT):
        producer.produce(TOPIC, str(number), partition=number % 3)
    assert producer.flush(30) == 0
    return kafka


@pytest.fixture(scope="module", params=VERSIONS)
def source(make_kafka: MakeKafka, request: pytest.FixtureRequest) -> KafkaBroker:
    return filled(make_kafka(request.param))


def mirrored(source: KafkaBroker, make_kmirror: MakeKmirror) -> KmirrorBroker:
    here = make_kmirror(settings=OFTEN)
    here.run("mirror", "create", "m", "--source", source.bootstrap, "--topics", TOPIC, "--start")
    wait_until_equal_ends(source.bootstrap, here.bootstrap, TOPIC)
    return here


def test_offsets_follow_and_a_group_carries_on(source: KafkaBroker, make_kmirror: MakeKmirror) -> None:
    commit(source.bootstrap, "simple", 0, 12, None)
    before = read(source.bootstrap, "billing", 25)
    there = committed(source.bootstrap, "billing")
    here = mirrored(source, make_kmirror)
    eventually(lambda: committed(here.bootstrap, "billing") == there, what="the group's offsets", timeout_s=30)
    eventually(lambda: committed(here.bootstrap, "simple") == [0, 12, None], what="simple offsets", timeout_s=30)
    commit(source.bootstrap, "simple", 0, 3, None)
    eventually(lambda: committed(here.bootstrap, "simple") == [0, 3, None], what="an offset set back", timeout_s=30)
    here.run("mirror", "stop", "m", "--topics", TOPIC)
    rest = read(here.bootstrap, "billing", 3 * COUNT - len(before))
    assert sorted([*before, *rest], key=int) == [str(number) for number in range(3 * COUNT)], "no loss, no repetition"


def test_a_group_with_members_here_is_left_alone(source: KafkaBroker, make_kmirror: MakeKmirror) -> None:
    commit(source.bootstrap, "both", 5, 5, 5)
    here = mirrored(source, make_kmirror)
    eventually(lambda: committed(here.bootstrap, "both") == [5, 5, 5], what="offsets", timeout_s=30)
    member = consumer(here.bootstrap, "both")
    member.subscribe([TOPIC])
    eventually(lambda: len(member.consume(1, timeout=0.5)) == 1, what="a member", timeout_s=30)
    commit(source.bootstrap, "both", 9, 9, 9)
    marked = "offsets are not taken from the source for active groups: both"
    eventually(lambda: marked in here.run("mirror", "describe", "m").stdout, what="describe names it", timeout_s=30)
    assert committed(here.bootstrap, "both") == [5, 5, 5]
    member.close()
    eventually(lambda: committed(here.bootstrap, "both") == [9, 9, 9], what="offsets again", timeout_s=30)
    assert marked not in here.run("mirror", "describe", "m").stdout


def test_the_admin_tool_shows_the_same_table(make_kafka: MakeKafka, make_kmirror: MakeKmirror) -> None:
    kafka = filled(make_kafka())
    commit(kafka.bootstrap, "billing", 5, COUNT, 0)
    here = mirrored(kafka, make_kmirror)
    eventually(lambda: committed(here.bootstrap, "billing") == [5, COUNT, 0], what="offsets", timeout_s=30)
    shown = table(kafka, kafka.bootstrap, "billing")
    assert len(shown) == 3
    assert table(kafka, here.bootstrap, "billing") == shown
