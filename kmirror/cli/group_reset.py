"""Where `group reset` moves a group to, and the moving.

Targets are computed per partition and clamped to what the log still holds, as Kafka's tool does it; everything that is
not as asked is said. Only a group without members is moved: a member would overwrite it with its own position.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kmirror.cli import group_offsets
from kmirror.cli.coordinator import Coordinator
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.group_offsets import Committed
from kmirror.cli.group_status import INACTIVE, Group
from kmirror.cli.queries import names_among, offsets_at
from kmirror.cli.session import refusal, time_ms
from kmirror.source.calls import EARLIEST, LATEST, Partition
from kmirror.source.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Target:
    """`--to`, read. Exactly one of the two is set."""

    offset: int | None = None
    timestamp: int | None = None
    """In ms, or `EARLIEST`, `LATEST`."""


@dataclass(slots=True, kw_only=True)
class Move:
    topic: str
    partition: int
    before: int | None
    after: int
    note: str = ""
    error: str | None = None


def target(text: str) -> Target:
    """`earliest`, `latest`, an offset, or a time in ISO 8601 (UTC where it names no zone). Raises BadUsage."""
    if text in ("earliest", "latest"):
        return Target(timestamp=EARLIEST if text == "earliest" else LATEST)
    if text.isascii() and text.isdigit():
        return Target(offset=int(text))
    try:
        return Target(timestamp=time_ms(text))
    except ValueError as error:
        raise BadUsage(
            f"--to {text} is neither earliest, latest, an offset nor a time such as 2026-11-30T12:00:00"
        ) from error


async def partitions_of(
    cluster: Cluster, group: Group, items: list[str], only: Iterable[int] | None
) -> list[Partition]:
    """Partitions of the topics that `items` names, and of the group's topics that its expressions match.

    `only`: just these partitions of each. Raises Failure for a topic that is not there, and for nothing found.
    """
    names = names_among(items, (row.topic for row in group.rows))
    if not names:
        raise Failure(
            f"group {group.group} has no offsets of a topic that matches {','.join(items)}",
            next_step=f"See what it has with: kmirror group describe {group.group}",
        )
    response = await cluster.metadata(sorted(names))
    unknown = [f"{topic.name}: {refusal(topic.error_code, None)}" for topic in response.topics if topic.error_code]
    if unknown:
        raise Failure("; ".join(unknown), next_step="List what there is with: kmirror topic list")
    wanted = None if only is None else set(only)
    found = sorted(
        (topic.name, partition.partition_index)
        for topic in response.topics
        for partition in topic.partitions
        if wanted is None or partition.partition_index in wanted
    )
    missing = (wanted or set()) - {index for _, index in found}
    if missing:
        raise Failure(f"no topic of {', '.join(sorted(names))} has partition {', '.join(map(str, sorted(missing)))}")
    return found


def check_inactive(group: Group) -> None:
    """Raises Failure when the group has members."""
    if group.state not in INACTIVE:
        step = f"Stop them first; who they are: kmirror group describe {group.group} --members"
        if any(member.instance_id for member in group.members):
            step += "\nOne with an INSTANCE-ID stays a member after its end until its session times out."
        count = len(group.members)
        raise Failure(
            f"group {group.group} is {group.state}: {count} member{'s' * (count != 1)} would go on where they are",
            next_step=step,
        )


async def plan(cluster: Cluster, group: Group, partitions: list[Partition], to: Target) -> list[Move]:
    """Where each partition goes. Raises Failure, PeerError, DecodeError."""
    before = {(row.topic, row.partition): row.committed for row in group.rows}
    moves = []
    for topic, indexes in group_offsets.by_topic(partitions).items():
        earliest = await offsets_at(cluster, topic, indexes, EARLIEST)
        latest = await offsets_at(cluster, topic, indexes, LATEST)
        timed: dict[int, int] = {}
        if to.timestamp is not None and to.timestamp >= 0:
            timed = await offsets_at(cluster, topic, indexes, to.timestamp)
        for index in indexes:
            after, note = _place(to, earliest=earliest[index], latest=latest[index], timed=timed.get(index))
            committed = before.get((topic, index))
            moves.append(
                Move(
                    topic=topic,
                    partition=index,
                    before=committed.offset if committed else None,
                    after=after,
                    note=note,
                )
            )
    return moves


def _place(to: Target, *, earliest: int, latest: int, timed: int | None) -> tuple[int, str]:
    """An offset that the log holds (or its end), and what is to be said about it."""
    if to.offset is not None:
        if to.offset < earliest:
            return earliest, f"{to.offset} is before the first offset {earliest}"
        if to.offset > latest:
            return latest, f"{to.offset} is beyond the end {latest}"
        return to.offset, ""
    if to.timestamp == EARLIEST:
        return earliest, ""
    if to.timestamp == LATEST:
        return latest, ""
    if timed is None or timed < 0:
        return latest, "no record is that new: the end"
    return timed, ""


async def carry_out(coordinator: Coordinator, moves: list[Move]) -> None:
    """Commit; a refusal goes to the `error` of its move. Raises Failure (no coordinator), PeerError, DecodeError."""
    offsets = {(move.topic, move.partition): Committed(move.after) for move in moves}
    codes = await group_offsets.commit(coordinator, offsets)
    for move in moves:
        code = codes.get((move.topic, move.partition), -1)
        move.error = refusal(code, None) if code else None


def as_json(move: Move) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "before": move.before,
        "after": move.after,
        "note": move.note or None,
        "error": move.error,
    }
