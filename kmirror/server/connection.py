"""One client connection: frames in, replies out, strictly in order. L4.

One task per connection reads, dispatches and answers. Requests that are buffered together are answered with one send.
A handler is synchronous (answers at once), synchronous with a promise (a Produce whose flush is under way: the reading
goes on, its reply waits in a bounded queue), or asynchronous (a parked Fetch: this connection, and only it, waits).

What must hold:
- replies leave in the order of their requests; a request without reply (acks=0) leaves no gap;
- nothing is awaited between the check of a request and its effect: handlers of the first two kinds never await;
- small requests that came in one read may be thousands, and each may be costly or have a large answer: after TURN_MS
  this task lets the others run, and after OUTBOX_BYTES it waits until the peer has read;
- rubbish costs one log line and this connection; an unexpected exception costs a traceback and this connection;
  a disk failure stops the process; cancellation passes through.
No channel, nursery, cancel scope or checkpoint per request: measured, each of them costs more than a small request.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from kmirror.effects import Promise
from kmirror.errors import DecodeError, DiskFailure
from kmirror.limits import (
    LAST_REPLIES_MS,
    MAX_ANSWER_ROWS,
    MAX_REQUEST_ROWS,
    OUTBOX_BYTES,
    REPLY_QUEUE_ENTRIES,
    ROWS_ON_LOOP,
    TURN_MS,
)
from kmirror.protocol import registry
from kmirror.protocol.frames import parse_request_header, response_frame
from kmirror.protocol.row_count import row_count
from kmirror.server.context import CloseConnection, Peer, RequestContext
from kmirror.server.receive import BadFrame, PeerClosed, Receiver
from kmirror.server.send import Outbox, Piece, SendFailed
from kmirror.server.waiting import parked

if TYPE_CHECKING:
    from kmirror.server.routes import Route
    from kmirror.server.server import Server

log = logging.getLogger("kmirror.server")

API_VERSIONS_KEY = 18


class _Reply:
    """A place in the reply queue; `pieces` is None until the answer is known."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[Piece] | None) -> None:
        self.pieces = pieces


