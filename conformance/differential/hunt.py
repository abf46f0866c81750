"""Test builds against a broker that is right: which mistakes the comparison notices, and where."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.differential.peers import started
from conformance.differential.planted import MISTAKES, Mistake
from conformance.differential.runner import Finding, Runner

SEQUENCES = 60
FIRST_SEED = 70_000


@dataclass(frozen=True, slots=True)
class Hunt:
    """`finding` is the first difference, None when there was none in all sequences."""

    mistake: str
    sequences: int
    finding: Finding | None

    def __str__(self) -> str:
        if self.finding is None:
            return f"{self.mistake}: nothing in {self.sequences} sequences"
        where = f"sequence {self.sequences}, step {self.finding.number}: {self.finding.api} v{self.finding.version}"
        return f"{self.mistake}: {where}: {self.finding.differences[0]}"


def hunt(mistake: Mistake | None, reference: str, directory: Path, *, about: str, step_count: int) -> Hunt:
    """Sequences until one differs. Both brokers are new: what they have been told before is the same."""
    name = None if mistake is None else mistake.name
    with (
        started(reference, directory / "left") as left,
        started("kmirror", directory / "right", mistake=name) as right,
    ):
        runner = Runner(left, right)
        try:
            runner.open()
            for done in range(1, SEQUENCES + 1):
                if not runner.sequence(FIRST_SEED + done, step_count, about=about):
                    return Hunt(name or "none", done, runner.report.findings[0])
        finally:
            runner.close()
    return Hunt(name or "none", SEQUENCES, None)


def hunted(reference: str, *, step_count: int) -> Iterator[Hunt]:
    for mistake in MISTAKES.values():
        with tempfile.TemporaryDirectory(prefix="differential-") as directory:
            yield hunt(mistake, reference, Path(directory), about=mistake.about, step_count=step_count)
