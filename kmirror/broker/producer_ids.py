"""Producer ids: numbers that name idempotent producers, never handed out twice, not even by a source cluster. L3.

kmirror's ids start at (20-bit hash of its cluster id, never 0) x 2^32, so that a source that lives on after a failover
never issues the same ones. They are taken in blocks: the ProducerIdsRecord that names the end of a block is on disk
before the first id of the block is used, so a crash skips ids and never repeats one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from zlib import crc32

from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.limits import PRODUCER_ID_BLOCK
from kmirror.protocol.errors import ErrorCode

HASH_BITS = 20
MAX_PRODUCER_ID = 2**63 - 1


def first_producer_id(cluster_id: str) -> int:
    """Where this cluster's ids begin."""
    prefix = crc32(cluster_id.encode()) & (2**HASH_BITS - 1)
    return (prefix or 1) << 32


class ProducerIdAllocator:
    """`next_id` is the first unused id, `block_end` the first id that no durable record covers.

    `take_block(end)` writes the ProducerIdsRecord and settles when it is on disk.
    """

    def __init__(self, cluster_id: str, recorded_next: int, take_block: Callable[[int], Promise[None]]) -> None:
        self._take_block = take_block
        start = max(first_producer_id(cluster_id), recorded_next)
        self.next_id = start
        self.block_end = start
        self._asked_end = start
        self._waiting: deque[Promise[int]] = deque()
        self._raising: list[tuple[int, Promise[None]]] = []

    def next(self) -> Promise[int]:
        """A producer id nobody else has. Settled at once while the block lasts. ApiError when the disk is full."""
        if self.next_id < self.block_end and not self._waiting:
            self.next_id += 1
            return Promise.of(self.next_id - 1)
        promise: Promise[int] = Promise()
        self._waiting.append(promise)
        self._refill()
        return promise

    def raise_above(self, producer_id: int) -> Promise[None]:
        """Settled when every id from now on, also after a crash, is greater than `producer_id`."""
        if producer_id < self.next_id:
            return Promise.of(None)
        self.next_id = producer_id + 1
        promise: Promise[None] = Promise()
        if self.next_id < self.block_end:
            # The durable record covers the ids up to the block's end only: after a crash the next block starts there.
            promise.resolve(None)
        else:
            self._raising.append((self.next_id, promise))
            self._refill()
        return promise

    def _refill(self) -> None:
        """Ask for one block that begins at `next_id`, unless one that will do is on its way."""
        if self._asked_end > self.next_id and self._asked_end > self.block_end:
            return
        if self.next_id > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
            self._fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids have been used"))
            return
        end = max(self.next_id, self.block_end) + PRODUCER_ID_BLOCK
        self._asked_end = end
        self._take_block(end).then(lambda promise: self._taken(promise, end))

    def _taken(self, promise: Promise[None], end: int) -> None:
        try:
            promise.result()
        except ApiError as error:
            self._asked_end = self.block_end
            self._fail(error)
            return
        self.block_end = max(self.block_end, end)
        raised = [promise for least, promise in self._raising if least < self.block_end]
        self._raising = [item for item in self._raising if item[0] >= self.block_end]
        for waiter in raised:
            waiter.resolve(None)
        while self._waiting and self.next_id < self.block_end:
            self.next_id += 1
            self._waiting.popleft().resolve(self.next_id - 1)
        if self._waiting or self._raising:
            self._refill()

    def _fail(self, error: ApiError) -> None:
        waiting, self._waiting = self._waiting, deque()
        raising, self._raising = self._raising, []
        for promise in waiting:
            promise.fail(error)
        for _least, raised in raising:
            raised.fail(error)
