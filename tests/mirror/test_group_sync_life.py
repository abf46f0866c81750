"""Group offsets from a scripted source to this broker's `__consumer_offsets`, through the link, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kmirror.broker.group_offsets import Committer
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.coordinator.groups.offsets import OffsetRow, OffsetValue
from kmirror.protocol import uuids
from kmirror.protocol.api.describe_cluster_mirrors import DescribeClusterMirrorsRequest
from kmirror.protocol.api.pause_mirror_topics import PauseMirrorTopic, PauseMirrorTopicsRequest
from kmirror.protocol.api.resume_mirror_topics import ResumeMirrorTopic, ResumeMirrorTopicsRequest
from kmirror.protocol.errors import ErrorCode
from tests.broker.harness import make_batch
from tests.source.fake_source import (
    KAFKA_2_1_1,
    KAFKA_3_9_2,
    KAFKA_4_4_0,
    SILENCE,
    FakeCluster,
    FakeGroup,
    FakeTopic,
    Ranges,
)
from tests.source.test_mirroring import Destination, linked, until

INTERVAL_S = 10
"""`mirror.metadata.refresh.interval.ms` of these destinations."""


def held(destination: Destination, group: str = "g") -> dict[int, tuple[int, int, str]]:
    """(offset, epoch, metadata) by partition of topic t."""
    promise = destination.world.groups.offsets.fetch_all(group, require_stable=False)
    return {
        index: (value.offset, value.leader_epoch, value.metadata)
        for (topic, index), value in promise.result()
        if topic == "t"
    }


def filled(source: FakeCluster, *counts: int, with_ids: bool = True) -> FakeTopic:
    """Topic t with so many records per partition."""
    topic = source.topic("t", partitions=len(counts), topic_id=None if with_ids else uuids.ZERO)
    for part, count in zip(topic.partitions.values(), counts, strict=True):
        for _ in range(count):
            part.append()
    return topic


async def mirroring(destination: Destination, source: FakeCluster, topic: FakeTopic, **configs: str) -> None:
    await destination.create(source, **configs)
    await destination.start(source, "t")
    await destination.reach("MIRRORING", [("t", index) for index in topic.partitions])
    await until(lambda: destination.has_all("t", topic))


@pytest.mark.parametrize("versions", [KAFKA_2_1_1, KAFKA_3_9_2, KAFKA_4_4_0], ids=["2.1.1", "3.9.2", "4.4.0"])
async def test_offsets_follow_the_source(autojump_clock: object, nursery: trio.Nursery, versions: Ranges) -> None:
    """B069: 0 is an offset, none stays none, the clamp, forwards and backwards; two coordinators; any version."""
    source = FakeCluster(nursery, brokers=2, versions=versions)
    topic = filled(source, 5, 60, 3, 7, with_ids=versions["Fetch"][1] >= 13)
    source.groups["g"] = FakeGroup(
        coordinator=2, offsets={("t", 0): (0, -1, ""), ("t", 1): (50, 0, "m"), ("t", 3): (900, 0, "far")}
    )
    source.groups["h"] = FakeGroup(coordinator=1, offsets={("t", 1): (1, -1, ""), ("other", 0): (5, -1, "")})
    epoch = 0 if versions["OffsetFetch"][1] >= 5 else -1
    async with linked(source) as destination:
        await mirroring(destination, source, topic)
        expected = {0: (0, -1, ""), 1: (50, epoch, "m"), 3: (7, 0, "")}
        await until(lambda: held(destination) == expected, limit_s=3)
        await until(lambda: held(destination, "h") == {1: (1, -1, "")}, limit_s=1)
        source.groups["g"].offsets["t", 1] = (20, 0, "back")
        await until(lambda: held(destination)[1] == (20, epoch, "back"), limit_s=INTERVAL_S + 1)
        part = topic.partitions[3]
        for _ in range(893):
            part.append()
        source.touch()
        await until(lambda: held(destination)[3] == (900, epoch, "far"), limit_s=2 * INTERVAL_S)
        del source.groups["g"]
        await trio.sleep(2 * INTERVAL_S)
        assert held(destination)[1] == (20, epoch, "back"), "gone at the source: kept here"


async def test_only_what_changed_is_written(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = filled(source, 5)
    source.groups["g"] = FakeGroup(offsets={("t", 0): (3, -1, "")})
    async with linked(source) as destination:
        await mirroring(destination, source, topic)
        await until(lambda: 0 in held(destination))
        ends = [p.log_end_offset for p in destination.world.image.topics_by_name["__consumer_offsets"].partitions]
        looks = len(source.brokers[1].requests("ListGroups"))
        await trio.sleep(6 * INTERVAL_S)
        assert len(source.brokers[1].requests("ListGroups")) - looks in (5, 6, 7), "once an interval"
        after = [p.log_end_offset for p in destination.world.image.topics_by_name["__consumer_offsets"].partitions]
        assert after == ends


async def test_what_would_expire_here_is_renewed(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = filled(source, 5)
    source.groups["g"] = FakeGroup(offsets={("t", 0): (3, -1, "")})
    properties = {"offsets.retention.minutes": "2", "offsets.retention.check.interval.ms": "500"}
    async with linked(source, **{name.replace(".", "_"): value for name, value in properties.items()}) as destination:
        await mirroring(destination, source, topic)
        await until(lambda: 0 in held(destination))
        for _ in range(1000):
            await trio.sleep(0.4)
            destination.world.tick()  # what has expired goes
            assert held(destination) == {0: (3, -1, "")}


async def test_patterns_choose_the_groups(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = filled(source, 5)
    for name in ("app-1", "app-2", "internal"):
        source.groups[name] = FakeGroup(offsets={("t", 0): (3, -1, "")})
    source.groups["app-share"] = FakeGroup(protocol_type="share", group_type="Share", offsets={("t", 0): (3, -1, "")})
    async with linked(source) as destination:
        await mirroring(destination, source, topic, groups_include="app-.*", groups_exclude="app-2")
        await until(lambda: 0 in held(destination, "app-1"))
        await trio.sleep(2 * INTERVAL_S)
        assert destination.world.groups.offsets.groups_with_offsets() == {"app-1"}


async def test_an_active_group_is_left_alone_and_shown(
    autojump_clock: object, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = FakeCluster(nursery)
    topic = filled(source, 5)
    source.groups["g"] = FakeGroup(offsets={("t", 0): (3, -1, "")})
    source.groups["idle"] = FakeGroup(offsets={("t", 0): (3, -1, "")})
    async with linked(source) as destination:
        groups = destination.world.groups
        active = {"g"}
        monkeypatch.setattr(groups, "is_active", lambda group_id: group_id in active)
        await mirroring(destination, source, topic)
        await until(lambda: 0 in held(destination, "idle"))
        await trio.sleep(3 * INTERVAL_S)
        assert held(destination) == {}
        sync = destination.world.mirrors.group_sync
        assert sync.left_alone("m") == ["g"]
        asked = DescribeClusterMirrorsRequest(mirror_names=["m"], include_mirror_state=True)
        assert (await destination.ask(asked)).mirrors[0].active_groups == ["g"]
        assert sum("group g has members here" in line for line in caplog.messages) == 1, "said once"
        alone = source.groups.pop("g")
        await until(lambda: sync.left_alone("m") == [], limit_s=2 * INTERVAL_S)
        source.groups["g"] = alone
        await until(lambda: sync.left_alone("m") == ["g"], limit_s=2 * INTERVAL_S)
        active.clear()
        await until(lambda: held(destination) == {0: (3, -1, "")}, limit_s=INTERVAL_S + 1)
        assert sync.left_alone("m") == []
        active.add("g")
        await until(lambda: sync.left_alone("m") == ["g"], limit_s=2 * INTERVAL_S)
        await destination.stop("t")
        assert sync.left_alone("m") == [], "after a failover members are what is wanted"


async def test_nothing_is_taken_over_while_paused_or_stopped(autojump_clock: object, nursery: trio.Nursery) -> None:
    source = FakeCluster(nursery)
    topic = filled(source, 5)
    source.topic("goes-on").partitions[0].append()
    group = source.groups["g"] = FakeGroup(offsets={("t", 0): (1, -1, ""), ("goes-on", 0): (1, -1, "")})
    async with linked(source) as destination:
        await mirroring(destination, source, topic)
        await destination.start(source, "goes-on")
        await until(lambda: held(destination) == {0: (1, -1, "")})
        await destination.ask(PauseMirrorTopicsRequest(mirror_name="m", topics=[PauseMirrorTopic(topic_name="t")]))
        await destination.reach("PAUSED", [("t", 0)])
        group.offsets["t", 0] = (2, -1, "")
        looks = len(source.brokers[1].requests("ListGroups"))
        await trio.sleep(3 * INTERVAL_S)
        assert held(destination) == {0: (1, -1, "")}
        assert len(source.brokers[1].requests("ListGroups")) > looks, "the other topic takes part"
        await destination.ask(ResumeMirrorTopicsRequest(mirror_name="m", topics=[ResumeMirrorTopic(topic_name="t")]))
        await until(lambda: held(destination) == {0: (2, -1, "")}, limit_s=2 * INTERVAL_S)
        await destination.stop("t")
        group.offsets["t", 0] = (3, -1, "")
        await trio.sleep(3 * INTERVAL_S)
        assert held(destination) == {0: (2, -1, "")}


async def test_a_partition_takes_part_from_its_first_fetch_on(autojump_clock: object, nursery: trio.Nursery) -> None:
    """Before it, the clamp would say 0, which is no offset that the group ever had."""
    source = FakeCluster(nursery, brokers=2)
    topic = filled(source, 5, 5)
    source.groups["g"] = FakeGroup(offsets={("t", 0): (3, -1, ""), ("t", 1): (4, -1, "")})

    async def no_fetch(_broker: Any, api: Any, _version: int, _message: Any) -> Any:
        return SILENCE if api.name == "Fetch" else None

    source.brokers[2].script = no_fetch
    async with linked(source) as destination:
        await destination.create(source)
        await destination.start(source, "t")
        await destination.reach("MIRRORING", [("t", 0), ("t", 1)])
        await until(lambda: held(destination) == {0: (3, -1, "")})
        await trio.sleep(2 * INTERVAL_S)
        assert held(destination) == {0: (3, -1, "")}
        source.brokers[2].script = None
        source.brokers[2].drop()
        await until(lambda: destination.has_all("t", topic), limit_s=120)
        await until(lambda: held(destination) == {0: (3, -1, ""), 1: (4, -1, "")}, limit_s=3)


async def test_an_answer_that_comes_after_the_stop_changes_nothing(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery)
    topic = filled(source, 5)
    group = source.groups["g"] = FakeGroup(offsets={("t", 0): (1, -1, "")})
    async with linked(source) as destination:
        await mirroring(destination, source, topic)
        await until(lambda: held(destination) == {0: (1, -1, "")})
        group.offsets["t", 0] = (4, -1, "")
        broker, asked = source.brokers[1], trio.Event()

        async def slow(_broker: Any, api: Any, _version: int, _message: Any) -> Any:
            if api.name == "OffsetFetch":
                asked.set()
                await trio.sleep(5)

        broker.script = slow
        await asked.wait()
        await destination.stop("t")
        await trio.sleep(3 * INTERVAL_S)
        assert held(destination) == {0: (1, -1, "")}


async def test_a_group_that_cannot_be_read_does_not_stop_the_others(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    source = FakeCluster(nursery, brokers=2)
    topic = filled(source, 5)
    source.groups["bad"] = FakeGroup(offsets={("t", 0): (1, -1, "")}, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    source.groups["good"] = FakeGroup(offsets={("t", 0): (1, -1, "")})
    source.groups["away"] = FakeGroup(coordinator=2, offsets={("t", 0): (1, -1, "")})

    async def silent(_broker: Any, api: Any, _version: int, _message: Any) -> Any:
        if api.name == "OffsetFetch":
            source.brokers[2].drop()
        return None

    async with linked(source) as destination:
        source.brokers[2].script = silent
        await mirroring(destination, source, topic)
        await until(lambda: 0 in held(destination, "good"), limit_s=2 * INTERVAL_S)
        assert held(destination, "bad") == {} and held(destination, "away") == {}
        source.brokers[2].script = None
        source.groups["bad"].error_code = 0
        await until(lambda: 0 in held(destination, "away") and 0 in held(destination, "bad"), limit_s=3 * INTERVAL_S)


async def test_a_source_that_does_not_list_groups_is_mirrored_all_the_same(
    autojump_clock: object, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    versions = {name: span for name, span in KAFKA_3_9_2.items() if name != "ListGroups"}
    source = FakeCluster(nursery, versions=versions)
    topic = filled(source, 5)
    source.groups["g"] = FakeGroup(offsets={("t", 0): (1, -1, "")})
    async with linked(source) as destination:
        await mirroring(destination, source, topic)
        await trio.sleep(5 * INTERVAL_S)
        assert sum("group offsets could not be read" in line for line in caplog.messages) == 1
        assert destination.world.groups.offsets.groups_with_offsets() == set()


async def test_a_cut_takes_committed_offsets_with_it() -> None:
    destination = Destination()
    world = destination.world
    topic = world.create_topic(CreateTopicSpec("t", 2)).result()
    for _ in range(10):
        topic.partitions[0].produce(make_batch(b"v", timestamp_ms=1), now_ms=1, acks=-1)
    offsets = world.groups.offsets
    offsets.usable().result()
    rows = [
        OffsetRow(topic="t", partition=0, offset=9, leader_epoch=0, metadata="m"),
        OffsetRow(topic="t", partition=1, offset=9),
    ]
    offsets.commit(Committer(group_id="beyond"), rows, api_version=9).result()
    offsets.commit(Committer(group_id="before"), [OffsetRow(topic="t", partition=0, offset=4)], api_version=9).result()
    topic.partitions[0].truncate_to(5)
    offsets.clamp("t", 0, 5)
    assert offsets.current("beyond", ("t", 0)) == OffsetValue(offset=5, leader_epoch=0)
    assert offsets.current("beyond", ("t", 1)).offset == 9
    assert offsets.current("before", ("t", 0)).offset == 4
