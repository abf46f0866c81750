"""The check of a partition directory: nothing to say of sound ones, whatever their life was, and each damage named.

Sound ones are those that Apache Kafka wrote, and logs after random lives: every kind of append, truncation, retention,
compaction, resets, restarts, kills and power cuts. The check shares no code with what wrote them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kmirror.errors import CorruptData
from kmirror.limits import SCAN_WINDOW_BYTES
from kmirror.protocol.records import walk
from kmirror.storage.check import segment as check_segment
from kmirror.storage.check.findings import Finding, ReadableFile, ReadableFiles, ReadOnlyFiles, Severity
from kmirror.storage.check.log import LogContext, LogSummary, check_log
from kmirror.storage.check.producers import Completed, TxnIndexCheck
from kmirror.storage.log import Log
from tests.storage.log_run import WEIGHTS, Run
from tests.storage.making import DIRECTORY, batch
from tests.storage.planting import (
    Plant,
    Sound,
    batches,
    entries,
    facts_with,
    files,
    flip,
    make_sound,
    patch,
    snapshot_with,
    with_crc,
    without_facts,
)
from tests.storage.test_compaction import DAY_MS, History

SEGMENTS = Path(__file__).parent / "segments"
RECORDED = sorted(str(path.relative_to(SEGMENTS)) for path in SEGMENTS.glob("*/*-0"))
SEEDS = range(30)
STEPS, BETWEEN_LOOKS = 120, 30


def checked(fs: ReadableFiles, directory: str = DIRECTORY, **context: Any) -> tuple[LogSummary, list[Finding]]:
    found: list[Finding] = []
    summary = check_log(fs, directory, found.append, context=LogContext(**context))
    return summary, found


def damage(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity is Severity.DAMAGE]


# --- sound directories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [None, True])
@pytest.mark.parametrize("name", RECORDED)
def test_nothing_is_found_in_what_kafka_wrote(name: str, clean: bool | None) -> None:
    summary, found = checked(ReadOnlyFiles(), str(SEGMENTS / name), clean=clean)
    assert found == []
    assert summary.totals.records and summary.end_offset


def said_of(run: Run, **context: Any) -> list[Finding]:
    return checked(run.fs, recovery_point=run.recovery_point, log_start_offset=run.log_start_checkpoint, **context)[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_found_in_logs_after_random_lives(seed: int) -> None:
    chance = random.Random(seed)
    run = Run(seed)
    looks = 0
    for number in range(1, STEPS + 1):
        (name,) = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        run.step((name, chance.getrandbits(32)))
        if number % BETWEEN_LOOKS == 0:
            assert said_of(run, clean=False, running=True) == [], f"seed {seed}, behind step {number}"
            assert damage(said_of(run, clean=False)) == [], f"seed {seed}, were it killed behind step {number}"
            looks += 1
    assert looks == STEPS // BETWEEN_LOOKS
    run.log.close(clean=True)
    run.recovery_point = run.log.log_end_offset
    assert said_of(run, clean=True) == [], f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_power_cut_only_what_the_next_start_mends_is_found(seed: int) -> None:
    """Pages of what nobody acknowledged may be lost in any order: that something sound lies behind them is said."""
    chance = random.Random(seed)
    run = Run(seed)
    for _ in range(STEPS):
        (name,) = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        run.step((name, chance.getrandbits(32)))
    run.fs = run.fs.crash()
    for finding in damage(said_of(run, clean=False)):
        assert "the next start cuts the log here, with the" in finding.text, finding
    log = Log.open(
        run.fs,
        DIRECTORY,
        config=run.config,
        clock=run.clock,
        clean=False,
        recovery_point=run.recovery_point,
        log_start_offset=run.log_start_checkpoint,
    )
    log.close(clean=True)
    run.recovery_point = log.log_end_offset
    assert said_of(run, clean=True) == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_found_in_compacted_logs(seed: int) -> None:
    """Over three rounds, the last one behind the delete horizon, with transactions and resets."""
    history = History.begin(seed)
    cleaned_up_to = -1
    for _ in range(3):
        for _ in range(60):
            history.step()
        history.log.roll()
        history.step()
        cleaned_up_to = history.clean(cleaned_up_to)
        history.clock.advance(DAY_MS + 1)
        assert checked(history.fs, running=True, recovery_point=history.log.flushed_offset)[1] == []
    history.log.close(clean=True)
    summary, found = checked(history.fs, clean=True, recovery_point=history.log.log_end_offset)
    assert found == []
    assert summary.end_offset == history.log.log_end_offset


# --- planted damage ---------------------------------------------------------------------------------------------


@pytest.fixture
def sound(tmp_path: Path) -> Sound:
    return make_sound(tmp_path / "t-0")


def looked_at(sound: Sound, **context: Any) -> list[Finding]:
    known = {"clean": True, "recovery_point": sound.end_offset} | context
    return checked(ReadOnlyFiles(), str(sound.directory), **known)[1]


def test_what_damage_is_planted_in_is_sound_and_has_everything(sound: Sound) -> None:
    """Guards the guard."""
    assert looked_at(sound) == []
    assert looked_at(sound, clean=None) == []
    assert len(sound.bases) >= 4
    for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
        assert any(path.stat().st_size for path in files(sound.directory, suffix)), suffix
    assert all(len(entries(path, 8)) >= 3 for path in files(sound.directory, ".index")[:3])
    (sound.directory / "log-facts").unlink()
    assert looked_at(sound) == []


def _log(directory: Path, number: int = 1) -> Path:
    return files(directory, ".log")[number]


def _index(directory: Path) -> Path:
    return files(directory, ".index")[1]


def _times(directory: Path) -> Path:
    return files(directory, ".timeindex")[1]


def _transactions(directory: Path) -> Path:
    return next(path for path in files(directory, ".txnindex") if path.stat().st_size)


def _snapshot(directory: Path) -> Path:
    return files(directory, ".snapshot")[-2]


def _swap_batches(directory: Path) -> None:
    path = _log(directory)
    data, (first, second, third, *_) = path.read_bytes(), batches(path)
    path.write_bytes(data[:first] + data[second:third] + data[first:second] + data[third:])


def _cut_log(directory: Path, number: int, *, inside: int = 0) -> None:
    path = _log(directory, number)
    path.write_bytes(path.read_bytes()[: batches(path)[-1] + inside])


def _garbage_for_gzip(directory: Path) -> None:
    path = _log(directory)
    data = path.read_bytes()
    position = next(at for at, header in walk(data) if header.compression == 1)
    patch(path, position + 61, ">8s", b"no gzip!")
    with_crc(path, position)


def _one_record_too_many(directory: Path) -> None:
    path = _log(directory)
    patch(path, 57, ">i", 3)
    with_crc(path, 0)


def _swap_entries(path: Path, size: int) -> None:
    first, second, *rest = entries(path, size)
    path.write_bytes(b"".join((second, first, *rest)))


def _drop_entry(path: Path, size: int, number: int = -1) -> None:
    kept = entries(path, size)
    del kept[number]
    path.write_bytes(b"".join(kept))


def _no_snapshots(directory: Path) -> None:
    for path in files(directory, ".snapshot"):
        path.unlink()


def _sequence(rows: list[list[int]]) -> None:
    rows[0][2] += 1


def _older(rows: list[list[int]]) -> None:
    rows[0][3] -= 2


def _no_transaction(rows: list[list[int]]) -> None:
    next(row for row in rows if row[7] >= 0)[7] = -1


def _forgotten_transaction(rows: list[list[int]]) -> None:
    rows.remove(next(row for row in rows if row[7] >= 0))


def _invented(rows: list[list[int]]) -> None:
    rows.append([99, 0, 0, 3, 0, 0, 0, -1])


def _epochs(directory: Path, text: str) -> None:
    (directory / "leader-epoch-checkpoint").write_text(text)


def _other_epoch_start(directory: Path) -> None:
    version, count, first, second, third = (directory / "leader-epoch-checkpoint").read_text().splitlines()
    epoch, start = second.split()
    _epochs(directory, "\n".join((version, count, first, f"{epoch} {int(start) - 1}", third, "")))


def _no_last_epoch(directory: Path) -> None:
    lines = (directory / "leader-epoch-checkpoint").read_text().splitlines()
    _epochs(directory, "\n".join(("0", "2", *lines[2:4], "")))


def _epoch_behind_the_end(directory: Path) -> None:
    lines = (directory / "leader-epoch-checkpoint").read_text().splitlines()
    _epochs(directory, "\n".join(("0", "4", *lines[2:], "9 5000", "")))


def _rename(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


DAMAGE, STALE, NOTE = Severity
LOG_PLANTS: list[tuple[str, Plant, Severity, str, str]] = [
    ("a bit of a record", lambda at: flip(_log(at), 70), DAMAGE, "log", "has checksum"),
    ("a bit of the newest batch", lambda at: flip(_log(at, -1), -1), DAMAGE, "log", "has checksum"),
    ("a bit of a base offset", lambda at: flip(_log(at), batches(_log(at))[1] + 7, 2), DAMAGE, "log", "comes again"),
    ("a base offset below its segment", lambda at: flip(_log(at), 7, 8), DAMAGE, "log", "below the segment's first"),
    ("a base offset above its segment", lambda at: flip(_log(at), 6, 64), DAMAGE, "log", "belongs to the next segment"),
    ("a bit of a leader epoch", lambda at: flip(_log(at, -1), 15, 3), DAMAGE, "log", "leader epoch goes back"),
    ("a leader epoch that is none", lambda at: flip(_log(at, -1), 12, 128), DAMAGE, "log", "is none"),
    ("a leader epoch that rises too early", lambda at: flip(_log(at), 15, 16), DAMAGE, "log", "leader epoch goes back"),
    (
        "a leader epoch of the newest batch",
        lambda at: flip(_log(at, -1), batches(_log(at, -1))[-1] + 13, 16),
        DAMAGE,
        "log",
        "which is as it was written",
    ),
    ("a bit of a length", lambda at: flip(_log(at), 9), DAMAGE, "log", "bytes are missing"),
    ("another magic", lambda at: flip(_log(at), 16, 8), DAMAGE, "log", "unknown magic"),
    ("two batches swapped", _swap_batches, DAMAGE, "log", "comes again"),
    ("a segment cut inside a batch", lambda at: _cut_log(at, 1, inside=30), DAMAGE, "log", "few for a batch header"),
    ("a segment cut between batches", lambda at: _cut_log(at, 1), DAMAGE, "log", "missing between this segment"),
    ("the end cut between batches", lambda at: _cut_log(at, -1), DAMAGE, "log", "were on disk"),
    ("an empty last segment", lambda at: _log(at, -1).write_bytes(b""), DAMAGE, "log", "were on disk"),
    ("compressed records that are none", _garbage_for_gzip, DAMAGE, "log", "gzip"),
    ("a count of records", _one_record_too_many, DAMAGE, "log", "records end"),
    ("a segment missing", lambda at: _log(at).unlink(), DAMAGE, "log", "log-facts lists it"),
    ("the first segment missing", lambda at: _log(at, 0).unlink(), DAMAGE, "log", "log-facts lists it"),
    ("the last segment missing", lambda at: _log(at, -1).unlink(), DAMAGE, "log", "log-facts lists it"),
    ("a segment missing, by Kafka's files", without_facts(lambda at: _log(at).unlink()), DAMAGE, "index", ".log is m"),
    ("the last one, by Kafka's files", without_facts(lambda at: _log(at, -1).unlink()), DAMAGE, "index", ".log is mis"),
    (
        "zeros behind the end",
        lambda at: _log(at, -1).write_bytes(_log(at, -1).read_bytes() + bytes(99)),
        STALE,
        "log",
        "99 zero bytes",
    ),
    (
        "zeros inside the log",
        lambda at: _log(at).write_bytes(_log(at).read_bytes() + bytes(99)),
        DAMAGE,
        "log",
        "not read",
    ),
]
SIDE_PLANTS: list[tuple[str, Plant, Severity, str, str]] = [
    ("index entries swapped", lambda at: _swap_entries(_index(at), 8), STALE, "index", "behind"),
    (
        "half an index entry",
        lambda at: _index(at).write_bytes(_index(at).read_bytes()[:-3]),
        STALE,
        "index",
        "whole entry",
    ),
    (
        "an index ends in zeros",
        lambda at: _index(at).write_bytes(_index(at).read_bytes() + bytes(64)),
        STALE,
        "index",
        "zeros",
    ),
    ("an index is missing", lambda at: _index(at).unlink(), STALE, "index", "missing"),
    ("an index position", lambda at: patch(_index(at), 4, ">I", 20), STALE, "index", "no batch begins at byte 20"),
    (
        "the same, in a Kafka's",
        without_facts(lambda at: patch(_index(at), 4, ">I", 20)),
        DAMAGE,
        "index",
        "no batch begins",
    ),
    ("an index offset, in a Kafka's", without_facts(lambda at: flip(_index(at), 3)), DAMAGE, "index", "the entry says"),
    (
        "an index for byte 0, in a Kafka's",
        without_facts(lambda at: patch(_index(at), 4, ">I", 0)),
        DAMAGE,
        "index",
        "first batch",
    ),
    (
        "an index beyond its log, in a Kafka's",
        without_facts(lambda at: patch(_index(at), -4, ">I", 9999)),
        DAMAGE,
        "index",
        "shorter than it was",
    ),
    ("an entry too few", lambda at: _drop_entry(_index(at), 8), STALE, "index", "its checksum is another"),
    ("time entries swapped", lambda at: _swap_entries(_times(at), 12), STALE, "timeindex", "behind"),
    (
        "half a time entry",
        lambda at: _times(at).write_bytes(_times(at).read_bytes()[:-1]),
        STALE,
        "timeindex",
        "whole entry",
    ),
    (
        "a time index ends in zeros",
        lambda at: _times(at).write_bytes(_times(at).read_bytes() + bytes(24)),
        STALE,
        "timeindex",
        "zeros",
    ),
    ("a time index is missing", lambda at: _times(at).unlink(), STALE, "timeindex", "missing"),
    ("a timestamp", lambda at: flip(_times(at), 7), STALE, "timeindex", "whose largest is"),
    (
        "a timestamp, in a Kafka's",
        without_facts(lambda at: flip(_times(at), 7)),
        DAMAGE,
        "timeindex",
        "whose largest is",
    ),
    (
        "a time entry's offset, in a Kafka's",
        without_facts(lambda at: flip(_times(at), 11, 4)),
        DAMAGE,
        "timeindex",
        "whose largest is",
    ),
    (
        "the largest timestamp, in a Kafka's",
        without_facts(lambda at: _drop_entry(_times(at), 12)),
        DAMAGE,
        "timeindex",
        "the segment's largest",
    ),
    ("an aborted transaction too few", lambda at: _drop_entry(_transactions(at), 34), STALE, "txnindex", "given out"),
    ("the same, in a Kafka's", without_facts(lambda at: _transactions(at).unlink()), DAMAGE, "txnindex", "given out"),
    (
        "its first offset, in a Kafka's",
        without_facts(lambda at: flip(_transactions(at), 17)),
        DAMAGE,
        "txnindex",
        "the index says",
    ),
    (
        "its producer, in a Kafka's",
        without_facts(lambda at: flip(_transactions(at), 9, 1)),
        DAMAGE,
        "txnindex",
        "said to be",
    ),
    (
        "its stable offset, in a Kafka's",
        without_facts(lambda at: patch(_transactions(at), 26, ">q", 1)),
        DAMAGE,
        "txnindex",
        "stable",
    ),
    (
        "a stable offset at which nothing begins, in a Kafka's",
        without_facts(lambda at: flip(_transactions(at), 28)),
        DAMAGE,
        "txnindex",
        "stable",
    ),
    (
        "one that was committed, in a Kafka's",
        without_facts(lambda at: flip(_transactions(at), 25)),
        DAMAGE,
        "txnindex",
        "no transaction of producer",
    ),
    (
        "half an aborted transaction",
        lambda at: _transactions(at).write_bytes(bytes(20)),
        STALE,
        "txnindex",
        "whole entry",
    ),
    ("a bit of a snapshot", lambda at: flip(_snapshot(at), 30), STALE, "snapshot", "its checksum"),
    (
        "a snapshot cut short",
        lambda at: _snapshot(at).write_bytes(_snapshot(at).read_bytes()[:-4]),
        STALE,
        "snapshot",
        "announces",
    ),
    ("a snapshot is missing", lambda at: _snapshot(at).unlink(), NOTE, "snapshot", "missing: an"),
    ("the newest snapshot is missing", lambda at: files(at, ".snapshot")[-1].unlink(), NOTE, "snapshot", "missing: an"),
    (
        "all snapshots are missing",
        _no_snapshots,
        NOTE,
        "snapshot",
        "others",
    ),
    ("a snapshot's sequence", lambda at: snapshot_with(_snapshot(at), _sequence), DAMAGE, "snapshot", "last sequence"),
    ("a snapshot that is behind", lambda at: snapshot_with(_snapshot(at), _older), DAMAGE, "snapshot", "last offset"),
    (
        "a snapshot without the transaction",
        lambda at: snapshot_with(_snapshot(at), _no_transaction),
        DAMAGE,
        "snapshot",
        "open transaction",
    ),
    (
        "a snapshot without its producer",
        lambda at: snapshot_with(_snapshot(at), _forgotten_transaction),
        DAMAGE,
        "snapshot",
        "transaction is open",
    ),
    (
        "a snapshot with another producer",
        lambda at: snapshot_with(_snapshot(at), _invented),
        DAMAGE,
        "snapshot",
        "not in the",
    ),
    (
        "a snapshot above the end",
        lambda at: _rename(files(at, ".snapshot")[-1], f"{9999:020d}.snapshot"),
        STALE,
        "snapshot",
        "ends below it",
    ),
    ("no epochs", lambda at: (at / "leader-epoch-checkpoint").unlink(), STALE, "leader-epoch-checkpoint", "missing"),
    ("rubbish for epochs", lambda at: _epochs(at, "what"), STALE, "leader-epoch-checkpoint", "not a checkpoint"),
    ("an epoch's start", _other_epoch_start, STALE, "leader-epoch-checkpoint", "was written in epoch 0"),
    (
        "the same, in a Kafka's",
        without_facts(_other_epoch_start),
        DAMAGE,
        "leader-epoch-checkpoint",
        "was written in epoch",
    ),
    ("the newest epoch", _no_last_epoch, STALE, "leader-epoch-checkpoint", "it says 1"),
    ("an epoch behind the end", _epoch_behind_the_end, STALE, "leader-epoch-checkpoint", "the log ends at"),
    ("a bit of log-facts", lambda at: flip(at / "log-facts", 9), STALE, "log-facts", "fails its checksum"),
    (
        "a reset that log-facts lacks",
        lambda at: facts_with(at, lambda facts: facts.pid_reset_offsets.clear()),
        DAMAGE,
        "log-facts",
        "not listed",
    ),
    (
        "a reset that is not there",
        lambda at: facts_with(at, lambda facts: facts.pid_reset_offsets.append(20)),
        DAMAGE,
        "log-facts",
        "no producer-id reset",
    ),
    (
        "the largest producer id",
        lambda at: facts_with(at, lambda facts: setattr(facts, "max_producer_id", 1)),
        DAMAGE,
        "log-facts",
        "largest producer id is 7",
    ),
    (
        "a cleaned segment left over",
        lambda at: (at / f"{0:020d}.log.cleaned").write_bytes(b""),
        STALE,
        "cleaned",
        "cleaning",
    ),
    ("a swap left over", lambda at: _rename(_log(at), f"{_log(at).name}.swap"), STALE, "swap", "put in place"),
]


@pytest.mark.parametrize(
    ("plant", "severity", "suffix", "text"),
    [pytest.param(*rest, id=name) for name, *rest in (*LOG_PLANTS, *SIDE_PLANTS)],
)
def test_each_damage_is_named(sound: Sound, plant: Plant, severity: Severity, suffix: str, text: str) -> None:
    plant(sound.directory)
    found = looked_at(sound)
    assert any(
        finding.severity is severity and finding.path.endswith(suffix) and text in finding.text for finding in found
    ), found
    if severity is not DAMAGE:
        assert damage(found) == []


@pytest.mark.parametrize(("begins", "said"), [([9], 0), ([8], 1), ([], 1)])
def test_a_stable_offset_may_be_where_the_next_transaction_begins(begins: list[int], said: int) -> None:
    """Kafka looks at all of an append before it writes the index."""
    check = TxnIndexCheck(struct.pack(">hqqqq", 0, 7, 3, 5, 9), 0)
    check.aborted(Completed(7, 3, 5, 6, 3), 0)
    for offset in begins:
        check.begins(offset)
    check.finish()
    assert len(check.differences) == said and all("left 6 stable" in one.text for one in check.differences)


def test_checkpoints_that_do_not_fit_the_log(sound: Sound) -> None:
    (found,) = looked_at(sound, recovery_point=sound.end_offset + 1)
    assert found.severity is DAMAGE and f"records up to {sound.end_offset + 1} were on disk" in found.text
    (found,) = looked_at(sound, log_start_offset=sound.end_offset + 1)
    assert found.severity is DAMAGE and "below its start" in found.text


def test_a_directory_without_its_segments(tmp_path: Path) -> None:
    place = tmp_path / "t-0"
    place.mkdir()
    (place / "partition.metadata").write_text("")
    assert checked(ReadOnlyFiles(), str(place), clean=True) == (LogSummary(), [])
    (found,) = checked(ReadOnlyFiles(), str(place), clean=True, recovery_point=7)[1]
    assert found.severity is DAMAGE and "records up to offset 7" in found.text


def test_a_torn_tail_is_mended_by_the_next_start_unless_it_was_on_disk(sound: Sound) -> None:
    _cut_log(sound.directory, -1, inside=40)
    facts_with(sound.directory, lambda facts: facts.segments.clear())
    found = looked_at(sound, clean=False, recovery_point=sound.bases[-1])
    assert [finding.severity for finding in found] == [STALE] * len(found)
    assert any("the next start cuts the log here" in finding.text for finding in found)
    assert any("are missing" in finding.text or "few" in finding.text for finding in damage(looked_at(sound)))
    assert {finding.severity for finding in looked_at(sound, clean=False, running=True)} == {Severity.NOTE}


def test_a_bad_batch_with_a_sound_one_behind_it_may_be_a_loss(sound: Sound) -> None:
    path = _log(sound.directory, -1)
    assert len(batches(path)) >= 2
    flip(path, 70)
    found = damage(looked_at(sound, clean=False, recovery_point=sound.bases[-1]))
    assert any("with the sound batch behind it at byte" in finding.text for finding in found)


def test_one_file_does_not_flood_the_rest(sound: Sound) -> None:
    path = _index(sound.directory)
    (sound.directory / "log-facts").unlink()
    path.write_bytes(b"".join((at + 1).to_bytes(4, "big") + (at + 1).to_bytes(4, "big") for at in range(60)))
    found = looked_at(sound)
    assert len(found) == 21
    assert "more findings" in found[-1].text


def test_large_batches_are_not_held(sound: Sound, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checksum is taken in pieces all the same."""
    monkeypatch.setattr(check_segment, "CHECK_MAX_BATCH_BYTES", 90)
    monkeypatch.setattr(check_segment, "SCAN_WINDOW_BYTES", 64)
    assert looked_at(sound) == []
    flip(_log(sound.directory), 110)
    assert any("has checksum" in finding.text for finding in looked_at(sound))


