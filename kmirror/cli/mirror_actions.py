"""What the mirror commands do: one request each, then waiting for the state it asks for.

Topic lists are resolved here: `start` at the source, the others among the mirror's own topics. Requests carry the names
that were found, and regular expressions as patterns too, so that the broker's discovery follows the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from kmirror.cli import mirror_source
from kmirror.cli.client_properties import ClientProperties
from kmirror.cli.display import known
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.mirror_status import Row, Waited, describe_one, failed_for_good, wait_for
from kmirror.cli.queries import is_pattern, names_among
from kmirror.cli.session import check, comma_list, refusal, time_ms
from kmirror.protocol import mirror_numbers
from kmirror.protocol.api import create_cluster_mirror, describe_configs, start_mirror_topics, stop_mirror_topics
from kmirror.protocol.api.delete_cluster_mirror import DeleteClusterMirrorRequest
from kmirror.protocol.api.list_cluster_mirrors import ListClusterMirrorsRequest
from kmirror.protocol.api.pause_mirror_topics import PauseMirrorTopic, PauseMirrorTopicsRequest
from kmirror.protocol.api.recover_mirror_topics import RecoverMirrorTopic, RecoverMirrorTopicsRequest
from kmirror.protocol.api.resume_mirror_topics import ResumeMirrorTopic, ResumeMirrorTopicsRequest
from kmirror.protocol.errors import ErrorCode
from kmirror.source.calls import EARLIEST, LATEST
from kmirror.source.cluster import Cluster

ANSWER_MARGIN_MS = 30_000
"""A stop may take 25 s before the broker answers that it goes on; the request waits longer than that."""
STOP_GOES_ON = (ErrorCode.REQUEST_TIMED_OUT,)
"""The broker's way to say that a stop takes longer than it lets a request wait."""


SETTLED = ("MIRRORING", "PAUSED", "STOPPED")
"""States in which a partition stays; it may have failed on its way to any of them."""


@dataclass(frozen=True, slots=True)
class Waiting:
    timeout_s: float = 30.0
    wait: bool = True


@dataclass(slots=True)
class Outcome:
    """`failed`: (topic, partition or None, state or None, why); anything in it makes the exit status 1."""

    done: list[str] = field(default_factory=list)
    details: list[Sequence[Any]] = field(default_factory=list)
    detail_columns: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    failed: list[Sequence[Any]] = field(default_factory=list)


async def create(cluster: Cluster, name: str, configs: dict[str, str], source: ClientProperties) -> None:
    """Raises Failure (refused) and CannotReach (the source, whose id has to be found out)."""
    if "source.cluster.id" not in configs:
        configs = configs | {
            "source.cluster.id": await mirror_source.cluster_id_of(configs["bootstrap.servers"], source)
        }
    request = create_cluster_mirror.CreateClusterMirrorRequest(
        mirror_name=name,
        configs=[
            create_cluster_mirror.ClusterMirrorConfig(name=key, value=value) for key, value in sorted(configs.items())
        ],
    )
    response = await cluster.request(request)
    steps: dict[int, str] = {
        ErrorCode.CLUSTER_MIRROR_ALREADY_EXISTS: f"Change it with: kmirror config alter mirror {name} --set KEY=VALUE",
        ErrorCode.INVALID_CONFIG: "The settings of a mirror are listed in docs/MIRRORING.md, Configuration.",
    }
    check(
        response.error_code,
        response.error_message,
        f"mirror {name} was not created",
        next_step=steps.get(response.error_code, ""),
    )


async def listing(cluster: Cluster) -> list[Row]:
    response = await cluster.request(ListClusterMirrorsRequest(include_topic_names=True))
    check(response.error_code, response.error_message, "mirrors cannot be listed")
    return [
        {
            "mirror": mirror.mirror_name,
            "source_cluster_id": mirror.source_cluster_id or None,
            "source_bootstrap": mirror.source_bootstrap or None,
            "topics": sorted(mirror.topic_names or []),
        }
        for mirror in sorted(response.mirrors, key=lambda mirror: mirror.mirror_name)
    ]


