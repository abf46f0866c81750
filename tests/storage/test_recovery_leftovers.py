"""What an interrupted compaction or deletion leaves in a partition's directory, on real files: Kafka's LogLoader.

Segments at 0 and 4 were cleaned into one, a third at 8 is active. The renames of Kafka's cleaner and of ours are played
up to each point in turn; whoever starts then has all of the old segments or the new one, and no left-over names.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from kmirror.storage.check.findings import Finding, ReadOnlyFiles, Severity
from kmirror.storage.check.log import LogContext, check_log
from kmirror.storage.filesystem import OsFileSystem
from kmirror.storage.flush import FACTS_FILE, Facts
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.segment import file_name
from tests.storage.making import batch, offsets, open_log, produce, read_bytes

SIZE = len(batch(2))
CONFIG = LogConfig(segment_bytes=2 * SIZE, index_interval_bytes=1)
OLD = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
NEW = [(0, 1), (6, 7), (8, 9)]
END = 10
KAFKAS_ORDER = (".log", ".index", ".timeindex")
LEFT_OVER = (".cleaned", ".swap", ".deleted", ".tmp")

Step = tuple[str, str]
"""Rename the first to the second; to nothing: remove."""


def new(suffix: str, ending: str = "", base: int = 0) -> str:
    return f"{file_name(base, suffix)}{ending}"


def renames(ending_before: str, ending_after: str, order: tuple[str, ...], base: int = 0) -> list[Step]:
    return [(new(suffix, ending_before, base), new(suffix, ending_after, base)) for suffix in order]


def kafkas_steps() -> list[Step]:
    """LocalLog.replaceSegments: the `.log` first each time."""
    steps = renames(".cleaned", ".swap", KAFKAS_ORDER)
    for base in (0, 4):
        steps += renames("", ".deleted", KAFKAS_ORDER, base)
    steps += renames(".swap", "", KAFKAS_ORDER)
    return steps + [(new(suffix, ".deleted", base), "") for base in (0, 4) for suffix in KAFKAS_ORDER]


def our_steps() -> list[Step]:
    """The `.log` is the last on the way to `.swap`, so that nothing else may be missing beside it."""
    backwards = KAFKAS_ORDER[::-1]
    steps = renames(".cleaned", ".swap", backwards)
    for base in (0, 4):
        steps += renames("", ".deleted", KAFKAS_ORDER, base)
    return steps + renames(".swap", "", KAFKAS_ORDER)


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory at the moment when the new segment is complete, all under `.cleaned` names."""
    place = tmp_path_factory.mktemp("cleaned") / "t-0"
    other = tmp_path_factory.mktemp("other") / "t-0"
    log = open_log(OsFileSystem(), directory=str(place), config=CONFIG)
    for _ in range(5):
        produce(log, batch(2))
    log.flush()
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8]
    log.close(clean=False)
    made = open_log(OsFileSystem(), directory=str(other), config=CONFIG)
    data = (place / new(".log")).read_bytes()[:SIZE] + (place / new(".log", base=4)).read_bytes()[SIZE:]
    made.active.file.append([data])
    made.close(clean=False)
    made = open_log(OsFileSystem(), directory=str(other), config=CONFIG)
    made.close(clean=True)
    for suffix in KAFKAS_ORDER:
        shutil.copy(other / new(suffix), place / new(suffix, ".cleaned"))
    return place


def damage_in(place: Path) -> list[Finding]:
    found: list[Finding] = []
    context = LogContext(clean=False, recovery_point=END, compacted=True)
    check_log(ReadOnlyFiles(), str(place), found.append, context=context)
    return [finding for finding in found if finding.severity is Severity.DAMAGE]


def reopened(place: Path) -> Log:
    return open_log(OsFileSystem(), directory=str(place), config=CONFIG, clean=False, recovery_point=END)


