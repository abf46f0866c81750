"""The end of a log after a crash, on real files: what is cut, what is reported, and how much is read for it.

Above the recovery point a torn or rotten tail of any kind is cut at the last good batch. Below it damage is reported
with offset and file, and nothing is changed. Recovery reads what it must and keeps little of it in memory.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import pytest

from kmirror.errors import CorruptData
from kmirror.limits import BATCH_AT_ONCE_BYTES, HEADER_WINDOW_BYTES, SCAN_WINDOW_BYTES
from kmirror.protocol.records import HEADER_SIZE_BYTES, walk
from kmirror.storage.filesystem import OsFile, OsFileSystem
from kmirror.storage.flush import FACTS_FILE, Facts
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from kmirror.storage.segment import file_name
from tests.storage.making import DIRECTORY, batch, content, offsets, open_log, produce, replicate

GOOD = 4
NEXT = batch(3, base=GOOD, epoch=0, size=200)
RNG = random.Random(7)


def _claims(length: int, *, magic: int = 2) -> bytes:
    """A header whose length is damaged: the rest of the file seems to belong to it."""
    head = bytearray(batch(1, base=GOOD, epoch=0)[:HEADER_SIZE_BYTES])
    struct.pack_into(">i", head, 8, length)
    head[16] = magic
    return bytes(head)


TAILS = {
    "one byte": NEXT[:1],
    "header cut": NEXT[:40],
    "only a header": NEXT[:HEADER_SIZE_BYTES],
    "body cut": NEXT[:-7],
    "last byte wrong": NEXT[:-1] + bytes([NEXT[-1] ^ 0x80]),
    "page in the middle lost": NEXT[:100] + bytes(128) + NEXT[228:],
    "zeros": bytes(4096),
    "preallocated": bytes(1 << 20),
    "garbage": RNG.randbytes(5000),
    "garbage with a magic": RNG.randbytes(16) + b"\2" + RNG.randbytes(5000),
    "garbage with an old magic": RNG.randbytes(16) + b"\1" + RNG.randbytes(5000),
    "negative length": _claims(-5) + bytes(100),
    "length of a header": _claims(49) + bytes(100),
    "offset goes back": batch(1, base=1, epoch=0),
    "epoch goes back": batch(1, base=GOOD, epoch=2) + batch(1, base=GOOD + 1, epoch=1),
    "good batches behind a bad one": NEXT[:-1] + b"!" + batch(1, base=GOOD + 3, epoch=0),
}
WHOLE_IN_FORM = (
    "last byte wrong",
    "page in the middle lost",
    "offset goes back",
    "epoch goes back",
    "good batches behind a bad one",
)
KEPT = {"epoch goes back": [(GOOD, GOOD)]}


def directory_of(tmp_path: Path) -> str:
    return str(tmp_path / "t-0")


def log_path(tmp_path: Path, base: int = 0) -> Path:
    return tmp_path / "t-0" / file_name(base, ".log")


def crashed_with(tmp_path: Path, tail: bytes) -> None:
    log = open_log(OsFileSystem(), directory=directory_of(tmp_path))
    for _ in range(GOOD // 2):
        produce(log, batch(2, pid=3, seq=log.log_end_offset))
    log.flush()
    log.close(clean=False)
    with log_path(tmp_path).open("ab") as file:
        file.write(tail)


@pytest.mark.parametrize(
    ("name", "clean"),
    [(name, False) for name in TAILS] + [(name, True) for name in TAILS if name not in WHOLE_IN_FORM],
)
def test_a_bad_tail_is_cut_at_the_last_good_batch(tmp_path: Path, name: str, clean: bool) -> None:
    """Also when the stop was clean and somebody wrote to the file since, if it shows: nobody reads checksums then."""
    crashed_with(tmp_path, TAILS[name])
    expected = [(0, 1), (2, 3), *KEPT.get(name, [])]
    log = open_log(OsFileSystem(), directory=directory_of(tmp_path), clean=clean, recovery_point=GOOD)
    assert offsets(log) == expected
    assert str(log_path(tmp_path)) in log.report.notes[-1] and "cut at byte" in log.report.notes[-1]
    assert log_path(tmp_path).stat().st_size == log.size_bytes
    assert produce(log, batch(1, pid=3, seq=GOOD), epoch=2).base_offset == log.log_end_offset - 1 == expected[-1][1] + 1
    log.close(clean=False)
    again = open_log(OsFileSystem(), directory=directory_of(tmp_path), recovery_point=GOOD)
    assert (offsets(again), again.report.notes) == ([*expected, (expected[-1][1] + 1,) * 2], [])


def test_a_length_that_is_the_whole_segment_does_not_fill_the_memory(tmp_path: Path) -> None:
    """Both forms of header; the file is sparse, as after a power cut."""
    for magic in (2, 1):
        place = tmp_path / str(magic)
        crashed_with(place, _claims(12 * BATCH_AT_ONCE_BYTES, magic=magic))
        with log_path(place).open("r+b") as file:
            file.truncate(13 * BATCH_AT_ONCE_BYTES)
        tracemalloc.start()
        try:
            log = open_log(OsFileSystem(), directory=directory_of(place), recovery_point=GOOD)
            assert tracemalloc.get_traced_memory()[1] < BATCH_AT_ONCE_BYTES
        finally:
            tracemalloc.stop()
        assert offsets(log) == [(0, 1), (2, 3)]
        assert "checksum" in log.report.notes[-1]


@pytest.mark.parametrize("limit", [1, 100, 1 << 30])
def test_batches_checked_in_pieces_are_checked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Producers, epochs and aborted transactions of large batches count too, and a bit in each is found."""
    monkeypatch.setattr("kmirror.storage.recovery.BATCH_AT_ONCE_BYTES", limit)
    monkeypatch.setattr("kmirror.storage.segment.SCAN_WINDOW_BYTES", 64)
    log = open_log(OsFileSystem(), directory=directory_of(tmp_path))
    for number in range(6):
        produce(log, batch(2, pid=9, seq=2 * number, size=30 * number), epoch=number // 2)
    whole, epochs = content(log), log.epochs.entries
    log.close(clean=False)
    log = open_log(OsFileSystem(), directory=directory_of(tmp_path))
    assert (content(log), log.epochs.entries, log.producers.entries[9].last_sequence) == (whole, epochs, 11)
    assert len(log.producers.entries[9].batches) == 5
    for number, (start, _) in enumerate(walk(whole)):
        flipped = bytearray(whole)
        flipped[start + 70] ^= 1
        log_path(tmp_path).write_bytes(flipped)
        log = open_log(OsFileSystem(), directory=directory_of(tmp_path))
        assert log.log_end_offset == 2 * number
        log.close(clean=False)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_damage_below_the_recovery_point_is_reported_with_offset_and_file(tmp_path: Path, damaged: int) -> None:
    crashed_with(tmp_path, b"")
    log = open_log(OsFileSystem(), directory=directory_of(tmp_path), recovery_point=GOOD)
    produce(log, batch(2))
    log.flush()
    positions = [position for position, _ in log.active.headers()]
    log.close(clean=False)
    whole = log_path(tmp_path).read_bytes()
    hurt = bytearray(whole)
    hurt[positions[damaged] + 8 : positions[damaged] + 12] = b"\xff\0\0\0"
    log_path(tmp_path).write_bytes(hurt)
    for _ in range(2):
        with pytest.raises(CorruptData) as raised:
            open_log(OsFileSystem(), directory=directory_of(tmp_path), recovery_point=GOOD + 2)
        for said in (str(log_path(tmp_path)), f"at byte {positions[damaged]} (offset {2 * damaged})", FACTS_FILE):
            assert said in str(raised.value)
        assert log_path(tmp_path).read_bytes() == hurt
    log_path(tmp_path).write_bytes(whole)
    assert (
        open_log(OsFileSystem(), directory=directory_of(tmp_path), recovery_point=GOOD + 2).log_end_offset == GOOD + 2
    )


@pytest.mark.parametrize("name", TAILS)
def test_a_tail_that_was_cut_does_not_come_back(name: str) -> None:
    """With the next power cut, behind what was written in its place."""
    fs = MemoryFileSystem(1)
    log = open_log(fs)
    for _ in range(GOOD // 2):
        produce(log, batch(2))
    log.flush()
    tail = fs.open(log.active.path())
    tail.append([TAILS[name]])
    tail.sync()
    log = open_log(fs, recovery_point=GOOD)
    size_bytes = log.size_bytes
    assert fs.crash(keep_nothing=True).file_size(log.active.path()) == size_bytes


# --- how much is read -------------------------------------------------------------------------------------------


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes read from `.log` files through the port, by file name."""
    found: dict[str, int] = {}
    real = OsFile.pread

    def counting(self: OsFile, size_bytes: int, position: int) -> bytes:
        data = real(self, size_bytes, position)
        name = Path(self.path).name
        if name.endswith(".log"):
            found[name] = found.get(name, 0) + len(data)
        return data

    monkeypatch.setattr(OsFile, "pread", counting)
    return found


def _many_segments(tmp_path: Path, count: int) -> Log:
    """Segments of about 2 MiB; each batch has 256 KiB."""
    log = open_log(OsFileSystem(), directory=directory_of(tmp_path), config=LogConfig(segment_bytes=2 << 20))
    number = 0
    while len(log.segments) < count + 1:
        replicate(log, batch(1, base=number, epoch=0, size=256 << 10, pid=5, seq=number))
        number += 1
    log.flush()
    return log


def test_only_what_lies_behind_the_recovery_point_is_read(tmp_path: Path, bytes_read: dict[str, int]) -> None:
    log = _many_segments(tmp_path, 6)
    bases = [segment.base_offset for segment in log.segments]
    sizes = {file_name(segment.base_offset, ".log"): segment.size_bytes for segment in log.segments}
    end = log.log_end_offset
    log.close(clean=False)
    facts = Facts.decode((tmp_path / "t-0" / FACTS_FILE).read_bytes(), "")
    facts.segments = bases[:5]  # the others were not yet known to be on disk
    (tmp_path / "t-0" / FACTS_FILE).write_bytes(facts.encode())
    bytes_read.clear()
    point = bases[4] + 4
    log = open_log(OsFileSystem(), directory=directory_of(tmp_path), config=log.config, recovery_point=point)
    assert log.log_end_offset == end and log.producers.entries[5].last_sequence == end - 1
    assert set(bytes_read) == {file_name(base, ".log") for base in bases[4:]}, "earlier segments are not opened"
    behind = sum(sizes[file_name(base, ".log")] for base in bases[5:])
    # In the segment of the point: a window of headers per batch below it, whole batches above it, read in windows
    # that may overlap by one batch.
    part = (end - point) * (256 << 10)
    assert sum(bytes_read.values()) <= 2 * part + 5 * HEADER_WINDOW_BYTES + SCAN_WINDOW_BYTES
    assert behind <= sum(bytes_read.values())


def test_a_clean_start_reads_the_end_only(tmp_path: Path, bytes_read: dict[str, int]) -> None:
    log = _many_segments(tmp_path, 6)
    active, end = file_name(log.active.base_offset, ".log"), log.log_end_offset
    log.close(clean=True)
    bytes_read.clear()
    log = open_log(OsFileSystem(), directory=directory_of(tmp_path), config=log.config, clean=True, recovery_point=end)
    assert log.log_end_offset == end
    assert set(bytes_read) <= {active}
    assert sum(bytes_read.values()) <= 2 * HEADER_WINDOW_BYTES


def test_memory_does_not_grow_with_what_is_recovered(tmp_path: Path) -> None:
    log = _many_segments(tmp_path, 12)
    log.close(clean=False)
    tracemalloc.start()
    try:
        log = open_log(OsFileSystem(), directory=directory_of(tmp_path), config=log.config)
        assert tracemalloc.get_traced_memory()[1] < 4 * SCAN_WINDOW_BYTES
    finally:
        tracemalloc.stop()
    assert log.size_bytes > 20 * SCAN_WINDOW_BYTES


def test_what_is_on_disk_is_not_synced_again() -> None:
    """After a kill most partitions of a broker have nothing behind their recovery point: thousands of logs, and logs of
    thousands of segments, must not wait for the disk file by file."""
    fs = MemoryFileSystem(1)
    config = LogConfig(segment_bytes=len(batch(2)))
    log = open_log(fs, config=config)
    for _ in range(6):
        produce(log, batch(2))
    log.flush()
    end = log.log_end_offset
    for point, expected in ((end, []), (end - 1, [log.segments[-1]]), (end - 3, log.segments[-2:])):
        facts = Facts.decode(fs.read_file(f"{DIRECTORY}/{FACTS_FILE}"), "")
        facts.segments = [base for base in facts.segments if base <= point]
        fs.write_atomic(f"{DIRECTORY}/{FACTS_FILE}", facts.encode())
        synced: list[str] = []
        fs.skip_sync = lambda path, synced=synced: bool(synced.append(path))  # type: ignore[misc,func-returns-value]
        open_log(fs, config=config, recovery_point=point)
        fs.skip_sync = lambda path: False
        assert sorted(path for path in set(synced) if path.endswith(".log")) == [one.path() for one in expected]
