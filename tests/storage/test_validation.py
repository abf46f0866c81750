"""The walk through a client's records against the full reader of `protocol.records`, with sound and damaged batches."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from kmirror.errors import CorruptData
from kmirror.protocol.records import Record, build_batch, parse_header, read_records
from kmirror.storage.errors import AppendRefused
from kmirror.storage.validation import summarize
from tests.storage.making import NOW_MS


def random_batch(chance: random.Random) -> bytes:
    """Half of the time records of one shape in a row, which take the fast way; headers and nulls among the others."""
    uniform = chance.random() < 0.5
    size = chance.choice([0, 1, 20, 63, 64, 200, 9000])
    records = []
    for index in range(chance.choice([1, 2, 9, 40, 200])):
        key = None if chance.random() < (0 if uniform else 0.2) else b"k" * (5 if uniform else chance.randint(0, 80))
        value = b"v" * (size if uniform else chance.randint(0, 300))
        headers: list[tuple[str, bytes | None]] = [("h", b"x"), ("n", None)] if chance.random() < 0.05 else []
        records.append(Record(key, value, headers, timestamp=NOW_MS + index * chance.choice([0, 1, 1, 40, -3])))
    return build_batch(records, compression=chance.choice([0, 0, 0, 1, 3]))


def reference(data: bytes) -> tuple[int, int, int, bool] | None:
    """(smallest and largest timestamp, records without key, offsets in order), None when the records are not sound."""
    try:
        records = read_records(data)
    except CorruptData:
        return None
    times = [record.timestamp for record in records]
    in_order = [record.offset for record in records] == list(range(len(records)))
    return min(times), max(times), sum(record.key is None for record in records), in_order


def summary(data: bytes) -> tuple[int, int, int, bool] | None:
    try:
        found = summarize(memoryview(data), parse_header(data))
    except AppendRefused:
        return None
    return tuple(found[:4])  # type: ignore[return-value]


def test_sound_batches(rng: random.Random) -> None:
    for _ in range(400):
        data = random_batch(rng)
        expected = reference(data)
        assert expected is not None and summary(data) == expected


def test_damaged_batches_are_told_from_sound_ones(rng: random.Random) -> None:
    """A byte of the records is changed, a piece is cut out, or the count is another."""
    refused = 0
    for _ in range(1500):
        data = bytearray(random_batch(rng))
        kind = rng.random()
        if kind < 0.6:
            data[rng.randrange(61, len(data))] = rng.randrange(256)
        elif kind < 0.8:
            at = rng.randrange(61, len(data))
            del data[at : at + rng.randint(1, 5)]
            struct.pack_into(">i", data, 8, len(data) - 12)
        else:
            count = struct.unpack_from(">i", data, 57)[0]
            struct.pack_into(">i", data, 57, count + rng.choice([-1, 1, 100]) if count > 1 else 2)
        expected, found = reference(bytes(data)), summary(bytes(data))
        refused += expected is None
        if expected is None or data[22] & 7:
            assert found == expected
        else:  # offset deltas are looked at in compressed batches only, as Kafka does
            assert found is not None and found[:3] == expected[:3]
    assert 300 < refused < 1300


def crc_right(data: bytearray) -> bytes:
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize("codec", [0, 1])
def test_known_bug_b009(codec: int) -> None:
    """Malformed records inside a batch with a right checksum: each form is refused."""
    good = build_batch([Record(b"key", b"value", timestamp=NOW_MS)], compression=codec)
    assert summary(good) is not None
    two = bytearray(good)
    struct.pack_into(">i", two, 57, 2)
    assert summary(crc_right(two)) is None
    for payload in (
        b"\xfe\x01" + b"\0" * 3,  # a length beyond the end
        b"\x14\0\0\0\x20abc\x02x\0",  # a key longer than its record
        b"\x10\0\0\0\x02k\x02v\0" + b"\0",  # garbage behind the last record
        b"",
    ):
        bad = _with_payload(payload, codec)
        assert summary(bad) is None, payload


def _with_payload(payload: bytes, codec: int) -> bytes:
    from kmirror.protocol.compression import compress

    body = compress(codec, payload)
    head = bytearray(build_batch([Record(b"key", b"value", timestamp=NOW_MS)], compression=codec)[:61])
    struct.pack_into(">i", head, 8, 49 + len(body))
    return crc_right(head + bytearray(body))
