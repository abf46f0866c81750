"""Damaged side files of a partition, one at a time, on real files: the log answers as before, or says what is wrong.

The log holds several segments with everything that side files speak of: two leader epochs, times that do not rise,
idempotent and transactional producers, aborted transactions and one that is open. `answers` is all that anybody can ask
it. Each kind of file is damaged in each way a crash, a bad disk or a person may damage it, after a clean stop and after
none, and again after the start that mended it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kmirror.protocol.records import end_txn_marker
from kmirror.storage.filesystem import OsFileSystem
from kmirror.storage.flush import FACTS_FILE
from kmirror.storage.log import Log, LogConfig
from tests.storage.making import NOW_MS, batch, content, coordinate, open_log, produce, read_bytes

CONFIG = LogConfig(segment_bytes=1200, index_interval_bytes=150, segment_index_bytes=4096)
END = 44
RECOVERY_POINT = 30
"""In the third segment of four: an unclean start goes through the last two, and believes what is beside the others."""
FLIPS_PER_FILE = 8

Damage = Callable[[bytes], bytes | None]
DAMAGES: dict[str, Damage] = {
    "missing": lambda _data: None,
    "empty": lambda _data: b"",
    "half": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "last entry gone": lambda data: data[: max(0, len(data) - 34)] if len(data) % 34 == 0 else data[:-12],
    "last index entry gone": lambda data: data[:-8],
    "preallocated": lambda data: data + bytes(CONFIG.segment_index_bytes - len(data)),
    "all zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: random.Random(len(data)).randbytes(len(data) or 24),
    "garbage behind": lambda data: data + random.Random(1).randbytes(24),
    "entry twice": lambda data: data + data[-12:],
}
KINDS = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", FACTS_FILE)


def marker(producer_id: int, *, commit: bool) -> bytes:
    return end_txn_marker(
        commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS + 50
    )


def tell(log: Log) -> None:
    """Five rounds: the epoch rises in the middle; each round's transaction ends in the next one's segment."""
    for number in range(5):
        epoch = 0 if number < 3 else 4
        for at in range(3):
            times = [NOW_MS + 100 * ((7 * number + at) % 11), NOW_MS + number]
            produce(log, batch(timestamps=times, pid=7, seq=6 * number + 2 * at, size=40), epoch=epoch)
        produce(log, batch(2, pid=20 + number, seq=0, txn=True, size=60, timestamp_ms=NOW_MS + number), epoch=epoch)
        if number:
            coordinate(log, marker(19 + number, commit=number == 2), epoch=epoch)
    log.flush()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The directory as a clean stop leaves it, and as the end of the process does."""
    places = {}
    for clean in (True, False):
        places[clean] = tmp_path_factory.mktemp("told") / "t-0"
        log = open_log(OsFileSystem(), config=CONFIG, directory=str(places[clean]), clean=True)
        tell(log)
        assert log.log_end_offset == END
        assert [len(segment.txn_index.entries) for segment in log.segments] == [0, 1, 1, 1]
        log.close(clean=clean)
    return places


def reopened(place: Path, *, clean: bool) -> Log:
    point = END if clean else RECOVERY_POINT
    return open_log(OsFileSystem(), config=CONFIG, directory=str(place), clean=clean, recovery_point=point)


def answers(log: Log) -> dict[str, object]:
    """All that clients, coordinators and retention can ask. Of a producer's batches the last, without its own time: a
    snapshot has no more."""
    end = log.log_end_offset
    times = sorted({NOW_MS + step + late for step in range(0, 1200, 100) for late in (-1, 0, 1, 4)})
    return {
        "batches": content(log),
        "ends": (log.log_start_offset, end, [segment.base_offset for segment in log.segments]),
        "reads": [len(read_bytes(log, offset, max_bytes=400)) for offset in range(log.log_start_offset, end)],
        "firsts": [read_bytes(log, offset, max_bytes=1)[:8] for offset in range(log.log_start_offset, end)],
        "times": [log.offset_for_timestamp(time, end) for time in times],
        "largest": (log.max_timestamp_offset(end), [segment.max_timestamp for segment in log.segments]),
        "aborted": [log.aborted_transactions(first, first + 5) for first in range(0, end, 2)],
        "undecided": (log.first_undecided_offset, log.producers.ongoing()),
        "epochs": [log.epochs.end_offset_for(epoch, end) for epoch in range(6)],
        "epoch": log.last_leader_epoch,
        "producers": {
            pid: (
                entry.producer_epoch,
                entry.coordinator_epoch,
                [last[:4] for last in entry.batches[-1:]],
                entry.last_timestamp,
            )
            for pid, entry in log.producers.entries.items()
        },
        "ids": log.max_producer_id,
    }


def files(place: Path, kind: str) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name.endswith(kind))


def copied(place: Path, target: Path) -> Path:
    shutil.copytree(place, target)
    return target


def mends(place: Path, expected: dict[str, object], *, clean: bool) -> None:
    """Both the start that meets the damage and the one after a clean stop of it answer as before."""
    for start in (clean, True):
        log = reopened(place, clean=start)
        found = answers(log)
        for question, answer in expected.items():
            assert found[question] == answer, question
        log.close(clean=True)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_side_file_changes_no_answer(
    told: dict[bool, Path], tmp_path: Path, kind: str, damage: str, clean: bool
) -> None:
    expected = answers(reopened(copied(told[clean], tmp_path / "whole"), clean=clean))
    names = files(told[clean], kind)
    assert names
    for number, name in enumerate(names):
        place = copied(told[clean], tmp_path / str(number))
        data = DAMAGES[damage]((place / name).read_bytes())
        if data is None:
            (place / name).unlink()
        else:
            (place / name).write_bytes(data)
        mends(place, expected, clean=clean)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_changes_no_answer(
    told: dict[bool, Path], tmp_path: Path, rng: random.Random, kind: str, clean: bool
) -> None:
    """Also one that leaves the form right: an index that still rises, an epoch that begins a little later."""
    expected = answers(reopened(copied(told[clean], tmp_path / "whole"), clean=clean))
    for name in files(told[clean], kind):
        whole = (told[clean] / name).read_bytes()
        for at in rng.sample(range(len(whole)), min(FLIPS_PER_FILE, len(whole))):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << rng.randrange(8)
            place = copied(told[clean], tmp_path / f"{name}-{at}")
            (place / name).write_bytes(flipped)
            mends(place, expected, clean=clean)
            shutil.rmtree(place)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize(
    "damage", ["missing", "empty", "one byte short", "preallocated", "all zeros", "garbage behind"]
)
@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_so_do_the_indexes_that_kafka_left(
    told: dict[bool, Path], tmp_path: Path, kind: str, damage: str, clean: bool
) -> None:
    """Without `log-facts` form and size have to tell: after a crash Kafka's index files are as long as they may be."""
    whole = copied(told[clean], tmp_path / "whole")
    (whole / FACTS_FILE).unlink()
    expected = answers(reopened(whole, clean=clean))
    place = copied(told[clean], tmp_path / "t-0")
    (place / FACTS_FILE).unlink()
    for name in files(place, kind):
        data = DAMAGES[damage]((place / name).read_bytes())
        if data is None:
            (place / name).unlink()
        else:
            (place / name).write_bytes(data)
    mends(place, expected, clean=clean)
