"""What a mirror is doing: one row per partition, waiting for a state, tables.

A row is what `mirror describe --json` promises to scripts: mirror, topic, partition, state, phase, source_offset,
destination_offset, lag, leader_epoch, last_mirror_epoch, last_mirror_offset, gaps, error, retry. Unknown is null,
never -1. PAUSED keeps the last offsets seen; STOPPED has null source_offset and lag. Times are ISO 8601 UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import click
import trio

from kmirror.cli.display import iso_time, known, print_table
from kmirror.cli.failure import Failure
from kmirror.cli.patience import Patience
from kmirror.cli.session import check
from kmirror.protocol.api.describe_cluster_mirrors import DescribeClusterMirrorsRequest, DescribedMirrorPartition
from kmirror.source.cluster import Cluster

Row = dict[str, Any]
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
"""Waiting looks often at first, since most states are reached at once, then less and less."""
ERROR_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Description:
    """One mirror and its partitions."""

    name: str
    source_bootstrap: str
    source_cluster_id: str
    rows: list[Row]
    active_groups: Sequence[str] = ()
    """Groups whose offsets are not taken from the source, since they have members at the destination."""


async def describe(cluster: Cluster, name: str | None = None) -> list[Description]:
    """All mirrors, or one. Raises Failure when it does not exist."""
    request = DescribeClusterMirrorsRequest(
        mirror_names=None if name is None else [name],
        topics=None,
        include_mirror_state=True,
        include_mirror_offset=True,
    )
    response = await cluster.request(request)
    check(response.error_code, response.error_message, "mirrors cannot be described")
    found = []
    for mirror in response.mirrors:
        check(
            mirror.error_code,
            mirror.error_message,
            f"mirror {mirror.mirror_name} cannot be described",
            next_step="List what there is with: kmirror mirror list",
        )
        rows = [
            _row(mirror.mirror_name, topic.topic_name, partition)
            for topic in sorted(mirror.topics, key=lambda topic: topic.topic_name)
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        ]
        found.append(
            Description(
                mirror.mirror_name,
                mirror.source_bootstrap or "",
                mirror.source_cluster_id or "",
                rows,
                list(mirror.active_groups),
            )
        )
    return sorted(found, key=lambda mirror: mirror.name)


async def describe_one(cluster: Cluster, name: str) -> Description:
    """Raises Failure when there is no such mirror."""
    found = [mirror for mirror in await describe(cluster, name) if mirror.name == name]
    if not found:
        raise Failure(f"there is no mirror {name}", next_step="List what there is with: kmirror mirror list")
    return found[0]


def _row(mirror: str, topic: str, partition: DescribedMirrorPartition) -> Row:
    stopped = partition.state_value == "STOPPED"
    source = None if stopped else known(partition.source_offset)
    destination = known(partition.destination_offset)
    lag = None if source is None or destination is None else max(0, source - destination)
    return {
        "mirror": mirror,
        "topic": topic,
        "partition": partition.partition_index,
        "state": partition.state_value,
        "phase": partition.phase or None,
        "source_offset": source,
        "destination_offset": destination,
        "lag": lag,
        "leader_epoch": known(partition.leader_epoch),
        "last_mirror_epoch": known(partition.last_mirror_epoch),
        "last_mirror_offset": known(partition.last_mirror_offset),
        "gaps": _gaps(partition),
        "error": partition.error_message or None,
        "retry": _retry(partition),
    }


def _gaps(partition: DescribedMirrorPartition) -> list[Row]:
    return [{"from": gap.from_offset, "to": gap.to_offset, "at": iso_time(gap.at_ms)} for gap in partition.gaps]


def _retry(partition: DescribedMirrorPartition) -> Row | None:
    """Null unless the partition has failed, or is being tried again."""
    if partition.state_value != "FAILED" and partition.retry_attempt <= 0:
        return None
    next_at_ms = partition.retry_next_at_ms
    return {
        "attempt": known(partition.retry_attempt),
        "max": known(partition.retry_max),
        "next_at": iso_time(next_at_ms) if next_at_ms >= 0 else None,
        "retryable": partition.retry_attempt >= 0,
    }


# --- tables -----------------------------------------------------------------------------------------------------------


def print_rows(rows: Sequence[Row]) -> None:
    columns = ("mirror", "topic", "partition", "source_offset", "destination_offset", "lag", "state", "phase")
    print_table(
        [name.upper().replace("_", "-") for name in columns],
        [[row[name] for name in columns] for row in rows],
        empty="no mirror topics; start some with: kmirror mirror start NAME --topics LIST",
    )


def print_active_groups(mirrors: Sequence[Description]) -> None:
    """Below the table, and only where there are any."""
    for mirror in mirrors:
        if mirror.active_groups:
            names = ", ".join(mirror.active_groups)
            click.echo(f"mirror {mirror.name}: offsets are not taken from the source for active groups: {names}")


def in_trouble(row: Row) -> bool:
    """FAILED, or being tried again: the error stays until a fetch succeeds. A wished rest is none."""
    return row["state"] == "FAILED" or (row["error"] is not None and row["state"] not in ("PAUSED", "STOPPED"))


def print_trouble(mirror: Description) -> None:
    """Below the table, and only where there is any: a state and a lag alone do not tell it."""
    count = sum(map(in_trouble, mirror.rows))
    if count:
        click.echo(
            f"in trouble: {count} of {len(mirror.rows)}; see why: kmirror mirror describe {mirror.name} --failed"
        )


def print_failed(rows: Sequence[Row]) -> None:
    """RETRY is n/max, NonRetryable, or `now` while it is being tried again."""
    cells = []
    for row in rows:
        retry = row["retry"] or {}
        text = "-" if row["state"] == "FAILED" else "now"
        if retry:
            text = f"{retry['attempt']}/{retry['max'] or '?'}" if retry["retryable"] else "NonRetryable"
        error = (row["error"] or "").replace("\n", " ")
        cells.append((row["mirror"], row["topic"], row["partition"], text, error[:ERROR_WIDTH]))
    print_table(("MIRROR", "TOPIC", "PARTITION", "RETRY", "ERROR"), cells, empty="nothing has failed")


# --- waiting ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Waited:
    """`missing`: partitions that are not where they should be; empty when all is reached."""

    rows: list[Row]
    missing: list[Row]
    absent: list[str]
    """Topics of which no partition was shown at all."""

    @property
    def reached(self) -> bool:
        return not self.missing and not self.absent


async def wait_for(
    cluster: Cluster,
    mirror: str,
    topics: Collection[str],
    *,
    reached: Callable[[Row], bool],
    hopeless: Callable[[Row], bool],
    timeout_s: float,
    watch: Callable[[list[Row]], None] | None = None,
) -> Waited:
    """Look until every partition of `topics` has `reached`, one is `hopeless`, or time is up."""
    patience = Patience(trio.current_time() + timeout_s, first_pause_s=FIRST_PAUSE_S, longest_pause_s=LONGEST_PAUSE_S)
    while True:
        rows = [row for row in (await describe_one(cluster, mirror)).rows if row["topic"] in topics]
        if watch is not None:
            watch(rows)
        absent = sorted(set(topics) - {row["topic"] for row in rows})
        result = Waited(rows, [row for row in rows if not reached(row)], absent)
        if result.reached or patience.over or any(hopeless(row) for row in result.missing):
            return result
        await patience.pause()


def failed_for_good(row: Row) -> bool:
    """FAILED and nobody retries: waiting longer is of no use."""
    return row["state"] == "FAILED" and not (row["retry"] or {}).get("retryable", False)
