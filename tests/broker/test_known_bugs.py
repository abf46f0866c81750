"""Bugs that other brokers had, where they need a whole broker: rows of Fetch in every situation, parked fetches under
everything that may happen to a log, epochs and log starts over crashes, coordinators that load (B014 to B044).

The others: `conformance/wire`, `tests/storage/test_known_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kmirror.broker.fetch import FETCH_CODES
from kmirror.broker.group_offsets import Committer
from kmirror.broker.partition import EARLIEST, LATEST, READ_COMMITTED, Partition
from kmirror.coordinator.groups.offsets import OffsetRow
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import parse_header, walk
from kmirror.storage.log import Log, LogMode
from tests.broker.harness import DIRECTORY, Broker
from tests.broker.test_fetch import Fetcher, bytes_of
from tests.broker.test_partition import code_of, transactional
from tests.mirror.test_mirrors import mirroring, pair
from tests.storage.test_known_bugs import compacted

VERSIONS = (4, 5, 10, 11, 12, 13, 18)


# --- every row ----------------------------------------------------------------------------------------------------


def in_order(partition: Partition, row: object, version: int) -> None:
    """HW >= LSO >= log start >= 0, and all of them what ListOffsets says."""
    assert row.error_code == 0  # type: ignore[attr-defined]
    listed = [partition.list_offset(LATEST)[0], partition.list_offset(LATEST, READ_COMMITTED)[0]]
    listed.append(partition.list_offset(EARLIEST)[0])
    found = [row.high_watermark, row.last_stable_offset, row.log_start_offset]  # type: ignore[attr-defined]
    assert found == listed
    assert found[0] >= found[1] >= found[2] >= 0
    assert row.records is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_known_bug_b014(version: int, isolation_level: int) -> None:
    """Good rows with data, caught up, with the budget spent, below an open transaction, after DeleteRecords, first
    after a clean restart and first after a crash."""
    broker = Broker()
    for partition in broker.create("t", 3).partitions:
        broker.produce("t", b"v" * 1000, index=partition.index)
        broker.produce("t", b"v" * 1000, index=partition.index)
    transactional(broker, broker.world.partition("t", 2), 7, 0, count=3)
    broker.flush.run()

    def rows(asked: dict[tuple[str, int], int], max_bytes: int = 1 << 20) -> dict[tuple[str, int], object]:
        fetcher = Fetcher(broker, version)
        answer = fetcher.fetch(
            asked, session_epoch=-1, isolation_level=isolation_level, max_bytes=max_bytes, max_wait_ms=0
        )
        return fetcher.rows(answer)

    def check(start: int) -> None:
        ends = {("t", index): broker.world.partition("t", index).log_end_offset for index in range(3)}
        data = dict.fromkeys(ends, start)
        for asked, max_bytes in ((data, 1 << 20), (ends, 1 << 20), (data, 1), ({("t", 2): 2}, 1 << 20)):
            found = rows(asked, max_bytes)
            assert found.keys() == asked.keys()
            for (topic, index), row in found.items():
                in_order(broker.world.partition(topic, index), row, version)
            if max_bytes == 1:
                assert sum(bool(bytes_of(row)) for row in found.values()) == 1, "the budget is spent on the first"

    check(0)
    for again in (broker.restart, broker.crash, lambda: None):
        for index in range(3):
            broker.world.delete_records("t", index, 1)
        again()
        check(1)
    assert broker.world.partition("t", 2).last_stable_offset == 2


def test_known_bug_b015() -> None:
    """Records are never null, on rows of any error: at every version, for every code that a row may carry."""
    for version in VERSIONS:
        broker = Broker()
        broker.create("t", 2)
        broker.produce("t", b"v")
        broker.create("z", compression__type="zstd")
        broker.settle(broker.world.bump_leader_epoch(broker.world.partition("t", 1), 3))
        fetcher = Fetcher(broker, version)
        asked = {("t", 0): 99, ("t", 1): 0, ("t", 7): 0, ("absent", 0): 0, ("z", 0): 0}
        request = fetcher.request(asked, session_epoch=-1)
        if version >= 9:
            request.topics[1].partitions[0].current_leader_epoch = 2
        context = broker.world.fetch_sessions.begin(broker.world, request, version)
        answer = context.respond(context.gather())
        found = [row for topic in answer.responses for row in topic.partitions]
        assert {row.error_code for row in found} >= {1, 3 if version < 13 else 100} | ({74} if version >= 9 else set())
        assert (76 in {row.error_code for row in found}) == (version < 10)
        for row in found:
            assert row.records is not None
            assert not row.error_code or bytes_of(row) == b""


# --- parked fetches -----------------------------------------------------------------------------------------------


def _delete(broker: Broker) -> None:
    broker.settle(broker.world.delete_topic("t"))


def _recreate(broker: Broker) -> None:
    _delete(broker)
    broker.create("t", 2)
    broker.produce("t", b"other")


def _trim(broker: Broker) -> None:
    broker.world.delete_records("t", 0, -1)


def _retain(broker: Broker) -> None:
    broker.clock.advance(10_000_000_000)
    broker.world.apply_retention()


def _cut(broker: Broker) -> None:
    broker.world.partition("t", 0).truncate_to(1)


def _begin_anew(broker: Broker) -> None:
    broker.world.partition("t", 0).restart_at(500)


def _fence(broker: Broker) -> None:
    broker.settle(broker.world.bump_leader_epoch(broker.world.partition("t", 0), 3))


def _stall(broker: Broker) -> None:
    broker.produce("t", b"not flushed", flush=False)


def _fill(broker: Broker) -> None:
    broker.fs.capacity_bytes = broker.fs.used_bytes()
    with pytest.raises(ApiError):
        for _ in range(1000):
            broker.produce("t", b"v" * 1000, flush=False)


def _damage(broker: Broker) -> None:
    path = f"{DIRECTORY}/t-0/{0:020d}.log"
    broker.world.partition("t", 0).log.active.rest_file()
    broker.fs.write_atomic(path, b"x" + broker.fs.read_file(path))


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize(
    "event", [_delete, _recreate, _trim, _retain, _cut, _begin_anew, _fence, _stall, _fill, _damage]
)
def test_known_bug_b016(event: Callable[[Broker], None], version: int) -> None:
    """Twenty parked fetches, in sessions and without, at the end and below it, by either isolation: whatever happens
    to the topic, codes are those that consumers know, and no row has bytes that are not in the log any more."""
    broker = Broker()
    broker.create("t", 2)
    for _ in range(3):
        broker.produce("t", b"v" * 100)
    fetcher = Fetcher(broker, version)
    parked = []
    for number in range(20):
        context, gathered = fetcher.begin(
            {("t", 0): 3, ("t", 1): 0},
            session_epoch=0 if number % 2 else -1,
            isolation_level=number // 2 % 2,
            min_bytes=1 + 10_000 * (number % 3),
        )
        assert not gathered.ready or number % 3 == 0
        context.subscribe(gathered, lambda: None)
        parked.append(context)
    event(broker)
    for context in parked:
        for _ in range(2):  # woken, and at the end of the wait
            gathered = context.gather()
        response = context.respond(gathered)
        assert response.error_code == 0
        for row in fetcher.rows(response).values():
            assert row.error_code in FETCH_CODES | {0}
            assert row.error_code != ErrorCode.REQUEST_TIMED_OUT
            assert bytes_of(row) == b""
        context.unsubscribe()
    fresh = fetcher.rows(fetcher.fetch({("t", 0): 0, ("t", 1): 0}, session_epoch=-1, max_wait_ms=0))
    assert {row.error_code for row in fresh.values()} <= FETCH_CODES | {0}
    if event is _damage:
        assert {row.error_code for row in fresh.values()} == {0, ErrorCode.KAFKA_STORAGE_ERROR}
    if event in (_stall, _fence):
        assert {row.error_code for row in fetcher.rows(response).values()} <= {0}, "nothing is wrong with it"


def test_a_session_hears_of_a_cut_and_serves_what_is_there_now() -> None:
    """The end goes back and forth between two requests of a session: rows are never left out as unchanged, and what
    was gathered before a cut is not sent."""
    broker = Broker()
    broker.create("t")
    for _ in range(4):
        broker.produce("t", b"old" * 10)
    fetcher = Fetcher(broker)
    first = fetcher.fetch({("t", 0): 0}, session_epoch=0)
    (row,) = fetcher.rows(first).values()
    assert row.high_watermark == 4
    slices = list(row.records)
    partition = broker.world.partition("t", 0)
    partition.truncate_to(2)
    assert slices and not any(piece.still_valid() for piece in slices)
    (row,) = fetcher.rows(fetcher.fetch({}, session_id=first.session_id, session_epoch=1, max_wait_ms=0)).values()
    assert (row.high_watermark, [header.base_offset for _, header in walk(bytes_of(row))]) == (2, [0, 1])
    request = {("t", 0): 4}
    (row,) = fetcher.rows(fetcher.fetch(request, session_id=first.session_id, session_epoch=2)).values()
    assert (row.error_code, bytes_of(row)) == (1, b""), "the position is gone"
    for _ in range(2):
        broker.produce("t", b"new" * 10)
    (row,) = fetcher.rows(fetcher.fetch({("t", 0): 2}, session_id=first.session_id, session_epoch=3)).values()
    assert row.high_watermark == 4, "the same number as before the cut"
    assert bytes_of(row).count(b"new" * 10) == 2 and all(piece.still_valid() for piece in row.records)


# --- empty and emptied logs ---------------------------------------------------------------------------------------


def ends(partition: Partition) -> set[int]:
    return {
        partition.list_offset(which, isolation)[0] for which in (EARLIEST, LATEST) for isolation in (0, READ_COMMITTED)
    }


def test_known_bug_b025() -> None:
    """Nothing occupies an offset of a new topic: after restarts, crashes and new leader epochs either."""
    broker = Broker()
    broker.create("t")
    for again in (lambda: None, broker.restart, broker.crash, broker.crash, broker.restart):
        again()
        partition = broker.world.partition("t", 0)
        assert ends(partition) == {0}
        assert partition.read(0, max_bytes=1000).slices == []
        broker.settle(broker.world.bump_leader_epoch(partition, partition.leader_epoch))
        assert ends(partition) == {0}
    assert broker.produce("t", b"first") == 0


def test_known_bug_b025_of_a_mirror() -> None:
    """An empty mirror of a log that starts, and ends, at 500."""
    source, destination, pump = pair()
    source.create_topic()
    source.produce(*[b"v"] * 500)
    source.world.delete_records("t", 0, -1)
    destination.start(source)
    pump.run()
    for again in (lambda: None, destination.restart, destination.crash):
        again()
        partition = destination.partition()
        assert ends(partition) == {500}
        assert partition.read(500, max_bytes=1000).slices == []


def test_known_bug_b027() -> None:
    """-1 and -1 without an error: beyond the last time, on an empty topic, and when all records were removed."""
    broker = Broker()
    broker.create("t")
    partition = broker.world.partition("t", 0)
    nothing = (-1, -1, -1)
    assert partition.list_offset(0) == nothing
    broker.produce("t", *[b"v"] * 10)
    at_ms = broker.clock.time_ms()
    assert partition.list_offset(at_ms)[:2] == (0, at_ms)
    assert partition.list_offset(at_ms + 1) == nothing
    broker.world.delete_records("t", 0, 4)
    assert partition.list_offset(at_ms)[:2] == (4, at_ms), "of the same batch, the first that is left"
    broker.world.delete_records("t", 0, -1)
    for again in (lambda: None, broker.restart, broker.crash):
        again()
        partition = broker.world.partition("t", 0)
        assert partition.list_offset(at_ms) == partition.list_offset(0) == nothing
        assert partition.list_offset(LATEST)[0] == 10


# --- over crashes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"0\n2\n0 ", b"0\n9\n0 0\n", b"0\n3\n0 0\n1 3\n99 4\n", b"0\n1\n1 3\n", None])
def test_known_bug_b032(damage: bytes | None) -> None:
    """Each crash begins a new epoch; epoch 0 is one like any other, and a damaged checkpoint costs nothing."""
    broker = Broker()
    broker.create("t")
    for _ in range(3):
        broker.produce("t", b"a")
    broker.crash()
    assert broker.world.partition("t", 0).leader_epoch == 1
    for _ in range(2):
        broker.produce("t", b"b")
    broker.fs = broker.fs.crash(keep_nothing=True)
    path = f"{DIRECTORY}/t-0/leader-epoch-checkpoint"
    if damage is None:
        broker.fs.remove(path)
    else:
        broker.fs.write_atomic(path, damage)
    for _ in range(2):
        broker._open()
        partition = broker.world.partition("t", 0)
        assert partition.log_end_offset == 5
        assert [partition.end_offset_for_epoch(epoch) for epoch in (0, 1)] == [(0, 3), (1, 5)]
        broker.flush.run()
        broker.fs = broker.fs.crash(keep_nothing=True)


def test_known_bug_b034() -> None:
    """Epochs per topic id never go back, over restarts, kill -9 and the life of a mirror, nor below a stored batch."""
    source, destination, pump = mirroring()
    seen = -1

    def look() -> None:
        nonlocal seen
        partition = destination.partition()
        registered = destination.world.image.topics_by_name["t"].registrations[0]
        assert registered.leader_epoch == partition.leader_epoch >= max(seen, 0)
        stored = [header.leader_epoch for header, _ in partition.log.batches(0, partition.log_end_offset)]
        assert partition.leader_epoch >= max(stored, default=0)
        seen = partition.leader_epoch

    look()
    for step in range(6):
        source.bump()
        source.produce(b"v")
        pump.refresh()
        pump.run()
        look()
        (destination.restart if step % 2 else destination.crash)()
        look()
        pump.run()
        look()
    assert destination.data() == source.data()
    destination.settle(destination.stop())
    look()
    assert destination.partition().mode is LogMode.WRITABLE
    destination.produce(b"own")
    look()
    for _ in range(10):
        destination.restart()
        look()
    destination.crash()
    look()
    destination.produce(b"own")
    look()


def test_known_bug_b035() -> None:
    """DeleteRecords below, at and beyond the edges, between restarts and crashes; compacted and mirrored topics."""
    broker = Broker()
    broker.create("t")
    broker.produce("t", *[b"v"] * 100)
    for again in (lambda: None, broker.restart, broker.crash):
        again()
        for offset in (30, 30, 10, 0):
            assert broker.world.delete_records("t", 0, offset) == 30
            partition = broker.world.partition("t", 0)
            read = partition.read(30, max_bytes=1 << 20)
            assert partition.list_offset(EARLIEST)[0] == read.log_start_offset == 30
            assert parse_header(read.slices[0].read()).base_offset == 0, "the batch that the start is in comes whole"
            assert code_of(partition.read, 29, max_bytes=1) == 1
        for offset in (101, -2, 2**63 - 1):
            assert code_of(broker.world.delete_records, "t", 0, offset) == 1
            assert broker.world.partition("t", 0).log_start_offset == 30
    assert broker.world.delete_records("t", 0, -1) == 100
    for again in (broker.restart, broker.crash):
        again()
        assert ends(broker.world.partition("t", 0)) == {100}
    for policy, code in (("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", 0)):
        name = policy.replace(",", "-")
        broker.create(name, cleanup__policy=policy)
        assert code_of(broker.world.delete_records, name, 0, 0) == code
    _, destination, _ = mirroring()
    with pytest.raises(ApiError) as refused:
        destination.world.delete_records("t", 0, 1)
    assert refused.value.code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE
    assert destination.partition().log_start_offset == 0


# --- coordinators -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("active_is_empty", [True, False])
def test_known_bug_b044(active_is_empty: bool) -> None:
    """An internal topic whose last records are tombstones that compaction removed, with nothing behind them: loading
    ends, after a clean stop and after a crash, and the coordinator works at once."""
    broker = Broker({"offsets.topic.num.partitions": "1"})
    broker.create("t", 3)
    broker.settle(broker.world.groups.offsets.usable())

    def commit(group: str, offset: int) -> None:
        rows = [OffsetRow(topic="t", partition=index, offset=offset) for index in range(3)]
        broker.settle(broker.world.groups.offsets.commit(Committer(group_id=group), rows, api_version=9))

    def log() -> Log:
        return broker.world.partition("__consumer_offsets", 0).log

    for offset in range(5):
        commit("g", offset)
        commit("kept", offset)
    log().roll()
    broker.settle(broker.world.delete_topic("t"))
    broker.flush.run()
    tombstones = log().log_end_offset
    log().roll()
    end, day_ms, now_ms, cleaned_up_to = log().log_end_offset, 24 * 60 * 60 * 1000, broker.clock.time_ms(), -1
    for _ in range(3):
        now_ms += 2 * day_ms
        cleaned_up_to = compacted(log(), now_ms=now_ms, cleaned_up_to=min(cleaned_up_to, 0))
    records = sum(header.record_count for header, _ in log().batches(0, end))
    assert records == 0 and log().log_end_offset == end >= tombstones
    assert log().active.size_bytes == 0
    if not active_is_empty:
        broker.create("t", 3)
        commit("kept", 7)
    for again in (broker.restart, broker.crash, broker.restart):
        again()
        rows = broker.settle(broker.world.groups.offsets.fetch_all("kept", require_stable=False))
        assert [value.offset for _, value in rows] == ([] if active_is_empty else [7, 7, 7])
        assert broker.settle(broker.world.groups.offsets.fetch_all("g", require_stable=False)) == []
        assert log().log_end_offset >= end
    if active_is_empty:
        broker.create("t", 3)
    commit("g", 9)
    rows = broker.settle(broker.world.groups.offsets.fetch_all("g", require_stable=False))
    assert [value.offset for _, value in rows] == [9, 9, 9]
