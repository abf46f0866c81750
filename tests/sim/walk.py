"""A random walk over one partition of three clusters, A mirrored by B mirrored by C, and the laws it must keep.

Everything is real but the sockets: worlds, logs, file systems that lose what was not synced. One seed gives one walk.
The laws (checked after every step):

1. A partition of a mirrored topic is writable only while STOPPED is recorded.
2. What a reader could see stays, byte for byte, unless the mirror reported a cut (or retention moved the log start).
   Acknowledged writes are among what a reader could see.
3. While a mirror believes to agree with its source (under the source's present leader epoch), the bytes are the same.
4. The lineage of a stop never changes, and behind its LMO lie one ABORT per open transaction, ascending, and one reset.
5. Leader epochs never go back, and while mirroring are not below an epoch in the log.
6. From every state, a stop ends in STOPPED, and a start with --replace in MIRRORING.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kmirror.broker.mirror_partition import MirroredPartition
from kmirror.errors import ApiError
from kmirror.mirror import events as ev
from kmirror.mirror.machine import Outcome
from kmirror.mirror.states import PHASES, State
from kmirror.protocol.records import Record, build_batch, control_type, header_with_offset_and_epoch, parse_header
from kmirror.storage.log import LogMode
from tests.power_cut import powered_until
from tests.sim.clusters import TOPIC, Cluster, Pump

MIRROR = "m"


class LawBroken(AssertionError):
    pass


@dataclass
class Seen:
    """What readers of one cluster's partition could see: offset to bytes of the batch."""

    topic_id: bytes = b""
    batches: dict[int, bytes] = field(default_factory=dict)
    epochs: dict[bytes, int] = field(default_factory=dict)
    """The highest leader epoch told, by topic id."""
    lineage: tuple[int, int] | None = None
    stop_checked: tuple[int, int] | None = None


@dataclass(frozen=True)
class Direction:
    """One cluster mirrors another."""

    pump: Pump
    mirror: str

    @property
    def cluster(self) -> Cluster:
        return self.pump.destination

    @property
    def source(self) -> Cluster:
        return self.pump.source


