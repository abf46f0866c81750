"""STOPPING: the steps of a failover, and when each is done. Pure.

A step is never remembered; whether it is done is derived from facts (log, partition epoch, recorded state and lineage),
so that after any number of crashes there is exactly one ABORT per open transaction and exactly one reset
(docs/MIRRORING.md, "Stopping"). `next_step` gives the first step that is not done.
"""

from __future__ import annotations

from enum import Enum

from kmirror.mirror.alignment import Lineage
from kmirror.mirror.durable import Recorded
from kmirror.mirror.facts import Facts


class Step(Enum):
    REVOKE = "REVOKE"
    FINISH_CUT = "FINISH_CUT"
    """A stop during an alignment whose cut is decided finishes the cut first."""
    TRUNCATE = "TRUNCATE"
    RECORD_LME = "RECORD_LME"
    BUMP_EPOCH = "BUMP_EPOCH"
    ABORT_OPEN = "ABORT_OPEN"
    RESET_PIDS = "RESET_PIDS"
    SEAL = "SEAL"


def next_step(facts: Facts, recorded: Recorded, lineage: Lineage | None, *, source_epoch: int, truncate: bool) -> Step:
    """The first step of the table that is not done. `recorded` is the STOPPING record; SEAL is always left to do.

    `recorded.mirrored`: mirrored bytes may exist that no LME of an earlier stop stands for; without it there is nothing
    to record, abort or reset (nothing was ever mirrored, or the log is untouched since a recorded LME).
    `truncate`: `open.transactions.on.stop=truncate`.
    """
    if recorded.cut_pending:
        return Step.FINISH_CUT
    if recorded.mirrored and lineage is None:
        if truncate and truncate_point(facts) < facts.log_end_offset:
            return Step.TRUNCATE
        return Step.RECORD_LME
    if facts.leader_epoch <= epoch_floor(recorded, lineage, source_epoch=source_epoch):
        return Step.BUMP_EPOCH
    if recorded.mirrored:
        assert lineage is not None
        if not reset_done(facts, lineage) and facts.open_transactions:
            return Step.ABORT_OPEN
        if not reset_done(facts, lineage) or facts.next_producer_id <= facts.max_producer_id:
            return Step.RESET_PIDS
    return Step.SEAL


def truncate_point(facts: Facts) -> int:
    """First offset of the oldest open transaction; the log end when there is none. A transaction whose first records
    retention has taken is cut as far as the log goes, and aborted for the rest."""
    first = min((transaction.first_offset for transaction in facts.open_transactions), default=facts.log_end_offset)
    return max(first, facts.log_start_offset)


def epoch_floor(recorded: Recorded, lineage: Lineage | None, *, source_epoch: int) -> int:
    """The partition's epoch must exceed the one in the STOPPING record, every mirrored epoch (none is above the LME),
    and the source's last known. Own markers are written *in* the bumped epoch, so the log's newest does not count."""
    mirrored = lineage.last_mirror_epoch if recorded.mirrored and lineage is not None else -1
    return max(recorded.leader_epoch, mirrored, source_epoch)


def reset_done(facts: Facts, lineage: Lineage) -> bool:
    return facts.last_pid_reset_offset >= lineage.last_mirror_offset
