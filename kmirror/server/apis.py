"""docs/APIS.md from the handlers' docstrings: `python -m kmirror.server.apis > docs/APIS.md`.

Every handler module begins with one line `Name (key): what it is for.` and then has the paragraphs `Versions:`,
`Behaviour:` and `Deviations:`. A test compares them with the table of handlers and with the page.
"""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType
from typing import NamedTuple

from kmirror.protocol import registry
from kmirror.server.handlers import TABLE

PARAGRAPHS = ("Versions", "Behaviour", "Deviations")
_TITLE = re.compile(r"(?P<name>\w+) \((?P<key>\d+)[^)]*\): (?P<purpose>.+)\Z", re.DOTALL)


class Described(NamedTuple):
    """What one handler's docstring says of it."""

    name: str
    key: int
    purpose: str
    paragraphs: dict[str, str]


def module_of(api_key: int) -> ModuleType:
    return importlib.import_module(f"kmirror.server.handlers.{TABLE[api_key].module}")


def describe(module: ModuleType) -> Described:
    """Raises ValueError when the docstring has not the form that the module head asks for."""
    blocks = [" ".join(block.split()) for block in (module.__doc__ or "").strip().split("\n\n")]
    title = _TITLE.match(blocks[0])
    if title is None:
        raise ValueError(f"{module.__name__}: the first line is not 'Name (key): purpose'")
    paragraphs: dict[str, str] = {}
    for block in blocks[1:]:
        head, colon, text = block.partition(": ")
        if not colon or head not in PARAGRAPHS:
            expected = ", ".join(PARAGRAPHS)
            raise ValueError(f"{module.__name__}: a paragraph begins with none of {expected}: {block[:40]}")
        paragraphs[head] = text
    missing = [name for name in PARAGRAPHS if name not in paragraphs]
    if missing:
        raise ValueError(f"{module.__name__}: no paragraph {', '.join(missing)}")
    return Described(title["name"], int(title["key"]), title["purpose"], paragraphs)


def page() -> str:
    """The whole of docs/APIS.md."""
    rows = ["| key | API | advertised | served |", "|---|---|---|---|"]
    sections: list[str] = []
    for key, served in sorted(TABLE.items()):
        found = describe(module_of(key))
        name = registry.by_key[key].name
        advertised = f"{served.min_version}-{served.max_version}"
        rows.append(f"| {key} | {name} | {advertised} | {served.first_version}-{served.max_version} |")
        sections.append(
            "\n\n".join(
                [
                    f"## {name} ({key})",
                    found.purpose[0].upper() + found.purpose[1:],
                    *(f"**{title}.** {found.paragraphs[title]}" for title in PARAGRAPHS),
                ]
            )
        )
    head = (
        "# APIs\n\n"
        "Made from the docstrings of `kmirror/server/handlers` by `python -m kmirror.server.apis`; do not edit.\n"
        "What is not listed is not served: its requests close the connection, as an unknown API does in Kafka."
    )
    return "\n\n".join([head, "\n".join(rows), *sections]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
