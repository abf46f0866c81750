"""`kmirror verify`: proves that the bytes of a mirror are the source's bytes. Reads only, on both sides."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kmirror.cli import client_properties
from kmirror.cli.comparison import Result, Task, compare
from kmirror.cli.display import print_json, print_table
from kmirror.cli.failure import CannotReach, Failure
from kmirror.cli.mirror_status import Description, describe_one
from kmirror.cli.queries import topic_matcher
from kmirror.cli.session import Session, comma_list, connection_options, json_option
from kmirror.errors import DecodeError
from kmirror.source.cluster import Cluster
from kmirror.source.errors import PeerError


@click.command("verify")
@click.argument("name")
@click.option("--topics", metavar="LIST", help="Only these: names or regular expressions, separated by commas.")
@click.option("--source", metavar="HOST:PORT", help="Where to read the source.  [default: the mirror's address]")
@click.option(
    "--source-config",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Kafka client properties for the source.",
)
@json_option
@connection_options
def command(
    session: Session, name: str, topics: str | None, source: str | None, source_config: Path | None, as_json: bool
) -> int:
    """Compare a mirror with its source, batch by batch. Exit status 0 only if nothing differs."""
    properties = client_properties.load(source_config)

    async def body(cluster: Cluster) -> list[Result]:
        mirror = await describe_one(cluster, name)
        address = source or mirror.source_bootstrap
        origin = Session(address, properties).cluster()
        try:
            return await verify(origin, cluster, mirror, comma_list(topics), show_progress=not as_json)
        except (PeerError, DecodeError) as error:
            raise CannotReach(
                f"the comparison of mirror {name} was broken off: {error}",
                next_step=f"Check that both clusters answer; the source is {address}.",
            ) from error
        finally:
            origin.close()

    results = session.run(body)
    if as_json:
        print_json([result.as_json() for result in results])
    else:
        print_results(results)
    return 0 if all(result.identical for result in results) else 1


async def verify(
    source: Cluster, destination: Cluster, mirror: Description, items: list[str], *, show_progress: bool = False
) -> list[Result]:
    """Every partition of the mirror's topics that `items` names or matches (none: all). Raises Failure for none."""
    matching = topic_matcher(items)
    rows = [row for row in mirror.rows if not items or matching.fullmatch(row["topic"])]
    if not rows:
        raise Failure(
            f"mirror {mirror.name} has no such topics",
            next_step=f"See what it has with: kmirror mirror describe {mirror.name}",
        )
    compacted = await _compacted(source, destination, sorted({row["topic"] for row in rows}))
    results = []
    with _progress(enabled=show_progress) as progress:
        for row in rows:
            task = Task(
                topic=row["topic"],
                partition=row["partition"],
                state=row["state"],
                last_mirror_offset=row["last_mirror_offset"] if row["state"] == "STOPPED" else None,
                compacted=row["topic"] in compacted,
            )
            bar = progress.add_task(f"{task.topic}-{task.partition}", total=row["destination_offset"])

            def advance(offsets: int, bar: Any = bar) -> None:
                progress.advance(bar, offsets)

            result = await compare(source, destination, task, advance)
            progress.update(bar, total=result.end, completed=result.end)
            results.append(result)
    return results


def _progress(*, enabled: bool) -> Progress:
    """On standard error, and only when somebody looks at it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not (enabled and sys.stderr.isatty()))


async def _compacted(source: Cluster, destination: Cluster, topics: list[str]) -> set[str]:
    """Topics that either side may clean. A source too old to answer counts as one that does not."""
    found = set()
    for cluster in (source, destination):
        for topic, configs in (await cluster.describe_topic_configs(topics)).items():
            policy = configs.entries.get("cleanup.policy")
            if policy is not None and "compact" in (policy.value or ""):
                found.add(topic)
    return found


def print_results(results: list[Result]) -> None:
    print_table(
        ("TOPIC", "PARTITION", "STATE", "FROM", "TO", "BATCHES", "BYTES", "RESULT"),
        [
            (
                result.topic,
                result.partition,
                result.state,
                result.start,
                result.end,
                result.batch_count,
                result.size_bytes,
                "identical" if result.identical else f"DIFFERS at offset {result.difference_offset}",
            )
            for result in results
        ],
    )
    for result in results:
        where = f"{result.topic}-{result.partition}"
        if result.difference:
            click.echo(f"{where} differs at offset {result.difference_offset}: {result.difference}")
        for reason in result.not_compared:
            click.echo(f"{where} not compared: {reason}")
