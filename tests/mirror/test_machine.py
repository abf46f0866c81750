"""The machine alone, on plain numbers: what the transcripts of whole clusters cannot bring about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmirror.mirror import events as ev
from kmirror.mirror.agreement import LocalBatch
from kmirror.mirror.alignment import Case, Intended, Lineage, Plan, Refused, classify, cut_point
from kmirror.mirror.behaviour import EARLY_RETRIES, Machine
from kmirror.mirror.durable import Recorded
from kmirror.mirror.facts import Numbers, OpenTransactionNumbers
from kmirror.mirror.machine import InvalidTransition, Outcome, Settings
from kmirror.mirror.retry import RetryPolicy
from kmirror.mirror.states import Desired, Mode, State
from kmirror.mirror.stopping import Step, next_step


def machine(**settings: Any) -> Machine:
    return Machine(
        mirror="m",
        topic="t",
        topic_id=bytes(16),
        partition=0,
        settings=Settings(retry=RetryPolicy(), source_cluster_id="c", **settings),
        chance=lambda: 0.5,
    )


def settle(subject: Machine, out: Outcome, facts: Numbers) -> Outcome:
    """Make the write of `out` durable."""
    assert out.write is not None
    if out.write.state is not None:
        subject.replay(out.write.state)
    if out.write.lineage is not None or out.write.drop_lineage:
        subject.replay_lineage(out.write.lineage)
    return subject.step(ev.StepDone(out.write.token), facts, 0)


def test_unknown_to_stopping() -> None:
    subject, facts = machine(), Numbers()
    out = subject.step(ev.Wished(desired=Desired.STOPPED), facts, 0)
    assert out.write is not None and out.write.state is not None
    assert out.write.state.state is State.STOPPING
    out = settle(subject, out, facts)
    assert isinstance(out.actions[0], ev.BumpEpoch)


def test_a_refusal_that_nobody_waits_for() -> None:
    """UNKNOWN becomes FAILED and is not retried; STOPPED stays as it is."""
    facts = Numbers(log_end_offset=3, epoch_entries=[(0, 0)])
    subject = machine()
    subject.desired = Desired.MIRRORING
    out = subject.step(ev.Decide(), facts, 0)
    assert out.actions == [ev.RefreshMetadata()], "the source may know a lineage, if it is one that can be asked"
    subject.settings.ask_lineage = False
    out = subject.step(ev.SourceSeen(leader=0, leader_epoch=0), facts, 0)
    assert isinstance(out.actions[0], ev.Decided)
    refused = out.actions[0].outcome
    assert isinstance(refused, Refused) and refused.offsets == 3
    out = subject.step(ev.Refuse(refused.message), facts, 0)
    assert out.write is not None and out.write.state is not None
    assert (out.write.state.state, out.write.state.retry_attempt) == (State.FAILED, -1)
    stopped = machine()
    stopped.replay(Recorded(state=State.STOPPED))
    stopped.step(ev.Loaded(), facts, 0)
    stopped.step(ev.Prepare(), facts, 0)
    assert stopped.mode is Mode.DRAINING
    out = stopped.step(ev.Refuse(refused.message), facts, 0)
    assert out.write is None and stopped.mode is Mode.WRITABLE


def test_a_begin_whose_record_cannot_be_written_is_tried_again() -> None:
    subject, facts = machine(), Numbers()
    subject.step(ev.Wished(desired=Desired.MIRRORING), facts, 0)
    out = subject.step(ev.Begin(plan=Plan(Case.FRESH)), facts, 0)
    assert out.write is not None
    subject.step(ev.StepFailed(out.write.token, "no space"), facts, 0)
    assert (subject.recorded.state, subject.trouble) == (State.UNKNOWN, "no space")
    out = subject.step(ev.TimerFired(), facts, subject.wake_at_ms or 0)
    assert out.write is not None and out.write.state is not None
    assert out.write.state.state is State.LOG_ALIGNMENT


def test_writable_only_when_stopped_is_on_disk() -> None:
    subject = machine()
    subject.replay(Recorded(state=State.STOPPING, leader_epoch=0))
    subject.desired = Desired.STOPPED
    out = subject.step(ev.Loaded(), Numbers(leader_epoch=1), 0)
    assert isinstance(out.actions[0], ev.FlushLog)
    out = subject.step(ev.StepDone(out.actions[0].token), Numbers(leader_epoch=1), 0)
    assert out.write is not None and out.write.state is not None
    subject.replay(out.write.state)
    assert subject.mode is Mode.SEALING
    subject.step(ev.StepDone(out.write.token), Numbers(leader_epoch=1), 0)
    assert subject.mode is Mode.WRITABLE


def test_an_impossible_transition_is_a_bug() -> None:
    subject = machine()
    with pytest.raises(InvalidTransition):
        subject._record(Outcome(), Numbers(), State.STOPPED)


def test_an_old_token_and_an_old_answer_change_nothing() -> None:
    subject, facts = machine(), Numbers()
    for event in (ev.StepDone(99), ev.StepFailed(99, "x"), ev.Answered(99, ev.Offset(3)), ev.TimerFired()):
        out = subject.step(event, facts, 10**9)
        assert out.write is None and not out.actions


def test_a_step_that_changes_nothing_backs_off() -> None:
    """Instead of asking for the same thing for ever."""
    subject = machine()
    subject.replay(Recorded(state=State.STOPPING, leader_epoch=5))
    subject.desired = Desired.STOPPED
    facts = Numbers(leader_epoch=5)
    out = subject.step(ev.Loaded(), facts, 0)
    for _ in range(10):
        if not out.actions:
            break
        action: Any = out.actions[0]
        assert isinstance(action, ev.BumpEpoch)
        out = subject.step(ev.StepDone(action.token), facts, 0)
    assert not out.actions
    assert subject.trouble == "BumpEpoch changes nothing" and subject.wake_at_ms == 5_000


def test_the_highest_source_epoch_and_the_old_leader_are_kept() -> None:
    subject, facts = machine(), Numbers()
    subject.step(ev.SourceSeen(leader=1, leader_epoch=5), facts, 0)
    subject.step(ev.SourceSeen(leader=2, leader_epoch=4), facts, 0)
    assert (subject.source_leader, subject.source_epoch) == (1, 5)
    subject.step(ev.SourceSeen(leader=-1, leader_epoch=6), facts, 0)
    assert (subject.source_leader, subject.source_epoch) == (1, 5)


# -- steps of a stop --------------------------------------------------------------------------------------------------


def test_the_steps_of_a_stop_are_read_off_the_facts() -> None:
    recorded = Recorded(state=State.STOPPING, leader_epoch=4, mirrored=True)
    open_ = [OpenTransactionNumbers(producer_id=1, first_offset=3)]
    facts = Numbers(
        log_end_offset=9, epoch_entries=[(2, 0)], open_transactions=open_, leader_epoch=4, max_producer_id=1
    )

    def step(facts: Numbers, lineage: Lineage | None, **more: Any) -> Step:
        return next_step(
            facts, more.get("recorded", recorded), lineage, source_epoch=2, truncate=more.get("cut", False)
        )

    lineage = Lineage(2, 9)
    assert step(facts, None, recorded=replace(recorded, cut_to=3)) is Step.FINISH_CUT
    assert step(facts, None, cut=True) is Step.TRUNCATE
    assert step(facts, None) is Step.RECORD_LME
    assert step(facts, lineage, cut=True) is Step.BUMP_EPOCH
    facts.leader_epoch = 5
    assert step(facts, lineage) is Step.ABORT_OPEN
    facts.open_transactions = []
    assert step(facts, lineage) is Step.RESET_PIDS
    facts.last_pid_reset_offset = 8  # an older one, of a source that was a mirror itself
    assert step(facts, lineage) is Step.RESET_PIDS
    facts.last_pid_reset_offset = 9
    assert step(facts, lineage) is Step.RESET_PIDS  # the allocator is still below
    facts.next_producer_id = 2
    assert step(facts, lineage) is Step.SEAL


def test_a_stop_of_an_untouched_log_appends_nothing() -> None:
    recorded = Recorded(state=State.STOPPING, leader_epoch=4, mirrored=False)
    facts = Numbers(
        log_end_offset=9,
        open_transactions=[OpenTransactionNumbers(producer_id=1)],
        leader_epoch=4,
        last_pid_reset_offset=5,
    )
    assert next_step(facts, recorded, Lineage(2, 5), source_epoch=-1, truncate=True) is Step.BUMP_EPOCH
    facts.leader_epoch = 5
    assert next_step(facts, recorded, Lineage(2, 5), source_epoch=-1, truncate=True) is Step.SEAL


# -- alignment --------------------------------------------------------------------------------------------------------

LOG = Numbers(
    log_end_offset=20,
    epoch_entries=[(1, 0), (3, 8), (7, 12)],
    batches=[LocalBatch(0, 8, 1), LocalBatch(8, 12, 1), LocalBatch(12, 20, 1)],
    foreign_from=[15],
)


@pytest.mark.parametrize(
    ("mirrored", "own", "reported", "force", "expected"),
    [
        (True, None, None, False, Plan(Case.CONTINUE)),
        (False, None, None, True, Plan(Case.REPLACE, restart_at=0, force=True)),
        (False, Lineage(3, 16), None, True, Intended(Case.RESTART, 12)),
        (False, Lineage(3, 10), None, True, Intended(Case.RESTART, 10)),
        (False, Lineage(7, 16), None, False, Intended(Case.RESTART, 16, own_only=True)),
        (False, Lineage(-1, 0), None, True, Intended(Case.RESTART, 0)),
        (False, None, Lineage(3, 30), False, Intended(Case.FAILBACK, 12)),
        (False, None, Lineage(3, -1), False, Intended(Case.FAILBACK, 12)),
        (False, None, Lineage(9, 6), False, Intended(Case.FAILBACK, 6)),
        (False, Lineage(7, 16), Lineage(7, 18), False, Intended(Case.FAILBACK, 18, own_only=True)),
        (False, Lineage(7, 16), Lineage(7, 14), False, Intended(Case.RESTART, 16, own_only=True)),
    ],
)
def test_cases(mirrored: bool, own: Lineage | None, reported: Lineage | None, force: bool, expected: object) -> None:
    assert classify(LOG, mirrored=mirrored, own=own, reported=reported, force=force) == expected


@pytest.mark.parametrize(("own", "reported", "gone"), [(None, None, 20), (Lineage(7, 13), None, 7)])
def test_refusals_count_what_would_go(own: Lineage | None, reported: Lineage | None, gone: int) -> None:
    refused = classify(LOG, mirrored=False, own=own, reported=reported, force=False)
    assert isinstance(refused, Refused) and refused.offsets == gone
    assert refused.message.startswith(f"{gone} offsets") and "--replace" in refused.message


def test_an_emptied_log_with_lineage_goes_on_at_the_lmo() -> None:
    empty = Numbers(log_start_offset=20, log_end_offset=20, epoch_entries=[(7, 20)])
    intended = classify(empty, mirrored=False, own=Lineage(3, 16), reported=None, force=False)
    assert intended == Intended(Case.RESTART, 16, own_only=True)
    assert cut_point(empty, 16) == (-1, 16)
    assert classify(empty, mirrored=False, own=None, reported=None, force=False) == Plan(Case.FRESH)


def test_a_cut_inside_a_batch_cuts_before_it() -> None:
    assert cut_point(LOG, 12) == (12, -1)
    assert cut_point(LOG, 13) == (12, -1)
    assert cut_point(LOG, 0) == (0, -1)
    trimmed = replace(LOG, log_start_offset=9)
    assert cut_point(trimmed, 10) == (-1, 8)
    assert cut_point(trimmed, 5) == (-1, 5)


def test_the_lme_stands_only_for_flushed_bytes() -> None:
    subject = machine()
    subject.replay(Recorded(state=State.STOPPING, leader_epoch=1, mirrored=True))
    subject.desired = Desired.STOPPED
    facts = Numbers(log_end_offset=9, flushed_offset=7, epoch_entries=[(3, 0)], leader_epoch=1)
    out = subject.step(ev.Loaded(), facts, 0)
    for _ in range(2):  # at boot nothing counts as flushed; then the log itself says that it is not
        assert out.write is None and isinstance(out.actions[0], ev.FlushLog)
        out = subject.step(ev.StepDone(out.actions[0].token), facts, 0)
    facts.flushed_offset = 9
    out = subject.step(ev.StepDone(out.actions[0].token), facts, 0)  # type: ignore[union-attr]
    assert out.write is not None and out.write.lineage == Lineage(3, 9, "c")


def test_a_failed_partition_starts_again_with_the_sources_first_answer() -> None:
    """Not after the rest of a delay that grew during the outage; other failures sit theirs out."""
    for unreachable in (True, False):
        subject = machine()
        subject.desired = Desired.MIRRORING
        subject.replay(Recorded(state=State.MIRRORING, retry_attempt=9, mirrored=True))
        facts = Numbers(log_end_offset=1, flushed_offset=1)
        failed = subject.step(
            ev.SourceUnreachable("gone") if unreachable else ev.FetchError(code=2, message="corrupt"), facts, 0
        )
        settle(subject, failed, facts)
        assert subject.recorded.state is State.FAILED
        assert subject.retry_at_ms is not None
        assert subject.retry_at_ms > 10_000
        subject.step(ev.SourceSeen(leader=1, leader_epoch=0), facts, 1_000)
        assert (subject.retry_at_ms == 1_000) is unreachable


def test_metadata_that_names_an_unreachable_leader_does_not_use_up_the_attempts() -> None:
    """The source's answer cuts a few delays short per leader, until a fetch has succeeded."""
    subject = machine()
    subject.desired = Desired.MIRRORING
    subject.replay(Recorded(state=State.MIRRORING, retry_attempt=9, mirrored=True))
    facts = Numbers(log_end_offset=1, flushed_offset=1)
    settle(subject, subject.step(ev.SourceUnreachable("gone"), facts, 0), facts)
    for now_ms in range(1_000, 1_000 * (EARLY_RETRIES + 1), 1_000):
        subject.step(ev.SourceSeen(leader=1, leader_epoch=0), facts, now_ms)
        assert subject.retry_at_ms == now_ms
        settle(subject, subject.step(ev.TimerFired(), facts, now_ms), facts)
        settle(subject, subject.step(ev.SourceUnreachable("gone"), facts, now_ms), facts)
    planned = subject.retry_at_ms
    subject.step(ev.SourceSeen(leader=1, leader_epoch=0), facts, 9_000)
    assert subject.retry_at_ms == planned and planned is not None and planned > 20_000
    subject.step(ev.SourceUnreachable("gone"), facts, 9_500)
    subject.step(ev.SourceSeen(leader=2, leader_epoch=1), facts, 9_800)
    assert subject.retry_at_ms == 9_800, "another leader"


