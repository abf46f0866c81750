"""The power goes before and after every disk operation of transactions and of group membership.

After each cut the broker boots from what survived, the applications start anew and go on to their end. What must hold:
no transaction is both visible and aborted, or hangs; every input is in every output exactly once; the offset that the
group resumes from is one that was committed, never below an acknowledged one; a member that was told its assignment is
in its group after the cut.

KMIRROR_COORDINATOR_STRIDE=1 takes every point (the default takes every 9th).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import pytest

from kmirror.broker.partition import READ_COMMITTED
from tests.power_cut import powered_until
from tests.sim.applications import INPUT, OUTPUT, Member, Node, Pipeline

STRIDE = int(os.environ.get("KMIRROR_COORDINATOR_STRIDE", "9"))
TOTAL = 5
MAX_POINTS = 5_000


def stage(seed: int) -> Node:
    """Topics exist and the disk is quiet."""
    node = Node(seed=seed)
    node.create(INPUT, 1)
    node.create(OUTPUT, 2)
    node.restart()
    return node


async def every_point(
    seed: int,
    act: Callable[[Node, int], Awaitable[None]],
    check: Callable[[Node], Awaitable[None]],
    *,
    skip_sync: Callable[[str], bool] | None = None,
) -> int:
    """Run `act` with the power cut at one point after the other until it runs through; how many points there were."""
    points = 0
    for operation in range(1 + seed % STRIDE, MAX_POINTS, STRIDE):
        for keep_nothing in (True, False):
            node = stage(seed + operation)
            if skip_sync is not None:
                node.fs.skip_sync = skip_sync
            with powered_until(node.fs, operation) as power:
                await act(node, operation)
            node.crash(keep_nothing=keep_nothing)
            await check(node)
            points += 1
        if power.lasted:
            return points
    raise AssertionError("it never ran through")


async def check_pipeline(node: Node, pipeline: Pipeline, *, resumed: bool) -> None:
    """Exactly once, nothing open, nothing both committed and aborted, and the broker's readers see just that."""
    expected = [b"%d" % offset for offset in range(pipeline.total)]
    for index in range(pipeline.partition_count):
        committed, _aborted, still_open = node.decided(OUTPUT, index)
        if not resumed:
            assert committed[: pipeline.acknowledged] == expected[: pipeline.acknowledged], "acknowledged and lost"
            continue
        assert committed == expected, f"partition {index}"
        assert still_open == 0, "a transaction hangs"
        partition = node.world.partition(OUTPUT, index)
        assert partition.last_stable_offset == partition.high_watermark == partition.log_end_offset
        read = partition.read(0, max_bytes=1 << 20, isolation_level=READ_COMMITTED)
        assert read.next_offset == partition.log_end_offset
    if resumed:
        assert await pipeline.committed(node) == pipeline.total
        for partition in node.world.image.topics_by_name["__consumer_offsets"].partitions:
            assert partition.last_stable_offset == partition.log_end_offset, "pending offsets for ever"


@pytest.mark.parametrize("second", [False, True], ids=["transactions-v1", "transactions-v2"])
async def test_power_cuts_in_consume_transform_produce(second: bool) -> None:
    current: list[Pipeline] = []

    async def act(node: Node, _operation: int) -> None:
        current[:] = [Pipeline(total=TOTAL, second=second)]
        await current[0].run(node)

    async def check(node: Node) -> None:
        pipeline = current[0]
        await check_pipeline(node, pipeline, resumed=False)
        await pipeline.start(node)
        assert await pipeline.committed(node) >= pipeline.acknowledged
        await pipeline.run(node)
        node.pass_time(1_000)
        await check_pipeline(node, pipeline, resumed=True)

    points = await every_point(31 if second else 17, act, check)
    print(f"{points} points")
    assert points * STRIDE > 300


@pytest.mark.parametrize("second", [False, True], ids=["transactions-v1", "transactions-v2"])
async def test_an_application_that_never_comes_back_blocks_nobody(second: bool) -> None:
    """Its transaction times out: readers go on, its offsets are not committed."""
    current: list[Pipeline] = []

    async def act(node: Node, _operation: int) -> None:
        current[:] = [Pipeline(total=2, second=second)]
        await current[0].run(node)

    async def check(node: Node) -> None:
        for _ in range(20):
            node.pass_time(10_000)
        for index in range(2):
            partition = node.world.partition(OUTPUT, index)
            assert node.decided(OUTPUT, index)[2] == 0, "a transaction hangs"
            assert partition.last_stable_offset == partition.log_end_offset
        assert current[0].acknowledged <= await current[0].committed(node) <= 2

    points = await every_point(5, act, check)
    print(f"{points} points")


@pytest.mark.parametrize("instance", [None, "static"], ids=["dynamic", "static"])
async def test_power_cuts_in_a_group_s_life(instance: str | None) -> None:
    current: list[Member] = []

    async def act(node: Node, _operation: int) -> None:
        current[:] = [Member("first", instance=instance)]
        await current[0].run(node, commits=3)

    async def check(node: Node) -> None:
        member = current[0]
        assert member.acknowledged <= max(0, await member.fetch(node)) <= member.sent
        if (member.generation, member.member_id) in member.synced:
            assert await member.heartbeat(node) == 0, "it was told its assignment, and nobody knows it"
        other = Member("second", instance=instance)
        other.acknowledged = member.acknowledged
        node.pass_time(30_000)
        await other.run(node, commits=member.acknowledged + 2)
        assert await other.fetch(node) == member.acknowledged + 2
        node.restart()
        assert await other.fetch(node) == member.acknowledged + 2
        assert await other.heartbeat(node) == 0

    points = await every_point(23, act, check)
    print(f"{points} points")


async def test_a_planted_skipped_sync_is_found() -> None:
    """The matrix would notice a coordinator that answers before its log is on disk."""
    for topic in ("__transaction_state", "__consumer_offsets"):
        current: list[Pipeline] = []

        async def act(node: Node, _operation: int, current: list[Pipeline] = current) -> None:
            current[:] = [Pipeline(total=TOTAL, second=False)]
            await current[0].run(node)

        async def check(node: Node, current: list[Pipeline] = current) -> None:
            pipeline = current[0]
            await pipeline.start(node)
            assert await pipeline.committed(node) >= pipeline.acknowledged
            await pipeline.run(node)
            await check_pipeline(node, pipeline, resumed=True)

        def lies(path: str, topic: str = topic) -> bool:
            return topic in path and path.endswith(".log")

        with pytest.raises(AssertionError):
            await every_point(3, act, check, skip_sync=lies)
