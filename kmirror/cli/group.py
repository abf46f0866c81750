"""`kmirror group`: list, describe, offsets, reset, delete; what operators know from kafka-consumer-groups.

Works against any Kafka since 2.1. Exit status 1 when a group is not there or anything was refused; the table or the
message says which and why.
"""

from __future__ import annotations

from typing import Any

import click

from kmirror.cli import group_offsets, group_reset, group_status
from kmirror.cli.coordinator import Coordinator, as_is
from kmirror.cli.display import known, note, print_json, print_table
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.group_status import Group, Listed
from kmirror.cli.queries import topic_matcher
from kmirror.cli.session import Session, comma_list, connection_options, json_option, refusal
from kmirror.protocol.api.delete_groups import DeleteGroupsRequest
from kmirror.protocol.errors import ErrorCode
from kmirror.source.calls import Partition
from kmirror.source.cluster import Cluster

STATES = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Dead",
)
"""Of groups of any type; a broker may know others, so none is refused."""


@click.group("group")
def command() -> None:
    """List, describe, move and delete consumer groups."""


@command.command("list")
@click.option("--state", "states", metavar="LIST", help="Only groups in these states, such as Stable,Empty.")
@json_option
@connection_options
def list_groups(session: Session, states: str | None, as_json: bool) -> None:
    """All groups with their states."""
    wanted = {state.lower() for state in comma_list(states)}
    if states is not None and not wanted:
        raise BadUsage("--state names no state")
    strange = wanted - {state.lower() for state in STATES}

    async def body(cluster: Cluster) -> list[Listed]:
        groups = await group_status.with_states(cluster, await group_status.listing(cluster))
        return [group for group in groups if not wanted or (group.state or "").lower() in wanted]

    groups = session.run(body)
    if as_json:
        print_json(
            [
                {
                    "group": group.group,
                    "type": group.kind,
                    "protocol_type": group.protocol_type or None,
                    "state": group.state,
                }
                for group in groups
            ]
        )
        return
    print_table(
        ("GROUP", "TYPE", "PROTOCOL-TYPE", "STATE"),
        [(group.group, group.kind, group.protocol_type, group.state) for group in groups],
        empty=f"no groups; Kafka's states are {', '.join(STATES)}" if strange else "no groups",
    )


@command.command("describe", short_help="State, members, offsets and lag of groups.")
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option("--members", is_flag=True, help="The members and what each reads.")
@json_option
@connection_options
def describe(session: Session, names: tuple[str, ...], members: bool, as_json: bool) -> int:
    """State, members, committed offsets and lag of groups; of all without a name."""

    async def body(cluster: Cluster) -> list[Group]:
        wanted = names or [group.group for group in await group_status.listing(cluster)]
        return [await group_status.describe(cluster, name) for name in wanted]

    groups = session.run(body)
    found = [group for group in groups if group.exists]
    if as_json:
        print_json([group_status.as_json(group) for group in found])
    elif not groups:
        click.echo("no groups")
    else:
        for position, group in enumerate(found):
            if position:
                click.echo()
            group_status.print_group(group, members=members)
    missing = [group.group for group in groups if not group.exists]
    if missing:
        raise Failure(
            f"there is no group {', '.join(missing)}", next_step="List what there is with: kmirror group list"
        )
    return 0


@command.command("offsets", short_help="What a group has committed; --delete removes it.")
@click.argument("name", metavar="GROUP")
@click.option("--topics", metavar="LIST", help="Only these: names or regular expressions, separated by commas.")
@click.option("--delete", "delete_them", is_flag=True, help="Delete them, so that the group begins anew there.")
@json_option
@connection_options
def offsets(session: Session, name: str, topics: str | None, delete_them: bool, as_json: bool) -> int:
    """What a group has committed, with leader epochs and metadata; with --delete they are removed."""
    items = comma_list(topics)
    if delete_them and not items:
        raise BadUsage("--delete needs --topics: whose offsets shall go ('.*' for all)")
    matching = topic_matcher(items)

    async def body(cluster: Cluster) -> tuple[list[group_status.Row], dict[Partition, int]]:
        group = await group_status.describe(cluster, name)
        group_status.check_exists(group)
        rows = [row for row in group.rows if row.committed and (not items or matching.fullmatch(row.topic))]
        codes: dict[Partition, int] = {}
        if delete_them and rows:
            codes = await group_offsets.delete(Coordinator(cluster, name), [(row.topic, row.partition) for row in rows])
        return rows, codes

    rows, codes = session.run(body)
    if delete_them and not rows:
        raise Failure(
            f"group {name} has no offsets of {','.join(items)}",
            next_step=f"See what it has with: kmirror group offsets {name}",
        )
    errors = {key: refusal(code, None) for key, code in codes.items() if code}
    if as_json:
        documents = [group_status.row_as_json(row) for row in rows]
        for document in documents if delete_them else ():
            document["error"] = errors.get((document["topic"], document["partition"]))
        print_json(documents)
    else:
        _print_offsets(rows, errors, deleted=delete_them)
    return 1 if errors else 0


