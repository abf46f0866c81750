"""Partition directories that a real Kafka wrote: opened, rebuilt, and compared with its own dump and side files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kmirror.storage.filesystem import OsFileSystem
from kmirror.storage.log import Log
from tests.storage.making import offsets, open_log

SEGMENTS = Path(__file__).parent / "segments"
READABLE = sorted(str(path.relative_to(SEGMENTS)) for path in SEGMENTS.glob("*/*-0") if "magic" not in path.name)
OTHER_SNAPSHOT = (
    "2.1.1/txn-0",  # that version did not take a marker's timestamp for the producer's last one
    "4.4.0/compact-0",  # one of its producers had expired by the timestamps of its records, by which ours do not
)
_NUMBERS = (
    "baseOffset",
    "lastOffset",
    "count",
    "baseSequence",
    "lastSequence",
    "producerId",
    "producerEpoch",
    "partitionLeaderEpoch",
)


def dumped(directory: Path) -> list[tuple[object, ...]]:
    """One row a batch, as `described` has it."""
    found: list[tuple[object, ...]] = []
    for dump in sorted(directory.glob("*.dump.txt")):
        for line in dump.read_text().splitlines():
            if line.startswith("baseOffset"):
                words = dict(re.findall(r"(\w+): (\S+)", line))
                flags = (words["isTransactional"] == "true", words["isControl"] == "true")
                found.append((*(int(words[name]) for name in _NUMBERS), *flags, int(words["size"])))
    return found


def dumped_by_record(directory: Path) -> list[tuple[int, int]]:
    """(base, last) offsets from a dump of Kafka 2.1, which has a row a record: records of a batch share a position."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for dump in sorted(directory.glob("*.dump.txt")):
        for match in re.finditer(r"^offset: (\d+) position: (\d+)", dump.read_text(), re.MULTILINE):
            offset, position = int(match[1]), int(match[2])
            first, _ = found.get((dump.name, position), (offset, offset))
            found[dump.name, position] = (first, offset)
    return list(found.values())


def described(log: Log) -> list[tuple[object, ...]]:
    return [
        (
            header.base_offset,
            header.last_offset,
            header.record_count,
            header.base_sequence,
            header.last_sequence,
            header.producer_id,
            header.producer_epoch,
            header.leader_epoch,
            header.is_transactional,
            header.is_control,
            header.size_bytes,
        )
        for header, _ in log.batches(0, 2**62)
    ]


def copy(name: str, tmp_path: Path, *, only_log: bool = False) -> Path:
    target = tmp_path / "t-0"
    target.mkdir()
    for path in (SEGMENTS / name).iterdir():
        if path.suffix == ".log" or (not only_log and not path.name.endswith(".dump.txt")):
            shutil.copy(path, target / path.name)
    return target


def newest_snapshot(directory: Path) -> Path:
    return max(directory.glob("*.snapshot"))


def batch_epochs(directory: Path) -> tuple[tuple[int, int], ...]:
    epochs: dict[int, int] = {}
    for words in dumped(directory):
        epochs.setdefault(int(str(words[7])), int(str(words[0])))
    return tuple(epochs.items())


def test_recordings_are_there() -> None:
    assert len(READABLE) == 9


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", [name for name in READABLE if name.startswith("4")])
def test_batches_are_those_of_the_dump(name: str, clean: bool, tmp_path: Path) -> None:
    directory = copy(name, tmp_path)
    end = int(newest_snapshot(directory).stem)
    # The clean mark and the recovery point are files of Kafka's data folder, which a copy of one partition lacks.
    log = open_log(OsFileSystem(), directory=str(directory), clean=clean, recovery_point=end)
    expected = dumped(SEGMENTS / name)
    assert described(log) == expected
    assert log.log_end_offset == end
    assert log.epochs.entries == batch_epochs(SEGMENTS / name)
    for words in expected:
        for offset in range(int(str(words[0])), int(str(words[1])) + 1):
            result = log.read(offset, max_bytes=1, limit_offset=end, at_least_one=True)
            assert result.size_bytes == words[-1]
            assert result.slices[0].read()[:8] == int(str(words[0])).to_bytes(8, "big")


@pytest.mark.parametrize("clean", [True, False])
def test_batches_of_an_old_broker(clean: bool, tmp_path: Path) -> None:
    directory = copy("2.1.1/txn-0", tmp_path)
    log = open_log(OsFileSystem(), directory=str(directory), clean=clean, recovery_point=11)
    assert offsets(log) == dumped_by_record(SEGMENTS / "2.1.1/txn-0")
    assert log.log_end_offset == 11


@pytest.mark.parametrize("name", READABLE)
def test_side_files_are_rebuilt_to_the_byte(name: str, tmp_path: Path) -> None:
    original = SEGMENTS / name
    directory = copy(name, tmp_path, only_log=True)
    end = int(newest_snapshot(original).stem)
    log = open_log(OsFileSystem(), directory=str(directory), recovery_point=end)
    log.close(clean=True)
    if name not in OTHER_SNAPSHOT:
        assert (directory / newest_snapshot(original).name).read_bytes() == newest_snapshot(original).read_bytes()
    for suffix in ("txnindex", "index", "timeindex"):
        for path in original.glob(f"*.{suffix}"):
            if suffix == "timeindex" and "epochs" in name:
                continue  # that broker was stopped three times, and each stop adds an entry
            assert (directory / path.name).read_bytes() == path.read_bytes(), path.name
    assert sorted(p.name for p in directory.glob("*.txnindex")) == sorted(p.name for p in original.glob("*.txnindex"))


def test_open_transaction_holds_back_the_stable_offset(tmp_path: Path) -> None:
    for clean in (True, False):
        place = tmp_path / str(clean)
        place.mkdir()
        directory = copy("4.4.0/txn-open-0", place)
        log = open_log(OsFileSystem(), directory=str(directory), clean=clean)
        assert log.first_undecided_offset == 2
        assert [txn.first_offset for txn in log.producers.ongoing()] == [2]


def test_aborted_transactions_come_from_kafkas_index(tmp_path: Path) -> None:
    log = open_log(OsFileSystem(), directory=str(copy("4.4.0/txn-0", tmp_path)), clean=True)
    everything = log.aborted_transactions(0, log.log_end_offset)
    assert len(everything) == 2
    for aborted in everything:
        assert aborted in log.aborted_transactions(aborted.first_offset, aborted.first_offset + 1)
        assert aborted not in log.aborted_transactions(aborted.last_offset + 1, log.log_end_offset)


def test_what_we_close_opens_again_unchanged(tmp_path: Path) -> None:
    directory = copy("4.4.0/txn-0", tmp_path)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    open_log(OsFileSystem(), directory=str(directory), clean=True).close(clean=True)
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    after.pop("log-facts")
    # An epoch that began behind the last batch (the broker's next start) is dropped on loading, as Kafka does.
    assert after.pop("leader-epoch-checkpoint") == b"0\n1\n0 0\n"
    before.pop("leader-epoch-checkpoint")
    assert after == before
