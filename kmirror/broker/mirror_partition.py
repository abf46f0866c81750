"""One mirrored partition bound to its machine: facts out of the log, actions onto it. L3.

What may live here: reading numbers for the machine (`LogFacts`), carrying out its actions on `Partition`, and keeping
the partition's mode as the machine wants it. No decision.

What must hold: the partition's mode is the machine's before anything else happens after a step; every action with a
token is answered once; a step that fails for lack of space or a deleted topic is reported to the machine, a disk that
cannot be trusted stops the process (the partition tells `fatal`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kmirror.broker.mirror_seam import FetchItem
from kmirror.broker.partition import Partition
from kmirror.effects import Effects, Promise
from kmirror.errors import ApiError, DiskFailure, StorageError
from kmirror.mirror import events as ev
from kmirror.mirror.agreement import LocalBatch
from kmirror.mirror.behaviour import Machine
from kmirror.mirror.facts import OpenTransaction
from kmirror.mirror.machine import Outcome
from kmirror.mirror.plan import Appetite
from kmirror.mirror.states import Mode, State, refusal
from kmirror.protocol import mirror_numbers as numbers
from kmirror.protocol import uuids
from kmirror.protocol.records import CONTROL_ABORT, control_type, end_txn_marker, mirror_pid_reset
from kmirror.storage.log import Log, LogMode

if TYPE_CHECKING:
    from kmirror.broker.mirroring import Mirrors

MODES: Final = {
    Mode.WRITABLE: LogMode.WRITABLE,
    Mode.READ_ONLY: LogMode.READ_ONLY,
    Mode.DRAINING: LogMode.DRAINING,
    Mode.SEALING: LogMode.SEALING,
}
OWN_CONTROL_TYPES: Final = frozenset({CONTROL_ABORT, numbers.CONTROL_RECORD_TYPE_PID_RESET})


class LogFacts:
    """`kmirror.mirror.facts.Facts`, read from the log when asked."""

    __slots__ = ("_partition", "_world")

    def __init__(self, partition: Partition, world: Any) -> None:
        self._partition = partition
        self._world = world

    @property
    def _log(self) -> Log:
        return self._partition.log

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        return self._log.flushed_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    @property
    def latest_epoch(self) -> int:
        return self._log.epochs.latest

    @property
    def epoch_entries(self) -> Sequence[tuple[int, int]]:
        return self._log.epochs.entries

    @property
    def open_transactions(self) -> Sequence[OpenTransaction]:
        return self._log.producers.ongoing()

    @property
    def last_pid_reset_offset(self) -> int:
        return self._log.last_pid_reset_offset

    @property
    def max_producer_id(self) -> int:
        return self._log.max_producer_id

    @property
    def next_producer_id(self) -> int:
        next_id: int = self._world.producer_ids.next_id
        return next_id

    @property
    def leader_epoch(self) -> int:
        return self._partition.leader_epoch

    @property
    def generation(self) -> int:
        return self._log.generation

    @property
    def unclean_allowed(self) -> bool:
        topic = self._world.image.topics_by_name.get(self._partition.topic_name)
        return topic is not None and topic.configs.get(numbers.TOPIC_UNCLEAN_ELECTION_CONFIG, "false") == "true"

    def batch_below(self, offset: int) -> LocalBatch | None:
        """Looks a little below `offset` first, then twice as far each time: compaction leaves holes."""
        log = self._log
        reach = 1
        while True:
            first = max(log.log_start_offset, offset - reach)
            found: LocalBatch | None = None
            for header, _data in log.batches(first, min(offset, log.log_end_offset)):
                if header.base_offset < offset:
                    found = LocalBatch(header.base_offset, header.next_offset, header.size_bytes)
            if found is not None or first <= log.log_start_offset:
                return found
            reach *= 2

    def only_own_records(self, from_offset: int) -> bool:
        log = self._log
        for header, data in log.batches(max(from_offset, log.log_start_offset), log.log_end_offset):
            if header.base_offset < from_offset:
                continue  # a batch that the cut goes through is cut before; the caller has asked for its base
            if not header.is_control or control_type(data) not in OWN_CONTROL_TYPES:
                return False
        return True


class Copied:
    """What a start has moved and removed so far; of the present process only."""

    __slots__ = ("announced", "batch_count", "cut_offsets", "saved_in", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.batch_count = 0
        self.cut_offsets: int | None = None
        self.saved_in: str | None = None
        self.announced = False
        """That it has caught up with the source."""


class MirroredPartition:
    """See the module head. `attached`: the association is current, so the machine rules the partition's mode."""

    def __init__(self, mirrors: Mirrors, machine: Machine, partition: Partition, *, attached: bool) -> None:
        self.mirrors = mirrors
        self.machine = machine
        self.partition = partition
        self.attached = attached
        self.facts = LogFacts(partition, mirrors.world)
        self.appetite = Appetite()
        self.served = 0
        """Serial number of the last fetch that asked for it: who waited longest goes first."""
        self.planned: FetchItem | None = None
        self.idle_at = -1
        """Source broker of which `planned` is asked again as it is: thousands of idle partitions cost next to nothing.
        -1 after every step, without which neither the machine nor the log changes."""
        self.wake_at_ms: int | None = None
        """What the mirrors' timers know; theirs to set."""
        self.query: Any = None
        self.on_decided: Callable[[MirroredPartition, Any], None] | None = None
        self.when_state: list[tuple[State, Callable[[], None]]] = []
        self.copied = Copied()
        self._prepared = False
        self.fetched_under = -1
        """The log's generation when a fetch was last applied; -1: none yet. Group offsets are taken over since then."""

    @property
    def index(self) -> int:
        return self.partition.index

    @property
    def state(self) -> State:
        return self.machine.recorded.state

    @property
    def key(self) -> tuple[str, bytes, int]:
        return self.machine.mirror, self.machine.topic_id, self.machine.partition

    # -- stepping ----------------------------------------------------------------------------------------------------

    def step(self, event: ev.Event) -> None:
        if self.partition.deleted:
            return  # whatever was under way ends with the topic
        self.idle_at = -1
        if isinstance(event, ev.Prepare):
            self._prepared = True
        elif isinstance(event, ev.Begin):
            self.copied = Copied()
        elif isinstance(event, ev.Abandon):
            self._abandon()
        self._carry_out(self.machine.step(event, self.facts, self.mirrors.now_ms()))
        if self.machine.wake_at_ms != self.wake_at_ms:
            self.mirrors.schedule(self)

    def _abandon(self) -> None:
        if self._prepared and not self.attached:
            self.partition.set_mode(LogMode.WRITABLE, None)
        self._prepared = False

    def _carry_out(self, out: Outcome) -> None:
        self.sync_mode()
        write = out.write
        if write is None:
            self._perform(out.actions)
            return
        records = self.mirrors.records.write(self.key, write, wall_ms=self.mirrors.world.clock.time_ms())
        done = Continue(self, write.token, out.actions)
        if not self.mirrors.world.commit(Effects(records=records, actions=[done])):
            self.step(ev.StepFailed(write.token, "the state could not be recorded: no space left on the disk"))

    def recorded_durably(self, token: int, actions: list[ev.Action]) -> None:
        """The write of a step is on disk."""
        self._perform(actions)
        self.step(ev.StepDone(token))
        self._settle_waiters()
        self.mirrors.state_changed(self)

    def _settle_waiters(self) -> None:
        ready = [callback for state, callback in self.when_state if state is self.state]
        if ready:
            self.when_state = [waiter for waiter in self.when_state if waiter[0] is not self.state]
            for callback in ready:
                callback()

    def sync_mode(self) -> None:
        """Bring the partition's mode in line with the machine's."""
        if not (self.attached or self._prepared) or self.partition.deleted:
            return
        mode = MODES[self.machine.mode]
        reason = None if mode is LogMode.WRITABLE else refusal(self.machine.mirror, self.state)
        if self.partition.mode is not mode or self.partition.read_only_reason != reason:
            self.partition.set_mode(mode, reason)
        if mode is not LogMode.WRITABLE:
            self.partition.settings_awaited = not self.mirrors.settings_known(self.machine.topic)

    # -- actions -----------------------------------------------------------------------------------------------------

    def _perform(self, actions: list[ev.Action]) -> None:
        for action in actions:
            _PERFORM[type(action)](self, action)

    def _attempt(self, token: int, work: Callable[[], object]) -> None:
        """Do `work` at once and tell the machine how it went."""
        try:
            work()
        except DiskFailure:
            raise
        except (ApiError, StorageError) as error:
            self.step(ev.StepFailed(token, str(error)))
        else:
            self.step(ev.StepDone(token))

    def _await(self, token: int, promise: Promise[Any]) -> None:
        def settled(done: Promise[Any]) -> None:
            try:
                done.result()
            except ApiError as error:
                self.step(ev.StepFailed(token, str(error)))
            else:
                self.step(ev.StepDone(token))

        promise.then(settled)

    def _flush(self, action: ev.FlushLog) -> None:
        self._await(action.token, self.partition.when_flushed())

    def _save_cut(self, action: ev.SaveCut) -> None:
        # never the name of an earlier cut: leader epochs only rise, and another topic of this name has another id
        name = f"{self.partition.topic_name}-{self.index}/{uuids.to_text(self.machine.topic_id)}-{action.label}"
        target = f"{self.mirrors.world.directory.path}/cut/{name}"
        self._attempt(action.token, lambda: self._saved(target, action.from_offset))

    def _saved(self, target: str, from_offset: int) -> None:
        saved = self.partition.log.save_cut(from_offset, target)
        self.copied.saved_in = target
        what = f"offsets {saved.first_offset} to {saved.end_offset - 1}, {saved.size_bytes} bytes"
        self.mirrors.report(self, ev.Report("cut saved", f"{self.partition}: what is cut is kept in {target} ({what})"))

    def _truncate(self, action: ev.TruncateTo) -> None:
        offsets = self.copied.cut_offsets = self.partition.log_end_offset - action.offset
        text = f"{self.partition}: cut to offset {action.offset}, {offsets} offsets"
        self.mirrors.report(self, ev.Report("cut", text, offsets))
        self._attempt(action.token, lambda: self.partition.truncate_to(action.offset))

    def _restart(self, action: ev.RestartAt) -> None:
        offsets = self.copied.cut_offsets = self.partition.log_end_offset - self.partition.log_start_offset
        text = f"{self.partition}: the log begins again at offset {action.offset}, {offsets} offsets cut"
        self.mirrors.report(self, ev.Report("restart", text, offsets))
        self._attempt(action.token, lambda: self.partition.restart_at(action.offset))

    def _advance_start(self, action: ev.AdvanceLogStart) -> None:
        self.partition.advance_log_start(action.offset)

    def _bump(self, action: ev.BumpEpoch) -> None:
        """Behind every cut comes a raised epoch, so this is where committed offsets beyond the new end are moved back:
        on disk before the epoch is, hence repeated after a crash in between."""
        recorded = self.machine.recorded
        if not recorded.cut_pending and recorded.state is not State.STOPPING:
            self._await(action.token, self._raise_epoch(action))
            return
        bumped: Promise[int] = Promise()

        def clamped(done: Promise[None]) -> None:
            try:
                done.result()
            except ApiError as error:
                bumped.fail(error)
                return
            self._raise_epoch(action).then(bumped.follow)

        self.mirrors.clamp_groups(self.partition).then(clamped)
        self._await(action.token, bumped)

    def _raise_epoch(self, action: ev.BumpEpoch) -> Promise[int]:
        return self.mirrors.world.bump_leader_epoch(self.partition, action.minimum)

    def _abort(self, action: ev.AppendAborts) -> None:
        self._attempt(action.token, lambda: self._append_aborts(action.markers))

    def _append_aborts(self, markers: tuple[ev.Abort, ...]) -> None:
        now_ms = self.mirrors.world.clock.time_ms()
        for marker in markers:
            batch = end_txn_marker(
                commit=False,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp_ms=now_ms,
            )
            self.partition.append_coordinator(batch)

    def _reset(self, action: ev.AppendReset) -> None:
        batch = mirror_pid_reset(timestamp_ms=self.mirrors.world.clock.time_ms())
        self._attempt(action.token, lambda: self.partition.append_coordinator(batch))

    def _raise_ids(self, action: ev.RaiseProducerIds) -> None:
        self._await(action.token, self.mirrors.world.producer_ids.raise_above(action.above))

    def _asked(self, action: ev.Ask) -> None:
        self.mirrors.asked(self, action)

    def _refresh(self, action: ev.RefreshMetadata) -> None:
        self.mirrors.wake(self.machine.mirror)

    def _decided(self, action: ev.Decided) -> None:
        callback, self.on_decided = self.on_decided, None
        if callback is not None:
            callback(self, action.outcome)

    def _report(self, action: ev.Report) -> None:
        self.mirrors.report(self, action)


class Continue:
    """Runtime action: the records of a machine's write are on disk."""

    __slots__ = ("actions", "partition", "token")

    def __init__(self, partition: MirroredPartition, token: int, actions: list[ev.Action]) -> None:
        self.partition = partition
        self.token = token
        self.actions = actions


_PERFORM: Final[dict[type, Callable[[MirroredPartition, Any], None]]] = {
    ev.FlushLog: MirroredPartition._flush,
    ev.SaveCut: MirroredPartition._save_cut,
    ev.TruncateTo: MirroredPartition._truncate,
    ev.RestartAt: MirroredPartition._restart,
    ev.AdvanceLogStart: MirroredPartition._advance_start,
    ev.BumpEpoch: MirroredPartition._bump,
    ev.AppendAborts: MirroredPartition._abort,
    ev.AppendReset: MirroredPartition._reset,
    ev.RaiseProducerIds: MirroredPartition._raise_ids,
    ev.Ask: MirroredPartition._asked,
    ev.RefreshMetadata: MirroredPartition._refresh,
    ev.Decided: MirroredPartition._decided,
    ev.Report: MirroredPartition._report,
}
