"""Kafka's `range` assignment: per topic, members in order, each a run of neighbouring partitions. Pure.

The same answer as Java's RangeAssignor for members without racks, so that any member of a mixed group may lead. Static
members come before the others and are ordered by their instance id, which outlives restarts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NAME = "range"


@dataclass(frozen=True, slots=True)
class Subscriber:
    member_id: str
    topics: Sequence[str]
    instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str, str]:
        return (self.instance_id is None, self.instance_id or "", self.member_id)


def assign(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> dict[str, dict[str, list[int]]]:
    """Member id -> topic -> partitions. A topic without a count has no partitions; every member has an entry."""
    assigned: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in subscribers}
    for topic in sorted({topic for member in subscribers for topic in member.topics}):
        members = sorted((member for member in subscribers if topic in member.topics), key=lambda member: member.order)
        each, extra = divmod(partition_counts.get(topic, 0), len(members))
        start = 0
        for position, member in enumerate(members):
            count = each + (1 if position < extra else 0)
            if count:
                assigned[member.member_id][topic] = list(range(start, start + count))
            start += count
    return assigned
