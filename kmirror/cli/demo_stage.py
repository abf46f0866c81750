"""What the parts of the demo share: numbered steps with checks, mirroring, comparing, and tables of what came out."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kmirror.cli import mirror_actions
from kmirror.cli.client_properties import ClientProperties
from kmirror.cli.comparison import Result
from kmirror.cli.demo_source import Written
from kmirror.cli.display import print_table
from kmirror.cli.failure import Failure
from kmirror.cli.mirror_actions import Outcome, Waiting
from kmirror.cli.mirror_status import Row, describe_one, failed_for_good, print_rows, wait_for
from kmirror.cli.verify import print_results, verify
from kmirror.source.cluster import Cluster

WAITING = Waiting(timeout_s=30.0)


class Stage:
    """Numbers the steps, says what is done and seen, and stops at the first check that fails."""

    def __init__(self) -> None:
        self.number = 0
        self.checks = 0

    def step(self, title: str, *commands: str) -> None:
        self.number += 1
        click.echo()
        click.secho(f"{self.number}. {title}", bold=True)
        for command in commands:
            click.secho(f"   $ kmirror {command}", dim=True)

    def saw(self, text: str) -> None:
        for line in text.splitlines():
            click.echo(f"   {line}")

    def check(self, held: bool, what: str) -> None:
        """Raises Failure unless `held`."""
        if not held:
            raise Failure(f"step {self.number}: this does not hold: {what}")
        self.checks += 1
        click.echo(f"   {click.style('ok', fg='green')}  {what}")

    def finish(self, outcome: Outcome) -> None:
        """Say what a mirror command did. Raises Failure when it did not do all."""
        for line in (*outcome.done, *outcome.notes):
            self.saw(line)
        if outcome.failed:
            print_table(("TOPIC", "PARTITION", "STATE", "WHY"), outcome.failed)
            raise Failure(f"step {self.number}: not reached, see the table")


@dataclass(slots=True)
class Plan:
    """What is mirrored. `directory` and `written`: of the source in this process; None for somebody's own cluster."""

    source: str
    topics: list[str]
    directory: Path | None = None
    written: Written | None = None
    rows: list[Row] = field(default_factory=list)


async def create_and_start(stage: Stage, cluster: Cluster, mirror: str, source: str, topics: list[str]) -> list[Row]:
    """Mirror `topics` of `source` at `cluster` and wait until all has been copied. Raises Failure."""
    text = ",".join(topics)
    configs = {"bootstrap.servers": source, "topics.include": text}
    await mirror_actions.create(cluster, mirror, configs, ClientProperties())
    outcome = await mirror_actions.start(
        cluster, mirror, topics, properties=ClientProperties(), start_from=None, replace=False, waiting=WAITING
    )
    stage.finish(outcome)
    names = {row["topic"] for row in (await describe_one(cluster, mirror)).rows}
    if not names:
        raise Failure(f"the source has no topic that matches {text}")
    rows = await _watch_lag(cluster, mirror, names)
    print_rows(rows)
    stage.check(all(row["state"] == "MIRRORING" for row in rows), "every partition is MIRRORING")
    stage.check(all(row["lag"] == 0 for row in rows), "every partition has caught up: lag 0")
    return rows


async def _watch_lag(cluster: Cluster, mirror: str, names: set[str]) -> list[Row]:
    """Wait for lag 0, as long as anything arrives, with a bar per topic (on a terminal)."""
    columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("offsets"))
    with Progress(*columns, console=Console(), disable=not sys.stdout.isatty()) as progress:
        bars = {name: progress.add_task(name, total=None) for name in sorted(names)}

        def show(rows: list[Row]) -> None:
            for name, bar in bars.items():
                mine = [row for row in rows if row["topic"] == name]
                progress.update(
                    bar,
                    total=sum(row["source_offset"] or 0 for row in mine),
                    completed=sum(row["destination_offset"] or 0 for row in mine),
                )

        copied = -1
        while True:
            waited = await wait_for(
                cluster,
                mirror,
                names,
                reached=lambda row: bool(row["state"] == "MIRRORING" and row["lag"] == 0),
                hopeless=failed_for_good,
                timeout_s=WAITING.timeout_s,
                watch=show,
            )
            before, copied = copied, sum(row["destination_offset"] or 0 for row in waited.rows)
            if waited.reached or copied <= before or any(map(failed_for_good, waited.rows)):
                return waited.rows


async def compare_all(stage: Stage, source: Cluster, destination: Cluster, mirror: str) -> list[Result]:
    """Every batch of the mirror. Raises Failure when one differs."""
    results = await verify(source, destination, await describe_one(destination, mirror), [], show_progress=True)
    print_results(results)
    stage.check(all(result.identical for result in results), "no byte differs")
    return results
