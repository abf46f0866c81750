"""Which part of a local log survives a start: the five cases of docs/MIRRORING.md, "Alignment". Pure.

`classify` looks only at facts that are here (and at the lineage the source reported, when it was asked) and gives the
*intended* cut. `after_source` adds what the source said below it. Both speak about a log that is still as it was:
nothing is changed before every partition of a topic has a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kmirror.mirror.agreement import Agreed, Diverged
from kmirror.mirror.epochs import end_of
from kmirror.mirror.facts import Facts


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a stop recorded: epoch of the last mirrored batch (-1: there was none), log end at that moment.

    (-1, 0) is a valid lineage, an empty partition failed over; "no lineage" is the absence of this object.
    """

    last_mirror_epoch: int
    last_mirror_offset: int
    source_cluster_id: str = ""


class Case(Enum):
    FRESH = 1
    CONTINUE = 2
    FAILBACK = 3
    RESTART = 4
    REPLACE = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """A start that may go ahead. Nothing is cut when both `cut_to` and `restart_at` are -1."""

    case: Case
    cut_to: int = -1
    restart_at: int = -1
    """The whole log goes; it begins again, empty, at this offset."""
    history_end: int = -1
    """Cases 3 and 4: the source's log start is not followed below this."""
    force: bool = False
    own_only: bool = False
    """Nothing but our own markers and reset may go; checked again before PREPARING is recorded."""


@dataclass(frozen=True, slots=True)
class Refused:
    """INVALID_CLUSTER_MIRROR_STATE; `offsets` = how many offsets would go."""

    offsets: int
    message: str


@dataclass(frozen=True, slots=True)
class Intended:
    """A cut that the source must be asked about first."""

    case: Case
    cut_to: int
    own_only: bool = False


def classify(
    facts: Facts, *, mirrored: bool, own: Lineage | None, reported: Lineage | None, force: bool
) -> Plan | Refused | Intended:
    """`mirrored`: the log holds bytes of this source and topic id, and no LME stands for them. `own`: our lineage for
    the same source cluster and topic id. `reported`: what the source answered for our cluster id (case 3).

    A log with lineage that retention has emptied goes on at the LMO, not at its end: between the two lay our own
    markers (and perhaps records), and the source has others there.
    """
    start, end = facts.log_start_offset, facts.log_end_offset
    if mirrored:
        return Plan(Case.CONTINUE, force=force)
    if own is None and reported is None:
        if start == end:
            return Plan(Case.FRESH, force=force)
        if not force:
            return Refused(end - start, _would_go(end - start, "they have no lineage with this source"))
        return Plan(Case.REPLACE, restart_at=0, force=True)
    if own is not None and (reported is None or own.last_mirror_offset >= reported.last_mirror_offset):
        cut = min(end_of(facts.epoch_entries, own.last_mirror_epoch, end), own.last_mirror_offset)
        if not force and not facts.only_own_records(cut):
            return Refused(end - cut, _would_go(end - cut, "records were written here after the failover"))
        return Intended(Case.RESTART, min(cut, end), own_only=not force)
    assert reported is not None
    cut = end_of(facts.epoch_entries, reported.last_mirror_epoch, end)
    if reported.last_mirror_offset >= 0:
        cut = min(cut, reported.last_mirror_offset)
    own_only = own is not None and not force
    if own_only and not facts.only_own_records(cut):
        return Refused(end - cut, _would_go(end - cut, "records were written here after the failover"))
    return Intended(Case.FAILBACK, min(cut, end), own_only=own_only)


def after_source(
    facts: Facts,
    intended: Intended,
    *,
    source_log_start: int,
    agreement: Agreed | Diverged,
    force: bool,
) -> Plan | Refused:
    """The plan once the source has answered below the intended cut."""
    cut, end = intended.cut_to, facts.log_end_offset
    if isinstance(agreement, Diverged) and agreement.common_offset < cut:
        if not (force or facts.unclean_allowed):
            return Refused(end - agreement.common_offset, _would_go(end - agreement.common_offset, agreement.reason))
        cut = agreement.common_offset
    cut_to, restart_at = cut_point(facts, cut)
    if source_log_start > max(cut_to, restart_at):
        gone = f"the source's log starts at {source_log_start}, beyond the cut at {cut}"
        if not force:
            return Refused(end - facts.log_start_offset, _would_go(end - facts.log_start_offset, gone))
        return Plan(intended.case, restart_at=source_log_start, force=True)
    own_only = intended.own_only and cut == intended.cut_to
    history_end = max(cut_to, restart_at)
    return Plan(intended.case, cut_to, restart_at, history_end=history_end, force=force, own_only=own_only)


def cut_point(facts: Facts, common_offset: int) -> tuple[int, int]:
    """`(cut_to, restart_at)` that keep what lies below `common_offset`. A cut inside a batch cuts before the batch;
    below our log start nothing is left, and the log begins again there."""
    if common_offset < facts.log_start_offset:
        return -1, common_offset
    batch = facts.batch_below(common_offset)
    if batch is not None and batch.next_offset > common_offset:
        common_offset = batch.base_offset
    if common_offset < facts.log_start_offset:
        return -1, common_offset
    return min(common_offset, facts.log_end_offset), -1


def still_holds(facts: Facts, plan: Plan) -> Refused | None:
    """Count again, after writes to the topic have been refused and its transactions ended."""
    if plan.own_only and not facts.only_own_records(plan.cut_to):
        gone = facts.log_end_offset - plan.cut_to
        return Refused(gone, _would_go(gone, "records were written here while the start was being prepared"))
    if plan.case is Case.FRESH and not plan.force and facts.log_end_offset > facts.log_start_offset:
        gone = facts.log_end_offset - facts.log_start_offset
        return Refused(gone, _would_go(gone, "records were written here while the start was being prepared"))
    return None


def _would_go(offsets: int, why: str) -> str:
    noun = "offset" if offsets == 1 else "offsets"
    return f"{offsets} {noun} of the local log would be cut: {why}; start with --replace to cut them"
