"""What a mirrored partition does: the handlers of events, and `_advance`, which takes the next step. Pure.

See `kmirror.mirror.machine` for what must hold. Each state's method is written as "the first thing that is not done
yet"; none remembers what it did. The failover is in `kmirror.mirror.failover`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kmirror.mirror import events as ev
from kmirror.mirror.agreement import Agreed, AskBatch, Compared, Diverged
from kmirror.mirror.alignment import Case, cut_point
from kmirror.mirror.durable import EARLIEST, GapRecord
from kmirror.mirror.epochs import raise_minimum, should_raise
from kmirror.mirror.facts import Facts
from kmirror.mirror.failover import FailoverMixin
from kmirror.mirror.joining import Deciding, Joining, Overtaken, Position, Reverse, lookup_matters
from kmirror.mirror.machine import Outcome
from kmirror.mirror.states import Desired, Mode, State, mode_of
from kmirror.protocol.errors import ErrorCode

WAIT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Answers of the source that pass by themselves, once its metadata is read again: no reset, no FAILED. Whether a topic
is deleted or re-created is decided by the metadata, never by one of these."""

EARLY_RETRIES: Final = 3
"""How often the source's metadata may cut a delay short for one leader before a fetch has succeeded. More than one: the
first may meet a connection that died with the outage. Not always: metadata that keeps naming a leader which cannot be
reached must not use up the attempts."""


