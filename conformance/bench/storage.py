"""What the storage engine does, seen from outside: append, read, recovery, many partitions, compaction.

Kafka does the same work in the same run; the frames are built by hand and pipelined, so that no client library shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from conformance.bench.contestants import KFAKE, KMIRROR, PAGE_CACHE, Contestant, create
from conformance.bench.results import CEILING
from conformance.bench.run import Run
from conformance.bench.throughput import BenchFailed
from conformance.bench.wire import check_produced, connect, end_offset, fetch, produce_request, read_frame
from conformance.wire.batches import Rec, batch

IN_FLIGHT = 32
FETCH_BYTES = 8 << 20
SMALL_BATCH_BYTES, LARGE_BATCH_BYTES = 261, 16 << 10
SMALL_SHARE = 16
"""Small batches are appended up to this part of --storage-mb: they take so much longer."""
EMPTY_PARTITIONS, FULL_PARTITIONS = 5000, 500
FULL_PARTITION_BYTES = 1_500_000
KEYS = 1024
RECORD_BYTES = 1000
_TIMEOUT_S = 300.0
_POLL_S = 0.01
_REPOSITORY = Path(__file__).resolve().parents[2]
_RECOVERY_POINTS, _CLEANED = "recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"


def sized_batch(size_bytes: int) -> bytes:
    """One batch of one record that takes exactly `size_bytes`."""
    value_bytes = size_bytes
    while len(data := batch([b"v" * value_bytes])) > size_bytes:
        value_bytes -= len(data) - size_bytes
    if len(data) != size_bytes:
        raise BenchFailed(f"no batch has {size_bytes} bytes")
    return data


def keyed_batches() -> list[bytes]:
    """Batches of 16 records each that name every one of KEYS keys once."""
    value = b"v" * RECORD_BYTES
    return [
        batch([Rec(value, key=b"key-%d" % number) for number in range(first, first + 16)])
        for first in range(0, KEYS, 16)
    ]


def append(bootstrap: str, topic: str, batches: Sequence[bytes], *, size_bytes: int, partition_count: int = 1) -> float:
    """MB/s of batches, `batches` over and over, one in each request, until so many bytes are acknowledged."""
    sock = connect(bootstrap)
    requests = cycle(
        produce_request(topic, partition, data, 1) for data in batches for partition in range(partition_count)
    )
    count = max(IN_FLIGHT, size_bytes // max(1, sum(map(len, batches)) // len(batches)))
    waiting = 0
    started = time.perf_counter()
    for request in islice(requests, count):
        if waiting == IN_FLIGHT:
            check_produced(read_frame(sock), topic)
            waiting -= 1
        sock.sendall(request)
        waiting += 1
    for _ in range(waiting):
        check_produced(read_frame(sock), topic)
    seconds = time.perf_counter() - started
    sock.close()
    return count * sum(map(len, batches)) / len(batches) / 1e6 / seconds


def read(bootstrap: str, topic: str) -> float:
    """MB/s of partition 0 from its beginning to its end."""
    with connect(bootstrap) as sock:
        end = end_offset(sock, topic, 0)
        offset = size_bytes = 0
        started = time.perf_counter()
        while offset < end:
            records = fetch(sock, topic, offset=offset, max_bytes=FETCH_BYTES).records
            position = 0
            while position + 61 <= len(records):
                length = 12 + int.from_bytes(records[position + 8 : position + 12])
                if position + length > len(records):
                    break
                offset = int.from_bytes(records[position : position + 8]) + 1
                offset += int.from_bytes(records[position + 23 : position + 27])
                position += length
            if not position:
                raise BenchFailed(f"{topic}: nothing at offset {offset} of {end}")
            size_bytes += position
        return size_bytes / 1e6 / (time.perf_counter() - started)


def make_topic(bootstrap: str, topic: str, *, partition_count: int = 1, **config: object) -> None:
    """`config` has underscores for dots. Returns once all partitions are served."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): str(value) for name, value in config.items()}
    wanted = NewTopic(topic, partition_count, 1, config=settings)
    admin.create_topics([wanted], operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S)[topic].result(_TIMEOUT_S)
    wait_for_end(bootstrap, topic, range(partition_count), 0)


