"""Groups and transactions on a disk that fills up: their clients are refused where other clients are, what was begun
can be ended on what is left, and thousands that end at once let others be served."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kmirror.broker.chores import Steps
from kmirror.errors import ApiError
from kmirror.limits import DISK_RESERVE_SHARE, ROWS_PER_TURN
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.errors import ErrorCode
from kmirror.storage.memory import MemoryFileSystem
from tests.broker.harness import DIRECTORY
from tests.broker.harness import Broker as QuietBroker
from tests.server import test_offsets
from tests.server.harness import Client, serving
from tests.server.test_transactions import producer
from tests.server.transaction_client import decided, markers

Virtual = trio.testing.MockClock
CAPACITY_BYTES = 3_000_000


async def begin(client: Client, name: str) -> int:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
    answer = await client.ask("InitProducerId", 4, request)
    return int(answer.error_code)


async def test_commits_leave_the_reserve_alone_and_open_transactions_end_on_it(autojump_clock: Virtual) -> None:
    async with serving(filesystem=MemoryFileSystem(capacity_bytes=CAPACITY_BYTES)) as broker:
        await broker.create_topic("t")
        client, transactional = broker.connect(), producer(broker)
        await transactional.start()
        await transactional.add(("t", 0))
        await client.ask("OffsetCommit", 9, test_offsets.commit((0, 1)))
        accepted = 1
        for offset in range(2, 10_000):
            answer = await client.ask("OffsetCommit", 9, test_offsets.commit((0, offset, -1, "m" * 4000)))
            if test_offsets.codes(answer) != [0]:
                break
            accepted = offset
        assert test_offsets.codes(answer) == [ErrorCode.NOT_COORDINATOR] and accepted > 2
        assert CAPACITY_BYTES - broker.filesystem.used_bytes() >= CAPACITY_BYTES // DISK_RESERVE_SHARE * 9 // 10
        codes = [await begin(client, f"y{number}") for number in range(100)]
        assert codes[-1] == ErrorCode.NOT_COORDINATOR, "small ones fit for a while"
        assert await test_offsets.fetched(client, 7) == {0: (accepted, -1, "m" * 4000, 0)}

        assert (await transactional.end(commit=True)).error_code == 0
        assert await decided(client) == "CompleteCommit" and len(markers(broker)) == 1
        broker.filesystem.capacity_bytes = None
        answer = await client.ask("OffsetCommit", 9, test_offsets.commit((0, 7)))
        assert test_offsets.codes(answer) == [0]


def test_a_partition_that_finds_no_space_for_its_directory_leaves_one_not_many() -> None:
    """542 directories in ten seconds of a producer that retries: each was taken for a stranger's and set aside."""
    broker = QuietBroker()
    broker.create("t")
    before = set(broker.fs.list_dir(DIRECTORY))
    broker.fs.capacity_bytes = broker.fs.used_bytes()
    for _ in range(20):
        with pytest.raises(ApiError):
            broker.produce("t", b"x")
    assert {*broker.fs.list_dir(DIRECTORY)} - before <= {"t-0"}
    broker.fs.capacity_bytes = None
    assert broker.produce("t", b"x") == 0
    broker.crash()
    assert broker.world.partition("t", 0).high_watermark == 1


class Counted:
    """Chores, whose steps are counted by the name of what they do."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def run(self, steps: Steps) -> None:
        name = steps.__name__  # type: ignore[attr-defined]
        for _ in steps:
            self.steps[name] = self.steps.get(name, 0) + 1


async def test_transactions_that_time_out_together_are_aborted_one_a_step(autojump_clock: Virtual) -> None:
    async with serving() as broker:
        await broker.create_topic("t")
        names = [f"x{number}" for number in range(30)]
        for name in names:
            client = producer(broker, name, timeout_ms=1000)
            await client.start()
            await client.add(("t", 0))
        broker.world.chores = counted = Counted()
        await trio.sleep(20)
        reader = broker.connect()
        assert [await decided(reader, name) for name in names] == ["CompleteAbort"] * 30
        assert counted.steps["_abort_timed_out"] == 30


async def test_ids_that_nobody_uses_are_forgotten_some_a_step(autojump_clock: Virtual) -> None:
    async with serving({"transactional.id.expiration.ms": "7200000"}) as broker:
        client = broker.connect()
        count = ROWS_PER_TURN + 1
        for number in range(count):
            await client.send(
                "InitProducerId", 4, InitProducerIdRequest(transactional_id=f"x{number}", transaction_timeout_ms=1000)
            )
            await client.receive("InitProducerId", 4)
        assert len(list(broker.world.transactions.machine.items())) == count
        broker.world.chores = counted = Counted()
        await trio.sleep(3 * 3600)
        assert not list(broker.world.transactions.machine.items())
        assert counted.steps["_forget_unused"] == 2
