"""Counting the entries of a message's lists."""

from __future__ import annotations

from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kmirror.protocol.row_count import row_count


def test_nested_lists_are_counted() -> None:
    topics = [
        OffsetCommitRequestTopic(partitions=[OffsetCommitRequestPartition() for _ in range(count)])
        for count in (3, 0, 4)
    ]
    assert row_count(OffsetCommitRequest(topics=topics), 100) == 3 + 7


def test_lists_that_are_null_or_empty() -> None:
    assert row_count(MetadataRequest(topics=None), 100) == 0
    assert row_count(MetadataRequest(topics=[]), 100) == 0
    assert row_count(MetadataRequest(topics=[MetadataRequestTopic()]), 100) == 1


def test_counting_ends_soon() -> None:
    """Each of the topics shares a thousand rows: whoever went through all of them would count a million."""
    shared = OffsetCommitRequestTopic(partitions=[OffsetCommitRequestPartition() for _ in range(1000)])
    assert row_count(OffsetCommitRequest(topics=[shared] * 1000), 1500) == 2000
