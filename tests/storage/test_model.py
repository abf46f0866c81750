"""Random operations on a log and on the plain list of `model.py`, with restarts, power cuts and failing disks.

An operation is a name and a seed of its own, so a failing run can be shrunk: operations are left out one by one as long
as it still fails, and what remains is printed. `KMIRROR_STORAGE_RUNS` asks for more runs than the hermetic default,
`KMIRROR_STORAGE_OPERATIONS` for longer ones. That the model can find anything at all is shown by mistakes that are
planted in the log.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from kmirror.errors import CorruptData
from kmirror.storage import compaction, cut, flush, recovery, segment
from kmirror.storage.epochs import EpochCache
from kmirror.storage.index import OffsetIndex, TimeIndex
from kmirror.storage.log import Log
from kmirror.storage.producer_state import PendingProducers, ProducerState
from kmirror.storage.txn_index import TxnIndex
from tests.storage.log_run import WEIGHTS, Operation, Run

RUNS = int(os.environ.get("KMIRROR_STORAGE_RUNS", "12"))
OPERATIONS_PER_RUN = int(os.environ.get("KMIRROR_STORAGE_OPERATIONS", "300"))


def operations(seed: int, count: int = OPERATIONS_PER_RUN) -> list[Operation]:
    chance = random.Random(seed)
    names = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=count)
    return [(name, chance.getrandbits(32)) for name in names]


def failure_of(seed: int, plan: list[Operation]) -> tuple[int, BaseException] | None:
    run = Run(seed)
    for index, operation in enumerate(plan):
        try:
            run.step(operation)
        except Exception as error:
            return index, error
    return None


def shrink(seed: int, plan: list[Operation], fails: Callable[[int, list[Operation]], object | None]) -> list[Operation]:
    """Leave out operations, larger pieces first, as long as the rest still fails."""
    size = max(1, len(plan) // 2)
    while size:
        at = 0
        while at < len(plan):
            shorter = plan[:at] + plan[at + size :]
            if fails(seed, shorter) is not None:
                plan = shorter
            else:
                at += size
        size //= 2
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_log_against_a_list(number: int, seed: int) -> None:
    plan = operations(seed)
    failed = failure_of(seed, plan)
    if failed is not None:
        index, _ = failed
        short = shrink(seed, plan[: index + 1], failure_of)
        again = failure_of(seed, short)
        raise AssertionError(f"seed {seed}, shrunk to {short}") from (again or failed)[1]


def test_shrinking_keeps_what_matters() -> None:
    plan = [(name, number) for number, name in enumerate("abcdefgh")]

    def fails(seed: int, plan: list[Operation]) -> bool | None:
        names = [name for name, _ in plan]
        return True if "c" in names and "g" in names else None

    assert [name for name, _ in shrink(0, plan, fails)] == ["c", "g"]


# --- mistakes that are planted ----------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def without(owner: object, name: str) -> Plant:
    """The step is left out."""
    return lambda patch: patch.setattr(owner, name, lambda *args, **kwargs: None)


def cut_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = Log.truncate_to
    patch.setattr(Log, "truncate_to", lambda log, offset: right(log, offset + 1))


def log_start_not_recovered(patch: pytest.MonkeyPatch) -> None:
    right = recovery.recover

    def recover(log: Log, *, clean: bool, recovery_point: int, log_start_offset: int) -> None:
        right(log, clean=clean, recovery_point=recovery_point, log_start_offset=0)

    patch.setattr(recovery, "recover", recover)


def tombstone_gone_too_early(patch: pytest.MonkeyPatch) -> None:
    right = compaction.BatchFilter._stays
    patch.setattr(
        compaction.BatchFilter, "_stays", lambda self, header, record: record.has_value and right(self, header, record)
    )


def marker_gone_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction.CleanedTransactions, "on_control", lambda self, header, kind: True)


def aborted_records_count_as_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction.CleanedTransactions, "on_data", lambda self, header: False)


def last_batch_of_a_producer_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction.BatchFilter, "_stays_empty", lambda self, header: False)


def stale_ticket_counts(patch: pytest.MonkeyPatch) -> None:
    right = flush.finish

    def finish(log: Log, ticket: flush.FlushTicket) -> None:
        ticket.generation = log.generation
        right(log, ticket)

    patch.setattr(flush, "finish", finish)


def flushed_before_it_is(patch: pytest.MonkeyPatch) -> None:
    right = flush.begin

    def begin(log: Log) -> flush.FlushTicket | None:
        ticket = right(log)
        log.flushed_offset = log.log_end_offset
        return ticket

    patch.setattr(flush, "begin", begin)


def checksums_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "check_crc", lambda data, position, header: None)
    patch.setattr(segment.Segment, "check_large", lambda self, position, header: None)


def cut_not_told_to_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flush, "write_facts", lambda log, segments: None)


def cleaned_list_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "complete_swaps", lambda log, facts, names: names)


def epochs_made_anew_from_what_is_left(patch: pytest.MonkeyPatch) -> None:
    def epoch_begins(self: recovery._Replay, header: object) -> None:
        self.log.epochs.truncate_from_end(header.base_offset)  # type: ignore[attr-defined]
        self.log.epochs.assign(header.leader_epoch, header.base_offset)  # type: ignore[attr-defined]

    patch.setattr(recovery._Replay, "_epoch_begins", epoch_begins)


PLANTED: dict[str, Plant] = {
    "a cut is off by one": cut_off_by_one,
    "a cut leaves offset index entries": without(OffsetIndex, "truncate_to"),
    "a cut leaves time index entries": without(TimeIndex, "truncate_to"),
    "a cut leaves aborted transactions": without(TxnIndex, "truncate_to"),
    "a cut leaves epochs": without(EpochCache, "truncate_from_end"),
    "a cut leaves the producers": without(cut, "rebuild_producers"),
    "a cut is not told to recovery": cut_not_told_to_recovery,
    "the log start is not recovered": log_start_not_recovered,
    "a tombstone goes before its horizon": tombstone_gone_too_early,
    "a marker goes while its records are there": marker_gone_too_early,
    "aborted records hide others": aborted_records_count_as_the_newest,
    "a producer's last batch is not kept": last_batch_of_a_producer_not_kept,
    "a flush from before a cut counts": stale_ticket_counts,
    "the flushed offset moves before the flush": flushed_before_it_is,
    "recovery looks at no checksum": checksums_not_looked_at,
    "an interrupted swap is not completed": cleaned_list_not_written,
    "recovery forgets epochs whose batches were compacted": epochs_made_anew_from_what_is_left,
    "a reset leaves the producers": without(PendingProducers, "_forget"),
    "nothing expires": lambda patch: patch.setattr(ProducerState, "remove_expired", lambda *args: 0),
}
FOUND_WITHIN_OPERATIONS = 12_000
PLANTED_RUN = 400


@pytest.mark.slow
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[mistake](monkeypatch)
    done = 0
    for seed in range(FOUND_WITHIN_OPERATIONS // PLANTED_RUN):
        failed = failure_of(seed, operations(seed, PLANTED_RUN))
        if failed is not None:
            assert isinstance(failed[1], (AssertionError, CorruptData, LookupError, ValueError)), failed
            print(f"found by operation {done + failed[0]}")
            return
        done += PLANTED_RUN
    raise AssertionError(f"{done} operations, and nobody noticed")
