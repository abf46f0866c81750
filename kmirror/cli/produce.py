"""`kmirror produce`: lines of standard input become records.

Batches are built here and sent as they are, so a test can write a batch with any producer id, epoch and sequence. One
request at a time: what was acknowledged before a failure is known exactly, and reported. With --transactional-id the
lines are written in transactions; whatever goes wrong in one of them, it is aborted.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import trio

from kmirror.cli.display import note, print_json, print_table, readable
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.session import Session, connection_options, json_option, refusal
from kmirror.cli.transactional_producer import TransactionalProducer
from kmirror.clock import SystemClock
from kmirror.errors import DecodeError
from kmirror.protocol.compression import Compression
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import Record, build_batch
from kmirror.source import calls
from kmirror.source.cluster import Cluster
from kmirror.source.errors import PeerError

CODECS = [codec.name.lower() for codec in Compression]
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
BATCH_RECORDS = 500
"""Lines in one batch. Small enough that a pipe shows progress, large enough that a file goes quickly."""
CREATED_WITHIN_S = 5.0
"""How long a topic that is not there may take to appear after it was asked for."""
CREATION_POLL_S = 0.1
AUTO_CREATION_VERSION = 4
"""Metadata before it has no way to say no."""
ABORT_WITHIN_S = 5.0
NOT_THERE_YET = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE})


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
@click.option("--transactional-id", metavar="ID", help="Write in transactions, as the producer of this id.")
@click.option(
    "--transaction-size", type=click.IntRange(1), metavar="N", help="Lines in a transaction.  [default: all lines]"
)
@click.option(
    "--transaction-timeout", "transaction_timeout_s", type=click.FloatRange(1), default=60.0, show_default=True
)
@click.option("--abort", is_flag=True, help="Abort the transactions instead of committing them.")
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
    transactional_id: str | None,
    transaction_size: int | None,
    transaction_timeout_s: float,
    abort: bool,
    as_json: bool,
) -> int:
    """Write the lines of standard input to a topic, which is made if the broker does so (auto.create.topics.enable)."""
    if producer_id >= 0 and partition is None:
        raise BadUsage("--producer-id needs --partition: sequences count per partition")
    if transactional_id is None and (transaction_size is not None or abort):
        raise BadUsage("--transaction-size and --abort need --transactional-id")
    if transactional_id is not None and (not transactional_id or producer_id >= 0 or ACKS[acks] != -1):
        raise BadUsage("--transactional-id takes a name, and neither --producer-id nor other --acks than all")
    codec = Compression[compression.upper()]
    producer = Producer(
        compression=codec,
        producer_id=producer_id,
        epoch=epoch if producer_id >= 0 else -1,
        sequence=sequence,
    )

    async def body(cluster: Cluster) -> list[dict[str, Any]]:
        count = await partition_count(cluster, topic)
        if partition is not None and partition >= count:
            raise BadUsage(f"{topic} has partitions 0 to {count - 1}, not {partition}")
        place = Place(topic, partition, count)
        chunks = records_in_chunks(sys.stdin.buffer, key_separator, transaction_size)
        if transactional_id is None:
            return await send_all(cluster, place, chunks, producer, acks=ACKS[acks])
        writer = TransactionalProducer(cluster, transactional_id, timeout_ms=int(transaction_timeout_s * 1000))
        return await in_transactions(writer, place, chunks, size=transaction_size, commit=not abort, compression=codec)

    results = session.run(body)
    if as_json:
        print_json(results)
    else:
        columns = ["topic", "partition", "base_offset", "records", "error"]
        if transactional_id is not None:
            columns[-1:] = ["transaction", "outcome", "error"]
        print_table(
            [name.upper().replace("_", "-") for name in columns],
            [[row[name] for name in columns] for row in results],
            empty="nothing to write: standard input had no lines",
        )
    return 1 if any(row["error"] for row in results) else 0


async def partition_count(cluster: Cluster, topic: str) -> int:
    """Of a topic that is there, or that appears because it was asked for, as with any Kafka client. Raises Failure."""
    deadline_s = trio.current_time() + CREATED_WITHIN_S
    while True:
        connection = await cluster.connection()
        request = calls.metadata_request(connection, [topic])
        if connection.version_of("Metadata") >= AUTO_CREATION_VERSION:
            request.allow_auto_topic_creation = True
        response = await connection.request(request)
        cluster.learn(response)
        found = response.topics[0]
        leaderless = any(part.leader_id < 0 for part in found.partitions)
        if not found.error_code and found.partitions and not leaderless:
            return len(found.partitions)
        code = found.error_code or ErrorCode.LEADER_NOT_AVAILABLE
        if code not in NOT_THERE_YET or trio.current_time() >= deadline_s:
            raise Failure(
                f"{topic}: {refusal(code, None)}",
                next_step="The broker makes no topics by itself; make it with: kmirror topic create"
                if code in NOT_THERE_YET
                else "",
            )
        await trio.sleep(CREATION_POLL_S)


def records_in_chunks(
    lines: Any, key_separator: str | None, transaction_size: int | None = None
) -> Iterator[list[Record]]:
    """At most `BATCH_RECORDS` each; none spans two transactions of `transaction_size` lines."""
    separator = key_separator.encode() if key_separator else None
    left = transaction_size
    while chunk := list(itertools.islice(lines, BATCH_RECORDS if left is None else min(left, BATCH_RECORDS))):
        if left is not None and transaction_size is not None:
            left = left - len(chunk) or transaction_size
        yield [as_record(line.rstrip(b"\r\n"), separator) for line in chunk]


def as_record(line: bytes, separator: bytes | None) -> Record:
    """Raises BadUsage for a line without the separator."""
    if separator is None:
        return Record(None, line)
    key, found, value = line.partition(separator)
    if not found:
        raise BadUsage(f"a line has no '{separator.decode()}': {readable(line[:40])}")
    return Record(key, value)


@dataclass(frozen=True, slots=True)
class Place:
    """`partition` None: by key, or in turn; the topic has `count` of them."""

    topic: str
    partition: int | None
    count: int


async def send_all(
    cluster: Cluster, place: Place, chunks: Iterator[list[Record]], producer: Producer, *, acks: int
) -> list[dict[str, Any]]:
    """One result per batch; stops behind the first that was refused."""
    clock = SystemClock()
    results: list[dict[str, Any]] = []
    sent: dict[int, int] = {}
    for turn, chunk in enumerate(chunks):
        groups = by_partition(chunk, partition=place.partition, count=place.count, turn=turn)
        for index, records in groups.items():
            data = producer.batch(records, sent.get(index, 0), clock.time_ms())
            answer = await cluster.produce(place.topic, index, data, acks=acks)
            sent[index] = sent.get(index, 0) + len(records)
            results.append(_result(place.topic, index, len(records), answer))
            if answer.error_code:
                return results
    return results


async def in_transactions(
    writer: TransactionalProducer,
    place: Place,
    chunks: Iterator[list[Record]],
    *,
    size: int | None,
    commit: bool,
    compression: int,
) -> list[dict[str, Any]]:
    """One result per batch; stops behind a transaction of which a batch was refused. Raises Failure, PeerError."""
    await writer.start()
    results: list[dict[str, Any]] = []
    number, lines = 1, 0
    try:
        for turn, chunk in enumerate(chunks):
            groups = by_partition(chunk, partition=place.partition, count=place.count, turn=turn)
            for index, records in groups.items():
                answer = await writer.send(place.topic, index, records, compression=compression)
                results.append(_result(place.topic, index, len(records), answer) | {"transaction": number})
                if answer.error_code:
                    await _end(writer, results, number, commit=False)
                    return results
            lines += len(chunk)
            if size is not None and lines == size:
                await _end(writer, results, number, commit=commit)
                number, lines = number + 1, 0
        await _end(writer, results, number, commit=commit)
    except BaseException:
        with trio.move_on_after(ABORT_WITHIN_S, shield=True):
            await _abort_quietly(writer)
        raise
    return results


async def _abort_quietly(writer: TransactionalProducer) -> None:
    """After a failure that is told anyway; the coordinator aborts by itself what cannot be aborted now."""
    if writer.is_open:
        try:
            await writer.end(commit=False)
            note(f"the open transaction of {writer.coordinator.key} was aborted")
        except (Failure, PeerError, DecodeError) as error:
            note(f"the open transaction of {writer.coordinator.key} will be aborted after its timeout ({error})")


async def _end(writer: TransactionalProducer, results: list[dict[str, Any]], number: int, *, commit: bool) -> None:
    await writer.end(commit=commit)
    for row in results:
        if row["transaction"] == number:
            row["outcome"] = "committed" if commit else "aborted"


def _result(topic: str, partition: int, count: int, answer: calls.Produced) -> dict[str, Any]:
    refused = refusal(answer.error_code, answer.error_message) if answer.error_code else None
    return {
        "topic": topic,
        "partition": partition,
        "base_offset": answer.base_offset if answer.base_offset >= 0 and not refused else None,
        "records": count,
        "error_code": answer.error_code,
        "error": refused,
    }


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
