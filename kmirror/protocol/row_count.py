"""How many entries the lists of a message have in all: what it costs to handle, to encode and to keep. L1."""

from __future__ import annotations

from typing import Any

from kmirror.protocol.schema import schema_of


def row_count(message: object, at_most: int) -> int:
    """Entries of all lists, nested ones too; counting ends soon after `at_most`."""
    count = 0
    left = [message]
    while left:
        one = left.pop()
        for name, nests in _lists(type(one)):
            rows = getattr(one, name)
            if rows:
                count += len(rows)
                if count > at_most:
                    return count
                if nests:
                    left += rows
    return count


_known: dict[type[Any], tuple[tuple[str, bool], ...]] = {}


def _lists(cls: type[Any]) -> tuple[tuple[str, bool], ...]:
    """The fields that are lists, and whether their entries have lists again.

    A single struct with lists is in no API that is served.
    """
    found = _known.get(cls)
    if found is None:
        found = _known[cls] = tuple(
            (field.name, field.type.struct is not None and bool(_lists(field.type.struct)))
            for field in schema_of(cls).fields
            if field.type.is_array
        )
    return found
