"""One connection: negotiation down to Kafka 2.1, order, silence, rubbish, and what a cancelled wait leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from kmirror.errors import DecodeError
from kmirror.limits import MAX_RESPONSE_FRAME_BYTES
from kmirror.protocol import frames, registry
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kmirror.source.connection import Connection, FrameReader
from kmirror.source.errors import PeerClosed, PeerTimeout, PeerUnreachable, UnsupportedByPeer
from kmirror.source.transport import StreamTransport, dial_tcp
from tests.source.fake_source import (
    CLOSE,
    KAFKA_2_1_1,
    KAFKA_3_9_2,
    KAFKA_4_4_0,
    SILENCE,
    FakeBroker,
    FakeCluster,
    Ranges,
)


@pytest.fixture
def open_to(nursery: trio.Nursery) -> Callable[..., Any]:
    async def open_to(versions: Ranges = KAFKA_4_4_0, **options: Any) -> tuple[Connection, FakeBroker]:
        cluster = FakeCluster(nursery, versions=versions)
        broker = cluster.brokers[1]
        connection = await Connection.open(broker.host, broker.port, dialer=cluster.dialer, **options)
        return connection, broker

    return open_to


@pytest.mark.parametrize(
    ("versions", "probes", "fetch"),
    [(KAFKA_2_1_1, [0], 10), (KAFKA_3_9_2, [4], 17), (KAFKA_4_4_0, [4], 18)],
    ids=["2.1.1", "3.9.2", "4.4.0"],
)
async def test_negotiates_with(
    open_to: Callable[..., Any], versions: Ranges, probes: list[int], fetch: int, autojump_clock: object
) -> None:
    connection, broker = await open_to(versions)
    assert [seen.version for seen in broker.seen if seen.api == "ApiVersions"] == probes
    assert connection.version_of("Fetch") == fetch
    assert connection.version_of("Fetch", 12) == min(fetch, 12)
    response = await connection.request(MetadataRequest(topics=None))
    assert response.cluster_id == "source-cluster"


async def test_a_broker_that_names_its_range_is_asked_at_its_newest(
    open_to: Callable[..., Any], autojump_clock: object
) -> None:
    _, broker = await open_to({**KAFKA_4_4_0, "ApiVersions": (0, 3)})
    assert [seen.version for seen in broker.seen] == [3]
    assert broker.seen[0].message.client_software_name == "kmirror"


async def test_an_api_the_broker_lacks_is_refused_by_name(open_to: Callable[..., Any], autojump_clock: object) -> None:
    connection, _ = await open_to({**KAFKA_4_4_0, "Fetch": (40, 41)})
    with pytest.raises(UnsupportedByPeer, match=r"CreateTopics.*does not serve it"):
        connection.version_of("CreateTopics")
    with pytest.raises(UnsupportedByPeer, match="serves versions 40 to 41"):
        connection.version_of("Fetch")
    assert (await connection.request(MetadataRequest(topics=None))).controller_id == 1  # still usable


async def test_answers_go_to_who_asked_even_when_waited_for_in_another_order(
    open_to: Callable[..., Any], autojump_clock: object
) -> None:
    connection, broker = await open_to()
    broker.cluster.topic("one")
    broker.cluster.topic("two")
    tickets = [await connection.send(MetadataRequest(topics=[_topic(name)])) for name in ("one", "two", "none")]
    names: dict[int, str] = {}

    async def wait(index: int) -> None:
        names[index] = (await connection.receive(tickets[index])).topics[0].name

    async with trio.open_nursery() as waiters:
        for index in (2, 0, 1):
            waiters.start_soon(wait, index)
    assert names == {0: "one", 1: "two", 2: "none"}
    assert connection.in_flight == 0


async def test_a_silent_peer_costs_the_timeout_and_the_connection(
    open_to: Callable[..., Any], autojump_clock: object
) -> None:
    connection, broker = await open_to(timeout_ms=5_000)
    broker.script = _always(SILENCE)
    begun_s = trio.current_time()
    with pytest.raises(PeerTimeout, match="did not answer Metadata within 5 s"):
        await connection.request(MetadataRequest(topics=None))
    assert trio.current_time() - begun_s == pytest.approx(5)
    assert connection.closed
    with pytest.raises(PeerClosed):
        await connection.send(MetadataRequest(topics=None))


async def test_a_peer_that_never_negotiates_is_unreachable(nursery: trio.Nursery, autojump_clock: object) -> None:
    cluster = FakeCluster(nursery)
    cluster.brokers[1].script = _always(SILENCE)
    with pytest.raises(PeerUnreachable, match="did not answer within 700 ms"):
        await Connection.open("broker-1", 9001, dialer=cluster.dialer, connect_timeout_ms=700)


async def test_a_peer_that_stops_in_the_middle_of_a_frame(open_to: Callable[..., Any], autojump_clock: object) -> None:
    connection, broker = await open_to(timeout_ms=3_000)
    half = _metadata_frame(connection, broker, correlation_id=1)[:20]
    broker.script = _always(half)
    with pytest.raises(PeerTimeout):
        await connection.request(MetadataRequest(topics=None))

    connection, broker = await open_to()

    async def send_half_and_close(broker: FakeBroker, _api: Any, _version: int, _message: Any) -> Any:
        await broker.streams[-1].send_all(half)
        return CLOSE

    broker.script = send_half_and_close
    with pytest.raises(PeerClosed, match="before the end of an answer"):
        await connection.request(MetadataRequest(topics=None))
    assert connection.closed


async def test_a_wrong_correlation_id_ends_the_connection(open_to: Callable[..., Any], autojump_clock: object) -> None:
    connection, broker = await open_to()
    broker.script = _always(_metadata_frame(connection, broker, correlation_id=77))
    with pytest.raises(DecodeError, match="correlation id 77, expected 1"):
        await connection.request(MetadataRequest(topics=None))
    assert connection.closed


@pytest.mark.parametrize(
    "rubbish",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        (MAX_RESPONSE_FRAME_BYTES + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"\0\0\0\3abc",
        b"\0\0\0\x08\0\0\0\1\xff\xff\xff\xff",
    ],
    ids=["http", "huge", "negative", "short", "body"],
)
async def test_rubbish_ends_the_connection(open_to: Callable[..., Any], rubbish: bytes, autojump_clock: object) -> None:
    connection, broker = await open_to()
    broker.script = _always(rubbish)
    with pytest.raises(DecodeError):
        await connection.request(MetadataRequest(topics=None))
    assert connection.closed


async def test_others_in_flight_learn_that_the_connection_ended(
    open_to: Callable[..., Any], autojump_clock: object
) -> None:
    connection, broker = await open_to()
    broker.script = _always(b"\xff\xff\xff\xff")
    first = await connection.send(MetadataRequest(topics=None))
    second = await connection.send(MetadataRequest(topics=None))
    with pytest.raises(DecodeError):
        await connection.receive(first)
    with pytest.raises(PeerClosed):
        await connection.receive(second)


async def test_a_cancelled_wait_skips_its_answer_and_keeps_the_connection(
    open_to: Callable[..., Any], autojump_clock: object
) -> None:
    connection, broker = await open_to()
    frame = _metadata_frame(connection, broker, correlation_id=1)

    async def dribble(broker: FakeBroker, _api: Any, _version: int, _message: Any) -> Any:
        broker.script = None
        await broker.streams[-1].send_all(frame[:30])
        await trio.sleep(2)
        return frame[30:]

    broker.script = dribble
    with trio.move_on_after(1) as scope:
        await connection.request(MetadataRequest(topics=None))
    assert scope.cancelled_caught
    broker.cluster.topic("after")
    response = await connection.request(MetadataRequest(topics=[_topic("after")]))
    assert [topic.name for topic in response.topics] == ["after"]


async def test_a_throttled_answer_lengthens_the_next_timeout(
    open_to: Callable[..., Any], autojump_clock: object
) -> None:
    connection, broker = await open_to(timeout_ms=1_000)

    async def throttle(broker: FakeBroker, _api: Any, _version: int, message: Any) -> Any:
        if len(broker.requests("Metadata")) == 1:
            return MetadataResponse(throttle_time_ms=5_000)
        await trio.sleep(5)
        return None

    broker.script = throttle
    await connection.request(MetadataRequest(topics=None))
    assert (await connection.request(MetadataRequest(topics=None))).cluster_id == "source-cluster"


async def test_frames_of_every_size_survive_any_chunking(rng: Any, autojump_clock: object) -> None:
    sizes = [4, 5, 100, 65_531, 65_532, 65_533, 200_000] + [rng.randrange(4, 150_000) for _ in range(20)]
    bodies = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    wire = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    for reuse in (False, True):
        ours, theirs = trio.testing.memory_stream_pair()
        reader = FrameReader(StreamTransport(ours), reuse_buffer=reuse)

        async def feed(theirs: Any = theirs) -> None:
            at = 0
            while at < len(wire):
                size = rng.choice([1, 3, 4, 1_000, 70_000])
                await theirs.send_all(wire[at : at + size])
                at += size
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as feeding:
            feeding.start_soon(feed)
            for body in bodies:
                frame = await reader.next_frame()
                assert frame == body and frame.readonly


async def test_over_tcp() -> None:
    """The raw socket path: a real listener on a free loopback port, large answers, and an address nobody listens on."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        cluster = FakeCluster(nursery)
        broker = cluster.brokers[1]
        for index in range(3_000):
            cluster.topic(f"a-topic-with-a-rather-long-name-{index:06}")

        async def serve(stream: trio.SocketStream) -> None:
            await broker.serve(stream)  # type: ignore[arg-type]

        nursery.start_soon(trio.serve_listeners, serve, listeners)
        connection = await Connection.open("127.0.0.1", port)
        tickets = [await connection.send(MetadataRequest(topics=None)) for _ in range(3)]
        for ticket in tickets:
            assert len((await connection.receive(ticket)).topics) == 3_000
        await connection.aclose()
        with pytest.raises(PeerClosed):
            await connection.send(MetadataRequest(topics=None))
        nursery.cancel_scope.cancel()
    with pytest.raises(PeerUnreachable, match=f"cannot connect to 127.0.0.1:{port}"):
        await dial_tcp("127.0.0.1", port)


async def test_closing_wakes_a_waiter_on_a_real_socket() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    transport = await dial_tcp("127.0.0.1", listeners[0].socket.getsockname()[1])

    async def wait() -> None:
        with pytest.raises(PeerClosed):
            await transport.receive_into(memoryview(bytearray(10)))

    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        transport.close()
    await listeners[0].aclose()


def _always(answer: Any) -> Any:
    async def script(_broker: FakeBroker, _api: Any, _version: int, _message: Any) -> Any:
        return answer

    return script


def _topic(name: str) -> Any:
    return MetadataRequestTopic(name=name)


def _metadata_frame(connection: Connection, broker: FakeBroker, *, correlation_id: int) -> bytes:
    response = MetadataResponse(cluster_id=broker.cluster.cluster_id)
    api = registry.by_name["Metadata"]
    pieces = frames.response_frame(api, connection.version_of("Metadata"), correlation_id, response)
    return b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]