@pytest.mark.parametrize("history_end", [5, -1])
def test_a_gap_that_begins_in_kept_history_is_never_jumped(history_end: int) -> None:
    """After a failback or a restart a trimmed peer does not erase what an alignment kept; otherwise the KIP's rule."""
    subject = machine()
    subject.desired = Desired.MIRRORING
    subject.replay(Recorded(state=State.MIRRORING, mirrored=True, history_end=history_end))
    facts = Numbers(log_end_offset=5, flushed_offset=5, high_watermark=5, epoch_entries=[(0, 0)])
    subject.step(ev.SourceSeen(leader=1, leader_epoch=0), facts, 0)
    subject.step(ev.FetchError(code=1), facts, 0)
    asked = subject.open_question
    assert asked is not None and isinstance(asked[1], ev.AskOffset)
    out = subject.step(ev.Answered(asked[0], ev.Offset(9)), facts, 0)
    assert out.write is not None and out.write.state is not None
    if history_end == 5:
        assert out.write.state.state is State.FAILED and not out.write.state.retryable and out.write.gap is None
    else:
        assert out.write.state.state is State.EPOCH_FENCING and out.write.state.restart_at == 9
        assert out.write.gap is not None and (out.write.gap.from_offset, out.write.gap.to_offset) == (5, 9)
