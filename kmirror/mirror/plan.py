"""How many bytes the next fetch of each partition asks for. Pure.

A partition begins at `fetch.max.bytes`. While its answers come back full it is behind, and asks for twice as much each
time, up to `MIRROR_MAX_PARTITION_FETCH_BYTES`; an answer that did not fill half of what was asked for takes it back.
All partitions of one request share `fetch.response.max.bytes`; those behind share what is left by turns, so that none
starves: the caller passes them in the order of their last service.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kmirror.limits import MIRROR_MAX_PARTITION_FETCH_BYTES


@dataclass(slots=True)
class Appetite:
    """One partition's fetch size, in bytes."""

    size_bytes: int = 0

    def wanted(self, fetch_max_bytes: int) -> int:
        return max(self.size_bytes, fetch_max_bytes)

    def learn(self, *, asked_bytes: int, received_bytes: int, fetch_max_bytes: int) -> None:
        """Take note of one answer."""
        ceiling = max(fetch_max_bytes, MIRROR_MAX_PARTITION_FETCH_BYTES)
        if received_bytes * 4 >= asked_bytes * 3:
            self.size_bytes = min(max(asked_bytes, fetch_max_bytes) * 2, ceiling)
        elif received_bytes * 2 < asked_bytes:
            self.size_bytes = max(self.size_bytes // 2, fetch_max_bytes)


def shares(wanted: Iterable[int], *, response_max_bytes: int, fetch_max_bytes: int) -> list[int]:
    """What each partition of one request may ask for; the sum may exceed the response's bound only by first shares of
    `fetch_max_bytes` (the source stops at its bound anyway)."""
    left = response_max_bytes
    result = []
    for size in wanted:
        share = max(min(size, left), min(fetch_max_bytes, response_max_bytes))
        result.append(share)
        left = max(0, left - share)
    return result