class Machine(FailoverMixin):
    """One mirrored partition. `step` is the only way in beside `replay*`."""

    def step(self, event: ev.Event, facts: Facts, now_ms: int) -> Outcome:
        out = Outcome()
        _HANDLERS[type(event)](self, event, facts, now_ms, out)
        self._advance(facts, now_ms, out)
        return out

    # -- events: the operator ----------------------------------------------------------------------------------------

    def _on_loaded(self, event: ev.Loaded, facts: Facts, now_ms: int, out: Outcome) -> None:
        self.mode = mode_of(self.recorded.state)
        if self.recorded.state is State.FAILED:
            self._schedule_retry(now_ms, self.recorded.retry_attempt)

    def _on_wished(self, event: ev.Wished, facts: Facts, now_ms: int, out: Outcome) -> None:
        self.desired = event.desired
        if event.desired is not Desired.MIRRORING:
            self._drop_decision()
            self._begun = None
            self.lease_number += 1
            if not self._busy:
                self.mode = mode_of(self.recorded.state)  # a start may have been prepared

    def _on_decide(self, event: ev.Decide, facts: Facts, now_ms: int, out: Outcome) -> None:
        self._decide_from = event
        self.deciding = None
        self._asked = None

    def _on_prepare(self, event: ev.Prepare, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self.recorded.state in (State.UNKNOWN, State.STOPPED):
            self.mode = Mode.DRAINING
        elif self.recorded.state is not State.STOPPING:
            self.mode = Mode.READ_ONLY

    def _on_abandon(self, event: ev.Abandon, facts: Facts, now_ms: int, out: Outcome) -> None:
        self._drop_decision()
        self.trouble = None
        self.mode = mode_of(self.recorded.state)

    def _on_begin(self, event: ev.Begin, facts: Facts, now_ms: int, out: Outcome) -> None:
        self.desired = Desired.MIRRORING
        self._drop_decision()
        self.trouble = None
        self._lost = None
        self._begun = event

    def _record_begun(self, begun: ev.Begin, facts: Facts, out: Outcome) -> None:
        """PREPARING, with the cut that was decided."""
        plan = begun.plan
        history_end = self.recorded.history_end if plan.case is Case.CONTINUE else plan.history_end
        if plan.case in (Case.FAILBACK, Case.RESTART):
            gone = facts.log_end_offset - (plan.cut_to if plan.cut_to >= 0 else facts.log_start_offset)
            what = "the source's record of copying from here" if plan.case is Case.FAILBACK else "our own last stop"
            text = f"{self.topic}-{self.partition}: aligned by {what} at {max(plan.cut_to, plan.restart_at)}"
            out.actions.append(ev.Report("alignment", f"{text}; {gone} offsets here are cut", gone))
        self._record(
            out,
            facts,
            State.LOG_ALIGNMENT,
            fresh_epoch=True,
            error=None,
            retry_attempt=0,
            previous_state=State.UNKNOWN,
            cut_to=plan.cut_to,
            restart_at=plan.restart_at,
            history_end=history_end,
            start_from=begun.start_from,
            force=plan.force,
        )

    def _on_refuse(self, event: ev.Refuse, facts: Facts, now_ms: int, out: Outcome) -> None:
        self._drop_decision()
        self.mode = mode_of(self.recorded.state)
        if self.recorded.state in (State.UNKNOWN, State.FAILED):
            self._fail(out, facts, now_ms, event.message, retry=False)
        else:
            self.trouble = event.message

    def _on_recover(self, event: ev.Recover, facts: Facts, now_ms: int, out: Outcome) -> None:
        self._recovering = self.desired is Desired.MIRRORING and self.recorded.previous_state is not State.UNKNOWN

    def _drop_decision(self) -> None:
        self.deciding = None
        self._decide_from = None
        self._asked = None

    # -- events: the source ------------------------------------------------------------------------------------------

    def _on_source_seen(self, event: ev.SourceSeen, facts: Facts, now_ms: int, out: Outcome) -> None:
        """The highest epoch wins; while an election is running (no leader) the old leader is kept."""
        self._metadata_wanted = False
        self._lost = None
        stale = 0 <= event.leader_epoch < self.source_epoch
        if event.leader < 0 or stale:
            return
        if (event.leader, event.leader_epoch) != (self.source_leader, self.source_epoch):
            self.source_leader, self.source_epoch = event.leader, event.leader_epoch
            self._early_retries = 0
            self._revoke()
            self._restart_decision()
        if self._out_of_reach and self._retry_at_ms is not None and self._early_retries < EARLY_RETRIES:
            # what it waited for is here: no need to sit out the rest of the delay
            self._retry_at_ms = now_ms
            self._early_retries += 1
        self._out_of_reach = False
        if self.recorded.state is State.MIRRORING:
            self._background_bump(out, facts, self.source_epoch)

    def _on_source_lost(self, event: ev.SourceLost, facts: Facts, now_ms: int, out: Outcome) -> None:
        self._metadata_wanted = False
        self._lost = event.message

    def _on_source_unreachable(self, event: ev.SourceUnreachable, facts: Facts, now_ms: int, out: Outcome) -> None:
        self._metadata_wanted = False
        self._restart_decision()
        self._out_of_reach = True
        if self._needs_source():
            self._fail(out, facts, now_ms, event.reason)
        elif self.recorded.state not in (State.STOPPING, State.STOPPED) or self._decide_from is not None:
            self.trouble = event.reason

    def _needs_source(self) -> bool:
        """Whether this partition now lives by the source (and no step of ours is under way)."""
        state = self.recorded.state
        if self._busy or self.desired is not Desired.MIRRORING:
            return False
        return state is State.MIRRORING or (state is State.LOG_ALIGNMENT and not self.recorded.cut_pending)

    def _restart_decision(self) -> None:
        if self.deciding is not None:
            self.deciding = None
            self._asked = None

    def _on_answered(self, event: ev.Answered, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self._asked is None or self._asked[0] != event.question:
            return
        question = self._asked[1]
        self._asked = None
        answer = event.answer
        if isinstance(answer, ev.QuestionFailed):
            if isinstance(question, AskBatch) and answer.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                answer = Compared.NOT_COMPARED
            else:
                self._question_failed(answer, facts, now_ms, out)
                return
        dialog = self.deciding if self.deciding is not None else self.joining
        if dialog is None or dialog.question is not question:
            return
        if not dialog.answer(answer):
            self._restart_decision()
            self._pause_source(now_ms, dialog.complaint or "the source's answer makes no sense yet; asking again")
        elif answer is Compared.NOT_COMPARED:
            text = "the last batch could not be compared with the source's (cleaned or gone)"
            out.actions.append(ev.Report("tail not compared", f"{self.topic}-{self.partition}: {text}"))

    def _question_failed(self, answer: ev.QuestionFailed, facts: Facts, now_ms: int, out: Outcome) -> None:
        if answer.transport:
            self._on_source_unreachable(ev.SourceUnreachable(answer.message), facts, now_ms, out)
            if self._busy:
                return
        elif answer.code not in WAIT and self._needs_source():
            self._fail(out, facts, now_ms, answer.message or f"the source answered error {answer.code}")
            return
        self._restart_decision()
        self._pause_source(now_ms, answer.message or f"the source answered error {answer.code}")
        self._want_metadata(out)

    # -- events: the data --------------------------------------------------------------------------------------------

    def _on_appended(self, event: ev.Appended, facts: Facts, now_ms: int, out: Outcome) -> None:
        self.source_high_watermark = event.source_high_watermark
        self.trouble = None
        self._early_retries = 0
        if event.last_epoch >= 0:
            self._background_bump(out, facts, event.last_epoch)
        start, history_end = event.source_log_start, self.recorded.history_end
        believable = start <= event.source_high_watermark  # or following it would hide all that is here
        if believable and start > facts.log_start_offset and start > history_end:
            reach = min(start, facts.high_watermark)
            if reach > facts.log_start_offset:
                out.actions.append(ev.AdvanceLogStart(reach))
        recorded = self.recorded
        unsettled = recorded.retry_attempt or recorded.error or recorded.force
        if unsettled and not self._busy and recorded.state is State.MIRRORING:
            self._record(
                out, facts, State.MIRRORING, error=None, retry_attempt=0, previous_state=State.UNKNOWN, force=False
            )

    def _on_fetch_error(self, event: ev.FetchError, facts: Facts, now_ms: int, out: Outcome) -> None:
        code = event.code
        text = event.message or f"the source answered error {code} to a fetch"
        if self._busy or self.recorded.state is not State.MIRRORING or self.desired is not Desired.MIRRORING:
            return
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._suspect = True
            self._revoke()
        elif event.fatal or (code and code not in WAIT):
            self._fail(out, facts, now_ms, text)
        elif event.leader >= 0 and event.leader_epoch > self.source_epoch:
            self._on_source_seen(
                ev.SourceSeen(leader=event.leader, leader_epoch=event.leader_epoch), facts, now_ms, out
            )
        else:
            self._revoke()
            self._pause_source(now_ms, text)
            self._want_metadata(out)

    def _on_newer_epoch(self, event: ev.NewerEpoch, facts: Facts, now_ms: int, out: Outcome) -> None:
        if not self._busy and self.recorded.state is State.MIRRORING:
            self._fence_to = event.epoch
            self._record(out, facts, State.EPOCH_FENCING)

    def _on_overlap(self, event: ev.Overlap, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self._busy or self.recorded.state is not State.MIRRORING or self.desired is not Desired.MIRRORING:
            return
        text = f"it has a batch at offset {event.base_offset} that reaches across our end at {facts.log_end_offset}"
        self._diverged(Diverged(event.base_offset, text), facts, now_ms, out)

    # -- events: our own steps ---------------------------------------------------------------------------------------

    def _on_step_done(self, event: ev.StepDone, facts: Facts, now_ms: int, out: Outcome) -> None:
        if event.token == self._background:
            self._background = 0
        elif event.token == self._busy:
            self._busy = 0
            self._blocked_until_ms = 0
            self._step_finished()

    def _on_step_failed(self, event: ev.StepFailed, facts: Facts, now_ms: int, out: Outcome) -> None:
        if event.token == self._background:
            self._background = 0
        elif event.token == self._busy:
            self._busy = 0
            self._block(now_ms, event.message)

    def _on_timer(self, event: ev.TimerFired, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self._wake_at_ms is not None and self._wake_at_ms <= now_ms:
            self._wake_at_ms = None
        recorded = self.recorded
        if recorded.state is not State.FAILED or self._busy or self._decide_from is not None or self._begun is not None:
            return
        if self._retry_at_ms is None or self._retry_at_ms > now_ms:
            return
        self._retry_at_ms = None
        if self._lost is None and self.settings.retry.schedules(recorded.retry_attempt):
            self._retry(out, facts)

    def _retry(self, out: Outcome, facts: Facts, **changes: Any) -> None:
        """Back to where it failed; error and attempt stay until a fetch makes progress."""
        self._recovering = False
        aligned = self.recorded.mirrored and not self.recorded.cut_pending
        if aligned and self.recorded.previous_state is not State.LOG_ALIGNMENT:
            self._record(out, facts, State.MIRRORING, **changes)
        else:
            self._record(out, facts, State.LOG_ALIGNMENT, fresh_epoch=True, **changes)

    # -- the next step -----------------------------------------------------------------------------------------------

    def _advance(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self._busy:
            return
        if now_ms < self._blocked_until_ms:
            self._wake(self._blocked_until_ms)
            return
        state = self.recorded.state
        if self.desired is Desired.STOPPED and state not in (State.STOPPING, State.STOPPED):
            self._record(out, facts, State.STOPPING)
            return
        if self._begun is not None and state in (State.UNKNOWN, State.STOPPED, State.FAILED):
            self._record_begun(self._begun, facts, out)
            return
        if self._decide_from is not None:
            self._advance_decision(facts, now_ms, out)
        advance = _ADVANCE.get(state)
        if advance is not None:
            advance(self, facts, now_ms, out)

    def _advance_decision(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        wanted = self._decide_from
        assert wanted is not None
        if self.deciding is None:
            mirrored, own, ask = self.recorded.mirrored, self.own_lineage, self.settings.ask_lineage
            if ask is None and lookup_matters(facts, mirrored=mirrored, own=own):
                self._want_metadata(out)
                return
            self.deciding = Deciding(facts, mirrored=mirrored, own=own, force=wanted.force, ask_lineage=bool(ask))
        result = self.deciding.result
        if result is not None:
            self._drop_decision()
            out.actions.append(ev.Decided(result))
        elif self._source_ready(now_ms, out):
            assert self.deciding.question is not None
            self._ask(out, self.deciding.question)

    def _source_ready(self, now_ms: int, out: Outcome) -> bool:
        """Whether the source may be asked now: its leader is known, and no pause is running."""
        if now_ms < self._not_before_ms:
            self._wake(self._not_before_ms)
            return False
        if self.source_leader < 0:
            self._want_metadata(out)
            return False
        return True

    def _advance_failed(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self._recovering:
            self._lost = None  # to be seen again, if it still is so
            self._retry_at_ms = None
            self._want_metadata(out)
            self._retry(out, facts, error=None, retry_attempt=0)
        elif self._lost is not None and (self.recorded.retryable or self._lost != self.recorded.error):
            # also over an older loss: first the topic was deleted, then another was made under its name
            self._fail(out, facts, now_ms, self._lost, retry=False)

    def _advance_pausing(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        if facts.flushed_offset < facts.log_end_offset or self._unflushed:
            self._do(out, facts, now_ms, ev.FlushLog)
        else:
            self._record(out, facts, State.PAUSED, error=None, retry_attempt=0)

    def _advance_paused(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self.desired is Desired.MIRRORING:
            self._record(out, facts, State.MIRRORING)

    def _advance_fencing(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        """EPOCH_FENCING and ULE_RECOVERY, and an alignment whose cut is decided: the source is not needed."""
        recorded = self.recorded
        if recorded.cut_pending and not self._carry_out_cut(facts, now_ms, out):
            return
        wanted = max(self._fence_to, self.source_epoch)
        if facts.leader_epoch <= recorded.leader_epoch or facts.leader_epoch < self._fence_to:
            minimum = max(recorded.leader_epoch, raise_minimum(wanted) if wanted > facts.leader_epoch else -1)
            self._do(out, facts, now_ms, ev.BumpEpoch, minimum)
            return
        self._fence_to = -1
        if recorded.state is State.LOG_ALIGNMENT and recorded.start_from != EARLIEST:
            # the log is as decided; where it begins is still to be asked
            self._record(out, facts, State.LOG_ALIGNMENT, drop_lineage=True, cut_to=-1, restart_at=-1, mirrored=True)
        else:
            self._go_mirroring(facts, out)

    def _go_mirroring(self, facts: Facts, out: Outcome) -> None:
        """The old lineage goes in the same batch: it is replaced only now that an alignment has finished."""
        self._record(
            out,
            facts,
            State.MIRRORING,
            drop_lineage=True,
            cut_to=-1,
            restart_at=-1,
            mirrored=True,
            start_from=EARLIEST,
        )

    def _advance_alignment(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self.recorded.cut_pending:
            self._advance_fencing(facts, now_ms, out)
        elif self._lost is not None:
            self._fail(out, facts, now_ms, self._lost, retry=False)
        elif self._join(facts, now_ms, out):
            if should_raise(self.source_epoch, facts.leader_epoch):
                self._do(out, facts, now_ms, ev.BumpEpoch, raise_minimum(self.source_epoch))
            elif self._unflushed:
                self._do(out, facts, now_ms, ev.FlushLog)
            else:
                self._go_mirroring(facts, out)

    def _advance_mirroring(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        if self.desired is Desired.PAUSED:
            self._record(out, facts, State.PAUSING)
        elif self._lost is not None:
            self._fail(out, facts, now_ms, self._lost, retry=False)
        else:
            self._join(facts, now_ms, out)

    # -- joining -----------------------------------------------------------------------------------------------------

    def _join(self, facts: Facts, now_ms: int, out: Outcome) -> bool:
        """True when the source has agreed under its present leader epoch."""
        if self._agreed is not None:
            return True
        if not self._source_ready(now_ms, out):
            return False
        if self.joining is None:
            initial = facts.log_end_offset == 0
            start_from = self.recorded.start_from if self.recorded.state is State.LOG_ALIGNMENT else EARLIEST
            self.joining = Joining(
                facts,
                initial=initial,
                start_from=start_from,
                suspect=self._suspect,
                ask_lineage=bool(self.settings.ask_lineage) and self.recorded.state is State.LOG_ALIGNMENT,
            )
        result = self.joining.result
        if result is None:
            assert self.joining.question is not None
            self._ask(out, self.joining.question)
            return False
        if isinstance(result, Agreed):
            return self._has_agreed(now_ms, out)
        if isinstance(result, Position):
            return self._place(result.offset, facts, now_ms, out)
        self.joining = None
        if isinstance(result, Reverse):
            self._fail(out, facts, now_ms, result.message)
        elif isinstance(result, Overtaken):
            self._overtaken(result.source_log_start, facts, now_ms, out)
        else:
            self._diverged(result, facts, now_ms, out)
        return False

    def _has_agreed(self, now_ms: int, out: Outcome) -> bool:
        if self._suspect:
            # the source said "out of range", and yet its log reaches ours: do not ask it in a tight loop
            self._suspect = False
            self._pause_source(
                now_ms, "the source's bounds and its answer to our fetch contradict each other; retrying"
            )
        self.joining = None
        self._agreed = (self.source_leader, self.source_epoch)
        self.lease_number += 1
        if self.trouble is not None and now_ms >= self._not_before_ms:
            self.trouble = None
        return True

    def _place(self, offset: int, facts: Facts, now_ms: int, out: Outcome) -> bool:
        """An empty log that never held anything begins where the source does (or --from says): nothing is lost."""
        if offset > facts.log_end_offset:
            self.joining = None
            self._do(out, facts, now_ms, ev.RestartAt, offset)
            return False
        self._suspect = False
        return self._has_agreed(now_ms, out)

    def _overtaken(self, source_log_start: int, facts: Facts, now_ms: int, out: Outcome) -> None:
        """Retention overtook us. The KIP's rule: drop all, go on at the source's log start; `gap.action=halt` stops."""
        recorded, end = self.recorded, facts.log_end_offset
        missing = source_log_start - end
        text = f"the source's log starts at {source_log_start}, ours ends at {end}: {missing} offsets are gone"
        if (self.settings.gap_halts or end <= recorded.history_end) and not recorded.force:
            self._fail(out, facts, now_ms, f"{text}; start with --replace to go on behind them", retry=False)
            return
        self._suspect = False
        gap = GapRecord(from_offset=end, to_offset=source_log_start, at_ms=now_ms)
        out.actions.append(ev.Report("gap", f"{self.topic}-{self.partition}: {text}", missing))
        state = State.LOG_ALIGNMENT if recorded.state is State.LOG_ALIGNMENT else State.EPOCH_FENCING
        self._record(out, facts, state, fresh_epoch=True, gap=gap, restart_at=source_log_start)

    def _diverged(self, result: Diverged, facts: Facts, now_ms: int, out: Outcome) -> None:
        recorded = self.recorded
        offsets = facts.log_end_offset - min(result.common_offset, facts.log_end_offset)
        text = f"the source's log differs from offset {result.common_offset} on ({result.reason})"
        if not (facts.unclean_allowed or recorded.force):
            advice = (
                f"{offsets} offsets here are not in the source's history; start with --replace to cut them, or stop"
            )
            self._fail(out, facts, now_ms, f"{text}: {advice}", retry=False)
            return
        self._suspect = False
        cut_to, restart_at = cut_point(facts, result.common_offset)
        report = f"{self.topic}-{self.partition}: {text}; cutting {offsets} offsets"
        out.actions.append(ev.Report("divergence", report, offsets))
        state = State.LOG_ALIGNMENT if recorded.state is State.LOG_ALIGNMENT else State.ULE_RECOVERY
        history_end = min(recorded.history_end, result.common_offset)
        self._record(out, facts, state, fresh_epoch=True, cut_to=cut_to, restart_at=restart_at, history_end=history_end)


_HANDLERS: Final[dict[type, Callable[[Machine, Any, Facts, int, Outcome], None]]] = {
    ev.Loaded: Machine._on_loaded,
    ev.Wished: Machine._on_wished,
    ev.Decide: Machine._on_decide,
    ev.Recover: Machine._on_recover,
    ev.Prepare: Machine._on_prepare,
    ev.Abandon: Machine._on_abandon,
    ev.Begin: Machine._on_begin,
    ev.Refuse: Machine._on_refuse,
    ev.SourceSeen: Machine._on_source_seen,
    ev.SourceLost: Machine._on_source_lost,
    ev.SourceUnreachable: Machine._on_source_unreachable,
    ev.Answered: Machine._on_answered,
    ev.Appended: Machine._on_appended,
    ev.FetchError: Machine._on_fetch_error,
    ev.NewerEpoch: Machine._on_newer_epoch,
    ev.Overlap: Machine._on_overlap,
    ev.StepDone: Machine._on_step_done,
    ev.StepFailed: Machine._on_step_failed,
    ev.TimerFired: Machine._on_timer,
}

_ADVANCE: Final[dict[State, Callable[[Machine, Facts, int, Outcome], None]]] = {
    State.FAILED: Machine._advance_failed,
    State.LOG_ALIGNMENT: Machine._advance_alignment,
    State.EPOCH_FENCING: Machine._advance_fencing,
    State.ULE_RECOVERY: Machine._advance_fencing,
    State.MIRRORING: Machine._advance_mirroring,
    State.PAUSING: Machine._advance_pausing,
    State.PAUSED: Machine._advance_paused,
    State.STOPPING: Machine._advance_stopping,
}