class _Measured:
    """A file as large as its first header says, which is a lie of 150 MiB."""

    def __init__(self, head: bytes) -> None:
        self.size_bytes = 200 << 20
        self.largest = 0
        self._head = head

    def pread(self, size_bytes: int, position: int) -> bytes:
        self.largest = max(self.largest, size_bytes)
        data = self._head[position : position + size_bytes] if position < len(self._head) else b""
        return data + bytes(min(size_bytes, self.size_bytes - position) - len(data))


def test_memory_is_bounded_whatever_a_length_says() -> None:
    head = batch(3)
    file = _Measured(head[:8] + (150 << 20).to_bytes(4, "big") + head[12:])
    walk = check_segment.SegmentWalk(file, file.size_bytes)
    one = next(iter(walk))
    assert one.data is None
    with pytest.raises(CorruptData):
        walk.check(one)
    assert walk.sound_batch_behind(0) is None
    assert file.largest == SCAN_WINDOW_BYTES


class _Torn(ReadOnlyFiles):
    """The end of a log that is read while it is written: its bytes are not all there the first time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole = path.read_bytes()
        self.opened = 0

    def open(self, path: str) -> ReadableFile:
        if path == str(self.path):
            self.opened += 1
            half = len(self.whole) // 2
            self.path.write_bytes(self.whole[:half] + bytes(half) if self.opened == 1 else self.whole)
        return super().open(path)


def test_what_is_found_only_once_beside_a_running_broker_is_not_believed(sound: Sound) -> None:
    fs = _Torn(_log(sound.directory, -2))
    assert checked(fs, str(sound.directory), clean=False, running=True)[1] == []
    assert fs.opened == 2
    flip(fs.path, 70)
    found = checked(ReadOnlyFiles(), str(sound.directory), clean=False, running=True)[1]
    assert any("has checksum" in one.text for one in damage(found))


class _Moving(ReadOnlyFiles):
    """A directory in which retention takes the first segment while it is read."""

    def __init__(self, victim: Path) -> None:
        self.victim: Path | None = victim
        self.opened = 0

    def open(self, path: str) -> ReadableFile:
        self.opened += 1
        file = super().open(path)
        if self.victim is not None and self.opened == 2:
            for one in self.victim.parent.glob(f"{self.victim.stem}.*"):
                one.unlink()
            facts_with(self.victim.parent, lambda facts: facts.segments.pop(0))
            self.victim = None
        return file


def test_what_moves_under_the_check_is_checked_again(sound: Sound) -> None:
    fs = _Moving(_log(sound.directory, 0))
    assert checked(fs, str(sound.directory), clean=False, running=True)[1] == []
    assert fs.victim is None


def test_nothing_is_written(sound: Sound) -> None:
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in sound.directory.iterdir()}
    sound.directory.chmod(0o500)
    for path in sound.directory.iterdir():
        path.chmod(0o400)
    assert looked_at(sound) == []
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in sound.directory.iterdir()} == before
    sound.directory.chmod(0o700)
