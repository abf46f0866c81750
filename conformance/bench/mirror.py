"""Mirror catch-up: how fast kmirror copies a topic it has never seen, beside the blocking program of `ceiling`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from conformance.bench.throughput import RECORD_BYTES, BenchFailed, create_topic, produce
from conformance.bench.wire import connect, end_offset
from conformance.peers.kafka import KafkaBroker
from conformance.peers.kmirror_process import KmirrorBroker

FETCH_BYTES = 8 << 20
_TIMEOUT_S = 180.0
_POLL_S = 0.005


def fill(source: KafkaBroker, topic: str, *, record_count: int, records_per_batch: int) -> int:
    """Creates the topic and fills partition 0 with batches of that many 1 KiB records; its end offset."""
    create_topic(source.bootstrap, topic, 1)
    size_bytes = records_per_batch * (RECORD_BYTES + 100)
    produce(
        source.bootstrap, topic, partition_count=1, record_count=record_count,
        batch_size=size_bytes, batch_num_messages=records_per_batch, linger_ms=100,
    )  # fmt: skip
    with connect(source.bootstrap) as sock:
        return end_offset(sock, topic, 0)


def ceiling_rate(source: KafkaBroker, topic: str, *, end: int, directory: Path) -> float:
    """MB/s of the blocking program."""
    path = directory / "ceiling.log"
    command = [sys.executable, "-m", "conformance.bench.ceiling", source.bootstrap, topic, str(end), str(FETCH_BYTES)]
    done = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    path.unlink(missing_ok=True)
    if done.returncode != 0:
        raise BenchFailed(f"the blocking program failed: {done.stderr[-500:]}")
    size_bytes, seconds = done.stdout.split()
    return int(size_bytes) / 1e6 / float(seconds)


def kmirror_rate(source: KafkaBroker, topic: str, *, end: int, size_bytes: int, directory: Path) -> float:
    """MB/s of a fresh kmirror with default settings, from the first bytes seen to caught up.

    Process start and the mirror's own set-up are outside the clock, as they are for the blocking program.
    """
    destination = KmirrorBroker(directory)
    destination.start()
    try:
        destination.run(
            "mirror", "create", "bench", "--source", source.bootstrap, "--topics", topic, "--start", "--no-wait"
        )
        first_seen: tuple[float, int] | None = None
        deadline = time.perf_counter() + _TIMEOUT_S
        with connect(destination.bootstrap) as sock:
            while True:
                now, copied = time.perf_counter(), end_offset(sock, topic, 0)
                if first_seen is None and copied > 0:
                    first_seen = (now, copied)
                if copied >= end and first_seen is not None:
                    break
                if now > deadline:
                    raise BenchFailed(f"the mirror stands at {copied} of {end}: {destination.process.log_tail()}")
                time.sleep(_POLL_S)
        started, first = first_seen
        if first > end // 2:
            raise BenchFailed("the topic is too small to time: use more --mirror-mb")
        return size_bytes * (end - first) / end / 1e6 / (now - started)
    finally:
        destination.kill()


def log_bytes(source: KafkaBroker, topic: str) -> int:
    """Bytes of partition 0's segments at the source."""
    return sum(path.stat().st_size for path in (source.data_directory / f"{topic}-0").glob("*.log"))
