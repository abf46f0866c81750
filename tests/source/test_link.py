"""The link of one mirror against a scripted source: what it carries, how it recovers, and what it never does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from kmirror.broker.mirror_seam import (
    BatchAnswer,
    BatchQuery,
    EpochEndAnswer,
    EpochEndQuery,
    ErrorAnswer,
    LineageAnswer,
    LineageQuery,
    OffsetAnswer,
    OffsetQuery,
)
from kmirror.errors import DiskFailure
from kmirror.protocol import uuids
from kmirror.protocol.api.fetch import FetchResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.source.cluster import ClientSettings
from kmirror.source.link import Link
from kmirror.source.links import Links
from tests.source.copying_mirrors import CopyingMirrors, link_config
from tests.source.fake_source import (
    CLOSE,
    KAFKA_2_1_1,
    KAFKA_3_9_2,
    KAFKA_4_4_0,
    SILENCE,
    FakeBroker,
    FakeCluster,
    FakeTopic,
    Ranges,
)

Running = Callable[..., AbstractAsyncContextManager[Link]]


@asynccontextmanager
async def running(source: FakeCluster, mirrors: CopyingMirrors, **changes: Any) -> Any:
    rng = Random(1)
    link = Link(mirrors, link_config(source.bootstrap, **changes), ClientSettings(dialer=source.dialer), rng=rng)
    mirrors.set_waker(lambda _: link.wakeup.wake())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        yield link
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool], *, limit_s: float = 600) -> None:
    """Virtual time: looks again every 50 ms."""
    with trio.fail_after(limit_s):
        while not condition():  # noqa: ASYNC110 - the fake has no event for each thing a test may wait for
            await trio.sleep(0.05)


def same_bytes(mirrors: CopyingMirrors, topic: FakeTopic, name: str) -> bool:
    return all(bytes(mirrors.copies[name, i].data) == b"".join(p.batches) for i, p in topic.partitions.items())


@pytest.mark.parametrize("versions", [KAFKA_2_1_1, KAFKA_3_9_2, KAFKA_4_4_0], ids=["2.1.1", "3.9.2", "4.4.0"])
async def test_copies_every_byte_and_follows(
    autojump_clock: object, nursery: trio.Nursery, versions: Ranges, rng: Random
) -> None:
    source = FakeCluster(nursery, brokers=3, versions=versions)
    topic = source.topic("t", partitions=5)
    for part in topic.partitions.values():
        for _ in range(rng.randrange(20, 40)):
            part.append(rng.randrange(1, 5), value=rng.randbytes(rng.randrange(1, 90_000)))
    mirrors = CopyingMirrors(*(("t", index) for index in range(5)))
    async with running(source, mirrors):
        await until(lambda: same_bytes(mirrors, topic, "t"))
        for part in topic.partitions.values():
            part.append(2)
        source.touch()
        await until(lambda: same_bytes(mirrors, topic, "t"), limit_s=3)
    assert mirrors.unreachable == []
    fetches = [seen for broker in source.brokers.values() for seen in broker.seen if seen.api == "Fetch"]
    assert {seen.version for seen in fetches} == {versions["Fetch"][1]}
    assert all(seen.message.isolation_level == 0 and seen.message.replica_id == -1 for seen in fetches)
    assert all(p.current_leader_epoch == 0 for seen in fetches for t in seen.message.topics for p in t.partitions)
    assert len({seen.message.session_id for seen in fetches}) == 1 + len(source.brokers)  # 0 once each, then its own
    by_id = versions["Fetch"][1] >= 13
    assert all((t.topic_id != uuids.ZERO) == by_id for seen in fetches for t in seen.message.topics)


async def test_the_next_fetch_is_out_before_the_last_answer_is_applied(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    for _ in range(40):
        topic.partitions[0].append(1, value=bytes(200_000))
    mirrors = CopyingMirrors(("t", 0))
    in_flight_at_apply: list[int] = []
    apply = mirrors.apply

    async with running(source, mirrors) as link:

        def spy(examined: Any) -> None:
            if examined.accepted:
                connection = link.cluster._connections[1, "fetch"]
                in_flight_at_apply.append(connection.in_flight)
            apply(examined)

        mirrors.apply = spy  # type: ignore[method-assign]
        await until(lambda: same_bytes(mirrors, topic, "t"))
    assert len(in_flight_at_apply) >= 4 and set(in_flight_at_apply) == {1}
    assert mirrors.max_unapplied == 1  # never a second answer before the first is applied


async def test_a_long_poll_does_not_delay_a_question(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    topic.partitions[0].append(3)
    mirrors = CopyingMirrors(("t", 0))
    async with running(source, mirrors, fetch_wait_max_ms=25_000) as link:
        await until(lambda: same_bytes(mirrors, topic, "t"))
        await trio.sleep(1)  # the next fetch is parked at the source now
        mirrors.asked.append(epoch_end(1, 0))
        begun_s = trio.current_time()
        link.wakeup.wake()
        await until(lambda: 1 in mirrors.answers)
        assert trio.current_time() - begun_s < 0.2
    assert mirrors.answers[1] == EpochEndAnswer(leader_epoch=0, end_offset=3)


async def test_the_high_watermark_of_a_new_partition_does_not_wait_for_a_long_poll(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery)
    source.topic("t", partitions=2)
    mirrors = CopyingMirrors(("t", 0), ("t", 1))
    mirrors.copies["t", 1].active = False
    heard: list[tuple[int, float]] = []
    examine = mirrors.examine

    def listening(mirror: str, item: Any, answer: Any) -> Any:
        heard.append((item.partition, trio.current_time()))
        return examine(mirror, item, answer)

    mirrors.examine = listening  # type: ignore[method-assign]
    begun_s = trio.current_time()
    async with running(source, mirrors, fetch_wait_max_ms=20_000):
        await until(lambda: bool(heard))
        assert heard[0][0] == 0 and heard[0][1] - begun_s < 0.1
        await trio.sleep(5)
        mirrors.copies["t", 1].active = True
        await trio.sleep(60)
    polls = [seen.at_s for seen in source.brokers[1].seen if seen.api == "Fetch"]
    assert len(polls) <= 8  # and long polls otherwise
    assert next(at for index, at in heard if index == 1) - begun_s < 21


async def test_questions_of_every_kind(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery, brokers=2)
    topic = source.topic("t", partitions=2)
    for index in (0, 1):
        topic.partitions[index].append(3)
        topic.partitions[index].leader_epoch = 4
        topic.partitions[index].append(2)
    mirrors = CopyingMirrors(("t", 0), ("t", 1))
    for copy in mirrors.copies.values():
        copy.active = False
    common: dict[str, Any] = {"mirror": "m", "topic": "t", "topic_id": topic.topic_id, "current_leader_epoch": 4}
    mirrors.asked = [
        epoch_end(1, 0, partition=0, leader=1, current=4),
        epoch_end(2, 4, partition=0, leader=1, current=4),
        epoch_end(3, 3, partition=1, leader=2, current=3),
        OffsetQuery(id=4, partition=0, leader=1, timestamp=-1, **common),
        OffsetQuery(id=5, partition=0, leader=1, timestamp=-2, **common),
        OffsetQuery(id=6, partition=1, leader=2, timestamp=1_800_000_000_000, **common),
        BatchQuery(id=7, partition=0, leader=1, offset=3, max_bytes=100, **common),
        BatchQuery(id=8, partition=0, leader=1, offset=77, max_bytes=100, **common),
        LineageQuery(id=9, partition=0, leader=1, cluster_id="us", **common),
        epoch_end(10, 0, partition=0, leader=8, current=4),
        epoch_end(11, 0, partition=0, leader=2, current=4),
    ]
    async with running(source, mirrors):
        await until(lambda: len(mirrors.answers) == len(mirrors.asked), limit_s=5)
    answers = mirrors.answers
    assert answers[1] == EpochEndAnswer(leader_epoch=0, end_offset=3)
    assert answers[2] == EpochEndAnswer(leader_epoch=4, end_offset=5)
    assert answers[3] == ErrorAnswer(code=ErrorCode.FENCED_LEADER_EPOCH)
    assert [answers[n] for n in (4, 5, 6)] == [OffsetAnswer(offset=5), OffsetAnswer(offset=0), OffsetAnswer(offset=-1)]
    assert isinstance(answers[7], BatchAnswer) and bytes(answers[7].records) == topic.partitions[0].batches[1]
    assert answers[8] == ErrorAnswer(code=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert answers[9] == LineageAnswer(supported=False)
    assert isinstance(answers[10], ErrorAnswer) and answers[10].transport and "broker 8" in answers[10].message
    assert answers[11] == ErrorAnswer(code=ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def test_a_broker_that_dies_while_asked_is_a_transport_error(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery)
    source.topic("t")
    mirrors = CopyingMirrors(("t", 0))
    mirrors.copies["t", 0].active = False
    mirrors.asked = [epoch_end(1, 0), epoch_end(2, 0)]
    source.brokers[1].script = only("OffsetForLeaderEpoch", CLOSE)
    async with running(source, mirrors):
        await until(lambda: len(mirrors.answers) == 2, limit_s=5)
    assert all(isinstance(answer, ErrorAnswer) and answer.transport for answer in mirrors.answers.values())


@pytest.mark.parametrize("versions", [KAFKA_2_1_1, KAFKA_4_4_0], ids=["2.1.1", "4.4.0"])
async def test_a_leader_that_moves(autojump_clock: object, nursery: trio.Nursery, versions: Ranges) -> None:
    source = FakeCluster(nursery, brokers=2, versions=versions)
    topic = source.topic("t")
    part = topic.partitions[0]
    part.append(5)
    mirrors = CopyingMirrors(("t", 0))
    async with running(source, mirrors):
        await until(lambda: same_bytes(mirrors, topic, "t"))
        metadata_before = len(mirrors.metadata)
        part.leader, part.leader_epoch = 2, 1
        part.append(2)
        source.touch()
        await until(lambda: same_bytes(mirrors, topic, "t"), limit_s=5)
    assert mirrors.copies["t", 0].errors == [ErrorCode.FENCED_LEADER_EPOCH]
    if versions is KAFKA_4_4_0:  # the answer itself named the new leader
        assert len(mirrors.metadata) == metadata_before
    else:
        assert len(mirrors.metadata) > metadata_before


async def test_a_broker_that_comes_back_is_found_again(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery, brokers=2)
    topic = source.topic("t", partitions=2)
    mirrors = CopyingMirrors(("t", 0), ("t", 1))
    async with running(source, mirrors):
        await until(lambda: len(source.brokers[2].requests("Fetch")) > 0)
        await until(lambda: len(source.brokers[1].requests("Fetch")) > 0)
        broker = source.brokers[2]
        broker.kill()
        begun_s = trio.current_time()
        await trio.sleep(60)
        assert {broker_id for broker_id, _ in mirrors.unreachable} == {2}
        dials = [at for at in broker.dialed_at_s if at > begun_s]
        assert 2 <= len(dials) <= 12  # backs off, never spins
        assert len(mirrors.unreachable) <= 12
        topic.partitions[0].append(1)
        topic.partitions[1].append(1)
        source.touch()
        await until(lambda: len(mirrors.copies["t", 0].data) > 0, limit_s=2)  # the living broker was not held up
        broker.up = True
        await until(lambda: same_bytes(mirrors, topic, "t"), limit_s=60)


async def test_a_source_that_is_down_from_the_start(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    topic.partitions[0].append(1)
    source.brokers[1].up = False
    mirrors = CopyingMirrors(("t", 0))
    async with running(source, mirrors):
        await trio.sleep(30)
        assert 20 <= len(mirrors.unreachable) <= 60
        assert mirrors.unreachable[0][0] is None and "refused" in mirrors.unreachable[0][1]
        source.brokers[1].up = True
        await until(lambda: same_bytes(mirrors, topic, "t"), limit_s=3)


@pytest.mark.parametrize(
    "bad",
    [SILENCE, CLOSE, b"\0\0\0\x10HTTP/1.1 400 Bad", b"\x7f\xff\xff\xff", FetchResponse(error_code=-1)],
    ids=["silent", "closing", "rubbish", "huge", "refusing"],
)
async def test_a_broker_that_misbehaves_costs_its_connection_only(
    autojump_clock: object, nursery: trio.Nursery, bad: Any
) -> None:
    source = FakeCluster(nursery, brokers=2)
    topic = source.topic("t", partitions=2)
    for part in topic.partitions.values():
        part.append(3)
    source.brokers[2].script = only("Fetch", bad)
    mirrors = CopyingMirrors(("t", 0), ("t", 1))
    async with running(source, mirrors, socket_timeout_ms=5_000):
        await until(lambda: len(mirrors.copies["t", 0].data) > 0, limit_s=2)
        await until(lambda: len(mirrors.unreachable) >= 4)
        assert {broker_id for broker_id, _ in mirrors.unreachable} == {2}
        assert bytes(mirrors.copies["t", 1].data) == b""
        gaps = source.brokers[2].dialed_at_s
        assert gaps[-1] - gaps[-2] >= 3  # 1 s, 2 s, 4 s … with jitter
        source.brokers[2].script = None
        await until(lambda: same_bytes(mirrors, topic, "t"), limit_s=60)


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH], ids=["70", "71"]
)
async def test_a_lost_fetch_session_is_renewed(autojump_clock: object, nursery: trio.Nursery, code: int) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t", partitions=2)
    mirrors = CopyingMirrors(("t", 0), ("t", 1))
    async with running(source, mirrors):
        await until(lambda: len(source.brokers[1].requests("Fetch")) > 3)
        broker = source.brokers[1]
        if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            broker.sessions.clear()
        else:
            broker.session_epochs = dict.fromkeys(broker.session_epochs, 9999)
        for part in topic.partitions.values():
            part.append(2)
        source.touch()
        await until(lambda: same_bytes(mirrors, topic, "t"), limit_s=5)
        assert len(broker.dialed_at_s) == 2  # control and fetch: the connection was kept
    assert mirrors.unreachable == []


async def test_partition_errors_are_handed_over_as_they_are(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t", partitions=4)
    topic.partitions[0].log_start = 500
    topic.partitions[1].error_code = ErrorCode.KAFKA_STORAGE_ERROR
    topic.partitions[3].append(1)
    mirrors = CopyingMirrors(*(("t", index) for index in range(4)))
    async with running(source, mirrors, refresh_interval_ms=10_000):
        await until(lambda: len(mirrors.metadata) > 0)
        await until(lambda: bool(mirrors.copies["t", 0].errors and mirrors.copies["t", 1].errors))
        await until(lambda: len(mirrors.copies["t", 3].data) > 0)
        source.topics["t"] = FakeTopic(topic_id=uuids.random_id(), partitions=topic.partitions)  # re-created
        mirrors.copies["t", 2].errors.clear()
        source.touch()
        await until(lambda: ErrorCode.UNKNOWN_TOPIC_ID in mirrors.copies["t", 2].errors, limit_s=3)
    assert mirrors.copies["t", 0].errors[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert mirrors.copies["t", 1].errors[0] == ErrorCode.KAFKA_STORAGE_ERROR


async def test_metadata_in_time_and_on_request(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    topic.configs["retention.ms"] = "1000"
    mirrors = CopyingMirrors(("t", 0), ("gone", 0))
    async with running(source, mirrors, refresh_interval_ms=60_000) as link:
        await trio.sleep(1)
        assert len(mirrors.metadata) == 1
        assert mirrors.metadata[0].cluster_id == "source-cluster" and not mirrors.metadata[0].capable
        assert mirrors.metadata[0].topics["gone"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert mirrors.metadata[0].brokers == {1: ("broker-1", 9001)}
        assert mirrors.configs == [{"t": {"retention.ms": "1000"}}]
        assert mirrors.refusals == [{"gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}]
        await trio.sleep(120)
        assert len(mirrors.metadata) == 3 and len(mirrors.configs) == 3
        mirrors.requested = True
        mirrors.all_topics = True
        link.wakeup.wake()
        await trio.sleep(0.2)
        assert len(mirrors.metadata) == 4 and len(mirrors.configs) == 3
        assert mirrors.metadata[3].complete and "gone" not in mirrors.metadata[3].topics


async def test_a_request_that_metadata_cannot_satisfy_does_not_spin(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery)
    source.topic("t")
    mirrors = CopyingMirrors(("t", 0))
    handed = mirrors.source_metadata

    def never_satisfied(mirror: str, metadata: Any) -> None:
        handed(mirror, metadata)
        mirrors.requested = True

    mirrors.source_metadata = never_satisfied  # type: ignore[method-assign]
    async with running(source, mirrors):
        await trio.sleep(30)
    assert 25 <= len(mirrors.metadata) <= 45


# --- the supervisor


async def test_links_start_stop_and_start_anew_with_their_configuration(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    topic.partitions[0].append(1)
    mirrors = CopyingMirrors(("t", 0))
    async with supervised(source, mirrors):
        await trio.sleep(1)
        assert source.brokers[1].seen == []
        mirrors.link_configs["m"] = link_config(source.bootstrap)
        wake(mirrors)
        await until(lambda: same_bytes(mirrors, topic, "t"), limit_s=2)
        before = len(source.brokers[1].dialed_at_s)
        mirrors.link_configs["m"] = link_config(source.bootstrap, generation=2)
        wake(mirrors)
        await trio.sleep(1)
        assert len(source.brokers[1].dialed_at_s) == 2 * before
        del mirrors.link_configs["m"]
        wake(mirrors)
        await trio.sleep(5)
        asked = len(source.brokers[1].seen)
        await trio.sleep(300)
        assert len(source.brokers[1].seen) == asked


async def test_an_unforeseen_failure_costs_a_pause_and_is_reported(
    autojump_clock: object, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    topic.partitions[0].append(1)
    mirrors = CopyingMirrors(("t", 0), configs={"m": link_config(source.bootstrap)})
    examine = mirrors.examine

    def broken(*_: Any) -> Any:
        mirrors.examine = examine  # type: ignore[method-assign]
        raise ZeroDivisionError("once")

    mirrors.examine = broken  # type: ignore[assignment]
    async with supervised(source, mirrors):
        await until(lambda: same_bytes(mirrors, topic, "t"), limit_s=5)
    assert mirrors.unreachable == [(None, "internal error: ZeroDivisionError('once')")]
    assert "ZeroDivisionError" in caplog.text


async def test_a_disk_failure_goes_through(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    source.topic("t").partitions[0].append(1)
    mirrors = CopyingMirrors(("t", 0), configs={"m": link_config(source.bootstrap)})

    def broken(*_: Any) -> Any:
        raise DiskFailure("fsync failed")

    mirrors.apply = broken  # type: ignore[assignment]
    with pytest.RaisesGroup(pytest.RaisesExc(DiskFailure), flatten_subgroups=True):
        async with supervised(source, mirrors):
            await trio.sleep(10)


async def test_a_bad_address_is_reported(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    mirrors = CopyingMirrors(("t", 0), configs={"m": link_config(["nonsense"])})
    async with supervised(source, mirrors):
        await trio.sleep(10)
    assert 2 <= len(mirrors.unreachable) <= 5
    assert mirrors.unreachable[0] == (None, "'nonsense' is not host:port")


async def test_a_secured_source_is_not_asked_in_plain_text(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    config = link_config(source.bootstrap, client_properties={"security.protocol": "SASL_SSL"})
    mirrors = CopyingMirrors(("t", 0), configs={"m": config})
    async with supervised(source, mirrors):
        await trio.sleep(10)
    assert "security.protocol=SASL_SSL" in mirrors.unreachable[0][1]
    assert source.brokers[1].dialed_at_s == []


async def test_timers_are_turned(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    mirrors = CopyingMirrors()
    async with supervised(source, mirrors) as clock:
        await trio.sleep(5)
        assert mirrors.ticks == []
        mirrors.next_tick_ms = clock.monotonic_ms() + 700
        wake(mirrors)
        await trio.sleep(0.6)
        assert mirrors.ticks == []
        await trio.sleep(0.2)
        assert len(mirrors.ticks) == 1


class TrioClock:
    def time_ms(self) -> int:
        return self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(trio.current_time() * 1000)


@asynccontextmanager
async def supervised(source: FakeCluster, mirrors: CopyingMirrors) -> Any:
    clock = TrioClock()
    links = Links(mirrors, clock, settings=ClientSettings(dialer=source.dialer), rng=Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(links.run)
        await trio.testing.wait_all_tasks_blocked()
        yield clock
        nursery.cancel_scope.cancel()


def wake(mirrors: CopyingMirrors) -> None:
    assert mirrors.wake is not None
    mirrors.wake("m")


def epoch_end(number: int, epoch: int, *, partition: int = 0, leader: int = 1, current: int = 0) -> EpochEndQuery:
    return EpochEndQuery(
        id=number,
        mirror="m",
        topic="t",
        topic_id=uuids.ZERO,
        partition=partition,
        leader=leader,
        current_leader_epoch=current,
        epoch=epoch,
    )


def only(api_name: str, answer: Any) -> Callable[..., Awaitable[Any]]:
    async def script(_broker: FakeBroker, api: Any, _version: int, _message: Any) -> Any:
        return answer if api.name == api_name else None

    return script
