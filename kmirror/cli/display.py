"""How results look: tables, JSON, notes. Colours and box lines only on a terminal; piped output is plain columns.

Data goes to standard output; notes about what is going on go to standard error, so that a pipe carries data only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

NOTHING = "-"
"""What a table shows for an unknown number. In JSON an unknown is null."""
STATE_STYLES = {
    "MIRRORING": "green",
    "STOPPED": "cyan",
    "PAUSED": "yellow",
    "FAILED": "bold red",
    "PREPARING": "yellow",
    "PAUSING": "yellow",
    "STOPPING": "yellow",
}


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "nothing found") -> None:
    """Right-align numbers, colour states. A table without rows becomes one line, `empty`."""
    cells = [[_text(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty)
        return
    if not sys.stdout.isatty():
        _print_plain(columns, cells)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    console = Console()
    narrow = (
        sum(max(len(name), *(len(row[at]) for row in cells)) + 2 for at, name in enumerate(columns)) > console.width
    )
    for position, name in enumerate(columns):
        column = [row[position] for row in cells]
        numeric = all(map(_is_number, column))
        table.add_column(
            name.replace("-", "-\n") if narrow else name,
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=numeric or STATE_STYLES.keys() >= set(column) - {NOTHING},
        )
    for row in cells:
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in row))
    console.print(table)


def _print_plain(columns: Sequence[str], cells: list[list[str]]) -> None:
    widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(columns)]
    right = [all(_is_number(row[at]) for row in cells) for at in range(len(columns))]
    for row in [list(columns), *cells]:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _text(value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _is_number(cell: str) -> bool:
    return cell == NOTHING or cell.lstrip("-").isdigit()


def print_json(value: Any) -> None:
    """One document, indented; bytes must have been turned into text before."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """One document a line, for output that goes on."""
    click.echo(json.dumps(value, ensure_ascii=False))


def note(message: str) -> None:
    """Something worth knowing that is not the result."""
    click.echo(message, err=True)


def known(number: int) -> int | None:
    """A number of the protocol, in which a negative one stands for an unknown."""
    return None if number < 0 else number


def iso_time(time_ms: int) -> str:
    """ISO 8601, UTC, with milliseconds."""
    when = datetime.fromtimestamp(time_ms / 1000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def readable(data: bytes | bytearray | memoryview | None) -> str | None:
    """Bytes as text where they are text, else as `0x...`. Control characters never reach the terminal raw."""
    if data is None:
        return None
    raw = bytes(data)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return "0x" + raw.hex()
    return text if all(char.isprintable() or char == "\t" for char in text) else "0x" + raw.hex()
