"""Two answers, field by field, under the rules. Pure: no sockets, no clock of its own.

Messages are walked as the dataclasses they are, records as batches and records. A path has Kafka's field names in
snake case; rules are looked up by the path without the indexes.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from conformance.differential.opened import Opened, opened


class Kind(Enum):
    """How a field is compared."""

    SIGN = "both negative or both not"
    IGNORED = "not compared"
    PAIRED = "mapped: a value of the left always meets the same value of the right"
    CLOCK = "equal, or both within the run"
    PRESENCE = "both null or both not"
    UNORDERED = "compared by key, in any order"
    LISTED = "this difference is expected"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rule's condition may look at: the values, what they are fields of, and the step's facts."""

    left: Any
    right: Any
    left_parent: Any
    right_parent: Any
    facts: frozenset[str]
    version: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. `paths` are glob patterns; `detail` is the name of a pairing or the field of a key."""

    paths: tuple[str, ...]
    kind: Kind
    reason: str
    detail: str = ""
    when: Callable[[Seen], bool] | None = None

    def covers(self, path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.paths)


@dataclass(frozen=True, slots=True)
class Difference:
    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.left)} | {_shown(self.right)}"


class Absent:
    """There is no such element on this side."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()
MEMBER_ID = "member id"
UUID_CHARACTERS = 36
"""A member id is the client id or the group instance id, a dash, and one of these, chosen at random."""
_CONSTANTS: frozenset[object] = frozenset({b"", b"\0" * 16, "", None})


def _shown(value: Any) -> str:
    if isinstance(value, bytes | memoryview):
        raw = bytes(value)
        return f"[{len(raw)}] {raw[:40].hex()}"
    text = repr(value)
    return text if len(text) <= 400 else text[:400] + " …"


@dataclass(slots=True)
class Pairings:
    """Values that each broker chooses for itself. Once two met they belong together, both ways, per name."""

    to_right: dict[tuple[str, object], object] = field(default_factory=dict)
    to_left: dict[tuple[str, object], object] = field(default_factory=dict)

    def meet(self, name: str, left: Any, right: Any) -> bool:
        if left in _CONSTANTS or right in _CONSTANTS or _negative(left) or _negative(right):
            return bool(left == right)
        if name == "session" and 0 in (left, right):
            return bool(left == right)
        if name == MEMBER_ID and left[:-UUID_CHARACTERS] != right[:-UUID_CHARACTERS]:
            return False
        known_right, known_left = self.to_right.get((name, left)), self.to_left.get((name, right))
        if known_right is None and known_left is None:
            self.to_right[name, left] = right
            self.to_left[name, right] = left
            return True
        return bool(known_right == right and known_left == left)


def field_names(value: Any) -> tuple[str, ...]:
    """The fields of a message, a struct of one, or an opened batch; () for plain values. All of them have slots."""
    names: tuple[str, ...] = getattr(type(value), "__slots__", ())
    return names


def _negative(value: Any) -> bool:
    return isinstance(value, int) and value < 0


@dataclass(slots=True)
class Comparison:
    """Compares under `rules`; keeps pairings and counts how often each rule was used."""

    rules: Sequence[Rule]
    started_ms: int
    pairings: Pairings = field(default_factory=Pairings)
    used: Counter[int] = field(default_factory=Counter)
    _by_path: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)

    def answers(
        self, api: str, left: Any, right: Any, *, version: int, facts: frozenset[str], now_ms: int
    ) -> list[Difference]:
        walk = _Walk(self, version, facts, now_ms)
        return list(walk.values(api, api, left, right, None, None))

    def rules_at(self, path: str) -> tuple[list[int], list[int]]:
        """Rules that say how to compare, and rules that excuse a difference."""
        found = self._by_path.get(path)
        if found is None:
            covering = [index for index, rule in enumerate(self.rules) if rule.covers(path)]
            found = (
                [index for index in covering if self.rules[index].kind is not Kind.LISTED],
                [index for index in covering if self.rules[index].kind is Kind.LISTED],
            )
            self._by_path[path] = found
        return found