async def delete(cluster: Cluster, name: str) -> None:
    response = await cluster.request(DeleteClusterMirrorRequest(mirror_name=name))
    steps: dict[int, str] = {
        ErrorCode.CLUSTER_MIRROR_NOT_EMPTY: f"Stop its topics first: kmirror mirror stop {name} --topics '.*'",
        ErrorCode.UNKNOWN_CLUSTER_MIRROR: "List what there is with: kmirror mirror list",
    }
    check(
        response.error_code,
        response.error_message,
        f"mirror {name} was not deleted",
        next_step=steps.get(response.error_code, ""),
    )


# --- start ------------------------------------------------------------------------------------------------------------


async def start(
    cluster: Cluster,
    name: str,
    items: list[str],
    *,
    properties: ClientProperties,
    start_from: str | None,
    replace: bool,
    waiting: Waiting,
) -> Outcome:
    mirror = await describe_one(cluster, name)
    # a start takes its own items out of topics.exclude again, where a stop of the same pattern may have put them
    excluded = [item for item in await _excluded(cluster, name) if item not in items]
    found = await mirror_source.resolve(mirror.source_bootstrap, properties, items, excluded)
    outcome = Outcome()
    if found.reason:
        outcome.notes.append(
            f"the source cannot be asked from here ({found.reason}); the broker looks topics up itself"
        )
    outcome.failed += [(topic, None, None, "the source has no such topic") for topic in found.unknown]
    if not found.topics and not found.patterns:
        return outcome
    request = start_mirror_topics.StartMirrorTopicsRequest(
        mirror_name=name,
        topics=[
            start_mirror_topics.StartMirrorTopic(
                topic_id=topic.topic_id, topic_name=topic.name, num_partitions=topic.partition_count
            )
            for topic in found.topics
        ],
        include_patterns=found.patterns,
        replace=replace,
        start_from=start_point(start_from),
    )
    response = await cluster.request(request, timeout_ms=ANSWER_MARGIN_MS + int(waiting.timeout_s * 1000))
    accepted = _accepted(response, outcome, f"mirror {name}: topics were not started", next_step=_lists_step(name))
    if not accepted:
        if not outcome.failed:
            outcome.notes.append("no topic matches yet; the patterns are kept and topics start as they appear")
        return outcome
    return await _finish(cluster, name, accepted, "MIRRORING", "Started", waiting, outcome)


def start_point(text: str | None) -> int:
    """`earliest`, `latest` or a time, as ListOffsets names them. Raises BadUsage.

    A time is ms since 1970 or ISO 8601, UTC where it names no zone, as in `group reset --to`.
    """
    if text is None or text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if text.isdigit():
        return int(text)
    try:
        return time_ms(text)
    except ValueError as error:
        raise BadUsage(f"--from {text} is neither earliest, latest nor a time such as 2026-11-30T12:00:00") from error


async def _excluded(cluster: Cluster, name: str) -> list[str]:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=mirror_numbers.CONFIG_RESOURCE_TYPE, resource_name=name, configuration_keys=["topics.exclude"]
    )
    response = await cluster.request(describe_configs.DescribeConfigsRequest(resources=[resource]))
    result = response.results[0]
    check(result.error_code, result.error_message, f"mirror {name} cannot be described")
    return comma_list(next((entry.value for entry in result.configs if entry.name == "topics.exclude"), ""))


# --- stop, pause, resume, recover -------------------------------------------------------------------------------------