class Walk:
    power_cuts = 0.06
    """How many of the steps are interrupted by one."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.a = Cluster("a", seed=seed * 3 + 1, at_once=False)
        self.b = Cluster("b", seed=seed * 3 + 2, clock=self.a.clock, at_once=False)
        self.c = Cluster("c", seed=seed * 3 + 3, clock=self.a.clock, at_once=False)
        self.clusters = [self.a, self.b, self.c]
        self.seen = {cluster.name: Seen() for cluster in self.clusters}
        self.trace: list[str] = []
        self.visited: Counter[str] = Counter()
        """States recorded and cuts reported: what the walk has been through."""
        self.counter = 0
        self.open: dict[str, set[int]] = {c.name: set() for c in self.clusters}
        self.sequences: dict[tuple[str, int], int] = {}
        self.a.create_topic()
        self.b.create_mirror(self.a, MIRROR, gap__action=self.random.choice(["continue", "halt"]))
        self.c.create_mirror(self.b, MIRROR)
        if self.random.random() < 0.3:
            configs = {"open.transactions.on.stop": "truncate"}
            self.b.settle(self.b.world.configs.write(64, MIRROR, dict(configs)))
        self.ab = Pump(self.b, self.a, MIRROR, broker_id=1)
        self.bc = Pump(self.c, self.b, MIRROR, broker_id=2)
        self.links = [Direction(self.ab, MIRROR), Direction(self.bc, MIRROR)]
        for cluster in (self.b, self.c):
            self._watch(cluster)

    # -- reports ------------------------------------------------------------------------------------------------------

    def _watch(self, cluster: Cluster) -> None:
        """Learn of reported cuts: what they name may go."""

        def report(partition: MirroredPartition, action: ev.Report) -> None:
            seen = self.seen[cluster.name]
            self.visited[action.kind] += 1
            if action.kind == "restart":
                seen.batches.clear()
            elif action.kind == "cut":
                to = partition.partition.log.log_end_offset - action.offsets
                seen.batches = {o: b for o, b in seen.batches.items() if parse_header(b).last_offset < to}

        def told(out: Outcome) -> None:
            if out.write is not None and out.write.state is not None:
                self.visited[out.write.state.state.name] += 1

        def state(partition: MirroredPartition) -> None:
            if partition.state not in (State.STOPPING, State.STOPPED):
                self.seen[cluster.name].lineage = None

        cluster.on_report = report
        cluster.on_outcome = told
        cluster.on_state = state

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        actions = self.actions()
        weights = [weight for weight, _ in actions]
        action = self.random.choices([action for _, action in actions], weights)[0]
        for lazy in (self.b, self.c):
            lazy.lazy_rounds = self.random.choice([0, 0, 1, 2])
        cluster = self.random.choice(self.clusters)
        cut_at = self.random.randint(1, 12) if self.random.random() < self.power_cuts else 0
        with powered_until(cluster.fs, cut_at) as power:
            action()
        if not power.lasted:
            self._note(f"power cut in {cluster.name}")
            self._after_crash(cluster)
        self.check()

    def actions(self) -> list[tuple[int, Callable[[], None]]]:
        """(weight, what may happen)."""
        return [
            (30, lambda: self._pump(self.ab)),
            (20, lambda: self._pump(self.bc)),
            (14, lambda: self._produce(self.a)),
            (6, lambda: self._produce(self.b)),
            (3, lambda: self._produce(self.c)),
            (8, self._transaction),
            (4, lambda: self._bump(self.a)),
            (3, self._unclean),
            (2, self._retention),
            (3, self._gap),
            (1, self._recreate),
            (3, self._forget),
            (2, self._reachable),
            (6, lambda: self._operate(self.b, self.a)),
            (5, lambda: self._operate(self.c, self.b)),
            (4, self._opt_in),
            (6, self._tick),
            (3, self._restart),
            (5, self._crash),
            (4, self._lazy),
        ]

    def _note(self, text: str) -> None:
        self.trace.append(text)

    def _after_crash(self, cluster: Cluster) -> None:
        cluster.fs.observer = None
        cluster.lazy = False
        cluster.crash(keep_nothing=self.random.random() < 0.3)
        self.open[cluster.name].clear()

    def _pump(self, pump: Pump) -> None:
        pump.max_bytes = self.random.choice([None, 1, 200])
        pump.hold = self.random.random() < 0.3
        count = 0
        if self.random.random() < 0.3:
            pump.refresh()
        for _ in range(self.random.randint(1, 4)):
            count += pump.round()
        self._note(f"pump {pump.source.name}->{pump.destination.name} {count}")

    def _value(self, cluster: Cluster) -> bytes:
        self.counter += 1
        return f"{cluster.name}{self.counter}".encode()

    def _exists(self, cluster: Cluster) -> bool:
        return TOPIC in cluster.world.image.topics_by_name

    def _produce(self, cluster: Cluster) -> None:
        if not self._exists(cluster):
            return
        values = [self._value(cluster) for _ in range(self.random.randint(1, 3))]
        try:
            offset = cluster.produce(*values)
        except ApiError as error:
            self._note(f"produce at {cluster.name} refused {error.code}")
        else:
            self._note(f"produce at {cluster.name} {offset}+{len(values)}")

    def _transaction(self) -> None:
        cluster = self.random.choice([self.a, self.a, self.b])
        if not self._exists(cluster):
            return
        producer_id = self.random.choice([11, 12, 13])
        opened = self.open[cluster.name]
        try:
            if producer_id in opened and self.random.random() < 0.5:
                cluster.end_transaction(producer_id, commit=self.random.random() < 0.5)
                opened.discard(producer_id)
                self._note(f"transaction {producer_id} ends at {cluster.name}")
            else:
                entry = cluster.partition().log.producers.entries.get(producer_id)
                sequence = 0 if entry is None or entry.last_sequence < 0 else entry.last_sequence + 1
                cluster.produce(
                    self._value(cluster),
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequence,
                    transactional=True,
                )
                opened.add(producer_id)
                self._note(f"transaction {producer_id} writes at {cluster.name}")
        except ApiError as error:
            opened.discard(producer_id)
            self._note(f"transaction at {cluster.name} refused {error.code}")

    def _bump(self, cluster: Cluster) -> None:
        if self._exists(cluster):
            for _ in range(self.random.choice([1, 1, 2, 15])):
                epoch = cluster.bump()
            self._note(f"bump {cluster.name} to {epoch}")

    def _unclean(self) -> None:
        """A replica that lacks the tail becomes leader at A."""
        if not self._exists(self.a):
            return
        partition = self.a.partition()
        log = partition.log
        if log.log_end_offset == log.log_start_offset or partition.mode is not LogMode.WRITABLE:
            return
        low = max(log.log_start_offset, log.log_end_offset - 6, min(self._failed_over_at(self.a), log.log_end_offset))
        to = self.random.randint(low, log.log_end_offset)
        seen = self.seen["a"]
        seen.batches = {o: b for o, b in seen.batches.items() if parse_header(b).last_offset < to}
        partition.truncate_to(to)
        end = log.log_end_offset
        self.a.bump()
        self._note(f"unclean election at a, cut to {end}")

    def _failed_over_at(self, cluster: Cluster) -> int:
        """LMO of its last failover; law 4 speaks of what lies behind it."""
        found = cluster.mirrors.topics.get(TOPIC)
        lineage = None if found is None else found[1].partitions[0].machine.lineage
        return 0 if lineage is None else lineage.last_mirror_offset

    def _retention(self) -> None:
        cluster = self.random.choice([self.a, self.a, self.b])
        if not self._exists(cluster):
            return
        partition = cluster.partition()
        reach = partition.high_watermark
        if partition.mode is not LogMode.WRITABLE:
            return
        to = self.random.randint(partition.log_start_offset, reach)
        partition.advance_log_start(to)
        cluster.world.write_log_starts()
        self._note(f"log start of {cluster.name} to {to}")

    def _gap(self) -> None:
        """A batch behind a hole, as compaction leaves it."""
        if not self._exists(self.a) or self.a.partition().mode is not LogMode.WRITABLE:
            return
        partition = self.a.partition()
        batch = build_batch([Record(value=self._value(self.a))], timestamp_ms=0)
        base = partition.log_end_offset + self.random.randint(1, 4)
        head = header_with_offset_and_epoch(parse_header(batch), base_offset=base, leader_epoch=partition.leader_epoch)
        mode = partition.mode
        partition.set_mode(LogMode.READ_ONLY)
        try:
            partition.append_replicated(head + batch[len(head) :])
        finally:
            partition.set_mode(mode)
        self.a.flush.run()
        self._note(f"hole at a, batch at {base}")

    def _recreate(self) -> None:
        if self._exists(self.a):
            self.a.settle(self.a.world.delete_topic(TOPIC))
            self._note("topic deleted at a")
        self.open["a"].clear()
        self.seen["a"] = Seen()
        if self.random.random() < 0.7:
            self.a.create_topic()
            self._note("topic created at a")

    def _forget(self) -> None:
        """Delete the topic at a mirror, if it may be; the next start makes it anew."""
        cluster = self.random.choice([self.b, self.c])
        source = self.a if cluster is self.b else self.b
        if not self._exists(cluster) or not self._exists(source):
            return
        if cluster.partition().topic_id == source.partition().topic_id and self.random.random() < 0.7:
            return
        cluster.lazy = False
        promise = cluster.world.delete_topic(TOPIC)
        cluster.flush.run()
        try:
            promise.result()
        except ApiError as error:
            self._note(f"delete at {cluster.name} refused {error.code}")
        else:
            self.open[cluster.name].clear()
            self._note(f"topic deleted at {cluster.name}")

    def _reachable(self) -> None:
        cluster = self.random.choice([self.a, self.b])
        cluster.reachable = not cluster.reachable
        self._note(f"{cluster.name} reachable {cluster.reachable}")

    def _opt_in(self) -> None:
        cluster = self.random.choice([self.b, self.c])
        if self._exists(cluster):
            value = self.random.choice(["true", "true", "false"])
            name = "mirror.unclean.leader.election.enable"
            cluster.settle(cluster.world.configs.write(2, TOPIC, {name: value}))
            self._note(f"{cluster.name} unclean {value}")

    def _operate(self, cluster: Cluster, source: Cluster) -> None:
        what = self.random.choice(["start", "start", "replace", "stop", "pause", "resume"])
        if what in ("start", "replace"):
            if not self._exists(source):
                return
            promise = cluster.start(source, mirror=MIRROR, replace=what == "replace")
            pump = self.ab if cluster is self.b else self.bc
            for _ in range(self.random.randint(0, 3)):
                pump.round()
        elif what == "stop":
            promise = cluster.stop(mirror=MIRROR)
        elif what == "pause":
            promise = cluster.mirrors.pause(MIRROR, [TOPIC])
            cluster.calm()
        else:
            promise = cluster.mirrors.resume(MIRROR, [TOPIC])
            cluster.calm()
        answer = promise.result()[0].error_code if promise.done else "waits"
        self._note(f"{what} at {cluster.name}: {answer}")

    def _tick(self) -> None:
        duration = self.random.choice([10, 500, 3_000, 30_000])
        self.a.clock.advance(duration)
        for cluster in (self.b, self.c):
            cluster.tick()
        self._note(f"tick {duration}")

    def _restart(self) -> None:
        cluster = self.random.choice(self.clusters)
        cluster.lazy = False
        cluster.restart()
        self._note(f"restart {cluster.name}")

    def _crash(self) -> None:
        cluster = self.random.choice(self.clusters)
        self._after_crash(cluster)
        self._note(f"crash {cluster.name}")

    def _lazy(self) -> None:
        cluster = self.random.choice([self.b, self.c])
        if cluster.lazy:
            cluster.lazy = False
            cluster.flush.run()
        else:
            cluster.lazy = True
        self._note(f"{cluster.name} lazy {cluster.lazy}")

    # -- laws ---------------------------------------------------------------------------------------------------------

    def fail(self, text: str) -> None:
        tail = "\n  ".join(self.trace[-40:])
        raise LawBroken(f"seed {self.seed}, step {len(self.trace)}: {text}\n  {tail}")

    def check(self) -> None:
        for cluster in self.clusters:
            if self._exists(cluster):
                self._check_bytes(cluster)
            else:
                # a mirror makes the topic anew under the same id: new bytes, but its epochs never go back
                self.seen[cluster.name] = Seen(epochs=self.seen[cluster.name].epochs)
        for link in self.links:
            if self._exists(link.cluster):
                self._check_mirror(link)

    def _check_bytes(self, cluster: Cluster) -> None:
        seen = self.seen[cluster.name]
        topic = cluster.world.image.topics_by_name[TOPIC]
        partition = cluster.partition()
        log = partition.log
        if topic.topic_id != seen.topic_id:
            seen.topic_id, seen.batches = topic.topic_id, {}
        if partition.leader_epoch < seen.epochs.get(topic.topic_id, -1):
            self.fail(f"{cluster.name}: leader epoch {partition.leader_epoch} after {seen.epochs[topic.topic_id]}")
        seen.epochs[topic.topic_id] = partition.leader_epoch
        if partition.high_watermark > log.flushed_offset:
            self.fail(f"{cluster.name}: high watermark {partition.high_watermark} above {log.flushed_offset}")
        now: dict[int, bytes] = {}
        for header, data in log.batches(log.log_start_offset, log.log_end_offset):
            now[header.base_offset] = bytes(data)
        for offset, data in seen.batches.items():
            if parse_header(data).last_offset >= log.log_start_offset and now.get(offset) != data:
                self.fail(f"{cluster.name}: the batch at offset {offset} is gone or changed, and no cut was reported")
        seen.batches = {o: b for o, b in now.items() if parse_header(b).last_offset < partition.high_watermark}

    def _check_mirror(self, link: Direction) -> None:
        cluster, source = link.cluster, link.source
        found = cluster.mirrors.topics.get(TOPIC)
        partition = cluster.partition()
        if found is None or found[0].name != link.mirror:
            return
        mirrored = found[1].partitions[0]
        machine = mirrored.machine
        state = machine.recorded.state
        if partition.mode is LogMode.WRITABLE and state is not State.STOPPED:
            self.fail(f"{cluster.name}: writable in {state.name}")
        if partition.mode is LogMode.WRITABLE and machine.busy:
            self.fail(f"{cluster.name}: writable before STOPPED is on disk")
        log = partition.log
        if state is State.MIRRORING and log.epochs.latest > partition.leader_epoch:
            self.fail(f"{cluster.name}: epoch {log.epochs.latest} in the log, {partition.leader_epoch} outside")
        self._check_lineage(cluster, mirrored, state)
        if self._exists(source) and machine.fetchable(cluster.mirrors.now_ms()):
            self._check_same(cluster, source, machine)

    def _check_same(self, cluster: Cluster, source: Cluster, machine: Any) -> None:
        theirs, ours = source.partition(), cluster.partition()
        if theirs.topic_id != ours.topic_id or theirs.leader_epoch != machine.agreed_epoch:
            return
        mine = self._batches(cluster)
        other = self._batches(source)
        low = max(theirs.log.log_start_offset, ours.log.log_start_offset)
        for offset, data in mine.items():
            # a hole at the source is what compaction leaves: it says nothing about the batch that is there
            header = parse_header(data)
            hole = all(
                parse_header(their).last_offset < offset or start > header.last_offset for start, their in other.items()
            )
            behind = header.last_offset >= theirs.log_end_offset and not self._between_cut_and_bump(source)
            if offset >= low and other.get(offset) != data and (behind or not hole):
                self.fail(f"{cluster.name}: offset {offset} differs from {source.name}, and it believes it agrees")

    def _between_cut_and_bump(self, cluster: Cluster) -> bool:
        """A mirror that has cut its log and not raised its epoch yet. It appends nothing in between, so a reader that
        is ahead of it has not been told anything wrong; it learns of the cut with the new epoch."""
        found = cluster.mirrors.topics.get(TOPIC)
        if found is None:
            return False
        recorded = found[1].partitions[0].machine.recorded
        cutting = recorded.state in (State.STOPPING, *PHASES)
        return cutting and cluster.partition().leader_epoch == recorded.leader_epoch

    def _batches(self, cluster: Cluster) -> dict[int, bytes]:
        log = cluster.partition().log
        return {h.base_offset: bytes(d) for h, d in log.batches(log.log_start_offset, log.log_end_offset)}

    def _check_lineage(self, cluster: Cluster, mirrored: Any, state: State) -> None:
        seen = self.seen[cluster.name]
        lineage = mirrored.machine.lineage
        if lineage is not None and state in (State.STOPPING, State.STOPPED) and not self._cut_pending(mirrored):
            end = cluster.partition().log.log_end_offset
            if end < lineage.last_mirror_offset:
                self.fail(f"{cluster.name}: the log ends at {end}, below the LMO {lineage.last_mirror_offset}")
        now = None if lineage is None else (lineage.last_mirror_epoch, lineage.last_mirror_offset)
        if state in (State.STOPPING, State.STOPPED):
            if seen.lineage is not None and now is not None and now != seen.lineage and not mirrored.machine.busy:
                self.fail(f"{cluster.name}: lineage {seen.lineage} became {now} in {state.name}")
            seen.lineage = now if state is State.STOPPED or not self._cut_pending(mirrored) else None
        else:
            seen.lineage = None
        if state is State.STOPPED and now is not None and seen.stop_checked != now:
            seen.stop_checked = now
            self._check_tail(cluster, now[1])
        elif state is not State.STOPPED:
            seen.stop_checked = None

    def _cut_pending(self, mirrored: Any) -> bool:
        return bool(mirrored.machine.recorded.cut_pending)

    def _check_tail(self, cluster: Cluster, lmo: int) -> None:
        """Behind the LMO: ABORTs of exactly the open transactions, ascending, and one reset."""
        log = cluster.partition().log
        still: dict[int, bool] = {}
        aborts: list[int] = []
        resets = 0
        for header, data in log.batches(log.log_start_offset, log.log_end_offset):
            kind = control_type(data) if header.is_control else None
            if header.base_offset < lmo:
                if kind in (0, 1):
                    still.pop(header.producer_id, None)
                elif header.is_transactional:
                    still[header.producer_id] = True
            elif kind == 0 and resets == 0:
                aborts.append(header.producer_id)
            elif kind == 7:
                resets += 1
            else:
                break
        hidden = log.log_start_offset > 0
        if lmo >= log.log_start_offset and (resets != 1 or aborts != sorted(set(aborts))):
            self.fail(f"{cluster.name}: behind the LMO {lmo} lie aborts of {aborts} and {resets} resets")
        if lmo >= log.log_start_offset and not hidden and aborts != sorted(still):
            self.fail(f"{cluster.name}: open were {sorted(still)}, aborted {aborts}")

    # -- the way out --------------------------------------------------------------------------------------------------

    def way_out(self) -> None:
        """Law 6, in a world that is well again."""
        for cluster in self.clusters:
            cluster.reachable, cluster.lazy = True, False
            cluster.flush.run()
        if not self._exists(self.a):
            self.a.create_topic()
        for link in self.links:
            cluster, source, pump = link.cluster, link.source, link.pump
            pump.max_bytes, pump.hold = None, False
            if not self._exists(cluster) or TOPIC not in cluster.mirrors.topics or not self._exists(source):
                continue
            promise = cluster.stop(mirror=MIRROR)
            for _ in range(10):
                cluster.tick(6_000)
            if not promise.done or promise.result()[0].error_code:
                self.fail(f"{cluster.name}: a stop does not end: {cluster.row()}")
            self.check()
            if source.partition().topic_id != cluster.partition().topic_id:
                continue
            promise = cluster.start(source, mirror=MIRROR, replace=True)
            for _ in range(12):
                pump.round()
                cluster.tick(2_000)
                self.check()
            if cluster.row().state != "MIRRORING" or cluster.row().lag != 0:
                self.fail(f"{cluster.name}: a start with --replace does not arrive: {cluster.row()}")


def run(seed: int, steps: int) -> Walk:
    walk = Walk(seed)
    for _ in range(steps):
        walk.step()
    walk.way_out()
    return walk


def visited_by_walks(
    run_one: Callable[[int, int], Walk], seed: int, *, steps: int, steps_per_walk: int
) -> Counter[str]:
    """What walks of `steps` altogether came to, each from the next seed; KMIRROR_SIM_SEED replaces the first."""
    first = int(os.environ.get("KMIRROR_SIM_SEED", str(seed)))
    walks = max(1, steps // steps_per_walk)
    print(f"{walks} walks of {steps_per_walk} steps from seed {first} (KMIRROR_SIM_SEED={first})")
    visited: Counter[str] = Counter()
    for number in range(walks):
        visited += run_one(first + number, steps_per_walk).visited
    print(dict(visited))
    return visited
