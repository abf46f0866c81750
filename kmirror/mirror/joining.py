"""The dialogs with the source that come before a byte is appended. Pure.

`Joining` runs at link start, at resume and under every changed source leader epoch: where does the source's log start,
do we share its history (`Agreement`)? `Deciding` works out the plan of a start while the topic is still as it was.
Both show a `question`, take its answer, and end with a `result`. A machine that hears of another source leader epoch
throws the dialog away and begins a new one.

Both ask a capable source first what it knows of copying from us (`AskLineage`): while a mirror there is anything but
STOPPED for this partition, nothing may begin here, else two logs would wait for each other, or take each other's
records back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kmirror.mirror.agreement import Agreed, Agreement, AskBatch, AskEpochEnd, Compared, Diverged
from kmirror.mirror.alignment import Intended, Lineage, Plan, Refused, after_source, classify
from kmirror.mirror.durable import EARLIEST, LATEST
from kmirror.mirror.events import AskLineage, AskOffset, EpochEnd, Offset, Question, Reported
from kmirror.mirror.facts import Facts


@dataclass(frozen=True, slots=True)
class Position:
    """An empty mirror begins at this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The source's log starts beyond our end: what lies between is gone."""

    source_log_start: int


@dataclass(frozen=True, slots=True)
class Reverse:
    """A mirror at the source copies this partition from us, or might go on doing so."""

    message: str


Answer = EpochEnd | Offset | Compared | Reported

ACTIVE: Final = frozenset({"PREPARING", "MIRRORING"})
STOPPED: Final = "STOPPED"
STOPPING: Final = "STOPPING"


def reverse_of(answer: Reported) -> Reverse | None:
    """What speaks against copying from a source that reports this; None when nothing does (STOPPING passes: wait)."""
    if not answer.mirror or answer.state in (STOPPED, STOPPING):
        return None
    if answer.state in ACTIVE:
        return Reverse(f"Detected mirror loop for mirror {answer.mirror!r}: the source mirrors this topic from here")
    text = f"mirror {answer.mirror!r} of the source, which copies this topic from here, is {answer.state}"
    return Reverse(f"{text}: stop it there first")


def _still_stopping(answer: Reported) -> str | None:
    if answer.mirror and answer.state == STOPPING:
        return f"mirror {answer.mirror!r} of the source is STOPPING; waiting until it is STOPPED"
    return None


def lookup_matters(facts: Facts, *, mirrored: bool, own: Lineage | None) -> bool:
    """Whether the plan of a start may depend on what the source recorded when we fed it."""
    return not mirrored and (own is not None or facts.log_end_offset > 0)


class Joining:
    """`initial`: nothing was ever copied, so where to begin is free (`start_from`). `suspect`: the source answered
    OFFSET_OUT_OF_RANGE, so its bounds are asked first. `ask_lineage`: first of all, does the source copy from us?"""

    def __init__(
        self,
        facts: Facts,
        *,
        initial: bool,
        start_from: int = EARLIEST,
        suspect: bool = False,
        ask_lineage: bool = False,
    ) -> None:
        self._facts = facts
        self._end = facts.log_end_offset
        self._empty = facts.log_start_offset == facts.log_end_offset
        self._initial = initial
        self._suspect = suspect
        self._agreement: Agreement | None = None
        self._start_from = start_from
        self.question: Question | None = None
        self.result: Position | Overtaken | Agreed | Diverged | Reverse | None = None
        self.complaint: str | None = None
        """Why an answer was not taken, when it is not that it makes no sense."""
        if ask_lineage:
            self.question = AskLineage()
        else:
            self._begin()

    def _begin(self) -> None:
        if self._initial:
            self.question = AskOffset(self._start_from)
        elif self._empty or self._suspect:
            self.question = AskOffset(EARLIEST)
        else:
            self._agree()

    def answer(self, answer: Answer) -> bool:
        """Take the answer to `question`. False: it makes no sense (or see `complaint`), ask again later."""
        asked = self.question
        if isinstance(asked, AskLineage) and isinstance(answer, Reported):
            return self._reported(answer)
        if isinstance(asked, AskOffset) and isinstance(answer, Offset):
            return self._offset(asked, answer.offset)
        if self._agreement is None or not _feed(self._agreement, answer):
            return False
        self._follow()
        return True

    def _reported(self, answer: Reported) -> bool:
        self.complaint = _still_stopping(answer)
        if self.complaint is not None:
            return False
        reverse = reverse_of(answer)
        if reverse is not None:
            self._finish(reverse)
        else:
            self._begin()
        return True

    def _offset(self, asked: AskOffset, offset: int) -> bool:
        if offset < 0:
            if asked.timestamp < 0:
                return False
            self.question = AskOffset(LATEST)
        elif self._initial:
            self._finish(Position(offset))
        elif asked.timestamp == EARLIEST:
            self._earliest(offset)
        elif not self._empty:
            self._agree()
        elif offset < self._end:
            self._finish(Diverged(offset, f"the source's log ends at {offset}, ours at {self._end}"))
        else:
            self._finish(Agreed(tail_compared=False))
        return True

    def _earliest(self, offset: int) -> None:
        if offset > self._end:
            self._finish(Overtaken(offset))
        else:
            self.question = AskOffset(LATEST)

    def _agree(self) -> None:
        self._agreement = Agreement(
            self._facts.epoch_entries,
            log_start_offset=self._facts.log_start_offset,
            bound=self._end,
            batch_below=self._facts.batch_below,
        )
        self._follow()

    def _follow(self) -> None:
        assert self._agreement is not None
        self.question = self._agreement.question
        self.result = self._agreement.result

    def _finish(self, result: Position | Overtaken | Agreed | Diverged | Reverse) -> None:
        self.question = None
        self.result = result


