"""ListOffsets and OffsetForLeaderEpoch (B025, B026, B027, B030), DeleteRecords (B035)."""

from __future__ import annotations

import pytest

from conformance.wire.batches import GZIP, LZ4, NO_CODEC, SNAPPY, ZSTD, Rec, batch
from conformance.wire.client import EARLIEST, LATEST, MAX_TIMESTAMP, Broker, Row, Topic
from kmirror.protocol.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kmirror.protocol.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kmirror.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

OUT_OF_RANGE, UNKNOWN_TOPIC, UNSUPPORTED, INVALID_REQUEST, FENCED_EPOCH, UNKNOWN_EPOCH = 1, 3, 35, 42, 74, 75
NONE_FOUND = (-1, -1)


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_new_topic_ends_at_0(broker: Broker, topic: Topic, isolation_level: int) -> None:
    """B025: no hidden record occupies an offset."""
    for timestamp in (EARLIEST, LATEST):
        row = broker.list_offset(topic, timestamp, isolation_level=isolation_level)
        assert (row.error_code, row.offset) == (0, 0)
    row = broker.fetch(Row(topic, 0), isolation_level=isolation_level).row()
    assert (row.error_code, row.high_watermark, len(row.records or b"")) == (0, 0, 0)


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_at_every_version(broker: Broker, topic: Topic, version: int) -> None:
    version = broker.version("ListOffsets", version)
    broker.produce(topic, batch([Rec(b"v", timestamp_ms=when) for when in (10, 20, 30)]))
    answers = [broker.list_offset(topic, asked, version=version) for asked in (EARLIEST, LATEST, 15)]
    assert [(row.error_code, row.offset) for row in answers] == [(0, 0), (0, 3), (0, 1)]
    assert answers[2].timestamp == 20
    if version >= 4:
        assert answers[1].leader_epoch == broker.describe_topic(topic.name).partitions[0].leader_epoch
    bad = broker.list_offset(topic, LATEST, partition=9, version=version)
    assert (bad.error_code, bad.offset) == (UNKNOWN_TOPIC, -1)


def _lookup(broker: Broker, topic: Topic, timestamp: int) -> tuple[int, int]:
    row = broker.list_offset(topic, timestamp)
    assert row.error_code == 0, row
    return row.offset, row.timestamp


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD])
def test_time_lookup_inside_a_batch(broker: Broker, topic: Topic, codec: int) -> None:
    """B026: the first record at or after the time, and that record's own timestamp."""
    broker.produce(topic, batch([Rec(b"v", timestamp_ms=when) for when in (2, 4, 6, 8)], codec=codec))
    expected = [(0, 2), (0, 2), (1, 4), (1, 4), (2, 6), (2, 6), (3, 8), (3, 8), NONE_FOUND]
    assert [_lookup(broker, topic, when) for when in range(1, 10)] == expected


def test_time_lookup_with_one_record_a_batch(broker: Broker, topic: Topic) -> None:
    for when in (2, 4, 6, 8):
        broker.produce(topic, batch([Rec(b"v", timestamp_ms=when)]))
    expected = [(0, 2), (0, 2), (1, 4), (1, 4), (2, 6), (2, 6), (3, 8), (3, 8), NONE_FOUND]
    assert [_lookup(broker, topic, when) for when in range(1, 10)] == expected


def test_time_lookup_out_of_order(broker: Broker, topic: Topic) -> None:
    """B026: batch A [100, 10, 50], batch B [20, 200]: the first offset in log order, not the nearest time."""
    for times in ((100, 10, 50), (20, 200)):
        broker.produce(topic, batch([Rec(b"v", timestamp_ms=when) for when in times]))
    assert [_lookup(broker, topic, when)[0] for when in (5, 60, 100, 101, 201)] == [0, 0, 0, 4, -1]


def test_time_lookup_across_segments(broker: Broker) -> None:
    """B026, repeated over many small segments."""
    topic = broker.create_topic(configs={"segment.bytes": "1048576"})
    for index in range(8):
        broker.produce(topic, batch([Rec(b"x" * 400_000, timestamp_ms=1000 + 10 * index)]))
    for index in range(8):
        assert _lookup(broker, topic, 1000 + 10 * index - 5) == (index, 1000 + 10 * index)


def test_max_timestamp(broker: Broker, topic: Topic) -> None:
    """KIP-734: the offset of the record with the largest timestamp, and that timestamp; -1 on an empty topic."""
    broker.version("ListOffsets", None)
    assert _lookup(broker, topic, MAX_TIMESTAMP) == NONE_FOUND
    for times in ((100, 10), (300, 50), (20, 200)):
        broker.produce(topic, batch([Rec(b"v", timestamp_ms=when) for when in times]))
    assert _lookup(broker, topic, MAX_TIMESTAMP) == (2, 300)


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP], ids=["plain", "gzip"])
def test_max_timestamp_with_log_append_time(broker: Broker, codec: int) -> None:
    """All records of a batch have one timestamp: the first of them is meant."""
    topic = broker.create_topic(configs={"message.timestamp.type": "LogAppendTime"})
    broker.produce(topic, batch([b"a", b"b", b"c"], codec=codec))
    broker.produce(topic, batch([b"d", b"e", b"f"], codec=codec))
    assert _lookup(broker, topic, MAX_TIMESTAMP)[0] in (0, 3)  # 0 when both came within one millisecond
    last = broker.scan(topic)[-1].max_timestamp
    assert _lookup(broker, topic, last)[0] in (0, 3)


