"""Runs sequences: draws steps, asks both brokers, compares, and says what differed.

A sequence ends at its first unlisted difference, since from there on the two may be in different states; with
`keep_going` it goes on and shows them all. At its end everything it has made is read back from both and deleted.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conformance.differential import steps_admin, steps_data, steps_fetch, steps_query
from conformance.differential.audit import audit_steps
from conformance.differential.compare import Comparison, Difference, field_names
from conformance.differential.rules import RULES
from conformance.differential.sides import ANSWER, ANSWER_TIMEOUT_S, NotSettled, Outcome, Side, exchange
from conformance.differential.story import Step, Story
from kmirror.protocol import registry
from kmirror.protocol.api.api_versions import ApiVersionsRequest
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kmirror.protocol.dissect import dissect_frame

TIMING_ATTEMPTS = 3
MAX_SHOWN_LINES = 120
DYNAMIC = (2, 3)
"""Sources of configurations that were set at run time, for one broker and for all."""
Draw = Callable[[Story], Step | None]

WEIGHTED: tuple[tuple[int, Draw], ...] = (
    (7, steps_admin.create_topics),
    (2, steps_admin.create_partitions),
    (1, steps_admin.delete_topics),
    (4, steps_admin.incremental_alter_configs),
    (2, steps_admin.alter_configs),
    (20, steps_data.produce),
    (12, steps_data.produce_idempotent),
    (2, steps_data.produce_unanswered),
    (1, steps_data.produce_impossible),
    (3, steps_data.init_producer_id),
    (3, steps_data.delete_records),
    (14, steps_fetch.fetch),
    (9, steps_fetch.fetch_session),
    (8, steps_query.list_offsets),
    (4, steps_query.offset_for_leader_epoch),
    (6, steps_query.metadata),
    (4, steps_query.describe_configs),
    (3, steps_query.describe_topic_partitions),
    (2, steps_query.describe_producers),
    (1, steps_query.describe_cluster),
    (1, steps_query.find_coordinator),
    (1, steps_query.list_config_resources),
    (1, steps_query.api_versions),
)


@dataclass(slots=True)
class Finding:
    """One step whose answers differ in a way that no rule lists."""

    seed: int
    number: int
    api: str
    version: int
    what: str
    differences: list[Difference]
    request: str
    left: list[str]
    right: list[str]

    def __str__(self) -> str:
        lines = [f"seed {self.seed} step {self.number}: {self.api} v{self.version} {self.what}"]
        lines += [f"    {difference}" for difference in self.differences]
        return "\n".join(lines)

    def dissected(self) -> str:
        """The request and both answers, field by field."""
        return "\n".join([str(self), f"  request {self.request}", "  left", *self.left, "  right", *self.right])

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed, "step": self.number, "api": self.api, "version": self.version, "what": self.what,
            "differences": [
                {"path": d.path, "left": repr(d.left), "right": repr(d.right)} for d in self.differences
            ],
            "request": self.request, "left": self.left, "right": self.right,
        }  # fmt: skip


@dataclass(slots=True)
class Report:
    """What was run, and what differed."""

    steps: Counter[tuple[str, int]] = field(default_factory=Counter)
    error_codes: Counter[tuple[str, int]] = field(default_factory=Counter)
    seeds: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    rules_used: Counter[int] = field(default_factory=Counter)


class Runner:
    """Two brokers, asked the same. `on_finding` is called as soon as there is one."""

    def __init__(
        self, left: str, right: str, *, keep_going: bool = False, on_finding: Callable[[Finding], None] | None = None
    ) -> None:
        self.sides = (Side(0, "left", left), Side(1, "right", right))
        self.keep_going = keep_going
        self.report = Report()
        self._on_finding = on_finding
        self._comparison = Comparison(RULES, started_ms=int(time.time() * 1000) - 1)
        self._comparison.used = self.report.rules_used

    def open(self) -> None:
        for side in self.sides:
            side.open()

    def close(self) -> None:
        for side in self.sides:
            side.close()

    def sequence(self, seed: int, step_count: int, *, before_cleaning: Callable[[], None] | None = None) -> bool:
        """One story of that many steps and its audit. True when nothing differed."""
        story = Story(seed, self.sides)
        self.report.seeds.append(seed)
        before = len(self.report.findings)
        try:
            for number in range(step_count):
                step = self._draw(story)
                if not self._take(story, number, step) and not self.keep_going:
                    return False
            for number, step in enumerate(audit_steps(story), start=step_count):
                if not self._take(story, number, step) and not self.keep_going:
                    return False
        except NotSettled as error:
            self._found(story, -1, None, [Difference("(settling)", str(error), "")], None)
        finally:
            if before_cleaning is not None:
                before_cleaning()
            self._clean(story)
        return len(self.report.findings) == before

    def _draw(self, story: Story) -> Step:
        if not story.topics:
            return steps_admin.create_topics(story)
        while True:
            (draw,) = story.rng.choices([draw for _, draw in WEIGHTED], [weight for weight, _ in WEIGHTED])
            step = draw(story)
            if step is not None and story.serves(step.api):
                return step

    # -- one step ------------------------------------------------------------------------------------------------

    def _take(self, story: Story, number: int, step: Step) -> bool:
        self.report.steps[step.api, step.version] += 1
        messages = (step.build(self.sides[0]), step.build(self.sides[1]))
        outcomes = self._ask(messages, step)
        differences = self._differences(step, outcomes)
        for _ in range(TIMING_ATTEMPTS - 1):
            if not (differences and step.repeatable and all(d.path == "(waited)" for d in differences)):
                break
            outcomes = self._ask(messages, step)  # a pause of a busy machine looks like waiting
            differences = self._differences(step, outcomes)
        self._count_errors(step, outcomes[0])
        if differences:
            self._found(story, number, step, differences, (messages, outcomes))
        if outcomes[0].kind == outcomes[1].kind == ANSWER and step.after is not None:
            step.after(outcomes[0].message, outcomes[1].message)
        if step.settle:
            self._settle(story)
        if step.api == "Produce":
            self._learn_ends(story, exact=step.answered)
        return not differences

    def _ask(self, messages: tuple[object, object], step: Step) -> tuple[Outcome, Outcome]:
        outcomes = exchange(self.sides, messages, step.version, answered=step.answered, timeout_s=ANSWER_TIMEOUT_S)
        if step.answered:
            return outcomes
        probe = ApiVersionsRequest()  # answered unless the connection was closed
        try:
            return exchange(self.sides, (probe, probe), 0, answered=True, timeout_s=ANSWER_TIMEOUT_S)
        except OSError:
            return self._ask(messages, step)

    def _differences(self, step: Step, outcomes: tuple[Outcome, Outcome]) -> list[Difference]:
        left, right = outcomes
        if left.kind != right.kind:
            return [Difference("(outcome)", f"{left.kind} {left.detail}", f"{right.kind} {right.detail}")]
        if left.kind != ANSWER or not step.answered:
            return []
        found = self._comparison.answers(
            step.api, left.message, right.message,
            version=step.version, facts=step.facts, now_ms=int(time.time() * 1000) + 1,
        )  # fmt: skip
        half_s = step.wait_ms / 2000
        if step.wait_ms and (left.seconds >= half_s) != (right.seconds >= half_s):
            found.append(Difference("(waited)", f"{left.seconds:.3f} s", f"{right.seconds:.3f} s"))
        return found

    def _found(
        self,
        story: Story,
        number: int,
        step: Step | None,
        differences: list[Difference],
        seen: tuple[tuple[object, object], tuple[Outcome, Outcome]] | None,
    ) -> None:
        finding = Finding(story.seed, number, "-", 0, "", differences, "", [], [])
        if step is not None and seen is not None:
            messages, outcomes = seen
            finding.api, finding.version, finding.what = step.api, step.version, step.what
            finding.request = repr(messages[0])[:4000]
            finding.left, finding.right = (_dissected(step, outcome) for outcome in outcomes)
        self.report.findings.append(finding)
        if self._on_finding is not None:
            self._on_finding(finding)

    def _count_errors(self, step: Step, outcome: Outcome) -> None:
        for code in _error_codes(outcome.message):
            self.report.error_codes[step.api, code] += 1

    # -- state ---------------------------------------------------------------------------------------------------

    def _settle(self, story: Story) -> None:
        for side in self.sides:
            side.wait(
                f"topics {sorted((t.name, t.partition_count) for t in story.topics.values())}",
                lambda side=side: story.settled(side),  # type: ignore[misc]
            )
            side.barrier()
        story.learn_ids()
        for topic in story.topics.values():
            self._comparison.pairings.meet("topic id", *topic.ids)

    def _learn_ends(self, story: Story, *, exact: bool) -> None:
        for topic in story.topics.values():
            for index in range(topic.partition_count):
                topic.ends[index] = end = max(0, self.sides[0].latest(topic.name, index))
                if not exact:  # nobody confirmed the write: the right side may still be at it
                    right = self.sides[1]
                    try:
                        right.wait("end", lambda: right.latest(topic.name, index) == end)  # noqa: B023
                    except NotSettled:
                        raise NotSettled(
                            f"{topic.name}-{index} ends at {end} on the left, "
                            f"at {right.latest(topic.name, index)} on the right"
                        ) from None

    @staticmethod
    def _reset_broker_configs(side: Side) -> None:
        """What a sequence set for this broker, or for all, outlives its topics."""
        for name in ("", str(side.node_id)):
            asked = DescribeConfigsResource(resource_type=steps_admin.BROKER, resource_name=name)
            asked.configuration_keys = None
            there = side.ask(DescribeConfigsRequest(resources=[asked]), 1).results[0].configs
            known = dict(steps_admin.BROKER_CHANGES)
            changed = [config.name for config in there if config.name in known and config.config_source in DYNAMIC]
            if changed:
                changes = [IncrementalAlterableConfig(name=each, config_operation=1, value=None) for each in changed]
                resource = IncrementalAlterConfigsResource(
                    resource_type=steps_admin.BROKER, resource_name=name, configs=changes
                )
                side.ask(IncrementalAlterConfigsRequest(resources=[resource]), 0)

    def _clean(self, story: Story) -> None:
        """Deletes this story's topics on both sides, and waits until they are gone."""
        for side in self.sides:
            side.close()
            for session in story.sessions:
                session.partitions.clear()
            names = [name for name in side.topics() if story.owns(name)]
            if names:
                side.ask(DeleteTopicsRequest(topic_names=names, timeout_ms=20_000), 4)
            self._reset_broker_configs(side)
        story.topics.clear()
        for side in self.sides:
            side.wait("end of the topics", lambda side=side: story.settled(side))  # type: ignore[misc]
            side.barrier()


def _dissected(step: Step, outcome: Outcome) -> list[str]:
    if not outcome.frame:
        return [f"    {outcome.kind} {outcome.detail} after {outcome.seconds:.3f} s"]
    api, version = (step.api, step.version) if step.answered else ("ApiVersions", 0)
    lines = list(dissect_frame(outcome.frame, response_to=(registry.by_name[api].name, version)).lines(2))
    cut = [f"    … {len(lines) - MAX_SHOWN_LINES} more lines"] if len(lines) > MAX_SHOWN_LINES else []
    return lines[:MAX_SHOWN_LINES] + cut


def _error_codes(value: Any) -> list[int]:
    """Every error code in a message: what the steps reached."""
    if isinstance(value, list):
        return [code for element in value for code in _error_codes(element)]
    found = []
    for name in field_names(value):
        inner = getattr(value, name)
        found += [int(inner)] if name == "error_code" else _error_codes(inner)
    return found


def seeds(first: int | None, count: int) -> list[int]:
    """`count` seeds beginning with `first`, or random ones."""
    if first is not None:
        return [first + index for index in range(count)]
    return [random.randrange(1 << 24) for _ in range(count)]