class Deciding:
    """The plan of a start. Asks nothing when the facts here decide alone and the source knows no lineage of ours."""

    def __init__(
        self,
        facts: Facts,
        *,
        mirrored: bool,
        own: Lineage | None,
        force: bool,
        ask_lineage: bool,
    ) -> None:
        self._facts = facts
        self._mirrored = mirrored
        self._own = own
        self._force = force
        self._intended: Intended | None = None
        self._source_log_start = 0
        self._agreement: Agreement | None = None
        self.question: Question | None = None
        self.result: Plan | Refused | None = None
        self.complaint: str | None = None
        """As of `Joining`."""
        if ask_lineage and lookup_matters(facts, mirrored=mirrored, own=own):
            self.question = AskLineage()
        else:
            self._classify(None)

    def _classify(self, reported: Lineage | None) -> None:
        outcome = classify(self._facts, mirrored=self._mirrored, own=self._own, reported=reported, force=self._force)
        if isinstance(outcome, Intended):
            self._intended = outcome
            self.question = AskOffset(EARLIEST)
        else:
            self.question = None
            self.result = outcome

    def answer(self, answer: Answer) -> bool:
        if isinstance(self.question, AskLineage) and isinstance(answer, Reported):
            return self._reported(answer)
        if isinstance(self.question, AskOffset) and isinstance(answer, Offset):
            if answer.offset < 0:
                return False
            if self.question.timestamp == EARLIEST:
                self._source_log_start = answer.offset
                self._agree()
            else:
                self._latest(answer.offset)
            return True
        if self._agreement is None or not _feed(self._agreement, answer):
            return False
        self._follow()
        return True

    def _reported(self, answer: Reported) -> bool:
        self.complaint = _still_stopping(answer)
        if self.complaint is not None:
            return False
        reverse = reverse_of(answer)
        if reverse is not None:
            self.question = None
            self.result = Refused(0, reverse.message)
        else:
            self._classify(answer.lineage)
        return True

    def _agree(self) -> None:
        assert self._intended is not None
        if self._source_log_start > self._intended.cut_to:
            self._done(Agreed(tail_compared=False))
            return
        if self._facts.batch_below(self._intended.cut_to) is None:
            self.question = AskOffset(LATEST)  # nothing of ours is left to compare, but where it ends
            return
        self._agreement = Agreement(
            self._facts.epoch_entries,
            log_start_offset=self._facts.log_start_offset,
            bound=self._intended.cut_to,
            batch_below=self._facts.batch_below,
        )
        self._follow()

    def _latest(self, source_end: int) -> None:
        assert self._intended is not None
        cut = self._intended.cut_to
        if source_end < cut:
            self._done(Diverged(source_end, f"the source's log ends at {source_end}, below the cut at {cut}"))
        else:
            self._done(Agreed(tail_compared=False))

    def _follow(self) -> None:
        assert self._agreement is not None
        self.question = self._agreement.question
        if self._agreement.result is not None:
            self._done(self._agreement.result)

    def _done(self, agreement: Agreed | Diverged) -> None:
        assert self._intended is not None
        self.question = None
        self.result = after_source(
            self._facts,
            self._intended,
            source_log_start=self._source_log_start,
            agreement=agreement,
            force=self._force,
        )


def _feed(agreement: Agreement, answer: Answer) -> bool:
    if isinstance(agreement.question, AskEpochEnd) and isinstance(answer, EpochEnd):
        return agreement.epoch_end(answer.leader_epoch, answer.end_offset)
    if isinstance(agreement.question, AskBatch) and isinstance(answer, Compared):
        agreement.compared(answer)
        return True
    return False
