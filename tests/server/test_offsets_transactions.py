"""TxnOffsetCommit over the wire: pending until the marker, who may commit, restarts in between."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kmirror.effects import Promise
from kmirror.protocol import uuids
from kmirror.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.storage.log import LogMode
from tests.server.harness import Broker, serving
from tests.server.test_groups import alone
from tests.server.test_offsets import NONE, codes, commit, fetched
from tests.server.transaction_client import TransactionClient, decided

Virtual = trio.abc.Clock
UNSTABLE = (-1, -1, "", 88)


def asked(client: TransactionClient, *offsets: int, group: str = "g", version: int = 4, **parts: Any) -> Any:
    """One offset per partition from 0 on, epoch 7 and metadata "m"."""
    partitions = [
        TxnOffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=7 if version >= 2 else -1,
            committed_metadata="m",
        )
        for index, offset in enumerate(offsets)
    ]
    name, topic_id = parts.pop("topic", "t"), parts.pop("topic_id", uuids.ZERO)
    return TxnOffsetCommitRequest(
        transactional_id=client.name,
        group_id=group,
        producer_id=parts.pop("producer_id", client.producer_id),
        producer_epoch=parts.pop("epoch", client.epoch),
        topics=[TxnOffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions)],
        **parts,
    )


async def commit_in(client: TransactionClient, *offsets: int, version: int = 4, **parts: Any) -> list[int]:
    return codes(await client.client.ask("TxnOffsetCommit", version, asked(client, *offsets, version=version, **parts)))


async def begun(broker: Broker, *, second: bool = False, name: str = "x") -> TransactionClient:
    client = TransactionClient(broker.connect(), name=name, second=second)
    await client.start()
    return client


async def ended(client: TransactionClient, *, commit: bool) -> None:
    answer = await client.end(commit=commit)
    assert answer.error_code == 0
    if client.second:
        client.become(answer)
    await decided(client.client, client.name)


@pytest.mark.parametrize("version", range(7))
async def test_offsets_count_from_the_marker_on(autojump_clock: Virtual, version: int) -> None:
    """B031 for transactional commits; versions 5 and 6 include the group's log by themselves."""
    async with serving() as broker:
        await broker.create_topic("t", 2)
        topic_id = broker.world.image.topics_by_name["t"].topic_id if version >= 6 else uuids.ZERO
        client = await begun(broker, second=version >= 5)
        if version < 5:
            assert await client.add_offsets() == 0
        assert await commit_in(client, 40, version=version, topic_id=topic_id) == [0]
        reader = broker.connect()
        assert await fetched(reader, 9) == {0: NONE}
        assert await fetched(reader, 9, partitions=(0, 1), stable=True) == {0: UNSTABLE, 1: NONE}
        assert await fetched(reader, 6) == {0: NONE}, "version 6 cannot ask for stable offsets"
        await ended(client, commit=True)
        expected = {0: (40, 7 if version >= 2 else -1, "m", 0)}
        assert await fetched(reader, 9, stable=True) == expected
        assert await fetched(reader, 9, partitions=None) == expected


@pytest.mark.parametrize("second", [False, True])
async def test_an_abort_leaves_what_was_there(autojump_clock: Virtual, second: bool) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = await begun(broker, second=second)
        await client.client.ask("OffsetCommit", 9, commit((0, 3)))
        if not second:
            await client.add_offsets()
        assert await commit_in(client, 40, version=5 if second else 4) == [0]
        assert await fetched(client.client, 9) == {0: (3, -1, "", 0)}, "the old one, to whom does not mind"
        assert await fetched(client.client, 9, stable=True) == {0: UNSTABLE}
        assert await fetched(client.client, 9, partitions=None, stable=True) == {0: UNSTABLE}
        await ended(client, commit=False)
        assert await fetched(client.client, 9, stable=True) == {0: (3, -1, "", 0)}


