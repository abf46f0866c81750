"""`kmirror mirror`: create, start, pause, resume, recover, stop, promote, list, describe, delete.

A command that changes a state returns when every partition it concerns has reached it, or after --timeout with exit
status 1 and a table of what is missing. `--no-wait` returns once the broker has accepted.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import trio

from kmirror.cli import client_properties, mirror_actions, mirror_status
from kmirror.cli.display import note, print_json, print_table
from kmirror.cli.failure import BadUsage
from kmirror.cli.mirror_actions import Outcome, Waiting
from kmirror.cli.session import Session, comma_list, connection_options, json_option, key_values
from kmirror.source.cluster import Cluster

DEFAULT_TIMEOUT_S = 30.0
WATCH_INTERVAL_S = 1.0


@click.group("mirror")
def command() -> None:
    """Create, start, watch and fail over mirrors."""


def topics_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--topics", required=True, metavar="LIST", help="Names or regular expressions, separated by commas."
    )(function)


def waiting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --timeout and --no-wait, handed on as one `waiting`."""

    @click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0),
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        help="Seconds to wait for the state.",
    )
    @click.option("--no-wait", is_flag=True, help="Return once the broker has accepted.")
    @functools.wraps(function)
    def with_waiting(*args: Any, timeout_s: float, no_wait: bool, **kwargs: Any) -> Any:
        return function(*args, waiting=Waiting(timeout_s=timeout_s, wait=not no_wait), **kwargs)

    return with_waiting


def topic_list(text: str) -> list[str]:
    """Raises BadUsage for an empty one."""
    items = comma_list(text)
    if not items:
        raise BadUsage("--topics names no topic")
    return items


def report(outcome: Outcome) -> int:
    """Say what was done; a table of what was not. Returns the exit status."""
    for line in outcome.done:
        click.echo(line)
    if outcome.details:
        print_table(outcome.detail_columns, outcome.details)
    for line in outcome.notes:
        note(line)
    if outcome.failed:
        click.echo("Not reached:")
        print_table(("TOPIC", "PARTITION", "STATE", "WHY"), outcome.failed)
    return 1 if outcome.failed else 0


def act(session: Session, action: Callable[..., Awaitable[Outcome]], name: str, topics: str, waiting: Waiting) -> int:
    """One of `mirror_actions` on the topics of a mirror. Returns the exit status."""
    items = topic_list(topics)

    async def body(cluster: Cluster) -> Outcome:
        return await action(cluster, name, items, waiting=waiting)

    return report(session.run(body))


