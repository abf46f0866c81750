"""Peers that ask for more than their share: one connection's requests may neither stop the others nor fill memory."""

from __future__ import annotations

from typing import Any

import pytest

from kmirror.limits import OUTBOX_BYTES, TURN_MS
from kmirror.protocol import registry
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from kmirror.protocol.api.metadata import MetadataRequest
from kmirror.protocol.frames import request_frame
from kmirror.server.connection import Connection
from kmirror.server.send import Outbox
from tests.server.harness import Client, VirtualClock, serving

METADATA = registry.by_name["Metadata"]
REQUESTS = 200
ALL_TOPICS = b"".join(
    request_frame(METADATA, 1, number, "", MetadataRequest(topics=None)) for number in range(REQUESTS)
)
NO_TOPIC = request_frame(METADATA, 1, 7, "", MetadataRequest(topics=[]))


async def test_a_buffer_full_of_costly_requests_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 requests of one read, each of which takes a while: somebody else's single one is not the 201st."""
    order: list[str] = []
    spent_ms = 0
    handled = Connection._handle_now
    clock = VirtualClock.monotonic_ms

    def noted(self: Connection, route: Any, context: Any, request: Any) -> Any:
        nonlocal spent_ms
        spent_ms += 1
        order.append("greedy" if request.topics is None else "modest")
        return handled(self, route, context, request)

    monkeypatch.setattr(Connection, "_handle_now", noted)
    monkeypatch.setattr(VirtualClock, "monotonic_ms", lambda self: clock(self) + spent_ms)
    async with serving() as broker:
        greedy, modest = broker.connect(), broker.connect()
        for client in (greedy, modest):  # both are being read from
            await client.send_bytes(NO_TOPIC)
            await client.frame()
        await greedy.send_bytes(ALL_TOPICS)
        await modest.send_bytes(NO_TOPIC)
        await modest.frame()
        for _ in range(REQUESTS):
            await greedy.frame()
    assert order[:2] == ["modest", "modest"]
    assert order.count("greedy") == REQUESTS
    assert order.index("modest", 2) <= 2 + 2 * TURN_MS


async def test_a_peer_that_does_not_read_is_not_answered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of requests can ask for gigabytes: what waits to be sent stays near OUTBOX_BYTES."""
    largest = 0
    add = Outbox.add

    def noted(self: Outbox, pieces: Any) -> None:
        nonlocal largest
        add(self, pieces)
        largest = max(largest, sum(len(piece) for piece in self._pieces if isinstance(piece, bytes | memoryview)))

    monkeypatch.setattr(Outbox, "add", noted)
    async with serving() as broker:
        for number in range(20):
            await broker.create_topic(f"topic-{number}", partitions=100)
        client = broker.connect()
        await client.send_bytes(ALL_TOPICS)
        answers = await _sizes(client)
    assert sum(answers) > 4 * OUTBOX_BYTES, "not enough asked for to show anything"
    assert largest <= OUTBOX_BYTES + 2 * max(answers)


async def _sizes(client: Client) -> list[int]:
    return [len(await client.frame()) for _ in range(REQUESTS)]


@pytest.mark.parametrize("version", range(9, 19))
@pytest.mark.parametrize(("claimed", "code"), [(0, 74), (99, 75)], ids=["old", "unknown"])
async def test_a_fetch_under_another_leader_epoch_is_answered_in_every_version(
    version: int, claimed: int, code: int
) -> None:
    """What every consumer does after a failover. The leader's epoch is told from version 16 on (KIP-951)."""
    async with serving() as broker:
        await broker.create_topic("t")
        topic = broker.world.image.topics_by_name["t"]
        broker.world.bump_leader_epoch(topic.partitions[0], 5)
        broker.flush.run()
        asked = FetchPartition(partition=0, current_leader_epoch=claimed, partition_max_bytes=1000)
        named: dict[str, Any] = {"topic": "t"} if version < 13 else {"topic_id": topic.topic_id}
        answer = await broker.connect().ask(
            "Fetch", version, FetchRequest(max_wait_ms=0, topics=[FetchTopic(partitions=[asked], **named)])
        )
        row = answer.responses[0].partitions[0]
        assert row.error_code == code
        told = version >= 16 and code == 74
        assert row.current_leader.leader_epoch == (topic.partitions[0].leader_epoch if told else -1)
