"""Message sets of magic 0 and 1, as Kafka 2.1.1 left them: opened, read, mirrored, recovered, compacted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kmirror.clock import ManualClock
from kmirror.errors import CorruptData
from kmirror.protocol import records as r
from kmirror.protocol.old_records import with_lz4_checksum
from kmirror.storage import cleaning
from kmirror.storage.errors import NotOneBatch
from kmirror.storage.filesystem import OsFileSystem
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from tests.storage.making import content, open_log, produce, read_bytes, replicate

SEGMENTS = Path(__file__).parent / "segments" / "2.1.1"
NAMES = sorted(path.name for path in SEGMENTS.glob("magic-*"))
Row = tuple[int, int, bytes | None, bytes | None]
"""(offset, timestamp, key, value)"""


def dumped(name: str) -> list[Row]:
    """What Kafka's own dump tool says."""
    found: list[Row] = []
    for dump in sorted((SEGMENTS / name).glob("*.dump.txt")):
        for match in re.finditer(
            r"^offset: (\d+) position: \d+ \w+: (-?\d+) .*? key: (\S+) payload: (.*)$", dump.read_text(), re.MULTILINE
        ):
            found.append((int(match[1]), int(match[2]), match[3].encode(), match[4].encode()))
    return found


def copied(name: str, tmp_path: Path) -> Path:
    target = tmp_path / "t-0"
    shutil.copytree(SEGMENTS / name, target, ignore=shutil.ignore_patterns("*.dump.txt"))
    return target


def raw(name: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((SEGMENTS / name).glob("*.log")))


def rows(data: bytes) -> list[Row]:
    return [
        (record.offset, record.timestamp, record.key, record.value)
        for position, _ in r.walk(data)
        for record in r.read_records(data, position)
    ]


def test_recordings_are_there() -> None:
    assert len(NAMES) == 10
    assert {data[16] for data in map(raw, NAMES)} == {0, 1}


@pytest.mark.parametrize("name", NAMES)
def test_records_are_those_of_kafkas_dump(name: str) -> None:
    data = raw(name)
    for position, header in r.walk(data):
        r.check_crc(data, position, header)
    assert rows(data) == dumped(name) != []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_directory_opens_and_every_offset_can_be_read(name: str, clean: bool, tmp_path: Path) -> None:
    log = open_log(OsFileSystem(), directory=str(copied(name, tmp_path)), clean=clean)
    expected = dumped(name)
    end = expected[-1][0] + 1
    assert log.log_end_offset == end
    assert content(log) == raw(name)
    for offset, _, _, value in expected:
        data = read_bytes(log, offset, max_bytes=1)
        assert (offset, value) in [(row[0], row[3]) for row in rows(data)]
    times = [timestamp for _, timestamp, _, _ in expected]
    if max(times) >= 0:
        found = log.offset_for_timestamp(max(times), end)
        assert found is not None and found.offset == expected[times.index(max(times))][0]
    log.close(clean=True)
    again = open_log(OsFileSystem(), directory=str(tmp_path / "t-0"), clean=True)
    assert (again.log_end_offset, content(again)) == (end, raw(name))


@pytest.mark.parametrize("name", NAMES)
def test_replicated_byte_for_byte_and_recovered(name: str) -> None:
    data = raw(name)
    whole = open_log(MemoryFileSystem())
    replicate(whole, data)
    one_by_one = open_log(MemoryFileSystem(seed=1))
    for position, header in r.walk(data):
        replicate(one_by_one, data[position : position + header.size_bytes])
    for log in (whole, one_by_one):
        assert (content(log), log.log_end_offset) == (data, dumped(name)[-1][0] + 1)
        log.flush()
        reopened = open_log(log.fs.crash(keep_nothing=True))  # type: ignore[attr-defined]
        assert (content(reopened), reopened.log_end_offset) == (data, log.log_end_offset)
        assert reopened.epochs.entries == log.epochs.entries


def test_a_damaged_message_is_not_taken_and_cut_from_a_tail() -> None:
    data = bytearray(raw("magic-v1-none-0"))
    second = next(position for position, _ in list(r.walk(data))[1:])
    data[second + 40] ^= 1
    log = open_log(MemoryFileSystem())
    with pytest.raises(CorruptData, match="checksum"):
        replicate(log, bytes(data))
    fs = MemoryFileSystem(seed=2)
    fs.make_dirs("/data/t-0")
    fs.open("/data/t-0/00000000000000000000.log", create=True).append([data])
    recovered = open_log(fs)
    assert content(recovered) == bytes(data[:second])
    assert recovered.log_end_offset == 1


def test_zeros_are_no_messages() -> None:
    with pytest.raises(CorruptData):
        r.parse_header(bytes(100))
    fs = MemoryFileSystem()
    fs.make_dirs("/data/t-0")
    fs.open("/data/t-0/00000000000000000000.log", create=True).append([raw("magic-v0-none-0"), bytes(4096)])
    assert content(open_log(fs)) == raw("magic-v0-none-0")


