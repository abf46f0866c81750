"""Batches and logs for the storage tests."""

from __future__ import annotations

from kmirror.clock import ManualClock
from kmirror.protocol.records import Record, build_batch
from kmirror.storage.filesystem import FileSystem
from kmirror.storage.log import AppendOrigin, AppendResult, Log, LogConfig, LogMode

NOW_MS = 1_700_000_000_000
DIRECTORY = "/data/t-0"


def batch(
    count: int = 1,
    *,
    base: int = 0,
    epoch: int = -1,
    size: int = 20,
    timestamp_ms: int = NOW_MS,
    timestamps: list[int] | None = None,
    codec: int = 0,
    pid: int = -1,
    producer_epoch: int = 0,
    seq: int = -1,
    txn: bool = False,
    last_delta: int | None = None,
    key: bytes | None = b"k",
) -> bytes:
    """One batch of `count` records, or one per given timestamp."""
    times = timestamps if timestamps is not None else [timestamp_ms] * count
    return build_batch(
        [Record(key, b"v" * size, timestamp=time) for time in times],
        base_offset=base,
        leader_epoch=epoch,
        compression=codec,
        producer_id=pid,
        producer_epoch=producer_epoch if pid >= 0 else -1,
        base_sequence=seq,
        transactional=txn,
        timestamp_ms=timestamp_ms,
        last_offset_delta=last_delta,
    )


def open_log(
    fs: FileSystem,
    *,
    config: LogConfig | None = None,
    clock: ManualClock | None = None,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    mode: LogMode = LogMode.WRITABLE,
    directory: str = DIRECTORY,
) -> Log:
    log = Log.open(
        fs,
        directory,
        config=config or LogConfig(),
        clock=clock or ManualClock(NOW_MS),
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
    )
    log.mode = mode
    return log


def produce(log: Log, data: bytes, *, epoch: int = 0, now_ms: int = NOW_MS, epoch_bumps: bool = False) -> AppendResult:
    return log.append(data, origin=AppendOrigin.CLIENT, leader_epoch=epoch, now_ms=now_ms, epoch_bumps=epoch_bumps)


def coordinate(log: Log, data: bytes, *, epoch: int = 0, transaction_version: int = 0) -> AppendResult:
    return log.append(
        data,
        origin=AppendOrigin.COORDINATOR,
        leader_epoch=epoch,
        now_ms=NOW_MS,
        transaction_version=transaction_version,
    )


def replicate(log: Log, data: bytes) -> AppendResult:
    log.mode = LogMode.READ_ONLY
    return log.append(data, origin=AppendOrigin.REPLICATION, leader_epoch=-1, now_ms=NOW_MS)


def offsets(log: Log) -> list[tuple[int, int]]:
    """(base, last) of every batch in the log."""
    return [(header.base_offset, header.last_offset) for header, _ in log.batches(0, 2**62)]


def content(log: Log) -> bytes:
    return b"".join(bytes(data) for _, data in log.batches(0, 2**62))


def read_bytes(log: Log, offset: int, *, max_bytes: int = 1 << 30, limit: int | None = None, one: bool = True) -> bytes:
    limit = log.log_end_offset if limit is None else limit
    result = log.read(offset, max_bytes=max_bytes, limit_offset=limit, at_least_one=one)
    data = b"".join(piece.read() for piece in result.slices)
    assert len(data) == result.size_bytes
    return data
