"""Sending replies: bytes in one call, file slices with sendfile. L4.

Measured: answers of all buffered requests in one `send` are worth a factor of three for small requests, and sendfile
halves the processor time of a fetch. A page that is not in memory would stall the whole loop for milliseconds, so each
piece is probed with RWF_NOWAIT first and read in a thread when the kernel says that it would block.

What must hold: pieces leave in the order they were added; a slice whose log was cut since (`still_valid()` is false) or
whose file is shorter than it claims ends the connection, it is never padded; only one task drains an outbox at a time.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence

import trio

from kmirror.limits import READS_BEFORE_CHECKPOINT, SENDFILE_FROM_BYTES, SENDFILE_PIECE_BYTES
from kmirror.slices import FileSlice

Piece = bytes | memoryview | FileSlice

_MORE = getattr(socket, "MSG_MORE", 0)
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_HAS_SENDFILE = hasattr(os, "sendfile")


class SendFailed(Exception):
    """The reply cannot be finished: the peer is gone, or the bytes it would need are. The connection is closed."""


class Outbox:
    """What one connection still has to send. `flush_nowait` from anywhere on the loop, `drain` from one task."""

    def __init__(self, sock: socket.socket, *, threads: bool = True) -> None:
        """`threads` false keeps cold reads on the loop: simulated runs must not use threads."""
        self._sock = sock
        self._pieces: deque[Piece] = deque()
        self._slices = 0
        self._threads = threads
        self._sendfile = _HAS_SENDFILE
        self._disk_wait = False
        self.draining = False
        self.added_bytes = 0
        """Bytes (slices left out: they are not in memory) added since the outbox was last seen empty."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, FileSlice):
                self._slices += 1
            else:
                self.added_bytes += len(piece)
            self._pieces.append(piece)

    def flush_nowait(self) -> bool:
        """Send what the socket takes now. True when nothing is left; False when `drain` must go on.

        Raises `SendFailed`.
        """
        pieces = self._pieces
        if pieces and not (self._flush_mixed() if self._slices else self._send_bytes(len(pieces), more=False)):
            return False
        self.added_bytes = 0
        return True

    async def drain(self) -> None:
        """Send everything, waiting for the socket and for cold pages. Raises `SendFailed`."""
        self.draining = True
        try:
            while not self.flush_nowait():
                first = self._pieces[0]
                if self._disk_wait and isinstance(first, FileSlice):
                    await self._warm(first)
                else:
                    await trio.lowlevel.wait_writable(self._sock)
        finally:
            self.draining = False

    # --- bytes -------------------------------------------------------------------------------------------------

    def _send_bytes(self, count: int, *, more: bool) -> bool:
        """Send the first `count` pieces, all of them bytes, in one call. False when the socket took only a part."""
        pieces = self._pieces
        if count == 1:
            data = pieces.popleft()
        elif count == len(pieces):
            data = b"".join(pieces)  # type: ignore[arg-type]
            pieces.clear()
        else:
            data = b"".join(pieces.popleft() for _ in range(count))  # type: ignore[misc]
        assert not isinstance(data, FileSlice)
        try:
            sent = self._sock.send(data, _MORE if more else 0)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise SendFailed(str(error)) from None
        if sent == len(data):
            return True
        pieces.appendleft(memoryview(data)[sent:])
        return False

    # --- slices ------------------------------------------------------------------------------------------------

    def _flush_mixed(self) -> bool:
        for _ in range(READS_BEFORE_CHECKPOINT):
            self._disk_wait = False
            if not self._pieces:
                return True
            count = self._join_small()
            if count:
                if not self._send_bytes(count, more=bool(len(self._pieces) > count)):
                    return False
            elif self._disk_wait or not self._send_slice():
                return False
        return not self._pieces

    def _join_small(self) -> int:
        """Turn small slices at the front into bytes; the count of byte pieces that now begin the outbox."""
        pieces = self._pieces
        count = 0
        for index, piece in enumerate(pieces):
            if isinstance(piece, FileSlice):
                if piece.size_bytes >= SENDFILE_FROM_BYTES and self._can_sendfile(piece):
                    break
                data = self._read_now(piece)
                if data is None:
                    self._disk_wait = True
                    break
                pieces[index] = data
                self._slices -= 1
            count = index + 1
        return count

    def _can_sendfile(self, piece: FileSlice) -> bool:
        return self._sendfile and piece.file.fileno() is not None

    def _read_now(self, piece: FileSlice) -> bytes | None:
        """The slice's bytes when they are in memory; None when reading them would block."""
        if not piece.still_valid():
            raise SendFailed("the log was cut while it was being sent")
        descriptor = piece.file.fileno()
        if descriptor is not None and _NOWAIT is not None and self._threads:
            buffer = bytearray(piece.size_bytes)
            try:
                count = os.preadv(descriptor, [buffer], piece.position, _NOWAIT)
            except BlockingIOError:
                return None
            except OSError:
                count = -1  # a file system without RWF_NOWAIT: read it the plain way
            if count == piece.size_bytes:
                return bytes(buffer)
            if count >= 0:
                return None  # partly resident: a thread reads it whole
        return _whole(piece, piece.read())

    def _send_slice(self) -> bool:
        """Send up to one piece of the slice at the front. False when the socket or the page cache would block."""
        piece = self._pieces[0]
        assert isinstance(piece, FileSlice)
        if not piece.still_valid():
            raise SendFailed("the log was cut while it was being sent")
        if self._cold(piece):
            self._disk_wait = True
            return False
        descriptor = piece.file.fileno()
        assert descriptor is not None
        size_bytes = min(piece.size_bytes, SENDFILE_PIECE_BYTES)
        try:
            sent = os.sendfile(self._sock.fileno(), descriptor, piece.position, size_bytes)
        except BlockingIOError:
            return False
        except OSError as error:
            raise SendFailed(str(error)) from None
        if sent == 0:
            raise SendFailed("a segment file is shorter than the log says")
        self._advance(piece, sent)
        return True

    def _advance(self, piece: FileSlice, sent: int) -> None:
        self._pieces.popleft()
        if sent < piece.size_bytes:
            rest = FileSlice(piece.file, piece.position + sent, piece.size_bytes - sent, piece.owner, piece.generation)
            self._pieces.appendleft(rest)
        else:
            self._slices -= 1

    def _cold(self, piece: FileSlice) -> bool:
        """Whether reading the slice's first byte would wait for the disk. Costs about a microsecond."""
        descriptor = piece.file.fileno()
        if descriptor is None or _NOWAIT is None or not self._threads:
            return False
        try:
            return os.preadv(descriptor, [bytearray(1)], piece.position, _NOWAIT) == 0
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def _warm(self, piece: FileSlice) -> None:
        """Replace the first part of a cold slice by its bytes, read in a thread."""
        size_bytes = min(piece.size_bytes, SENDFILE_PIECE_BYTES)
        part = FileSlice(piece.file, piece.position, size_bytes, piece.owner, piece.generation)
        data = await trio.to_thread.run_sync(part.read)
        if not piece.still_valid():
            raise SendFailed("the log was cut while it was being sent")
        self._advance(piece, size_bytes)
        self._pieces.appendleft(_whole(part, data))


def _whole(piece: FileSlice, data: bytes) -> bytes:
    if len(data) != piece.size_bytes:
        raise SendFailed("a segment file is shorter than the log says")
    return data
