"""What produce builds and what consume shows, without a broker."""

from __future__ import annotations

import io

import pytest

from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.partition_reader import Batch
from kmirror.cli.produce import Producer, as_record, by_partition, murmur2, records_in_chunks
from kmirror.cli.record_display import record_as_json, visible_records
from kmirror.protocol.records import Record, build_batch, end_txn_marker, parse_header, read_records


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, hashed: int) -> None:
    """Values of Kafka's own test (UtilsTest.testMurmur2)."""
    assert murmur2(key) == hashed % 2**32


def test_lines_become_records() -> None:
    chunks = list(records_in_chunks(io.BytesIO(b"a=1\r\nb=\n\xff=2"), "="))
    assert [(record.key, record.value) for record in chunks[0]] == [(b"a", b"1"), (b"b", b""), (b"\xff", b"2")]
    assert as_record(b"x=y", None) == Record(None, b"x=y")
    with pytest.raises(BadUsage):
        as_record(b"no separator", b"=")


def test_partitions_by_key_and_in_turn() -> None:
    keyed = Record(b"foobar", b"")
    assert by_partition([keyed], partition=None, count=3, turn=0) == {(-790332482 & 0x7FFFFFFF) % 3: [keyed]}
    plain = Record(None, b"")
    assert by_partition([plain], partition=None, count=3, turn=4) == {1: [plain]}
    assert by_partition([plain, keyed], partition=2, count=3, turn=0) == {2: [plain, keyed]}


def test_a_hand_built_producer() -> None:
    producer = Producer(compression=0, producer_id=7, epoch=2, sequence=10)
    header = parse_header(producer.batch([Record(None, b"x")], records_before=5, now_ms=1))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 15)
    anonymous = Producer(compression=0, producer_id=-1, epoch=-1, sequence=0)
    assert parse_header(anonymous.batch([Record(None, b"x")], records_before=5, now_ms=1)).base_sequence == -1


def batch(data: bytes) -> Batch:
    return Batch(parse_header(data), memoryview(data))


def at(data: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + data[8:]


def transactional(offset: int, producer_id: int, value: bytes) -> Batch:
    data = build_batch(
        [Record(None, value)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    return batch(data)


def marker(offset: int, producer_id: int, *, commit: bool) -> Batch:
    data = end_txn_marker(commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)
    return batch(at(data, offset))


def test_aborted_records_are_hidden_from_read_committed() -> None:
    """KIP-98: from the transaction's first offset to its marker; the producer's next transaction is seen again."""
    batches = [
        batch(build_batch([Record(None, b"plain")], base_offset=0)),
        transactional(1, 5, b"aborted"),
        transactional(2, 6, b"committed"),
        marker(3, 5, commit=False),
        marker(4, 6, commit=True),
        transactional(5, 5, b"later"),
        marker(6, 5, commit=True),
    ]
    aborted = [(5, 1)]
    committed = [record.value for record in visible_records(batches, aborted, 0, 1)]
    assert committed == [b"plain", b"committed", b"later"]
    everything = [record.value for record in visible_records(batches, [], 0, 0)]
    assert everything == [b"plain", b"aborted", b"committed", b"later"]


def test_records_before_the_asked_offset_are_not_shown() -> None:
    data = build_batch([Record(None, bytes([65 + n])) for n in range(4)], base_offset=10)
    assert [record.offset for record in visible_records([batch(data)], [], 12, 0)] == [12, 13]


def test_a_corrupt_batch_is_named() -> None:
    data = bytearray(build_batch([Record(None, b"x")], base_offset=3))
    data[-1] ^= 1
    with pytest.raises(Failure, match="offset 3"):
        list(visible_records([batch(bytes(data))], [], 0, 0))


def test_a_record_as_json() -> None:
    record = read_records(build_batch([Record(b"k", None, [("h", b"\x00")])], base_offset=4, timestamp_ms=1500))[0]
    assert record_as_json("t", 2, record) == {
        "topic": "t",
        "partition": 2,
        "offset": 4,
        "timestamp": "1970-01-01T00:00:01.500Z",
        "key": "k",
        "value": None,
        "headers": {"h": "0x00"},
    }
