"""Fetch (1): read batches, with long polling and incremental sessions (KIP-74, KIP-227, KIP-320, KIP-516).

Versions: 4-18.

Behaviour: the answer comes when `min_bytes` are there, when reading a row fails, when `max_wait_ms` is over, or when
nothing was asked for that is here (rows of unknown partitions end no waiting, and come last); until then the request is
parked and woken by whatever changes one of its partitions. The first batch that contains the offset is returned whole,
whatever the limits. READ_UNCOMMITTED carries no list of aborted transactions; READ_COMMITTED ends at the last stable
offset. Records are never null. From version 13 topics are named by id; a topic that was there when its session was
opened and is gone is UNKNOWN_TOPIC_OR_PARTITION, any other unknown id UNKNOWN_TOPIC_ID.

Deviations: zstd topics below version 10 are UNSUPPORTED_COMPRESSION_TYPE, as KIP-110 has it; Kafka 4 sends the bytes.
Only whole batches are sent, and one row may hold batches of several segments. There are no follower fetches: replica
ids are ignored and everybody reads like a consumer, below the high watermark. Divergence is reported to whoever sends a
last fetched epoch. There is no preferred read replica.
"""

from __future__ import annotations

import trio

from kmirror.broker.fetch import FetchContext, Gathered
from kmirror.protocol.api.fetch import FetchRequest, FetchResponse
from kmirror.server.context import RequestContext
from kmirror.server.waiting import parked

VERSIONS = (4, 18)
FEW_ROWS = True


async def handle(context: RequestContext, request: FetchRequest) -> FetchResponse:
    world = context.world
    fetch = world.fetch_sessions.begin(world, request, context.api_version)
    gathered = fetch.gather()
    if not gathered.ready:
        gathered = await _wait(fetch, gathered)
    return fetch.respond(gathered)


async def _wait(fetch: FetchContext, gathered: Gathered) -> Gathered:
    """Gather again after each change until the answer is ready; at the deadline take what is there."""
    with trio.move_on_after(fetch.max_wait_ms / 1000):
        while not gathered.ready:
            watched = gathered
            try:
                await parked(lambda wake: fetch.subscribe(watched, wake))  # noqa: B023 - called before the next turn
            finally:
                fetch.unsubscribe()
            gathered = fetch.gather()
        return gathered
    return fetch.gather()
