"""What the periodic look at the source changes here: topics, partitions, configs. Pure differences, no action.

Patterns are Google RE2 (they come from outside), combined as a full match, literals among them; exclude wins over
include (docs/MIRRORING.md, "Sync").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import re2

from kmirror.errors import ApiError
from kmirror.mirror.config import NEVER_SYNCED
from kmirror.mirror.states import Desired
from kmirror.protocol.errors import ErrorCode

DELETED_AFTER_OBSERVATIONS: Final = 2
"""One missing answer may be a broker that has not caught up; two in a row are a deleted topic."""


class Patterns:
    """A list of regular expressions and literals that matches whole names."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._literals = frozenset(self.patterns)
        self._compiled: list[Any] = [compile_pattern(pattern) for pattern in self.patterns]

    def matches(self, name: str) -> bool:
        return name in self._literals or any(p.fullmatch(name) is not None for p in self._compiled)

    def __bool__(self) -> bool:
        return bool(self.patterns)


def compile_pattern(pattern: str) -> Any:
    """Raises ApiError INVALID_REGULAR_EXPRESSION (128)."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r}: {_text(error)}") from None


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def is_literal(pattern: str) -> bool:
    """Whether a pattern can only mean the topic of that name (dots are ordinary in topic names)."""
    return not set(pattern) & set("\\^$|?*+()[]{}")


@dataclass(frozen=True, slots=True)
class Lists:
    """topics.include and topics.exclude."""

    include: tuple[str, ...]
    exclude: tuple[str, ...]

    def wants(self, name: str) -> bool:
        return Patterns(self.include).matches(name) and not Patterns(self.exclude).matches(name)


def lists_after_start(lists: Lists, *, names: Iterable[str], include: Iterable[str], exclude: Iterable[str]) -> Lists:
    """StartMirrorTopics: names and include patterns go to include (and out of exclude), exclude patterns the other
    way; exclude wins. Raises ApiError 128 for a bad pattern."""
    added = list(dict.fromkeys([*names, *include]))
    dropped = list(dict.fromkeys(exclude))
    for pattern in [*added, *dropped]:
        compile_pattern(pattern)
    new_include = [p for p in dict.fromkeys([*lists.include, *added]) if p not in dropped]
    new_exclude = [p for p in lists.exclude if p not in added or p in dropped]
    new_exclude += [p for p in dropped if p not in new_exclude]
    return Lists(tuple(new_include), tuple(new_exclude))


def lists_after_stop(lists: Lists, patterns: Iterable[str]) -> Lists:
    """StopMirrorTopics: a listed pattern leaves include, any other is added to exclude. Raises ApiError 128."""
    include, exclude = list(lists.include), list(lists.exclude)
    for pattern in patterns:
        compile_pattern(pattern)
        if pattern in include:
            include.remove(pattern)
        elif pattern not in exclude:
            exclude.append(pattern)
    return Lists(tuple(include), tuple(exclude))


def discovered(lists: Lists, source_topics: Iterable[str], associated: Iterable[str]) -> list[str]:
    """Source topics to start: wanted, and not associated yet in whatever state."""
    include, exclude, known = Patterns(lists.include), Patterns(lists.exclude), set(associated)
    return sorted(n for n in source_topics if n not in known and include.matches(n) and not exclude.matches(n))


def excluded(lists: Lists, topics: Mapping[str, Desired]) -> list[str]:
    """Topics of the mirror that now match exclude and are not stopped."""
    exclude = Patterns(lists.exclude)
    return sorted(n for n, desired in topics.items() if desired is not Desired.STOPPED and exclude.matches(n))


def config_changes(
    source: Mapping[str, str | None], local: Mapping[str, str], mirrored: Iterable[str], exclude: Sequence[str]
) -> dict[str, str | None]:
    """Changes for one topic: name to new value, None = remove the override.

    `source`: dynamic topic configs of the source. `local`: overrides here. `mirrored`: overrides that the mirror set
    earlier; only those are removed when the source has none any more.
    """
    skipped = NEVER_SYNCED | set(exclude)
    changes: dict[str, str | None] = {
        name: value
        for name, value in sorted(source.items())
        if name not in skipped and value is not None and local.get(name) != value
    }
    for name in sorted(mirrored):
        if name not in skipped and source.get(name) is None and name in local:
            changes[name] = None
    return changes


def grown(source_partitions: Iterable[int], local_count: int) -> int | None:
    """The new partition count when the source has more; the destination never shrinks."""
    count = max(source_partitions, default=-1) + 1
    return count if count > local_count else None


@dataclass(slots=True)
class Missing:
    """Consecutive metadata answers in which a topic did not exist."""

    counts: dict[str, int] = field(default_factory=dict)

    def observe(self, topic: str, *, missing: bool) -> bool:
        """True once the topic counts as deleted."""
        if not missing:
            self.counts.pop(topic, None)
            return False
        self.counts[topic] = self.counts.get(topic, 0) + 1
        return self.counts[topic] >= DELETED_AFTER_OBSERVATIONS
