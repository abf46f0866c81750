"""Record batches against bytes from elsewhere: the vectors of KIP-1279's worked example and hand-made damage."""

from __future__ import annotations

import random

import pytest

from kmirror.errors import CorruptData
from kmirror.protocol import records as r
from kmirror.protocol.compression import Compression

ABORT_VECTOR = bytes.fromhex(
    "00 00 00 00 00 00 00 03 00 00 00 42 00 00 00 0b 02 06 cf 41 c6 00 30 00 00 00 00"
    "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0f a1 00 00 ff"
    "ff ff ff 00 00 00 01 20 00 00 00 08 00 00 00 00 0c 00 00 00 00 00 00 00"
)
RESET_VECTOR = bytes.fromhex(
    "00 00 00 00 00 00 00 05 00 00 00 3f 00 00 00 0b 02 78 a6 00 38 00 20 00 00 00 00"
    "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff ff ff ff"
    "ff ff ff ff ff ff ff 00 00 00 01 1a 00 00 00 08 00 00 00 07 06 00 00 00 00"
)


def assigned(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    header = r.parse_header(batch)
    return (
        r.header_with_offset_and_epoch(header, base_offset=base_offset, leader_epoch=leader_epoch)
        + batch[r.HEADER_SIZE_BYTES :]
    )


def test_abort_marker_vector() -> None:
    marker = r.end_txn_marker(commit=False, producer_id=4001, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)
    assert assigned(marker, 3, 11) == ABORT_VECTOR
    assert r.control_type(ABORT_VECTOR) == r.CONTROL_ABORT
    assert r.coordinator_epoch(ABORT_VECTOR) == 0


def test_pid_reset_vector() -> None:
    assert assigned(r.mirror_pid_reset(timestamp_ms=0), 5, 11) == RESET_VECTOR
    assert r.control_type(RESET_VECTOR) == r.CONTROL_MIRROR_PID_RESET


@pytest.mark.parametrize("codec", list(Compression))
def test_round_trip(codec: Compression) -> None:
    rng = random.Random(7)
    records = [
        r.Record(
            key=rng.choice([None, b"", rng.randbytes(9)]),
            value=rng.choice([None, b"", b"v" * rng.randrange(300)]),
            headers=[("h", b"1"), ("h", None)][: rng.randrange(3)],
            timestamp=1_000 + rng.randrange(-500, 500),
        )
        for _ in range(40)
    ]
    batch = r.build_batch(records, base_offset=70, leader_epoch=4, compression=codec, producer_id=9, base_sequence=3)
    [(position, header)] = list(r.walk(batch))
    r.check_crc(batch, position, header)
    assert (position, header.size_bytes, header.next_offset, header.last_sequence) == (0, len(batch), 110, 42)
    back = r.read_records(batch)
    assert [(x.key, x.value, x.headers, x.timestamp) for x in back] == [
        (x.key, x.value, x.headers, x.timestamp) for x in records
    ]
    assert [x.offset for x in back] == list(range(70, 110))


def test_every_flipped_byte_is_found() -> None:
    """Base offset, length and leader epoch lie outside the checksum; everything else is under it."""
    batch = r.build_batch([r.Record(b"key", b"value")])
    outside = {*range(8), *range(12, 16)}
    for position in set(range(len(batch))) - outside:
        damaged = bytearray(batch)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptData):
            r.check_crc(damaged, 0, r.parse_header(damaged))


def test_walk_ends_at_a_partial_tail() -> None:
    one = r.build_batch([r.Record(b"a", b"b")])
    two = r.build_batch([r.Record(b"c", b"d")], base_offset=1)
    for cut in range(len(two)):
        assert [p for p, _ in r.walk(one + two[:cut])] == [0]
    assert [p for p, _ in r.walk(one + two)] == [0, len(one)]


def test_append_time_keeps_a_valid_checksum() -> None:
    batch = r.build_batch([r.Record(b"a", b"b", timestamp=5), r.Record(b"c", None, timestamp=9)])
    head = r.header_with_append_time(batch, 0, r.parse_header(batch), base_offset=3, leader_epoch=1, time_ms=77)
    whole = head + batch[r.HEADER_SIZE_BYTES :]
    header = r.parse_header(whole)
    r.check_crc(whole, 0, header)
    assert header.log_append_time
    assert [x.timestamp for x in r.read_records(whole)] == [77, 77]


def test_sequence_wraps_to_zero() -> None:
    assert r.increment_sequence(r.MAX_SEQUENCE, 1) == 0
    assert r.increment_sequence(r.MAX_SEQUENCE - 2, 5) == 2


def test_record_damage_is_corrupt_data_never_an_index_error() -> None:
    batch = r.build_batch([r.Record(b"key", b"value", [("h", b"x")]), r.Record(None, None)])
    for position in range(r.HEADER_SIZE_BYTES, len(batch)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            damaged = bytearray(batch)
            damaged[position] = value
            try:
                r.read_records(damaged)
            except CorruptData:
                continue
