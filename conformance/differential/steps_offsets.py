"""Steps with committed offsets: OffsetCommit, OffsetFetch and OffsetDelete, by members and by simple consumers."""

from __future__ import annotations

from typing import Any

from conformance.differential.sides import Side
from conformance.differential.steps_groups import ABSENT_GROUPS, NOBODY, any_group
from conformance.differential.story import NO_ID, UNKNOWN_ID, Step, Story, StoryGroup
from kmirror.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kmirror.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kmirror.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

STATIC_FROM, EPOCH_FROM, IDS_FROM = 7, 6, 10
GROUPS_FROM, MEMBER_FROM, STABLE_FROM, ALL_FROM = 8, 9, 7, 2
METADATA_LIMIT = 4096
Slot = tuple[str, int]


def slots(story: Story) -> list[Slot]:
    """One to four partitions, most of them there; topics in the order in which they come."""
    rng, chosen = story.rng, []
    for _ in range(rng.choice([1, 1, 2, 2, 4])):
        topic = story.topic()
        if topic is None or story.one_in(12):
            chosen.append((rng.choice(["no-such-topic", "a b", ""]), 0))
        elif story.one_in(15):
            chosen.append((topic.name, rng.choice([topic.partition_count, -1, 999])))
        else:
            chosen.append((topic.name, story.partition(topic)))
    unique = list(dict.fromkeys(chosen))
    return unique if rng.randrange(15) else [*unique, unique[0]]


def topic_id(story: Story, side: Side, name: str) -> bytes:
    known = story.topics.get(name)
    return known.ids[side.index] if known else (NO_ID if name == "" else UNKNOWN_ID)


def grouped(chosen: list[Slot]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in chosen:
        topics.setdefault(name, []).append(index)
    return topics


class Speaker:
    """Who commits: (member ids, generation, instance id) of a member, of nobody, or of a simple consumer."""

    def __init__(self, story: Story, group: StoryGroup) -> None:
        rng = story.rng
        self.ids, self.generation, self.instance, self.what = ("", ""), -1, None, "simple"
        member = rng.choice(group.present) if group.present and rng.randrange(5) else None
        if member is not None and member.ids is not None:
            self.ids, self.generation, self.instance = member.ids, member.generation, member.instance
            self.what = "member"
        if story.one_in(10):
            self.generation, self.what = rng.choice([group.generation + 1, 0, -1, -2]), self.what + " elsewhere"
        if story.one_in(12):
            self.ids, self.what = rng.choice([NOBODY, ("", ""), *group.past]), "stranger"
        if story.one_in(15):
            self.instance, self.what = rng.choice(["instance-nobody", "instance-1"]), self.what + " as another"


def offset_commit(story: Story) -> Step:
    rng, group = story.rng, any_group(story)
    who = Speaker(story, group)
    name = group.name
    if story.one_in(20):
        name = rng.choice(ABSENT_GROUPS) if who.generation >= 0 else ""
    version = story.version("OffsetCommit", lowest=STATIC_FROM if who.instance else 0)
    rows: list[tuple[str, int, int, int, str | None]] = []
    too_long = "x" * (METADATA_LIMIT + 1)
    for topic, index in slots(story):
        offset = rng.choice([0, 1, 5, 100, 2**62]) if rng.randrange(12) else rng.choice([-1, -2])
        epoch = rng.choice([-1, -1, 0, 7])
        metadata = rng.choice(["", "m", "", None, "x" * METADATA_LIMIT, "ü" * 3])
        rows.append((topic, index, offset, epoch, too_long if group.exists and name and story.one_in(15) else metadata))
    retention_ms = rng.choice([-1, -1, 3_600_000])

    def build(side: Side) -> OffsetCommitRequest:
        request = OffsetCommitRequest(group_id=name, generation_id_or_member_epoch=who.generation,
                                      member_id=who.ids[side.index])  # fmt: skip
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for topic, index, offset, epoch, metadata in rows:
            entry = topics.get(topic)
            if entry is None:
                entry = OffsetCommitRequestTopic(name=topic)
                if version >= IDS_FROM:
                    entry = OffsetCommitRequestTopic(topic_id=topic_id(story, side, topic))
                topics[topic] = entry
            row = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset,
                                               committed_metadata=metadata)  # fmt: skip
            if version >= EPOCH_FROM:
                row.committed_leader_epoch = epoch
            entry.partitions.append(row)
        request.topics = list(topics.values())
        if version <= 4:
            request.retention_time_ms = retention_ms
        if version >= STATIC_FROM:
            request.group_instance_id = who.instance
        return request

    def after(left: Any, _right: Any) -> None:
        if name == group.name and any(row.error_code == 0 for topic in left.topics for row in topic.partitions):
            group.exists = True

    shown = [(topic, index, offset, epoch, len(metadata or "")) for topic, index, offset, epoch, metadata in rows]
    return Step("OffsetCommit", version, f"{name!r} {who.what} {shown}", build, after, group=group.name)


