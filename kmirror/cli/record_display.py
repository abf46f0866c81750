"""Which records of fetched batches a consumer sees, and how one is printed. For `consume`, with and without a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from kmirror.cli.display import iso_time, print_json_line, readable
from kmirror.cli.failure import Failure
from kmirror.cli.partition_reader import Batch
from kmirror.errors import CorruptData
from kmirror.protocol.records import Record, check_crc, control_type, read_records
from kmirror.source import calls


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


def print_record(topic: str, partition: int, record: Record, *, as_json: bool, name_topic: bool = False) -> None:
    """One line; `name_topic` when records of several topics are mixed."""
    if as_json:
        print_json_line(record_as_json(topic, partition, record))
        return
    key = "" if record.key is None else f"{readable(record.key)}\t"
    value = readable(record.value)
    where = f"{topic}:{partition}" if name_topic else f"{partition}"
    click.echo(f"{where}:{record.offset}\t{key}{'(null)' if value is None else value}")


def record_as_json(topic: str, partition: int, record: Record) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": iso_time(record.timestamp) if record.timestamp >= 0 else None,
        "key": readable(record.key),
        "value": readable(record.value),
        "headers": {name: readable(value) for name, value in record.headers},
    }
