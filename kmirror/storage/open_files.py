"""Which segments keep their file open: a bounded number, the longest unused closed first. L2 storage; loop side only.

A log with a file open costs a descriptor, of which a process has a limited number, and a broker may have many more
partitions than that. So a segment's file is opened when it is needed, and closed again when others need descriptors.

What must hold:
- a file whose bytes are about to be synced stays open: an error of the disk is told to whoever has it open then;
- closing means dropping the segment's reference. The descriptor goes with the last one, so that a flush in a thread and
  a slice that waits to be sent keep theirs (see `filesystem`). The limit can be exceeded by those, never by idle logs.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import TYPE_CHECKING

from kmirror.limits import (
    DESCRIPTORS_KEPT_FREE,
    DESCRIPTORS_TRIED_TO_CLOSE,
    DESCRIPTORS_WANTED,
    MIN_OPEN_LOG_FILES,
    OPEN_LOG_FILES_SHARE,
)

if TYPE_CHECKING:
    from kmirror.storage.segment import Segment


def raise_descriptor_limit() -> None:
    """As far as this process may (RLIMIT_NOFILE, soft towards hard). For whoever owns the process: at its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a second limit, which it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    """How many descriptors this process may have."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft


def open_log_files_limit() -> int:
    return max(MIN_OPEN_LOG_FILES, descriptor_limit() // OPEN_LOG_FILES_SHARE)


def connections_limit() -> int:
    """What the files of logs leave for connections, with some kept free for files that are open for a moment."""
    return max(1, descriptor_limit() - open_log_files_limit() - DESCRIPTORS_KEPT_FREE)


class OpenFiles:
    """The segments of one file system that have a file open, the longest unused first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._segments: dict[Segment, None] = {}

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def is_crowded(self) -> bool:
        """Below half of the limit nobody needs to know which file was used last."""
        return 2 * len(self._segments) > self.limit

    def used(self, segment: Segment) -> None:
        """The segment has its file open and needs it now."""
        self._segments.pop(segment, None)
        self._segments[segment] = None
        if len(self._segments) > self.limit:
            self.make_room(len(self._segments) - self.limit)

    def forget(self, segment: Segment) -> None:
        """The segment has let go of its file, or must keep it whatever happens."""
        self._segments.pop(segment, None)

    def make_room(self, count: int) -> None:
        """Close up to `count` files. Unsynced ones count as used just now; of those only so many are looked at."""
        if not self._segments:
            return
        newest = next(reversed(self._segments))  # the one on whose behalf this happens
        for _ in range(count + DESCRIPTORS_TRIED_TO_CLOSE):
            oldest = next(iter(self._segments))
            if count == 0 or oldest is newest:
                return
            del self._segments[oldest]
            if oldest.rest_file():
                count -= 1
            else:
                self._segments[oldest] = None
