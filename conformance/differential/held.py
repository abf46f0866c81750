"""Requests that a broker may keep for a while: JoinGroup until the others have joined, SyncGroup until the leader has.

Each is sent on a connection of its own and looked after until it is answered. What is due is read from the reference:
as long as its group is in the state in which such requests are kept, there need be no answer; afterwards there must be
one, from both. An answer that only one side gives is a difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from conformance.differential.sides import ANSWER_TIMEOUT_S, SILENT, Outcome, Side, client_id
from conformance.differential.story import Step

LOOKS, LOOK_S = 3, 0.002
"""A request is taken to be kept when the group was in the right state that often, and no answer came meanwhile."""
FREED_S = 2.0
AHEAD_S = 1.0
RESTING = ("Empty", "Dead")
Conclude = Callable[[int, Step, tuple[object, object], tuple[Outcome, Outcome]], bool]


@dataclass(slots=True, eq=False)
class Held:
    """One such request. `due`: nothing keeps it, whatever the state of its group."""

    number: int
    step: Step
    messages: tuple[object, object]
    due: bool = False


class HeldRequests:
    """Those that are not answered yet. `conclude` compares the two answers and says whether they are alike."""

    def __init__(self, sides: tuple[Side, Side], conclude: Conclude) -> None:
        self._sides = sides
        self._conclude = conclude
        self._held: list[Held] = []

    def clear(self) -> None:
        self._held.clear()

    def begin(self, number: int, step: Step, messages: tuple[object, object]) -> None:
        """Sends to both, and returns when both have answered or taken it in."""
        assert step.group is not None
        held = Held(number, step, messages, due=self._sides[0].group(step.group).group_state in RESTING)
        self._held.append(held)
        for side, message in zip(self._sides, messages, strict=True):
            side.send(message, step.version, step.lane)
        for side in self._sides:
            self._taken_in(side, held)

    def _taken_in(self, side: Side, held: Held) -> None:
        step, looks, deadline = held.step, 0, time.monotonic() + ANSWER_TIMEOUT_S
        instance = getattr(held.messages[0], "group_instance_id", None)  # a replaced one keeps its old client id
        assert step.group is not None
        while not side.answering(step.lane, LOOK_S):
            if time.monotonic() > deadline:
                return
            if held.due:
                continue
            row = side.group(step.group)
            known = any(
                member.client_id == client_id(step.lane) or (instance and member.group_instance_id == instance)
                for member in row.members
            )
            looks = looks + 1 if row.group_state == step.held_while and known else 0
            if looks == LOOKS:
                return

    def release(self, frees: tuple[str, ...] = ()) -> bool:
        """Reads what has been answered by now. False when something differed."""
        left, right = self._sides
        answered: list[tuple[Held, tuple[Outcome, Outcome]]] = []
        states: dict[str, str] = {}
        for held in list(self._held):
            step = held.step
            assert step.group is not None
            if step.group not in states:
                states[step.group] = left.group(step.group).group_state
            wait_s = FREED_S if step.lane in frees else 0.0
            if held.due or states[step.group] != step.held_while:
                wait_s = ANSWER_TIMEOUT_S
            if not left.answering(step.lane, wait_s):
                ahead = right.answering(step.lane, 0) and not left.answering(step.lane, AHEAD_S)
                if not ahead and wait_s != ANSWER_TIMEOUT_S:
                    continue
            self._held.remove(held)
            answered.append((held, (self._read(left, held), self._read(right, held))))
        # the leader's answer names members whose ids have not met: theirs come first
        answered.sort(key=lambda entry: len(getattr(entry[1][0].message, "members", None) or ()))
        alike = True
        for held, both in answered:
            alike = self._conclude(held.number, held.step, held.messages, both) and alike
        return alike

    @staticmethod
    def _read(side: Side, held: Held) -> Outcome:
        began = time.monotonic()
        if not side.answering(held.step.lane, 5 * AHEAD_S):
            side.close(held.step.lane)
            return Outcome(SILENT, seconds=time.monotonic() - began)
        return side.read(held.messages[side.index], held.step.version, held.step.lane)