def offset_fetch(story: Story) -> Step:
    """Of one group, or several from version 8 on; of some partitions, or all there are."""
    rng, version = story.rng, story.version("OffsetFetch")
    asked: list[tuple[str, list[Slot] | None]] = []
    for _ in range(rng.choice([1, 1, 2]) if version >= GROUPS_FROM else 1):
        name = rng.choice(ABSENT_GROUPS) if story.one_in(10) else any_group(story).name
        asked.append((name, None if version >= ALL_FROM and story.one_in(3) else slots(story)))
    stable = story.one_in(3)
    pending = sorted({entry for producer in story.transactional for entry in producer.offsets})
    if pending and rng.randrange(4):
        name, slot = rng.choice(pending)
        some = list(dict.fromkeys([slot, *slots(story)]))
        stable, asked[0] = rng.randrange(4) > 0, (name, None if version >= ALL_FROM and story.one_in(3) else some)
    if story.one_in(15) and version >= ALL_FROM:
        asked[0] = (asked[0][0], [])
    member = rng.choice([None, None, "", "nobody"]), rng.choice([-1, -1, 0, 3])
    return fetch_step(story, asked, version, stable=stable, member=member)


def fetch_step(
    story: Story, asked: list[tuple[str, list[Slot] | None]], version: int, *, stable: bool,
    member: tuple[str | None, int] = (None, -1),
) -> Step:  # fmt: skip
    def build(side: Side) -> OffsetFetchRequest:
        request = OffsetFetchRequest()
        if version >= STABLE_FROM:
            request.require_stable = stable
        if version < GROUPS_FROM:
            request.group_id, chosen = asked[0]
            topics = [OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in grouped(chosen or []).items()]
            request.topics = None if chosen is None else topics
            return request
        for name, chosen in asked:
            group = OffsetFetchRequestGroup(group_id=name, topics=_topics(story, side, chosen, version))
            if version >= MEMBER_FROM:
                group.member_id, group.member_epoch = member
            request.groups.append(group)
        return request

    facts = frozenset({"all offsets"} if any(chosen is None for _, chosen in asked) else ())
    what = f"{asked}{' stable' if stable else ''} {member if version >= MEMBER_FROM else ''}"
    return Step("OffsetFetch", version, what, build, facts=facts)


def _topics(story: Story, side: Side, chosen: list[Slot] | None, version: int) -> list[OffsetFetchRequestTopics] | None:
    if chosen is None:
        return None
    made = []
    for name, indexes in grouped(chosen).items():
        entry = OffsetFetchRequestTopics(partition_indexes=indexes)
        if version >= IDS_FROM:
            entry.topic_id = topic_id(story, side, name)
        else:
            entry.name = name
        made.append(entry)
    return made


def offset_delete(story: Story) -> Step:
    group = any_group(story)
    name = story.rng.choice(ABSENT_GROUPS) if story.one_in(10) else group.name
    version, chosen = story.version("OffsetDelete"), slots(story)

    def build(side: Side) -> OffsetDeleteRequest:
        topics = [
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
            )
            for topic, indexes in grouped(chosen).items()
        ]
        return OffsetDeleteRequest(group_id=name, topics=topics)

    return Step("OffsetDelete", version, f"{name!r} {chosen}", build, group=group.name)
