"""Which files a partition directory has, as the next start will see them. L2 storage. Kafka: LogLoader.

A cleaned segment whose names still end in `.swap` counts as put in place, and what it was made of as gone: that is how
the next start completes it. `.deleted` and `.cleaned` files count for nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from kmirror.errors import CorruptData
from kmirror.storage.check.findings import ReadableFiles
from kmirror.storage.check.segment import SegmentWalk
from kmirror.storage.flush import FACTS_FILE, Facts
from kmirror.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    file_name,
    offset_in,
)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """`name` is that of its log file, which may end in `.swap`; `size_bytes` what it had when it was listed."""

    base_offset: int
    name: str
    size_bytes: int
    swapping: tuple[str, ...] = ()
    """Its files that still have their `.swap` names."""

    def side(self, suffix: str) -> str:
        """The name of an index file."""
        name = file_name(self.base_offset, suffix)
        return name + SWAP_SUFFIX if name + SWAP_SUFFIX in self.swapping else name


@dataclass(slots=True)
class LogFiles:
    directory: str
    names: list[str]
    segments: list[SegmentFile] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    orphans: set[int] = field(default_factory=set)
    """Offsets of index files that have no log."""


def list_files(fs: ReadableFiles, directory: str) -> LogFiles:
    """Raises FileNotFoundError for a directory, or a segment, that is gone meanwhile."""
    names = fs.list_dir(directory)
    files = LogFiles(directory, names)
    logs = {base: name for name in names if (base := offset_in(name, LOG_SUFFIX)) is not None}
    cleaned = [base for name in names if name.endswith(CLEANED_SUFFIX) and (base := _base_of(name)) is not None]
    # From the first one on that is not complete, the next start drops them.
    swapping = tuple(
        name for name in names if name.endswith(SWAP_SUFFIX) and not (cleaned and (_base_of(name) or 0) >= min(cleaned))
    )
    swaps = {base: name for name in swapping if (base := offset_in(name, LOG_SUFFIX + SWAP_SUFFIX)) is not None}
    replaced: set[int] = set()
    for base, name in sorted(swaps.items()):
        end = _end_of_swap(fs, directory, base, name)
        replaced |= {known for known in logs if base < known < end}
        logs = {known: log for known, log in logs.items() if known not in replaced}
        logs[base] = name
    for base, name in sorted(logs.items()):
        files.segments.append(SegmentFile(base, name, fs.file_size(f"{directory}/{name}"), swapping))
    files.snapshots = sorted(at for name in names if (at := offset_in(name, SNAPSHOT_SUFFIX)) is not None)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        found = {base for name in names if (base := offset_in(name, suffix)) is not None}
        files.orphans |= found.difference(logs, replaced)
    return files


def _base_of(name: str) -> int | None:
    digits = name.partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None


def _end_of_swap(fs: ReadableFiles, directory: str, base: int, name: str) -> int:
    """What it replaces goes up to the next segment in `log-facts`, and to its own end: Kafka, which knows no facts, may
    have written it."""
    following = base + 1
    with suppress(FileNotFoundError, CorruptData):
        facts = Facts.decode(fs.read_file(f"{directory}/{FACTS_FILE}"), FACTS_FILE)
        following = min((at for at in facts.segments if at > base), default=following)
    file = fs.open(f"{directory}/{name}")
    end = base
    with suppress(CorruptData):
        for batch in SegmentWalk(file, file.size_bytes):
            end = batch.header.next_offset
    return max(following, end)
