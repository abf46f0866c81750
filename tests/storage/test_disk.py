"""The FileSystem port: the real one against its promises, and the one in memory against the real one."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from kmirror.errors import CorruptData, DiskFailure, DiskFull
from kmirror.storage import checkpoints
from kmirror.storage.errors import StorageLocked
from kmirror.storage.filesystem import FileSystem, OsFileSystem
from kmirror.storage.memory import MemoryFileSystem


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "os":
        return OsFileSystem(), str(tmp_path)
    fs = MemoryFileSystem()
    fs.make_dirs("/d")
    return fs, "/d"


def test_both_do_the_same(place: tuple[FileSystem, str], rng: random.Random) -> None:
    fs, root = place
    file = fs.open(f"{root}/a", create=True)
    assert file.append([b"ab", memoryview(b"cde")]) == 0 and file.append([b"f"]) == 5
    assert (
        file.size_bytes == 6 and file.pread(3, 1) == b"bcd" and file.pread(10, 4) == b"ef" and file.pread(1, 9) == b""
    )
    file.truncate(2)
    file.sync()
    assert fs.open(f"{root}/a").size_bytes == 2 == fs.file_size(f"{root}/a")
    fs.rename(f"{root}/a", f"{root}/b")
    fs.write_atomic(f"{root}/c", b"one")
    fs.write_atomic(f"{root}/c", b"two")
    fs.sync_dir(root)
    fs.make_dirs(f"{root}/x/y")
    assert fs.list_dir(root) == ["b", "c", "x"] and fs.read_file(f"{root}/c") == b"two"
    assert file.append([b"zz"]) == 2 and fs.read_file(f"{root}/b") == b"abzz"
    fs.remove(f"{root}/b")
    fs.remove(f"{root}/b")
    fs.remove_tree(f"{root}/x")
    assert not fs.exists(f"{root}/b") and not fs.exists(f"{root}/x/y")
    assert file.pread(4, 0) == b"abzz"  # a removed file lives as long as somebody holds it
    for missing in (fs.open, fs.read_file, fs.file_size, fs.list_dir, fs.modified_ms):
        with pytest.raises(FileNotFoundError):
            missing(f"{root}/none")
    total, free = fs.space(root)
    assert 0 < free <= total


def test_one_process_has_the_directory(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    lock = fs.lock(f"{root}/.lock")
    with pytest.raises(StorageLocked, match="another process"):
        fs.lock(f"{root}/.lock")
    lock.release()
    fs.lock(f"{root}/.lock").release()


@pytest.mark.parametrize("written", [0, 3])
def test_a_write_that_finds_the_disk_full_is_cut_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    file = OsFileSystem().open(str(tmp_path / "a"), create=True)
    file.append([b"before"])
    real = os.pwritev

    def full(fd: int, pieces: list[bytes], position: int) -> int:
        if not written:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, [b"".join(pieces)[:written]], position)

    def nothing(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    monkeypatch.setattr(os, "pwrite", nothing)
    with pytest.raises(DiskFull):
        file.append([b"more", b"bytes"])
    assert (tmp_path / "a").read_bytes() == b"before" and file.size_bytes == 6
    monkeypatch.undo()
    assert file.append([b"!"]) == 6


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFileSystem().open(str(tmp_path / "a"), create=True)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, position: real(fd, [b"".join(pieces)[:3]], position))
    file.append([b"0123", b"456"])
    assert (tmp_path / "a").read_bytes() == b"0123456"


def test_an_io_error_is_a_disk_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFileSystem().open(str(tmp_path / "a"), create=True)

    def broken(*args: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("pwritev", "pread"):
        monkeypatch.setattr(os, name, broken)
    with pytest.raises(DiskFailure):
        file.append([b"x"])
    with pytest.raises(DiskFailure):
        file.pread(1, 0)


def test_a_descriptor_lives_as_long_as_its_last_holder(tmp_path: Path) -> None:
    fs = OsFileSystem()
    file = fs.open(str(tmp_path / "a"), create=True)
    fd = file.fileno()
    assert fd is not None
    holder = [file]
    del file
    os.fstat(fd)
    holder.clear()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_memory_loses_what_was_not_synced() -> None:
    fs = MemoryFileSystem()
    fs.make_dirs("/d")
    kept = fs.open("/d/kept", create=True)
    fs.sync_dir("/d")
    kept.append([b"synced"])
    kept.sync()
    kept.append([b" not"])
    fs.open("/d/new", create=True).sync()
    fs.rename("/d/kept", "/d/moved")
    after = fs.crash(keep_nothing=True)
    assert after.list_dir("/d") == ["kept"] and after.read_file("/d/kept") == b"synced"
    with pytest.raises(DiskFailure):
        kept.append([b"from beyond"])


def test_memory_may_keep_pages_and_names_in_parts() -> None:
    """Over many seeds every outcome happens: lost, kept, torn; names in the order of their changes only."""
    contents, names = set(), set()
    for seed in range(200):
        fs = MemoryFileSystem(seed, page_bytes=4)
        fs.make_dirs("/d")
        file = fs.open("/d/a", create=True)
        file.append([b"1" * 8])
        file.sync()
        fs.sync_dir("/d")
        file.truncate(4)
        file.append([b"2" * 8])
        fs.open("/d/b", create=True)
        fs.remove("/d/a")
        after = fs.crash()
        names.add(tuple(after.list_dir("/d")))
        if after.exists("/d/a"):
            contents.add(after.read_file("/d/a"))
    assert names == {("a",), ("a", "b"), ("b",)}
    assert {b"1" * 8, b"1111" + b"2" * 8} <= contents and len(contents) > 8
    assert any(b"\0" in one for one in contents)


def test_checkpoints_have_kafkas_form() -> None:
    fs = MemoryFileSystem()
    fs.make_dirs("/d")
    offsets = {("t", 0): 5, ("__consumer_offsets", 12): 0}
    checkpoints.write_offsets(fs, "/d/recovery-point-offset-checkpoint", offsets)
    assert fs.read_file("/d/recovery-point-offset-checkpoint") == b"0\n2\nt 0 5\n__consumer_offsets 12 0\n"
    assert checkpoints.read_offsets(fs, "/d/recovery-point-offset-checkpoint") == offsets
    assert checkpoints.read_offsets(fs, "/d/none") == {}
    checkpoints.write_partition_metadata(fs, "/d", "dpIR9HwKTaW00S1kGRgobA")
    assert fs.read_file("/d/partition.metadata") == b"version: 0\ntopic_id: dpIR9HwKTaW00S1kGRgobA"
    assert checkpoints.read_partition_metadata(fs, "/d") == "dpIR9HwKTaW00S1kGRgobA"
    checkpoints.write_properties(fs, "/d/meta.properties", {"version": "1", "cluster.id": "x=y"})
    assert checkpoints.read_properties(fs, "/d/meta.properties") == {"version": "1", "cluster.id": "x=y"}
    checkpoints.write_clean_shutdown(fs, "/d")
    assert checkpoints.take_clean_shutdown(fs, "/d") and not checkpoints.take_clean_shutdown(fs, "/d")


@pytest.mark.parametrize(
    "damage", [b"", b"0\n", b"0\n2\n0 0\n", b"1\n0\n", b"0\n1\n0\n", b"0\n1\n0 0", b"0\n2\n1 0\n0 5\n", b"\xff\xfe"]
)
def test_a_damaged_epoch_file_is_known_as_such(damage: bytes) -> None:
    with pytest.raises(CorruptData):
        checkpoints.parse_epochs(damage)
