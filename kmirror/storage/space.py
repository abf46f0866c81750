"""The last of the disk is kept for what must always be written. L2 storage.

Records of clients and of mirrors can be refused and sent again. Metadata, mirror states, markers, checkpoints and the
files that make a flush good cannot wait: without them a full disk could not even be emptied, since deleting a topic is
a record too. So bulk appends stop a little before the end.

What must hold: asking costs nothing on the hot path (the system is asked once per granted stretch, and then at every
refusal, so that freed space is seen at once); other programs on the same disk can still take the rest, so nobody may
rely on the reserve being there.
"""

from __future__ import annotations

from kmirror.errors import DiskFull
from kmirror.limits import DISK_RESERVE_BYTES, DISK_RESERVE_SHARE
from kmirror.storage.filesystem import FileSystem


class SpaceGuard:
    """One per file system that takes bulk appends."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._granted_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Before a bulk append of this size. Raises DiskFull when it would reach into the reserve."""
        if size_bytes > self._granted_bytes:
            self._ask(size_bytes)
        self._granted_bytes -= size_bytes

    def _ask(self, size_bytes: int) -> None:
        total, free = self._fs.space(self._path)
        reserve = min(DISK_RESERVE_BYTES, total // DISK_RESERVE_SHARE)
        usable = free - reserve
        if size_bytes > usable:
            self._granted_bytes = 0
            raise DiskFull(f"the disk is full: {free} bytes left, {reserve} of them kept for metadata, in {self._path}")
        self._granted_bytes = min(usable, max(size_bytes, reserve // 4))