class Connection:
    def __init__(self, server: Server, sock: socket.socket, peer: Peer) -> None:
        self.peer = peer
        self.last_active_ms = server.world.clock.monotonic_ms()
        self.closed = False
        self._server = server
        self._sock = sock
        self._receiver = Receiver(sock, pool=server.pool, budget=server.budget, max_frame_bytes=server.max_frame_bytes)
        self._outbox = Outbox(sock, threads=server.threads)
        self._queue: deque[_Reply] = deque()
        self._progress: list[Callable[[], None]] = []  # wakes the reading task when the queue or the outbox shrank
        self._scope = trio.CancelScope()
        self._waits = False
        """A handler waits, so that nobody reads from the socket."""

    # --- reading -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until either side ends it. Never raises anything but cancellation."""
        try:
            with self._scope:
                try:
                    await self._serve()
                except (BadFrame, DecodeError, CloseConnection) as error:
                    log.info("%s: closing the connection: %s", self.peer, error)
                    await self._send_last_replies()
        except (PeerClosed, SendFailed, trio.ClosedResourceError) as error:
            log.debug("%s: connection ended: %s", self.peer, error)
        except DiskFailure as error:
            self._server.fatal(error)
        except Exception:
            log.exception("%s: closing the connection after an unexpected error", self.peer)
        finally:
            self.close()

    async def _serve(self) -> None:
        receiver = self._receiver
        clock = self._server.world.clock
        turn_ends_ms = clock.monotonic_ms() + TURN_MS
        while True:
            frame = receiver.next_small()
            if frame is not None:
                await self._answer(frame, frame)
                if self._outbox.added_bytes > OUTBOX_BYTES:
                    await self._flush()
                if clock.monotonic_ms() >= turn_ends_ms:
                    await trio.lowlevel.checkpoint()
                    turn_ends_ms = clock.monotonic_ms() + TURN_MS
            elif (size_bytes := receiver.large_size_bytes()) is not None:
                await self._flush()
                await self._answer_large(size_bytes)
            else:
                await self._flush()
                await receiver.fill()
                self.last_active_ms = clock.monotonic_ms()
            if len(self._queue) >= REPLY_QUEUE_ENTRIES:
                await self._flush()
                while len(self._queue) >= REPLY_QUEUE_ENTRIES:
                    await parked(self._progress.append)

    async def _answer_large(self, size_bytes: int) -> None:
        try:
            view = await self._receiver.read_large(size_bytes)
            self.last_active_ms = self._server.world.clock.monotonic_ms()
            await self._answer(view, None)
        finally:
            self._receiver.release_large()

    async def _answer(self, frame: bytes | memoryview, kept: bytes | None) -> None:
        """Handle one request. `kept` is the frame as bytes of its own, None when it lies in a reused buffer."""
        header, position = parse_request_header(frame)
        route = self._server.routes.find(header.api_key, header.api_version)
        if route is None:
            self._refuse(header.api_key, header.api_version, header.correlation_id)
            return
        if kept is None and not route.keeps_nothing:
            request = await self._decode_large(route, frame, position)
        else:
            request, _ = route.decode(frame, position, len(frame))
        context = RequestContext(self._server.world, self.peer, header.api_version, header.client_id)
        work = None if route.prepare is None else route.prepare(context, request)
        if work is not None:
            await self._flush()
            await self._server.in_thread(work)
            if self.closed:
                return  # and a buffer that was reused may be another connection's by now
        if route.is_async:
            await self._flush()
            self._waits = True
            try:
                answer = await route.handle(context, request)
            finally:
                self._waits = False
        else:
            answer = self._handle_now(route, context, request)
        if answer is None:
            return
        if isinstance(answer, Promise):
            self._defer(route, header.correlation_id, answer)
        elif route.few_rows or (count := row_count(answer, MAX_ANSWER_ROWS)) <= ROWS_ON_LOOP:
            self._reply(response_frame(route.api, route.version, header.correlation_id, answer))
        else:
            if count > MAX_ANSWER_ROWS:
                raise CloseConnection(f"the answer to {route.api.name} has more than {MAX_ANSWER_ROWS} rows")
            self._reply(await self._encode_large(route, header.correlation_id, answer))

    async def _decode_large(self, route: Route, frame: bytes | memoryview, position: int) -> Any:
        """A request with long lists takes long to decode, and what it asks for takes longer."""
        decoded: list[Any] = []

        def decode() -> None:
            request, _ = route.decode(bytes(frame), position, len(frame))
            if row_count(request, MAX_REQUEST_ROWS) > MAX_REQUEST_ROWS:
                raise CloseConnection(f"{route.api.name} has more than {MAX_REQUEST_ROWS} rows")
            decoded.append(request)

        await self._flush()
        await self._server.in_thread(decode)
        return decoded[0]

    async def _encode_large(self, route: Route, correlation_id: int, answer: Any) -> list[Piece]:
        encoded: list[list[Piece]] = []
        await self._server.in_thread(
            lambda: encoded.append(response_frame(route.api, route.version, correlation_id, answer))
        )
        return encoded[0]

    def _handle_now(self, route: Route, context: RequestContext, request: Any) -> Any:
        server = self._server
        server.hold()
        try:
            return route.handle(context, request)
        finally:
            server.release()

    def _refuse(self, api_key: int, version: int, correlation_id: int) -> None:
        """An API or version that is not served. ApiVersions is answered in version 0 (KIP-511), others close."""
        if api_key != API_VERSIONS_KEY:
            raise CloseConnection(f"api key {api_key} version {version} is not served")
        from kmirror.server.handlers.api_versions import unsupported_version

        api = registry.by_key[API_VERSIONS_KEY]
        self._reply(response_frame(api, 0, correlation_id, unsupported_version()))

    # --- answering ---------------------------------------------------------------------------------------------

    def _reply(self, pieces: list[Piece]) -> None:
        if self._queue:
            self._queue.append(_Reply(pieces))
        else:
            self._outbox.add(pieces)

    def _defer(self, route: Route, correlation_id: int, promise: Promise[Any]) -> None:
        if promise.done:
            answer = promise.result()
            if answer is not None:
                self._reply(response_frame(route.api, route.version, correlation_id, answer))
            return
        reply = _Reply(None)
        self._queue.append(reply)

        def answered(settled: Promise[Any]) -> None:
            try:
                answer = settled.result()
                reply.pieces = (
                    [] if answer is None else response_frame(route.api, route.version, correlation_id, answer)
                )
            except CloseConnection as error:
                log.info("%s: closing the connection: %s", self.peer, error)
                self.close()
            except Exception:
                log.exception("%s: closing the connection after an unexpected error", self.peer)
                self.close()
            else:
                self._server.pusher.ready(self)

        promise.then(answered)

    def push(self) -> None:
        """Send the ready head of the queue now; what the socket does not take is left to a task. Never raises."""
        if self.closed:
            return
        queue, outbox = self._queue, self._outbox
        while queue and (pieces := queue[0].pieces) is not None:
            queue.popleft()
            outbox.add(pieces)
        if outbox.draining:
            return
        try:
            if not outbox.flush_nowait():
                outbox.draining = True
                self._server.start_soon(self._drain)
        except SendFailed as error:
            log.debug("%s: connection ended: %s", self.peer, error)
            self.close()
        self._wake()

    async def _drain(self) -> None:
        try:
            await self._outbox.drain()
        except (SendFailed, trio.ClosedResourceError) as error:
            log.debug("%s: connection ended: %s", self.peer, error)
            self.close()
        except Exception:
            log.exception("%s: closing the connection after an unexpected error", self.peer)
            self.close()
        self._wake()

    async def _flush(self) -> None:
        """Send everything that may leave, before this task waits for something else. Raises `SendFailed`."""
        outbox = self._outbox
        if not outbox:
            return
        while outbox.draining:
            await parked(self._progress.append)
        if not outbox.flush_nowait():
            await outbox.drain()

    async def _send_last_replies(self) -> None:
        """Answer what was asked before the request that ends this connection: Kafka had answered it by then."""
        with trio.move_on_after(LAST_REPLIES_MS / 1000):
            while self._queue:
                await parked(self._progress.append)
            await self._flush()

    def _wake(self) -> None:
        if self._progress:
            waiting, self._progress = self._progress, []
            for wake in waiting:
                wake()

    # --- ending ------------------------------------------------------------------------------------------------

    def close_if_vanished(self) -> None:
        """A peer that closed while its request waits is noticed here and not by reading: a parked Fetch would stay for
        its whole max_wait_ms. A peer that sent more before it closed is only noticed afterwards."""
        if self._waits and not self.closed:
            try:
                gone = self._sock.recv(1, socket.MSG_PEEK) == b""
            except BlockingIOError:
                return
            except OSError:
                gone = True
            if gone:
                log.debug("%s: the peer closed while its request waited", self.peer)
                self.close()

    def close(self) -> None:
        """At once, from anywhere on the loop, more than once without harm."""
        if self.closed:
            return
        self.closed = True
        self._scope.cancel()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        self._queue.clear()
        self._receiver.release_large()
        self._wake()
        self._server.forget(self)
