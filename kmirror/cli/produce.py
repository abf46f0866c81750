"""`kmirror produce`: lines of standard input become records.

Batches are built here and sent as they are, so a test can write a batch with any producer id, epoch and sequence. One
request at a time: what was acknowledged before a failure is known exactly, and reported.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from kmirror.cli.display import print_json, print_table
from kmirror.cli.failure import BadUsage
from kmirror.cli.queries import topics_named
from kmirror.cli.session import Session, connection_options, json_option, refusal
from kmirror.clock import SystemClock
from kmirror.protocol.compression import Compression
from kmirror.protocol.records import Record, build_batch
from kmirror.source.cluster import Cluster

CODECS = [codec.name.lower() for codec in Compression]
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
BATCH_RECORDS = 500
"""Lines in one batch. Small enough that a pipe shows progress, large enough that a file goes quickly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """What goes into the header of each batch. `sequence` is the first one; it counts on within a partition."""

    compression: int
    producer_id: int
    epoch: int
    sequence: int

    def batch(self, records: list[Record], records_before: int, now_ms: int) -> bytes:
        numbered = self.producer_id >= 0
        return build_batch(
            records,
            compression=self.compression,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence + records_before if numbered else -1,
            timestamp_ms=now_ms,
        )


@click.command("produce")
@click.option("--topic", required=True)
@click.option("--partition", type=click.IntRange(0), help="[default: by key, as Kafka does; without keys in turn]")
@click.option("--key-separator", metavar="TEXT", help="What separates key and value in a line; without it, no keys.")
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--acks", type=click.Choice(list(ACKS)), default="all", show_default=True)
@click.option("--producer-id", type=int, default=-1, help="Make the batches an idempotent producer's.")
@click.option("--epoch", type=click.IntRange(0, 32767), default=0, help="Producer epoch, with --producer-id.")
@click.option("--sequence", type=click.IntRange(0), default=0, help="Sequence of the first record, with --producer-id.")
@json_option
@connection_options
def command(
    session: Session,
    topic: str,
    partition: int | None,
    key_separator: str | None,
    compression: str,
    acks: str,
    producer_id: int,
    epoch: int,
    sequence: int,
    as_json: bool,
) -> int:
    """Write the lines of standard input to a topic."""
    if producer_id >= 0 and partition is None:
        raise BadUsage("--producer-id needs --partition: sequences count per partition")
    producer = Producer(
        compression=Compression[compression.upper()],
        producer_id=producer_id,
        epoch=epoch if producer_id >= 0 else -1,
        sequence=sequence,
    )
    lines = sys.stdin.buffer
    chunks = records_in_chunks(lines, key_separator)

    async def body(cluster: Cluster) -> list[dict[str, Any]]:
        count = len((await topics_named(cluster, [topic]))[0].partitions)
        if partition is not None and partition >= count:
            raise BadUsage(f"{topic} has partitions 0 to {count - 1}, not {partition}")
        return await send_all(cluster, topic, chunks, producer, acks=ACKS[acks], partition=partition, count=count)

    results = session.run(body)
    if as_json:
        print_json(results)
    else:
        columns = ("topic", "partition", "base_offset", "records", "error")
        print_table(
            [name.upper().replace("_", "-") for name in columns],
            [[row[name] for name in columns] for row in results],
            empty="nothing to write: standard input had no lines",
        )
    return 1 if any(row["error"] for row in results) else 0


def records_in_chunks(lines: Any, key_separator: str | None) -> Iterator[list[Record]]:
    separator = key_separator.encode() if key_separator else None
    while chunk := list(itertools.islice(lines, BATCH_RECORDS)):
        yield [as_record(line.rstrip(b"\r\n"), separator) for line in chunk]


def as_record(line: bytes, separator: bytes | None) -> Record:
    """Raises BadUsage for a line without the separator."""
    if separator is None:
        return Record(None, line)
    key, found, value = line.partition(separator)
    if not found:
        raise BadUsage(f"a line has no '{separator.decode()}': {line[:40]!r}")
    return Record(key, value)


async def send_all(
    cluster: Cluster,
    topic: str,
    chunks: Iterator[list[Record]],
    producer: Producer,
    *,
    acks: int,
    partition: int | None,
    count: int,
) -> list[dict[str, Any]]:
    """One result per batch; stops behind the first that was refused."""
    clock = SystemClock()
    results: list[dict[str, Any]] = []
    sent: dict[int, int] = {}
    for turn, chunk in enumerate(chunks):
        for index, records in by_partition(chunk, partition=partition, count=count, turn=turn).items():
            data = producer.batch(records, sent.get(index, 0), clock.time_ms())
            answer = await cluster.produce(topic, index, data, acks=acks)
            sent[index] = sent.get(index, 0) + len(records)
            refused = refusal(answer.error_code, answer.error_message) if answer.error_code else None
            results.append(
                {
                    "topic": topic,
                    "partition": index,
                    "base_offset": answer.base_offset if answer.base_offset >= 0 and not refused else None,
                    "records": len(records),
                    "error_code": answer.error_code,
                    "error": refused,
                }
            )
            if refused:
                return results
    return results


def by_partition(records: list[Record], *, partition: int | None, count: int, turn: int) -> dict[int, list[Record]]:
    """Where each record goes: as told, by key, or the whole chunk to the next partition in turn."""
    if partition is not None:
        return {partition: records}
    groups: dict[int, list[Record]] = {}
    for record in records:
        index = turn % count if record.key is None else (murmur2(record.key) & 0x7FFFFFFF) % count
        groups.setdefault(index, []).append(record)
    return groups


def murmur2(data: bytes) -> int:
    """The hash behind Kafka's default partitioner (`org.apache.kafka.common.utils.Utils.murmur2`), 32 bits unsigned."""
    mask, multiplier, shift = 0xFFFFFFFF, 0x5BD1E995, 24
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> shift) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    rest = data[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15
