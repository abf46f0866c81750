"""Our consumer and librdkafka's in one group: each of them leads once, and both agree on who reads what."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.conftest import Broker, Run
from tests.cli.test_group_commands import Consumer, members_of

pytestmark = [pytest.mark.integration, pytest.mark.peers]

POLL_S = 0.05
POLLS = 400


@pytest.fixture
def librdkafka(broker: Broker) -> Iterator[Callable[[str, str], Any]]:
    """`librdkafka(topic, group)`: a consumer with the range assignor."""
    from confluent_kafka import Consumer as Theirs

    made: list[Any] = []

    def make(topic: str, group: str) -> Any:
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        made.append(Theirs(settings | {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 200}))
        made[-1].subscribe([topic])
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def poll_until(consumer: Any, holds: Callable[[], bool]) -> list[tuple[int, int]]:
    """What it read meanwhile."""
    seen = []
    for _ in range(POLLS):
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            seen.append((message.partition(), message.offset()))
        if holds():
            return seen
    raise AssertionError("it does not come about")


@pytest.mark.parametrize("who_leads", ["kmirror", "librdkafka"])
def test_a_group_of_both(
    who_leads: str, on: Run, broker: Broker, lines: Callable[[bytes], None], librdkafka: Callable[[str, str], Any]
) -> None:
    """The first to come leads. Partitions are shared by range, handed over, and every record is read by somebody."""
    topic = group = f"mixed-{who_leads}"
    assert on("topic", "create", topic, "--partitions", 3).status == 0
    if who_leads == "kmirror":
        ours = Consumer(broker, topic, group)
        members_of(on, group, 1)
        theirs = librdkafka(topic, group)
    else:
        theirs = librdkafka(topic, group)
        poll_until(theirs, lambda: len(theirs.assignment()) == 3)
        ours = Consumer(broker, topic, group)
    poll_until(theirs, lambda: 0 < len(theirs.assignment()) < 3)
    members = members_of(on, group, 2)
    shares = {member["client_id"]: [partition["partition"] for partition in member["partitions"]] for member in members}
    assert sorted(index for share in shares.values() for index in share) == [0, 1, 2]
    assert sorted(map(len, shares.values())) == [1, 2]
    assert sorted(place.partition for place in theirs.assignment()) == shares["rdkafka"]
    for index in range(3):
        lines(b"x\ny\n")
        assert on("produce", "--topic", topic, "--partition", index).status == 0
    read: list[tuple[int, int]] = []
    wanted = 2 * len(shares["rdkafka"])
    for _ in range(POLLS):
        if len(read) >= wanted:
            break
        message = theirs.poll(POLL_S)
        if message is not None and message.error() is None:
            read.append((message.partition(), message.offset()))
    ours.wait_for(2 * len(shares["kmirror-cli"]))
    assert sorted(read + ours.rows) == [(index, offset) for index in range(3) for offset in (0, 1)]
    assert ours.end()[0] == 130
    poll_until(theirs, lambda: len(theirs.assignment()) == 3)
    described = json.loads(on("group", "describe", group, "--json").out)[0]
    rows = {row["partition"]: row["committed_offset"] for row in described["partitions"]}
    assert {rows[index] for index in shares["kmirror-cli"]} == {2}
