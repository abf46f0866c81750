"""The FileSystem port and its implementation on a real disk. L2 storage.

Everything that storage does to a disk goes through this port, so that tests can lose unsynced pages, tear writes and
fail on command (`memory.py`). What must hold:

- Bytes are durable only after `File.sync`; a name (created, renamed, removed) only after `sync_dir` of its directory.
- A write that fails for lack of space is cut back before `DiskFull` is raised: the file is as it was.
- EIO, any failed sync, and a cut back that fails are `DiskFailure`: memory and disk may disagree, the process stops.
- A descriptor is closed when the last reference to its `File` goes (a log's segment, a flush ticket in a thread, a
  slice that waits to be sent), never earlier: an fdatasync or a sendfile cannot meet a descriptor that was closed or,
  worse, used again for another file.

Missing files are `FileNotFoundError`, as everywhere in Python.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from kmirror.errors import CorruptData, DiskFailure, DiskFull
from kmirror.limits import COPY_CHUNK_BYTES
from kmirror.storage.errors import CannotLink, OutOfDescriptors, StorageLocked
from kmirror.storage.open_files import OpenFiles, open_log_files_limit

Buffer = bytes | bytearray | memoryview

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_WHOLE = 1 << 62
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_SYNC: Any = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class File(Protocol):
    """An open file that only grows at its end or is cut. Also a `kmirror.slices.SliceFile`."""

    path: str
    synced: bool
    """False from a write or cut on until a sync has begun after it. Wrong only towards False."""

    @property
    def size_bytes(self) -> int: ...

    def append(self, pieces: Sequence[Buffer]) -> int:
        """Write all pieces at the end with one system call; returns the position. DiskFull (cut back), DiskFailure."""
        ...

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes`; fewer only at the end of the file. DiskFailure."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None:
        """Any thread. Data and size are on disk afterwards; DiskFailure, and never to be tried again."""
        ...

    def fileno(self) -> int | None:
        """For sendfile; None when the file lives in memory."""
        ...


class Lock(Protocol):
    def release(self) -> None: ...


class FileSystem(Protocol):
    open_files: OpenFiles
    """The segments that keep a file open here."""

    def open(self, path: str, *, create: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def real_path(self, path: str) -> str:
        """Absolute, without links on the way. The path need not be there."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names, sorted. FileNotFoundError."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create the directory and its parents, each made durable in its parent."""
        ...

    def make_dir(self, path: str) -> None:
        """Create one directory that is not there yet. Not durable before `sync_dir` of its parent."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give the file at `source` the name `target` too. Raises CannotLink; DiskFull, DiskFailure."""
        ...

    def link_count(self, path: str) -> int:
        """How many names the file has. Above 1 nothing may write into it (`fresh`, `Segment.copy_if_shared`)."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """The file is a rewritten one, whose records are as old as before. A power cut may undo it."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the file: temporary file, sync, rename, sync of the directory. After a crash: old or new, whole."""
        ...

    def copy(self, source: str, target: str, copied: Callable[[int], None], *, size_bytes: int | None = None) -> None:
        """Make `target` of the bytes of `source`, which is only read; on disk afterwards (its name is not).

        `size_bytes`: the first so many only. `copied(size_bytes)` is told how it goes on. Raises CorruptData when
        `source` cannot be read, DiskFull, DiskFailure.
        """
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Missing is fine: removal is what recovery repeats."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def space(self, path: str) -> tuple[int, int]:
        """(total bytes, usable bytes) of the file system that holds `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file for this process. StorageLocked when another one has it, a Kafka too."""
        ...

    def lock_to_read(self, path: str) -> Lock | None:
        """Keep everybody else from taking a lock file that is there, and change nothing; None when there is none.

        StorageLocked when somebody has it. Several may read.
        """
        ...


def fresh(fs: FileSystem, path: str) -> File:
    """An empty file at `path`. One that is there is emptied, or, if it has another name, left to that."""
    file = fs.open(path, create=True)
    if fs.link_count(path) > 1:
        fs.remove(path)
        return fs.open(path, create=True)
    if file.size_bytes:
        file.truncate(0)
    return file


