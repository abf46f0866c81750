"""One group on a stage: commands in, what happens out as text. Time, the disk and member ids are the stage's.

Members are called by their client id; ids end in a number that counts up, so that two runs are equal. What is recorded
reaches the disk at once, unless `hold` was said: then at `store`, or never (`refuse`, `crash`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmirror.broker.timers import TimerTable
from kmirror.coordinator.groups.events import CancelTimer
from kmirror.coordinator.groups.machine import GroupLimits, Groups
from kmirror.coordinator.groups.messages import (
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    Leaving,
    MemberProtocol,
    SyncAnswer,
    SyncRequest,
)
from kmirror.effects import Effects, Promise, StateRecord
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_offsets import (
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
    encode_record,
)

START_MS = 1_700_000_000_000
PARTITION_COUNT = 50


class Stage:
    """`lines` collects what happened since it was last taken."""

    def __init__(self, **limits: int) -> None:
        self.limits = GroupLimits(**limits)
        self.now_ms = 0
        self.timers = TimerTable()
        self.lines: list[str] = []
        self.ids: dict[str, str] = {}
        """Client id to the member id it was told last."""
        self.generations: dict[str, int] = {}
        self.instances: dict[str, str] = {}
        self.disk: list[tuple[bytes | None, bytes | None]] = []
        """What a power cut leaves: records, as bytes."""
        self.held: list[Effects] | None = None
        """Effects whose records are not on disk yet; None: the disk is fast."""
        self.waiting: dict[str, list[Promise[Any]]] = {}
        self._id = 0
        self.groups = self._open()

    def _open(self) -> Groups:
        return Groups(self.limits, self._new_id, lambda: PARTITION_COUNT)

    def _new_id(self) -> str:
        self._id += 1
        return str(self._id)

    @property
    def wall_ms(self) -> int:
        return START_MS + self.now_ms

    # -- effects -------------------------------------------------------------------------------------------------

    def run(self, steps: list[Effects]) -> None:
        for effects in steps:
            for record in effects.records:
                self.groups.replay(record)
                self.lines.append("  " + self._recorded(record))
            for timer in effects.timers:
                self.timers.set(timer.key, self.now_ms + timer.delay_ms, timer.event)
            if effects.records and self.held is not None:
                self.held.append(effects)
            else:
                self._release(effects)

    def _release(self, effects: Effects) -> None:
        self.disk += [encode_record(record.key, record.value) for record in effects.records]
        for promise, value in effects.replies:
            if not promise.done:
                promise.resolve(value)
        for action in effects.actions:
            if isinstance(action, CancelTimer):
                self.timers.cancel(action.key)
            else:
                self.run(self.groups.stored(action, self.wall_ms))  # type: ignore[arg-type]

    def _recorded(self, record: StateRecord) -> str:
        value = record.value
        if not isinstance(value, GroupMetadataValue):
            return f"record {record.key.group} tombstone"  # type: ignore[union-attr]
        members = " ".join(f"{one.member_id}={bytes(one.assignment).decode()}" for one in value.members)
        return f"record generation={value.generation} leader={value.leader} protocol={value.protocol} [{members}]"

    def wait(self, duration_ms: int) -> None:
        """Let time pass; what is due happens at its time."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.timers.next_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            event = self.timers.take_due(self.now_ms)
            if event is not None:
                self.lines.append(f"  at {self.now_ms} {type(event).__name__}")
                self.run(self.groups.timed_out(event, self.wall_ms))  # type: ignore[arg-type]
        self.now_ms = end_ms

    def settle(self) -> None:
        """What is due at this moment: the initial delay of 0."""
        self.wait(0)

    # -- the disk ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        self.held = []

    def store(self) -> None:
        held, self.held = self.held or [], None
        for effects in held:
            self._release(effects)

    def refuse(self, code: int) -> None:
        """The log refuses what is held. (A real one does so before it is replayed, which no answer depends on.)"""
        held, self.held = self.held or [], None
        for effects in held:
            for promise, _value in effects.replies:
                if not promise.done:
                    promise.fail(ApiError(code))
            for action in effects.actions:
                if not isinstance(action, CancelTimer):
                    self.run(self.groups.not_stored(action, code, self.wall_ms))  # type: ignore[arg-type]

    def crash(self, **limits: Any) -> None:
        """A power cut. Nobody who waits is ever answered. `limits`: what was configured before the next start."""
        if limits:
            self.limits = GroupLimits(**{key: int(value) for key, value in limits.items()})
        self.held = None
        self.timers = TimerTable()
        self.waiting = {}
        self.groups = self._open()
        for key, value in self.disk:
            typed_key, typed_value = decode_record(key, value)
            log_id = self.groups.log_of(typed_key.group)  # type: ignore[union-attr]
            self.groups.replay(StateRecord(log_id, typed_key, typed_value))
        self.run(self.groups.restore(self.wall_ms))

    # -- what clients ask ----------------------------------------------------------------------------------------

    def join(self, name: str, *, group: str = "g", new: bool = False, version: int = 9, **options: Any) -> Promise[Any]:
        """`options`: instance, session, rebalance, protocols (comma separated), type, id, text (subscription)."""
        instance = options.get("instance", self.instances.get(name))
        if instance is not None:
            self.instances[name] = instance
        protocols = str(options.get("protocols", "range")).split(",")
        text = str(options.get("text", name)).encode()
        answer: Promise[JoinAnswer] = Promise()
        self._expect(name, answer, lambda: self._joined(name, answer.result()))
        self.run(
            self.groups.join(
                JoinRequest(
                    group_id=group,
                    member_id=options.get("id", "" if new else self.ids.get(name, "")),
                    instance_id=instance,
                    client_id=name,
                    client_host="/127.0.0.1",
                    session_timeout_ms=int(options.get("session", 10_000)),
                    rebalance_timeout_ms=int(options.get("rebalance", 30_000)),
                    protocol_type=str(options.get("type", "consumer")),
                    protocols=tuple(MemberProtocol(one, text) for one in protocols if one),
                    needs_member_id=version >= 4,
                    can_skip_assignment=version >= 9,
                ),
                answer,
                self.wall_ms,
            )
        )
        return answer

    def _joined(self, name: str, answer: JoinAnswer) -> str:
        if answer.member_id and answer.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED):
            self.ids[name] = answer.member_id
        if answer.error_code:
            return f"{name} join: {ErrorCode(answer.error_code).name} id={answer.member_id}"
        self.generations[name] = answer.generation_id
        members = ",".join(member.member_id for member in answer.members)
        skip = " skip" if answer.skip_assignment else ""
        return (
            f"{name} join: generation={answer.generation_id} protocol={answer.protocol_name} leader={answer.leader}"
            f" id={answer.member_id} members=[{members}]{skip}"
        )

    def sync(self, name: str, *, group: str = "g", generation: int | None = None, **assignments: Any) -> Promise[Any]:
        """Assignments by client id."""
        answer: Promise[SyncAnswer] = Promise()
        self._expect(name, answer, lambda: self._synced(name, answer.result()))
        self.run(
            self.groups.sync(
                SyncRequest(
                    group_id=group,
                    generation_id=self.generations.get(name, 0) if generation is None else generation,
                    member_id=self.ids.get(name, ""),
                    instance_id=self.instances.get(name),
                    assignments={self.ids.get(key, key): value.encode() for key, value in assignments.items()},
                ),
                answer,
                self.wall_ms,
            )
        )
        return answer

    def _synced(self, name: str, answer: SyncAnswer) -> str:
        if answer.error_code:
            return f"{name} sync: {ErrorCode(answer.error_code).name}"
        return f"{name} sync: {answer.assignment.decode() or 'nothing'}"

    def beat(self, name: str, *, group: str = "g", generation: int | None = None) -> int:
        code, steps = self.groups.heartbeat(
            group,
            self.ids.get(name, ""),
            self.generations.get(name, 0) if generation is None else generation,
            self.instances.get(name),
        )
        self.lines.append(f"{name} beat: {ErrorCode(code).name}")
        self.run(steps)
        return code

    def leave(self, *names: str, group: str = "g", instance: str | None = None) -> Promise[Any]:
        leaving = [Leaving(self.ids.get(name, name), self.instances.get(name)) for name in names]
        if instance is not None:
            leaving.append(Leaving("", instance))
        answer: Promise[LeaveAnswer] = Promise()
        who = " ".join(names) or instance or ""
        self._expect(who, answer, lambda: f"{who} leave: " + self._left(answer.result()))
        self.run(self.groups.leave(LeaveRequest(group_id=group, members=tuple(leaving)), answer, self.wall_ms))
        return answer

    @staticmethod
    def _left(answer: LeaveAnswer) -> str:
        return " ".join(ErrorCode(left.error_code).name for left in answer.members)

    def delete(self, group: str = "g") -> Promise[int]:
        answer: Promise[int] = Promise()
        self._expect("", answer, lambda: f"delete: {ErrorCode(answer.result()).name}")
        self.run(self.groups.delete(group, [], answer))
        return answer

    def commit(self, name: str, *, group: str = "g", generation: int | None = None, transactional: bool = False) -> int:
        """Whether that member may; "-" is nobody. An error code."""
        is_member = name != "-"
        asked = self.generations.get(name, 0) if is_member else -1
        try:
            self.run(
                self.groups.check_commit(
                    group,
                    self.ids.get(name, name) if is_member else "",
                    asked if generation is None else generation,
                    self.instances.get(name),
                    transactional=transactional,
                )
            )
        except ApiError as error:
            self.lines.append(f"{name} commit: {ErrorCode(error.code).name}")
            return error.code
        self.lines.append(f"{name} commit: NONE")
        return 0

    def offset(self, group: str) -> None:
        """Somebody commits an offset without being a member."""
        key = OffsetCommitKey(group=group, topic="t", partition=0)
        record = StateRecord(self.groups.log_of(group), key, OffsetCommitValue(offset=1))
        self.groups.replay(record)
        self.disk.append(encode_record(record.key, record.value))

    def _expect(self, name: str, promise: Promise[Any], text: Callable[[], str]) -> None:
        self.waiting.setdefault(name, []).append(promise)

        def answered(settled: Promise[Any]) -> None:
            if promise not in self.waiting.get(name, ()):
                return  # the process that asked is gone
            self.waiting[name].remove(promise)
            try:
                self.lines.append(text())
            except ApiError as error:
                self.lines.append(f"{name}: {ErrorCode(error.code).name}")

        promise.then(answered)

    # -- looking -------------------------------------------------------------------------------------------------

    def show(self, group: str = "g") -> None:
        live = self.groups.table.get(group)
        if live is None:
            self.lines.append("no such group")
            return
        members = " ".join(
            f"{member.member_id}{'*' if member.member_id == live.leader else ''}={member.assignment.decode()}"
            for member in live.members.values()
        )
        pending = f" pending={','.join(sorted(live.pending))}" if live.pending else ""
        self.lines.append(f"{live.state} generation={live.generation_id} [{members}]{pending}")

    def outstanding(self) -> list[str]:
        return sorted(name for name, promises in self.waiting.items() for _promise in promises)

    def taken(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    # -- transcripts ---------------------------------------------------------------------------------------------

    def play(self, command: str) -> list[str]:
        """`verb words... key=value...`; see the transcripts."""
        verb, *words = command.split()
        names = [word for word in words if "=" not in word and not word.startswith("--")]
        options: dict[str, Any] = dict(word.split("=", 1) for word in words if "=" in word)
        options |= {word.removeprefix("--"): True for word in words if word.startswith("--")}
        for key in ("generation", "version"):
            if key in options:
                options[key] = int(options[key])
        if verb == "limits":
            self.__init__(**{key: int(value) for key, value in options.items()})  # type: ignore[misc]
        elif verb == "wait":
            self.wait(int(names[0]))
        elif verb == "refuse":
            self.refuse(ErrorCode[names[0]])
        elif verb == "waiting":
            self.lines.append(", ".join(self.outstanding()) or "nobody")
        else:
            getattr(self, verb)(*names, **options)
        if verb not in ("wait", "hold"):
            self.settle()
        return self.taken()
