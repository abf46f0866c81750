"""Committed offsets bound to the log: what is larger than a batch may be, and what a crash leaves half done."""

from __future__ import annotations

import pytest

from kmirror.broker.group_offsets import Committer
from kmirror.coordinator.groups.offsets import OffsetRow, OffsetValue
from kmirror.effects import LogId, Place, StateRecord
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_offsets import OffsetCommitKey, OffsetCommitValue
from tests.broker.harness import Broker

MAX_BATCH_BYTES = 1_048_588
"""Kafka's max.message.bytes, which `__consumer_offsets` has too."""


def ready(**properties: str) -> Broker:
    settings = {"offsets.topic.num.partitions": "3", **{name.replace("_", "."): v for name, v in properties.items()}}
    broker = Broker(settings)
    broker.create("t", 400)
    broker.settle(broker.world.groups.offsets.usable())
    return broker


def held(broker: Broker) -> dict[Place, OffsetValue]:
    rows: list[tuple[Place, OffsetValue]] = broker.settle(
        broker.world.groups.offsets.fetch_all("g", require_stable=False)
    )
    return dict(rows)


def batch_sizes(broker: Broker, group: str) -> list[int]:
    log_id = broker.world.groups.log_of(group)
    log = broker.world.partition(log_id.topic, log_id.partition).log
    return [header.size_bytes for header, _data in log.batches(0, log.log_end_offset)]


def test_a_mirror_s_group_may_be_larger_than_a_batch() -> None:
    broker = ready()
    offsets = broker.world.groups.offsets
    values = {("t", index): OffsetValue(offset=index, metadata="m" * 8000) for index in range(400)}
    broker.settle(offsets.commit_synced("g", values))
    assert held(broker) == values
    sizes = batch_sizes(broker, "g")
    assert len(sizes) > 5 and max(sizes) < MAX_BATCH_BYTES
    broker.crash()
    assert held(broker) == values


def test_a_client_s_commit_is_one_batch_or_nothing() -> None:
    """As Kafka answers it."""
    broker = ready(offset_metadata_max_bytes="10000")
    offsets = broker.world.groups.offsets
    rows = [OffsetRow(topic="t", partition=index, offset=1, metadata="m" * 8000) for index in range(400)]
    promise = offsets.commit(Committer(group_id="g"), rows, api_version=9)
    broker.flush.run()
    with pytest.raises(ApiError) as refused:
        promise.result()
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert not offsets.has_offsets("g")


@pytest.mark.parametrize("how", ["topic", "retention"])
def test_what_goes_may_be_larger_than_a_batch(how: str) -> None:
    broker = ready(offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000")
    offsets = broker.world.groups.offsets
    group = "g" * 20_000
    for first in range(0, 80, 40):
        rows = [OffsetRow(topic="t", partition=index, offset=1) for index in range(first, first + 40)]
        broker.settle(offsets.commit(Committer(group_id=group), rows, api_version=9))
    if how == "topic":
        broker.settle(broker.world.delete_topic("t"))
    else:
        broker.clock.advance(60_000)
        broker.world.tick()
    assert not offsets.has_offsets(group)
    assert max(batch_sizes(broker, group)) < MAX_BATCH_BYTES
    broker.flush.run()
    broker.crash()
    assert not broker.world.groups.offsets.has_offsets(group)


def test_offsets_of_a_topic_whose_deletion_a_crash_cut_short_go_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = ready()
    offsets = broker.world.groups.offsets
    rows = [OffsetRow(topic="t", partition=0, offset=1, topic_id=broker.world.image.topics_by_name["t"].topic_id)]
    broker.settle(offsets.commit(Committer(group_id="g"), rows, api_version=9))
    monkeypatch.setattr(broker.world.groups, "topic_deleted", lambda _topic: None)
    broker.settle(broker.world.delete_topic("t"))
    assert offsets.has_offsets("g")
    broker.crash()
    assert not broker.world.groups.offsets.has_offsets("g")


def test_a_mirror_does_not_commit_for_an_active_group(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ready()
    groups = broker.world.groups
    monkeypatch.setattr(groups, "is_active", lambda _group: True)
    with pytest.raises(ApiError) as refused:
        groups.offsets.commit_synced("g", {("t", 0): OffsetValue(offset=1)})
    assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
    assert not groups.offsets.has_offsets("g")


def test_a_record_in_another_group_s_log_is_not_looked_at() -> None:
    """It was written when the topic had another number of partitions; nobody will delete it."""
    broker = ready()
    groups = broker.world.groups
    key = OffsetCommitKey(group="g", topic="t", partition=0)
    other = next(LogId("__consumer_offsets", index) for index in range(3) if index != groups.log_of("g").partition)
    groups.offsets.replay(StateRecord(other, key, OffsetCommitValue(offset=1)))
    assert not groups.offsets.has_offsets("g")
    groups.offsets.replay(StateRecord(groups.log_of("g"), key, OffsetCommitValue(offset=1)))
    assert groups.offsets.has_offsets("g")
