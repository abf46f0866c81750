"""What a check of files on disk says, and how it reads them. L2 storage.

What may live here: the words that all checks share. A check reads only, believes nothing that another file says, and
goes on behind what it finds. Its findings are of three kinds; "the next start" is that of kmirror:

- DAMAGE: records are lost or wrong, or readers get wrong answers, and no start repairs it;
- STALE: a start notices by itself and makes it anew from the log, or cuts what was never acknowledged;
- NOTE: nothing is wrong, but somebody should know.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kmirror.errors import DiskFailure


class Severity(enum.Enum):
    DAMAGE = "damage"
    STALE = "stale"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """`offset` is a record's, `position` a byte's in the file; None where there is none to name."""

    severity: Severity
    path: str
    text: str
    offset: int | None = None
    position: int | None = None


Report = Callable[[Finding], None]


@dataclass(slots=True)
class Totals:
    """What was looked at. `records` counts those inside batches whose checksum is right."""

    files: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    def add(self, other: Totals) -> None:
        self.files += other.files
        self.batches += other.batches
        self.records += other.records
        self.size_bytes += other.size_bytes


class ReadableFile(Protocol):
    @property
    def size_bytes(self) -> int: ...

    def pread(self, size_bytes: int, position: int) -> bytes: ...


class ReadableFiles(Protocol):
    """The part of the FileSystem port that a check uses; every FileSystem is one."""

    def open(self, path: str) -> ReadableFile: ...

    def list_dir(self, path: str) -> list[str]: ...

    def read_file(self, path: str) -> bytes: ...

    def file_size(self, path: str) -> int: ...


class _OpenFile:
    def __init__(self, path: str) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed with the last reference)
        self.size_bytes = os.fstat(self._file.fileno()).st_size

    def pread(self, size_bytes: int, position: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), size_bytes, position)
        except OSError as error:
            raise DiskFailure(f"read of {self.path}: {error.strerror}") from error


class ReadOnlyFiles:
    """The machine's own files, never opened for writing: the directory may be somebody else's, or read-only.

    Raises OSError as it comes, such as FileNotFoundError and NotADirectoryError; DiskFailure for a failed `pread`.
    """

    def open(self, path: str) -> ReadableFile:
        return _OpenFile(path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size