def is_whole(place: Path, expected: list[tuple[int, int]]) -> None:
    for _ in range(2):
        log = reopened(place)
        assert (offsets(log), log.log_end_offset) == (expected, END)
        for offset in range(END):
            base = next(first for first, last in expected if last >= offset)
            assert int.from_bytes(read_bytes(log, offset, max_bytes=1)[:8]) == base
        assert not [path.name for path in place.iterdir() if path.name.endswith(LEFT_OVER)]
        log.close(clean=False)


def played(source: Path, place: Path, steps: list[Step]) -> Path:
    shutil.copytree(source, place)
    for before, after in steps:
        if after:
            (place / before).rename(place / after)
        else:
            (place / before).unlink()
    return place


@pytest.mark.parametrize(
    ("whose", "facts"),
    [
        ("Kafka's", "none"),
        ("Kafka's", "of the old"),
        ("Kafka's", "of the new"),
        ("ours", "none"),
        ("ours", "of the new"),
    ],
)
def test_a_swap_is_finished_or_undone_at_each_point(cleaned: Path, tmp_path: Path, whose: str, facts: str) -> None:
    """Ours records the new list before the first rename; Kafka, in a directory that was ours, leaves an old one."""
    steps = kafkas_steps() if whose == "Kafka's" else our_steps()
    complete = len(KAFKAS_ORDER)
    for count in range(len(steps) + 1):
        place = played(cleaned, tmp_path / str(count), steps[:count])
        path = place / FACTS_FILE
        if facts == "none":
            path.unlink()
        elif facts == "of the new":
            known = Facts.decode(path.read_bytes(), "")
            known.segments, known.checksums = [0, 8], {}
            path.write_bytes(known.encode())
        assert not damage_in(place), "the check sees the files as the next start will"
        is_whole(place, NEW if count >= complete else OLD)


@pytest.mark.parametrize("names", list(itertools.product(["", ".cleaned", ".swap"], repeat=3)))
def test_every_mixture_of_names(cleaned: Path, tmp_path: Path, names: tuple[str, str, str]) -> None:
    """Whatever is there of the new segment, beside whole old ones: a `.cleaned` of it voids all of it; a `.log.swap`
    alone is enough; index files of it alone are indexes of the wrong segment, and found out."""
    place = tmp_path / "t-0"
    shutil.copytree(cleaned, place)
    for suffix, name in zip(KAFKAS_ORDER, names, strict=True):
        data = (place / new(suffix, ".cleaned")).read_bytes()
        (place / new(suffix, ".cleaned")).unlink()
        if name:
            (place / new(suffix, name)).write_bytes(data)
    is_whole(place, NEW if names[0] == ".swap" and ".cleaned" not in names else OLD)


def test_a_cleaned_file_voids_swaps_at_and_behind_it_only(cleaned: Path, tmp_path: Path) -> None:
    """Two groups in one round (KAFKA-6264): the one before the `.cleaned` was complete."""
    swap = renames(".cleaned", ".swap", KAFKAS_ORDER)
    place = played(cleaned, tmp_path / "before", swap)
    (place / new(".log", ".cleaned", base=8)).write_bytes(b"half")
    is_whole(place, NEW)
    place = played(cleaned, tmp_path / "behind", [])
    for suffix in KAFKAS_ORDER:
        (place / new(suffix, ".cleaned")).unlink()
    (place / new(".log", ".cleaned", base=4)).write_bytes(b"half")
    for suffix in KAFKAS_ORDER:
        shutil.copy(place / new(suffix, base=4), place / new(suffix, ".swap", base=4))
    is_whole(place, OLD)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
def test_what_was_deleted_stays_deleted(cleaned: Path, tmp_path: Path, suffix: str) -> None:
    """`.deleted` beside the file of the same name (a segment made anew within the delay) is not mixed up."""
    place = played(cleaned, tmp_path / "t-0", [(new(kind, ".cleaned"), "") for kind in KAFKAS_ORDER])
    (place / new(suffix, ".deleted")).write_bytes(b"old")
    (place / new(suffix, ".deleted", base=77)).write_bytes(b"old")
    is_whole(place, OLD)
