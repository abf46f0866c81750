"""The end of a sequence: all that it has made, read back from both brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from conformance.differential import steps_groups, steps_offsets, steps_transactions
from conformance.differential.opened import opened
from conformance.differential.sides import Side
from conformance.differential.steps_fetch import Wanted, facts, request
from conformance.differential.story import Step, Story, StoryTopic
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from kmirror.protocol.api.fetch import FetchRequest
from kmirror.protocol.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

SENTINELS = (-1, -2, -3)


def audit_steps(story: Story) -> Iterator[Step]:
    yield from _groups(story)
    if story.transactional:
        yield steps_transactions.describe_step(story, [each.transactional_id for each in story.transactional])
    for topic in list(story.topics.values()):
        for index in range(topic.partition_count):
            for isolation in (0, 1):
                yield from _fetches(story, topic, index, isolation)
            for sentinel in SENTINELS:
                yield _list_offset(story, topic, index, sentinel)
        yield _producers(story, topic)
        yield _configs(story, topic)


def _groups(story: Story) -> Iterator[Step]:
    """Everybody leaves; the offsets are read; the groups go."""
    for group in list(story.groups.values()):
        for member in [member for member in group.members if member.pending and not member.held]:
            yield steps_groups.leave_step(story, group, 3, [member], [], by_instance=False)
        if any(member.held == "SyncGroup" for member in group.members) and group.leader is not None:
            yield steps_groups.sync_step(story, group, group.leader, "right", [(ids, b"end") for ids in group.roster])
        if group.joining or any(member.held for member in group.members):
            for member in steps_groups.free_members(group):
                yield steps_groups.join_step(story, group, member, "at last")
        if members := [member for member in group.members if member.ids is not None]:
            yield steps_groups.leave_step(story, group, 3, members, [], by_instance=False)
        yield steps_offsets.fetch_step(story, [(group.name, None)], story.versions("OffsetFetch")[1], stable=False)
    if story.groups and not story.transactional:
        yield steps_groups.delete_step(story, list(story.groups), 1)


def _fetches(story: Story, topic: StoryTopic, index: int, isolation: int) -> Iterator[Step]:
    """From the log start, which DeleteRecords may have moved, to the end; an answer may stop at a segment's end."""
    at, end = (ask(topic.name, index) for ask in (story.sides[0].earliest, story.sides[0].latest))
    while True:
        seen: list[int] = []

        def after(left: Any, _right: Any, seen: list[int] = seen) -> None:
            records = [bytes(row.records or b"") for entry in left.responses for row in entry.partitions]
            seen += [batch.base_offset + batch.last_offset_delta + 1 for data in records for batch in opened(data)]

        yield _fetch(story, topic, index, isolation, at, after)
        if not seen or seen[-1] >= end:
            return
        at = seen[-1]


def _fetch(
    story: Story, topic: StoryTopic, index: int, isolation: int, start: int, after: Callable[[Any, Any], None]
) -> Step:
    rows = [Wanted(topic.name, index, start, max_bytes=50 << 20)]
    version = story.versions("Fetch")[1]

    def build(side: Side) -> FetchRequest:
        message = request(story, side, version, rows)
        message.isolation_level = isolation
        return message

    return Step("Fetch", version, f"audit of {topic.name}-{index} from {start}", build, after, facts=facts(story, rows))


def _list_offset(story: Story, topic: StoryTopic, index: int, sentinel: int) -> Step:
    def build(side: Side) -> ListOffsetsRequest:
        row = ListOffsetsPartition(partition_index=index, timestamp=sentinel)
        return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=[row])])

    version = min(9, story.versions("ListOffsets")[1])
    return Step("ListOffsets", version, f"audit of {topic.name}-{index} {sentinel}", build)


def _producers(story: Story, topic: StoryTopic) -> Step:
    def build(side: Side) -> DescribeProducersRequest:
        asked = DescribeProducersTopicRequest(name=topic.name, partition_indexes=list(range(topic.partition_count)))
        return DescribeProducersRequest(topics=[asked])

    return Step("DescribeProducers", story.versions("DescribeProducers")[1], f"audit of {topic.name}", build)


def _configs(story: Story, topic: StoryTopic) -> Step:
    def build(side: Side) -> DescribeConfigsRequest:
        asked = DescribeConfigsResource(resource_type=2, resource_name=topic.name, configuration_keys=None)
        return DescribeConfigsRequest(resources=[asked], include_synonyms=True)

    return Step("DescribeConfigs", story.versions("DescribeConfigs")[1], f"audit of {topic.name}", build)
