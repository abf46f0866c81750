"""Random lives of a group, with power cuts and a disk that is slow or full: what must hold after every step.

One generation has one assignment. Nobody waits whom no timer or no disk will answer. A stable group is what is recorded
of it. A member is told of its assignment only when a power cut could not take it back.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kmirror.coordinator.groups.classic import ClassicGroup, State
from kmirror.coordinator.groups.events import join_key, session_key, sync_key
from kmirror.coordinator.groups.machine import Groups
from kmirror.effects import Promise
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_offsets import GroupMetadataKey, GroupMetadataValue, decode_record
from tests.coordinator.group_stage import Stage

GROUPS = ("g", "h")
NAMES = ("a", "b", "c", "d", "e")
INSTANCES = {"d": "i1", "e": "i2"}
LONG_ENOUGH_MS = 3_600_000


class Life:
    """A stage, random clients, and what each of them was told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.boot = 0
        self.stage = Stage(
            initial_rebalance_delay_ms=rng.choice((0, 0, 500)), max_size=rng.choice((2**31 - 1, 2**31 - 1, 3))
        )
        self.told: dict[tuple[int, str, int, str], bytes] = {}
        """(boot, group, generation, member id): its assignment."""
        self.handed_in: dict[tuple[int, str, int], str] = {}
        """The assignments carry a serial number: whose they are."""
        self.serial = 0
        self.promises: list[Promise[Any]] = []

    def step(self) -> None:
        rng, stage = self.rng, self.stage
        name, group = rng.choice(NAMES), rng.choice(GROUPS)
        verb = rng.choices(
            ("join", "sync", "beat", "leave", "wait", "hold", "store", "refuse", "crash", "delete", "commit"),
            (30, 25, 10, 6, 14, 3, 6, 1, 1, 1, 3),
        )[0]
        if verb == "join":
            self._join(name, group)
        elif verb == "sync":
            self._sync(name, group)
        elif verb == "beat":
            stage.beat(f"{name}{group}", group=group)
        elif verb == "leave":
            self.promises.append(stage.leave(f"{name}{group}", group=group))
        elif verb == "wait":
            stage.wait(rng.choice((1, 100, 1000, 5000, 12_000)))
        elif verb == "hold" and stage.held is None:
            stage.hold()
        elif verb == "store":
            stage.store()
        elif verb == "refuse":
            self._refuse()
        elif verb == "crash":
            self.boot += 1
            self.promises = []
            stage.crash()
        elif verb == "delete":
            self.promises.append(stage.delete(group))
        elif verb == "commit":
            stage.commit(f"{name}{group}", group=group, transactional=rng.random() < 0.3)
        if rng.random() < 0.7:
            stage.settle()

    def _join(self, name: str, group: str) -> None:
        rng = self.rng
        protocols = rng.choice(("range", "range", "range,sticky", "sticky,range"))
        options: dict[str, Any] = {"protocols": protocols, "text": rng.choice("xxxy"), "rebalance": 4000}
        if name in INSTANCES:
            options["instance"] = INSTANCES[name]
        self.promises.append(
            self.stage.join(
                f"{name}{group}",
                group=group,
                new=rng.random() < 0.15,
                version=rng.choice((3, 8, 9)),
                session=6000,
                **options,
            )
        )

    def _sync(self, name: str, group: str) -> None:
        """Every member hands in assignments, only the leader's may count."""
        stage, client = self.stage, f"{name}{group}"
        generation, member_id = stage.generations.get(client, 0), stage.ids.get(client, "")
        boot = self.boot
        self.serial += 1
        live = stage.groups.table.get(group)
        members = list(live.members) if live is not None else []
        mark = f"{self.serial}"
        assignments: dict[str, Any] = {one: f"{mark}:{one}" for one in members}
        answer = stage.sync(client, group=group, **assignments)
        self.promises.append(answer)

        def told(settled: Promise[Any]) -> None:
            result = settled.result()
            if result.error_code or self.boot != boot:
                return
            self._check_assignment(group, generation, member_id, result.assignment)

        answer.then(told)

    def _check_assignment(self, group: str, generation: int, member_id: str, assignment: bytes) -> None:
        key = (self.boot, group, generation, member_id)
        assert self.told.setdefault(key, assignment) == assignment
        if assignment:
            mark = assignment.split(b":")[0].decode()
            assert self.handed_in.setdefault((self.boot, group, generation), mark) == mark
        recorded = on_disk(self.stage, group)
        assert recorded is not None and recorded.generation == generation
        assert {one.member_id: one.assignment for one in recorded.members}[member_id] == assignment

    def _refuse(self) -> None:
        """A log that is full refuses before anything is replayed."""
        stage = self.stage
        if stage.held is None:
            return
        for effects in stage.held:
            for record in effects.records:
                group = record.key.group  # type: ignore[union-attr]
                before = on_disk(stage, group)
                if record.value is None:
                    return  # a deletion has been seen by all: here the disk is not refused
                if before is None:
                    stage.groups.recorded.pop(group, None)
                else:
                    stage.groups.recorded[group] = before
        stage.refuse(ErrorCode.NOT_COORDINATOR)

    # -- what must hold ------------------------------------------------------------------------------------------

    def check(self) -> None:
        for group in self.stage.groups.table.values():
            check_group(group)
            self._check_timers(group)
            if group.state is State.STABLE and self.stage.held is None:
                self._check_recorded(group)
        self._check_waiting()

    def _check_timers(self, group: ClassicGroup) -> None:
        timers = self.stage.timers._current
        if group.state is State.PREPARING:
            assert join_key(group.group_id) in timers
        if group.pending_syncs and group.state in (State.COMPLETING, State.STABLE):
            assert sync_key(group.group_id) in timers
        for member_id in group.pending:
            assert session_key(group.group_id, member_id) in timers
        for member in group.members.values():
            if not member.is_alive_without_heartbeats:
                assert session_key(group.group_id, member.member_id) in timers or member.is_static

    def _check_recorded(self, group: ClassicGroup) -> None:
        recorded = on_disk(self.stage, group.group_id)
        assert recorded is not None
        again = ClassicGroup.restored(group.group_id, recorded)
        assert again.generation_id == group.generation_id
        assert again.protocol_name == group.protocol_name
        assert again.protocol_type == group.protocol_type
        assert {key: one.assignment for key, one in group.members.items()}.items() <= {
            key: one.assignment for key, one in again.members.items()
        }.items()

    def _check_waiting(self) -> None:
        """Whoever waits is known to a member that will be answered, or waits for the disk."""
        known: set[int] = set()
        for group in self.stage.groups.table.values():
            for member in group.members.values():
                known.update(id(promise) for promise in (*member.joins, *member.syncs))
                if member.joins:
                    held = self.stage.held is not None
                    assert group.state is State.PREPARING or (group.state is State.STABLE and held)
                if member.syncs:
                    assert group.state is State.COMPLETING
        for effects in self.stage.held or ():
            known.update(id(promise) for promise, _value in effects.replies)
        self.promises = [promise for promise in self.promises if not promise.done]
        assert {id(promise) for promise in self.promises} <= known