async def stop(cluster: Cluster, name: str, items: list[str], *, waiting: Waiting) -> Outcome:
    names, _ = await _own_topics(cluster, name, items)
    request = stop_mirror_topics.StopMirrorTopicsRequest(
        mirror_name=name,
        topics=[stop_mirror_topics.StopMirrorTopic(topic_name=topic) for topic in names],
        patterns=[item for item in items if is_pattern(item)],
    )
    response = await cluster.request(request, timeout_ms=ANSWER_MARGIN_MS + int(waiting.timeout_s * 1000))
    outcome = Outcome()
    accepted = _accepted(response, outcome, f"mirror {name}: topics were not stopped", goes_on=STOP_GOES_ON)
    for topic in response.topics:
        for partition in getattr(topic, "partitions", None) or []:
            outcome.details.append(
                (
                    topic.topic_name,
                    partition.partition_index,
                    known(partition.last_mirrored_offset),
                    known(partition.source_end_offset),
                    known(partition.missing_offsets),
                    partition.aborted_transactions,
                )
            )
    outcome.detail_columns = (
        "TOPIC",
        "PARTITION",
        "LAST-MIRRORED-OFFSET",
        "SOURCE-END-OFFSET",
        "MISSING-OFFSETS",
        "ABORTED-TRANSACTIONS",
    )
    return await _finish(cluster, name, accepted, "STOPPED", "Stopped", waiting, outcome)


async def pause(cluster: Cluster, name: str, items: list[str], *, waiting: Waiting) -> Outcome:
    names, _ = await _own_topics(cluster, name, items)
    topics = [PauseMirrorTopic(topic_name=topic) for topic in names]
    response = await cluster.request(PauseMirrorTopicsRequest(mirror_name=name, topics=topics))
    outcome = Outcome()
    accepted = _accepted(response, outcome, f"mirror {name}: topics were not paused")
    return await _finish(cluster, name, accepted, "PAUSED", "Paused", waiting, outcome)


async def resume(cluster: Cluster, name: str, items: list[str], *, waiting: Waiting) -> Outcome:
    names, _ = await _own_topics(cluster, name, items)
    topics = [ResumeMirrorTopic(topic_name=topic) for topic in names]
    response = await cluster.request(ResumeMirrorTopicsRequest(mirror_name=name, topics=topics))
    outcome = Outcome()
    accepted = _accepted(response, outcome, f"mirror {name}: topics were not resumed")
    return await _finish(cluster, name, accepted, "MIRRORING", "Resumed", waiting, outcome)


async def recover(cluster: Cluster, name: str, items: list[str], *, waiting: Waiting) -> Outcome:
    """Let what has failed go on in the state that it failed from; what has not failed is left alone."""
    names, rows = await _own_topics(cluster, name, items)
    failed = {(row["topic"], row["partition"]) for row in rows if row["topic"] in names and row["state"] == "FAILED"}
    topics = [RecoverMirrorTopic(topic_name=topic) for topic in names]
    response = await cluster.request(RecoverMirrorTopicsRequest(mirror_name=name, topics=topics))
    outcome = Outcome()
    accepted = set(_accepted(response, outcome, f"mirror {name}: topics were not recovered"))
    failed = {key for key in failed if key[0] in accepted}
    if not failed:
        if accepted:
            outcome.done.append(f"Nothing had failed in {', '.join(sorted(accepted))}.")
        return outcome
    concerned = sorted({topic for topic, _ in failed})
    if not waiting.wait:
        outcome.done.append(f"Accepted: {', '.join(concerned)} will go on.")
        return outcome

    def settled(row: Row) -> bool:
        return (row["topic"], row["partition"]) not in failed or row["state"] in SETTLED

    waited = await wait_for(
        cluster, name, concerned, reached=settled, hopeless=failed_for_good, timeout_s=waiting.timeout_s
    )
    outcome.failed += _missing(waited, f"not going on within {waiting.timeout_s:g} s")
    lost = {row["topic"] for row in waited.missing} | set(waited.absent)
    for topic in concerned:
        if topic not in lost:
            mine = [row for row in waited.rows if row["topic"] == topic and (topic, row["partition"]) in failed]
            states = sorted({row["state"] for row in mine})
            outcome.done.append(f"Recovered {topic}: {', '.join(states)}.")
    return outcome


