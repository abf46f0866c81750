"""Plays a transcript: lines that begin with `> ` are commands, what follows is what happened.

What happens is told by the machines themselves: every write (state, lineage, gap), every action on the log, every
question to the source. `cluster command arguments`; see `COMMANDS`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from kmirror.broker import mirror_seam as seam
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.mirror.machine import Outcome, Write
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import control_type
from tests.sim.clusters import TOPIC, Cluster, Pump

DROPPED = ("token", "label")


class Stage:
    """Clusters a and b; b mirrors a. Everything is flushed at once unless `b lazy on`."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.a = Cluster("a", seed=1, at_once=False)
        self.b = Cluster("b", seed=2, clock=self.a.clock, at_once=False)
        self.pump = Pump(self.b, self.a, broker_id=1)
        self.back = self.pump
        self.promises: list[tuple[str, Promise[Any]]] = []
        self._names = {c.world.cluster_id: f"<cluster {c.name}>" for c in (self.a, self.b)}
        self.b.on_outcome = self._tell

    def play(self, command: str) -> list[str]:
        self.said = []
        words = command.split()
        try:
            alone = words[0] in COMMANDS
            command = COMMANDS[words[0] if alone else " ".join(words[:2])]
            command(self, *words[1 if alone else 2 :])
        except ApiError as error:
            self.said.append(f"! {ErrorCode(error.code).name}: {self._clean(error.message)}")
        for name, promise in list(self.promises):
            if promise.done:
                self.promises.remove((name, promise))
                self._answered(name, promise)
        return self.said

    # -- telling --------------------------------------------------------------------------------------------------

    def _tell(self, out: Outcome) -> None:
        if out.write is not None:
            self.said.append("  " + self._written(out.write))
        for action in out.actions:
            fields = {n: getattr(action, n) for n in action.__slots__ if n not in DROPPED and n != "number"}
            if type(action).__name__ == "Report":
                self.said.append(f"  report {fields['kind']}: {self._clean(fields['text'])}")
            elif type(action).__name__ == "Ask":
                self.said.append(f"  ask {fields['question']}")
            else:
                told = ", ".join(f"{n}={self._clean(str(v))}" for n, v in fields.items())
                self.said.append(f"  {type(action).__name__}({told})")

    def _written(self, write: Write) -> str:
        parts = []
        state = write.state
        if state is not None:
            parts.append(f"record {state.state.name} epoch={state.leader_epoch}")
            if state.error is not None:
                parts.append(f"attempt={state.retry_attempt} error={self._clean(state.error)!r}")
            for name in ("cut_to", "restart_at", "history_end"):
                if getattr(state, name) >= 0:
                    parts.append(f"{name}={getattr(state, name)}")
            parts += [name for name in ("mirrored", "force") if getattr(state, name)]
        if write.lineage is not None:
            lineage = write.lineage
            parts.append(f"record lineage LME={lineage.last_mirror_epoch} LMO={lineage.last_mirror_offset}")
        if write.drop_lineage:
            parts.append("drop lineage")
        if write.gap is not None:
            parts.append(f"gap {write.gap.from_offset} to {write.gap.to_offset}")
        return " ".join(parts)

    def _answered(self, name: str, promise: Promise[Any]) -> None:
        try:
            result = promise.result()
        except ApiError as error:
            self.said.append(f"{name}: {ErrorCode(error.code).name}: {self._clean(error.message)}")
            return
        for one in result or []:
            text = f"{name}: {ErrorCode(one.error_code).name}"
            if one.error_message:
                text += f": {self._clean(one.error_message)}"
            for row in getattr(one, "partitions", ()):
                text += f" last={row.last_mirrored_offset} source={row.source_end_offset}"
                text += f" missing={row.missing_offsets} aborted={row.aborted_transactions}"
            self.said.append(text)

    def _clean(self, text: str | None) -> str:
        text = text or ""
        for cluster_id, name in self._names.items():
            text = text.replace(cluster_id, name)
        for cluster in (self.a, self.b):
            topic = cluster.world.image.topics_by_name.get(TOPIC)
            if topic is not None:
                text = text.replace(uuids.to_text(topic.topic_id), f"<topic at {cluster.name}>")
        return text

    # -- commands -------------------------------------------------------------------------------------------------

    def topic(self, count: str = "1") -> None:
        self.a.create_topic(TOPIC, int(count))

    def mirror(self, *configs: str) -> None:
        given = dict(config.split("=", 1) for config in configs)
        self.b.create_mirror(self.a, **{name.replace(".", "__"): value for name, value in given.items()})

    def topic_here(self, count: str = "1") -> None:
        self.b.create_topic(TOPIC, int(count))

    def produce(self, *values: str) -> None:
        self.said.append(f"at {self.a.produce(*(v.encode() for v in values))}")

    def write(self, *values: str) -> None:
        self.said.append(f"at {self.b.produce(*(v.encode() for v in values))}")

    def transaction(self, producer_id: str, value: str, sequence: str = "0") -> None:
        self.a.produce(
            value.encode(),
            producer_id=int(producer_id),
            producer_epoch=0,
            base_sequence=int(sequence),
            transactional=True,
        )

    def start(self, *options: str) -> None:
        named: dict[str, Any] = {}
        for option in options:
            if option == "--replace":
                named["replace"] = True
            else:
                named["from_"] = {"latest": -1, "earliest": -2}.get(option)
                if named["from_"] is None:
                    named["from_"] = self.a.clock.time_ms() + int(option)
        self.promises.append(("start", self.b.start(self.a, **named)))

    def stop(self) -> None:
        self.promises.append(("stop", self.b.stop()))

    def recover(self) -> None:
        self.promises.append(("recover", self.b.mirrors.recover("m", [TOPIC])))
        self.b.calm()

    def back_start(self, *options: str) -> None:
        """`a` mirrors `b`; told is only the answer."""
        if "back" not in self.a.mirrors.mirrors:
            self.a.create_mirror(self.b, "back")
            self.back = Pump(self.a, self.b, "back", broker_id=2)
        promise = self.a.start(self.b, mirror="back", replace="--replace" in options)
        self.promises.append(("start back", promise))
        self.back.run(6)

    def back_run(self) -> None:
        self.back.run(6)

    def back_stop(self) -> None:
        self.promises.append(("stop back", self.a.stop(mirror="back")))

    def back_pause(self) -> None:
        self.promises.append(("pause back", self.a.mirrors.pause("back", [TOPIC])))
        self.a.calm()

    def back_delete(self) -> None:
        self.promises.append(("delete back", self.a.mirrors.delete("back")))
        self.a.calm()

    def back_lazy(self, rounds: str) -> None:
        """So many rounds of flushes at `a` after each call, so that a stop stays under way; `off`: all."""
        self.a.lazy, self.a.lazy_rounds = rounds != "off", 0 if rounds == "off" else int(rounds)
        if rounds == "off":
            self.a.calm()

    def pause(self) -> None:
        self.promises.append(("pause", self.b.mirrors.pause("m", [TOPIC])))
        self.b.calm()

    def resume(self) -> None:
        self.promises.append(("resume", self.b.mirrors.resume("m", [TOPIC])))
        self.b.calm()

    def delete(self) -> None:
        self.promises.append(("delete", self.b.mirrors.delete("m")))
        self.b.calm()

    def run(self, rounds: str = "6") -> None:
        before = self.b.partition().log.log_end_offset if TOPIC in self.b.world.image.topics_by_name else 0
        self.pump.run(int(rounds))
        after = self.b.partition().log.log_end_offset if TOPIC in self.b.world.image.topics_by_name else 0
        if after != before:
            self.said.append(f"  log end {before} to {after}")

    def refresh(self) -> None:
        self.pump.refresh()

    def show(self) -> None:
        try:
            row = self.b.row()
        except LookupError:
            self.said.append(f"not mirrored {self.b.partition().mode.name}")
            return
        phase = f" ({row.phase})" if row.phase else ""
        parts = [f"{row.state}{phase} source={row.source_offset} here={row.destination_offset} lag={row.lag}"]
        parts.append(f"epoch={row.leader_epoch} LME={row.last_mirror_epoch} LMO={row.last_mirror_offset}")
        if row.gaps:
            parts.append("gaps=" + ",".join(f"{gap.from_offset}-{gap.to_offset}" for gap in row.gaps))
        if row.error:
            parts.append(f"error={self._clean(row.error)!r}")
        if row.retry:
            when = None if row.retry.next_at_ms is None else row.retry.next_at_ms - self.b.clock.time_ms()
            parts.append(f"retry={row.retry.attempt}/{row.retry.max_attempts} in {when}")
        parts.append(self.b.partition().mode.name)
        self.said.append(" ".join(parts))

    def log(self) -> None:
        log = self.b.partition().log
        for header, data in log.batches(log.log_start_offset, log.log_end_offset):
            kind = {0: "ABORT", 1: "COMMIT", 7: "RESET", None: "data"}[
                control_type(data) if header.is_control else None
            ]
            who = f" pid={header.producer_id}" if header.producer_id >= 0 else ""
            self.said.append(f"  {header.base_offset}-{header.last_offset} epoch={header.leader_epoch} {kind}{who}")
        same = "same as the source" if self.b.data() == self.a.data() else "differs from the source"
        self.said.append(f"  start={log.log_start_offset} end={log.log_end_offset}, {same}")

    def bump(self, count: str = "1") -> None:
        for _ in range(int(count)):
            epoch = self.a.bump()
        self.said.append(f"epoch {epoch}")

    def bump_here(self, count: str = "1") -> None:
        for _ in range(int(count)):
            epoch = self.b.bump()
        self.said.append(f"epoch {epoch}")

    def cut(self, offset: str) -> None:
        self.a.partition().truncate_to(int(offset))
        self.a.bump()

    def retain(self, offset: str) -> None:
        self.a.partition().advance_log_start(int(offset))

    def remove(self) -> None:
        self.a.settle(self.a.world.delete_topic(TOPIC))

    def config(self, setting: str) -> None:
        name, value = setting.split("=", 1)
        self.b.settle(self.b.world.configs.write(2, TOPIC, {name: value}))

    def reachable(self, value: str) -> None:
        self.a.reachable = value == "yes"

    def other_cluster(self) -> None:
        self.a.world.cluster_id = "another-cluster-id-xxx"

    def tick(self, duration_ms: str = "0") -> None:
        self.b.tick(int(duration_ms))

    def crash(self) -> None:
        self.b.crash()

    def restart(self) -> None:
        self.b.restart()

    def lazy(self, value: str) -> None:
        self.b.lazy = value == "on"
        self.b.calm()

    def full(self, value: str) -> None:
        if value == "yes":
            self.b.fs.fail("write", "t-0/00000000000000000000.log", error=errno.ENOSPC, times=1)
        else:
            self.b.fs.heal()

    def source_says(self, *words: str) -> None:
        """`b-source epoch E END`, `b-source code N`, `b-source truth`: what the source answers to questions."""
        if words[0] == "truth":
            self.pump.alter = lambda query: None
        elif words[0] == "code":
            self.pump.alter = lambda query: seam.ErrorAnswer(code=int(words[1]))
        else:
            epoch, end = int(words[1]), int(words[2])

            def altered(query: seam.Query) -> seam.Answer | None:
                if isinstance(query, seam.EpochEndQuery):
                    return seam.EpochEndAnswer(leader_epoch=epoch, end_offset=end)
                return None

            self.pump.alter = altered


