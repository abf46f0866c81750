"""What the command line asks the source cluster itself: its id, and which topics match a list.

KIP-1279 leaves this to the admin client: the broker that gets CreateClusterMirror makes no connection. When the source
cannot be reached from here, `start` still works: the broker looks the topics up by itself at its next refresh.
"""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cli.client_properties import ClientProperties
from kmirror.cli.failure import CannotReach, Failure
from kmirror.cli.queries import is_pattern, topic_matcher
from kmirror.cli.session import Session
from kmirror.errors import DecodeError
from kmirror.protocol import uuids
from kmirror.source.errors import PeerError

NOT_FOUND = 3


@dataclass(frozen=True, slots=True)
class SourceTopic:
    name: str
    topic_id: bytes
    partition_count: int


@dataclass(slots=True)
class Resolved:
    """`topics`: what the source has of the list. `unknown`: plain names it does not have. `reason`: not reachable."""

    topics: list[SourceTopic]
    unknown: list[str]
    patterns: list[str]
    reason: str = ""


async def cluster_id_of(bootstrap: str, properties: ClientProperties) -> str:
    """Raises CannotReach when the source does not answer, Failure when it has no cluster id."""
    cluster = Session(bootstrap, properties).cluster()
    try:
        await cluster.metadata([])
    except (PeerError, DecodeError) as error:
        raise CannotReach(
            f"cannot reach the source at {bootstrap}: {error}",
            next_step="If only the broker can reach it, give its id: --set source.cluster.id=ID",
        ) from error
    finally:
        cluster.close()
    if not cluster.cluster_id:
        raise Failure(f"the source at {bootstrap} has no cluster id (Kafka before 0.10.1)")
    return cluster.cluster_id


async def resolve(bootstrap: str, properties: ClientProperties, items: list[str], excluded: list[str]) -> Resolved:
    """Topics of the source that the list names or matches. A plain name is never excluded: it was asked for.

    An expression matches no internal topic, as in the broker's discovery: those are each cluster's own.
    """
    patterns = [item for item in items if is_pattern(item)]
    names = [item for item in items if not is_pattern(item)]
    matching, excluding = topic_matcher(patterns), topic_matcher(excluded)
    cluster = Session(bootstrap, properties).cluster()
    try:
        response = await cluster.metadata(None if patterns else names)
    except (PeerError, DecodeError) as error:
        topics = [SourceTopic(name, uuids.ZERO, 0) for name in names]
        return Resolved(topics, [], patterns, reason=str(error))
    finally:
        cluster.close()
    topics = []
    for topic in sorted((topic for topic in response.topics if topic.name), key=lambda topic: topic.name):
        matches = matching.fullmatch(topic.name) and not excluding.fullmatch(topic.name) and not topic.is_internal
        wanted = topic.name in names or matches
        if wanted and not topic.error_code:
            topics.append(SourceTopic(topic.name, topic.topic_id, len(topic.partitions)))
    found = {topic.name for topic in topics}
    return Resolved(topics, [name for name in names if name not in found], patterns)
