"""What the generator remembers: the topics, producers and sessions that its steps have made, and what a step is.

The generator sees only answers that both brokers gave alike (and the left one's numbers), so a story is the same for
the same seed. Ids that each broker chooses are kept per side.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conformance.differential.sides import MAIN_LANE, Side
from kmirror.protocol import registry

UNKNOWN_ID = bytes.fromhex("0badc0de0badc0de0badc0de0badc0de")
NO_ID = bytes(16)
Ids = tuple[bytes, bytes]


@dataclass(slots=True)
class StoryTopic:
    """A topic that exists on both sides. `ends` is the number of offsets given out per partition, as far as known."""

    name: str
    ids: Ids
    partition_count: int
    configs: dict[str, str] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    trimmed: bool = False
    """DeleteRecords may have moved its log start."""
    rewritten: bool = False
    """The broker compresses batches itself, or may have done so: stored bytes are then each broker's own."""


@dataclass(slots=True)
class Producer:
    """An idempotent producer: ids per side, and the next sequence per (topic, partition)."""

    ids: tuple[int, int]
    epoch: int = 0
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class FetchSession:
    """An incremental fetch session and the partitions in it."""

    ids: tuple[int, int]
    epoch: int
    by_id: bool
    partitions: list[tuple[str, int]]


@dataclass(slots=True, eq=False)
class Member:
    """A virtual member of a group on a connection of its own, which is its client id too.

    `ids` as each side gave them (None before). `joined`: it has been answered as a member, and nobody has removed it
    since. `pending`: it was told its id and has not come back. `held`: its request of that name is not answered yet.
    """

    lane: str
    number: int
    instance: str | None = None
    ids: tuple[str, str] | None = None
    protocols: list[tuple[str, bytes]] = field(default_factory=list)
    generation: int = -1
    synced: int = -1
    joined: bool = False
    pending: bool = False
    held: str = ""


@dataclass(slots=True, eq=False)
class StoryGroup:
    """A group by the classic protocol, as far as the answers told. `roster` is what the leader was given."""

    name: str
    protocol_type: str = "consumer"
    protocol: str | None = None
    members: list[Member] = field(default_factory=list)
    leader: Member | None = None
    generation: int = 0
    roster: list[tuple[str, str]] = field(default_factory=list)
    past: list[tuple[str, str]] = field(default_factory=list)
    lanes_made: int = 0
    exists: bool = False
    """Something of it is committed. Kafka makes a group for a commit that it then refuses, and shows it by chance."""
    joining: list[Member] = field(default_factory=list)
    """New ones whose first JoinGroup is not answered yet: members for the broker, with ids that nobody knows."""

    @property
    def present(self) -> list[Member]:
        return [member for member in self.members if member.joined]

    def drop(self, member: Member) -> None:
        """It is no member any more; what it was called is kept, for requests by those who have not noticed."""
        if member in self.members:
            self.members.remove(member)
        if member.ids is not None and member.ids not in self.past:
            self.past.append(member.ids)
        if self.leader is member:
            self.leader = None


@dataclass(slots=True, eq=False)
class TxnProducer:
    """A transactional id and who holds it now. `past` are identities that it had. `open`: it has a transaction."""

    transactional_id: str
    ids: tuple[int, int] = (-1, -1)
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    refused: dict[tuple[str, int], int] = field(default_factory=dict)
    """Lowest sequence of a partition that was refused. Kafka remembers it, and refuses later ones until that comes."""
    past: list[tuple[tuple[int, int], int]] = field(default_factory=list)
    partitions: set[tuple[str, int]] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: set[tuple[str, tuple[str, int]]] = field(default_factory=set)
    """Group and partition of what the open transaction commits."""

    def over(self) -> None:
        self.partitions.clear()
        self.groups.clear()
        self.offsets.clear()

    def becomes(self, ids: tuple[int, int], epoch: int) -> None:
        if (ids, epoch) != (self.ids, self.epoch):
            if self.epoch >= 0:
                self.past.append((self.ids, self.epoch))
            self.ids, self.epoch = ids, epoch
            self.sequences.clear()
            self.refused.clear()


