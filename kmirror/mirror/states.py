"""States of a mirrored partition, what may follow what, and the operator's wishes. Pure tables, no behaviour.

People see eight states; PREPARING has a phase beside it, and the phase is what is stored (bytes: the newest
prototype's, `kmirror.protocol.mirror_numbers`). The transition table is the prototype's with the changes of
docs/MIRRORING.md, "States": STOPPING may be entered from every state but STOPPED, and neither STOPPING nor STOPPED
ever becomes FAILED; PAUSING and PAUSED do not either, since nothing they do needs the source.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Final

from kmirror.protocol import mirror_numbers as numbers
from kmirror.protocol.errors import ErrorCode


class State(IntEnum):
    """What is stored, one byte (`__mirror_state`, ReadMirrorStates, WriteMirrorStates)."""

    UNKNOWN = numbers.STATE_UNKNOWN
    LOG_ALIGNMENT = numbers.STATE_LOG_ALIGNMENT
    EPOCH_FENCING = numbers.STATE_EPOCH_FENCING
    ULE_RECOVERY = numbers.STATE_ULE_RECOVERY
    MIRRORING = numbers.STATE_MIRRORING
    PAUSING = numbers.STATE_PAUSING
    PAUSED = numbers.STATE_PAUSED
    STOPPING = numbers.STATE_STOPPING
    STOPPED = numbers.STATE_STOPPED
    FAILED = numbers.STATE_FAILED

    @property
    def shown(self) -> str:
        """What people see."""
        return "PREPARING" if self in PHASES else self.name

    @property
    def phase(self) -> str | None:
        return self.name if self in PHASES else None


PHASES: Final = frozenset({State.LOG_ALIGNMENT, State.EPOCH_FENCING, State.ULE_RECOVERY})

TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.UNKNOWN: frozenset(),
    State.LOG_ALIGNMENT: frozenset({State.UNKNOWN, State.STOPPED, State.FAILED}),
    State.EPOCH_FENCING: frozenset({State.MIRRORING}),
    State.ULE_RECOVERY: frozenset({State.MIRRORING}),
    State.MIRRORING: frozenset({*PHASES, State.PAUSED, State.FAILED}),
    State.PAUSING: frozenset({State.MIRRORING}),
    State.PAUSED: frozenset({State.PAUSING}),
    State.STOPPING: frozenset(State) - {State.STOPPING, State.STOPPED},
    State.STOPPED: frozenset({State.STOPPING}),
    State.FAILED: frozenset({State.UNKNOWN, *PHASES, State.MIRRORING}),
}
"""Target: the states it may be entered from, itself always included (see `allowed`)."""


def allowed(source: State, target: State) -> bool:
    """Whether `target` may be recorded after `source`. Recording a state again is always allowed, save UNKNOWN."""
    if source == target:
        return target is not State.UNKNOWN
    return source in TRANSITIONS[target]


class Desired(Enum):
    """The operator's wish, per topic."""

    MIRRORING = "MIRRORING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"

    @property
    def state(self) -> State:
        return State[self.value]


class Operation(Enum):
    START = "start"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"


ACCEPTED: Final[dict[Operation, frozenset[State]]] = {
    Operation.START: frozenset({State.STOPPED, State.UNKNOWN, State.FAILED}),
    Operation.STOP: frozenset(State),
    Operation.PAUSE: frozenset({State.MIRRORING}),
    Operation.RESUME: frozenset({State.PAUSED}),
}
"""Actual states that every partition must have; asked only after the desired state has not answered
(docs/MIRRORING.md, "Answers")."""

_DESIRED_ANSWER: Final[dict[tuple[Operation, Desired], ErrorCode]] = {
    (Operation.START, Desired.PAUSED): ErrorCode.MIRROR_TOPIC_NOT_STOPPED,
    (Operation.STOP, Desired.STOPPED): ErrorCode.NONE,
    (Operation.PAUSE, Desired.STOPPED): ErrorCode.MIRROR_TOPIC_BEING_STOPPED,
    (Operation.PAUSE, Desired.PAUSED): ErrorCode.NONE,
    (Operation.RESUME, Desired.STOPPED): ErrorCode.MIRROR_TOPIC_NOT_PAUSED,
    (Operation.RESUME, Desired.MIRRORING): ErrorCode.NONE,
}
"""Where the desired state alone answers (docs/MIRRORING.md, "Answers"). Absent: go on to the actual states."""


class Verdict(Enum):
    ANSWER = "answer"
    """`code` is the answer; nothing changes (a stop that is under way is joined by the caller)."""
    CHANGE = "change"
    """Record the new desired state."""
    RESTART_IDLE = "restart idle"
    """Start of a topic desired MIRRORING: its partitions that have failed, or never begun, and only those, begin."""


def decide(
    operation: Operation, desired: Desired | None, actual: Iterable[tuple[int, State]]
) -> tuple[Verdict, ErrorCode, str | None]:
    """What an operation on one topic *of this mirror* answers: `(verdict, code, message)`.

    `desired` is None for a topic that has no association yet; `actual` are (partition, state) of its partitions.
    """
    states = list(actual)
    if operation is Operation.START and desired is Desired.MIRRORING:
        if any(state in ACCEPTED[operation] for _, state in states):
            return Verdict.RESTART_IDLE, ErrorCode.NONE, None
        return Verdict.ANSWER, ErrorCode.NONE, None
    if desired is not None:
        code = _DESIRED_ANSWER.get((operation, desired))
        if code is not None:
            return Verdict.ANSWER, code, _MESSAGES.get(code)
    for partition, state in states:
        if state not in ACCEPTED[operation]:
            wanted = " or ".join(sorted(s.name for s in ACCEPTED[operation]))
            message = f"partition {partition} is {_described(state)}; {operation.value} needs {wanted}"
            return Verdict.ANSWER, ErrorCode.INVALID_CLUSTER_MIRROR_STATE, message
    return Verdict.CHANGE, ErrorCode.NONE, None


def _described(state: State) -> str:
    return f"PREPARING ({state.name})" if state in PHASES else state.name


_MESSAGES: Final[dict[ErrorCode, str]] = {
    ErrorCode.MIRROR_TOPIC_NOT_STOPPED: "the topic is paused in this mirror: resume it, or stop it first",
    ErrorCode.MIRROR_TOPIC_BEING_STOPPED: "the topic is stopped, or about to be: there is nothing to pause",
    ErrorCode.MIRROR_TOPIC_NOT_PAUSED: "the topic is stopped, not paused: start it instead",
}


class Mode(Enum):
    """Who may append to the partition; the binding maps it to the log's mode."""

    WRITABLE = "writable"
    READ_ONLY = "read only"
    DRAINING = "draining"
    """A start is being prepared: clients are refused, local transactions can still be ended."""
    SEALING = "sealing"


def mode_of(state: State) -> Mode:
    """Only a recorded STOPPED makes a mirrored partition writable; a state that is not known refuses."""
    if state is State.STOPPED:
        return Mode.WRITABLE
    return Mode.SEALING if state is State.STOPPING else Mode.READ_ONLY


def refusal(mirror: str, state: State) -> str:
    """The message of a refused write: which mirror, which state, what to do."""
    todo = {
        State.STOPPING: "the failover is under way; retry when it is STOPPED",
        State.FAILED: "stop it to make it writable, or start it again",
        State.UNKNOWN: "its state is not loaded yet, or nothing is recorded; stop it to make it writable",
    }.get(state, "stop it to make it writable")
    return f"topic is mirrored by {mirror!r} and is {_described(state)}: {todo}"
