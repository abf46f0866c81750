"""topic, config, produce and consume against a broker in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kmirror.protocol.records import Record, build_batch, end_txn_marker
from tests.cli.conftest import Broker, Run

pytestmark = pytest.mark.integration


def test_the_life_of_a_topic(on: Run) -> None:
    assert on("topic", "create", "life", "--partitions", 2, "--set", "retention.ms=5").out == "Created topic life.\n"
    again = on("topic", "create", "life")
    assert (again.status, "TOPIC_ALREADY_EXISTS" in again.err) == (1, True)
    assert on("topic", "create", "life", "--if-not-exists").status == 0
    listed = json.loads(on("topic", "list", "--json").out)
    assert [row["partitions"] for row in listed if row["topic"] == "life"] == [2]
    rows = json.loads(on("topic", "describe", "life", "--json").out)
    assert [(row["partition"], row["log_start_offset"], row["high_watermark"]) for row in rows] == [
        (0, 0, 0),
        (1, 0, 0),
    ]
    assert on("topic", "alter", "life", "--partitions", 3).status == 0
    assert on("topic", "alter", "life", "--partitions", 1).status == 1
    gone = on("topic", "delete", "life", "never")
    assert gone.status == 1
    assert "Deleted topic life." in gone.out
    assert "never: UNKNOWN_TOPIC_OR_PARTITION" in gone.err
    described = on("topic", "describe", "life")
    assert described.status == 1
    assert "kmirror topic list" in described.err


def test_settings(on: Run) -> None:
    on("topic", "create", "settings")
    assert "--all" in on("config", "describe", "topic", "settings").out
    assert on("config", "alter", "topic", "settings", "--set", "retention.ms=7").status == 0
    rows = json.loads(on("config", "describe", "topic", "settings", "--json").out)
    assert [(row["name"], row["value"], row["source"]) for row in rows] == [("retention.ms", "7", "topic")]
    every = json.loads(on("config", "describe", "topic", "settings", "--all", "--json").out)
    assert len(every) > 20
    unknown = on("config", "alter", "topic", "settings", "--set", "retention.mss=7")
    assert (unknown.status, "retention.ms" in unknown.err) == (1, True)
    assert on("config", "alter", "topic", "settings", "--unset", "retention.ms").status == 0
    assert json.loads(on("config", "describe", "topic", "settings", "--json").out) == []
    assert on("config", "alter", "topic", "settings").status == 2
    assert on("config", "alter", "topic", "settings", "--set", "a=1", "--unset", "a").status == 2
    assert on("config", "describe", "topic", "never").status == 1


def consumed(on: Run, topic: str, *arguments: object) -> list[tuple[int, str | None, str | None]]:
    ran = on("consume", "--topic", topic, "--json", "--timeout", "0.1", *arguments)
    assert ran.status == 0, ran.err
    rows = [json.loads(line) for line in ran.out.splitlines()]
    return [(row["offset"], row["key"], row["value"]) for row in rows]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(on: Run, lines: Callable[[bytes], None], codec: str) -> None:
    topic = f"data-{codec}"
    on("topic", "create", topic, "--partitions", 1)
    lines(b"a:1\nb:2\nc:3\n")
    ran = on("produce", "--topic", topic, "--key-separator", ":", "--compression", codec, "--json")
    assert (ran.status, json.loads(ran.out)[0]["base_offset"]) == (0, 0)
    assert consumed(on, topic) == [(0, "a", "1"), (1, "b", "2"), (2, "c", "3")]
    assert consumed(on, topic, "--partition", 0, "--from", 1, "--max-messages", 1) == [(1, "b", "2")]
    assert consumed(on, topic, "--from", "latest") == []
    plain = on("consume", "--topic", topic, "--timeout", "0.1").out
    assert plain.splitlines()[0] == "0:0\ta\t1"


def test_keys_decide_the_partition(on: Run, lines: Callable[[bytes], None]) -> None:
    on("topic", "create", "keyed", "--partitions", 3)
    lines(b"".join(b"key-%d=x\n" % (number % 7) for number in range(70)))
    ran = on("produce", "--topic", "keyed", "--key-separator", "=", "--json")
    assert sum(row["records"] for row in json.loads(ran.out)) == 70
    rows = [
        json.loads(line) for line in on("consume", "--topic", "keyed", "--json", "--timeout", "0.1").out.splitlines()
    ]
    assert len(rows) == 70
    assert len({(row["key"], row["partition"]) for row in rows}) == 7


def test_hand_built_sequences(on: Run, lines: Callable[[bytes], None]) -> None:
    on("topic", "create", "sequences", "--partitions", 1)
    producer = ("produce", "--topic", "sequences", "--partition", 0, "--producer-id", 77, "--json")
    for sequence, status, offset in ((0, 0, 0), (0, 0, 0), (1, 0, 1), (5, 1, None)):
        lines(b"x\n")
        ran = on(*producer, "--sequence", sequence)
        assert (ran.status, json.loads(ran.out)[0]["base_offset"]) == (status, offset)
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in json.loads(ran.out)[0]["error"]
    assert on("produce", "--topic", "sequences", "--producer-id", 77).status == 2


def test_wrong_partitions_and_topics(on: Run, lines: Callable[[bytes], None]) -> None:
    on("topic", "create", "one", "--partitions", 1)
    lines(b"x\n")
    assert on("produce", "--topic", "one", "--partition", 1).status == 2
    assert on("produce", "--topic", "no/topic").status == 1
    assert on("consume", "--topic", "one", "--partition", 1).status == 2
    assert on("consume", "--topic", "never").status == 1
    assert on("consume", "--topic", "one", "--from", "yesterday").status == 2
    beyond = on("consume", "--topic", "one", "--partition", 0, "--from", 99)
    assert (beyond.status, "it is empty, the next record gets 0" in beyond.err) == (1, True)
    lines(b"x\ny\n")
    on("produce", "--topic", "one")
    beyond = on("consume", "--topic", "one", "--partition", 0, "--from", 99)
    assert (beyond.status, "one-0 has no offset 99: it holds offsets 0 to 2" in beyond.err) == (1, True)


def test_refusals_say_what_to_do_next(on: Run, lines: Callable[[bytes], None]) -> None:
    lines(b"no key\n")
    assert "a line has no ':': no key" in on("produce", "--topic", "t", "--key-separator", ":").err
    assert "--group" in on("consume", "--topic", "one,two").err
    assert "kmirror topic list" in on("topic", "delete", "never-made").err
    assert "kmirror topic list" in on("config", "alter", "topic", "never-made", "--set", "retention.ms=1").err
    assert "kmirror mirror list" in on("config", "describe", "mirror", "never-made").err
    assert on("topic", "create", "hinted").status == 0
    unknown = on("config", "alter", "topic", "hinted", "--set", "no.such=1")
    assert "kmirror config describe topic hinted --all" in unknown.err


def test_a_topic_is_made_when_it_is_written_to(on: Run, lines: Callable[[bytes], None]) -> None:
    """As with any Kafka client: asking for metadata makes it, where the broker does so."""
    lines(b"first\n")
    ran = on("produce", "--topic", "made-by-writing", "--json")
    assert (ran.status, json.loads(ran.out)[0]["base_offset"]) == (0, 0), ran.err
    assert consumed(on, "made-by-writing") == [(0, None, "first")]


def test_a_broker_that_makes_no_topics(
    run: Run, lines: Callable[[bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmirror.cli.produce.CREATED_WITHIN_S", 0.2)
    strict = Broker(tmp_path / "strict", {"auto.create.topics.enable": "false"})
    try:
        lines(b"x\n")
        ran = run("produce", "--topic", "never", "--bootstrap", strict.bootstrap)
    finally:
        strict.close()
    assert (ran.status, "UNKNOWN_TOPIC_OR_PARTITION" in ran.err, "kmirror topic create" in ran.err) == (1, True, True)


def test_acks_zero_sends_and_knows_no_offset(on: Run, lines: Callable[[bytes], None]) -> None:
    on("topic", "create", "unacknowledged", "--partitions", 1)
    lines(b"x\n")
    ran = on("produce", "--topic", "unacknowledged", "--acks", 0, "--json")
    assert (ran.status, json.loads(ran.out)[0]["base_offset"]) == (0, None)
    lines(b"y\n")
    on("produce", "--topic", "unacknowledged")
    assert [value for _, _, value in consumed(on, "unacknowledged")] == ["x", "y"]


def test_read_committed(on: Run, broker: Broker) -> None:
    """Transactions in an order that clients cannot make at will: appended as a coordinator does it."""
    on("topic", "create", "transactions", "--partitions", 1)

    def batch(producer_id: int) -> bytes:
        return build_batch(
            [Record(None, b"of %d" % producer_id)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
            timestamp_ms=1,
        )

    def marker(producer_id: int, *, commit: bool) -> bytes:
        return end_txn_marker(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
        )

    for data in (batch(1), batch(2), marker(2, commit=False), marker(1, commit=True), batch(3)):
        broker.call(lambda data=data: broker.app.world.partition("transactions", 0).append_coordinator(data))
    broker.settle(lambda: broker.app.world.partition("transactions", 0).when_committed(5))
    assert [value for _, _, value in consumed(on, "transactions")] == ["of 1", "of 2", "of 3"]
    assert [value for _, _, value in consumed(on, "transactions", "--isolation", "read_committed")] == ["of 1"]


def test_every_partition_directory_can_be_dumped(run: Run, broker: Broker) -> None:
    ran = run("dump", "--json", broker.directory)
    assert ran.status == 0, ran.err
    kinds = {
        record["decoded"]["type"]
        for row in map(json.loads, ran.out.splitlines())
        for record in row.get("records", ())
        if record.get("decoded") and "type" in record["decoded"]
    }
    assert {"TopicRecord", "PartitionRecord", "ConfigRecord"} <= kinds
