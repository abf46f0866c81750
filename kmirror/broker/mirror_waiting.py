"""Requests of operators that wait: a start whose cut the source has to be asked about, a stop until all is sealed. L3.

What must hold: a start is all or nothing per topic, and a refused topic is as it was; a stop goes on when nobody waits
any more; nobody waits for ever (`expire`). The requests themselves are read in `mirror_operator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kmirror.broker import mirror_seam as seam
from kmirror.broker.metadata import MIRROR_RESOURCE
from kmirror.broker.mirror_partition import MirroredPartition
from kmirror.broker.topic_admin import METADATA_LOG
from kmirror.effects import Effects, Promise, StateRecord
from kmirror.errors import ApiError
from kmirror.limits import MIRROR_START_ANSWER_MS, MIRROR_STOP_ANSWER_MS
from kmirror.mirror import desired as wishes
from kmirror.mirror import events as ev
from kmirror.mirror.alignment import Plan, Refused, still_holds
from kmirror.mirror.desired import Association
from kmirror.mirror.states import State
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import cluster_metadata as metadata_records

if TYPE_CHECKING:
    from kmirror.broker.mirroring import Mirror, MirroredTopic, Mirrors

T = TypeVar("T")


def gather(promises: Sequence[Promise[T]]) -> Promise[list[T]]:
    """Settled when all are, in order; fails with the first failure."""
    together: Promise[list[T]] = Promise()
    left = len(promises)

    def settled(_done: Promise[T]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            finish()

    def finish() -> None:
        try:
            together.resolve([promise.result() for promise in promises])
        except ApiError as error:
            together.fail(error)

    if not promises:
        together.resolve([])
    for promise in promises:
        promise.then(settled)
    return together


def failed(error: ApiError) -> Promise[Any]:
    promise: Promise[Any] = Promise()
    promise.fail(error)
    return promise


def write_configs(mirrors: Mirrors, changes: Sequence[tuple[str, str, str | None]]) -> Promise[None]:
    """ConfigRecords (mirror, name, value) of mirrors, one batch; settled when they are on disk. ApiError 56."""
    promise: Promise[None] = Promise()
    made = [
        StateRecord(
            METADATA_LOG,
            None,
            metadata_records.ConfigRecord(resource_type=MIRROR_RESOURCE, resource_name=mirror, name=name, value=value),
        )
        for mirror, name, value in changes
    ]
    mirrors.world.commit(Effects(records=made, durable=[METADATA_LOG], replies=[(promise, None)]))
    return promise


class Pending:
    """A request that waits; `expire` is called when its time is over."""

    deadline_ms: int

    def expire(self) -> None:
        raise NotImplementedError


class StartOperation(Pending):
    """The start of one topic: decide for every partition, then all or nothing."""

    def __init__(
        self,
        mirrors: Mirrors,
        mirror: Mirror,
        association: Association,
        partitions: list[MirroredPartition],
    ) -> None:
        self.promise: Promise[seam.TopicResult] = Promise()
        self.deadline_ms = mirrors.now_ms() + MIRROR_START_ANSWER_MS
        self._mirrors = mirrors
        self._mirror = mirror
        self._association = association
        self._partitions = partitions
        self._plans: dict[int, Plan] = {}
        self.writing = False
        """The wish is on its way to the disk: too late to abandon."""

    @property
    def topic(self) -> str:
        return self._association.topic

    @property
    def force(self) -> bool:
        return self._association.force

    @property
    def mirror(self) -> Mirror:
        return self._mirror

    def begin(self) -> Promise[seam.TopicResult]:
        self._mirrors.operations.append(self)
        self._mirror.starting.add(self.topic)
        self._mirror.metadata_wanted = True
        self._mirror.candidates[self.topic] = [p for p in self._partitions if not p.attached]
        for partition in self._partitions:
            partition.on_decided = self._decided
        association = self._association
        for partition in self._partitions:
            if self.promise.done:
                break
            partition.step(ev.Decide(start_from=association.start_from, force=association.force))
        self._mirrors.wake(self._mirror.name)
        return self.promise

    def _decided(self, partition: MirroredPartition, outcome: Plan | Refused) -> None:
        if self.promise.done:
            return
        if isinstance(outcome, Refused):
            self._refuse(partition, outcome)
            return
        self._plans[partition.index] = outcome
        if len(self._plans) == len(self._partitions):
            self._prepare()

    def _refuse(self, partition: MirroredPartition, refused: Refused) -> None:
        text = f"partition {partition.index}: {refused.message}"
        self.abandon(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, text)

    def abandon(self, code: ErrorCode, message: str) -> None:
        """The topic is as it was."""
        if self.promise.done or self.writing:
            return
        for partition in self._partitions:
            partition.on_decided = None
            partition.step(ev.Abandon())
            partition.sync_mode()
        self._answer(code, message)

    def _prepare(self) -> None:
        for partition in self._partitions:
            partition.step(ev.Prepare())
        self._mirrors.end_transactions(self.topic, self._partitions).then(self._count_again)

    def _count_again(self, ended: Promise[Any]) -> None:
        if self.promise.done:
            return
        try:
            ended.result()
        except ApiError as error:
            text = f"its open transactions could not be ended: {error.message}"
            self.abandon(ErrorCode(error.code), text)
            return
        for partition in self._partitions:
            refused = still_holds(partition.facts, self._plans[partition.index])
            if refused is not None:
                self._refuse(partition, refused)
                return
        name = wishes.config_name(self._association.topic_id)
        changes: list[tuple[str, str, str | None]] = []
        before = self._mirrors.topics.get(self.topic)
        if before is not None and before[0] is not self._mirror:
            changes.append((before[0].name, name, None))
            synced = wishes.synced_name(self._association.topic_id)
            if synced in self._mirrors.world.image.mirror_configs.get(before[0].name, {}):
                changes.append((before[0].name, synced, None))
        changes.append((self._mirror.name, name, wishes.encode(self._association)))
        self.writing = True
        write_configs(self._mirrors, changes).then(self._wished)

    def _wished(self, written: Promise[None]) -> None:
        self.writing = False
        try:
            written.result()
        except ApiError as error:
            self.abandon(ErrorCode(error.code), error.message or "the wish could not be recorded")
            return
        _associate(self._mirrors, self._mirror, self._association, self._partitions)
        self._mirror.candidates.pop(self.topic, None)
        for partition in self._partitions:
            plan = self._plans[partition.index]
            partition.step(ev.Begin(plan=plan, start_from=self._association.start_from))
        self._mirror.metadata_wanted = True
        self._answer(ErrorCode.NONE, None)

    def expire(self) -> None:
        """The source did not answer in time."""
        if self.writing:
            self.deadline_ms += MIRROR_START_ANSWER_MS
            return
        trouble = next((p.machine.trouble for p in self._partitions if p.machine.trouble), "it did not answer in time")
        text = f"the source has to be asked what may be kept, but: {trouble}; the topic is as it was"
        self.abandon(ErrorCode.REQUEST_TIMED_OUT, text)

    def _answer(self, code: ErrorCode, message: str | None) -> None:
        if self in self._mirrors.operations:
            self._mirrors.operations.remove(self)
        self._mirror.candidates.pop(self.topic, None)
        self._mirror.starting.discard(self.topic)
        self.promise.resolve(seam.TopicResult(name=self.topic, error_code=int(code), error_message=message))
        self._mirrors.wake(self._mirror.name)


def _associate(mirrors: Mirrors, mirror: Mirror, association: Association, partitions: list[MirroredPartition]) -> None:
    from kmirror.broker.mirroring import MirroredTopic

    known = mirror.topics.get(association.topic)
    if known is None:
        mirrors.attach(mirror, MirroredTopic(association, partitions))
    else:
        known.association = association


class StopOperation(Pending):
    """The stop of one topic; settled when every partition is sealed. It goes on when nobody waits any more."""

    def __init__(self, mirrors: Mirrors, topic: MirroredTopic) -> None:
        self.promise: Promise[seam.StopResult] = Promise()
        self.deadline_ms = mirrors.now_ms() + MIRROR_STOP_ANSWER_MS
        self._mirrors = mirrors
        self._topic = topic
        self._left = 0

    def begin(self) -> Promise[seam.StopResult]:
        self._mirrors.operations.append(self)
        waiting = [p for p in self._topic.partitions if p.state is not State.STOPPED or p.machine.busy]
        self._left = len(waiting)
        for partition in waiting:
            partition.when_state.append((State.STOPPED, self._sealed))
        if not waiting:
            self._answer(ErrorCode.NONE, None)
        return self.promise

    def _sealed(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._answer(ErrorCode.NONE, None)

    def expire(self) -> None:
        late = [p for p in self._topic.partitions if p.state is not State.STOPPED]
        errors = [f"{p.partition}: {p.machine.shown_error or p.state.shown}" for p in late[:3]]
        text = f"{len(late)} partitions are not STOPPED yet ({'; '.join(errors)}); the stop goes on"
        self._answer(ErrorCode.REQUEST_TIMED_OUT, text)

    def _answer(self, code: ErrorCode, message: str | None) -> None:
        if self in self._mirrors.operations:
            self._mirrors.operations.remove(self)
        if self.promise.done:
            return
        rows = [stopped_row(partition) for partition in self._topic.partitions if partition.state is State.STOPPED]
        name = self._topic.association.topic
        self.promise.resolve(seam.StopResult(name=name, error_code=int(code), error_message=message, partitions=rows))


def stopped_row(partition: MirroredPartition) -> seam.StoppedPartition:
    """Between the LMO and the reset lie the ABORT markers and nothing else."""
    lineage = partition.machine.lineage
    source_end = partition.machine.source_high_watermark
    if lineage is None:
        return seam.StoppedPartition(partition=partition.index, last_mirrored_offset=-1, source_end_offset=source_end)
    end = lineage.last_mirror_offset
    reset = partition.partition.log.last_pid_reset_offset
    return seam.StoppedPartition(
        partition=partition.index,
        last_mirrored_offset=end - 1,
        source_end_offset=source_end,
        missing_offsets=max(0, source_end - end) if source_end >= 0 else -1,
        aborted_transactions=_aborts_behind(partition, end) if reset >= end else 0,
    )


def _aborts_behind(partition: MirroredPartition, offset: int) -> int:
    """ABORT markers of the stop: the control batches from the LMO up to the first reset."""
    count = 0
    log_ = partition.partition.log
    for header, _data in log_.batches(max(offset, log_.log_start_offset), log_.log_end_offset):
        if not header.is_control or not header.has_producer_id:
            break
        count += 1
    return count
