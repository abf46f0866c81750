"""Rows of `mirror describe`, and waiting for a state, against scripted answers and on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kmirror.cli import mirror_actions, mirror_status
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.mirror_actions import Waiting
from kmirror.protocol.api.describe_cluster_mirrors import (
    DescribeClusterMirrorsRequest,
    DescribeClusterMirrorsResponse,
    DescribedMirror,
    DescribedMirrorPartition,
    DescribedMirrorTopic,
    MirrorGap,
)
from kmirror.protocol.api.pause_mirror_topics import PauseMirrorTopicResult, PauseMirrorTopicsResponse
from kmirror.protocol.api.recover_mirror_topics import RecoverMirrorTopicResult, RecoverMirrorTopicsResponse
from kmirror.protocol.api.stop_mirror_topics import (
    StopMirrorTopicResult,
    StopMirrorTopicsRequest,
    StopMirrorTopicsResponse,
    StoppedPartition,
)
from kmirror.source.calls import EARLIEST, LATEST

FIELDS = {
    "mirror",
    "topic",
    "partition",
    "state",
    "phase",
    "source_offset",
    "destination_offset",
    "lag",
    "leader_epoch",
    "last_mirror_epoch",
    "last_mirror_offset",
    "gaps",
    "error",
    "retry",
}
"""The contract that scripts rely on."""


WAITING = Waiting(timeout_s=30)


def partition(state: str = "MIRRORING", **fields: Any) -> DescribedMirrorPartition:
    return DescribedMirrorPartition(state_value=state, **fields)


class Destination:
    """Answers describe with one answer after the other (the last for ever), and others from `answers`."""

    def __init__(self, *states: list[DescribedMirrorPartition], answers: dict[str, Any] | None = None) -> None:
        self.states = list(states)
        self.answers = answers or {}
        self.requests: list[Any] = []

    async def request(self, message: Any, timeout_ms: int | None = None) -> Any:
        await trio.lowlevel.checkpoint()
        self.requests.append(message)
        if not isinstance(message, DescribeClusterMirrorsRequest):
            return self.answers[type(message).__name__]
        partitions = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        topic = DescribedMirrorTopic(topic_name="t", partitions=partitions)
        mirror = DescribedMirror(mirror_name="m", source_bootstrap="s:1", source_cluster_id="id", topics=[topic])
        return DescribeClusterMirrorsResponse(mirrors=[mirror])


async def row_of(described: DescribedMirrorPartition) -> dict[str, Any]:
    return (await mirror_status.describe_one(Destination([described]), "m")).rows[0]  # type: ignore[arg-type]


async def test_a_row_has_the_fields_of_the_contract() -> None:
    row = await row_of(partition(source_offset=10, destination_offset=7, leader_epoch=3))
    assert set(row) == FIELDS
    assert (row["lag"], row["leader_epoch"], row["phase"], row["error"], row["retry"]) == (3, 3, None, None, None)


async def test_unknown_is_null() -> None:
    row = await row_of(partition("PREPARING", phase="LOG_ALIGNMENT"))
    for name in ("source_offset", "destination_offset", "lag", "last_mirror_epoch", "last_mirror_offset"):
        assert row[name] is None, name
    assert row["phase"] == "LOG_ALIGNMENT"


async def test_lag_is_never_negative() -> None:
    assert (await row_of(partition(source_offset=5, destination_offset=7)))["lag"] == 0


async def test_a_stopped_partition_has_no_source_offset() -> None:
    stopped = partition("STOPPED", source_offset=9, destination_offset=8, last_mirror_epoch=2, last_mirror_offset=6)
    row = await row_of(stopped)
    assert (row["source_offset"], row["lag"], row["last_mirror_epoch"], row["last_mirror_offset"]) == (None, None, 2, 6)


async def test_gaps_and_retries_have_times() -> None:
    failed = partition(
        "FAILED",
        error_message="gone",
        retry_attempt=2,
        retry_max=10,
        retry_next_at_ms=1500,
        gaps=[MirrorGap(from_offset=1, to_offset=3, at_ms=0)],
    )
    row = await row_of(failed)
    assert row["gaps"] == [{"from": 1, "to": 3, "at": "1970-01-01T00:00:00.000Z"}]
    assert row["retry"] == {"attempt": 2, "max": 10, "next_at": "1970-01-01T00:00:01.500Z", "retryable": True}
    assert not mirror_status.failed_for_good(row)
    for_good = await row_of(partition("FAILED", error_message="diverged", retry_attempt=-1))
    assert for_good["retry"] == {"attempt": None, "max": None, "next_at": None, "retryable": False}
    assert mirror_status.failed_for_good(for_good)


async def test_the_table_of_failures(capsys: pytest.CaptureFixture[str]) -> None:
    retried = await row_of(partition("FAILED", error_message="x" * 200, retry_attempt=2, retry_max=10))
    for_good = await row_of(partition("FAILED", error_message="diverged\nat 5", retry_attempt=-1))
    again = await row_of(partition("MIRRORING", error_message="source away"))
    mirror_status.print_failed([retried, for_good, again])
    out = capsys.readouterr().out
    assert "2/10" in out and "NonRetryable" in out and "diverged at 5" in out
    assert out.splitlines()[3].split() == ["m", "t", "0", "now", "source", "away"]
    assert "x" * 160 in out and "x" * 161 not in out


async def test_trouble_is_told_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Between two tries a partition is MIRRORING with the last lag that it saw."""
    away = partition("MIRRORING", error_message="away", source_offset=3, destination_offset=3)
    states = [away, partition("FAILED"), partition("STOPPED", error_message="a refused start"), partition("MIRRORING")]
    described = await mirror_status.describe_one(Destination(states), "m")  # type: ignore[arg-type]
    mirror_status.print_trouble(described)
    assert capsys.readouterr().out == "in trouble: 2 of 4; see why: kmirror mirror describe m --failed\n"
    mirror_status.print_trouble(await mirror_status.describe_one(Destination([partition()]), "m"))  # type: ignore[arg-type]
    assert capsys.readouterr().out == ""


