"""Collected samples, their medians and spread, the ratio to Kafka, and the table that shows them."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from conformance.bench.contestants import KAFKA, KMIRROR

CEILING = "program"
"""A blocking program that does the least that the work needs, where no broker can be compared."""


@dataclass(slots=True)
class Row:
    """One thing measured. `samples` maps a contestant to its values, one per pair."""

    name: str
    unit: str
    higher_is_better: bool
    goal: float | None = None  # the ratio to `baseline` that this project set itself
    baseline: str = KAFKA
    limit: float | None = None  # kmirror's own median must not be above this, whatever the others do
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, contestant: str, value: float) -> None:
        self.samples.setdefault(contestant, []).append(value)

    def median(self, contestant: str) -> float | None:
        values = self.samples.get(contestant)
        return statistics.median(values) if values else None

    def ratio(self) -> float | None:
        """kmirror against the baseline, above 1 when kmirror is better."""
        ours, theirs = self.median(KMIRROR), self.median(self.baseline)
        if ours is None or theirs is None or not ours or not theirs:
            return None
        return ours / theirs if self.higher_is_better else theirs / ours

    def verdict(self) -> str:
        ratio = self.ratio()
        ours = self.median(KMIRROR)
        if ours is None or (self.goal is None and self.limit is None) or (self.goal is not None and ratio is None):
            return "-"
        near = self.limit is None or ours <= self.limit
        return "met" if near and (self.goal is None or ratio is None or ratio >= self.goal) else "missed"


def _cell(values: list[float] | None) -> str:
    if not values:
        return "-"
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    if len(values) == 1:
        return f"{middle:,.{digits}f}"
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def show(rows: list[Row], machine: dict[str, str], console: Console) -> None:
    """Prints the machine and one table: medians, with the range of the single runs."""
    for key, value in machine.items():
        console.print(f"{key}: {value}", highlight=False, markup=False)
    contestants = list(dict.fromkeys(name for row in rows for name in row.samples))
    table = Table(title="kmirror and its peers: medians (lowest-highest run)", header_style="bold")
    table.add_column("measure")
    table.add_column("unit")
    for name in contestants:
        table.add_column(name, justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("goal", justify="right")
    table.add_column("")
    for row in rows:
        ratio = row.ratio()
        wanted = [] if row.goal is None else [f"≥ {row.goal:g}"]
        if row.limit is not None:
            wanted.append(f"≤ {row.limit:g} {row.unit}")
        goal = " and ".join(wanted)
        table.add_row(
            row.name,
            row.unit,
            *(_cell(row.samples.get(name)) for name in contestants),
            "-" if ratio is None else f"{ratio:.2f}",
            goal,
            row.verdict(),
        )
    console.print(table)
    console.print("ratio: kmirror against Kafka (mirror: to the blocking program); above 1: kmirror is better")
    for row in rows:
        for name, note in row.notes.items():
            console.print(f"{row.name}, {name}: {note}", highlight=False, markup=False)


def as_json(rows: list[Row], machine: dict[str, str], options: dict[str, Any]) -> str:
    document = {
        "machine": machine,
        "options": options,
        "rows": [
            {
                "name": row.name,
                "unit": row.unit,
                "samples": row.samples,
                "medians": {name: row.median(name) for name in row.samples},
                "ratio": row.ratio(),
                "baseline": row.baseline,
                "goal": row.goal,
                "limit": row.limit,
                "verdict": row.verdict(),
                "notes": row.notes,
            }
            for row in rows
        ],
    }
    return json.dumps(document, indent=1)
