"""`kmirror dump --verify` beside a broker that writes, rolls, cleans, expires, deletes: no false word, and no harm."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.peers.kmirror_process import KmirrorBroker, run_kmirror
from conformance.wire.batches import Rec, batch
from conformance.wire.client import Broker
from tests.integration.watching import topic_of

pytestmark = pytest.mark.integration
LOOKS = 5
BATCHES_AT_MOST = 20_000
SETTINGS = {
    "log.cleaner.backoff.ms": "20",
    "log.retention.check.interval.ms": "20",
    "log.segment.delete.delay.ms": "1",
    "metadata.log.max.record.bytes.between.snapshots": "500",
}
SMALL = ("--set", "segment.bytes=1048576", "--set", "segment.ms=50")
TOPICS = {
    "expired": ("--set", "retention.bytes=1000000"),
    "cleaned": ("--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0.01"),
    "kept": (),
}


@contextmanager
def written_to(broker: KmirrorBroker) -> Iterator[list[int]]:
    """All topics get batches in the meantime; the list has how many each round wrote."""
    over = threading.Event()
    written: list[int] = []
    failed: list[BaseException] = []

    def write() -> None:
        try:
            client = Broker(broker.bootstrap)
            topics = [topic_of(client, name) for name in TOPICS]
            for number in range(BATCHES_AT_MOST):
                for topic in topics:
                    records = [Rec(key=b"k%d" % (number % 9), value=b"%d" % number * 500)] * 5
                    row = client.produce(topic, batch(records, timestamp_ms=time.time_ns() // 1_000_000))
                    assert row.error_code == 0
                written.append(len(topics))
                if over.is_set():
                    return
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()
    assert not failed


def test_no_false_word_while_everything_moves(tmp_path: Path) -> None:
    with KmirrorBroker(tmp_path / "kmirror", settings=SETTINGS) as broker:
        for name, settings in TOPICS.items():
            broker.run("topic", "create", name, *SMALL, *settings)
        seen = set()
        with written_to(broker) as written:
            for number in range(LOOKS):
                broker.run("topic", "create", f"more-{number}")
                if number:
                    broker.run("topic", "delete", f"more-{number - 1}")
                before = len(written)
                ran = run_kmirror("dump", "--verify", "--json", str(broker.data_directory), check=False)
                *findings, summary = map(json.loads, ran.stdout.splitlines())
                worse = [finding for finding in findings if finding["severity"] != "note"]
                assert (ran.returncode, worse) == (0, []), "\n".join(map(str, worse))
                assert summary["running"]
                seen.add(summary["records"])
                assert len(written) > before, "nothing was written meanwhile"
        assert len(seen) > LOOKS // 2
    ran = run_kmirror("dump", "--verify", "--json", str(broker.data_directory))
    *findings, _summary = map(json.loads, ran.stdout.splitlines())
    for finding in findings:  # the stop may have come in the middle of a cleaning
        assert finding["severity"] == "stale" and finding["file"].endswith(".cleaned"), finding
