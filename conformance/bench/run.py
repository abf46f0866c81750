"""What the measures share: options, contestants in turn, a scratch directory, and the rows collected so far."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from conformance.bench.contestants import Contestant, create
from conformance.bench.results import Row


class Run:
    """One run of the benchmark: options, the scratch directory, and the rows collected so far."""

    def __init__(
        self, *, pairs: int, record_count: int, mirror_mb: int, storage_mb: int, contestants: list[str], scratch: Path
    ) -> None:
        self.pairs = pairs
        self.record_count = record_count
        self.mirror_mb = mirror_mb
        self.storage_mb = storage_mb
        self.contestants = contestants
        self.scratch = scratch
        self.rows: list[Row] = []
        self.console = Console(stderr=True)

    def row(self, name: str, unit: str, **options: object) -> Row:
        row = Row(name, unit, **options)  # type: ignore[arg-type]
        self.rows.append(row)
        return row

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def alternating(self) -> Iterator[tuple[int, str]]:
        """(pair, contestant), the order turned round from pair to pair."""
        for pair in range(self.pairs):
            order = self.contestants if pair % 2 == 0 else self.contestants[::-1]
            for name in order:
                yield pair, name

    @contextlib.contextmanager
    def brokers(self, durability: str) -> Iterator[dict[str, Contestant]]:
        """All contestants, started; killed and their data removed at the end."""
        started: dict[str, Contestant] = {}
        directory = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            for name in self.contestants:
                broker = create(name, directory / name, durability)
                started[name] = broker
                broker.start()
            yield started
        finally:
            for broker in started.values():
                broker.kill()
            shutil.rmtree(directory, ignore_errors=True)
