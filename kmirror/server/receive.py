"""Receiving frames: from a non-blocking socket into buffers that are reused. L4.

Measured (docs/ARCHITECTURE.md, hot paths): `recv_into` a reused buffer, waiting only after the kernel said that there
is nothing, moves a large frame at the speed of the kernel; every copy, every fresh buffer and every `receive_some`
costs a third or more of it.

What must hold:
- the size that a frame claims is checked, but never allocated: buffers grow with the bytes that have arrived;
- a *small* frame is handed out as `bytes` of its own, a *large* one as a view of a pooled buffer that is only valid
  until `release_large()`: whoever keeps something of it copies;
- large frames are counted against one budget of all connections, and a connection that gets none stops reading.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

import trio

from kmirror.limits import (
    LARGE_FRAME_BUFFER_BYTES,
    MAX_REQUEST_BYTES_WITHOUT_RECORDS,
    POOLED_BUFFERS_BYTES,
    READS_BEFORE_CHECKPOINT,
    RECEIVE_BUFFER_BYTES,
)

_SIZE = struct.Struct(">i")
_SIZE_AND_KEY = struct.Struct(">ih")
PRODUCE_KEY = 0


class BadFrame(Exception):
    """The bytes on this connection are not Kafka frames; the text is the reason for the log line."""


class PeerClosed(Exception):
    """The other side ended the connection."""


class BufferPool:
    """Large receive buffers, reused: a fresh one costs page faults for every megabyte."""

    def __init__(self, limit_bytes: int = POOLED_BUFFERS_BYTES) -> None:
        self._free: list[bytearray] = []
        self._free_bytes = 0
        self._limit_bytes = limit_bytes

    def take(self, size_bytes: int) -> bytearray:
        """A buffer of at least `size_bytes`; its content is whatever was there before."""
        for index, buffer in enumerate(self._free):
            if len(buffer) >= size_bytes:
                del self._free[index]
                self._free_bytes -= len(buffer)
                return buffer
        return bytearray(size_bytes)

    def give_back(self, buffer: bytearray) -> None:
        if self._free_bytes + len(buffer) <= self._limit_bytes:
            self._free.append(buffer)
            self._free_bytes += len(buffer)


class ByteBudget:
    """Bytes of large frames that may be in memory at once.

    A frame takes more as it grows, so two half-read frames could wait for each other for ever; one waiter at a time
    therefore holds the *privilege* of going over the limit until its frame is done.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._privileged: object | None = None
        self._waiting: deque[trio.Event] = deque()

    async def take(self, size_bytes: int, owner: object) -> None:
        while not self._may_take(size_bytes, owner):
            woken = trio.Event()
            self._waiting.append(woken)
            try:
                await woken.wait()
            except trio.Cancelled:
                if woken.is_set():
                    self._wake_one()
                else:
                    self._waiting.remove(woken)
                raise
        self.used_bytes += size_bytes
        self._wake_one()

    def _may_take(self, size_bytes: int, owner: object) -> bool:
        if self.used_bytes + size_bytes <= self.limit_bytes or self._privileged is owner:
            return True
        if self._privileged is None:
            self._privileged = owner
            return True
        return False

    def give_back(self, size_bytes: int, owner: object) -> None:
        self.used_bytes -= size_bytes
        if self._privileged is owner:
            self._privileged = None
        self._wake_one()

    def _wake_one(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()


class Receiver:
    """The frames of one connection, in order. One task uses it."""

    def __init__(self, sock: socket.socket, *, pool: BufferPool, budget: ByteBudget, max_frame_bytes: int) -> None:
        self._sock = sock
        self._pool = pool
        self._budget = budget
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._reads_in_a_row = 0
        self._large: bytearray | None = None
        self._budget_bytes = 0

    def next_small(self) -> bytes | None:
        """The next frame's body (without its size) when all of it has arrived in the buffer, else None.

        Raises `BadFrame` for a size that no request may have.
        """
        start = self._start
        available = self._end - start - 4
        if available < 0:
            return None
        (size_bytes,) = _SIZE.unpack_from(self._buffer, start)
        if size_bytes > available:
            if size_bytes > self._max_frame_bytes:
                raise BadFrame(f"frame size {size_bytes} is larger than the limit {self._max_frame_bytes}")
            return None
        if size_bytes <= 0:
            raise BadFrame(f"frame size {size_bytes}")
        first = start + 4
        self._start = first + size_bytes
        return bytes(self._view[first : first + size_bytes])

    def large_size_bytes(self) -> int | None:
        """Size of the frame that begins the buffer when it cannot fit there, else None. After `next_small` only.

        Raises BadFrame when it is larger than its API could need: what is in it is not even read.
        """
        if self._end - self._start < _SIZE_AND_KEY.size:
            return None
        size_bytes, api_key = _SIZE_AND_KEY.unpack_from(self._buffer, self._start)
        if size_bytes > MAX_REQUEST_BYTES_WITHOUT_RECORDS and api_key != PRODUCE_KEY:
            raise BadFrame(
                f"a request of {size_bytes} bytes to API {api_key}: more than {MAX_REQUEST_BYTES_WITHOUT_RECORDS}"
            )
        return size_bytes if size_bytes > RECEIVE_BUFFER_BYTES - 4 else None

    async def fill(self) -> None:
        """Read once more into the buffer; parks until there is something. Raises `PeerClosed`."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start > 0 and self._end == RECEIVE_BUFFER_BYTES:
            self._buffer[: self._end - self._start] = self._buffer[self._start : self._end]
            self._end -= self._start
            self._start = 0
        self._end += await self._read_some(self._view[self._end :])

    async def read_large(self, size_bytes: int) -> memoryview:
        """The body of the large frame that begins the buffer. Valid until `release_large()`."""
        arrived = self._end - self._start - 4
        await self._grow(min(size_bytes, LARGE_FRAME_BUFFER_BYTES))
        assert self._large is not None
        self._large[:arrived] = self._view[self._start + 4 : self._end]
        self._start = self._end = 0
        filled = arrived
        while filled < size_bytes:
            if filled == len(self._large):
                await self._grow(min(size_bytes, 2 * filled), keep_bytes=filled)
            stop = min(size_bytes, len(self._large))
            with memoryview(self._large) as view, view[filled:stop] as target:
                filled += await self._read_some(target)
        return memoryview(self._large)[:size_bytes]

    async def _grow(self, size_bytes: int, *, keep_bytes: int = 0) -> None:
        old = self._large
        await self._budget.take(size_bytes - self._budget_bytes, self)
        self._budget_bytes = size_bytes
        self._large = self._pool.take(max(size_bytes, LARGE_FRAME_BUFFER_BYTES))
        if old is not None:
            self._large[:keep_bytes] = memoryview(old)[:keep_bytes]
            self._pool.give_back(old)

    def release_large(self) -> None:
        """The frame has been handled (or the connection is closing): its buffer may be used for another one."""
        if self._budget_bytes:
            self._budget.give_back(self._budget_bytes, self)
            self._budget_bytes = 0
        if self._large is not None:
            self._pool.give_back(self._large)
            self._large = None

    async def _read_some(self, target: memoryview) -> int:
        sock = self._sock
        if self._reads_in_a_row >= READS_BEFORE_CHECKPOINT:
            self._reads_in_a_row = 0
            await trio.lowlevel.checkpoint()
        while True:
            try:
                count = sock.recv_into(target)
            except BlockingIOError:
                self._reads_in_a_row = 0
                await trio.lowlevel.wait_readable(sock)
                continue
            except OSError as error:
                raise PeerClosed(str(error)) from None
            if count == 0:
                raise PeerClosed("end of stream")
            self._reads_in_a_row += 1
            return count