COMMANDS: dict[str, Callable[..., None]] = {
    "a topic": Stage.topic,
    "a produce": Stage.produce,
    "a transaction": Stage.transaction,
    "a bump": Stage.bump,
    "a cut": Stage.cut,
    "a retain": Stage.retain,
    "a delete": Stage.remove,
    "a reachable": Stage.reachable,
    "a changes-cluster": Stage.other_cluster,
    "a answers": Stage.source_says,
    "b topic": Stage.topic_here,
    "b mirror": Stage.mirror,
    "b start": Stage.start,
    "b stop": Stage.stop,
    "b recover": Stage.recover,
    "a starts-back": Stage.back_start,
    "a follows": Stage.back_run,
    "a stops-back": Stage.back_stop,
    "a pauses-back": Stage.back_pause,
    "a deletes-back": Stage.back_delete,
    "a lazy": Stage.back_lazy,
    "b pause": Stage.pause,
    "b resume": Stage.resume,
    "b delete-mirror": Stage.delete,
    "b write": Stage.write,
    "b show": Stage.show,
    "b log": Stage.log,
    "b bump": Stage.bump_here,
    "b config": Stage.config,
    "b tick": Stage.tick,
    "b crash": Stage.crash,
    "b restart": Stage.restart,
    "b lazy": Stage.lazy,
    "b full": Stage.full,
    "b refresh": Stage.refresh,
    "run": Stage.run,
}