@dataclass(slots=True)
class Step:
    """One request. `build` makes the message for a side; `after` learns from both answers.

    `wait_ms`: the broker may hold the answer that long, and whether it does is compared. `settle`: the request changes
    the cluster; nothing else is asked before both sides have taken it in. `facts`: see the rules.
    `group`: its members and held requests are looked at afterwards. `held_while`: the answer may wait as long as the
    group is in that state. `frees`: connections whose held requests this one gets answered. `again_for`: error codes
    for which each side is asked again until it says something else. `transactions`: ids that have to come to rest.
    """

    api: str
    version: int
    what: str
    build: Callable[[Side], Any]
    after: Callable[[Any, Any], None] | None = None
    answered: bool = True
    wait_ms: int = 0
    settle: bool = False
    repeatable: bool = True
    facts: frozenset[str] = frozenset()
    lane: str = MAIN_LANE
    group: str | None = None
    held_while: str = ""
    frees: tuple[str, ...] = ()
    again_for: frozenset[int] = frozenset()
    transactions: tuple[str, ...] = ()


class Story:
    """One sequence: its random numbers, its versions and what it has made so far."""

    def __init__(self, seed: int, sides: tuple[Side, Side], *, attempt: int = 0) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.sides = sides
        self.prefix = f"d{seed:x}" + (f".{attempt}" if attempt else "")
        self.topics: dict[str, StoryTopic] = {}
        self.producers: list[Producer] = []
        self.sessions: list[FetchSession] = []
        self.groups: dict[str, StoryGroup] = {}
        self.transactional: list[TxnProducer] = []
        self.names_made = 0
        self.zstd_topics = False
        """Some topic was configured for zstd, which kmirror refuses to old Fetch versions (see FINDINGS.md)."""

    # -- choosing ------------------------------------------------------------------------------------------------

    def version(self, api_name: str, *, lowest: int = 0, highest: int = 99) -> int:
        """Any version of an API that both serve and the schemas know, the ends more often."""
        low, high = self.versions(api_name)
        low, high = max(low, lowest), min(high, highest)
        version: int = self.rng.choice([low, high, *range(low, high + 1)])
        return version

    def versions(self, api_name: str) -> tuple[int, int]:
        """The range that both serve."""
        api = registry.by_name[api_name]
        ranges = [side.ranges.get(api.key, (0, -1)) for side in self.sides]
        low = max(api.min_version, *(first for first, _ in ranges))
        return low, min(api.max_version, *(last for _, last in ranges))

    def serves(self, api_name: str) -> bool:
        low, high = self.versions(api_name)
        return low <= high

    def one_in(self, count: int) -> bool:
        return self.rng.randrange(count) == 0

    def fresh_name(self) -> str:
        self.names_made += 1
        return f"{self.prefix}-{self.names_made}"

    def topic(self) -> StoryTopic | None:
        """Any topic of this story."""
        return self.rng.choice(list(self.topics.values())) if self.topics else None

    def partition(self, topic: StoryTopic) -> int:
        return self.rng.randrange(topic.partition_count)

    # -- learning ------------------------------------------------------------------------------------------------

    def expect(self, name: str, partition_count: int, configs: dict[str, str] | None = None) -> None:
        """A topic that both confirmed; its ids are filled in when the sides have settled."""
        topic = StoryTopic(name, (NO_ID, NO_ID), partition_count, dict(configs or {}))
        topic.rewritten = topic.configs.get("compression.type", "producer") != "producer"
        self.topics[name] = topic

    def forget(self, name: str) -> None:
        self.topics.pop(name, None)
        for session in self.sessions:
            session.partitions = [entry for entry in session.partitions if entry[0] != name]

    def learn_ids(self) -> None:
        """Ids of topics and the partition counts, from both sides."""
        left, right = (side.topics() for side in self.sides)
        for topic in self.topics.values():
            if topic.name in left and topic.name in right:
                topic.ids = (left[topic.name][0], right[topic.name][0])

    def owns(self, name: str) -> bool:
        return name.startswith(self.prefix + "-") or name in self.topics

    def settled(self, side: Side) -> bool:
        """Are the story's topics, and no others of this story, on that side, and do they answer?"""
        there = {name: count for name, (_, count) in side.topics().items() if self.owns(name)}
        if there != {topic.name: topic.partition_count for topic in self.topics.values()}:
            return False
        return all(
            side.latest(topic.name, index) >= 0
            for topic in self.topics.values()
            for index in range(topic.partition_count)
        )