@dataclass(slots=True)
class _Walk:
    comparison: Comparison
    version: int
    facts: frozenset[str]
    now_ms: int

    def values(self, path: str, plain: str, left: Any, right: Any, up_l: Any, up_r: Any) -> Iterator[Difference]:
        """`path` with indexes for people, `plain` without for the rules; `up_l`, `up_r` are what the values are in."""
        if isinstance(left, memoryview) or isinstance(right, memoryview):
            left, right = _hashable(left), _hashable(right)
        seen = Seen(left, right, up_l, up_r, self.facts, self.version)
        how, excuses = self.comparison.rules_at(plain)
        rule = self._first(how, seen)
        found = list(self._compared(rule, path, plain, seen))
        if found and self._first(excuses, seen) is not None:
            return
        yield from found

    def _first(self, candidates: list[int], seen: Seen) -> Rule | None:
        for index in candidates:
            rule = self.comparison.rules[index]
            if rule.when is None or rule.when(seen):
                self.comparison.used[index] += 1
                return rule
        return None

    def _compared(self, rule: Rule | None, path: str, plain: str, seen: Seen) -> Iterator[Difference]:
        left, right = seen.left, seen.right
        kind = None if rule is None else rule.kind
        if kind is Kind.IGNORED:
            return
        if kind is Kind.SIGN:
            equal = (left < 0) == (right < 0)
        elif kind is Kind.PRESENCE:
            equal = (left is None) == (right is None)
        elif kind is Kind.CLOCK:
            equal = left == right or (self._recent(left) and self._recent(right))
        elif kind is Kind.PAIRED and not isinstance(left, list):
            assert rule is not None
            equal = self.comparison.pairings.meet(rule.detail, left, right)
        elif plain.endswith(".records") and isinstance(left, bytes) and isinstance(right, bytes):
            yield from self._batches(path, plain, seen)
            return
        elif isinstance(left, list) and isinstance(right, list):
            yield from self._lists(rule, path, plain, seen)
            return
        elif type(left) is type(right) and field_names(left):
            for name in field_names(left):
                yield from self.values(
                    f"{path}.{name}", f"{plain}.{name}", getattr(left, name), getattr(right, name), left, right
                )
            return
        else:
            equal = bool(left == right)
        if not equal:
            yield Difference(path, left, right)

    def _recent(self, value: Any) -> bool:
        return isinstance(value, int) and self.comparison.started_ms <= value <= self.now_ms

    def _lists(self, rule: Rule | None, path: str, plain: str, seen: Seen) -> Iterator[Difference]:
        if rule is not None and rule.kind is Kind.UNORDERED:
            names, _, second = rule.detail.partition("~")
            left = _numbered(seen.left, lambda element: self._key(element, names, of_left=True))
            right = _numbered(seen.right, lambda element: self._key(element, names, of_left=False))
            if second:
                _match_strangers(left, right, second)
            pairs = [(str(key), left.get(key, ABSENT), right.get(key, ABSENT)) for key in {**left, **right}]
        else:
            count = max(len(seen.left), len(seen.right))
            pairs = [(str(i), _element(seen.left, i), _element(seen.right, i)) for i in range(count)]
        if rule is not None and rule.kind is Kind.PAIRED:
            for label, one, other in pairs:
                if not self.comparison.pairings.meet(rule.detail, one, other):
                    yield Difference(f"{path}[{label}]", one, other)
            return
        for label, one, other in pairs:
            yield from self.values(f"{path}[{label}]", plain, one, other, seen.left_parent, seen.right_parent)

    def _key(self, element: Any, names: str, *, of_left: bool) -> Any:
        """The first of the fields that says anything; an id of the left as the right calls it, so that keys meet."""
        if not names:
            return _hashable(element)
        if "+" in names:
            return tuple(self._key(element, name, of_left=of_left) for name in names.split("+"))
        for name in names.split("|"):
            if name not in field_names(element):
                continue
            value = _hashable(getattr(element, name))
            if value in _CONSTANTS:
                continue
            return self.comparison.pairings.to_right.get((name.replace("_", " "), value), value) if of_left else value
        return None

    def _batches(self, path: str, plain: str, seen: Seen) -> Iterator[Difference]:
        left, right = opened(seen.left), opened(seen.right)
        if "prefix" in self.facts:  # where limits cut, a broker may stop at any whole batch
            count = min(len(left), len(right))
            left, right = left[:count], right[:count]
        yield from self.values(f"{path}.batches", f"{plain}.batches", left, right, seen.left_parent, seen.right_parent)


def _hashable(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def _numbered(elements: list[Any], key_of: Callable[[Any], Any]) -> dict[Any, Any]:
    """Elements by their keys; those with a key that came before by the key and how often."""
    found: dict[Any, Any] = {}
    times: Counter[Any] = Counter()
    for element in elements:
        key = key_of(element)
        times[key] += 1
        found[key if times[key] == 1 else (key, times[key])] = element
    return found


def _match_strangers(left: dict[Any, Any], right: dict[Any, Any], name: str) -> None:
    """Elements whose keys have not met before belong together when the field `name` says so."""
    by_name = {getattr(element, name): key for key, element in right.items() if key not in left}
    for key in [key for key in left if key not in right]:
        if (other := by_name.get(getattr(left[key], name))) is not None:
            left[other] = left.pop(key)


def _element(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else ABSENT


__all__ = ["ABSENT", "Comparison", "Difference", "Kind", "Opened", "Pairings", "Rule", "Seen"]
