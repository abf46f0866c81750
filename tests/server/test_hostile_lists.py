"""Requests with lists far longer than any client sends, and small ones that ask for the same large thing again and
again: others are served meanwhile, and neither memory nor the answer grows without bound."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from kmirror.limits import (
    MAX_ANSWER_ROWS,
    MAX_REQUEST_BYTES_WITHOUT_RECORDS,
    MAX_REQUEST_ROWS,
    MAX_STRING_BYTES,
    MEMBER_METADATA_MAX_BYTES,
    MEMBER_PROTOCOLS_MAX,
    PENDING_MEMBERS_MAX,
    ROWS_ON_LOOP,
    ROWS_PER_TURN,
)
from kmirror.protocol import registry
from kmirror.protocol.api import (
    add_partitions_to_txn,
    delete_groups,
    describe_groups,
    describe_producers,
    describe_transactions,
    find_coordinator,
    join_group,
    leave_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    write_txn_markers,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.row_count import row_count
from tests.server import test_offsets
from tests.server.harness import Broker, Threads, serving

MANY = 10 * ROWS_PER_TURN
KEY = registry.by_name


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with serving() as broker:
        await broker.create_topic("t", 3)
        yield broker


def long_requests() -> list[tuple[str, int, Any]]:
    names = [f"n{number}" for number in range(MANY)]
    numbers = [number % 4 for number in range(MANY)]  # 3 does not exist
    commit = offset_commit.OffsetCommitRequestPartition
    deleted = offset_delete.OffsetDeleteRequestPartition
    return [
        ("FindCoordinator", 4, find_coordinator.FindCoordinatorRequest(coordinator_keys=names)),
        ("DescribeGroups", 6, describe_groups.DescribeGroupsRequest(groups=names)),
        ("DeleteGroups", 2, delete_groups.DeleteGroupsRequest(groups_names=names)),
        (
            "LeaveGroup",
            5,
            leave_group.LeaveGroupRequest(
                group_id="g", members=[leave_group.MemberIdentity(member_id=name) for name in names]
            ),
        ),
        (
            "OffsetCommit",
            9,
            offset_commit.OffsetCommitRequest(
                group_id="g",
                topics=[
                    offset_commit.OffsetCommitRequestTopic(
                        name="t", partitions=[commit(partition_index=index, committed_offset=5) for index in numbers]
                    )
                ],
            ),
        ),
        (
            "OffsetFetch",
            9,
            offset_fetch.OffsetFetchRequest(
                groups=[
                    offset_fetch.OffsetFetchRequestGroup(
                        group_id="g",
                        topics=[
                            offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in names
                        ],
                    )
                ]
            ),
        ),
        (
            "OffsetDelete",
            0,
            offset_delete.OffsetDeleteRequest(
                group_id="g",
                topics=[
                    offset_delete.OffsetDeleteRequestTopic(
                        name="t", partitions=[deleted(partition_index=index) for index in numbers]
                    )
                ],
            ),
        ),
        (
            "AddPartitionsToTxn",
            5,
            add_partitions_to_txn.AddPartitionsToTxnRequest(
                transactions=[
                    add_partitions_to_txn.AddPartitionsToTxnTransaction(
                        transactional_id=name,
                        topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(name="t", partitions=[0])],
                    )
                    for name in names
                ]
            ),
        ),
        ("DescribeTransactions", 0, describe_transactions.DescribeTransactionsRequest(transactional_ids=names)),
    ]


@pytest.mark.parametrize(("api", "version", "request_"), long_requests(), ids=lambda part: str(part)[:24])
async def test_others_are_served_during_a_long_request(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, api: str, version: int, request_: Any
) -> None:
    """With turns of no length every pass through a list is one: hundreds of them, not the few of any request."""
    client = broker.connect()
    await client.ask("OffsetCommit", 9, test_offsets.commit((0, 5)))
    monkeypatch.setattr("kmirror.server.waiting.TURN_MS", -1)
    passes = 0

    class Passes(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal passes
            passes += 1

    passing = Passes()
    trio.lowlevel.add_instrument(passing)
    try:
        answer = await client.ask(api, version, request_)
    finally:
        trio.lowlevel.remove_instrument(passing)
    assert row_count(answer, MAX_ANSWER_ROWS) >= MANY
    assert passes >= MANY // ROWS_PER_TURN, passes


async def test_long_lists_are_decoded_and_encoded_in_a_thread(broker: Broker) -> None:
    threads = Threads(broker)
    client, other = broker.connect(), broker.connect()
    names = [f"{number:08d}" for number in range(MANY)]
    await client.send("DescribeGroups", 6, describe_groups.DescribeGroupsRequest(groups=names))
    await trio.testing.wait_all_tasks_blocked()
    assert threads.count == 1
    few = await other.ask("DescribeGroups", 6, describe_groups.DescribeGroupsRequest(groups=["a"] * ROWS_ON_LOOP))
    assert len(few.groups) == ROWS_ON_LOOP and threads.count == 1
    threads.gate.set()
    _, answer = await client.receive("DescribeGroups", 6)
    assert [group.group_id for group in answer.groups] == names and threads.count == 2


async def test_a_request_larger_than_any_needs_is_not_even_read(broker: Broker) -> None:
    client = broker.connect()
    size_bytes = MAX_REQUEST_BYTES_WITHOUT_RECORDS + 1
    await client.send_bytes(struct.pack(">ihhih", size_bytes, KEY["JoinGroup"].key, 9, 1, -1))
    assert await client.is_closed()
    allowed = broker.connect()
    await allowed.send_bytes(struct.pack(">ihhih", size_bytes, KEY["Produce"].key, 9, 1, -1))
    assert not await allowed.is_closed()


async def test_more_rows_than_any_needs_end_the_connection(broker: Broker) -> None:
    for count, refused in ((MAX_REQUEST_ROWS, False), (MAX_REQUEST_ROWS + 1, True)):
        client = broker.connect()
        request = describe_groups.DescribeGroupsRequest(groups=["g"] * count)
        await client.send("DescribeGroups", 6, request)
        if refused:
            assert await client.is_closed()
        else:
            assert len((await client.receive("DescribeGroups", 6))[1].groups) == count


async def test_a_large_thing_named_often_is_one_row_and_its_answer_has_an_end(broker: Broker) -> None:
    """A thousand producers, asked for a thousand times: more rows than an answer may have."""
    client = broker.connect()
    marker = write_txn_markers.WritableTxnMarker
    topics = [write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    for first in (0, 500):
        markers = [marker(producer_id=first + number, producer_epoch=0, topics=topics) for number in range(500)]
        await client.ask("WriteTxnMarkers", 1, write_txn_markers.WriteTxnMarkersRequest(markers=markers))
    asked = describe_producers.DescribeProducersTopicRequest

    def request(times: int) -> describe_producers.DescribeProducersRequest:
        return describe_producers.DescribeProducersRequest(topics=[asked(name="t", partition_indexes=[0] * times)])

    answer = await client.ask("DescribeProducers", 0, request(2))
    assert [len(row.active_producers) for row in answer.topics[0].partitions] == [1000, 1000]
    await client.send("DescribeProducers", 0, request(MAX_ANSWER_ROWS // 1000))
    assert await client.is_closed()


def join(group: str = "g", **parts: Any) -> join_group.JoinGroupRequest:
    protocol = join_group.JoinGroupRequestProtocol
    parts.setdefault("protocols", [protocol(name="range", metadata=b"")])
    return join_group.JoinGroupRequest(
        group_id=group, session_timeout_ms=6000, rebalance_timeout_ms=1000, protocol_type="consumer", **parts
    )


async def test_what_a_member_may_say_is_bounded(broker: Broker) -> None:
    client = broker.connect()
    protocol = join_group.JoinGroupRequestProtocol
    many = [protocol(name=f"p{number}", metadata=b"x") for number in range(MEMBER_PROTOCOLS_MAX + 1)]
    half = bytes(MEMBER_METADATA_MAX_BYTES // 2)
    large = [protocol(name="a", metadata=half), protocol(name="b", metadata=half + b"x")]
    for offered in (many, large):
        answer = await client.ask("JoinGroup", 3, join(protocols=offered))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        answer = await client.ask("JoinGroup", 3, join(offered[0].name, protocols=offered[:1]))
        assert answer.error_code == ErrorCode.NONE


async def test_subscriptions_too_large_for_a_record_are_not_read(broker: Broker) -> None:
    client = broker.connect()
    topic = struct.pack(">h8s", 8, b"topicabc")
    protocol = join_group.JoinGroupRequestProtocol
    for count, read in ((10, True), (300_000, False)):
        metadata = struct.pack(">hi", 0, count) + topic * count + struct.pack(">i", -1)
        name = f"g{count}"
        answer = await client.ask("JoinGroup", 3, join(name, protocols=[protocol(name="range", metadata=metadata)]))
        assert answer.error_code == 0
        assert broker.world.groups.subscribed_topics(name) == ({"topicabc"} if read else None)


async def test_a_member_id_fits_however_long_its_prefix(broker: Broker) -> None:
    client = broker.connect()
    prefix = "é" * (MAX_STRING_BYTES // 2)
    answer = await client.ask("JoinGroup", 9, join(group_instance_id=prefix))
    assert answer.error_code == 0 and MAX_STRING_BYTES - 1 <= len(answer.member_id.encode()) <= MAX_STRING_BYTES
    assert answer.member_id[-37] == "-" and prefix.startswith(answer.member_id[:-37])


async def test_ids_that_nobody_joins_with_are_bounded(broker: Broker) -> None:
    client = broker.connect()
    first = (await client.ask("JoinGroup", 9, join())).member_id
    group = broker.world.groups.groups.table["g"]
    group.pending |= {f"p{number}" for number in range(PENDING_MEMBERS_MAX)}
    assert (await client.ask("JoinGroup", 9, join())).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    await client.send("JoinGroup", 9, join(member_id=first))
    await trio.testing.wait_all_tasks_blocked()
    assert list(group.members) == [first]


async def test_a_retention_without_end(broker: Broker) -> None:
    client = broker.connect()
    request = test_offsets.commit((0, 5), retention_time_ms=2**63 - 1)
    answer = await client.ask("OffsetCommit", 2, request)
    assert test_offsets.codes(answer) == [0]
