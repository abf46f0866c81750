"""Retention: what goes by time, by size and by the log start, when, and what must not. Over restarts of either kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kmirror.clock import ManualClock
from kmirror.errors import OffsetOutOfRange
from kmirror.storage.filesystem import FileSystem, OsFileSystem
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from tests.storage.making import DIRECTORY, NOW_MS, batch, offsets, open_log, produce, read_bytes
from tests.storage.test_known_bugs import compacted, first_read, restarted

HOUR_MS = 60 * 60 * 1000
SIZE = len(batch(1))


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    return (OsFileSystem(), str(tmp_path / "t-0")) if request.param == "os" else (MemoryFileSystem(1), DIRECTORY)


def written(place: tuple[FileSystem, str], times: list[int], clock: ManualClock | None = None, **config: object) -> Log:
    """One segment a batch; the last one is active."""
    settings = {"segment_bytes": SIZE, "message_timestamp_after_max_ms": 2**62, **config}
    log = open_log(place[0], directory=place[1], config=LogConfig(**settings), clock=clock)  # type: ignore[arg-type]
    for time in times:
        produce(log, batch(timestamp_ms=time))
    log.flush()
    assert len(log.segments) == len(times)
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


@pytest.mark.parametrize("clean", [None, True, False], ids=["running", "clean", "unclean"])
def test_by_time_the_newest_record_of_a_segment_counts(place: tuple[FileSystem, str], clean: bool | None) -> None:
    """From the front only: a younger segment keeps what is behind it, however old. At the limit is not beyond it."""
    times = [NOW_MS, NOW_MS + 5, NOW_MS + 50, NOW_MS, NOW_MS + 60]
    log = written(place, times, retention_ms=HOUR_MS)
    if clean is not None:
        log = restarted(log, clean=clean)
    end = log.log_end_offset
    assert log.apply_retention(NOW_MS + HOUR_MS, end) == 0
    assert log.apply_retention(NOW_MS + HOUR_MS + 6, end) == 2
    assert (bases(log), log.log_start_offset) == ([2, 3, 4], 2)
    assert log.apply_retention(NOW_MS + HOUR_MS + 50, end) == 0
    assert log.apply_retention(NOW_MS + HOUR_MS + 51, end) == 2
    assert bases(log) == [4]


@pytest.mark.parametrize("clean", [None, True, False], ids=["running", "clean", "unclean"])
def test_a_time_from_the_future_keeps_its_segment_by_time_and_not_by_size(
    place: tuple[FileSystem, str], clean: bool | None
) -> None:
    times = [NOW_MS, NOW_MS + 1000 * HOUR_MS, NOW_MS, NOW_MS]
    log = written(place, times, retention_ms=HOUR_MS)
    if clean is not None:
        log = restarted(log, clean=clean)
    for hours in (2, 500, 1001):
        log.apply_retention(NOW_MS + hours * HOUR_MS, log.log_end_offset)
        assert bases(log) == [1, 2, 3]
    log.apply_config(LogConfig(segment_bytes=SIZE, retention_ms=HOUR_MS, retention_bytes=2 * SIZE))
    assert log.apply_retention(NOW_MS + 2 * HOUR_MS, log.log_end_offset) >= 1
    assert 1 not in bases(log)


def test_without_a_time_the_file_s_own_counts(tmp_path: Path) -> None:
    """Records of -1: the time of the last change (LogSegment.largestTimestamp)."""
    log = written((OsFileSystem(), str(tmp_path / "t-0")), [-1, -1, -1], retention_ms=HOUR_MS)
    for segment, age_hours in zip(log.segments, (3, 1, 0), strict=True):
        os.utime(segment.path(), ns=(0, (NOW_MS - age_hours * HOUR_MS) * 1_000_000))
    log = restarted(log, clean=True)
    os.utime(log.segments[0].path(), ns=(0, (NOW_MS - 3 * HOUR_MS) * 1_000_000))
    assert log.apply_retention(NOW_MS, log.log_end_offset) == 1


@pytest.mark.parametrize("clean", [True, False])
def test_by_size_what_is_left_is_never_less_than_asked_for(place: tuple[FileSystem, str], clean: bool) -> None:
    log = written(place, [NOW_MS] * 8, retention_ms=-1)
    for keep, expected in ((8, 8), (7, 7), (5, 5)):
        log.apply_config(LogConfig(segment_bytes=SIZE, retention_ms=-1, retention_bytes=keep * SIZE - SIZE // 2))
        log.apply_retention(NOW_MS, log.log_end_offset)
        assert len(log.segments) == expected and log.size_bytes == expected * SIZE
        log = restarted(log, clean=clean)
    log.apply_config(LogConfig(segment_bytes=SIZE, retention_ms=-1, retention_bytes=5 * SIZE))
    assert log.apply_retention(NOW_MS, log.log_end_offset) == 0


@pytest.mark.parametrize("how", ["time", "size", "start"])
def test_never_beyond_the_high_watermark(place: tuple[FileSystem, str], how: str) -> None:
    """What readers have not been shown yet stays, even if it is too old, too much, or deleted."""
    config: dict[str, object] = {"retention_ms": HOUR_MS if how == "time" else -1}
    log = written(place, [NOW_MS] * 6, **config)
    if how == "size":
        log.apply_config(LogConfig(segment_bytes=SIZE, retention_ms=-1, retention_bytes=0))
    if how == "start":
        log.advance_log_start(6)
    for high_watermark in range(6):
        log.apply_retention(NOW_MS + 2 * HOUR_MS, high_watermark)
        assert log.segments[0].base_offset == high_watermark
        assert log.log_start_offset <= max(high_watermark, 6 if how == "start" else 0)
    log.apply_retention(NOW_MS + 2 * HOUR_MS, 6)
    expected = [5] if how == "start" else [6]
    assert (bases(log), log.log_start_offset, log.log_end_offset) == (expected, 6, 6)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_start_inside_a_batch_keeps_the_batch_and_hides_what_is_below(
    place: tuple[FileSystem, str], clean: bool
) -> None:
    fs, directory = place
    log = open_log(fs, directory=directory, config=LogConfig(segment_bytes=len(batch(5)), retention_ms=-1))
    for at in range(4):
        produce(log, batch(5, timestamp_ms=NOW_MS + at))
    log.flush()
    log.advance_log_start(12)
    for _ in range(2):
        log.apply_retention(NOW_MS, log.log_end_offset)
        assert (bases(log), log.log_start_offset) == ([10, 15], 12)
        assert first_read(log, 12) == (10, 14)
        found = log.offset_for_timestamp(0, 20)
        assert found is not None and found.offset == 12
        for below in (0, 10, 11):
            with pytest.raises(OffsetOutOfRange):
                log.read(below, max_bytes=1, limit_offset=20, at_least_one=True)
        log = restarted(log, clean=clean)
    log.advance_log_start(20)
    log.apply_retention(NOW_MS, log.log_end_offset)
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (20, 20, [15])
    assert produce(log, batch(1)).base_offset == 20


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
def test_what_each_policy_deletes(place: tuple[FileSystem, str], policy: str) -> None:
    """By time and size only with "delete"; below the log start always; the cleaner only with "compact"."""
    log = written(place, [NOW_MS] * 6, retention_ms=HOUR_MS, cleanup_policy=policy)
    log.advance_log_start(2)
    log.apply_retention(NOW_MS, log.log_end_offset)
    assert bases(log) == [2, 3, 4, 5]
    if "compact" in policy:
        compacted(log, now_ms=NOW_MS)
        assert offsets(log)[-2:] == [(4, 4), (5, 5)] and len(offsets(log)) == 2
    for segment in log.segments:  # one that has no record left is as old as its file
        log.fs.set_modified_ms(segment.path(), NOW_MS)
    produce(log, batch(timestamp_ms=NOW_MS + 3 * HOUR_MS))
    log.flush()
    log.apply_retention(NOW_MS + 3 * HOUR_MS, log.log_end_offset)
    assert (6 in bases(log)) and (len(bases(log)) == 1) == ("delete" in policy)


@pytest.mark.parametrize("clean", [True, False])
def test_files_go_after_the_delay_and_readers_keep_theirs(place: tuple[FileSystem, str], clean: bool) -> None:
    """`file.delete.delay.ms`; a start in between removes them, and a segment made anew is not taken for them."""
    clock = ManualClock(NOW_MS)
    log = written(place, [NOW_MS] * 4, clock=clock, retention_ms=HOUR_MS, file_delete_delay_ms=1_000)
    held = log.read(0, max_bytes=10_000, limit_offset=4, at_least_one=True).slices
    before = read_bytes(log, 0)
    log.apply_retention(NOW_MS + 2 * HOUR_MS, 3)
    fs, directory = place

    def left() -> int:
        return sum(".log" in name for name in fs.list_dir(directory) if "deleted" in name)

    assert left() == 3
    assert log.delete_doomed(NOW_MS + 2 * HOUR_MS + 999) == NOW_MS + 2 * HOUR_MS + 1_000
    assert left() == 3
    assert log.delete_doomed(NOW_MS + 2 * HOUR_MS + 1_000) is None
    assert left() == 0
    assert b"".join(piece.read() for piece in held) == before and all(piece.still_valid() for piece in held)
    log.apply_retention(NOW_MS + 3 * HOUR_MS, 4)
    assert left() == 1
    log = restarted(log, clean=clean)
    assert left() == 0
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)


def test_cleaning_makes_a_file_no_younger(place: tuple[FileSystem, str]) -> None:
    """Records without a time are as old as their file, which `compact,delete` writes anew again and again."""
    log = written(place, [-1, -1, -1], retention_ms=HOUR_MS, cleanup_policy="compact,delete")
    for segment in log.segments:
        log.fs.set_modified_ms(segment.path(), NOW_MS - 2 * HOUR_MS)
    compacted(log, now_ms=NOW_MS)
    assert log.fs.modified_ms(log.segments[0].path()) == NOW_MS - 2 * HOUR_MS
    assert log.apply_retention(NOW_MS, log.log_end_offset) >= 2