async def pause(destination: Destination, timeout_s: float = 30.0, *, wait: bool = True) -> mirror_actions.Outcome:
    return await mirror_actions.pause(
        destination,  # type: ignore[arg-type]
        "m",
        ["t"],
        waiting=Waiting(timeout_s=timeout_s, wait=wait),
    )


PAUSED_OK = {"PauseMirrorTopicsRequest": PauseMirrorTopicsResponse(topics=[PauseMirrorTopicResult(topic_name="t")])}


async def test_waiting_until_every_partition_is_there(autojump_clock: MockClock) -> None:
    both = [partition("PAUSED", partition_index=0), partition("PAUSED", partition_index=1)]
    one = [both[0], partition("PAUSING", partition_index=1)]
    outcome = await pause(Destination(one, one, one, both, answers=PAUSED_OK))
    assert (outcome.failed, outcome.done) == ([], ["Paused t: PAUSED."])


async def test_waiting_ends_in_time_and_says_what_is_missing(autojump_clock: MockClock) -> None:
    stuck = [partition("PAUSED", partition_index=0), partition("PAUSING", partition_index=1)]
    began = trio.current_time()
    outcome = await pause(Destination(stuck, answers=PAUSED_OK), timeout_s=7)
    assert trio.current_time() - began == pytest.approx(7, abs=0.6)
    assert [(topic, index, state) for topic, index, state, _ in outcome.failed] == [("t", 1, "PAUSING")]
    assert "within 7 s" in outcome.failed[0][3]


async def test_waiting_is_given_up_when_there_is_no_hope(autojump_clock: MockClock) -> None:
    broken = [partition("FAILED", error_message="diverged", retry_attempt=-1)]
    began = trio.current_time()
    outcome = await pause(Destination(broken, answers=PAUSED_OK))
    assert trio.current_time() - began < 1
    assert outcome.failed == [("t", 0, "FAILED", "diverged")]


async def test_no_wait() -> None:
    outcome = await pause(Destination([partition()], answers=PAUSED_OK), wait=False)
    assert outcome.failed == []
    assert "Accepted" in outcome.done[0]


