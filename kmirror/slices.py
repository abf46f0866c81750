"""A piece of a response body that is still in a file. L0: the codec counts its bytes, the server sends them.

The bytes of a Fetch never enter Python on the hot path: `storage` hands out `FileSlice`s, `protocol` puts them among
the encoded pieces, `server` sends them with sendfile. A log may be cut while a slice waits to be sent, so the sender
asks `still_valid()` before each piece and closes the connection when it says no: never pad, never send other bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class SliceFile(Protocol):
    """The part of a log file that a sender needs."""

    def pread(self, size_bytes: int, position: int) -> bytes: ...

    def fileno(self) -> int | None:
        """A file descriptor for sendfile, or None when the file lives in memory."""
        ...


class SliceOwner(Protocol):
    """The log a slice was cut from; `generation` grows by one with every truncation."""

    generation: int


@dataclass(frozen=True, slots=True)
class FileSlice:
    file: SliceFile
    position: int
    size_bytes: int
    owner: SliceOwner
    generation: int

    def __len__(self) -> int:
        return self.size_bytes

    def still_valid(self) -> bool:
        return self.owner.generation == self.generation

    def read(self) -> bytes:
        return self.file.pread(self.size_bytes, self.position)
