"""What a Produce may carry (B008 to B010), and what an idempotent producer may rely on (B045, B046)."""

from __future__ import annotations

import time

import pytest

from conformance.wire.batches import (
    GZIP,
    LZ4,
    NO_CODEC,
    SNAPPY,
    TIMESTAMP_MS,
    ZSTD,
    Rec,
    batch,
    message_set_v1,
    payload,
)
from conformance.wire.client import TIMEOUT_S, Broker, Connection, Row, Topic
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest

CORRUPT, OUT_OF_ORDER, DUPLICATE, OLD_EPOCH, UNSUPPORTED_CODEC, INVALID = 2, 45, 46, 47, 76, 87
UNKNOWN_TOPIC, UNKNOWN_ID, TOO_LARGE, INVALID_ACKS, INVALID_TIMESTAMP = 3, 100, 10, 21, 32
COORDINATOR_LOADING = 14


def producer_id(broker: Broker) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    deadline = time.monotonic() + TIMEOUT_S
    while (answer := broker.request(request)).error_code == COORDINATOR_LOADING:
        assert time.monotonic() < deadline, "InitProducerId still answers 14"
    assert answer.error_code == 0 and answer.producer_epoch == 0, answer
    return int(answer.producer_id)


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 10, 11, 12, 13])
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_stores_the_batch_as_sent(broker: Broker, topic: Topic, version: int, acks: int) -> None:
    version = broker.version("Produce", version)
    sent = batch([Rec(b"value", b"key", headers=((b"h", b"x"), (b"n", None))), Rec(None, b"tombstone"), Rec(b"")])
    answer = broker.produce(topic, sent, version=version, acks=acks)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 0, -1)
    if version >= 5:
        assert answer.log_start_offset == 0
    stored = bytes(broker.fetch(Row(topic)).row().records or b"")  # type: ignore[arg-type]
    # base offset and leader epoch are the broker's; magic, CRC and all after it are the client's
    assert stored[16:] == sent[16:] and stored[8:12] == sent[8:12]


@pytest.mark.parametrize("version", range(3, 14))
def test_refusals_at_every_version(broker: Broker, topic: Topic, version: int) -> None:
    version = broker.version("Produce", version)
    row = broker.produce(topic, batch([b"a"], last_delta=3), version=version)
    assert (row.error_code, row.base_offset, row.log_append_time_ms) == (INVALID, -1, -1)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_at_every_version(broker: Broker, version: int) -> None:
    producer_id(broker)  # loaded
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answer = broker.request(request, broker.version("InitProducerId", version))
    assert (answer.error_code, answer.producer_epoch) == (0, 0) and answer.producer_id >= 0


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD])
def test_every_codec_is_kept(broker: Broker, topic: Topic, codec: int) -> None:
    """B003, step 2: the stored codec is the one that was asked for."""
    assert broker.produce(topic, batch([b"a" * 500, b"b" * 500], codec=codec)).error_code == 0
    assert [entry.attributes & 7 for entry in broker.scan(topic)] == [codec]


def test_zstd_needs_a_new_version(broker: Broker, topic: Topic) -> None:
    """B008, steps 1 and 2: Produce v6 is answered with error 76 on a usable connection; v7 stores it."""
    sent = batch([b"x" * 100], codec=ZSTD)
    with broker.connect() as connection:
        row = broker.produce(topic, sent, version=broker.version("Produce", 6), connection=connection)
        assert row.error_code == UNSUPPORTED_CODEC
        assert broker.latest(topic) == 0
        row = broker.produce(topic, sent, version=broker.version("Produce", 7), connection=connection)
        assert (row.error_code, row.base_offset) == (0, 0)


def test_zstd_topic_and_an_old_fetch(broker: Broker) -> None:
    """B008, step 3: compression.type=zstd and a Fetch from before zstd: error 76 with empty records, or the bytes as
    they are, which is what Kafka does since 4.0 (FINDINGS); never null records. v10 serves."""
    topic = broker.create_topic(configs={"compression.type": "zstd"})
    assert broker.produce(topic, batch([b"x" * 100], codec=ZSTD)).error_code == 0
    row = broker.fetch(Row(topic), version=broker.version("Fetch", 9)).row()
    assert row.records is not None
    assert (row.error_code, len(row.records) > 0) in ((UNSUPPORTED_CODEC, False), (0, True))
    assert len(broker.fetch(Row(topic), version=broker.version("Fetch", 10)).batches()) == 1


def _records(count: int) -> bytes:
    return payload([Rec(b"value-%d" % index) for index in range(count)], TIMESTAMP_MS)


