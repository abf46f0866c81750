"""`python -m conformance.bench`: runs the measures and prints one table."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from confluent_kafka import KafkaException
from rich.console import Console

from conformance.bench import groups, machine, mirror, results, small_requests, storage, throughput
from conformance.bench.contestants import FLUSHED, KAFKA, KMIRROR, NAMES, PAGE_CACHE, Contestant, create
from conformance.bench.results import CEILING, Row
from conformance.bench.run import Run
from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.processes import PeerFailed, PeerUnavailable

_IDLE_S = 2.0
_METADATA_S = 2.0
_FRESH_GROUPS = 5
_DURABLE = {PAGE_CACHE: "page cache", FLUSHED: "flushed before ack"}


def measure_start(run: Run) -> None:
    """Process start to the first answered ApiVersions, and memory when idle."""
    start = run.row("start to first ApiVersions", "ms", higher_is_better=False, goal=10, limit=300)
    idle = run.row("idle memory (RSS)", "MB", higher_is_better=False, limit=60)
    for pair, name in run.alternating():
        directory = run.scratch / f"start-{name}"
        broker = create(name, directory)
        if pair == 0:  # formats, compiles and fills the page cache
            broker.start()
            broker.kill()
            shutil.rmtree(directory)
            broker = create(name, directory)
        try:
            broker.start()
            start.add(name, broker.answered_s * 1000)
            time.sleep(_IDLE_S)
            idle.add(name, broker.process.resident_bytes() / 1e6)
        finally:
            broker.kill()
            shutil.rmtree(directory, ignore_errors=True)


def measure_throughput(run: Run) -> None:
    """Produce and consume MB/s with 1 and 8 partitions, in both durability modes."""
    for durability in (PAGE_CACHE, FLUSHED):
        goal = 1.1 if durability == PAGE_CACHE else 1.5
        with run.brokers(durability) as brokers:
            for name, broker in brokers.items():  # a cold JVM would flatter everybody else
                for partition_count in (1, 8, 1, 8) if name == KAFKA else (1, 8):
                    _produce_and_consume(run, broker, partition_count, None, None)
            for partition_count in (1, 8):
                what = f"{partition_count} partition{'s' if partition_count > 1 else ''}, {_DURABLE[durability]}"
                produced = run.row(f"produce, {what}", "MB/s", higher_is_better=True, goal=goal)
                consumed = None
                if durability == PAGE_CACHE:
                    consumed = run.row(f"consume, {what}", "MB/s", higher_is_better=True, goal=0.9)
                work = "produce" if consumed is None else "produce and consume"
                cpu = run.row(f"  broker CPU of that, {work}", "ms/MB", higher_is_better=False)
                for pair, name in run.alternating():
                    run.say(f"throughput, {what}: pair {pair + 1} of {run.pairs}, {name}")
                    before = brokers[name].process.cpu_seconds()
                    rates = _produce_and_consume(run, brokers[name], partition_count, produced, consumed)
                    produced.add(name, rates[0])
                    spent = brokers[name].process.cpu_seconds() - before
                    cpu.add(name, spent * 1000 / (run.record_count * throughput.RECORD_BYTES / 1e6))
                    if consumed is not None:
                        consumed.add(name, rates[1])


def _produce_and_consume(
    run: Run, broker: Contestant, partition_count: int, produced: Row | None, consumed: Row | None
) -> tuple[float, float]:
    topic = f"bench-{partition_count}-{time.monotonic_ns()}"
    throughput.create_topic(broker.bootstrap, topic, partition_count)
    produce_rate = throughput.produce(
        broker.bootstrap, topic, partition_count=partition_count, record_count=run.record_count
    )
    consume_rate = 0.0
    if consumed is not None or produced is None:
        consume_rate = throughput.consume(
            broker.bootstrap, topic, partition_count=partition_count, record_count=run.record_count
        )
    throughput.delete_topic(broker.bootstrap, topic)
    return produce_rate, consume_rate


def measure_latency(run: Run) -> None:
    """One record in flight: produce to delivery report."""
    for durability in (PAGE_CACHE, FLUSHED):
        p50 = run.row(f"ack p50, {_DURABLE[durability]}", "ms", higher_is_better=False, goal=1)
        p99 = run.row(f"ack p99, {_DURABLE[durability]}", "ms", higher_is_better=False, goal=1)
        with run.brokers(durability) as brokers:
            for broker in brokers.values():
                throughput.create_topic(broker.bootstrap, "latency", 1)
                throughput.acknowledgement_ms(broker.bootstrap, "latency", record_count=3000)
            for _, name in run.alternating():
                middle, high = throughput.acknowledgement_ms(brokers[name].bootstrap, "latency", record_count=2000)
                p50.add(name, middle)
                p99.add(name, high)


def measure_metadata(run: Run) -> None:
    """Metadata requests per second on one connection."""
    with run.brokers(PAGE_CACHE) as brokers:
        for broker in brokers.values():
            throughput.create_topic(broker.bootstrap, "metadata", 1)
            small_requests.metadata_per_second(broker.bootstrap, "metadata", in_flight=50, seconds=3 * _METADATA_S)
        for in_flight, goal in ((1, 1.0), (50, 2.0)):
            row = run.row(f"Metadata, {in_flight} in flight", "req/s", higher_is_better=True, goal=goal)
            for _, name in run.alternating():
                bootstrap = brokers[name].bootstrap
                row.add(
                    name,
                    small_requests.metadata_per_second(bootstrap, "metadata", in_flight=in_flight, seconds=_METADATA_S),
                )


def measure_groups(run: Run) -> None:
    """A fresh group's way to its first message."""
    row = run.row("first message of a fresh group", "ms", higher_is_better=False, limit=300)
    with run.brokers(PAGE_CACHE) as brokers:
        for broker in brokers.values():
            throughput.create_topic(broker.bootstrap, "groups", 1)
            groups.write_one(broker.bootstrap, "groups")
            groups.first_message_ms(broker.bootstrap, "groups")  # creates __consumer_offsets
        for _, name in run.alternating():
            for _ in range(_FRESH_GROUPS):
                row.add(name, groups.first_message_ms(brokers[name].bootstrap, "groups"))


