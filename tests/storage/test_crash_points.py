"""A fixed story of a log, with the power cut before and after each operation on the disk.

Whatever the point: what was promised is there, what is there is a prefix of what was written, and all derived state is
that of the batches that are there. The same matrix with one sync left out must fail: else it could find nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kmirror.clock import ManualClock
from kmirror.protocol.records import end_txn_marker, mirror_pid_reset
from kmirror.storage.log import Log, LogConfig, LogMode
from kmirror.storage.memory import Kind, MemoryFileSystem, Phase
from tests.power_cut import PowerCut
from tests.storage.making import DIRECTORY, NOW_MS, batch, coordinate, open_log, produce
from tests.storage.model import Batch, derive

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


class Story:
    """Tells the story on one file system; `durable` and `written` are what the outside was promised."""

    def __init__(self, fs: MemoryFileSystem) -> None:
        self.fs = fs
        self.clock = ManualClock(NOW_MS)
        self.written: list[bytes] = []
        """Every batch in the log; one more while it is being appended."""
        self.durable = 0
        self.recovery_point = 0
        self.clean = False
        self.epoch = 0
        self.pid_raised = -1
        self.log: Log | None = None

    def tell(self) -> None:
        self.open()
        for number in range(3):
            self.append(batch(2, pid=7, seq=2 * number, txn=True))
        self.flush()
        self.append(end_txn_marker(commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp_ms=0))
        for number in range(8):
            self.append(batch(2, size=60, pid=9, seq=2 * number))
        self.flush()
        self.epoch = 3
        for number in range(3):
            self.append(batch(1, size=60, pid=8, seq=number, txn=True))
        self.flush()
        self.append(batch(2))
        self.cut(len(self.written) - 4)
        self.epoch = 5
        self.append(batch(3, size=50))
        self.append(mirror_pid_reset(timestamp_ms=0))
        self.flush()
        self.restart()
        for _ in range(6):
            self.append(batch(2, size=120))
        self.flush()
        self.cut(2)
        self.append(batch(1, pid=7, seq=4, txn=True))
        self.flush()

    def open(self) -> None:
        self.log = Log.open(
            self.fs,
            DIRECTORY,
            config=CONFIG,
            clock=self.clock,
            clean=self.clean,
            recovery_point=self.recovery_point,
        )
        self.clean = False

    @property
    def the_log(self) -> Log:
        assert self.log is not None
        return self.log

    def append(self, data: bytes) -> None:
        log = self.the_log
        head = log.log_end_offset.to_bytes(8, "big") + data[8:12] + self.epoch.to_bytes(4, "big")
        self.written.append(head + data[16:])
        log.mode = LogMode.WRITABLE
        if Batch(data).header.is_control:
            coordinate(log, data, epoch=self.epoch)
        else:
            produce(log, data, epoch=self.epoch)

    def flush(self) -> None:
        log = self.the_log
        ticket = log.begin_flush()
        assert ticket is not None
        ticket.sync()
        log.finish_flush(ticket)
        assert log.flushed_offset == log.log_end_offset
        self.durable = self.recovery_point = log.flushed_offset
        self.pid_raised = max(Batch(one).header.producer_id for one in self.written)

    def cut(self, keep: int) -> None:
        log = self.the_log
        offset = Batch(self.written[keep]).base
        self.durable = min(self.durable, offset)
        log.truncate_to(offset)
        del self.written[keep:]
        self.durable = log.log_end_offset

    def restart(self) -> None:
        self.the_log.close(clean=True)
        self.durable = self.recovery_point = self.the_log.log_end_offset
        self.clean = True
        self.open()

    def after_the_cut(self, fs: MemoryFileSystem) -> str | None:
        """Open what survived; says what is wrong with it, None when nothing is."""
        try:
            log = Log.open(
                fs,
                DIRECTORY,
                config=CONFIG,
                clock=self.clock,
                clean=self.clean,
                recovery_point=self.recovery_point,
            )
            found = [bytes(data) for _, data in log.batches(0, 2**62)]
        except Exception as error:  # a start that fails is a finding like any other
            return f"cannot be opened: {error!r}"
        if found != self.written[: len(found)]:
            return "is not a prefix of what was written"
        if log.log_end_offset < self.durable:
            return f"ends at {log.log_end_offset}, {self.durable} was promised"
        expected = derive([Batch(one) for one in found])
        if {t.producer_id: t.first_offset for t in log.producers.ongoing()} != {
            pid: one.txn_first for pid, one in expected.producers.items() if one.txn_first >= 0
        } or set(log.producers.entries) != set(expected.producers):
            return "has other producers than its batches"
        if [tuple(one[:3]) for one in log.aborted_transactions(0, 2**62)] != expected.aborted:
            return "has other aborted transactions than its batches"
        if any(log.epochs.epoch_at(Batch(one).base) != Batch(one).header.leader_epoch for one in found):
            return "has other epochs than its batches"
        if log.pid_reset_offsets != expected.resets:
            return "has other resets than its batches"
        if log.max_producer_id < self.pid_raised:
            return "forgot the largest producer id"
        return None


def matrix(
    skip_sync: Callable[[str], bool] = lambda path: False, *, page_bytes: int = 512, first_only: bool = False
) -> list[str]:
    """Everything that is found wrong, over all points and two ways to lose: all that can be, and a random part."""
    findings = []
    for keep_nothing in (True, False):
        point = 0
        while True:
            fs = MemoryFileSystem(point, page_bytes=page_bytes, open_files_limit=1)
            fs.skip_sync = skip_sync
            story = Story(fs)
            countdown = [point]

            def observe(kind: Kind, path: str, phase: Phase, countdown: list[int] = countdown) -> None:
                if countdown[0] == 0:
                    raise PowerCut
                countdown[0] -= 1

            fs.observer = observe
            try:
                story.tell()
                over = True
            except PowerCut:
                over = False
            fs.observer = None
            wrong = story.after_the_cut(fs.crash(keep_nothing=keep_nothing))
            if wrong is not None:
                findings.append(f"point {point}, keep_nothing={keep_nothing}: the log {wrong}")
                if first_only:
                    return findings
            if over:
                break
            point += 1
        assert point > 150
    return findings


@pytest.mark.slow
@pytest.mark.parametrize("page_bytes", [512, 4096])
def test_no_point_loses_anything(page_bytes: int) -> None:
    assert matrix(page_bytes=page_bytes) == []


@pytest.mark.slow
@pytest.mark.parametrize("lying", [".log", "log-facts.tmp"])
def test_a_file_that_is_not_synced_is_found(lying: str) -> None:
    assert matrix(lambda path: path.endswith(lying), first_only=True)


@pytest.mark.slow
def test_a_directory_that_is_not_synced_is_found() -> None:
    assert matrix(lambda path: path == DIRECTORY, first_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("lying", [".snapshot", ".txnindex", "leader-epoch-checkpoint.tmp"])
def test_what_can_be_made_again_from_the_batches_may_be_lost(lying: str) -> None:
    """Their checksum or form shows the damage, and the whole log is gone through: slow, but nothing is missing."""
    assert matrix(lambda path: path.endswith(lying)) == []


def retention_points(skip_sync: Callable[[str], bool]) -> list[int]:
    """Points of a retention pass at which a power cut makes the log forget the producer of a deleted segment."""
    forgotten = []
    for point in range(1000):
        fs = MemoryFileSystem(point, page_bytes=512)
        log = open_log(fs)
        produce(log, batch(2, pid=4, seq=0))
        log.flush()
        log.roll()
        log.advance_log_start(2)
        fs.skip_sync = skip_sync
        countdown = [point]

        def observe(kind: Kind, path: str, phase: Phase, countdown: list[int] = countdown) -> None:
            if countdown[0] == 0:
                raise PowerCut
            countdown[0] -= 1

        fs.observer = observe
        try:
            assert log.apply_retention(NOW_MS, high_watermark=2) == 1
            over = True
        except PowerCut:
            over = False
        fs.observer = None
        again = open_log(fs.crash(), recovery_point=2, log_start_offset=2)
        assert again.log_end_offset == 2
        if 4 not in again.producers.entries:
            forgotten.append(point)
        if over:
            return forgotten
    raise AssertionError("the pass does not end")


def test_retention_keeps_the_producers_of_what_it_deletes() -> None:
    assert retention_points(lambda path: False) == []
    assert retention_points(lambda path: path.endswith(".snapshot"))