_LONG_KEY = b"\x16" + b"\x00\x00\x00" + b"\x64" + b"abcdefg"  # length 11; the key claims 50 bytes
MALFORMED = {
    "count 2 with one record": {"raw_payload": _records(1), "count": 2, "last_delta": 1},
    "a record length past the end": {"raw_payload": b"\x7e" + _records(1)[1:], "count": 1, "last_delta": 0},
    "a key longer than its record": {"raw_payload": _LONG_KEY, "count": 1, "last_delta": 0},
    "bytes after the last record": {"raw_payload": _records(1) + b"garbage", "count": 1, "last_delta": 0},
}


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records_under_a_good_crc(broker: Broker, topic: Topic, name: str, codec: int) -> None:
    """B009 (a) to (d), (j)."""
    if codec == GZIP and name == "a record length past the end":
        pytest.skip("Kafka accepts this one (FINDINGS), so nothing can be asked of others")
    row = broker.produce(topic, batch(codec=codec, **MALFORMED[name]))  # type: ignore[arg-type]
    assert row.error_code == INVALID, row
    assert broker.latest(topic) == 0
    assert broker.produce(topic, batch()).base_offset == 0


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(batch([], count=0, last_delta=0), INVALID, id="count 0"),
        pytest.param(batch([b"a", b"b", b"c"], last_delta=9), INVALID, id="last offset delta 9 with three records"),
        pytest.param(batch(control=True), INVALID, id="a control batch"),
        pytest.param(batch(producer_id=7, producer_epoch=0, base_sequence=-1), INVALID, id="producer id, no sequence"),
        pytest.param(batch(flip_crc=True), CORRUPT, id="a wrong CRC"),
        pytest.param(batch() + batch(), INVALID, id="two batches"),
        pytest.param(batch(codec=GZIP) + batch(), INVALID, id="two batches, the first compressed"),
        pytest.param(b"", INVALID, id="no bytes"),
    ],
)
def test_a_batch_that_no_client_may_send(broker: Broker, topic: Topic, sent: bytes, code: int) -> None:
    """B009 (e) to (i) and B010: refused as a whole, the connection lives, the next batch gets the next offset."""
    with broker.connect() as connection:
        row = broker.produce(topic, sent, connection=connection)
        assert row.error_code == code, row
        assert broker.latest(topic) == 0
        row = broker.produce(topic, batch(), connection=connection)
        assert (row.error_code, row.base_offset) == (0, 0)


def test_an_old_message_set_is_refused(broker: Broker, topic: Topic) -> None:
    """B010: magic 1 in a Produce that must carry magic 2; nothing is appended."""
    row = broker.produce(topic, message_set_v1(b"old"))
    assert row.error_code == INVALID, row
    assert broker.latest(topic) == 0


def test_null_records_append_nothing(broker: Broker, topic: Topic) -> None:
    """B010: a null slot is an error or costs the connection; Kafka never answers it (FINDINGS)."""
    version = broker.version("Produce")
    with Connection(broker.address, timeout_s=2) as connection:
        try:
            row = broker.produce(topic, None, version=version, connection=connection)
            assert row.error_code != 0
        except (ConnectionError, TimeoutError):
            pass
    assert broker.latest(topic) == 0
    assert broker.produce(topic, batch()).base_offset == 0


def test_a_batch_above_max_message_bytes(broker: Broker) -> None:
    topic = broker.create_topic(configs={"max.message.bytes": "1000"})
    assert broker.produce(topic, batch([b"x" * 1000])).error_code == TOO_LARGE
    assert broker.latest(topic) == 0
    assert broker.produce(topic, batch([b"x" * 900])).error_code == 0


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_are_refused(broker: Broker, topic: Topic, acks: int) -> None:
    assert broker.produce(topic, batch(), acks=acks).error_code == INVALID_ACKS
    assert broker.latest(topic) == 0


def test_an_unknown_partition_or_topic(broker: Broker, topic: Topic) -> None:
    assert broker.produce(topic, batch(), partition=7).error_code == UNKNOWN_TOPIC
    nowhere = Topic(broker.new_name("absent"), bytes(range(16)), 1)
    assert broker.produce(nowhere, batch(), version=broker.version("Produce", 12)).error_code == UNKNOWN_TOPIC
    if broker.version("Produce") >= 13:
        assert broker.produce(nowhere, batch(), version=13).error_code == UNKNOWN_ID


def test_log_append_time(broker: Broker) -> None:
    """The broker's clock stamps the batch: the answer says when, and the stored CRC is right for the new header."""
    topic = broker.create_topic(configs={"message.timestamp.type": "LogAppendTime"})
    row = broker.produce(topic, batch([b"a", b"b"]))
    assert row.error_code == 0 and row.log_append_time_ms > TIMESTAMP_MS
    (stored,) = broker.scan(topic)
    assert stored.crc_ok and stored.attributes & 8 and stored.max_timestamp == row.log_append_time_ms


def test_timestamps_outside_the_topics_limits(broker: Broker) -> None:
    topic = broker.create_topic(configs={"message.timestamp.before.max.ms": "3600000"})
    assert broker.produce(topic, batch()).error_code == INVALID_TIMESTAMP
    assert broker.latest(topic) == 0