async def test_a_refused_topic_is_a_failure_with_its_reason() -> None:
    refused = PauseMirrorTopicsResponse(
        error_code=141, topics=[PauseMirrorTopicResult(topic_name="t", error_code=141, error_message="t is stopped")]
    )
    outcome = await pause(Destination([partition("STOPPED")], answers={"PauseMirrorTopicsRequest": refused}))
    assert outcome.done == []
    assert "t is stopped" in outcome.failed[0][3]
    whole = PauseMirrorTopicsResponse(error_code=137, error_message="no mirror m")
    with pytest.raises(Failure, match="no mirror m"):
        await pause(Destination([partition()], answers={"PauseMirrorTopicsRequest": whole}))


async def test_a_list_that_matches_nothing() -> None:
    with pytest.raises(Failure, match="no topic of mirror m matches x"):
        await mirror_actions.stop(Destination([partition()]), "m", ["x.*"], waiting=Waiting())  # type: ignore[arg-type]


STOPPED_OK = {
    "StopMirrorTopicsRequest": StopMirrorTopicsResponse(
        topics=[
            StopMirrorTopicResult(
                topic_name="t", partitions=[StoppedPartition(last_mirrored_offset=6, aborted_transactions=1)]
            )
        ]
    )
}


async def test_stop_sends_names_and_patterns_and_shows_what_was_left(autojump_clock: MockClock) -> None:
    destination = Destination([partition("STOPPED")], answers=STOPPED_OK)
    outcome = await mirror_actions.stop(destination, "m", ["t.*"], waiting=Waiting())  # type: ignore[arg-type]
    request = next(message for message in destination.requests if isinstance(message, StopMirrorTopicsRequest))
    assert ([topic.topic_name for topic in request.topics], request.patterns) == (["t"], ["t.*"])
    assert list(outcome.details[0]) == ["t", 0, 6, None, None, 1]
    assert outcome.done == ["Stopped t: STOPPED."]


async def test_a_stop_that_takes_long_is_waited_for(autojump_clock: MockClock) -> None:
    unfinished = StopMirrorTopicResult(topic_name="t", error_code=7, error_message="the stop goes on")
    late = {"StopMirrorTopicsRequest": StopMirrorTopicsResponse(error_code=7, topics=[unfinished])}
    destination = Destination([partition("STOPPING")], [partition("STOPPING")], [partition("STOPPED")], answers=late)
    outcome = await mirror_actions.stop(destination, "m", ["t"], waiting=Waiting())  # type: ignore[arg-type]
    assert (outcome.failed, outcome.done) == ([], ["Stopped t: STOPPED."])


def recovered(code: int = 0, message: str | None = None) -> dict[str, Any]:
    result = RecoverMirrorTopicResult(topic_name="t", error_code=code, error_message=message)
    return {"RecoverMirrorTopicsRequest": RecoverMirrorTopicsResponse(topics=[result])}


async def recover(
    *states: list[DescribedMirrorPartition], answers: dict[str, Any], waiting: Waiting = WAITING
) -> mirror_actions.Outcome:
    destination = Destination(*states, answers=answers)
    return await mirror_actions.recover(destination, "m", ["t"], waiting=waiting)  # type: ignore[arg-type]


async def test_recover_waits_for_what_had_failed_and_for_nothing_else(autojump_clock: MockClock) -> None:
    """A partition goes on in the state that it failed from, which need not be MIRRORING."""
    others = [partition("PAUSED", partition_index=2), partition("PREPARING", partition_index=3)]

    def pair(one: str, two: str) -> list[DescribedMirrorPartition]:
        return [partition(one), partition(two, partition_index=1), *others]

    outcome = await recover(
        pair("FAILED", "FAILED"),
        pair("PREPARING", "STOPPING"),
        pair("MIRRORING", "STOPPED"),
        answers=recovered(),
    )
    assert (outcome.done, outcome.failed) == (["Recovered t: MIRRORING, STOPPED."], [])


