"""Cuts, and the failover: what STOPPING does, step by step. Pure; see `kmirror.mirror.stopping` for the table."""

from __future__ import annotations

from kmirror.mirror import events as ev
from kmirror.mirror.alignment import Lineage
from kmirror.mirror.facts import Facts
from kmirror.mirror.machine import MachineCore, Outcome
from kmirror.mirror.states import State, mode_of
from kmirror.mirror.stopping import Step, epoch_floor, next_step, reset_done, truncate_point


class FailoverMixin(MachineCore):
    """Steps that need nobody: cutting the log, and every step of STOPPING."""

    def _step_finished(self) -> None:
        """A step or a write is done. A flush covers everything before it; a cut asks for a new one."""
        kind, self._busy_kind = self._busy_kind, None
        if kind in (ev.TruncateTo, ev.RestartAt):
            self._unflushed = True
            self._saved = False
        elif kind is ev.FlushLog:
            self._unflushed = False
        elif kind is ev.SaveCut:
            self._saved = True
        elif kind is None and self.recorded.state is State.LOG_ALIGNMENT:
            self._begun = None
        self.mode = mode_of(self.recorded.state)

    # -- cutting -----------------------------------------------------------------------------------------------------

    def _carry_out_cut(self, facts: Facts, now_ms: int, out: Outcome) -> bool:
        """Save, cut, flush what CutTo says. True when the log is as decided, and that is on disk."""
        recorded = self.recorded
        start, end = facts.log_start_offset, facts.log_end_offset
        if recorded.restart_at >= 0:
            done, keep_from = start == end == recorded.restart_at, start
        else:
            done, keep_from = end <= recorded.cut_to, recorded.cut_to
        if not done:
            saves = self.settings.save_cut and recorded.state is not State.EPOCH_FENCING and end > keep_from
            if saves and not self._saved:
                self._do(out, facts, now_ms, ev.SaveCut, keep_from, f"{recorded.leader_epoch}-{keep_from}")
            elif recorded.restart_at >= 0:
                self._do(out, facts, now_ms, ev.RestartAt, recorded.restart_at)
            else:
                self._do(out, facts, now_ms, ev.TruncateTo, recorded.cut_to)
            return False
        if self._unflushed:
            self._do(out, facts, now_ms, ev.FlushLog)
            return False
        return True

    # -- STOPPING ----------------------------------------------------------------------------------------------------

    def _advance_stopping(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        recorded, lineage = self.recorded, self.lineage
        step = next_step(facts, recorded, lineage, source_epoch=self.source_epoch, truncate=self.settings.truncate_open)
        if step is Step.FINISH_CUT:
            if self._carry_out_cut(facts, now_ms, out):
                # from here on the log counts as mirrored bytes without an LME: the older one, if any, is replaced
                self._record(
                    out, facts, State.STOPPING, drop_lineage=True, cut_to=-1, restart_at=-1, mirrored=True, force=False
                )
        elif step is Step.TRUNCATE:
            self._truncate_open(facts, now_ms, out)
        elif step is Step.RECORD_LME:
            if self._flush_first(facts, now_ms, out):
                epoch, end = facts.latest_epoch, facts.log_end_offset
                self._write(out, lineage=Lineage(epoch, end, self.settings.source_cluster_id))
        elif step is Step.BUMP_EPOCH:
            floor = epoch_floor(recorded, lineage, source_epoch=self.source_epoch)
            self._do(out, facts, now_ms, ev.BumpEpoch, floor)
        elif step is Step.ABORT_OPEN:
            self._do(out, facts, now_ms, ev.AppendAborts, _markers(facts))
        elif step is Step.RESET_PIDS:
            assert lineage is not None
            if not reset_done(facts, lineage):
                self._do(out, facts, now_ms, ev.AppendReset)
            else:
                self._do(out, facts, now_ms, ev.RaiseProducerIds, facts.max_producer_id)
        elif self._flush_first(facts, now_ms, out):
            self._seal(facts, out)

    def _seal(self, facts: Facts, out: Outcome) -> None:
        self.trouble = None
        self._record(
            out,
            facts,
            State.STOPPED,
            error=None,
            retry_attempt=0,
            previous_state=State.UNKNOWN,
            mirrored=False,
            history_end=-1,
            force=False,
        )

    def _flush_first(self, facts: Facts, now_ms: int, out: Outcome) -> bool:
        if self._unflushed or facts.flushed_offset < facts.log_end_offset:
            self._do(out, facts, now_ms, ev.FlushLog)
            return False
        return True

    def _truncate_open(self, facts: Facts, now_ms: int, out: Outcome) -> None:
        """`open.transactions.on.stop=truncate`: cut to the first offset of the oldest open transaction."""
        first = truncate_point(facts)
        if not self._flush_first(facts, now_ms, out):
            return
        if self.settings.save_cut and not self._saved:
            self._do(out, facts, now_ms, ev.SaveCut, first, f"{self.recorded.leader_epoch}-open-{first}")
            return
        offsets = facts.log_end_offset - first
        text = (
            f"{self.topic}-{self.partition}: cutting {offsets} offsets from the first open transaction on, at {first}"
        )
        out.actions.append(ev.Report("open transactions cut", text, offsets))
        self._do(out, facts, now_ms, ev.TruncateTo, first)


def _markers(facts: Facts) -> tuple[ev.Abort, ...]:
    ongoing = sorted(facts.open_transactions, key=lambda transaction: transaction.producer_id)
    return tuple(
        ev.Abort(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )
        for transaction in ongoing
    )
