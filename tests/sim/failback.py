"""A random walk there and back: A mirrored by B, B mirrored by A again, and C behind B all the while.

The laws are those of `tests.sim.walk`, for every direction, and besides:

7. What a cut removes is under `cut/` when it is reported, batch for batch; only what the source had dropped before we
   fetched (a gap) may go without a copy.
8. Where both sides are STOPPED (or never mirrored), three rounds of there and back end in equal logs. A start that is
   refused says how many offsets would go, and --replace ends the argument.
"""

from __future__ import annotations

from collections.abc import Callable

from kmirror.broker.mirror_partition import MirroredPartition
from kmirror.errors import ApiError
from kmirror.mirror import events as ev
from kmirror.mirror.states import State
from kmirror.protocol.errors import ErrorCode
from kmirror.storage.log import LogMode
from tests.sim.clusters import TOPIC, Cluster, Pump
from tests.sim.walk import Direction, Walk

BACK = "back"
ROUNDS = 3


class FailbackWalk(Walk):
    power_cuts = 0.15

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.a.create_mirror(self.b, BACK)
        self.ba = Pump(self.a, self.b, BACK, broker_id=2)
        self.there, self.back = self.links[0], Direction(self.ba, BACK)
        self.links.append(self.back)
        self._watch(self.a)
        for cluster in self.clusters:
            self._watch_copies(cluster)
        self.cut: dict[str, set[bytes]] = {cluster.name: set() for cluster in self.clusters}

    # -- law 7 --------------------------------------------------------------------------------------------------------

    def _watch_copies(self, cluster: Cluster) -> None:
        report = cluster.on_report

        def also(partition: MirroredPartition, action: ev.Report) -> None:
            if action.kind == "alignment":
                self.visited[f"{action.kind} at {cluster.name}"] += 1
                self.visited["failback"] += "the source's record" in action.text
            elif action.kind in ("cut", "restart"):
                self._check_copy(cluster, partition, action)
            report(partition, action)

        cluster.on_report = also

    def _check_copy(self, cluster: Cluster, partition: MirroredPartition, action: ev.Report) -> None:
        log, state = partition.partition.log, partition.machine.recorded
        if action.kind == "restart" and state.state is State.EPOCH_FENCING:
            return
        cut_from = log.log_end_offset - action.offsets if action.kind == "cut" else log.log_start_offset
        copies = self._copies(cluster)
        for header, data in log.batches(cut_from, log.log_end_offset):
            if header.last_offset >= cut_from and bytes(data) not in copies:
                self.fail(f"{cluster.name}: the batch at {header.base_offset} is cut and there is no copy of it")
            if header.last_offset >= cut_from:
                self.cut[cluster.name].add(bytes(data))

    def _copies(self, cluster: Cluster) -> bytes:
        fs, found = cluster.fs, b""
        place = f"/data/cut/{TOPIC}-0"
        if not fs.exists(place):
            return b""
        for directory in fs.list_dir(place):
            for name in fs.list_dir(f"{place}/{directory}"):
                found += fs.read_file(f"{place}/{directory}/{name}")
        return found

    # -- steps --------------------------------------------------------------------------------------------------------

    def actions(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (24, lambda: self._pump(self.ab)),
            (24, lambda: self._pump(self.ba)),
            (12, lambda: self._pump(self.bc)),
            (10, lambda: self._produce(self.a)),
            (10, lambda: self._produce(self.b)),
            (6, self._transaction),
            (3, lambda: self._bump(self.random.choice([self.a, self.b]))),
            (1, self._unclean),
            (1, self._retention),
            (1, self._gap),
            (2, self._reachable),
            (16, self._turn),
            (4, lambda: self._command(self.random.choice(self.links))),
            (4, lambda: self._command(self.links[1])),
            (2, self._opt_in),
            (6, self._tick),
            (3, self._restart),
            (6, self._crash),
            (4, self._lazy),
        ]

    def _lazy(self) -> None:
        cluster = self.random.choice(self.clusters)
        cluster.lazy = not cluster.lazy
        cluster.lazy_rounds = self.random.choice([0, 1, 2])
        cluster.calm()
        self._note(f"{cluster.name} lazy {cluster.lazy}")

    def _turn(self) -> None:
        """What an operator does next who wants to go there and back."""
        for link in (self.there, self.back):
            if self._wanted(link):
                if self.random.random() < 0.4:
                    self._order(link, "stop")
                return
        self._order(self.random.choice([self.there, self.back]), self.random.choice(["start", "replace"]))

    def _wanted(self, link: Direction) -> bool:
        found = link.cluster.mirrors.topics.get(TOPIC)
        return found is not None and found[0].name == link.mirror and found[1].association.desired.value != "STOPPED"

    def _command(self, link: Direction) -> None:
        self._order(link, self.random.choice(["start", "start", "replace", "stop", "pause", "resume", "recover"]))

    def _order(self, link: Direction, what: str) -> None:
        cluster = link.cluster
        if what in ("start", "replace"):
            promise = cluster.start(link.source, mirror=link.mirror, replace=what == "replace")
            for _ in range(self.random.randint(0, 3)):
                link.pump.round()
        elif what == "stop":
            promise = cluster.stop(mirror=link.mirror)
        else:
            promise = getattr(cluster.mirrors, what)(link.mirror, [TOPIC])
            cluster.calm()
        answer = promise.result()[0].error_code if promise.done else "waits"
        self._note(f"{what} of {link.mirror} at {cluster.name}: {answer}")

    # -- law 8, and the way out ---------------------------------------------------------------------------------------

    def way_out(self) -> None:
        for cluster in self.clusters:
            cluster.reachable, cluster.lazy = True, False
            cluster.flush.run()
        for link in self.links:
            link.pump.max_bytes, link.pump.hold = None, False
            self._stop_for_good(link)
        for number in range(ROUNDS):
            for link in (self.there, self.back):
                self._whole_round(link, number)
        self._follow(self.links[1])
        for cluster in self.clusters:
            copies = self._copies(cluster)
            if not all(batch in copies for batch in self.cut[cluster.name]):
                self.fail(f"{cluster.name}: a later cut has taken the place of an earlier one's copy")

    def _stop_for_good(self, link: Direction) -> None:
        cluster = link.cluster
        found = cluster.mirrors.topics.get(TOPIC)
        if found is None or found[0].name != link.mirror:
            return
        promise = cluster.stop(mirror=link.mirror)
        for _ in range(10):
            cluster.tick(6_000)
        if not promise.done or promise.result()[0].error_code:
            self.fail(f"{cluster.name}: a stop does not end: {cluster.row()}")
        self.check()

    def _whole_round(self, link: Direction, number: int) -> None:
        """The destination writes what nobody will see again, then mirrors, fails over, and goes on alone."""
        cluster, source = link.cluster, link.source
        if self._exists(cluster) and cluster.partition().mode is LogMode.WRITABLE:
            cluster.produce(f"private {number} of {cluster.name}".encode())
            self.check()
        source.produce(f"round {number} of {source.name}".encode())
        self._follow(link)
        low = max(one.partition().log_start_offset for one in (cluster, source))
        ours, theirs = ({o: b for o, b in self._batches(one).items() if o >= low} for one in (cluster, source))
        if ours != theirs:
            self.fail(f"{cluster.name}: after round {number} the logs differ: {sorted(ours)} and {sorted(theirs)}")
        self._stop_for_good(link)

    def _follow(self, link: Direction) -> None:
        cluster = link.cluster
        promise = cluster.start(link.source, mirror=link.mirror)
        for _ in range(4):
            link.pump.round()
        self.check()
        if promise.done and promise.result()[0].error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE:
            if "offset" not in promise.result()[0].error_message:
                self.fail(f"{cluster.name}: refused without a number: {promise.result()[0].error_message}")
            promise = cluster.start(link.source, mirror=link.mirror, replace=True)
        for _ in range(12):
            link.pump.round()
            cluster.tick(2_000)
            self.check()
        if not promise.done or promise.result()[0].error_code:
            self.fail(f"{cluster.name}: the start did not come to anything: {promise.done and promise.result()}")
        if cluster.row().state != "MIRRORING" or cluster.row().lag != 0:
            self.fail(f"{cluster.name}: a start with --replace does not arrive: {cluster.row()}")


def run(seed: int, steps: int) -> FailbackWalk:
    walk = FailbackWalk(seed)
    for _ in range(steps):
        try:
            walk.step()
        except ApiError as error:
            walk.fail(f"an error came out of a step: {error}")
    walk.way_out()
    return walk
