"""What `consume --group` does with offsets: where it begins, what it commits, logs that do not hold what it wants."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kmirror.cli.failure import Failure
from kmirror.cli.group_consume import COMMIT_INTERVAL_S, READ_PATIENCE_S, GroupReading, Options
from kmirror.cli.group_offsets import Committed
from kmirror.protocol.errors import ErrorCode
from kmirror.source.calls import EARLIEST, LATEST, Fetched, Partition
from kmirror.source.errors import PeerClosed
from tests.cli.scripted_cluster import ScriptedCluster, ScriptedPartition, batch

KEY = ("t", 0)


class Group:
    """In the place of `GroupMember`: gives out partitions and keeps what is committed."""

    def __init__(self, *assignments: list[Partition]) -> None:
        self.assignments = list(assignments)
        self.commits: list[dict[Partition, int]] = []
        self.epochs: set[int] = set()
        self.rejoin_needed = True
        self.was_thrown_out = False
        self.left = False
        self.coordinator = self

    async def join(self) -> list[Partition]:
        self.rejoin_needed = self.was_thrown_out = False
        return self.assignments.pop(0)

    async def heartbeats(self) -> None:
        await trio.sleep_forever()

    async def commit(self, offsets: dict[Partition, Committed]) -> bool:
        self.commits.append({key: value.offset for key, value in offsets.items()})
        self.epochs |= {value.leader_epoch for value in offsets.values()}
        return True

    async def leave(self) -> None:
        self.left = True


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[Partition, Committed]:
    """What the group has committed before."""
    offsets: dict[Partition, Committed] = {}

    async def committed(coordinator: Group, partitions: list[Partition], *, stable: bool) -> dict[Partition, Committed]:
        assert stable
        found = dict(offsets)
        for commit in coordinator.commits:
            found |= {key: Committed(offset) for key, offset in commit.items()}
        return {key: value for key, value in found.items() if key in partitions}

    monkeypatch.setattr("kmirror.cli.group_offsets.committed", committed)
    return offsets


class Seen:
    def __init__(self) -> None:
        self.offsets: list[tuple[int, int]] = []

    def __call__(self, _topic: str, partition: int, record: Any) -> None:
        self.offsets.append((partition, record.offset))


def reading(cluster: ScriptedCluster, group: Group, seen: Seen, **options: Any) -> GroupReading:
    settings: dict[str, Any] = {"group": "g", "topics": ["t"], "timeout_s": 1.0} | options
    made = GroupReading(cluster, Options(**settings), seen)  # type: ignore[arg-type]
    made.member = group  # type: ignore[assignment]
    return made


def log(*offsets: int, **header: Any) -> ScriptedPartition:
    return ScriptedPartition([batch(offset, **header) for offset in offsets], log_start_offset=offsets[0])


async def test_it_begins_where_it_is_told_and_goes_on_where_it_was(
    stored: dict[Partition, Committed], autojump_clock: MockClock
) -> None:
    stored["t", 1] = Committed(3)
    cluster = ScriptedCluster({("t", 0): log(0, 2, epoch=4), ("t", 1): log(0, 2, epoch=4)})
    for start, expected in ((EARLIEST, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3)]), (LATEST, [(1, 3)])):
        seen, group = Seen(), Group([("t", 0), ("t", 1)])
        await reading(cluster, group, seen, start=start).run()
        assert sorted(seen.offsets) == expected
        assert group.left
    assert group.commits == [{("t", 1): 4}]
    assert group.epochs == {4}


async def test_only_what_was_handed_on_is_committed(
    stored: dict[Partition, Committed], autojump_clock: MockClock
) -> None:
    seen, group = Seen(), Group([KEY])
    await reading(ScriptedCluster({KEY: log(0, 2, 4)}), group, seen, max_records=3).run()
    assert (seen.offsets, group.commits) == ([(0, 0), (0, 1), (0, 2)], [{KEY: 3}])

    def full(_topic: str, _partition: int, record: Any) -> None:
        if record.offset == 1:
            raise BrokenPipeError

    group = Group([KEY])
    broken = reading(ScriptedCluster({KEY: log(0, 2, 4)}), group, full)  # type: ignore[arg-type]
    with pytest.raises(ExceptionGroup) as raised:
        await broken.run()
    assert isinstance(raised.value.exceptions[0], BrokenPipeError)
    assert (group.commits, group.left) == ([{KEY: 1}], True)


async def test_it_commits_from_time_to_time_and_before_a_rebalance(
    stored: dict[Partition, Committed], autojump_clock: MockClock
) -> None:
    held = log(0)
    seen, group = Seen(), Group([KEY], [KEY], [])

    async def grow(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep(COMMIT_INTERVAL_S + 2)
        assert group.commits == [{KEY: 2}], "after the interval"
        held.batches.append(batch(2))
        await trio.sleep(1)
        group.rejoin_needed = True
        await trio.sleep(1)
        assert group.commits == [{KEY: 2}, {KEY: 4}], "before the rebalance"
        group.rejoin_needed = group.was_thrown_out = True

    async with trio.open_nursery() as nursery:
        await nursery.start(grow)
        await reading(SlowCluster({KEY: held}), group, seen, timeout_s=10.0).run()
    assert seen.offsets == [(0, 0), (0, 1), (0, 2), (0, 3)], "nothing twice"
    assert len(group.commits) == 2, "somebody who was thrown out commits nothing"


class SlowCluster(ScriptedCluster):
    """A Fetch that finds nothing takes as long as it may."""

    async def fetch_once(self, topic: str, partition: int, offset: int, **options: Any) -> Fetched:
        answer = await super().fetch_once(topic, partition, offset, **options)
        if not answer.records and not answer.error_code:
            await trio.sleep(options["wait_ms"] / 1000)
        return answer


async def test_an_offset_that_the_log_does_not_hold(
    stored: dict[Partition, Committed], autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka's auto.offset.reset, with a word about it."""
    cluster = SlowCluster({KEY: log(10, 12)})
    for before in (3, 99):
        stored[KEY] = Committed(before)
        seen, group = Seen(), Group([KEY])
        await reading(cluster, group, seen).run()
        assert [offset for _, offset in seen.offsets] == [10, 11, 12, 13]
        assert group.commits == [{KEY: 14}]
        said = capsys.readouterr().err
        assert f"t-0 has no offset {before}: it holds offsets 10 to 14; reading on at 10" in said


