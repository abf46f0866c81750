"""`kmirror consume`: the records of one partition, of all partitions of a topic, or what a group's member gets."""

from __future__ import annotations

import click
import trio

from kmirror.cli import group_consume
from kmirror.cli.failure import BadUsage
from kmirror.cli.partition_reader import PartitionReader
from kmirror.cli.queries import offsets_at, topics_named
from kmirror.cli.record_display import print_record, visible_records
from kmirror.cli.session import Session, comma_list, connection_options, json_option
from kmirror.source import calls
from kmirror.source.cluster import Cluster

ISOLATION = {"read_uncommitted": calls.READ_UNCOMMITTED, "read_committed": calls.READ_COMMITTED}
POLL_MS = 500
"""How long one Fetch may wait for records; also how soon the other partitions are looked at."""


@click.command("consume")
@click.option("--topic", required=True, help="With --group several, separated by commas.")
@click.option("--partition", type=click.IntRange(0), help="[default: all, one after the other]")
@click.option("--group", "group_name", metavar="NAME", help="Read as a member of this consumer group, and commit.")
@click.option("--instance-id", metavar="ID", help="With --group: a static member, which may come back (KIP-345).")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET",
    help="With --group: where it has committed nothing.",
)
@click.option("--isolation", type=click.Choice(list(ISOLATION)), default="read_uncommitted", show_default=True)
@click.option("--max", "--max-messages", "max_messages", type=click.IntRange(1), help="Stop after so many records.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    default=5.0,
    show_default=True,
    help="Stop after so many seconds of silence; 0: never.",
)
@json_option
@connection_options
def command(
    session: Session,
    topic: str,
    partition: int | None,
    group_name: str | None,
    instance_id: str | None,
    start: str,
    isolation: str,
    max_messages: int | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Print the records of a topic: partition and offset, key and value."""
    if start not in ("earliest", "latest") and not start.isdigit():
        raise BadUsage(f"--from {start} is neither earliest, latest nor an offset")
    if group_name is not None:
        if partition is not None or start.isdigit():
            raise BadUsage(
                "with --group, partitions and offsets are the group's: give neither --partition nor an offset"
            )
        options = group_consume.Options(
            group=group_name,
            instance_id=instance_id,
            topics=comma_list(topic),
            start=calls.LATEST if start == "latest" else calls.EARLIEST,
            isolation_level=ISOLATION[isolation],
            max_records=max_messages,
            timeout_s=timeout_s,
        )
        return group_consume.run(session, options, as_json=as_json)
    if instance_id is not None:
        raise BadUsage("--instance-id needs --group")
    if "," in topic:
        raise BadUsage("several topics need --group", next_step="Give one topic, or read as a member: --group NAME.")

    async def body(cluster: Cluster) -> None:
        readers = await readers_of(cluster, topic, partition, start, ISOLATION[isolation])
        await print_records(readers, max_messages=max_messages, timeout_s=timeout_s, as_json=as_json)

    session.run(body)
    return 0


async def readers_of(
    cluster: Cluster, topic: str, partition: int | None, start: str, isolation_level: int
) -> list[PartitionReader]:
    count = len((await topics_named(cluster, [topic]))[0].partitions)
    if partition is not None and partition >= count:
        raise BadUsage(f"{topic} has partitions 0 to {count - 1}, not {partition}")
    indexes = [partition] if partition is not None else list(range(count))
    if start.isdigit():
        offsets = dict.fromkeys(indexes, int(start))
    else:
        offsets = await offsets_at(cluster, topic, indexes, calls.LATEST if start == "latest" else calls.EARLIEST)
    return [
        PartitionReader(cluster, topic, index, offset=offsets[index], isolation_level=isolation_level)
        for index in indexes
    ]


async def print_records(
    readers: list[PartitionReader], *, max_messages: int | None, timeout_s: float, as_json: bool
) -> None:
    printed = 0
    heard_at_s = trio.current_time()
    while True:
        silent = True
        for reader in readers:
            first = reader.next_offset
            batches, aborted = await reader.fetch(wait_ms=POLL_MS if len(readers) == 1 else 0)
            for record in visible_records(batches, aborted, first, reader.isolation_level):
                print_record(reader.topic, reader.partition, record, as_json=as_json)
                printed += 1
                if printed == max_messages:
                    return
            silent = silent and not batches
        if not silent:
            heard_at_s = trio.current_time()
        elif timeout_s and trio.current_time() - heard_at_s >= timeout_s:
            return
        elif len(readers) > 1:
            await trio.sleep(POLL_MS / 1000)
