"""Questions that several commands ask a cluster: which topics, which offsets.

Every function answers with plain values or raises Failure; requests go to the partition's leader, so the same code
works against a real cluster of many brokers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.session import refusal
from kmirror.source.cluster import Cluster


def is_pattern(item: str) -> bool:
    """Whether an item of a topic list is a regular expression. A dot alone does not make it one: topics have dots."""
    return any(char in "\\^$*+?()[]{}|" for char in item)


def topic_matcher(items: Sequence[str]) -> re.Pattern[str]:
    """Names and regular expressions; the whole name has to match, a plain name matches itself. Raises BadUsage."""
    for item in filter(is_pattern, items):
        try:
            re.compile(item)
        except re.error as error:
            raise BadUsage(f"'{item}' is neither a name nor a regular expression: {error}") from error
    return re.compile("|".join(f"(?:{item if is_pattern(item) else re.escape(item)})" for item in items) or r"(?!)")


def names_among(items: Sequence[str], known: Iterable[str]) -> set[str]:
    """The names in `items` as they are, and those of `known` that its expressions match. Raises BadUsage."""
    matching = topic_matcher([item for item in items if is_pattern(item)])
    names = {item for item in items if not is_pattern(item)}
    return names | {name for name in known if matching.fullmatch(name)}


async def topics_named(cluster: Cluster, names: Sequence[str]) -> list[Any]:
    """Metadata of these topics (none named: all that are not internal), by name. Raises Failure for an unknown one."""
    response = await cluster.metadata(list(names) if names else None)
    unknown = [f"{topic.name}: {refusal(topic.error_code, None)}" for topic in response.topics if topic.error_code]
    if unknown and names:
        raise Failure(
            "; ".join(unknown),
            next_step="List what there is with: kmirror topic list; make one with: kmirror topic create",
        )
    topics = [topic for topic in response.topics if not topic.error_code and (names or not topic.is_internal)]
    return sorted(topics, key=lambda topic: topic.name)


async def offsets_at(cluster: Cluster, topic: str, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
    """ListOffsets of each partition; `timestamp` in ms, or `calls.EARLIEST`, `calls.LATEST`. Raises Failure."""
    answers = await cluster.list_offsets({(topic, index): timestamp for index in partitions})
    refused = {key: answer.error_code for key, answer in answers.items() if answer.error_code}
    if refused:
        text = "; ".join(f"{name}-{index}: {refusal(code, None)}" for (name, index), code in sorted(refused.items()))
        raise Failure(f"offsets cannot be read: {text}")
    return {index: answer.offset for (_, index), answer in answers.items()}