class Unreadable(ScriptedCluster):
    """Answers with `trouble` for some time after the first Fetch."""

    trouble: Fetched | Exception
    lasts_s: float
    _began_s: float | None = None

    async def fetch_once(self, topic: str, partition: int, offset: int, **options: Any) -> Fetched:
        now_s = trio.current_time()
        self._began_s = now_s if self._began_s is None else self._began_s
        if now_s - self._began_s < self.lasts_s:
            if isinstance(self.trouble, Exception):
                raise self.trouble
            return self.trouble
        return await super().fetch_once(topic, partition, offset, **options)


@pytest.mark.parametrize("trouble", [Fetched(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), PeerClosed("gone")])
async def test_trouble_that_passes_is_borne_and_what_lasts_is_not(
    trouble: Fetched | Exception, stored: dict[Partition, Committed], autojump_clock: MockClock
) -> None:
    for lasts_s, fails in ((READ_PATIENCE_S / 2, False), (READ_PATIENCE_S * 2, True)):
        cluster = Unreadable({KEY: log(0)})
        cluster.trouble, cluster.lasts_s = trouble, lasts_s
        seen, group = Seen(), Group([KEY])
        made = reading(cluster, group, seen, timeout_s=60.0, max_records=2)
        if fails:
            with pytest.raises(ExceptionGroup):
                await made.run()
        else:
            await made.run()
        assert (len(seen.offsets), group.left) == (0 if fails else 2, True)


async def test_what_will_not_pass_ends_it_at_once(
    stored: dict[Partition, Committed], autojump_clock: MockClock
) -> None:
    cluster = Unreadable({KEY: log(0)})
    cluster.trouble, cluster.lasts_s = Fetched(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), 1e9
    began_s = trio.current_time()
    with pytest.raises(ExceptionGroup) as raised:
        await reading(cluster, Group([KEY]), Seen()).run()
    assert isinstance(raised.value.exceptions[0], Failure)
    assert trio.current_time() - began_s < 1


async def test_a_member_without_partitions_waits_in_silence(
    stored: dict[Partition, Committed], autojump_clock: MockClock
) -> None:
    group = Group([])
    began_s = trio.current_time()
    await reading(ScriptedCluster({}), group, Seen(), timeout_s=7.0).run()
    assert 7 <= trio.current_time() - began_s < 8
    assert (group.commits, group.left) == ([], True)
