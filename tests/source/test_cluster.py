"""Addresses, back-off, brokers that move, and the conveniences, against the scripted source."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio

from kmirror.errors import ConfigError
from kmirror.protocol.errors import ErrorCode
from kmirror.source import calls
from kmirror.source.backoff import Backoff
from kmirror.source.cluster import ClientSettings, Cluster, parse_address
from kmirror.source.errors import PeerError, PeerUnreachable
from tests.source.fake_source import KAFKA_2_1_1, KAFKA_3_9_2, KAFKA_4_4_0, FakeCluster, Ranges


def settings(source: FakeCluster, seed: int = 1) -> ClientSettings:
    return ClientSettings(dialer=source.dialer, rng=Random(seed))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("h:1", ("h", 1)), (" 127.0.0.1:9092 ", ("127.0.0.1", 9092)), ("[::1]:65535", ("::1", 65535))],
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "::1:9092", "h:²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


def test_backoff_doubles_with_jitter_up_to_its_maximum(rng: Random) -> None:
    backoff = Backoff(initial_ms=50, max_ms=1_000, rng=rng)
    for expected in (50, 100, 200, 400, 800, 1_000, 1_000):
        assert expected * 0.8 <= backoff.failed() <= expected * 1.2
    backoff.succeeded()
    assert backoff.failed() <= 60
    for _ in range(5_000):
        assert backoff.failed() <= 1_200


async def test_an_address_that_failed_is_tried_again_at_growing_distances(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    source = FakeCluster(nursery)
    broker = source.brokers[1]
    broker.up = False
    cluster = Cluster(source.bootstrap, settings(source))
    for _ in range(8):
        with pytest.raises(PeerUnreachable, match="refused"):
            await cluster.connection()
    gaps = [later - earlier for earlier, later in zip(broker.dialed_at_s, broker.dialed_at_s[1:], strict=False)]
    for gap, expected in zip(gaps, (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert expected * 0.8 <= gap <= expected * 1.2
    broker.up = True
    await cluster.connection()
    cluster.close()


async def test_a_dead_first_address_does_not_delay_the_second(nursery: trio.Nursery, autojump_clock: object) -> None:
    source = FakeCluster(nursery, brokers=2)
    source.brokers[1].kill()
    async with Cluster.connect(source.bootstrap, settings=settings(source)) as cluster:
        response = await cluster.metadata(None)
        assert [broker.node_id for broker in response.brokers] == [2]
        assert cluster.cluster_id == "source-cluster"


async def test_known_brokers_are_tried_when_no_bootstrap_address_answers(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    source = FakeCluster(nursery, brokers=3)
    cluster = Cluster(source.bootstrap[:1], settings(source))
    await cluster.metadata(None)
    source.brokers[1].kill()
    for _ in range(2):  # the first notices that the connection is dead
        try:
            response = await cluster.metadata(None)
        except PeerError:
            continue
    assert {broker.node_id for broker in response.brokers} == {2, 3}
    cluster.close()


async def test_one_connection_per_node_and_purpose(nursery: trio.Nursery, autojump_clock: object) -> None:
    source = FakeCluster(nursery, brokers=2)
    async with Cluster.connect(source.bootstrap, settings=settings(source)) as cluster:
        await cluster.metadata(None)
        found: list[Any] = []

        async def get(purpose: str) -> None:
            found.append(await cluster.connection(2, purpose=purpose))

        async with trio.open_nursery() as asking:
            for _ in range(5):
                asking.start_soon(get, "fetch")
        assert len({id(connection) for connection in found}) == 1
        await get("control")
        assert found[-1] is not found[0]
        source.brokers[2].port += 100  # restarted at another address
        await cluster.metadata(None)
        await get("fetch")
        assert found[-1] is not found[0] and found[0].closed
        with pytest.raises(PeerUnreachable, match="broker 9 is not in"):
            await cluster.connection(9)


async def test_idle_connections_are_closed(nursery: trio.Nursery, autojump_clock: object) -> None:
    source = FakeCluster(nursery)
    async with Cluster.connect(source.bootstrap, settings=settings(source)) as cluster:
        connection = await cluster.connection()
        await trio.sleep(599)
        cluster.close_idle()
        assert not connection.closed
        await trio.sleep(2)
        cluster.close_idle()
        assert connection.closed


@pytest.mark.parametrize("versions", [KAFKA_2_1_1, KAFKA_3_9_2, KAFKA_4_4_0], ids=["2.1.1", "3.9.2", "4.4.0"])
async def test_conveniences(nursery: trio.Nursery, versions: Ranges, autojump_clock: object) -> None:
    source = FakeCluster(nursery, brokers=2, versions=versions)
    topic = source.topic("t", partitions=2)
    topic.configs["segment.bytes"] = "1048576"
    for index in (0, 1):
        topic.partitions[index].append(3)
        topic.partitions[index].leader_epoch = 4
        topic.partitions[index].append(2)
    async with Cluster.connect(source.bootstrap, settings=settings(source)) as cluster:
        offsets = await cluster.list_offsets({("t", 0): calls.LATEST, ("t", 1): calls.EARLIEST, ("t", 9): -1})
        assert offsets["t", 0].offset == 5 and offsets["t", 1].offset == 0
        assert offsets["t", 9].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for index, part in topic.partitions.items():
            answer = await cluster.fetch_once("t", index, 3)
            assert bytes(answer.records) == part.batches[1] and answer.high_watermark == 5
        configs = (await cluster.describe_topic_configs(["t"]))["t"].entries
        assert (
            configs["segment.bytes"].is_dynamic_topic_config
            and not configs["max.message.bytes"].is_dynamic_topic_config
        )


async def test_fetch_follows_a_leader_that_moved(nursery: trio.Nursery, autojump_clock: object) -> None:
    source = FakeCluster(nursery, brokers=2)
    part = source.topic("t").partitions[0]
    part.append(3)
    part.leader_epoch = 4
    part.append(2)
    async with Cluster.connect(source.bootstrap, settings=settings(source)) as cluster:
        answer = await cluster.fetch_once("t", 0, 0)
        assert bytes(answer.records) == b"".join(part.batches) and answer.high_watermark == 5
        part.leader, part.leader_epoch = 2, 5
        assert bytes((await cluster.fetch_once("t", 0, 3)).records) == part.batches[1]
        configs = await cluster.describe_topic_configs(["t", "none"])
        assert configs["none"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert {name: entry.value for name, entry in configs["t"].entries.items()} == {"max.message.bytes": "1048588"}
