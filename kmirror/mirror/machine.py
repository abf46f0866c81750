"""One mirrored partition: events in, effects out. Pure; time, chance and facts are arguments.

The machine is level triggered. Events only update what is known (the operator's wish, the source's leader, an answer);
`_advance` then looks at durable state, facts and knowledge, and takes the one next thing to do. So a crash at any
point, a repeated event or a lost answer all end in the same place, and boot needs no path of its own: it is `Loaded`.

What must hold:
- durable state changes only in `replay*`, from records that `step` put into its effects;
- at most one step (`_busy`) is under way, beside one background epoch bump; a record's mode is loosened only when the
  record is durable, tightened at once;
- nothing is fetchable unless MIRRORING is recorded and wished and the source agreed under its present leader epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kmirror.mirror import events as ev
from kmirror.mirror.alignment import Lineage
from kmirror.mirror.durable import GapRecord, Recorded
from kmirror.mirror.epochs import raise_minimum, should_raise
from kmirror.mirror.facts import Facts
from kmirror.mirror.joining import Deciding, Joining
from kmirror.mirror.retry import NOT_RETRIED, RetryPolicy
from kmirror.mirror.states import Desired, Mode, State, allowed, mode_of

STUCK_REPEATS: Final = 3
"""The same step asked for more often than this under the same facts: back off instead of spinning."""
MAX_REMEMBERED_STEPS: Final = 64
STEP_BACKOFF_MS: Final = 5_000
"""A failed step of our own (full disk) is tried again after this, as the prototypes do with the reset."""


@dataclass(slots=True, kw_only=True)
class Settings:
    """The mirror's and the broker's configuration as far as a partition cares. Shared by the machines of one mirror."""

    retry: RetryPolicy
    source_cluster_id: str = ""
    fetch_backoff_ms: int = 1_000
    save_cut: bool = True
    gap_halts: bool = False
    truncate_open: bool = False
    ask_lineage: bool | None = None
    """The source can be asked what it recorded when it was fed by us. None: not known before its metadata."""


class InvalidTransition(RuntimeError):
    """A bug of ours: a state was about to be recorded that may not follow the present one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Records for `__mirror_state`, one batch: the state (None: untouched), lineage and gap beside it.

    StepDone(token) when they are durable, StepFailed(token) when they could not be appended.
    """

    token: int
    state: Recorded | None = None
    lineage: Lineage | None = None
    drop_lineage: bool = False
    gap: GapRecord | None = None


@dataclass(slots=True)
class Outcome:
    """What a step wants: the write first, and the actions once it is durable (at once when there is none)."""

    write: Write | None = None
    actions: list[ev.Action] = field(default_factory=list)


class MachineCore:
    """State, bookkeeping and records; the behaviour is in `Machine` (`kmirror.mirror.behaviour`)."""

    def __init__(
        self,
        *,
        mirror: str,
        topic: str,
        topic_id: bytes,
        partition: int,
        settings: Settings,
        chance: Callable[[], float],
    ) -> None:
        self.mirror = mirror
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.settings = settings
        self._chance = chance
        # durable, changed by replay only
        self.recorded = Recorded()
        self.lineage: Lineage | None = None
        self.gaps: dict[int, GapRecord] = {}
        # from elsewhere in the binding
        self.inherited: Lineage | None = None
        """Lineage of the same source cluster and topic id, recorded under another mirror's name."""
        self.desired: Desired | None = None
        # volatile
        self.mode = Mode.READ_ONLY
        self.source_leader = -1
        self.source_epoch = -1
        self.source_high_watermark = -1
        self.trouble: str | None = None
        self._wake_at_ms: int | None = None
        self._retry_at_ms: int | None = None
        self.lease_number = 0
        self.deciding: Deciding | None = None
        self.joining: Joining | None = None
        self._decide_from: ev.Decide | None = None
        self._begun: ev.Begin | None = None
        self._recovering = False
        """An operator wants a FAILED partition to go on (Recover)."""
        self._lost: str | None = None
        self._out_of_reach = False
        """The source could not be reached and has not been seen since."""
        self._early_retries = 0
        """Delays that the present leader's metadata has cut short since a fetch succeeded."""
        self._agreed: tuple[int, int] | None = None
        self._suspect = False
        self._fence_to = -1
        self._busy = 0
        self._busy_kind: Callable[..., Any] | None = None
        self._background = 0
        self._tokens = 0
        self._asked: tuple[int, ev.Question] | None = None
        self._question_numbers = 0
        self._not_before_ms = 0
        self._blocked_until_ms = 0
        self._saved = False
        self._unflushed = True
        self._repeats: dict[tuple[object, ...], int] = {}
        self._metadata_wanted = False

    # -- durable state -----------------------------------------------------------------------------------------------

    def replay(self, recorded: Recorded | None) -> None:
        """A state record (None: a tombstone) was appended, or is read at boot."""
        self.recorded = Recorded() if recorded is None else recorded

    def replay_lineage(self, lineage: Lineage | None) -> None:
        self.lineage = lineage

    @property
    def own_lineage(self) -> Lineage | None:
        """For the present source. A deleted mirror of this name may have had another one."""
        if self.lineage is not None and self.lineage.source_cluster_id in ("", self.settings.source_cluster_id):
            return self.lineage
        return self.inherited

    # -- what the binding asks ---------------------------------------------------------------------------------------

    def fetchable(self, now_ms: int) -> bool:
        """Whether a fetch may be planned, or applied, now."""
        return (
            self._agreed is not None
            and self.recorded.state is State.MIRRORING
            and self.desired is Desired.MIRRORING
            and now_ms >= self._not_before_ms
            and self._lost is None
        )

    @property
    def agreed_epoch(self) -> int:
        return -1 if self._agreed is None else self._agreed[1]

    @property
    def open_question(self) -> tuple[int, ev.Question] | None:
        """(number, question) that waits for the source."""
        return self._asked

    @property
    def wants_metadata(self) -> bool:
        return self._metadata_wanted

    @property
    def busy(self) -> bool:
        return self._busy != 0

    @property
    def wake_at_ms(self) -> int | None:
        """When `TimerFired` is wanted."""
        retry_at = self._retry_at_ms if self.recorded.state is State.FAILED else None
        times = [at for at in (self._wake_at_ms, retry_at) if at is not None]
        return min(times, default=None)

    @property
    def retry_at_ms(self) -> int | None:
        """When a FAILED partition is tried again, None when it is not."""
        return self._retry_at_ms if self.recorded.state is State.FAILED else None

    @property
    def shown_error(self) -> str | None:
        return self.trouble if self.trouble is not None else self.recorded.error

    # -- tokens, records, steps --------------------------------------------------------------------------------------

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _begin(self, kind: Callable[..., Any] | None) -> int:
        """Something is under way: a step of this kind, or (None) a write of records."""
        assert not self._busy
        self._busy = self._token()
        self._busy_kind = kind
        return self._busy

    def _do(self, out: Outcome, facts: Facts, now_ms: int, kind: Callable[..., Any], *arguments: object) -> None:
        """Put one step into `out`, unless it was asked for again and again without anything having changed."""
        step = (kind, arguments, facts.log_end_offset, facts.leader_epoch, facts.flushed_offset)
        count = self._repeats.get(step, 0) + 1
        if len(self._repeats) >= MAX_REMEMBERED_STEPS:
            self._repeats.clear()
        self._repeats[step] = count
        if count > STUCK_REPEATS:
            self._repeats.clear()
            self._block(now_ms, f"{kind.__name__} changes nothing")
            return
        out.actions.append(kind(self._begin(kind), *arguments))

    def _block(self, now_ms: int, message: str) -> None:
        self.trouble = message
        self._blocked_until_ms = now_ms + STEP_BACKOFF_MS
        self._wake(self._blocked_until_ms)

    def _wake(self, at_ms: int) -> None:
        self._wake_at_ms = at_ms if self._wake_at_ms is None else min(self._wake_at_ms, at_ms)

    def _record(
        self,
        out: Outcome,
        facts: Facts,
        state: State,
        *,
        drop_lineage: bool = False,
        gap: GapRecord | None = None,
        fresh_epoch: bool = False,
        **changes: Any,
    ) -> None:
        """Record `state`. `leader_epoch` is that of entering the state, or of now when `fresh_epoch` (a new cut)."""
        old = self.recorded
        if not allowed(old.state, state):
            raise InvalidTransition(f"{self.topic}-{self.partition}: {old.state.name} to {state.name}")
        entered = facts.leader_epoch if state is not old.state or fresh_epoch else old.leader_epoch
        self._repeats.clear()
        new = replace(old, state=state, state_epoch=old.state_epoch + 1, leader_epoch=entered, **changes)
        self._write(out, state=new, drop_lineage=drop_lineage and self.lineage is not None, gap=gap)
        if mode_of(state) is not Mode.WRITABLE:
            self.mode = mode_of(state)
        if state is not State.MIRRORING or old.state is not State.MIRRORING:
            self._revoke(keep_agreement=state is State.MIRRORING and old.state is State.LOG_ALIGNMENT)
        if state is not old.state or fresh_epoch:
            self._saved = False

    def _write(self, out: Outcome, **parts: Any) -> None:
        assert out.write is None
        out.write = Write(token=self._begin(None), **parts)

    # -- leases ------------------------------------------------------------------------------------------------------

    def _revoke(self, *, keep_agreement: bool = False) -> None:
        """No answer of a fetch that is on its way may be applied any more."""
        self.lease_number += 1
        if not keep_agreement:
            self._agreed = None
        self.joining = None
        if self.deciding is None:
            self._asked = None

    # -- questions ---------------------------------------------------------------------------------------------------

    def _ask(self, out: Outcome, question: ev.Question) -> None:
        """Ask, unless the same dialog's question is already out."""
        if self._asked is not None and self._asked[1] is question:
            return
        self._question_numbers += 1
        self._asked = (self._question_numbers, question)
        out.actions.append(ev.Ask(self._question_numbers, question))

    def _want_metadata(self, out: Outcome) -> None:
        if not self._metadata_wanted:
            self._metadata_wanted = True
            out.actions.append(ev.RefreshMetadata())

    def _pause_source(self, now_ms: int, message: str | None) -> None:
        """Wait a moment before the source is asked again."""
        if message is not None:
            self.trouble = message
        self.joining = None
        self._asked = None
        self._not_before_ms = now_ms + self.settings.fetch_backoff_ms
        self._wake(self._not_before_ms)

    # -- failing -----------------------------------------------------------------------------------------------------

    def _fail(self, out: Outcome, facts: Facts, now_ms: int, message: str, *, retry: bool = True) -> None:
        policy = self.settings.retry
        old = self.recorded
        attempt = policy.next_attempt(old.retry_attempt) if retry else NOT_RETRIED
        previous = old.previous_state if old.state is State.FAILED else old.state
        self.trouble = None
        self._record(out, facts, State.FAILED, error=message, retry_attempt=attempt, previous_state=previous)
        self._schedule_retry(now_ms, attempt)

    def _schedule_retry(self, now_ms: int, attempt: int) -> None:
        self._retry_at_ms = None
        if self.settings.retry.schedules(attempt):
            self._retry_at_ms = now_ms + self.settings.retry.delay_ms(attempt, self._chance)

    def _background_bump(self, out: Outcome, facts: Facts, epoch: int) -> None:
        """Proactive: raise ours before the source's epoch reaches it; nothing waits for it."""
        if self._background or not should_raise(epoch, facts.leader_epoch):
            return
        self._background = self._token()
        out.actions.append(ev.BumpEpoch(self._background, raise_minimum(epoch)))
