"""Files with two names: whoever has the other name sees no write, no cut and no new content, whatever happens here."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.errors import DiskFull
from kmirror.storage import cleaning
from kmirror.storage.errors import CannotLink
from kmirror.storage.filesystem import FileSystem, OsFileSystem, fresh
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from tests.power_cut import powered_until
from tests.storage.making import NOW_MS, batch, content, offsets, open_log, produce

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100, segment_index_bytes=1 << 16)
COMPACTED = replace(CONFIG, cleanup_policy="compact")


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "os":
        return OsFileSystem(), str(tmp_path)
    fs = MemoryFileSystem()
    fs.make_dirs("/d")
    return fs, "/d"


def test_a_file_with_two_names(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    file = fs.open(f"{root}/a", create=True)
    file.append([b"abc"])
    assert fs.link_count(f"{root}/a") == 1
    fs.make_dir(f"{root}/x")
    fs.link(f"{root}/a", f"{root}/x/b")
    assert fs.link_count(f"{root}/a") == fs.link_count(f"{root}/x/b") == 2
    file.append([b"d"])
    assert fs.read_file(f"{root}/x/b") == b"abcd"
    fs.rename(f"{root}/a", f"{root}/c")
    assert fs.link_count(f"{root}/c") == 2
    fs.write_atomic(f"{root}/c", b"other")
    assert fs.link_count(f"{root}/x/b") == fs.link_count(f"{root}/c") == 1 and fs.read_file(f"{root}/x/b") == b"abcd"
    fs.link(f"{root}/x/b", f"{root}/e")
    fs.remove_tree(f"{root}/x")
    assert fs.link_count(f"{root}/e") == 1
    for missing in (fs.link_count, lambda path: fs.link(path, f"{root}/f")):
        with pytest.raises(FileNotFoundError):
            missing(f"{root}/none")
    assert fs.real_path(f"{root}/q/../e") == fs.real_path(f"{root}/e")


def test_a_fresh_file_takes_nothing_from_the_other_name(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    for data in (b"", b"old"):
        fs.write_atomic(f"{root}/a", data)
        fs.link(f"{root}/a", f"{root}/b")
        fresh(fs, f"{root}/a").append([b"new"])
        assert (fs.read_file(f"{root}/a"), fs.read_file(f"{root}/b")) == (b"new", data)
        fs.remove(f"{root}/b")
    fresh(fs, f"{root}/a")
    assert fs.file_size(f"{root}/a") == 0


def test_the_first_bytes_are_copied(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    fs.write_atomic(f"{root}/a", b"0123456789")
    told: list[int] = []
    fs.copy(f"{root}/a", f"{root}/b", told.append, size_bytes=4)
    fs.copy(f"{root}/a", f"{root}/c", told.append, size_bytes=0)
    fs.copy(f"{root}/a", f"{root}/d", told.append, size_bytes=99)
    assert [fs.read_file(f"{root}/{name}") for name in "bcd"] == [b"0123", b"", b"0123456789"]
    assert sum(told) == 14


def test_no_link_to_another_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory = MemoryFileSystem()
    memory.make_dirs("/d")
    memory.make_dirs("/other")
    memory.mounts.add("/other")
    memory.write_atomic("/d/a", b"x")
    with pytest.raises(CannotLink, match="another file system"):
        memory.link("/d/a", "/other/a")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CannotLink, match="cross-device"):
        OsFileSystem().link("/x", str(tmp_path / "y"))


@pytest.mark.parametrize("keep_nothing", [True, False])
def test_a_power_cut_takes_unsynced_names_only(keep_nothing: bool) -> None:
    for seed in range(20):
        fs = MemoryFileSystem(seed=seed)
        fs.make_dirs("/d")
        fs.write_atomic("/d/a", b"x" * 10)
        fs.link("/d/a", "/d/b")
        fs.sync_dir("/d")
        fs.link("/d/a", "/d/c")
        fs.open("/d/a").append([b"y" * 10])
        after = fs.crash(keep_nothing=keep_nothing)
        assert after.read_file("/d/a") == after.read_file("/d/b"), "one file became two"
        assert after.link_count("/d/a") == 2 + after.exists("/d/c")
        assert not (keep_nothing and after.exists("/d/c"))


# --- logs -----------------------------------------------------------------------------------------------------------


def names(fs: FileSystem, directory: str) -> dict[str, bytes]:
    return {name: fs.read_file(f"{directory}/{name}") for name in fs.list_dir(directory)}


def link_all(fs: FileSystem, source: str, target: str) -> None:
    fs.make_dirs(target)
    for name in fs.list_dir(source):
        fs.link(f"{source}/{name}", f"{target}/{name}")
    fs.sync_dir(target)


class Life:
    """Random operations on one log, which is opened again and again."""

    def __init__(self, fs: FileSystem, directory: str, rng: random.Random, *, now_ms: int = NOW_MS) -> None:
        self.fs, self.directory, self.rng = fs, directory, rng
        self.now_ms = now_ms
        self.log = self.opened(clean=False)

    def opened(self, *, clean: bool) -> Log:
        config = self.rng.choice([CONFIG, COMPACTED])
        return open_log(self.fs, directory=self.directory, config=config, clean=clean)

    def append(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            produce(self.log, batch(self.rng.randint(1, 3), key=b"%d" % self.rng.randint(0, 5)))
        if self.rng.random() < 0.7:
            self.log.flush()

    def truncate(self) -> None:
        self.log.truncate_to(self.rng.randint(self.log.log_start_offset, self.log.log_end_offset))

    def start_anew(self) -> None:
        self.log.truncate_fully_and_start_at(self.rng.randint(self.log.log_end_offset, self.log.log_end_offset + 9))

    def retention(self) -> None:
        self.log.advance_log_start(self.rng.randint(self.log.log_start_offset, self.log.log_end_offset))
        self.log.apply_retention(self.now_ms, self.log.log_end_offset)
        self.log.delete_doomed(self.now_ms + 10**9)
        self.log.flush()

    def compact(self) -> None:
        if not self.log.config.compact:
            return
        self.log.flush()
        dirt = cleaning.dirt(self.log, cleaned_up_to=-1, last_stable_offset=self.log.log_end_offset, now_ms=self.now_ms)
        job = cleaning.plan(self.log, dirt, now_ms=self.now_ms, memory_bytes=1 << 20)
        for step in cleaning.clean(self.fs, job) if job is not None else ():
            if not isinstance(step, int):
                assert cleaning.swap(self.log, step, self.now_ms)
        self.log.delete_doomed(self.now_ms + 10**9)

    def restart(self) -> None:
        clean = self.rng.random() < 0.5
        self.log.close(clean=clean)
        self.log = self.opened(clean=clean)

    def torn(self) -> None:
        """A kill in the middle of a write: recovery cuts the end away, wherever that is."""
        path = self.log.active.path()
        self.log.close(clean=False)
        size_bytes = self.fs.file_size(path)
        if size_bytes and self.fs.link_count(path) == 1:
            self.fs.open(path).append([b"\0" * self.rng.randint(1, 90)])
        self.log = self.opened(clean=False)

    def step(self) -> None:
        kinds = [self.append, self.truncate, self.retention, self.compact, self.restart, self.torn, self.start_anew]
        self.rng.choices(kinds, [8, 4, 2, 3, 3, 2, 0.3])[0]()


@pytest.mark.parametrize("round_number", range(6))
def test_the_other_name_never_changes(place: tuple[FileSystem, str], rng: random.Random, round_number: int) -> None:
    """A log is linked as a whole between two lives, then both sides go on, each seen by the other."""
    fs, root = place
    ours, theirs = f"{root}/a-0", f"{root}/b-0"
    life = Life(fs, ours, rng)
    for _ in range(15):
        life.step()
    life.log.close(clean=rng.random() < 0.5)
    link_all(fs, ours, theirs)
    before = names(fs, theirs)
    life = Life(fs, ours, rng)
    for _ in range(25):
        life.step()
        assert names(fs, theirs) == before
    life.log.flush()
    seen, held = names(fs, ours), content(life.log)
    other = Life(fs, theirs, rng)
    for _ in range(25):
        other.step()
        assert names(fs, ours) == seen
    assert content(life.log) == held


def filled(fs: FileSystem) -> Log:
    """Five segments, all flushed."""
    log = open_log(fs, config=CONFIG)
    while len(log.segments) < 5:
        produce(log, batch(2))
        log.flush()
    return log


def cut_inside(log: Log, index: int) -> int:
    """An offset in the middle of a segment, where a batch begins."""
    segment = log.segments[index]
    found = [header.base_offset for _, header in segment.headers()]
    return found[len(found) // 2]


def test_a_cut_copies_only_a_file_that_has_another_name() -> None:
    for shared in (False, True):
        fs = MemoryFileSystem()
        log = filled(fs)
        if shared:
            link_all(fs, log.directory, "/copy")
        before = names(fs, "/copy") if shared else {}
        fs.counts.clear()
        at = cut_inside(log, 2)
        log.truncate_to(at)
        assert fs.counts.get("truncate", 0) == (0 if shared else 1)
        assert fs.link_count(log.active.path()) == 1 and log.log_end_offset == at
        produce(log, batch(2))
        log.flush()
        assert offsets(log)[-1] == (at, at + 1)
        if shared:
            assert names(fs, "/copy") == before
        again = open_log(fs, config=CONFIG)
        assert content(again) == content(log)


def test_a_cut_between_two_segments_ends_the_sharing_too() -> None:
    """The segment before the cut is active then and gets the next batch."""
    fs = MemoryFileSystem()
    log = filled(fs)
    link_all(fs, log.directory, "/copy")
    before = names(fs, "/copy")
    log.apply_config(replace(CONFIG, segment_bytes=1 << 20))
    log.truncate_to(log.segments[3].base_offset)
    produce(log, batch(1))
    assert len(log.segments) == 3 and names(fs, "/copy") == before


def test_a_slice_of_the_old_file_is_not_valid_any_more() -> None:
    fs = MemoryFileSystem()
    log = filled(fs)
    link_all(fs, log.directory, "/copy")
    at = cut_inside(log, 2)
    pieces = log.read(0, max_bytes=1 << 20, limit_offset=log.log_end_offset, at_least_one=True).slices
    log.truncate_to(at)
    assert pieces and not any(piece.still_valid() for piece in pieces)


def test_a_cut_without_space_for_the_copy_changes_nothing() -> None:
    fs = MemoryFileSystem()
    log = filled(fs)
    link_all(fs, log.directory, "/copy")
    before, held, generation = names(fs, log.directory), content(log), log.generation
    fs.fail("write", ".log.tmp", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        log.truncate_to(cut_inside(log, 2))
    assert (names(fs, log.directory), content(log), log.generation) == (before, held, generation)
    fs.fail("write", "log-facts.tmp", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        log.truncate_to(cut_inside(log, 2))
    assert not any(name.endswith(".log.tmp") for name in fs.list_dir(log.directory))
    produce(log, batch(1))
    log.flush()
    assert content(open_log(fs, config=CONFIG)) == content(log)


def test_recovery_cuts_a_shared_file_by_a_copy() -> None:
    fs = MemoryFileSystem()
    log = filled(fs)
    log.active.file.append([b"\0" * 70])
    log.active.file.sync()
    log.close(clean=False)
    link_all(fs, log.directory, "/copy")
    before = names(fs, "/copy")
    again = open_log(fs, config=CONFIG)
    assert again.report.notes and again.log_end_offset == log.log_end_offset
    assert names(fs, "/copy") == before and fs.link_count(again.active.path()) == 1


def test_an_active_segment_may_keep_the_name_that_a_backup_gave_it() -> None:
    fs = MemoryFileSystem()
    log = filled(fs)
    log.close(clean=True)
    link_all(fs, log.directory, "/copy")
    for names_allowed, expected in ((2, 2), (1, 1)):
        opened = Log.open(fs, log.directory, config=CONFIG, clock=log.clock, clean=True, names=names_allowed)
        assert fs.link_count(opened.active.path()) == expected
        opened.close(clean=True)


def _cut(log: Log) -> None:
    log.truncate_to(cut_inside(log, 2))
    produce(log, batch(3))
    log.flush()


def _open_and_append(log: Log) -> None:
    log.close(clean=False)
    again = open_log(log.fs, config=CONFIG)
    produce(again, batch(3))
    again.flush()


@pytest.mark.parametrize("act", [_cut, _open_and_append])
@pytest.mark.parametrize("keep_nothing", [True, False])
def test_a_power_cut_at_any_point_of_it(act: Callable[[Log], None], keep_nothing: bool) -> None:
    """What is left is the log before, or what was made of it, never a mixture; the other name has what it had."""
    done = False
    for operation in range(1, 400):
        fs = MemoryFileSystem(seed=operation)
        log = filled(fs)
        link_all(fs, log.directory, "/copy")
        before, copied = offsets(log), names(fs, "/copy")
        cut_at = cut_inside(log, 2)
        with powered_until(fs, operation) as power:
            act(log)
        after = fs.crash(keep_nothing=keep_nothing)
        assert names(after, "/copy") == copied, f"operation {operation}"
        found = offsets(open_log(after, config=CONFIG))
        kept = [pair for pair in before if pair[0] < cut_at] if act is _cut else before
        start = found[: len(kept)]
        assert start == kept, f"operation {operation}: {found}"
        extra = (kept[-1][1] + 1, kept[-1][1] + 3)
        wholly_before = found == before[: len(found)]
        assert wholly_before or found == [*kept, extra], f"operation {operation}: {found}"
        if power.lasted:
            assert found == [*kept, extra]
            done = True
            break
    assert done and operation > 15
