"""The outbox: bytes, file slices by sendfile, cuts while a slice waits, cold pages."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from kmirror.limits import SENDFILE_FROM_BYTES, SENDFILE_PIECE_BYTES
from kmirror.server import send
from kmirror.server.send import Outbox, SendFailed
from kmirror.slices import FileSlice


class Owner:
    generation = 0


class Segment:
    """A file with content that tells its position; `in_memory` hides its descriptor."""

    def __init__(self, path: Path, data: bytes, *, in_memory: bool = False) -> None:
        path.write_bytes(data)
        self.data = data
        self.owner = Owner()
        self._fd = os.open(path, os.O_RDONLY)
        self._in_memory = in_memory

    def pread(self, size_bytes: int, position: int) -> bytes:
        return os.pread(self._fd, size_bytes, position)

    def fileno(self) -> int | None:
        return None if self._in_memory else self._fd

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        return FileSlice(self, position, size_bytes, self.owner, self.owner.generation)

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture(params=["descriptor", "memory"])
def segment(request: pytest.FixtureRequest, tmp_path: Path, rng: random.Random) -> Iterator[Segment]:
    made = Segment(tmp_path / "log", rng.randbytes(3 * SENDFILE_PIECE_BYTES), in_memory=request.param == "memory")
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


async def received(sock: socket.socket, size_bytes: int) -> bytes:
    stream = trio.socket.from_stdlib_socket(sock.dup())
    data = bytearray()
    while len(data) < size_bytes:
        more = await stream.recv(1 << 16)
        assert more
        data += more
    stream.close()
    return bytes(data)


async def drained(outbox: Outbox, sock: socket.socket, size_bytes: int) -> bytes:
    got = b""

    async def receive() -> None:
        nonlocal got
        got = await received(sock, size_bytes)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await outbox.drain()
    return got


async def test_many_small_pieces_leave_in_one_call(pair: tuple[socket.socket, socket.socket]) -> None:
    outbox = Outbox(pair[0])
    outbox.add([b"one", memoryview(b"two")])
    outbox.add([b"three"])
    assert outbox.flush_nowait()
    assert pair[1].recv(100) == b"onetwothree"
    assert not outbox


@pytest.mark.parametrize("size_bytes", [1, SENDFILE_FROM_BYTES - 1, SENDFILE_FROM_BYTES, 2 * SENDFILE_PIECE_BYTES + 7])
async def test_slices_between_bytes(
    pair: tuple[socket.socket, socket.socket], segment: Segment, size_bytes: int
) -> None:
    outbox = Outbox(pair[0])
    outbox.add([b"head", segment.slice(11, size_bytes), b"between", segment.slice(0, 5), b"tail"])
    expected = b"head" + segment.data[11 : 11 + size_bytes] + b"between" + segment.data[:5] + b"tail"
    assert await drained(outbox, pair[1], len(expected)) == expected
    assert not outbox
    assert outbox.flush_nowait()


async def test_any_mix_arrives_as_it_was_added(
    pair: tuple[socket.socket, socket.socket], segment: Segment, rng: random.Random
) -> None:
    outbox = Outbox(pair[0])
    expected = bytearray()
    for _ in range(60):
        if rng.random() < 0.5:
            data = rng.randbytes(rng.choice([0, 1, 100, 70_000]))
            outbox.add([data] if data else [])
            expected += data
        else:
            size_bytes = rng.choice([1, 500, SENDFILE_FROM_BYTES, 200_000, SENDFILE_PIECE_BYTES + 1])
            position = rng.randrange(len(segment.data) - size_bytes)
            outbox.add([segment.slice(position, size_bytes)])
            expected += segment.data[position : position + size_bytes]
    assert await drained(outbox, pair[1], len(expected)) == bytes(expected)


async def test_a_full_socket_is_waited_for(pair: tuple[socket.socket, socket.socket], rng: random.Random) -> None:
    outbox = Outbox(pair[0])
    data = rng.randbytes(4 << 20)
    outbox.add([data])
    assert not outbox.flush_nowait()
    outbox.add([b"end"])
    assert await drained(outbox, pair[1], len(data) + 3) == data + b"end"


@pytest.mark.parametrize("size_bytes", [10, SENDFILE_FROM_BYTES])
async def test_a_slice_of_a_log_that_was_cut_is_never_sent(
    pair: tuple[socket.socket, socket.socket], segment: Segment, size_bytes: int
) -> None:
    outbox = Outbox(pair[0])
    outbox.add([b"head", segment.slice(0, size_bytes)])
    segment.owner.generation += 1
    with pytest.raises(SendFailed, match="cut"):
        await outbox.drain()


async def test_a_cut_between_two_pieces_of_a_slice_ends_it(
    pair: tuple[socket.socket, socket.socket], segment: Segment
) -> None:
    outbox = Outbox(pair[0])
    outbox.add([segment.slice(0, 3 * SENDFILE_PIECE_BYTES)])
    assert not outbox.flush_nowait()  # nobody reads, so the socket is full before the slice's end
    segment.owner.generation += 1
    pair[1].recv(1 << 20)
    if segment.fileno() is None:
        return  # read into memory as a whole before the cut: those bytes are the log as it was
    with pytest.raises(SendFailed, match="cut"):
        outbox.flush_nowait()


@pytest.mark.parametrize("size_bytes", [10, SENDFILE_FROM_BYTES])
async def test_a_file_shorter_than_the_slice_is_not_padded(
    pair: tuple[socket.socket, socket.socket], segment: Segment, size_bytes: int
) -> None:
    outbox = Outbox(pair[0])
    outbox.add([segment.slice(len(segment.data) - 3, size_bytes)])
    with pytest.raises(SendFailed, match="shorter"):
        await outbox.drain()


@pytest.mark.parametrize("size_bytes", [100, 2 * SENDFILE_PIECE_BYTES])
async def test_cold_pages_are_read_in_a_thread(
    pair: tuple[socket.socket, socket.socket],
    tmp_path: Path,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    size_bytes: int,
) -> None:
    """The kernel says EAGAIN for the whole file until somebody has read it the plain way."""
    segment = Segment(tmp_path / "log", rng.randbytes(3 * SENDFILE_PIECE_BYTES))
    plain_reads = 0

    def refuse(*_: object) -> int:
        raise BlockingIOError

    def read(size: int, position: int) -> bytes:
        nonlocal plain_reads
        plain_reads += 1
        return segment.data[position : position + size]

    monkeypatch.setattr(send.os, "preadv", refuse)
    monkeypatch.setattr(segment, "pread", read)
    outbox = Outbox(pair[0])
    outbox.add([b"head", segment.slice(5, size_bytes), b"tail"])
    expected = b"head" + segment.data[5 : 5 + size_bytes] + b"tail"
    assert await drained(outbox, pair[1], len(expected)) == expected
    assert plain_reads == -(-size_bytes // SENDFILE_PIECE_BYTES)
    segment.close()


async def test_a_partly_resident_slice_is_read_whole(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short count is no end of file (RWF_NOWAIT)."""
    segment = Segment(tmp_path / "log", bytes(range(256)) * 64)
    monkeypatch.setattr(send.os, "preadv", lambda *_: 3)
    outbox = Outbox(pair[0])
    outbox.add([segment.slice(1, 5000)])
    assert await drained(outbox, pair[1], 5000) == segment.data[1:5001]
    segment.close()


async def test_a_peer_that_has_gone_fails_the_send(pair: tuple[socket.socket, socket.socket]) -> None:
    outbox = Outbox(pair[0])
    pair[1].close()
    outbox.add([b"x"])
    with pytest.raises(SendFailed):
        outbox.flush_nowait()
