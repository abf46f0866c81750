"""`kmirror consume`: the records of one partition, or of all partitions of a topic. No consumer groups yet."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
import trio

from kmirror.cli.display import print_json_line, readable
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.partition_reader import Batch, PartitionReader
from kmirror.cli.queries import offsets_at, topics_named
from kmirror.cli.session import Session, connection_options, json_option
from kmirror.errors import CorruptData
from kmirror.protocol.records import Record, check_crc, control_type, read_records
from kmirror.source import calls
from kmirror.source.cluster import Cluster

ISOLATION = {"read_uncommitted": calls.READ_UNCOMMITTED, "read_committed": calls.READ_COMMITTED}
POLL_MS = 500
"""How long one Fetch may wait for records; also how soon the other partitions are looked at."""


@click.command("consume")
@click.option("--topic", required=True)
@click.option("--partition", type=click.IntRange(0), help="[default: all, one after the other]")
@click.option("--from", "start", default="earliest", show_default=True, metavar="earliest|latest|OFFSET")
@click.option("--isolation", type=click.Choice(list(ISOLATION)), default="read_uncommitted", show_default=True)
@click.option("--max-messages", type=click.IntRange(1), help="Stop after so many records.")
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
    start: str,
    isolation: str,
    max_messages: int | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Print the records of a partition: key, value and where they are."""
    if start not in ("earliest", "latest") and not start.isdigit():
        raise BadUsage(f"--from {start} is neither earliest, latest nor an offset")

    async def body(cluster: Cluster) -> None:
        readers = await readers_of(cluster, topic, partition, start, ISOLATION[isolation])
        await print_records(readers, max_messages=max_messages, timeout_s=timeout_s, as_json=as_json)

    session.run(body)


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
                print_record(reader, record, as_json=as_json)
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


def visible_records(
    batches: list[Batch], aborted: list[tuple[int, int]], first_offset: int, isolation_level: int
) -> Iterator[Record]:
    """Data records from `first_offset` on; with read_committed without those of aborted transactions (KIP-98).

    An aborted transaction begins at its first offset and ends with its producer's ABORT marker.
    """
    pending = sorted(aborted, key=lambda entry: entry[1])
    aborting: set[int] = set()
    for batch in batches:
        header = batch.header
        while pending and pending[0][1] <= header.last_offset:
            aborting.add(pending.pop(0)[0])
        try:
            check_crc(batch.data, 0, header)
            if header.is_control:
                if control_type(batch.data) == 0:
                    aborting.discard(header.producer_id)
                continue
            if isolation_level == calls.READ_COMMITTED and header.is_transactional and header.producer_id in aborting:
                continue
            records = read_records(batch.data)
        except CorruptData as error:
            raise Failure(f"offset {header.base_offset} is corrupt: {error}") from error
        yield from (record for record in records if record.offset >= first_offset)


def print_record(reader: PartitionReader, record: Record, *, as_json: bool) -> None:
    if as_json:
        print_json_line(record_as_json(reader.topic, reader.partition, record))
        return
    key = "" if record.key is None else f"{readable(record.key)}\t"
    value = readable(record.value)
    click.echo(f"{reader.partition}:{record.offset}\t{key}{'(null)' if value is None else value}")


def record_as_json(topic: str, partition: int, record: Record) -> dict[str, Any]:
    when = datetime.fromtimestamp(record.timestamp / 1000, UTC) if record.timestamp >= 0 else None
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": when.isoformat(timespec="milliseconds").replace("+00:00", "Z") if when else None,
        "key": readable(record.key),
        "value": readable(record.value),
        "headers": {name: readable(value) for name, value in record.headers},
    }
