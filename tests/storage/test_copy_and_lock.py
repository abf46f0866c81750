"""Copying a file of another program, and keeping its lock: on a real disk, where the system may refuse to copy."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kmirror.errors import CorruptData, DiskFailure, DiskFull
from kmirror.limits import COPY_CHUNK_BYTES
from kmirror.storage.errors import StorageLocked
from kmirror.storage.filesystem import OsFileSystem

HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)
"""As a Java program does (FileChannel.tryLock): the kind of lock that flock does not see."""


def refusing(error: int, *, after: int = 0) -> Any:
    """`copy_file_range` that fails, after some calls that go well."""
    real, calls = os.copy_file_range, 0

    def copy(*arguments: Any, **options: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(error, os.strerror(error))
        return real(*arguments, **options)

    return copy


def test_a_copy_has_the_same_bytes_and_is_another_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * (COPY_CHUNK_BYTES // 256) + b"the rest"
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data)
    target.write_bytes(b"x" * (len(data) + 100))
    told: list[int] = []
    OsFileSystem().copy(str(source), str(target), told.append)
    assert target.read_bytes() == data
    assert sum(told) == len(data) and len(told) >= 2
    assert target.stat().st_nlink == 1 and target.stat().st_ino != source.stat().st_ino


@pytest.mark.parametrize("error", [errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL])
@pytest.mark.parametrize("after", [0, 1])
def test_what_the_system_does_not_copy_is_copied_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, after: int
) -> None:
    data = os.urandom(100_000)
    (tmp_path / "source").write_bytes(data)
    monkeypatch.setattr("kmirror.storage.filesystem.COPY_CHUNK_BYTES", 30_000)
    monkeypatch.setattr(os, "copy_file_range", refusing(error, after=after))
    OsFileSystem().copy(str(tmp_path / "source"), str(tmp_path / "target"), lambda size: None)
    assert (tmp_path / "target").read_bytes() == data


def test_a_system_that_says_too_early_that_all_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(b"abc" * 1000)
    monkeypatch.setattr(os, "copy_file_range", lambda *arguments, **options: 0)
    OsFileSystem().copy(str(tmp_path / "source"), str(tmp_path / "target"), lambda size: None)
    assert (tmp_path / "target").read_bytes() == b"abc" * 1000


def test_a_copy_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.ENOSPC))
    with pytest.raises(DiskFull):
        OsFileSystem().copy(str(tmp_path / "source"), str(tmp_path / "target"), lambda size: None)


def test_a_source_that_cannot_be_read_is_not_a_failure_of_our_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, target = OsFileSystem(), str(tmp_path / "target")
    with pytest.raises(CorruptData, match="cannot be read"):
        fs.copy(str(tmp_path / "nowhere"), target, lambda size: None)

    def broken(*arguments: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "source").write_bytes(b"abc")
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.EIO))
    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(CorruptData, match="cannot be read at byte 0"):
        fs.copy(str(tmp_path / "source"), target, lambda size: None)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileNotFoundError):
        OsFileSystem().list_dir(str(tmp_path / "file"))
    with pytest.raises(DiskFailure):
        OsFileSystem().open(str(tmp_path))


def test_locks_of_readers_and_of_one_owner(tmp_path: Path) -> None:
    fs, path = OsFileSystem(), tmp_path / ".lock"
    assert fs.lock_to_read(str(path)) is None
    assert not path.exists(), "nothing is made where somebody else's files are"
    owner = fs.lock(str(path))
    with pytest.raises(StorageLocked):
        fs.lock_to_read(str(path))
    owner.release()
    readers = [fs.lock_to_read(str(path)) for _ in range(2)]
    with pytest.raises(StorageLocked):
        fs.lock(str(path))
    for reader in readers:
        assert reader is not None
        reader.release()
    fs.lock(str(path)).release()


def test_the_lock_of_a_java_program_counts(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_bytes(b"")
    fs = OsFileSystem()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        for attempt in (fs.lock, fs.lock_to_read):
            with pytest.raises(StorageLocked):
                attempt(str(path))
        holder.stdin.write(b"\n")
        holder.stdin.close()
        holder.wait()
    fs.lock(str(path)).release()
