"""Runs sequences: draws steps, asks both brokers, compares, and says what differed.

A sequence ends at its first unlisted difference, since from there on the two may be in different states; with
`keep_going` it goes on and shows them all. At its end everything it has made is read back from both and deleted.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from conformance.differential import (
    steps_admin,
    steps_data,
    steps_fetch,
    steps_groups,
    steps_offsets,
    steps_query,
    steps_transactions,
)
from conformance.differential.audit import audit_steps
from conformance.differential.compare import Comparison, Difference, field_names
from conformance.differential.held import HeldRequests
from conformance.differential.rules import RULES
from conformance.differential.sides import (
    ANSWER,
    ANSWER_TIMEOUT_S,
    POLL_S,
    SILENT,
    NotSettled,
    Outcome,
    Side,
    exchange,
)
from conformance.differential.story import Step, Story
from kmirror.protocol import registry
from kmirror.protocol.api.api_versions import ApiVersionsRequest
from kmirror.protocol.api.delete_groups import DeleteGroupsRequest
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from kmirror.protocol.dissect import dissect_frame

TIMING_ATTEMPTS = 3
AGAIN_S = 5.0
PATIENCE_S = 1.0
LAGGING = ("DescribeGroups", "ListGroups", "OffsetFetch", "DescribeTransactions", "ListTransactions")
UNSETTLED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
WRITING = ("Produce", "EndTxn", "InitProducerId", "WriteTxnMarkers")
MAX_SHOWN_LINES = 120
DYNAMIC = (2, 3)
"""Sources of configurations that were set at run time, for one broker and for all."""
Draw = Callable[[Story], Step | None]

CORE: tuple[tuple[int, Draw], ...] = (
    (7, steps_admin.create_topics),
    (2, steps_admin.create_partitions),
    (1, steps_admin.delete_topics),
    (4, steps_admin.incremental_alter_configs),
    (2, steps_admin.alter_configs),
    (1, steps_admin.update_features),
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
    (2, steps_query.describe_log_dirs),
    (1, steps_query.describe_cluster),
    (1, steps_query.find_coordinator),
    (1, steps_query.list_config_resources),
    (1, steps_query.api_versions),
)
GROUPS: tuple[tuple[int, Draw], ...] = (
    (26, steps_groups.join),
    (14, steps_groups.go_on),
    (14, steps_groups.sync),
    (8, steps_groups.heartbeat),
    (8, steps_groups.leave),
    (3, steps_groups.describe_groups),
    (2, steps_groups.list_groups),
    (2, steps_groups.delete_groups),
    (10, steps_offsets.offset_commit),
    (8, steps_offsets.offset_fetch),
    (3, steps_offsets.offset_delete),
    (1, steps_query.find_coordinator),
)
TRANSACTIONS: tuple[tuple[int, Draw], ...] = (
    (8, steps_transactions.init_producer_id),
    (9, steps_transactions.add_partitions),
    (5, steps_transactions.add_offsets),
    (7, steps_transactions.txn_offset_commit),
    (22, steps_transactions.produce),
    (12, steps_transactions.end_txn),
    (2, steps_transactions.write_markers),
    (2, steps_transactions.describe),
    (2, steps_transactions.list_transactions),
    (5, steps_query.describe_producers),
    (6, steps_query.list_offsets),
    (8, steps_fetch.fetch),
    (7, steps_offsets.offset_fetch),
    (2, steps_offsets.offset_commit),
    (2, steps_groups.join),
    (2, steps_groups.go_on),
    (1, steps_groups.delete_groups),
    (1, steps_offsets.offset_delete),
    (1, steps_query.find_coordinator),
)
SOME_TOPICS: tuple[tuple[int, Draw], ...] = ((3, steps_admin.create_topics), (1, steps_admin.delete_topics))
THEMES: dict[str, tuple[tuple[int, Draw], ...]] = {
    "core": CORE,
    "groups": GROUPS + SOME_TOPICS,
    "transactions": TRANSACTIONS + SOME_TOPICS,
    "all": CORE + GROUPS + TRANSACTIONS,
}


def theme_of(seed: int) -> str:
    """What a sequence is about when nobody says it."""
    return ("groups", "transactions", "core", "groups", "transactions", "all")[seed % 6]


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
        self, left: str, right: str, *, keep_going: bool = False,
        on_finding: Callable[[Finding], None] | None = None, on_step: Callable[[int, int, Step], None] | None = None,
    ) -> None:  # fmt: skip
        self.sides = (Side(0, "left", left), Side(1, "right", right))
        self.keep_going = keep_going
        self.report = Report()
        self._on_finding = on_finding
        self._on_step = on_step
        self._comparison = Comparison(RULES, started_ms=int(time.time() * 1000) - 1)
        self._comparison.used = self.report.rules_used
        self._held = HeldRequests(self.sides, self._conclude)
        self._story = Story(0, self.sides)
        self._attempts: Counter[int] = Counter()

    def open(self) -> None:
        for side in self.sides:
            side.open()

    def close(self) -> None:
        for side in self.sides:
            side.close()

    def sequence(
        self, seed: int, step_count: int, *, about: str | None = None, before_cleaning: Callable[[], None] | None = None
    ) -> bool:
        """One story of that many steps and its audit. True when nothing differed."""
        self._story = story = Story(seed, self.sides, attempt=self._attempts[seed])
        self._attempts[seed] += 1
        self.report.seeds.append(seed)
        before = len(self.report.findings)
        number = -1
        try:
            weighted = THEMES[about or theme_of(seed)]
            for number, step in enumerate(self._steps(story, step_count, weighted)):
                if not self._take(number, step) and not self.keep_going:
                    return False
        except (NotSettled, OSError) as error:
            self._found(number, None, [Difference("(settling)", f"{type(error).__name__}: {error}", "")], None)
        finally:
            if before_cleaning is not None:
                before_cleaning()
            try:
                self._clean(story)
            except (NotSettled, OSError) as error:
                self._found(number, None, [Difference("(cleaning)", str(error), "")], None)
        return len(self.report.findings) == before

    def shortest(self, seed: int, step_count: int, *, about: str | None) -> int | None:
        """The number of steps with which the sequence that was run last differs, and with one less does not.

        None when it does not differ again. What is found here does not count.
        """
        last = self.report.findings[-1].number
        report, on_finding, on_step = self.report, self._on_finding, self._on_step
        self.report, self._on_finding, self._on_step = Report(), None, None
        try:
            low, high = 0, max(1, min(last + 1, step_count))
            if self.sequence(seed, high, about=about):
                return None
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.sequence(seed, middle, about=about) else (low, middle)
            return high
        finally:
            self.report, self._on_finding, self._on_step = report, on_finding, on_step

    def _steps(self, story: Story, count: int, weighted: tuple[tuple[int, Draw], ...]) -> Iterator[Step]:
        for _ in range(count):
            yield self._draw(story, weighted)
        for step in audit_steps(story):
            if story.serves(step.api):
                yield step

    def _draw(self, story: Story, weighted: tuple[tuple[int, Draw], ...]) -> Step:
        if not story.topics:
            return steps_admin.create_topics(story)
        while True:
            (draw,) = story.rng.choices([draw for _, draw in weighted], [weight for weight, _ in weighted])
            step = draw(story)
            if step is not None and story.serves(step.api):
                return step

    # -- one step ------------------------------------------------------------------------------------------------

    def _take(self, number: int, step: Step) -> bool:
        self.report.steps[step.api, step.version] += 1
        messages = (step.build(self.sides[0]), step.build(self.sides[1]))
        if self._on_step is not None:
            self._on_step(self._story.seed, number, step)
        if step.held_while:
            self._held.begin(number, step, messages)
            alike = True
        else:
            outcomes = self._ask(messages, step)
            differences = self._differences(step, outcomes)
            for _ in range(TIMING_ATTEMPTS - 1):
                if not (differences and step.repeatable and all(d.path == "(waited)" for d in differences)):
                    break
                outcomes = self._ask(messages, step)  # a pause of a busy machine looks like waiting
                differences = self._differences(step, outcomes)
            if differences and step.api in LAGGING:
                outcomes, differences = self._ask_patiently(messages, step)
            alike = self._conclude(number, step, messages, outcomes, differences)
        return self._follow(number, step) and alike

    def _conclude(
        self, number: int, step: Step, messages: tuple[object, object], outcomes: tuple[Outcome, Outcome],
        differences: list[Difference] | None = None,
    ) -> bool:  # fmt: skip
        """Two answers are there: reports what differs, and lets the story learn. True when nothing did."""
        if differences is None:
            differences = self._differences(step, outcomes)
            if outcomes[0].kind == outcomes[1].kind == SILENT:
                differences = [Difference("(held)", "no answer, though nothing keeps it", "nor here")]
        self._count_errors(step, outcomes[0])
        if differences:
            self._found(number, step, differences, (messages, outcomes))
        if outcomes[0].kind == outcomes[1].kind == ANSWER and step.after is not None:
            step.after(outcomes[0].message, outcomes[1].message)
        return not differences

    def _follow(self, number: int, step: Step) -> bool:
        """What has to have happened before the next step, and what the broker now says of what the step was about."""
        story, alike = self._story, True
        if step.settle:
            self._settle(story)
        if step.transactions:
            for side in self.sides:
                for name in step.transactions:
                    side.wait(f"rest of {name}", lambda: side.transaction_state(name) not in UNSETTLED)  # noqa: B023
        if step.api in WRITING:
            self._learn_ends(story, exact=step.answered)
        alike = self._held.release(step.frees)
        if step.group is not None:
            probe = steps_groups.describe_step(story, [step.group], story.versions("DescribeGroups")[1])
            alike = self._take(number, probe) and alike
        if step.transactions:
            alike = self._take(number, steps_transactions.describe_step(story, list(step.transactions))) and alike
        return alike

    def _ask(self, messages: tuple[object, object], step: Step) -> tuple[Outcome, Outcome]:
        outcomes = exchange(
            self.sides, messages, step.version, answered=step.answered, timeout_s=ANSWER_TIMEOUT_S, lane=step.lane
        )
        if step.answered:
            left, right = (
                self._ask_again(side, message, step, outcome)
                for side, message, outcome in zip(self.sides, messages, outcomes, strict=True)
            )
            return left, right
        probe = ApiVersionsRequest()  # answered unless the connection was closed
        try:
            return exchange(self.sides, (probe, probe), 0, answered=True, timeout_s=ANSWER_TIMEOUT_S)
        except OSError:
            return self._ask(messages, step)

    def _ask_patiently(
        self, messages: tuple[object, object], step: Step
    ) -> tuple[tuple[Outcome, Outcome], list[Difference]]:
        """Kafka answers what is committed, which may be a moment behind what it has told the members."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            outcomes = self._ask(messages, step)
            differences = self._differences(step, outcomes)
            if not differences or time.monotonic() > deadline:
                return outcomes, differences
            time.sleep(5 * POLL_S)

    @staticmethod
    def _ask_again(side: Side, message: object, step: Step, outcome: Outcome) -> Outcome:
        """The broker is at it, or has just begun to be: asked until it says something final, for a while."""
        deadline = time.monotonic() + AGAIN_S
        while step.again_for.intersection(_error_codes(outcome.message)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
            side.send(message, step.version, step.lane)
            outcome = side.read(message, step.version, step.lane)
        return outcome

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
        waited = (left.seconds >= half_s, right.seconds >= half_s)
        if "many bytes" in step.facts and waited == (False, True):
            waited = (True, True)  # below its last segment Kafka answers before there is enough
        if step.wait_ms and waited[0] != waited[1]:
            found.append(Difference("(waited)", f"{left.seconds:.3f} s", f"{right.seconds:.3f} s"))
        return found

    def _found(
        self,
        number: int,
        step: Step | None,
        differences: list[Difference],
        seen: tuple[tuple[object, object], tuple[Outcome, Outcome]] | None,
    ) -> None:
        finding = Finding(self._story.seed, number, "-", 0, "", differences, "", [], [])
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

    @staticmethod
    def _end_transactions(side: Side, story: Story) -> None:
        """A transaction that is open keeps what readers see of its partitions, and its id keeps its producer."""
        for producer in story.transactional:
            request = InitProducerIdRequest(transactional_id=producer.transactional_id, transaction_timeout_ms=60_000)
            side.wait(
                f"end of {producer.transactional_id}",
                lambda: side.ask(request, 1).error_code not in steps_transactions.AGAIN,  # noqa: B023
            )

    @staticmethod
    def _empty_groups(side: Side, story: Story) -> None:
        for name in story.groups:
            members = [MemberIdentity(member_id=member.member_id) for member in side.group(name).members]
            if members:
                side.ask(LeaveGroupRequest(group_id=name, members=members), 3)
        if story.groups:
            side.ask(DeleteGroupsRequest(groups_names=list(story.groups)), 1)

    def _clean(self, story: Story) -> None:
        """Deletes this story's topics on both sides, and waits until they are gone."""
        self._held.clear()
        for side in self.sides:
            side.close()
            self._end_transactions(side, story)
            self._empty_groups(side, story)
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
        found += [int(inner)] if name.endswith("error_code") else _error_codes(inner)
    return found


def seeds(first: int | None, count: int) -> list[int]:
    """`count` seeds beginning with `first`, or random ones."""
    if first is not None:
        return [first + index for index in range(count)]
    return [random.randrange(1 << 24) for _ in range(count)]


def listed(ranges: str) -> list[int]:
    """`1-500,907` as numbers."""
    bounds = [part.partition("-") for part in ranges.split(",")]
    return [seed for low, _, high in bounds for seed in range(int(low), int(high or low) + 1)]