def _print_offsets(rows: list[group_status.Row], errors: dict[Partition, str], *, deleted: bool) -> None:
    cells: list[list[Any]] = []
    for row in rows:
        committed = row.committed
        assert committed is not None
        epoch = known(committed.leader_epoch)
        cells.append(
            [row.topic, row.partition, committed.offset, epoch, row.log_end_offset, row.lag, committed.metadata]
        )
        if deleted:
            cells[-1].append(errors.get((row.topic, row.partition), "deleted"))
    columns = ["TOPIC", "PARTITION", "COMMITTED-OFFSET", "LEADER-EPOCH", "LOG-END-OFFSET", "LAG", "METADATA"]
    print_table([*columns, "RESULT"] if deleted else columns, cells, empty="no committed offsets")


@command.command("reset")
@click.argument("name", metavar="GROUP")
@click.option("--topics", required=True, metavar="LIST", help="Names, or expressions over what the group has read.")
@click.option("--partitions", metavar="LIST", help="Only these partitions of each topic.")
@click.option("--to", "to", required=True, metavar="earliest|latest|OFFSET|TIME", help="TIME: 2026-11-30T12:00:00")
@click.option("--dry-run", is_flag=True, help="Show it, change nothing.")
@json_option
@connection_options
def reset(
    session: Session, name: str, topics: str, partitions: str | None, to: str, dry_run: bool, as_json: bool
) -> int:
    """Move a group that has no members to other offsets. A group that is not there is made."""
    items, where = comma_list(topics), group_reset.target(to)
    if not items:
        raise BadUsage("--topics names no topic")
    only = [_partition(text) for text in comma_list(partitions)] if partitions is not None else None

    async def body(cluster: Cluster) -> list[group_reset.Move]:
        group = await group_status.describe(cluster, name)
        group_reset.check_inactive(group)
        found = await group_reset.partitions_of(cluster, group, items, only)
        moves = await group_reset.plan(cluster, group, found, where)
        if not dry_run:
            await group_reset.carry_out(Coordinator(cluster, name), moves)
        return moves

    moves = session.run(body)
    if as_json:
        print_json([group_reset.as_json(move) for move in moves])
    else:
        print_table(
            ("TOPIC", "PARTITION", "BEFORE", "AFTER", "NOTE"),
            [(move.topic, move.partition, move.before, move.after, move.error or move.note) for move in moves],
            empty="nothing to move",
        )
    if dry_run:
        note("Nothing was changed (--dry-run).")
    return 1 if any(move.error for move in moves) else 0


def _partition(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadUsage(f"--partitions: {text} is no partition")
    return int(text)


@command.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@connection_options
def delete(session: Session, names: tuple[str, ...]) -> None:
    """Delete groups that have no members, with their offsets."""

    async def body(cluster: Cluster) -> list[tuple[str, int]]:
        return [(name, await _delete(cluster, name)) for name in dict.fromkeys(names)]

    failed = []
    steps = set()
    for name, code in session.run(body):
        if code == ErrorCode.NONE:
            click.echo(f"Deleted group {name}.")
            continue
        failed.append(f"{name}: {refusal(code, None)}")
        if code == ErrorCode.NON_EMPTY_GROUP:
            steps.add(f"Stop its members first; who they are: kmirror group describe {name} --members")
        elif code == ErrorCode.GROUP_ID_NOT_FOUND:
            steps.add("List what there is with: kmirror group list")
    if failed:
        raise Failure("not deleted: " + "; ".join(failed), next_step="\n".join(sorted(steps)))


async def _delete(cluster: Cluster, name: str) -> int:
    request = DeleteGroupsRequest(groups_names=[name])
    response = await Coordinator(cluster, name).ask(as_is(request), lambda answer: int(answer.results[0].error_code))
    return int(response.results[0].error_code)