async def promote(cluster: Cluster, name: str, items: list[str], *, max_lag: int, waiting: Waiting) -> Outcome:
    """Wait until every partition has caught up, then stop. Nothing is stopped when that does not happen in time."""
    began_s = trio.current_time()
    names, rows = await _own_topics(cluster, name, items)
    pending = {row["topic"] for row in rows if row["topic"] in names and row["state"] != "STOPPED"}

    def caught_up(row: Row) -> bool:
        if row["state"] == "STOPPED":
            return True
        # an error means that the last fetch failed: the source's offsets are old, and so is the lag
        current = row["state"] == "MIRRORING" and row["error"] is None
        return current and row["lag"] is not None and row["lag"] <= max_lag

    waited = await wait_for(
        cluster, name, pending, reached=caught_up, hopeless=failed_for_good, timeout_s=waiting.timeout_s
    )
    if not waited.reached:
        outcome = Outcome(failed=_missing(waited, f"lag is not down to {max_lag}; nothing was stopped"))
        outcome.notes.append(f"To fail over with what has arrived: kmirror mirror stop {name} --topics LIST")
        return outcome
    left_s = max(1.0, waiting.timeout_s - (trio.current_time() - began_s))
    return await stop(cluster, name, items, waiting=Waiting(timeout_s=left_s, wait=waiting.wait))


async def _own_topics(cluster: Cluster, name: str, items: list[str]) -> tuple[list[str], list[Row]]:
    """Names in `items` as they are, and the mirror's topics that its expressions match. Raises Failure for none."""
    rows = (await describe_one(cluster, name)).rows
    names = names_among(items, (row["topic"] for row in rows))
    if not names:
        raise Failure(
            f"no topic of mirror {name} matches {','.join(items)}",
            next_step=f"See what it has with: kmirror mirror describe {name}",
        )
    return sorted(names), rows


# --- after the answer -------------------------------------------------------------------------------------------------


def _lists_step(name: str) -> str:
    """What to do when the mirror's lists stand in the way: a repeated stop of a pattern leaves it in topics.exclude."""
    return f"See topics.include and topics.exclude in: kmirror config describe mirror {name} --all"


def _accepted(
    response: Any, outcome: Outcome, what: str, *, goes_on: Collection[int] = (), next_step: str = ""
) -> list[str]:
    """Topics without an error, or with one that says "not yet" (`goes_on`); the others go to `outcome.failed`.

    Raises Failure for a refusal as a whole.
    """
    refused = [topic for topic in response.topics if topic.error_code and topic.error_code not in goes_on]
    if response.error_code not in goes_on and (not response.topics or not refused):
        step = next_step if response.error_code == ErrorCode.INVALID_REQUEST else ""
        check(response.error_code, response.error_message, what, next_step=step)
    outcome.failed += [
        (topic.topic_name, None, None, refusal(topic.error_code, topic.error_message)) for topic in refused
    ]
    failed = {topic.topic_name for topic in refused}
    return [topic.topic_name for topic in response.topics if topic.topic_name not in failed]


async def _finish(
    cluster: Cluster, name: str, topics: list[str], state: str, verb: str, waiting: Waiting, outcome: Outcome
) -> Outcome:
    if not topics:
        return outcome
    if not waiting.wait:
        outcome.done.append(f"Accepted: {', '.join(topics)} will be {state}.")
        return outcome
    waited = await wait_for(
        cluster, name, topics, reached=_is(state), hopeless=_hopeless(state), timeout_s=waiting.timeout_s
    )
    outcome.failed += _missing(waited, f"not {state} within {waiting.timeout_s:g} s")
    concerned = {row["topic"] for row in waited.missing} | set(waited.absent)
    reached = [topic for topic in topics if topic not in concerned]
    if reached:
        outcome.done.append(f"{verb} {', '.join(reached)}: {state}.")
    return outcome


def _is(state: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["state"] == state)


def _hopeless(state: str) -> Callable[[Row], bool]:
    """A stop works from FAILED too, so only for the others is a lasting failure the end."""
    return failed_for_good if state != "STOPPED" else lambda _: False


def _missing(waited: Waited, why: str) -> list[Sequence[Any]]:
    shown: list[Sequence[Any]] = [
        (row["topic"], row["partition"], row["state"], row["error"] or why) for row in waited.missing
    ]
    nowhere = f"{why}: it is not here yet; the broker's log says why"
    return shown + [(topic, None, None, nowhere) for topic in waited.absent]
