"""What conformance/differential found: each of these was answered otherwise than Apache Kafka 4.4.0 does."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import trio

from conformance.wire.batches import Rec, batch
from kmirror.protocol import uuids
from kmirror.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kmirror.protocol.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from kmirror.protocol.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopicRequest,
)
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kmirror.protocol.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kmirror.protocol.api.metadata import MetadataRequest
from kmirror.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.server.harness import START_MS, Client, produce, serving

OUT_OF_RANGE, CORRUPT, UNKNOWN, INVALID_ACKS, TOO_LARGE = 1, 2, 3, 21, 10
INVALID_TIMESTAMP, INVALID_CONFIG, INVALID_REQUEST, INVALID_RECORD = 32, 40, 42, 87
UNKNOWN_ID = bytes(15) + b"\x01"
DAY_MS = 86_400_000


async def produced(client: Client, records: bytes, *, topic: str = "t", acks: int = -1, version: int = 9) -> Any:
    answer = await client.ask("Produce", version, produce(records, topic=topic, acks=acks))
    return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize(
    ("records", "code", "log_start_offset"),
    [
        pytest.param(batch() + b"\0" * 12, CORRUPT, -1, id="an impossible length behind the batch"),
        pytest.param(batch() + batch(magic=3), CORRUPT, -1, id="a batch of magic 3 behind it"),
        pytest.param(batch() + b"\0" * 11, 0, 0, id="too little behind it to say anything"),
        pytest.param(batch()[:20], INVALID_RECORD, -1, id="too short for a header"),
        pytest.param(batch(base_offset=-1), INVALID_RECORD, 0, id="negative base offset"),
        pytest.param(batch(base_offset=5, flip_crc=True), INVALID_RECORD, 0, id="base offset before checksum"),
        pytest.param(batch([b"a"], count=-1), INVALID_RECORD, 0, id="negative count"),
        pytest.param(batch([b"a"], last_delta=-1), INVALID_RECORD, 0, id="negative last offset delta"),
        pytest.param(batch([], count=0, last_delta=-1), INVALID_RECORD, 0, id="no records"),
    ],
)
@pytest.mark.parametrize("version", [5, 9])
async def test_shapes_of_batches(records: bytes, code: int, log_start_offset: int, version: int) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        row = await produced(client, records, version=version)
        assert (row.error_code, row.log_start_offset) == (code, log_start_offset)


async def test_the_shape_comes_before_acks_and_acks_before_the_log() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        codes = [
            (await produced(client, records, acks=2)).error_code
            for records in (batch(), batch() + batch(), batch([], count=0, last_delta=-1))
        ]
        assert codes == [INVALID_ACKS, INVALID_RECORD, INVALID_ACKS]


async def test_two_replicas_in_sync_are_more_than_there_are() -> None:
    async with serving() as broker:
        await broker.create_topic("t", **{"min.insync.replicas": "2"})
        assert (await produced(broker.connect(), batch())).error_code == 0


def _says_log_append_time(timestamp_ms: int) -> bytes:
    import crc32c

    plain = batch([Rec(b"v", b"k", None)], timestamp_ms=timestamp_ms)
    after = struct.pack(">h", 8) + plain[23:]
    return plain[:17] + struct.pack(">I", crc32c.crc32c(after)) + after


async def test_the_topic_says_whose_time_it_is() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        await broker.create_topic("u", **{"message.timestamp.type": "LogAppendTime"})
        client = broker.connect()
        assert (await produced(client, _says_log_append_time(START_MS))).error_code == 0
        assert (await produced(client, _says_log_append_time(-1))).error_code == INVALID_TIMESTAMP
        refused = await produced(client, _says_log_append_time(START_MS), topic="u")
        assert (refused.error_code, [e.batch_index for e in refused.record_errors]) == (INVALID_TIMESTAMP, [0])
        request = FetchRequest(
            max_bytes=1 << 20, session_epoch=-1,
            topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition_max_bytes=1 << 20)])],
        )  # fmt: skip
        stored = bytes((await client.ask("Fetch", 12, request)).responses[0].partitions[0].records)
        assert stored[16:] == batch([Rec(b"v", b"k", None)], timestamp_ms=START_MS)[16:], "CreateTime, checksum anew"


async def test_a_producers_last_time_is_the_one_that_is_stored() -> None:
    async with serving() as broker:
        await broker.create_topic("t", **{"message.timestamp.type": "LogAppendTime"})
        client = broker.connect()
        data = batch(producer_id=7, producer_epoch=0, base_sequence=0, timestamp_ms=START_MS - DAY_MS)
        assert (await produced(client, data)).error_code == 0
        asked = DescribeProducersTopicRequest(name="t", partition_indexes=[0])
        answer = await client.ask("DescribeProducers", 0, DescribeProducersRequest(topics=[asked]))
        assert answer.topics[0].partitions[0].active_producers[0].last_timestamp >= START_MS


async def test_wrong_times_and_missing_keys(autojump_clock: object) -> None:
    """A wrong time names the refusal; records without a key are refused for that and not asked for their time."""
    old, now = START_MS - DAY_MS, START_MS
    async with serving() as broker:
        settings = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": "3600000"}
        await broker.create_topic("t", **settings)
        client = broker.connect()
        cases = (
            ([Rec(b"v", b"k", now), Rec(b"v", None, now)], INVALID_RECORD, [1]),
            ([Rec(b"v", b"k", now), Rec(b"v", None, old)], INVALID_RECORD, [1]),
            ([Rec(b"v", b"k", old), Rec(b"v", None, now), Rec(b"v", b"k", now)], INVALID_TIMESTAMP, [0, 1]),
        )
        for records, code, indexes in cases:
            row = await produced(client, batch(records))
            assert (row.error_code, [error.batch_index for error in row.record_errors]) == (code, indexes)


async def test_what_cannot_be_rebuilt_is_refused() -> None:
    """Negative epochs of producers pass where a batch is stored as it came, not where it is written anew."""
    async with serving() as broker:
        await broker.create_topic("t")
        await broker.create_topic("u", **{"compression.type": "gzip"})
        client = broker.connect()
        data = batch(producer_id=7, producer_epoch=-1, base_sequence=0, timestamp_ms=START_MS)
        assert (await produced(client, data)).error_code == 0
        assert (await produced(client, data, topic="u")).error_code == INVALID_RECORD


async def list_offset(client: Client, timestamp: int, *, topic: str = "t", version: int = 9, epoch: int = -1) -> Any:
    row = ListOffsetsPartition(timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[row])])
    return (await client.ask("ListOffsets", version, request)).topics[0].partitions[0]


async def test_questions_for_offsets() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = broker.connect()
        empty = await list_offset(client, -2)
        assert (empty.offset, empty.leader_epoch) == (0, 0), "an empty log begins with the epoch of its partition"
        assert (await list_offset(client, -3)).offset == -1
        assert (await produced(client, batch([Rec(b"v", b"k")] * 2, timestamp_ms=-1))).error_code == 0
        largest = await list_offset(client, -3)
        assert (largest.offset, largest.timestamp, largest.leader_epoch) == (0, -1, 0)
        assert (await list_offset(client, -99, topic="no such")).error_code == 35, "before the partition is looked for"
        assert (await list_offset(client, -1, topic="no such")).error_code == UNKNOWN
        assert (await list_offset(client, -1, epoch=-2)).error_code == 74, "only -1 means that none is given"


@pytest.mark.parametrize(("epoch", "current", "expected"), [
    (-1, -1, (0, -1, -1)), (-2, -1, (0, -2, 0)), (-2, -2, (74, -1, -1)), (0, 0, (0, 0, 0)),
])  # fmt: skip
async def test_epochs_below_all(epoch: int, current: int, expected: tuple[int, int, int]) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        row = OffsetForLeaderPartition(leader_epoch=epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[row])])
        found = (await broker.connect().ask("OffsetForLeaderEpoch", 4, request)).topics[0].partitions[0]
        assert (found.error_code, found.leader_epoch, found.end_offset) == expected


async def test_records_of_a_topic_without_a_policy_can_be_deleted() -> None:
    async with serving() as broker:
        client = broker.connect()
        for name, policy, code in (("t", "", 0), ("u", "compact", 44), ("v", "compact,delete", 0)):
            await broker.create_topic(name, **{"cleanup.policy": policy})
            asked = DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(offset=0)])
            answer = await client.ask("DeleteRecords", 2, DeleteRecordsRequest(topics=[asked], timeout_ms=1000))
            assert answer.topics[0].partitions[0].error_code == code, policy


# -- Fetch -----------------------------------------------------------------------------------------------------------


def fetch(*rows: tuple[Any, int, int], forget: tuple[Any, int] | None = None, **fields: Any) -> FetchRequest:
    """Rows of (topic id, partition, offset), each its own entry."""
    topics = [
        FetchTopic(topic_id=topic_id, partitions=[
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        ])
        for topic_id, index, offset in rows
    ]  # fmt: skip
    forgotten = [] if forget is None else [ForgottenTopic(topic_id=forget[0], partitions=[forget[1]])]
    settings = {"max_bytes": 1 << 20, "session_epoch": -1, "min_bytes": 1, **fields}
    return FetchRequest(topics=topics, forgotten_topics_data=forgotten, **settings)


def rows_of(answer: Any) -> list[tuple[int, int]]:
    return [(row.partition_index, row.error_code) for topic in answer.responses for row in topic.partitions]


async def id_of(client: Client, name: str) -> bytes:
    answer = await client.ask("Metadata", 12, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return next(bytes(topic.topic_id) for topic in answer.topics if topic.name == name)


async def test_what_is_not_here_ends_no_waiting(autojump_clock: object) -> None:
    async with serving() as broker:
        await broker.create_topic("t", partitions=2)
        client = broker.connect()
        topic_id = await id_of(client, "t")
        waits = (
            ([(topic_id, 0, 0), (topic_id, 9, 0), (UNKNOWN_ID, 0, 0)], True),
            ([(topic_id, 9, 0), (UNKNOWN_ID, 0, 0)], False),
            ([(topic_id, 0, 0), (topic_id, 1, 5)], False),
        )
        for rows, waits_for_all in waits:
            began = trio.current_time()
            answer = await client.ask("Fetch", 13, fetch(*rows, max_wait_ms=3000))
            assert (trio.current_time() - began >= 3) == waits_for_all, rows_of(answer)
        answer = await client.ask("Fetch", 13, fetch((topic_id, 9, 0), (UNKNOWN_ID, 0, 0), (topic_id, 1, 5)))
        assert rows_of(answer) == [(1, OUT_OF_RANGE), (0, 100), (9, UNKNOWN)], "set aside, unknown ids first"
        lists = [row.aborted_transactions for topic in answer.responses for row in topic.partitions]
        assert lists == [None, [], []]


async def test_what_a_session_keeps() -> None:
    async with serving() as broker:
        await broker.create_topic("t", partitions=2)
        client = broker.connect()
        topic_id = await id_of(client, "t")
        opened = await client.ask("Fetch", 13, fetch((topic_id, 9, 0), (topic_id, 1, 0), session_epoch=0))
        assert rows_of(opened) == [(1, 0), (9, UNKNOWN)]
        alone = await client.ask("Fetch", 13, fetch((topic_id, 0, 0), session_epoch=0))
        emptied = fetch((topic_id, 0, 7), forget=(topic_id, 0), session_id=alone.session_id, session_epoch=1)
        answer = await client.ask("Fetch", 13, emptied)
        assert (answer.session_id, rows_of(answer)) == (0, [(0, OUT_OF_RANGE)]), "answered without a session"
        await client.ask("DeleteTopics", 4, DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000))
        later = await client.ask("Fetch", 13, fetch(session_id=opened.session_id, session_epoch=1))
        assert rows_of(later) == [(1, UNKNOWN), (9, UNKNOWN)], "of ids that were known, in the order of the answer"
        assert rows_of(await client.ask("Fetch", 13, fetch((topic_id, 0, 0)))) == [(0, 100)]


# -- administration --------------------------------------------------------------------------------------------------


async def create(client: Client, *topics: CreatableTopic) -> list[int]:
    answer = await client.ask("CreateTopics", 7, CreateTopicsRequest(topics=list(topics), timeout_ms=5000))
    return [topic.error_code for topic in sorted(answer.topics, key=lambda topic: topic.name)]


async def test_creations_that_look_right() -> None:
    async with serving() as broker:
        client = broker.connect()
        twice = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1])] * 2
        asked = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=twice)
        assert await create(client, asked) == [39]
        large = CreatableTopic(name="u", num_partitions=10_000, replication_factor=1)
        small = CreatableTopic(name="v", num_partitions=1, replication_factor=1)
        assert await create(client, large, small) == [44, 44], "nothing of the request is done"
        nulls = [CreatableTopicConfig(name="retention.ms", value=value) for value in (None, "1000")]
        asked = CreatableTopic(name="w", num_partitions=1, replication_factor=1, configs=nulls)
        assert await create(client, asked) == [INVALID_CONFIG]


def change(name: str, *changes: tuple[str, int, str | None]) -> IncrementalAlterConfigsRequest:
    configs = [IncrementalAlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource])


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("no-such", [("retention.ms", 0, "1")] * 2, INVALID_REQUEST),
        ("no-such", [("retention.ms", 0, None)], INVALID_REQUEST),
        ("no-such", [("retention.ms", 2, "1")], INVALID_CONFIG),
        ("no-such", [("retention.ms", 0, "x")], INVALID_CONFIG),
        ("no-such", [("retention.ms", 0, "1")], UNKNOWN),
        ("a b", [("retention.ms", 2, "1")], INVALID_CONFIG),
        ("a b", [("retention.ms", 0, "x")], 17),
        ("", [("retention.ms", 2, "1")], INVALID_CONFIG),
        ("", [("retention.ms", 0, "x")], INVALID_REQUEST),
        ("t", [("retention.ms", 0, "1_000")], INVALID_CONFIG),
    ],
)
async def test_the_order_of_checks(name: str, changes: list[tuple[str, int, str | None]], code: int) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        answer = await broker.connect().ask("IncrementalAlterConfigs", 1, change(name, *changes))
        assert answer.responses[0].error_code == code


async def test_values_as_they_were_understood() -> None:
    async with serving() as broker:
        given = {"retention.ms": " 77 ", "preallocate": "TRUE", "cleanup.policy": "delete, delete"}
        await broker.create_topic("t", **given)
        client = broker.connect()
        asked = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=list(given))
        request = DescribeConfigsRequest(resources=[asked], include_synonyms=True)
        configs = (await client.ask("DescribeConfigs", 4, request)).results[0].configs
        understood = {"retention.ms": "77", "preallocate": "true", "cleanup.policy": "delete"}
        assert {config.name: config.value for config in configs} == understood
        assert {config.name: config.synonyms[0].value for config in configs} == understood


async def test_a_cursor_outside_the_list() -> None:
    async with serving() as broker:
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsTopicRequest(name=name) for name in ("u", "t", "u")],
            cursor=Cursor(topic_name="zzz"),
        )
        answer = await broker.connect().ask("DescribeTopicPartitions", 0, request)
        assert [(row.name, row.error_code) for row in answer.topics] == [(name, INVALID_REQUEST) for name in "utu"]
        assert {bytes(row.topic_id) for row in answer.topics} == {uuids.ZERO}


async def test_what_names_no_topic_to_delete_has_a_row_each_time() -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        both = DeleteTopicState(name="t", topic_id=b"\x01" * 16)
        neither, there = DeleteTopicState(), DeleteTopicState(name="t")
        request = DeleteTopicsRequest(topics=[both, neither, there, both, neither], timeout_ms=1000)
        answer = await broker.connect().ask("DeleteTopics", 6, request)
        assert [(row.name, row.error_code) for row in answer.responses] == [
            ("t", 42),
            (None, 42),
            ("t", 0),
            ("t", 42),
            (None, 42),
        ]