def measure_mirror(run: Run) -> None:
    """Mirror catch-up from a real Kafka, beside the blocking program, with 1 MB and 16 KiB batches."""
    directory = Path(tempfile.mkdtemp(dir=run.scratch))
    source = KafkaBroker(KafkaInstallation(), directory / "source", heap="1g")
    try:
        source.start()
        for label, records_per_batch, goal in (("1 MB", 970, 0.7), ("16 KiB", 16, 0.6)):
            topic = f"mirror-{records_per_batch}"
            record_count = run.mirror_mb * 1_000_000 // throughput.RECORD_BYTES
            end = mirror.fill(source, topic, record_count=record_count, records_per_batch=records_per_batch)
            size_bytes = mirror.log_bytes(source, topic)
            mirror.ceiling_rate(source, topic, end=end, directory=directory)  # warms source and page cache
            row = run.row(f"mirror, {label} batches", "MB/s", higher_is_better=True, goal=goal, baseline=CEILING)
            for pair in range(run.pairs):
                for name in (KMIRROR, CEILING) if pair % 2 else (CEILING, KMIRROR):
                    run.say(f"mirror, {label} batches: pair {pair + 1} of {run.pairs}, {name}")
                    if name == CEILING:
                        rate = mirror.ceiling_rate(source, topic, end=end, directory=directory)
                    else:
                        target = directory / f"kmirror-{records_per_batch}-{pair}"
                        rate = mirror.kmirror_rate(source, topic, end=end, size_bytes=size_bytes, directory=target)
                        shutil.rmtree(target)
                    row.add(name, rate)
            throughput.delete_topic(source.bootstrap, topic)
    finally:
        source.kill()
        shutil.rmtree(directory, ignore_errors=True)


MEASURES: dict[str, Callable[[Run], None]] = {
    "start": measure_start,
    "metadata": measure_metadata,
    "latency": measure_latency,
    "throughput": measure_throughput,
    "groups": measure_groups,
    "mirror": measure_mirror,
    "append": storage.measure_append,
    "read": storage.measure_read,
    "recovery": storage.measure_recovery,
    "partitions": storage.measure_partitions,
    "compaction": storage.measure_compaction,
}


@click.command(help="kmirror, Apache Kafka 4.4.0 and kfake side by side. Takes about an hour with five pairs.")
@click.option("--only", "only", multiple=True, type=click.Choice(sorted(MEASURES)), help="Repeatable.")
@click.option("--pairs", default=5, show_default=True, type=click.IntRange(1), help="Runs of each contestant.")
@click.option("--records", "record_count", default=200_000, show_default=True, help="1 KiB records per run.")
@click.option("--mirror-mb", default=1000, show_default=True, help="MB to mirror.")
@click.option("--storage-mb", default=500, show_default=True, help="MB to append, read, recover and compact.")
@click.option("--without", multiple=True, type=click.Choice(NAMES), help="Leave a contestant out.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the samples here.")
@click.option("--dir", "base", type=click.Path(path_type=Path, file_okay=False), help="Where the data go for the run.")
def main(
    only: tuple[str, ...], pairs: int, record_count: int, mirror_mb: int, storage_mb: int, without: tuple[str, ...],
    json_path: Path | None, base: Path | None,
) -> None:  # fmt: skip
    """See the command's help."""
    scratch = Path(tempfile.mkdtemp(prefix="kmirror-bench-", dir=base))
    contestants = [name for name in NAMES if name not in without]
    run = Run(
        pairs=pairs, record_count=record_count, mirror_mb=mirror_mb, storage_mb=storage_mb, contestants=contestants,
        scratch=scratch,
    )  # fmt: skip
    about = machine.describe(scratch)
    failed = False
    try:
        for name in only or MEASURES:
            run.say(f"measuring: {name}")
            try:
                MEASURES[name](run)
            except (throughput.BenchFailed, PeerFailed, OSError, ValueError, KafkaException) as error:
                failed = True  # the other measures are still worth having
                run.say(f"FAILED: {name}: {error}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    results.show(run.rows, about, Console(width=None if sys.stdout.isatty() else 170))
    if json_path is not None:
        options = {
            "pairs": pairs,
            "records": record_count,
            "mirror_mb": mirror_mb,
            "storage_mb": storage_mb,
            "baseline": KAFKA,
        }
        json_path.write_text(results.as_json(run.rows, about, options))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    try:
        main(prog_name="python -m conformance.bench")
    except PeerUnavailable as error:
        print(f"conformance.bench: {error}", file=sys.stderr)
        sys.exit(2)
