"""Receive buffers: growth with what has arrived, reuse, and the budget that all connections share."""

from __future__ import annotations

import random
import socket
import struct

import pytest
import trio
import trio.testing

from kmirror.limits import LARGE_FRAME_BUFFER_BYTES, RECEIVE_BUFFER_BYTES
from kmirror.server.receive import BadFrame, BufferPool, ByteBudget, PeerClosed, Receiver


class Wire:
    def __init__(self, *, budget_bytes: int = 1 << 30, max_frame_bytes: int = 1 << 27) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self.sock = trio.socket.from_stdlib_socket(ours)
        self.raw = theirs
        self.pool = BufferPool()
        self.budget = ByteBudget(budget_bytes)
        self.receiver = Receiver(theirs, pool=self.pool, budget=self.budget, max_frame_bytes=max_frame_bytes)

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self.sock.send(view) :]

    async def next(self) -> bytes:
        """One frame, the way a connection reads."""
        while True:
            frame = self.receiver.next_small()
            if frame is not None:
                return frame
            size_bytes = self.receiver.large_size_bytes()
            if size_bytes is not None:
                try:
                    return bytes(await self.receiver.read_large(size_bytes))
                finally:
                    self.receiver.release_large()
            await self.receiver.fill()

    def close(self) -> None:
        self.sock.close()
        self.raw.close()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


EDGE_SIZES = [
    1,
    RECEIVE_BUFFER_BYTES - 5,
    RECEIVE_BUFFER_BYTES - 4,
    RECEIVE_BUFFER_BYTES - 3,
    RECEIVE_BUFFER_BYTES,
    LARGE_FRAME_BUFFER_BYTES,
    LARGE_FRAME_BUFFER_BYTES + 1,
    3 * LARGE_FRAME_BUFFER_BYTES,
]


async def test_frames_of_every_size_come_out_whole_and_in_order(rng: random.Random) -> None:
    wire = Wire()
    bodies = [rng.randbytes(size) for size in [*EDGE_SIZES, 5, 5, *rng.sample(EDGE_SIZES, len(EDGE_SIZES)), 9]]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send, b"".join(framed(body) for body in bodies))
        for body in bodies:
            assert await wire.next() == body
    assert wire.budget.used_bytes == 0
    wire.close()


async def test_frames_cut_anywhere(rng: random.Random) -> None:
    wire = Wire()
    bodies = [rng.randbytes(rng.choice([1, 100, 40_000, 100_000])) for _ in range(40)]
    data = b"".join(framed(body) for body in bodies)

    async def dribble() -> None:
        position = 0
        while position < len(data):
            step = rng.choice([1, 3, 1000, 50_000, 200_000])
            await wire.send(data[position : position + step])
            position += step
            await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        for body in bodies:
            assert await wire.next() == body
    wire.close()


@pytest.mark.parametrize("size_bytes", [-1, 0, -(2**31), 1001, 2**31 - 1])
async def test_impossible_sizes(size_bytes: int) -> None:
    wire = Wire(max_frame_bytes=1000)
    await wire.send(struct.pack(">i", size_bytes))
    with pytest.raises(BadFrame):
        await wire.next()
    wire.close()


async def test_the_end_of_the_stream_within_a_frame() -> None:
    wire = Wire()
    await wire.send(framed(bytes(100_000))[:-1])
    wire.sock.close()
    with pytest.raises(PeerClosed):
        await wire.next()
    assert wire.budget.used_bytes == 0
    wire.close()


async def test_memory_grows_with_what_has_arrived() -> None:
    wire = Wire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.next)
        await wire.send(struct.pack(">i", 100_000_000) + bytes(1000))
        await trio.testing.wait_all_tasks_blocked()
        assert wire.budget.used_bytes == LARGE_FRAME_BUFFER_BYTES
        await wire.send(bytes(2 * LARGE_FRAME_BUFFER_BYTES))
        await trio.testing.wait_all_tasks_blocked()
        assert wire.budget.used_bytes == 4 * LARGE_FRAME_BUFFER_BYTES
        nursery.cancel_scope.cancel()
    assert wire.budget.used_bytes == 0
    wire.close()


async def test_a_large_buffer_is_reused() -> None:
    pool = BufferPool(limit_bytes=300)
    first = pool.take(200)
    pool.give_back(first)
    assert pool.take(100) is first
    pool.give_back(first)
    pool.give_back(bytearray(200))  # would be above the limit: dropped
    assert pool.take(150) is first
    assert pool.take(150) is not first


class TestBudget:
    async def test_who_finds_no_room_waits_for_it(self) -> None:
        budget = ByteBudget(100)
        first, second, third = object(), object(), object()
        await budget.take(80, first)
        await budget.take(80, second)  # the privileged one may go over, so that somebody always finishes
        order: list[str] = []

        async def take(name: str, size_bytes: int, owner: object) -> None:
            await budget.take(size_bytes, owner)
            order.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, "third", 50, third)
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
            await take("second again", 200, second)
            budget.give_back(80, first)
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["second again"]
            budget.give_back(280, second)
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["second again", "third"]
        assert budget.used_bytes == 50

    async def test_a_cancelled_waiter_passes_its_turn_on(self) -> None:
        budget = ByteBudget(100)
        holder = object()
        await budget.take(100, holder)
        await budget.take(1, holder)
        taken: list[int] = []

        async def take(number: int, scope: trio.CancelScope) -> None:
            with scope:
                await budget.take(60, object())
                taken.append(number)

        scopes = [trio.CancelScope() for _ in range(2)]
        async with trio.open_nursery() as nursery:
            for number, scope in enumerate(scopes):
                nursery.start_soon(take, number, scope)
                await trio.testing.wait_all_tasks_blocked()
            budget.give_back(101, holder)
            scopes[0].cancel()
        assert 1 in taken

    async def test_growing_frames_do_not_wait_for_each_other(self, rng: random.Random) -> None:
        """Each needs more than the whole budget: one goes over the limit, then the next."""
        budget = ByteBudget(100)
        done: list[int] = []

        async def frame(number: int) -> None:
            owner = object()
            taken_bytes = 0
            for _ in range(10):
                size_bytes = 10 + rng.randrange(10)
                await budget.take(size_bytes, owner)
                taken_bytes += size_bytes
                await trio.lowlevel.checkpoint()
            done.append(number)
            budget.give_back(taken_bytes, owner)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(frame, number)
        assert sorted(done) == [0, 1, 2, 3, 4]
        assert budget.used_bytes == 0