@command.command("create")
@click.argument("name")
@click.option("--source", required=True, metavar="HOST:PORT", help="Bootstrap address of the source cluster.")
@click.option(
    "--source-config",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Kafka client properties for the source.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A mirror setting; may be repeated.")
@click.option("--topics", metavar="LIST", help="Stored as topics.include: names or regular expressions.")
@click.option("--exclude", metavar="LIST", help="Stored as topics.exclude.  [default: __.*]")
@click.option("--start", "start_now", is_flag=True, help="Start the topics of --topics at once.")
@waiting_options
@connection_options
def create(
    session: Session,
    name: str,
    source: str,
    source_config: Path | None,
    settings: tuple[str, ...],
    topics: str | None,
    exclude: str | None,
    start_now: bool,
    waiting: Waiting,
) -> int:
    """Create a mirror of a source cluster."""
    configs = client_properties.read_properties(source_config) if source_config else {}
    properties = client_properties.load(source_config)
    configs["bootstrap.servers"] = source
    if topics is not None:
        configs["topics.include"] = ",".join(comma_list(topics))
    if exclude is not None:
        configs["topics.exclude"] = ",".join(comma_list(exclude))
    configs.update(key_values(settings))
    if start_now and not comma_list(topics):
        raise BadUsage("--start needs --topics")

    async def body(cluster: Cluster) -> Outcome:
        await mirror_actions.create(cluster, name, configs, properties)
        click.echo(f"Created mirror {name} of {source}.")
        if not start_now:
            return Outcome()
        return await mirror_actions.start(
            cluster, name, comma_list(topics), properties=properties, start_from=None, replace=False, waiting=waiting
        )

    return report(session.run(body))


@command.command("start")
@click.argument("name")
@topics_option
@click.option(
    "--from",
    "start_from",
    metavar="earliest|latest|TIME",
    help="Where an empty topic begins. TIME: 2026-11-30T12:00:00 (UTC)",
)
@click.option("--replace", is_flag=True, help="Allow local data that does not come from this source to be cut away.")
@waiting_options
@connection_options
def start(session: Session, name: str, topics: str, start_from: str | None, replace: bool, waiting: Waiting) -> int:
    """Start mirroring topics; returns when they are MIRRORING."""
    starting = functools.partial(
        mirror_actions.start, properties=session.properties, start_from=start_from, replace=replace
    )
    return act(session, starting, name, topics, waiting)


@command.command("stop", short_help="Fail over now, with what has arrived.")
@click.argument("name")
@topics_option
@waiting_options
@connection_options
def stop(session: Session, name: str, topics: str, waiting: Waiting) -> int:
    """Fail over now: the topics become writable here, with what has arrived."""
    return act(session, mirror_actions.stop, name, topics, waiting)


@command.command("promote")
@click.argument("name")
@topics_option
@click.option("--max-lag", type=click.IntRange(0), default=0, show_default=True, help="Stop at this lag or below.")
@waiting_options
@connection_options
def promote(session: Session, name: str, topics: str, max_lag: int, waiting: Waiting) -> int:
    """Fail over without loss: wait until caught up, then stop. Producers to the source have to be stopped first."""
    promoting = functools.partial(mirror_actions.promote, max_lag=max_lag)
    return act(session, promoting, name, topics, waiting)


@command.command("pause")
@click.argument("name")
@topics_option
@waiting_options
@connection_options
def pause(session: Session, name: str, topics: str, waiting: Waiting) -> int:
    """Stop fetching for a while; the topics stay read-only."""
    return act(session, mirror_actions.pause, name, topics, waiting)


@command.command("resume")
@click.argument("name")
@topics_option
@waiting_options
@connection_options
def resume(session: Session, name: str, topics: str, waiting: Waiting) -> int:
    """Go on after a pause."""
    return act(session, mirror_actions.resume, name, topics, waiting)


@command.command("recover", short_help="Let what has FAILED go on at once.")
@click.argument("name")
@topics_option
@waiting_options
@connection_options
def recover(session: Session, name: str, topics: str, waiting: Waiting) -> int:
    """Let what has FAILED go on at once in the state it failed from; partitions that have not failed are left alone."""
    return act(session, mirror_actions.recover, name, topics, waiting)


@command.command("list")
@json_option
@connection_options
def list_mirrors(session: Session, as_json: bool) -> None:
    """All mirrors with their sources."""
    rows = session.run(mirror_actions.listing)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("MIRROR", "TOPICS", "SOURCE-CLUSTER-ID", "SOURCE-BOOTSTRAP-SERVER"),
        [(row["mirror"], len(row["topics"]), row["source_cluster_id"], row["source_bootstrap"]) for row in rows],
        empty="no mirrors; make one with: kmirror mirror create NAME --source HOST:PORT",
    )


@command.command("describe")
@click.argument("name", required=False)
@click.option("--failed", is_flag=True, help="Only what has failed or is tried again, and why.")
@click.option("--watch", is_flag=True, help="Again every second, until interrupted.")
@json_option
@connection_options
def describe(session: Session, name: str | None, failed: bool, watch: bool, as_json: bool) -> None:
    """State, offsets and lag of every mirror partition."""

    def show(rows: list[mirror_status.Row]) -> None:
        if as_json:
            print_json(rows)
        elif failed:
            mirror_status.print_failed(rows)
        else:
            mirror_status.print_rows(rows)

    async def body(cluster: Cluster) -> None:
        for turn in itertools.count():
            if name is None:
                described = await mirror_status.describe(cluster)
            else:
                described = [await mirror_status.describe_one(cluster, name)]
            rows = [row for mirror in described for row in mirror.rows if not failed or mirror_status.in_trouble(row)]
            if sys.stdout.isatty():
                if watch:
                    click.clear()
            elif turn and not as_json:
                click.echo()
            show(rows)
            if not as_json and not failed:
                mirror_status.print_active_groups(described)
                for mirror in described:
                    mirror_status.print_trouble(mirror)
            if not watch:
                return
            await trio.sleep(WATCH_INTERVAL_S)

    session.run(body)


@command.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a mirror whose topics are all stopped. The topics and their data stay."""

    async def lineages(cluster: Cluster) -> list[str]:
        rows = (await mirror_status.describe_one(cluster, name)).rows
        return sorted({row["topic"] for row in rows if row["last_mirror_offset"] is not None})

    if not yes and sys.stdin.isatty():
        topics = session.run(lineages)
        if topics:
            click.confirm(
                f"{', '.join(topics)} failed over from this mirror. A failback to the source asks for the mirror "
                f"by its source. Delete {name}?",
                abort=True,
            )

    async def body(cluster: Cluster) -> None:
        await mirror_actions.delete(cluster, name)

    session.run(body)
    click.echo(f"Deleted mirror {name}.")
