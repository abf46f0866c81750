"""Asking the broker that coordinates a group or a transactional id, wherever it is now.

Coordinators move, load their state, and are not there before their topic is made. All three are answered with an error
that means "ask again": that is done here, for a bounded time, so that callers see answers only. A connection lost in
the middle is opened anew: every request that goes this way may be sent twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from kmirror.cli.failure import Failure
from kmirror.cli.patience import Patience
from kmirror.cli.session import refusal
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.errors import ErrorCode
from kmirror.source.cluster import Cluster, Node
from kmirror.source.connection import Connection
from kmirror.source.errors import PeerClosed, PeerUnreachable

GROUP, TRANSACTION = 0, 1
"""Kinds of keys, as FindCoordinator numbers them."""
BATCHED_FIND_VERSION = 4
"""From this version on FindCoordinator carries a list of keys."""
PATIENCE_S = 30.0
ELSEWHERE = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
ASK_AGAIN = ELSEWHERE | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

Build = Callable[[Connection], tuple[Any, int | None]]
"""Makes the request for the connection it goes out on, and its version (None: the newest both sides know)."""


def as_is(message: Any) -> Build:
    return lambda _: (message, None)


def own_code(response: Any) -> int:
    return int(response.error_code)


class Coordinator:
    """The coordinator of one group (`GROUP`) or transactional id (`TRANSACTION`)."""

    def __init__(self, cluster: Cluster, key: str, kind: int = GROUP) -> None:
        self.cluster = cluster
        self.key = key
        self.kind = kind
        self.node: Node | None = None
        self._was_reached = False

    async def ask(
        self,
        build: Build,
        code_of: Callable[[Any], int] = own_code,
        *,
        timeout_ms: int | None = None,
        again: frozenset[int] = frozenset(),
        patience_s: float = PATIENCE_S,
    ) -> Any:
        """The answer, whatever code it carries, once it is not one of `ASK_AGAIN` and `again` any more.

        After `patience_s` the last answer is handed out as it is. Raises Failure (no coordinator can be found),
        PeerError, DecodeError.
        """
        patience = Patience(trio.current_time() + patience_s)
        while True:
            over = patience.over
            try:
                connection = await self._connection(patience.deadline_s)
                message, version = build(connection)
                response = await connection.request(message, version, timeout_ms=timeout_ms)
            except (PeerClosed, PeerUnreachable):
                self.node = None
                if over or not self._was_reached:
                    raise
            else:
                self._was_reached = True
                code = code_of(response)
                if over or (code not in ASK_AGAIN and code not in again):
                    return response
                if code in ELSEWHERE:
                    self.node = None
            await patience.pause()

    async def _connection(self, deadline_s: float) -> Connection:
        if self.node is None:
            self.node = await self.find(deadline_s)
        return await self.cluster.connection(self.node.node_id, purpose=f"coordinator {self.kind} {self.key}")

    async def hang_up(self) -> None:
        """Close the connection, so that the next request does not wait behind one that is still unanswered."""
        if self.node is not None:
            (await self._connection(trio.current_time())).close()

    async def find(self, deadline_s: float | None = None) -> Node:
        """Who coordinates the key. Raises Failure when that stays unknown, PeerError, DecodeError."""
        patience = Patience(trio.current_time() + PATIENCE_S if deadline_s is None else deadline_s)
        while True:
            connection = await self.cluster.connection()
            batched = connection.version_of("FindCoordinator") >= BATCHED_FIND_VERSION
            request = FindCoordinatorRequest(key_type=self.kind)
            if batched:
                request.coordinator_keys = [self.key]
            else:
                request.key = self.key
            response = await connection.request(request)
            answer = response.coordinators[0] if batched else response
            if answer.error_code == ErrorCode.NONE:
                node = Node(answer.node_id, answer.host, answer.port)
                self.cluster.nodes[node.node_id] = node
                return node
            if answer.error_code not in ASK_AGAIN or patience.over:
                what = "transactional id" if self.kind == TRANSACTION else "group"
                raise Failure(
                    f"no coordinator for {what} {self.key}: {refusal(answer.error_code, answer.error_message)}"
                )
            await patience.pause()