def test_nothing_at_or_after_the_time(broker: Broker, topic: Topic) -> None:
    """B027: -1 and -1 with error 0, not an error and not the end offset."""
    assert _lookup(broker, topic, 1) == NONE_FOUND
    broker.produce(topic, batch([Rec(b"v", timestamp_ms=500)]))
    assert _lookup(broker, topic, 501) == NONE_FOUND


@pytest.mark.parametrize(("version", "timestamp"), [(6, -3), (7, -4), (8, -5), (8, -99), (10, -99)])
def test_sentinels_that_the_version_does_not_know(broker: Broker, topic: Topic, version: int, timestamp: int) -> None:
    """B027: error 35 on the row, not a time lookup."""
    row = broker.list_offset(topic, timestamp, version=broker.version("ListOffsets", version))
    assert (row.error_code, row.offset) == (UNSUPPORTED, -1)


def test_a_partition_named_twice(broker: Broker, topic: Topic) -> None:
    """B027: error 42."""
    asked = [ListOffsetsPartition(partition_index=0, timestamp=LATEST) for _ in range(2)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=asked)])
    rows = broker.request(request).topics[0].partitions
    assert {row.error_code for row in rows} == {INVALID_REQUEST}


def test_list_offsets_fences_by_epoch(broker: Broker, topic: Topic) -> None:
    epoch = broker.describe_topic(topic.name).partitions[0].leader_epoch
    assert broker.list_offset(topic, LATEST, current_leader_epoch=epoch).error_code == 0
    assert broker.list_offset(topic, LATEST, current_leader_epoch=epoch + 1).error_code == UNKNOWN_EPOCH
    if epoch > 0:
        assert broker.list_offset(topic, LATEST, current_leader_epoch=epoch - 1).error_code == FENCED_EPOCH


def test_list_offsets_of_an_unknown_partition(broker: Broker, topic: Topic) -> None:
    assert broker.list_offset(topic, LATEST, partition=9).error_code == UNKNOWN_TOPIC


def _epoch_end(
    broker: Broker, topic: Topic, epoch: int, *, current: int = -1, partition: int = 0, version: int = 4
) -> tuple[int, int, int]:
    asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic.name, partitions=[asked])])
    request.replica_id = -1
    row = broker.request(request, broker.version("OffsetForLeaderEpoch", version)).topics[0].partitions[0]
    return row.error_code, row.leader_epoch, row.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offset_for_leader_epoch(broker: Broker, topic: Topic, version: int) -> None:
    """B030, with the one epoch that a fresh topic has: the asked epoch's end, (-1, -1) for the unknown."""
    epoch = broker.describe_topic(topic.name).partitions[0].leader_epoch
    broker.produce(topic, batch([b"v"] * 10))
    assert _epoch_end(broker, topic, epoch, version=version) == (0, epoch, 10)
    assert _epoch_end(broker, topic, epoch + 7, version=version) == (0, -1, -1)
    assert _epoch_end(broker, topic, -1, version=version) == (0, -1, -1)
    assert _epoch_end(broker, topic, epoch, current=epoch, version=version) == (0, epoch, 10)
    assert _epoch_end(broker, topic, epoch, current=epoch + 1, version=version)[0] == UNKNOWN_EPOCH
    assert _epoch_end(broker, topic, epoch, partition=9, version=version)[0] == UNKNOWN_TOPIC


def test_stored_batches_carry_the_leader_epoch(broker: Broker, topic: Topic) -> None:
    """B034: Metadata's epoch is never below the epoch inside a stored batch."""
    broker.produce(topic, batch())
    epoch = broker.describe_topic(topic.name).partitions[0].leader_epoch
    assert [entry.leader_epoch for entry in broker.scan(topic)] == [epoch]
    assert broker.list_offset(topic, LATEST).leader_epoch == epoch


def test_delete_records(broker: Broker, topic: Topic) -> None:
    """B035: below, at and beyond the edges."""
    broker.version("DeleteRecords")
    broker.produce(topic, batch([b"v"] * 100))

    def delete(offset: int) -> tuple[int, int]:
        partition = DeleteRecordsPartition(partition_index=0, offset=offset)
        asked = DeleteRecordsTopic(name=topic.name, partitions=[partition])
        row = broker.request(DeleteRecordsRequest(topics=[asked], timeout_ms=10_000)).topics[0].partitions[0]
        return row.error_code, row.low_watermark

    assert [delete(offset) for offset in (30, 30, 10, 0)] == [(0, 30)] * 4
    assert broker.earliest(topic) == 30
    assert delete(101)[0] == OUT_OF_RANGE and delete(-2)[0] == OUT_OF_RANGE
    assert broker.fetch(Row(topic, 29)).row().error_code == OUT_OF_RANGE
    assert broker.fetch(Row(topic, 30)).row().log_start_offset == 30
    assert delete(-1) == (0, 100)
    assert broker.earliest(topic) == 100
