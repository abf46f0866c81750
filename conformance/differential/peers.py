"""The brokers that the runner starts, with the settings under which they can be compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kmirror_process import PROGRAM, KmirrorBroker

SETTINGS = {
    "log.retention.ms": "-1",  # the batches carry old times: nothing may be dropped while they are compared
    "num.partitions": "2",
    "offsets.topic.num.partitions": "5",  # transactions name the partition of a group
    "transaction.state.log.num.partitions": "5",
    # nothing is cleaned, compacted or expired while it is compared
    "log.retention.check.interval.ms": "86400000",
    "log.cleaner.backoff.ms": "86400000",
    "offsets.retention.check.interval.ms": "86400000",
}
KAFKA_ALONE = {"log.initial.task.delay.ms": "0"}
"""Its first check of retention comes 30 s after the start, whatever the interval."""


@contextlib.contextmanager
def started(peer: str, directory: Path, *, mistake: str | None = None) -> Iterator[str]:
    """Starts `kafka` or `kmirror`, with a mistake of `planted` or as it is, in `directory`; its address."""
    if peer == "kafka":
        with KafkaBroker(KafkaInstallation(), directory, overrides=SETTINGS | KAFKA_ALONE) as kafka:
            yield kafka.bootstrap
    else:
        program = PROGRAM if mistake is None else ("conformance.differential.planted", mistake)
        with KmirrorBroker(directory, settings=SETTINGS, program=program) as kmirror:
            yield kmirror.bootstrap
