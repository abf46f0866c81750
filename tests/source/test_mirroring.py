"""Link, mirrors, log and the handlers of the mirror APIs together: a whole broker without sockets, in virtual time.

The source is the scripted one, so it can do what a real Kafka does only once in a blue moon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest
import trio
import trio.testing

from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.world import World
from kmirror.protocol import mirror_numbers, registry, uuids
from kmirror.protocol.api import (
    bump_leader_epochs,
    create_cluster_mirror,
    delete_cluster_mirror,
    describe_cluster_mirrors,
    list_cluster_mirrors,
    pause_mirror_topics,
    read_mirror_offsets,
    read_mirror_states,
    resume_mirror_topics,
    start_mirror_topics,
    stop_mirror_topics,
    write_mirror_states,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import control_type, walk
from kmirror.server.context import Peer, RequestContext
from kmirror.server.handlers import TABLE
from kmirror.source.cluster import ClientSettings
from kmirror.source.links import Links
from kmirror.storage.filesystem import FileSystem
from kmirror.storage.memory import MemoryFileSystem
from tests.source.fake_source import KAFKA_2_1_1, KAFKA_3_9_2, KAFKA_4_4_0, FakeCluster, FakeTopic, Ranges


class TrioClock:
    """Wall and monotonic time of the Trio run, so that the virtual clock moves both."""

    def time_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(trio.current_time() * 1000)


class Destination:
    """A broker; requests go to the handlers, as a connection would hand them over."""

    def __init__(self, **properties: str) -> None:
        self.flush = InlineFlush(at_once=True)
        settings = {"mirror.state.topic.num.partitions": "1", "mirror.metadata.refresh.interval.ms": "10000"}
        settings.update({name.replace("_", "."): value for name, value in properties.items()})
        config = BrokerConfig.from_properties(settings)
        clock = TrioClock()
        self.world = World.open(cast(FileSystem, MemoryFileSystem(seed=1)), "/data", config, clock, self.flush)
        self._peer = Peer(listener="L", advertised_host="h", advertised_port=1, host="c", port=2)

    async def ask(self, request: Any) -> Any:
        api = registry.api_of(request)
        module = __import__(f"kmirror.server.handlers.{TABLE[api.key].module}", fromlist=["handle"])
        answer = module.handle(RequestContext(self.world, self._peer, 0, "test"), request)
        return await answer if hasattr(answer, "__await__") else answer

    async def create(self, source: FakeCluster, **configs: str) -> Any:
        values = {"bootstrap.servers": ",".join(source.bootstrap), "source.cluster.id": source.cluster_id}
        values.update({name.replace("_", "."): value for name, value in configs.items()})
        return await self.ask(
            create_cluster_mirror.CreateClusterMirrorRequest(
                mirror_name="m",
                configs=[create_cluster_mirror.ClusterMirrorConfig(name=k, value=v) for k, v in values.items()],
            )
        )

    async def start(self, source: FakeCluster, *names: str, **options: Any) -> Any:
        return await self.ask(
            start_mirror_topics.StartMirrorTopicsRequest(
                mirror_name="m",
                topics=[
                    start_mirror_topics.StartMirrorTopic(
                        topic_name=name,
                        topic_id=source.topics[name].topic_id if name in source.topics else uuids.ZERO,
                        num_partitions=len(source.topics[name].partitions) if name in source.topics else 0,
                    )
                    for name in names
                ],
                **options,
            )
        )

    async def stop(self, *names: str, **options: Any) -> Any:
        topics = [stop_mirror_topics.StopMirrorTopic(topic_name=name) for name in names]
        return await self.ask(stop_mirror_topics.StopMirrorTopicsRequest(mirror_name="m", topics=topics, **options))

    async def rows(self, **options: Any) -> dict[tuple[str, int], Any]:
        request = describe_cluster_mirrors.DescribeClusterMirrorsRequest(
            include_mirror_state=True, include_mirror_offset=True, **options
        )
        response = await self.ask(request)
        return {
            (topic.topic_name, row.partition_index): row
            for mirror in response.mirrors
            for topic in mirror.topics
            for row in topic.partitions
        }

    async def reach(self, state: str, keys: Iterable[tuple[str, int]], *, limit_s: float = 60) -> None:
        with trio.fail_after(limit_s):
            while True:
                rows = await self.rows()
                if all(key in rows and rows[key].state_value == state for key in keys):
                    return
                await trio.sleep(0.05)

    def data(self, topic: str, index: int = 0) -> bytes:
        log = self.world.partition(topic, index).log
        return b"".join(bytes(data) for _, data in log.batches(log.log_start_offset, log.log_end_offset))

    def has_all(self, name: str, topic: FakeTopic) -> bool:
        return all(self.data(name, i) == b"".join(part.batches) for i, part in topic.partitions.items())


@asynccontextmanager
async def linked(source: FakeCluster, **properties: str) -> Any:
    destination = Destination(**properties)
    settings = ClientSettings(dialer=source.dialer)
    links = Links(destination.world.mirrors, destination.world.clock, settings=settings, rng=Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(links.run)
        await trio.testing.wait_all_tasks_blocked()
        yield destination
        nursery.cancel_scope.cancel()
    destination.world.close(clean=True)


async def until(condition: Callable[[], bool], *, limit_s: float = 60) -> None:
    with trio.fail_after(limit_s):
        while not condition():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.05)


@pytest.mark.parametrize("versions", [KAFKA_2_1_1, KAFKA_3_9_2, KAFKA_4_4_0], ids=["2.1.1", "3.9.2", "4.4.0"])
async def test_from_create_to_failover(
    autojump_clock: object, nursery: trio.Nursery, versions: Ranges, rng: Random
) -> None:
    source = FakeCluster(nursery, brokers=2, versions=versions)
    with_ids = versions["Fetch"][1] >= 13
    topic = source.topic("t", partitions=3, topic_id=None if with_ids else uuids.ZERO)
    for part in topic.partitions.values():
        for _ in range(rng.randrange(5, 30)):
            part.append(rng.randrange(1, 5), value=rng.randbytes(rng.randrange(1, 30_000)))
    keys = [("t", index) for index in topic.partitions]
    async with linked(source) as destination:
        assert (await destination.create(source)).error_code == 0
        assert (await destination.create(source)).error_code == ErrorCode.CLUSTER_MIRROR_ALREADY_EXISTS
        started = await destination.start(source, "t")
        assert [(one.topic_name, one.error_code) for one in started.topics] == [("t", 0)]
        await destination.reach("MIRRORING", keys)
        await until(lambda: destination.has_all("t", topic))
        if with_ids:
            assert destination.world.image.topics_by_name["t"].topic_id == topic.topic_id
        for part in topic.partitions.values():
            part.append(2)
        source.touch()
        await until(lambda: destination.has_all("t", topic), limit_s=5)
        rows = await destination.rows()
        assert all(rows[key].source_offset == rows[key].destination_offset for key in keys)

        stopped = await destination.stop("t")
        assert stopped.error_code == 0
        for row in stopped.topics[0].partitions:
            end = topic.partitions[row.partition_index].end
            assert (row.last_mirrored_offset, row.source_end_offset, row.missing_offsets) == (end - 1, end, 0)
        rows = await destination.rows()
        assert {rows[key].state_value for key in keys} == {"STOPPED"}
        assert all(rows[key].source_offset == -1 for key in keys)
        for name, index in keys:
            mirrored = b"".join(topic.partitions[index].batches)
            data = destination.data(name, index)
            assert data.startswith(mirrored)
            own = data[len(mirrored) :]
            assert [control_type(own, at) for at, _ in walk(own)] == [mirror_numbers.CONTROL_RECORD_TYPE_PID_RESET]
        assert (
            await destination.ask(delete_cluster_mirror.DeleteClusterMirrorRequest(mirror_name="m"))
        ).error_code == 0
        assert await destination.rows() == {}
        asked = sum(len(broker.seen) for broker in source.brokers.values())
        await trio.sleep(120)
        assert sum(len(broker.seen) for broker in source.brokers.values()) == asked  # the link is gone


def pause_request(name: str, mirror: str = "m") -> Any:
    topics = [pause_mirror_topics.PauseMirrorTopic(topic_name=name)]
    return pause_mirror_topics.PauseMirrorTopicsRequest(mirror_name=mirror, topics=topics)


def resume_request(name: str) -> Any:
    topics = [resume_mirror_topics.ResumeMirrorTopic(topic_name=name)]
    return resume_mirror_topics.ResumeMirrorTopicsRequest(mirror_name="m", topics=topics)


async def test_answers_of_the_operator_apis(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    source.topic("a").partitions[0].append(4)
    source.topic("b")
    async with linked(source) as destination:
        ask = destination.ask
        assert (await destination.start(source, "a")).error_code == ErrorCode.UNKNOWN_CLUSTER_MIRROR
        bare = create_cluster_mirror.CreateClusterMirrorRequest(mirror_name="m")
        assert (await ask(bare)).error_code == ErrorCode.INVALID_REQUEST
        assert (await destination.create(source, nonsense="1")).error_code == ErrorCode.INVALID_CONFIG
        assert (await destination.create(source)).error_code == 0
        assert (await destination.start(source, "a")).error_code == 0
        assert (await destination.start(source, "a")).error_code == 0  # again: no error
        refused = await destination.start(source, "b", include_patterns=["("])
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION and refused.topics == []
        await destination.reach("MIRRORING", [("a", 0)])

        answer = await ask(pause_request("nope"))
        assert answer.topics[0].error_code == answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(resume_request("a"))).error_code == 0
        assert (await ask(pause_request("a"))).error_code == 0
        await destination.reach("PAUSED", [("a", 0)])
        assert (await ask(pause_request("a"))).error_code == 0
        rows = await destination.rows()
        assert rows["a", 0].source_offset == 4  # the last one seen is kept
        gone = await ask(delete_cluster_mirror.DeleteClusterMirrorRequest(mirror_name="m"))
        assert gone.error_code == ErrorCode.CLUSTER_MIRROR_NOT_EMPTY
        assert (await ask(pause_request("a", "other"))).error_code == ErrorCode.TOPIC_NOT_IN_CLUSTER_MIRROR
        listed = await ask(list_cluster_mirrors.ListClusterMirrorsRequest(include_topic_names=True))
        assert [(m.mirror_name, m.topic_count, m.topic_names) for m in listed.mirrors] == [("m", 1, ["a"])]
        listed = await ask(list_cluster_mirrors.ListClusterMirrorsRequest(desired_state_filter=["STOPPED"]))
        assert [(m.topic_count, m.topic_names) for m in listed.mirrors] == [(0, None)]
        listed = await ask(list_cluster_mirrors.ListClusterMirrorsRequest(mirror_name_filter=["x"]))
        assert listed.mirrors == []
        bad = await ask(list_cluster_mirrors.ListClusterMirrorsRequest(desired_state_filter=["WEIRD"]))
        assert bad.error_code == ErrorCode.INVALID_REQUEST

        assert (await destination.stop("a")).error_code == 0
        assert (await destination.stop("a")).error_code == 0
        assert (await ask(pause_request("a"))).topics[0].error_code == ErrorCode.MIRROR_TOPIC_BEING_STOPPED
        assert (await ask(resume_request("a"))).topics[0].error_code == ErrorCode.MIRROR_TOPIC_NOT_PAUSED
        unknown = describe_cluster_mirrors.DescribeClusterMirrorsRequest(mirror_names=["m", "x"])
        described = await ask(unknown)
        assert [(m.mirror_name, m.error_code) for m in described.mirrors] == [
            ("m", 0),
            ("x", ErrorCode.UNKNOWN_CLUSTER_MIRROR),
        ]
        row = (await destination.rows(cluster_id=source.cluster_id))["a", 0]
        assert (row.last_mirror_epoch, row.last_mirror_offset) == (0, 4)
        assert await destination.rows(cluster_id="somebody else") == {}


async def test_states_offsets_and_epochs_for_other_nodes(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    source.topic("a").partitions[0].append(4)
    async with linked(source) as destination:
        ask = destination.ask
        await destination.create(source)
        await destination.start(source, "a")
        await until(lambda: destination.world.partition("a", 0).log.log_end_offset == 4)
        await trio.sleep(2)
        asked = read_mirror_states.ReadMirrorStatesTopic(
            topic_name="a", partitions=[read_mirror_states.ReadMirrorStatesPartition(partition_index=0)]
        )
        request = read_mirror_states.ReadMirrorStatesRequest(mirror_name="m", topics=[asked])
        row = (await ask(request)).topics[0].partitions[0]
        assert row.state == mirror_numbers.STATE_MIRRORING and row.error_code == 0
        none = read_mirror_states.ReadMirrorStatesRequest(mirror_name="x", topics=[asked])
        assert (await ask(none)).error_code == ErrorCode.UNKNOWN_CLUSTER_MIRROR

        write = write_mirror_states.WriteMirrorStatesPartition(
            partition_index=0, state=mirror_numbers.STATE_FAILED, state_epoch=row.state_epoch - 1
        )
        written = await ask(
            write_mirror_states.WriteMirrorStatesRequest(
                mirror_name="m",
                topics=[write_mirror_states.WriteMirrorStatesTopic(topic_name="a", partitions=[write])],
            )
        )
        assert written.topics[0].partitions[0].error_code == ErrorCode.FENCED_STATE_EPOCH

        offsets = await ask(
            read_mirror_offsets.ReadMirrorOffsetsRequest(
                mirror_name="m", topics=[read_mirror_offsets.ReadMirrorOffsetsTopic(topic_name="a", partitions=[0, 7])]
            )
        )
        found = [(p.partition_index, p.source_offset, p.destination_offset) for p in offsets.topics[0].partitions]
        assert found == [(0, 4, 4), (7, -1, -1)]

        def bump(minimum: int) -> Any:
            part = bump_leader_epochs.BumpLeaderEpochsPartition(partition_index=0, min_leader_epoch=minimum)
            missing = bump_leader_epochs.BumpLeaderEpochsPartition(partition_index=9, min_leader_epoch=minimum)
            topic = bump_leader_epochs.BumpLeaderEpochsTopic(topic_name="a", partitions=[part, missing])
            return bump_leader_epochs.BumpLeaderEpochsRequest(topics=[topic])

        before = destination.world.partition("a", 0).leader_epoch
        bumped = await ask(bump(before + 5))
        assert [p.error_code for p in bumped.topics[0].partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert destination.world.partition("a", 0).leader_epoch == before + 6
        assert (await ask(bump(2**31 - 1))).error_code == ErrorCode.INVALID_REQUEST


async def test_a_stop_that_cannot_be_sealed_is_answered_and_goes_on(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("a")
    topic.partitions[0].append(4)
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "a")
        await until(lambda: destination.has_all("a", topic))
        answers: list[Any] = []

        async def stop() -> None:
            answers.append(await destination.stop("a"))

        async with trio.open_nursery() as stopping:
            # the wish is on disk, and then the disk stands still
            partition = destination.world.mirrors.topics["a"][1].partitions[0]
            step = partition.step

            def stuck(event: Any) -> Any:
                destination.flush.at_once = False
                return step(event)

            partition.step = stuck
            begun_s = trio.current_time()
            stopping.start_soon(stop)
        assert trio.current_time() - begun_s == pytest.approx(25, abs=0.2)
        assert answers[0].error_code == answers[0].topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "goes on" in answers[0].error_message
        destination.flush.at_once = True
        destination.flush.run()
        await destination.reach("STOPPED", [("a", 0)])


async def test_a_leader_change_at_the_source_loses_and_repeats_nothing(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    for versions in (KAFKA_2_1_1, KAFKA_4_4_0):
        source = FakeCluster(nursery, brokers=2, versions=versions)

        def caught_up(destination: Destination, topic: FakeTopic) -> Callable[[], bool]:
            return lambda: destination.has_all("t", topic)

        topic = source.topic("t", topic_id=None if versions is KAFKA_4_4_0 else uuids.ZERO)
        part = topic.partitions[0]
        part.append(3)
        async with linked(source) as destination:
            await destination.create(source)
            await destination.start(source, "t")
            for epoch in range(1, 6):
                await until(caught_up(destination, topic))
                part.leader, part.leader_epoch = 1 + epoch % 2, epoch
                part.append(2)
                source.touch()
            await until(caught_up(destination, topic))
            row = (await destination.rows())["t", 0]
            assert (row.state_value, row.destination_offset) == ("MIRRORING", 13)
            assert destination.world.partition("t", 0).leader_epoch >= 5


# --- a timestamp beyond the source's end (redpanda-data/redpanda pull 29861) ---


async def test_start_at_a_timestamp_beyond_the_end_copies_only_what_comes(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    part = topic.partitions[0]
    part.log_start = 500
    for _ in range(40):
        part.append(10)
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "t", start_from=1_900_000_000_000)
        await destination.reach("MIRRORING", [("t", 0)])
        await trio.sleep(5)
        log = destination.world.partition("t", 0).log
        assert (log.log_start_offset, log.log_end_offset) == (900, 900)
        late = part.append(5)
        source.touch()
        await until(lambda: destination.data("t") == late, limit_s=5)
        assert log.log_start_offset == 900


# --- the source says out of range (apache/kafka pulls 22848, 23091, 21819) ---


async def test_trimmed_source_is_rebased_and_the_gap_shown(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    part = topic.partitions[0]
    for _ in range(30):
        part.append(10)
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "t")
        await until(lambda: destination.has_all("t", topic))
        part.batches.clear()
        part.log_start = 500
        part.append(7)
        source.touch()
        await until(lambda: destination.has_all("t", topic), limit_s=30)
        row = (await destination.rows())["t", 0]
        assert row.state_value == "MIRRORING"
        assert [(gap.from_offset, gap.to_offset) for gap in row.gaps] == [(300, 500)]
        log = destination.world.partition("t", 0).log
        assert (log.log_start_offset, log.log_end_offset) == (500, 507)


async def test_unclean_election_at_the_source_halts_the_partition_and_cuts_nothing(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery, brokers=2)
    topic = source.topic("t", partitions=2)
    for part in topic.partitions.values():
        for _ in range(30):
            part.append(10)
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "t")
        await until(lambda: destination.has_all("t", topic))
        lost = topic.partitions[0]
        kept = destination.data("t", 0)
        del lost.batches[25:]  # the new leader had only 250
        lost.leader, lost.leader_epoch = 2, 1
        lost.append(10, value=b"other")
        topic.partitions[1].append(10)
        source.touch()
        await destination.reach("FAILED", [("t", 0)])
        await trio.sleep(60)
        row = (await destination.rows())["t", 0]
        assert (row.state_value, row.retry_attempt) == ("FAILED", -1)
        assert destination.data("t", 0) == kept
        assert destination.data("t", 1) == b"".join(topic.partitions[1].batches)  # the other one goes on


async def test_a_compaction_hole_is_no_alarm(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    part = topic.partitions[0]
    part.append(10)
    part.log_start = 0
    hole = FakeTopic(partitions={0: part})
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "t")
        await until(lambda: destination.has_all("t", topic))
        first = part.batches[:]
        part.batches.clear()
        part.log_start = 420
        later = part.append(5)
        part.batches[:] = [*first, later]
        part.log_start = 0
        source.touch()
        await until(lambda: destination.has_all("t", hole), limit_s=10)
        row = (await destination.rows())["t", 0]
        assert (row.state_value, row.gaps, row.destination_offset) == ("MIRRORING", [], 425)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
async def test_a_passing_error_resets_nothing(autojump_clock: object, nursery: trio.Nursery, code: int) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    part = topic.partitions[0]
    part.append(10)
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "t")
        await until(lambda: destination.has_all("t", topic))
        fetches = len(source.brokers[1].requests("Fetch"))
        part.error_code = code
        source.touch()
        await trio.sleep(30)
        assert len(source.brokers[1].requests("Fetch")) - fetches < 100  # asks again, does not hammer
        part.error_code = 0
        part.append(10)
        source.touch()
        await until(lambda: destination.has_all("t", topic), limit_s=60)
        log = destination.world.partition("t", 0).log
        assert (log.log_start_offset, log.log_end_offset) == (0, 20)


async def test_a_recreated_topic_is_never_spliced(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    topic.partitions[0].append(10)
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "t")
        await until(lambda: destination.has_all("t", topic))
        kept = destination.data("t")
        new = source.topic("t")
        new.partitions[0].append(50, value=b"new")
        source.touch()
        await destination.reach("FAILED", [("t", 0)], limit_s=60)
        await trio.sleep(60)
        row = (await destination.rows())["t", 0]
        assert (row.state_value, row.retry_attempt) == ("FAILED", -1)
        assert destination.data("t") == kept


async def test_configs_growth_and_discovery_follow_the_source(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t")
    topic.configs.update({"retention.ms": "123456", "min.insync.replicas": "2", "flush.messages": "7"})
    async with linked(source) as destination:
        await destination.create(source, topics_include="new-.*,t")
        await destination.start(source, "t")
        await destination.reach("MIRRORING", [("t", 0)])
        image = destination.world.image
        await until(lambda: image.topics_by_name["t"].configs.get("retention.ms") == "123456")
        assert set(image.topics_by_name["t"].configs) == {"retention.ms"}
        topic.partitions[1] = type(topic.partitions[0])()
        topic.partitions[1].append(3)
        source.topic("new-1").partitions[0].append(3)
        source.topic("other").partitions[0].append(3)
        await destination.reach("MIRRORING", [("t", 1), ("new-1", 0)])
        await until(lambda: destination.has_all("t", topic) and destination.has_all("new-1", source.topics["new-1"]))
        assert "other" not in image.topics_by_name
        del topic.configs["retention.ms"]
        await until(lambda: not image.topics_by_name["t"].configs)


async def test_damaged_bytes_fail_their_partition_only(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = source.topic("t", partitions=2)
    for part in topic.partitions.values():
        part.append(3)
        part.append(3)
    sound = topic.partitions[0].batches[1]
    topic.partitions[0].batches[1] = sound[:-1] + bytes([sound[-1] ^ 1])
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "t")
        await destination.reach("FAILED", [("t", 0)])
        await until(lambda: destination.data("t", 1) == b"".join(topic.partitions[1].batches))
        assert topic.partitions[0].batches[0].startswith(destination.data("t", 0))  # nothing damaged was kept
        topic.partitions[0].batches[1] = sound
        await destination.start(source, "t")
        await until(lambda: destination.has_all("t", topic), limit_s=400)