async def test_recover_says_what_fails_again(autojump_clock: MockClock) -> None:
    lasting = [partition("FAILED", error_message="as before", retry_attempt=-1)]
    outcome = await recover(lasting, [partition("PREPARING")], lasting, answers=recovered())
    assert (outcome.done, outcome.failed) == ([], [("t", 0, "FAILED", "as before")])
    slow = await recover(lasting, [partition("PREPARING")], answers=recovered(), waiting=Waiting(timeout_s=3))
    assert slow.failed == [("t", 0, "PREPARING", "not going on within 3 s")]


async def test_recover_of_what_has_not_failed_and_what_is_refused() -> None:
    healthy = [partition("MIRRORING")]
    assert (await recover(healthy, answers=recovered())).done == ["Nothing had failed in t."]
    refused = await recover([partition("FAILED")], answers=recovered(145, "start it again"))
    assert refused.done == []
    assert refused.failed == [("t", None, None, "INVALID_CLUSTER_MIRROR_STATE (145): start it again")]
    accepted = await recover([partition("FAILED")], answers=recovered(), waiting=Waiting(wait=False))
    assert (accepted.done, accepted.failed) == (["Accepted: t will go on."], [])


async def test_promote_waits_until_nothing_is_missing(autojump_clock: MockClock) -> None:
    behind = [partition(source_offset=10, destination_offset=8)]
    caught_up = [partition(source_offset=10, destination_offset=10)]
    stopped = [partition("STOPPED")]
    destination = Destination(behind, behind, caught_up, stopped, answers=STOPPED_OK)
    outcome = await mirror_actions.promote(destination, "m", ["t"], max_lag=0, waiting=Waiting())  # type: ignore[arg-type]
    assert outcome.failed == []
    stops = [message for message in destination.requests if isinstance(message, StopMirrorTopicsRequest)]
    assert len(stops) == 1


async def test_promote_stops_nothing_when_it_does_not_catch_up(autojump_clock: MockClock) -> None:
    destination = Destination([partition(source_offset=10, destination_offset=8)], answers=STOPPED_OK)
    outcome = await mirror_actions.promote(destination, "m", ["t"], max_lag=1, waiting=Waiting())  # type: ignore[arg-type]
    assert "nothing was stopped" in outcome.failed[0][3]
    assert not any(isinstance(message, StopMirrorTopicsRequest) for message in destination.requests)


async def test_promote_does_not_believe_the_lag_of_a_source_that_is_away(autojump_clock: MockClock) -> None:
    away = [partition(source_offset=10, destination_offset=10, error_message="the source cannot be reached")]
    destination = Destination(away, answers=STOPPED_OK)
    outcome = await mirror_actions.promote(destination, "m", ["t"], max_lag=0, waiting=Waiting())  # type: ignore[arg-type]
    assert outcome.failed == [("t", 0, "MIRRORING", "the source cannot be reached")]
    assert not any(isinstance(message, StopMirrorTopicsRequest) for message in destination.requests)
    back = [partition(source_offset=12, destination_offset=12)]
    destination = Destination(away, back, [partition("STOPPED")], answers=STOPPED_OK)
    outcome = await mirror_actions.promote(destination, "m", ["t"], max_lag=0, waiting=Waiting())  # type: ignore[arg-type]
    assert (outcome.failed, outcome.done) == ([], ["Stopped t: STOPPED."])


def test_where_a_topic_begins() -> None:
    assert mirror_actions.start_point(None) == EARLIEST
    assert mirror_actions.start_point("earliest") == EARLIEST
    assert mirror_actions.start_point("latest") == LATEST
    assert mirror_actions.start_point("1700000000000") == 1700000000000
    assert mirror_actions.start_point("1970-01-01T00:00:01+00:00") == 1000
    with pytest.raises(BadUsage):
        mirror_actions.start_point("yesterday")


async def test_active_groups_are_named_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    class Cluster:
        async def request(self, _message: Any) -> DescribeClusterMirrorsResponse:
            mirrors = [DescribedMirror(mirror_name="m", active_groups=["a", "b"]), DescribedMirror(mirror_name="quiet")]
            return DescribeClusterMirrorsResponse(mirrors=mirrors)

    mirror_status.print_active_groups(await mirror_status.describe(Cluster()))  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert said == "mirror m: offsets are not taken from the source for active groups: a, b\n"
