"""Batches of random content for the model test: what clients, coordinators and sources of mirrors send."""

from __future__ import annotations

import gzip
import random
import struct
import zlib

from kmirror.protocol.records import Record, build_batch, end_txn_marker, mirror_pid_reset

KEYS = (b"a", b"b", b"c", b"d", b"a key of more than sixteen bytes", None)


def records(chance: random.Random, count: int, now_ms: int) -> list[Record]:
    return [
        Record(
            chance.choice(KEYS),
            None if chance.random() < 0.25 else b"%d" % chance.randrange(10**6) + b"v" * chance.choice([0, 20, 120]),
            headers=[("h", b"x")] if chance.random() < 0.05 else [],
            timestamp=now_ms + chance.randint(-50, 50),
        )
        for _ in range(count)
    ]


def data_batch(
    chance: random.Random,
    count: int,
    now_ms: int,
    *,
    pid: int = -1,
    producer_epoch: int = -1,
    seq: int = -1,
    txn: bool = False,
    base: int = 0,
    epoch: int = -1,
    last_delta: int | None = None,
) -> bytes:
    return build_batch(
        records(chance, count, now_ms),
        base_offset=base,
        leader_epoch=epoch,
        compression=chance.choice([0, 0, 1]),
        producer_id=pid,
        producer_epoch=producer_epoch,
        base_sequence=seq,
        transactional=txn,
        timestamp_ms=now_ms,
        last_offset_delta=last_delta,
    )


def stamped(data: bytes, base: int, epoch: int) -> bytes:
    """With base offset and leader epoch, both outside the checksum."""
    return base.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]


def marker(chance: random.Random, pid: int, producer_epoch: int, coordinator_epoch: int, now_ms: int) -> bytes:
    return end_txn_marker(
        commit=chance.random() < 0.5,
        producer_id=pid,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=now_ms,
    )


# --- from a source ----------------------------------------------------------------------------------------------


def of_source(chance: random.Random, base: int, epoch: int, now_ms: int, producer_epochs: dict[int, int]) -> bytes:
    """A few batches from `base` on, as a mirror's source may send them: with holes that compaction left there, empty
    batches, markers, resets, message sets of magic 0 and 1. Epochs never go back; those of producers are kept up."""
    parts: list[bytes] = []
    for _ in range(chance.randint(1, 6)):
        if chance.random() < 0.2:
            base += chance.choice([1, 7, 3000]) if chance.random() < 0.97 else 2**31 + 5
        if chance.random() < 0.1:
            epoch += chance.randint(1, 3)
        kind = chance.random()
        if kind < 0.12:
            data, base = old_set(chance, base, now_ms)
            parts.append(data)
            continue
        pid = chance.choice([-1, -1, 10, 11, 12])
        producer_epochs[pid] = max(0, producer_epochs.get(pid, 0)) + (chance.random() < 0.15)
        if kind < 0.15:
            data = mirror_pid_reset(timestamp_ms=now_ms)
        elif pid >= 0 and kind < 0.4:
            data = marker(chance, pid, producer_epochs[pid], 1, now_ms)
        else:
            count = 0 if pid >= 0 and kind > 0.95 else chance.randint(1, 3)
            data = data_batch(
                chance,
                count,
                now_ms,
                pid=pid,
                producer_epoch=producer_epochs[pid] if pid >= 0 else -1,
                seq=chance.randint(0, 9) if pid >= 0 else -1,
                txn=pid >= 0 and chance.random() < 0.6,
                last_delta=max(0, count - 1) + (chance.randint(1, 5) if chance.random() < 0.15 else 0),
            )
        parts.append(stamped(data, base, epoch))
        base += int.from_bytes(data[23:27], "big") + 1
    return b"".join(parts)


def old_set(chance: random.Random, base: int, now_ms: int) -> tuple[bytes, int]:
    """One plain message, or a wrapper of two or three, from `base` on; and the offset behind it."""
    magic = chance.choice([0, 1])
    count = chance.choice([1, 1, 2, 3])
    plain = [
        (chance.choice(KEYS), b"old %d" % chance.randrange(1000), now_ms + chance.randint(-50, 50))
        for _ in range(count)
    ]
    last = base + count - 1
    if count == 1:
        return old_message(magic, base, *plain[0]), base + 1
    first = 0 if magic == 1 else base  # inside a wrapper magic 1 counts from 0
    inner = b"".join(old_message(magic, first + index, *one) for index, one in enumerate(plain))
    newest = max(one[2] for one in plain)
    return old_message(magic, last, None, gzip.compress(inner, mtime=0), newest, codec=1), last + 1


def old_message(magic: int, offset: int, key: bytes | None, value: bytes, timestamp: int, codec: int = 0) -> bytes:
    body = struct.pack(">bb", magic, codec)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body
