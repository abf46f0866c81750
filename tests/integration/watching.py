"""Waiting for a state, and looking at partition directories from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import DEADLINE_S, eventually
from conformance.wire.batches import HEADER_BYTES, Batch, parse
from conformance.wire.client import Broker, Topic


def describe(destination: KmirrorBroker, mirror: str = "m") -> list[dict[str, Any]]:
    """`kmirror mirror describe --json`."""
    rows: list[dict[str, Any]] = destination.run("mirror", "describe", mirror, "--json").json()
    return rows


def states(destination: KmirrorBroker, mirror: str = "m") -> set[str]:
    return {row["state"] for row in describe(destination, mirror)}


def wait_for_state(destination: KmirrorBroker, state: str, mirror: str = "m", *, timeout_s: float = DEADLINE_S) -> None:
    def look() -> bool:
        found = states(destination, mirror)
        return found == {state}

    eventually(look, what=f"state {state} of mirror {mirror}", timeout_s=timeout_s)


def topic_of(broker: Broker, name: str) -> Topic:
    """A topic as the broker knows it, by name."""
    row = broker.describe_topic(name)
    assert row.error_code == 0, row
    return Topic(name, bytes(row.topic_id), len(row.partitions))


def wait_until_equal_ends(source: str, destination: str, topic: str, *, timeout_s: float = DEADLINE_S) -> None:
    """Until the destination has every partition of the topic up to the source's high watermark."""
    ours, theirs = Broker(destination), Broker(source)
    there = topic_of(theirs, topic)

    def ends(broker: Broker) -> list[int]:
        if broker.describe_topic(topic).error_code:
            return []
        return [broker.list_offset(there, -1, partition=index).offset for index in range(there.partition_count)]

    eventually(
        lambda: ends(ours) == ends(theirs), what=f"caught-up mirror of {topic}: {ends(ours)}", timeout_s=timeout_s
    )


def segments(data_directory: Path, topic: str, partition: int) -> list[Path]:
    return sorted((data_directory / f"{topic}-{partition}").glob("*.log"))


def stored(data_directory: Path, topic: str, partition: int, *, log_start: int) -> bytes:
    """The batches of a partition as they lie on disk, from the one that contains the log start on, as one string."""
    files = segments(data_directory, topic, partition)
    whole = b"".join(path.read_bytes() for path in files if path.suffix == ".log")
    position = 0
    for batch in parse(whole):
        if batch.last_offset >= log_start:
            break
        position += batch.size_bytes
    return whole[position:]


def batches_on_disk(data_directory: Path, topic: str, partition: int) -> list[Batch]:
    whole = b"".join(path.read_bytes() for path in segments(data_directory, topic, partition))
    found = parse(whole)
    assert sum(batch.size_bytes for batch in found) == len(whole), "bytes after the last whole batch"
    assert all(batch.crc_ok for batch in found)
    return found


def control_types(data_directory: Path, topic: str, partition: int) -> list[tuple[int, int, int]]:
    """(offset, control type, producer id) of every control batch. Type 0 ABORT, 1 COMMIT, 7 MIRROR_PID_RESET."""
    whole = b"".join(path.read_bytes() for path in segments(data_directory, topic, partition))
    found, position = [], 0
    for batch in parse(whole):
        if batch.attributes & 0x20:
            # the record: length, attributes, timestamp delta, offset delta (one byte each here), key length 4, key
            key = whole[position + HEADER_BYTES + 5 : position + HEADER_BYTES + 9]
            found.append((batch.base_offset, int.from_bytes(key[2:4]), batch.producer_id))
        position += batch.size_bytes
    return found
