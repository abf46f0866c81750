"""Segment files that somebody removed or shortened while the broker was stopped: reported, never closed over.

The log has segments at 0, 4, 8 and 12 with two batches of two records each. Both file systems, after a clean and an
unclean stop.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kmirror.errors import CorruptData
from kmirror.storage.filesystem import FileSystem, OsFileSystem
from kmirror.storage.flush import FACTS_FILE
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from kmirror.storage.segment import file_name
from tests.storage.making import NOW_MS, batch, open_log, produce

SIZE = len(batch(2))
CONFIG = LogConfig(segment_bytes=2 * SIZE)
END = 16
SUFFIXES = (".log", ".index", ".timeindex")


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "os":
        return OsFileSystem(), str(tmp_path / "t-0")
    return MemoryFileSystem(), "/data/t-0"


@pytest.fixture(params=[True, False], ids=["clean", "unclean"])
def clean(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def filled(place: tuple[FileSystem, str], *, clean: bool) -> None:
    log = reopened(place, clean=True, recovery_point=0)
    for _ in range(8):
        produce(log, batch(2))
    log.flush()
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8, 12]
    log.close(clean=clean)


def reopened(place: tuple[FileSystem, str], *, clean: bool, recovery_point: int = END, log_start: int = 0) -> Log:
    fs, directory = place
    return open_log(
        fs,
        directory=directory,
        config=CONFIG,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start,
    )


def lose(place: tuple[FileSystem, str], base: int, *suffixes: str) -> dict[str, bytes]:
    """Remove files of a segment; returns them, for `restore`."""
    fs, directory = place
    lost = {}
    for suffix in suffixes:
        path = f"{directory}/{file_name(base, suffix)}"
        lost[path] = fs.read_file(path)
        fs.remove(path)
    return lost


def restore(place: tuple[FileSystem, str], lost: dict[str, bytes]) -> None:
    for path, data in lost.items():
        place[0].write_atomic(path, data)


def names(place: tuple[FileSystem, str]) -> dict[str, bytes]:
    fs, directory = place
    return {name: fs.read_file(f"{directory}/{name}") for name in fs.list_dir(directory) if name.endswith(SUFFIXES)}


@pytest.mark.parametrize("recovery_point", [END, 0], ids=["checkpoint", "no checkpoint"])
@pytest.mark.parametrize("base", [4, 8, 12])
def test_a_missing_segment_is_named_and_nothing_changed(
    place: tuple[FileSystem, str], clean: bool, base: int, recovery_point: int
) -> None:
    filled(place, clean=clean)
    lost = lose(place, base, ".log")
    before = names(place)
    for _ in range(2):
        with pytest.raises(CorruptData, match=rf"{base:020d}\.log is missing.* from offset {base} .*Restore it"):
            reopened(place, clean=clean, recovery_point=recovery_point)
    assert names(place) == before
    restore(place, lost)
    log = reopened(place, clean=clean, recovery_point=recovery_point)
    assert (log.log_end_offset, len(list(log.batches(0, END)))) == (END, 8)


@pytest.mark.parametrize("base", [4, 8])
def test_what_kafka_left_of_a_segment_tells(place: tuple[FileSystem, str], clean: bool, base: int) -> None:
    """Without `log-facts`, as in a directory from Kafka: the index files stand there alone."""
    filled(place, clean=clean)
    fs, directory = place
    fs.remove(f"{directory}/{FACTS_FILE}")
    lost = lose(place, base, ".log")
    with pytest.raises(CorruptData, match=rf"{base:020d}\.log is missing"):
        reopened(place, clean=clean)
    lost |= lose(place, base, ".index", ".timeindex")
    log = reopened(place, clean=clean)  # now it is a gap, which compaction may have left, or whoever was told how to
    assert log.log_end_offset == END
    assert sum(header.record_count for header, _ in log.batches(0, END)) == END - 4


def test_all_segments_gone(place: tuple[FileSystem, str], clean: bool) -> None:
    filled(place, clean=clean)
    for base in (0, 4, 8, 12):
        lose(place, base, *SUFFIXES) if clean or base < 12 else lose(place, base, ".log")
    with pytest.raises(CorruptData, match=r"12\.log is missing"):
        reopened(place, clean=clean, recovery_point=0)
    fs, directory = place
    fs.remove(f"{directory}/{FACTS_FILE}")
    for _ in range(2):
        with pytest.raises(CorruptData, match="ends at offset 0, but records up to 16 were on disk"):
            reopened(place, clean=clean)
    assert not names(place)
    assert reopened(place, clean=clean, recovery_point=0).log_end_offset == 0


@pytest.mark.parametrize("facts", [True, False], ids=["facts", "no facts"])
def test_a_last_segment_cut_short_between_two_batches(place: tuple[FileSystem, str], clean: bool, facts: bool) -> None:
    filled(place, clean=clean)
    fs, directory = place
    if not facts:
        fs.remove(f"{directory}/{FACTS_FILE}")
    path = f"{directory}/{file_name(12, '.log')}"
    whole = fs.read_file(path)
    fs.write_atomic(path, whole[:SIZE])
    for _ in range(2):
        with pytest.raises(CorruptData, match="ends at offset 14, but records up to 16 were on disk"):
            reopened(place, clean=clean)
    assert fs.read_file(path) == whole[:SIZE]
    fs.write_atomic(path, whole)
    assert reopened(place, clean=clean).log_end_offset == END


def test_a_hole_right_below_the_recovery_point_is_not_closed_by_cutting_the_rest(
    place: tuple[FileSystem, str],
) -> None:
    """Records up to 10 are known to be on disk: the segment at 12 must not go because those at 8 are missing."""
    filled(place, clean=False)
    fs, directory = place
    fs.remove(f"{directory}/{FACTS_FILE}")
    lose(place, 8, *SUFFIXES)
    before = names(place)
    with pytest.raises(CorruptData, match="ends at offset 8, but records up to 10 were on disk"):
        reopened(place, clean=False, recovery_point=10)
    assert {name for name in before if name.endswith(".log")} <= set(names(place))


def test_gone_for_good_reasons(place: tuple[FileSystem, str], clean: bool) -> None:
    """Below the log start nobody can miss anything; at the front it is the log start that rises, with a word."""
    filled(place, clean=clean)
    lose(place, 4, *SUFFIXES)
    assert reopened(place, clean=clean, log_start=8).log_end_offset == END
    lose(place, 0, *SUFFIXES)
    log = reopened(place, clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (8, END)
    assert "begins at 8; the segment at 0 is gone" in log.report.notes[0]


def test_cuts_and_retention_take_their_segments_off_the_list(place: tuple[FileSystem, str], clean: bool) -> None:
    """The recovery point on disk is from before the cut, unless the stop was clean."""
    filled(place, clean=True)
    log = reopened(place, clean=True)
    log.truncate_to(9)
    log.close(clean=clean)
    log = reopened(place, clean=clean, recovery_point=8 if clean else END)
    assert log.log_end_offset == 8
    log.config = LogConfig(segment_bytes=2 * SIZE, retention_bytes=SIZE, retention_ms=-1)
    assert log.apply_retention(NOW_MS, log.log_end_offset) == 1
    log.delete_doomed(NOW_MS + log.config.file_delete_delay_ms)
    log.close(clean=clean)
    log = reopened(place, clean=clean, recovery_point=8)
    assert (log.log_start_offset, log.log_end_offset, log.report.notes) == (4, 8, [])
    log.truncate_fully_and_start_at(100)
    log.close(clean=clean)
    assert reopened(place, clean=clean, recovery_point=100 if clean else 8).log_end_offset == 100