async def test_a_plain_commit_in_between_wins(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = await begun(broker)
        await client.add_offsets()
        await commit_in(client, 40)
        await client.client.ask("OffsetCommit", 9, commit((0, 3)))
        await ended(client, commit=True)
        assert await fetched(client.client, 9, stable=True) == {0: (3, -1, "", 0)}


@pytest.mark.parametrize(
    ("version", "code"), [(0, ErrorCode.INVALID_TXN_STATE), (3, 48), (4, ErrorCode.TRANSACTION_ABORTABLE)]
)
async def test_a_transaction_that_does_not_include_the_group(autojump_clock: Virtual, version: int, code: int) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = await begun(broker)
        assert await commit_in(client, 40, version=version) == [code]
        assert await fetched(client.client, 9, stable=True) == {0: NONE}


async def test_a_transaction_that_ends_while_its_commit_waits(
    autojump_clock: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found when the commit came in may be over when it is written: the offsets would hang for ever."""
    async with serving() as broker:
        await broker.create_topic("t")
        client = await begun(broker)
        was_fine: Promise[Any] = Promise.of({("__consumer_offsets", 0): ErrorCode.NONE})
        monkeypatch.setattr(broker.world.transactions.admission, "admit", lambda *_asked: was_fine)
        assert await commit_in(client, 40) == [ErrorCode.TRANSACTION_ABORTABLE]
        assert await fetched(client.client, 9, stable=True) == {0: NONE}


@pytest.mark.parametrize("version", [4, 5])
async def test_a_producer_that_is_fenced(autojump_clock: Virtual, version: int) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        old = await begun(broker, second=version >= 5)
        new = await begun(broker, second=version >= 5)
        assert new.epoch > old.epoch
        assert await commit_in(old, 40, version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        await new.add_offsets()
        assert await commit_in(new, 41, version=version) == [0]
        assert await commit_in(old, 40, version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await commit_in(new, 41, version=version, producer_id=new.producer_id + 5) == [
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
        ]
        await ended(new, commit=True)
        assert (await fetched(new.client, 9))[0][0] == 41


async def test_rows_are_judged_one_by_one(autojump_clock: Virtual) -> None:
    async with serving({"offset.metadata.max.bytes": "0"}) as broker:
        await broker.create_topic("t")
        client = await begun(broker)
        await client.add_offsets()
        assert await commit_in(client, 40, 41) == [3, 12]
        assert await commit_in(client, 40, topic="no") == [3]
        assert await commit_in(client, 40, version=6, topic_id=b"\7" * 16) == [100]
        assert await commit_in(client, 40, group="") == [ErrorCode.INVALID_GROUP_ID]


@pytest.mark.parametrize(("version", "absent"), [(3, 22), (4, 22), (6, 69)])
async def test_members_commit_in_their_generation(autojump_clock: Virtual, version: int, absent: int) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        topic_id = broker.world.image.topics_by_name["t"].topic_id if version >= 6 else uuids.ZERO
        client = await begun(broker, second=version >= 5)
        member = await alone(broker.connect())
        for group in ("g", "absent"):
            await client.add_offsets(group)

        async def outcome(generation: int, member_id: str, group: str = "g") -> list[int]:
            return await commit_in(
                client,
                40,
                group=group,
                version=version,
                topic_id=topic_id,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
            )

        assert await outcome(2, member) == [22]
        assert await outcome(1, "nobody") == [25]
        assert await outcome(3, "m", "absent") == [absent]
        assert await outcome(-1, "") == [0], "producers of before KIP-447 say nothing of a group with members"
        assert await outcome(1, member) == [0]
        await ended(client, commit=True)
        assert (await fetched(client.client, 9))[0][0] == 40


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("power_cut", [True, False])
async def test_pending_offsets_survive(autojump_clock: Virtual, committed: bool, power_cut: bool) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        client = await begun(broker)
        await client.client.ask("OffsetCommit", 9, commit((0, 3)))
        await client.add_offsets()
        assert await commit_in(client, 40) == [0]
        filesystem = broker.filesystem
        if power_cut:
            filesystem = filesystem.crash(keep_nothing=True)
            broker.world.closed = True  # it has no disk any more
    async with serving(filesystem=filesystem) as broker:
        client.client = broker.connect()
        assert await fetched(client.client, 9, stable=True) == {0: UNSTABLE}
        await ended(client, commit=committed)
        expected = (40, 7, "m", 0) if committed else (3, -1, "", 0)
        assert await fetched(client.client, 9, stable=True) == {0: expected}
        filesystem = broker.filesystem
    async with serving(filesystem=filesystem) as broker:
        assert await fetched(broker.connect(), 9, stable=True) == {0: expected}


async def test_mirror_topics_may_be_committed_for(autojump_clock: Virtual) -> None:
    """KIP-1279: consume-transform-produce from a mirror has to work; nothing is written to the topic."""
    async with serving() as broker:
        await broker.create_topic("t")
        broker.world.partition("t", 0).set_mode(LogMode.READ_ONLY, "a mirror")
        client = await begun(broker)
        assert codes(await client.client.ask("OffsetCommit", 9, commit((0, 3)))) == [0]
        await client.add_offsets()
        assert await commit_in(client, 40) == [0]
        await ended(client, commit=True)
        assert (await fetched(client.client, 9, stable=True))[0][0] == 40


async def test_a_group_whose_offsets_are_pending_keeps_them_when_it_is_looked_for(autojump_clock: Virtual) -> None:
    """No expiry while a transaction may still end: neither of the offset that is there nor of the group."""
    properties = {
        "offsets.retention.minutes": "1",
        "offsets.retention.check.interval.ms": "1000",
        "transaction.max.timeout.ms": "900000",
    }
    async with serving(properties) as broker:
        await broker.create_topic("t")
        client = TransactionClient(broker.connect(), timeout_ms=600_000)
        await client.start()
        await client.client.ask("OffsetCommit", 9, commit((0, 3)))
        await client.add_offsets()
        await commit_in(client, 40)
        await trio.sleep(120)
        assert await fetched(client.client, 9) == {0: (3, -1, "", 0)}
        await ended(client, commit=False)
        await trio.sleep(3)
        assert await fetched(client.client, 9) == {0: NONE}
        assert "g" not in broker.world.groups.group_ids()
