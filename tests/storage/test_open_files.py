"""Idle segments give their descriptors back, the longest unused first, and nothing is lost by it. Both file systems."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kmirror.storage import open_files
from kmirror.storage.errors import FileChanged, OutOfDescriptors
from kmirror.storage.filesystem import FileSystem, OsFileSystem
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from kmirror.storage.open_files import OpenFiles
from tests.storage.making import batch, offsets, open_log, produce, read_bytes

LIMIT = 4


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    fs: FileSystem = OsFileSystem() if request.param == "os" else MemoryFileSystem()
    fs.open_files = OpenFiles(LIMIT)
    return fs, str(tmp_path) if request.param == "os" else "/data"


def logs(place: tuple[FileSystem, str], count: int) -> list[Log]:
    fs, root = place
    return [open_log(fs, directory=f"{root}/t-{index}") for index in range(count)]


def write(log: Log) -> None:
    produce(log, batch(2))
    log.flush()


def opened(log: Log) -> bool:
    return log.active._file is not None


def descriptors(root: str) -> int:
    """Open files of this process under `root` (Linux)."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and os.readlink(link).startswith(root) for link in links)


def test_more_logs_than_files(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    many = logs(place, 20)
    for _ in range(3):
        for log in many:
            write(log)
            assert len(fs.open_files) <= LIMIT
    if isinstance(fs, OsFileSystem) and os.path.isdir("/proc/self/fd"):
        assert descriptors(root) <= LIMIT
    assert [offsets(log) for log in many] == [[(0, 1), (2, 3), (4, 5)]] * 20
    for log in many:
        log.close(clean=True)
    assert len(fs.open_files) == 0


def test_the_longest_unused_goes_first(place: tuple[FileSystem, str]) -> None:
    first, second, third, fourth, fifth = logs(place, 5)
    for log in (first, second, third, fourth):
        write(log)
    read_bytes(first, 0)
    first.active.file.pread(1, 0)
    write(fifth)
    assert [opened(log) for log in (first, second, third, fourth, fifth)] == [True, False, True, True, True]


def test_unsynced_bytes_keep_their_file_open(place: tuple[FileSystem, str]) -> None:
    """An error of the disk has to reach somebody who has the file open."""
    fs, _ = place
    many = logs(place, 10)
    for log in many:
        produce(log, batch(1))
    assert all(opened(log) for log in many)
    for log in many:
        log.flush()
    write(many[0])
    assert sum(opened(log) for log in many) == LIMIT == len(fs.open_files)


def test_page_cache_durability_does_not_hold_files_for_ever(place: tuple[FileSystem, str]) -> None:
    """Nothing is flushed for days. What was never synced is known to be so when the file is opened again."""
    fs, root = place
    config = LogConfig(flush_messages=2**63 - 1)
    many = [open_log(fs, directory=f"{root}/t-{index}", config=config) for index in range(10)]
    for log in many:
        produce(log, batch(2))
    assert sum(opened(log) for log in many) == LIMIT
    many[0].roll()
    assert [file.path for file in many[0].unsynced.files] == [f"{root}/t-0/00000000000000000000.log"]
    many[1].active.file.pread(1, 0)
    assert not many[1].active.synced
    many[2].apply_config(LogConfig())
    assert many[2].active.sync_follows


def test_a_slice_keeps_what_it_needs(place: tuple[FileSystem, str]) -> None:
    many = logs(place, 10)
    write(many[0])
    slices = many[0].read(0, max_bytes=1000, limit_offset=2, at_least_one=True).slices
    for log in many[1:]:
        write(log)
    assert not opened(many[0])
    assert b"".join(piece.read() for piece in slices) == b"".join(bytes(data) for _, data in many[0].batches(0, 2))


def test_old_segments_of_one_log(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    config = LogConfig(segment_bytes=len(batch(2)))
    log = open_log(fs, directory=f"{root}/t-0", config=config)
    for _ in range(12):
        write(log)
    assert len(log.segments) == 12 and len(offsets(log)) == 12 and len(fs.open_files) == LIMIT
    log.close(clean=False)
    again = open_log(fs, directory=f"{root}/t-0", config=config)  # goes through all of it
    assert len(offsets(again)) == 12 and len(fs.open_files) <= LIMIT


def test_a_file_that_was_changed_meanwhile_is_not_gone_on_with(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    many = logs(place, 10)
    for log in many:
        write(log)
    path = f"{root}/t-0/00000000000000000000.log"
    whole = fs.read_file(path)
    fs.write_atomic(path, whole[:-1])
    with pytest.raises(FileChanged, match="somebody changed it"):
        write(many[0])
    fs.remove(path)
    with pytest.raises(FileChanged, match="is gone"):
        write(many[0])
    fs.write_atomic(path, whole)
    write(many[0])
    assert many[0].log_end_offset == 4


def test_a_roll_of_what_is_on_disk_holds_no_file(place: tuple[FileSystem, str]) -> None:
    """Retention rolls all logs in one go, before any flush comes."""
    many = logs(place, 10)
    for log in many:
        write(log)
    for log in many:
        log.roll()
    assert sum(len(log.unsynced.files) for log in many) == 0
    assert sum(segment._file is not None for log in many for segment in log.segments) <= LIMIT


def test_limits_come_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, files, connections in ((1024, 512, 480), (20, 16, 1), (64, 32, 1), (100_000, 50_000, 49_968)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, 1 << 30))
        assert (open_files.open_log_files_limit(), open_files.connections_limit()) == (files, connections)
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    open_files.raise_descriptor_limit()
    assert raised == [(1 << 20, 1 << 30)]


def test_no_descriptor_left_at_all_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    fs = OsFileSystem()
    log = open_log(fs, directory=str(tmp_path / "t-0"))
    write(log)
    fs.open_files.make_room(1)
    fs.open_files.used(open_log(fs, directory=str(tmp_path / "t-1")).active)
    fs.open_files.make_room(5)
    assert not opened(log)
    real = os.open

    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OutOfDescriptors):
        produce(log, batch(1))
    monkeypatch.setattr(os, "open", real)
    assert produce(log, batch(1)).base_offset == 2