def translate(error: OSError, what: str) -> NoReturn:
    """Turn an OSError into the error that says what may be done about it (module head)."""
    if isinstance(error, FileNotFoundError):
        raise error
    if error.errno in _NO_SPACE:
        raise DiskFull(f"{what}: {error.strerror}") from error
    if error.errno in _NO_DESCRIPTORS:
        raise OutOfDescriptors(f"{what}: {error.strerror}; raise the limit of open files (ulimit -n)") from error
    raise DiskFailure(f"{what}: {error.strerror or error}") from error


class OsFile:
    __slots__ = ("_fd", "path", "size_bytes", "synced")

    def __init__(self, path: str, fd: int, size_bytes: int) -> None:
        self.path = path
        self._fd = fd
        self.size_bytes = size_bytes
        self.synced = True

    def __del__(self) -> None:
        # The only place that closes: see the module head.
        with suppress(OSError):
            os.close(self._fd)

    def append(self, pieces: Sequence[Buffer]) -> int:
        position = self.size_bytes
        try:
            written = os.pwritev(self._fd, pieces, position)
        except OSError as error:
            self._cut_back(error, position)
        wanted = 0
        for piece in pieces:
            wanted += len(piece)
        if written != wanted:
            self._append_rest(pieces, written, position)
        self.size_bytes = position + wanted
        self.synced = False  # behind the write: a sync that runs in another thread may or may not have covered it
        return position

    def _append_rest(self, pieces: Sequence[Buffer], written: int, position: int) -> None:
        """After a short write: a full disk says so on the next try; a signal or a 2 GiB limit goes on."""
        rest = memoryview(b"".join(pieces))
        while written < len(rest):
            try:
                written += os.pwrite(self._fd, rest[written:], position + written)
            except OSError as error:
                self._cut_back(error, position)

    def _cut_back(self, error: OSError, position: int) -> NoReturn:
        try:
            os.ftruncate(self._fd, position)
        except OSError as second:
            raise DiskFailure(f"cannot cut back a failed write to {self.path}: {second}") from error
        translate(error, f"write to {self.path}")

    def pread(self, size_bytes: int, position: int) -> bytes:
        try:
            data = os.pread(self._fd, size_bytes, position)
            if len(data) == size_bytes or position + len(data) >= self.size_bytes:
                return data
            parts = [data]
            got = len(data)
            while got < size_bytes and (more := os.pread(self._fd, size_bytes - got, position + got)):
                parts.append(more)
                got += len(more)
            return b"".join(parts)
        except OSError as error:
            translate(error, f"read of {self.path}")

    def truncate(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._fd, size_bytes)
        except OSError as error:
            raise DiskFailure(f"cut of {self.path}: {error.strerror}") from error
        self.size_bytes = size_bytes
        self.synced = False

    def sync(self) -> None:
        self.synced = True
        try:
            _SYNC(self._fd)
        except OSError as error:
            raise DiskFailure(f"sync of {self.path}: {error.strerror}") from error

    def fileno(self) -> int:
        return self._fd


class OsLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFileSystem:
    """The machine's own file system. Methods are synchronous; `sync` and `sync_dir` may be called from any thread."""

    def __init__(self) -> None:
        self.open_files = OpenFiles(open_log_files_limit())

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = os.open(path, flags, 0o644)
            return OsFile(path, fd, os.fstat(fd).st_size)
        except OSError as error:
            translate(error, f"open of {path}")

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except NotADirectoryError as error:
            raise FileNotFoundError(error.errno, error.strerror, path) from error
        except OSError as error:
            translate(error, f"listing of {path}")

    def make_dirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path.rstrip("/"))
        if parent and parent != path:
            self.make_dirs(parent)
        try:
            with suppress(FileExistsError):
                os.mkdir(path)
        except OSError as error:
            translate(error, f"creation of {path}")
        self.sync_dir(parent or ".")

    def make_dir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except OSError as error:
            translate(error, f"creation of {path}")

    def link(self, source: str, target: str) -> None:
        try:
            os.link(os.path.realpath(source) if os.path.islink(source) else source, target)
        except OSError as error:
            if error.errno in _NO_LINK:
                raise CannotLink(f"link of {source} as {target}: {error.strerror}") from error
            translate(error, f"link of {source} as {target}")

    def link_count(self, path: str) -> int:
        try:
            return os.stat(path).st_nlink
        except OSError as error:
            translate(error, f"stat of {path}")

    def read_file(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            translate(error, f"read of {path}")

    def file_size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError as error:
            translate(error, f"stat of {path}")

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        try:
            os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))
        except OSError as error:
            translate(error, f"change of the time of {path}")

    def modified_ms(self, path: str) -> int:
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except OSError as error:
            translate(error, f"stat of {path}")

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        self.remove(temporary)
        file = self.open(temporary, create=True)
        file.append([data])
        file.sync()
        self.rename(temporary, path)
        self.sync_dir(os.path.dirname(path) or ".")

    def copy(self, source: str, target: str, copied: Callable[[int], None], *, size_bytes: int | None = None) -> None:
        try:
            source_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CorruptData(f"{source} cannot be read: {error.strerror or error}") from error
        try:
            file = self.open(target, create=True)
            file.truncate(0)
            _copy(source_fd, file, source, copied, _WHOLE if size_bytes is None else size_bytes)
            file.sync()
        finally:
            os.close(source_fd)

    def rename(self, source: str, target: str) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            translate(error, f"rename of {source}")

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            translate(error, f"removal of {path}")

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            translate(error, f"removal of {path}")

    def sync_dir(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            translate(error, f"open of {path}")
        try:
            os.fsync(fd)
        except OSError as error:
            raise DiskFailure(f"sync of directory {path}: {error.strerror}") from error
        finally:
            os.close(fd)

    def space(self, path: str) -> tuple[int, int]:
        try:
            usage = shutil.disk_usage(path)
        except OSError as error:
            translate(error, f"disk usage of {path}")
        return usage.total, usage.free

    def lock(self, path: str) -> OsLock:
        return self._locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)

    def lock_to_read(self, path: str) -> OsLock | None:
        try:
            return self._locked(path, os.O_RDONLY, fcntl.LOCK_SH)
        except FileNotFoundError:
            return None

    def _locked(self, path: str, flags: int, kind: int) -> OsLock:
        """Both of the system's locks, which do not see each other: a Java program takes the second (`FileChannel`).

        That one is the process's: it is gone as soon as the process closes the file, wherever it has opened it again.
        """
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            translate(error, f"open of {path}")
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            fcntl.lockf(fd, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            os.close(fd)
            raise StorageLocked(f"{path} is held by another process; stop it, or use another --data-dir") from error
        except OSError as error:
            os.close(fd)
            translate(error, f"lock of {path}")
        return OsLock(fd)


def _copy(source_fd: int, target: OsFile, source: str, copied: Callable[[int], None], limit: int) -> None:
    """The bytes up to `limit`, by the system where it can do it without us (and without space, where files share)."""
    in_system = hasattr(os, "copy_file_range")
    position = 0
    while position < limit:
        wanted = min(COPY_CHUNK_BYTES, limit - position)
        if in_system:
            try:
                size_bytes = os.copy_file_range(
                    source_fd, target.fileno(), wanted, offset_src=position, offset_dst=position
                )
            except OSError as error:
                if error.errno in _NO_SPACE:
                    translate(error, f"write to {target.path}")
                in_system = False  # two file systems, or one that cannot: what is wrong besides shows when read by hand
                continue
            if size_bytes == 0:
                in_system = False  # some say so before the end: it is read by hand once more
                continue
            target.size_bytes = position + size_bytes
            target.synced = False
        else:
            try:
                data = os.pread(source_fd, wanted, position)
            except OSError as error:
                raise CorruptData(f"{source} cannot be read at byte {position}: {error.strerror or error}") from error
            size_bytes = len(data)
            if data:
                target.append([data])
        if size_bytes == 0:
            return
        position += size_bytes
        copied(size_bytes)