@pytest.mark.parametrize("name", NAMES)
def test_any_cut_or_flipped_byte_is_corrupt_data(name: str) -> None:
    """Never an IndexError, never a record that was not written."""
    data = raw(name)
    first = next(r.walk(data))[1].size_bytes
    for size in range(first):
        for data_of in (data[:size], data[:size] + bytes(first - size)):
            if data_of == data[:first]:
                continue  # it ends in zeros itself
            try:
                header = r.parse_header(data_of)
                r.check_crc(data_of, 0, header)
            except CorruptData:
                continue
            raise AssertionError(f"{size} of {first} bytes passed")
    for position in range(8, first):
        damaged = bytearray(data[:first])
        damaged[position] ^= 0x41
        with pytest.raises(CorruptData):
            header = r.parse_header(damaged)
            r.check_crc(damaged, 0, header)
            r.read_records(damaged)


def test_cut_inside_a_wrapper_takes_all_of_it() -> None:
    data = raw("magic-v1-gzip-0")
    log = open_log(MemoryFileSystem())
    replicate(log, data)
    (_, first), *_ = r.walk(data)
    assert log.truncate_to(first.last_offset + 2) == first.next_offset
    assert content(log) == data[: first.size_bytes]


def test_newer_batches_follow_older_sets() -> None:
    """message.format.version was raised: epochs begin with the first batch of magic 2."""
    log = open_log(MemoryFileSystem())
    replicate(log, raw("magic-mixed-0"))
    assert log.epochs.entries == ((0, 6),)
    assert log.last_leader_epoch == 0


def test_producers_may_not_write_them() -> None:
    log = open_log(MemoryFileSystem())
    for name in NAMES:
        with pytest.raises(NotOneBatch, match="magic"):
            produce(log, raw(name))


def test_absolute_offsets_inside_a_magic_1_wrapper() -> None:
    """Some clients did not count from 0; the wrapper's offset is the last one's either way."""
    data = raw("magic-v1-none-0")
    (_, _), (second, header), *_ = r.walk(data)
    size = header.size_bytes
    inner = data[:second] + data[second : second + size]
    value = r.compress(r.Compression.GZIP, inner)
    body = b"\x01\x01" + (0).to_bytes(8, "big") + (-1).to_bytes(4, "big", signed=True)
    body += len(value).to_bytes(4, "big") + value
    crc = r.old_crc(bytes(16) + body, 0, 16 + len(body)).to_bytes(4, "big")
    for last in (1, 7):
        message = last.to_bytes(8, "big") + (4 + len(body)).to_bytes(4, "big") + crc + body
        r.check_crc(message, 0, r.parse_header(message))
        assert [record.offset for record in r.read_records(message)] == [last - 1, last]


def test_the_lz4_header_checksum_of_old_clients_is_put_right() -> None:
    frame = r.compress(r.Compression.LZ4, b"some bytes")
    for wrong in (0, 0xFF):
        broken = frame[:6] + bytes([wrong]) + frame[7:]
        assert with_lz4_checksum(broken) == frame
    assert with_lz4_checksum(b"not a frame") == b"not a frame"


@pytest.mark.parametrize("name", NAMES)
def test_compaction_makes_magic_2_of_what_it_rewrites(name: str) -> None:
    clock = ManualClock()
    fs = MemoryFileSystem(clock=clock)
    log: Log = open_log(fs, clock=clock, config=LogConfig(cleanup_policy="compact"))
    data, expected = raw(name), dumped(name)
    replicate(log, data)
    log.roll()
    newer = r.build_batch([r.Record(expected[0][2], None)], base_offset=log.log_end_offset, leader_epoch=3)
    replicate(log, newer)
    log.roll()
    replicate(log, r.build_batch([r.Record(b"active", b"x")], base_offset=log.log_end_offset, leader_epoch=3))
    log.flush()
    end, now_ms = log.log_end_offset, clock.time_ms()
    found = cleaning.dirt(log, cleaned_up_to=-1, last_stable_offset=end, now_ms=now_ms)
    job = cleaning.plan(log, found, now_ms=now_ms, memory_bytes=1 << 27)
    assert job is not None
    for step in cleaning.clean(fs, job):
        assert isinstance(step, int) or cleaning.swap(log, step, now_ms)
    kept = {row[2]: row for row in expected}
    left = rows(content(log))
    gone = {expected[0][2]}
    assert [row for row in left if row[0] <= expected[-1][0]] == [
        row for row in sorted(kept.values()) if row[2] not in gone
    ]
    assert all(header.magic == 2 for header, _ in log.batches(0, end))
    assert log.log_end_offset == end