def test_a_compacted_topic_needs_keys(broker: Broker) -> None:
    topic = broker.create_topic(configs={"cleanup.policy": "compact"})
    for codec in (NO_CODEC, GZIP):
        row = broker.produce(topic, batch([Rec(b"v", b"k"), Rec(b"no key")], codec=codec))
        assert row.error_code == INVALID
        if broker.version("Produce") >= 8:
            assert [error.batch_index for error in row.record_errors] == [1]
    assert broker.latest(topic) == 0
    assert broker.produce(topic, batch([Rec(None, b"k")])).error_code == 0


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP], ids=["plain", "gzip"])
def test_a_base_offset_other_than_0_is_refused(broker: Broker, topic: Topic, codec: int) -> None:
    assert broker.produce(topic, batch([b"a", b"b"], base_offset=500, codec=codec)).error_code == INVALID
    assert broker.latest(topic) == 0


def test_the_broker_assigns_offsets_outside_the_crc(broker: Broker, topic: Topic) -> None:
    for records in ([b"a", b"b"], [b"c"]):
        broker.produce(topic, batch(records))
    assert [(entry.base_offset, entry.last_offset, entry.crc_ok) for entry in broker.scan(topic)] == [
        (0, 1, True),
        (2, 2, True),
    ]


# --- idempotent producers


def _sequenced(pid: int, sequence: int, count: int = 1, *, epoch: int = 0) -> bytes:
    return batch([b"v"] * count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)


def test_the_last_five_batches_deduplicate_with_their_offsets(broker: Broker, topic: Topic) -> None:
    """B045: a resend of any of the last five is answered with its first offset and stores nothing."""
    pid = producer_id(broker)
    sent = [(0, 1), (1, 1), (2, 3), (5, 1), (6, 1), (7, 1)]
    offsets = [broker.produce(topic, _sequenced(pid, *item)).base_offset for item in sent]
    assert offsets == [0, 1, 2, 5, 6, 7]
    for item, offset in list(zip(sent, offsets, strict=True))[1:]:
        row = broker.produce(topic, _sequenced(pid, *item))
        assert (row.error_code, row.base_offset) == (0, offset), item
    assert broker.latest(topic) == 8
    assert broker.produce(topic, _sequenced(pid, 0)).error_code in (OUT_OF_ORDER, DUPLICATE)
    assert broker.produce(topic, _sequenced(pid, 2, 2)).error_code == OUT_OF_ORDER, "another length is no duplicate"
    assert broker.produce(topic, _sequenced(pid, 20)).error_code == OUT_OF_ORDER, "a gap"
    assert broker.latest(topic) == 8


def test_producer_epochs(broker: Broker, topic: Topic) -> None:
    """B045: a new epoch starts at sequence 0, an old one is fenced."""
    pid = producer_id(broker)
    assert broker.produce(topic, _sequenced(pid, 0, 8)).error_code == 0
    assert broker.produce(topic, _sequenced(pid, 5, epoch=1)).error_code == OUT_OF_ORDER
    assert broker.produce(topic, _sequenced(pid, 0, epoch=1)).error_code == 0
    assert broker.produce(topic, _sequenced(pid, 8, epoch=0)).error_code == OLD_EPOCH
    assert broker.latest(topic) == 9


def test_a_producer_without_state_may_start_anywhere(broker: Broker, topic: Topic) -> None:
    """B046: when the partition knows nothing of the producer, any first sequence is accepted."""
    pid = producer_id(broker)
    assert broker.produce(topic, _sequenced(pid, 7)).error_code == 0
    assert broker.produce(topic, _sequenced(pid, 8)).error_code == 0
    assert broker.produce(topic, _sequenced(pid, 7)).base_offset == 0


def test_sequences_wrap(broker: Broker, topic: Topic) -> None:
    """After 2^31 - 1 comes 0, also inside one batch."""
    pid = producer_id(broker)
    assert broker.produce(topic, _sequenced(pid, 2**31 - 2, 3)).error_code == 0
    assert broker.produce(topic, _sequenced(pid, 1)).error_code == 0
    assert broker.produce(topic, _sequenced(pid, 2**31 - 2, 3)).base_offset == 0
    assert broker.latest(topic) == 4


def test_producer_ids_are_never_handed_out_twice(broker: Broker) -> None:
    ids = [producer_id(broker) for _ in range(50)]
    assert len(set(ids)) == len(ids)


def test_pipelined_batches_keep_their_order(broker: Broker, topic: Topic) -> None:
    """B045: five in flight on one connection, as an idempotent client sends them."""
    pid, version = producer_id(broker), broker.version("Produce")
    with broker.connect() as connection:
        for sequence in range(50):
            request = broker.produce_request(topic, _sequenced(pid, sequence), version=version)
            connection.send(request, version)
        rows = [connection.receive().responses[0].partition_responses[0] for _ in range(50)]
    assert [(row.error_code, row.base_offset) for row in rows] == [(0, offset) for offset in range(50)]