def alter(bootstrap: str, topic: str, config: Mapping[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def wait_for_end(bootstrap: str, topic: str, partitions: Iterable[int], end: int) -> None:
    """Until each of the partitions is served and its end offset is that."""
    waiting = deque(partitions)
    deadline = time.perf_counter() + _TIMEOUT_S
    while waiting:
        with suppress(OSError), connect(bootstrap) as sock:
            while waiting and time.perf_counter() < deadline:
                if end_offset(sock, topic, waiting[0]) == end:
                    waiting.popleft()
                else:
                    time.sleep(_POLL_S)
        if waiting:
            time.sleep(_POLL_S)
            if time.perf_counter() >= deadline:
                raise BenchFailed(f"{topic}-{waiting[0]} did not come to offset {end}")


def data_directory(broker: Contestant) -> Path:
    """Where a Kafka or a kmirror keeps its partition directories."""
    found: Path = broker.data_directory  # type: ignore[attr-defined]
    return found


def drop_page_cache(directory: Path) -> None:
    """Of the segments below the directory, which are written back first."""
    os.sync()
    for path in directory.rglob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _names(run: Run) -> list[str]:
    """Brokers that keep their data in Kafka's files."""
    return [name for name in run.contestants if name != KFAKE]


def _in_turn(run: Run) -> Iterator[tuple[int, str]]:
    return ((pair, name) for pair, name in run.alternating() if name != KFAKE)


@contextmanager
def _running(run: Run, settings: Mapping[str, str]) -> Iterator[dict[str, Contestant]]:
    """kmirror and Kafka with these settings; both are killed at the end."""
    started: dict[str, Contestant] = {}
    try:
        for name in _names(run):
            started[name] = create(name, run.scratch / f"storage-{name}-{time.monotonic_ns()}", PAGE_CACHE, settings)
            started[name].start()
        yield started
    finally:
        for broker in started.values():
            broker.kill()


def measure_append(run: Run) -> None:
    """Batches of 16 KiB and of 261 bytes: through the wire beside Kafka, and the log alone beside a plain program."""
    sizes = {
        LARGE_BATCH_BYTES: run.storage_mb * 1_000_000,
        SMALL_BATCH_BYTES: run.storage_mb * 1_000_000 // SMALL_SHARE,
    }
    for batch_bytes, size_bytes in sizes.items():
        data = [sized_batch(batch_bytes)]
        row = run.row(f"append, {batch_bytes} B batches, one a request", "MB/s", higher_is_better=True, goal=1.0)
        with _running(run, {}) as brokers:
            for broker in brokers.values():
                make_topic(broker.bootstrap, "warm")
                append(broker.bootstrap, "warm", data, size_bytes=size_bytes)
            for pair, name in _in_turn(run):
                topic = f"append-{pair}"
                make_topic(brokers[name].bootstrap, topic)
                row.add(name, append(brokers[name].bootstrap, topic, data, size_bytes=size_bytes))
        for origin in ("client", "replication"):
            row = run.row(
                f"  the log alone, {origin}, {batch_bytes} B", "MB/s", higher_is_better=True, baseline=CEILING
            )
            for pair in range(run.pairs):
                for name in (KMIRROR, CEILING) if pair % 2 else (CEILING, KMIRROR):
                    row.add(name, _alone(run, "log" if name == KMIRROR else "program", origin, batch_bytes, size_bytes))


def _alone(run: Run, what: str, origin: str, batch_bytes: int, size_bytes: int) -> float:
    directory = run.scratch / f"alone-{time.monotonic_ns()}"
    arguments = [what, origin, str(batch_bytes), str(size_bytes), str(directory)]
    done = subprocess.run(
        [sys.executable, "-m", "conformance.bench.engine", *arguments],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd=_REPOSITORY,
    )  # fmt: skip
    if done.returncode != 0:
        raise BenchFailed(f"conformance.bench.engine failed: {done.stderr[-500:]}")
    return float(done.stdout)


def measure_read(run: Run) -> None:
    """A whole partition in Fetches of 8 MiB, from the page cache and from the disk."""
    warm = run.row("read, warm", "MB/s", higher_is_better=True, goal=0.9)
    cold = run.row("read, cold", "MB/s", higher_is_better=True, goal=0.9)
    data = [sized_batch(LARGE_BATCH_BYTES)]
    with _running(run, {}) as brokers:
        for broker in brokers.values():
            make_topic(broker.bootstrap, "read")
            append(broker.bootstrap, "read", data, size_bytes=run.storage_mb * 1_000_000)
            read(broker.bootstrap, "read")
        for _, name in _in_turn(run):
            warm.add(name, read(brokers[name].bootstrap, "read"))
            drop_page_cache(data_directory(brokers[name]))
            cold.add(name, read(brokers[name].bootstrap, "read"))


def measure_recovery(run: Run) -> None:
    """One segment, nothing known of it: killed, its recovery point taken away. A clean start's time is not counted."""
    row = run.row("recovery after kill -9", "MB/s", higher_is_better=True, goal=1.0)
    clean_row = run.row("  the same data, clean start to served", "ms", higher_is_better=False)
    data = [sized_batch(LARGE_BATCH_BYTES)]
    with _running(run, {}) as brokers:
        ends = {}
        for name, broker in brokers.items():
            make_topic(broker.bootstrap, "recovery")
            append(broker.bootstrap, "recovery", data, size_bytes=run.storage_mb * 1_000_000)
            with connect(broker.bootstrap) as sock:
                ends[name] = end_offset(sock, "recovery", 0)
        for _, name in _in_turn(run):
            broker = brokers[name]
            broker.process.stop()
            clean_s = _served_after(broker, "recovery", 0, ends[name])
            broker.kill()
            (data_directory(broker) / _RECOVERY_POINTS).unlink(missing_ok=True)
            unclean_s = _served_after(broker, "recovery", 0, ends[name])
            clean_row.add(name, clean_s * 1000)
            size_bytes = sum(path.stat().st_size for path in (data_directory(broker) / "recovery-0").glob("*.log"))
            row.add(name, size_bytes / 1e6 / max(1e-3, unclean_s - clean_s))


def _served_after(broker: Contestant, topic: str, partition: int, end: int) -> float:
    started = time.perf_counter()
    broker.start()
    wait_for_end(broker.bootstrap, topic, [partition], end)
    return time.perf_counter() - started


def measure_partitions(run: Run) -> None:
    """Clean start with many partitions, until the last one is served, and what one costs in memory."""
    for kind, count in (("empty", EMPTY_PARTITIONS), ("full", FULL_PARTITIONS)):
        start = run.row(f"start with {count} {kind} partitions", "ms", higher_is_better=False, goal=1.0)
        memory = run.row("  memory per partition (RSS)", "kB", higher_is_better=False, goal=1.0)
        with _running(run, {}) as brokers:
            before = {}
            for name, broker in brokers.items():
                broker.process.stop()
                broker.start()
                before[name] = broker.process.resident_bytes()
                make_topic(broker.bootstrap, "many", partition_count=count, segment_bytes=1 << 20)
                if kind == "full":
                    data = [sized_batch(LARGE_BATCH_BYTES)]
                    append(
                        broker.bootstrap, "many", data, size_bytes=count * FULL_PARTITION_BYTES, partition_count=count
                    )
            for _, name in _in_turn(run):
                broker = brokers[name]
                with connect(broker.bootstrap) as sock:
                    end = end_offset(sock, "many", count - 1)
                broker.process.stop()
                start.add(name, _served_after(broker, "many", count - 1, end) * 1000)
                memory.add(name, (broker.process.resident_bytes() - before[name]) / 1e3 / count)


def measure_compaction(run: Run) -> None:
    """From cleanup.policy=compact to the moment at which the cleaner's checkpoint says that it is done."""
    row = run.row("compaction", "MB/s", higher_is_better=True, goal=0.5)
    data = keyed_batches()
    with _running(run, {"log.cleaner.backoff.ms": "100"}) as brokers:
        for pair, name in _in_turn(run):
            broker, topic = brokers[name], f"compaction-{pair}"
            make_topic(broker.bootstrap, topic, segment_bytes=32 << 20)
            append(broker.bootstrap, topic, data, size_bytes=run.storage_mb * 1_000_000)
            segments = sorted((data_directory(broker) / f"{topic}-0").glob("*.log"))
            size_bytes = sum(path.stat().st_size for path in segments[:-1])
            started = time.perf_counter()
            alter(broker.bootstrap, topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
            while _cleaned_up_to(data_directory(broker), topic) < int(segments[-1].stem):
                if time.perf_counter() - started > _TIMEOUT_S:
                    raise BenchFailed(f"{name} did not compact {topic}")
                time.sleep(_POLL_S)
            row.add(name, size_bytes / 1e6 / (time.perf_counter() - started))


def _cleaned_up_to(directory: Path, topic: str) -> int:
    try:
        lines = (directory / _CLEANED).read_text().splitlines()
    except FileNotFoundError:
        return -1
    return max((int(line.split()[2]) for line in lines[2:] if line.split()[0] == topic), default=-1)