def check_group(group: ClassicGroup) -> None:
    members = group.members
    supporters: dict[str, int] = {}
    for member in members.values():
        for name in member.protocol_names:
            supporters[name] = supporters.get(name, 0) + 1
    assert group._supporters == supporters
    assert (group.leader in members) if members else group.leader is None
    assert group.instances == {m.instance_id: m.member_id for m in members.values() if m.instance_id is not None}
    assert not group.pending & set(members)
    assert group._awaiting_join == {member.member_id for member in members.values() if member.joins}
    assert group.state is not State.EMPTY or not members
    assert group.state not in (State.COMPLETING, State.STABLE) or members or group.pending_syncs
    if members:
        assert len(members) in supporters.values(), "no protocol is known to all"


def on_disk(stage: Stage, group: str) -> GroupMetadataValue | None:
    found: GroupMetadataValue | None = None
    for key, value in stage.disk:
        typed, typed_value = decode_record(key, value)
        if isinstance(typed, GroupMetadataKey) and typed.group == group:
            found = typed_value if isinstance(typed_value, GroupMetadataValue) else None
    return found


@pytest.mark.parametrize("number", range(150))
def test_random_life(rng: random.Random, number: int) -> None:
    life = Life(rng)
    for _ in range(rng.choice((40, 120, 250))):
        life.step()
        life.check()
    life.stage.store()
    life.stage.wait(LONG_ENOUGH_MS)
    life.check()
    assert life.promises == []
    assert all(group.state is State.EMPTY for group in life.stage.groups.table.values())
    assert not any(group.pending for group in life.stage.groups.table.values())


def test_replaying_the_records_is_what_was_recorded(rng: random.Random) -> None:
    for _ in range(20):
        life = Life(rng)
        for _ in range(100):
            life.step()
        life.stage.store()
        before: Groups = life.stage.groups
        life.stage.crash()
        assert life.stage.groups.recorded == before.recorded
