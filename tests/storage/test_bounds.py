"""Where numbers end: times, sequences, producer epochs, sizes of segments, indexes and batches."""

from __future__ import annotations

import pytest

from kmirror.broker.storage_codes import api_error
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import MAX_SEQUENCE, Record, build_batch, end_txn_marker, parse_header
from kmirror.storage.errors import (
    AppendRefused,
    InvalidProducerEpoch,
    InvalidTimestamp,
    OutOfOrderSequence,
    RecordBatchTooLarge,
    RecordTooLarge,
)
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from kmirror.storage.values import LONG_MAX
from tests.storage.making import NOW_MS, batch, coordinate, offsets, open_log, produce, replicate
from tests.storage.test_known_bugs import every_way, first_read

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
MAX_EPOCH = 2**15 - 1
LONG_MIN = -(2**63)


# --- times --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "before_ms", "after_ms", "bad"),
    [
        ([NOW_MS], LONG_MAX, HOUR_MS, ()),
        ([NOW_MS + HOUR_MS, NOW_MS], LONG_MAX, HOUR_MS, ()),
        ([NOW_MS + HOUR_MS + 1, NOW_MS], LONG_MAX, HOUR_MS, (0,)),
        ([LONG_MAX], LONG_MAX, HOUR_MS, (0,)),
        ([LONG_MAX], LONG_MAX, LONG_MAX, ()),
        ([0, -1, -2, -(10**15)], LONG_MAX, HOUR_MS, ()),
        ([LONG_MIN + 1], LONG_MAX, HOUR_MS, (0,)),
        ([NOW_MS - DAY_MS, NOW_MS], DAY_MS, HOUR_MS, ()),
        ([NOW_MS, NOW_MS - DAY_MS - 1], DAY_MS, HOUR_MS, (1,)),
        ([-1, -1], DAY_MS, HOUR_MS, ()),
        ([-1, NOW_MS], DAY_MS, HOUR_MS, ()),
        ([-1, 5, NOW_MS], DAY_MS, HOUR_MS, (1,)),
        ([NOW_MS, -5], DAY_MS, HOUR_MS, (1,)),
    ],
)
def test_times_outside_the_limits_are_refused_and_named(
    times: list[int], before_ms: int, after_ms: int, bad: tuple[int, ...]
) -> None:
    """LogValidator.recordHasInvalidTimestamp: only -1 is no time, any other is compared."""
    config = LogConfig(message_timestamp_before_max_ms=before_ms, message_timestamp_after_max_ms=after_ms)
    log = open_log(MemoryFileSystem(), config=config)
    data = batch(timestamps=times, timestamp_ms=times[0])
    if bad:
        with pytest.raises(InvalidTimestamp) as refused:
            produce(log, data)
        assert refused.value.record_indexes == bad
        assert api_error(refused.value).code == ErrorCode.INVALID_TIMESTAMP
        assert log.log_end_offset == 0
    else:
        assert produce(log, data).last_offset == len(times) - 1


@pytest.mark.parametrize("mirrored", [True, False])
def test_any_time_is_kept_looked_up_and_found_again(mirrored: bool) -> None:
    """A mirror takes what its source took; a lookup finds the first at or after, over restarts and lost indexes."""
    times = [-5 if mirrored else -1, -1, 0, 7, LONG_MAX, 3, NOW_MS]
    config = LogConfig(index_interval_bytes=1, message_timestamp_after_max_ms=LONG_MAX)
    log = open_log(MemoryFileSystem(), config=config)
    for base, time in enumerate(times):
        if mirrored:
            replicate(log, batch(timestamps=[time], timestamp_ms=time, base=base, epoch=0))
        else:
            produce(log, batch(timestamps=[time], timestamp_ms=time))
        if base == 3:
            log.roll()
    for current in every_way(log):
        for asked, expected in ((0, 2), (1, 3), (7, 3), (8, 4), (NOW_MS, 4), (LONG_MAX, 4)):
            found = current.offset_for_timestamp(asked, len(times))
            assert found is not None and found.offset == expected
        found = current.max_timestamp_offset(len(times))
        assert found is not None and (found.offset, found.timestamp_ms) == (4, LONG_MAX)


def test_a_time_from_the_future_rolls_nothing_and_one_from_the_past_does_not_either() -> None:
    """`segment.ms` counts from the first batch's time to the newest one's (LogSegment.timeWaitedForRoll)."""
    config = LogConfig(segment_ms=1_000, message_timestamp_after_max_ms=LONG_MAX)
    log = open_log(MemoryFileSystem(), config=config)
    produce(log, batch(timestamp_ms=NOW_MS + 10 * DAY_MS))
    produce(log, batch(timestamp_ms=NOW_MS - 10 * DAY_MS))
    assert len(log.segments) == 1
    produce(log, batch(timestamp_ms=NOW_MS + 10 * DAY_MS + 1_001))
    assert len(log.segments) == 2


# --- producers ----------------------------------------------------------------------------------------------------


def after(sequence: int, *, epoch: int = 0) -> Log:
    """A log in which producer 4 wrote up to `sequence`."""
    log = open_log(MemoryFileSystem())
    produce(log, batch(1, pid=4, producer_epoch=epoch, seq=sequence))
    return log


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("last", "count", "following"),
    [
        (MAX_SEQUENCE, 1, 1),
        (MAX_SEQUENCE, 3, 3),
        (MAX_SEQUENCE - 1, 1, 0),
        (MAX_SEQUENCE - 1, 3, 2),
        (MAX_SEQUENCE - 2, 5, 3),
    ],
)
def test_sequences_wrap_to_0(last: int, count: int, following: int, restart: bool) -> None:
    """Between two batches and inside one; duplicates are known across the end, gaps and repeats refused."""
    log = after(last)
    first = (last + 1) % (MAX_SEQUENCE + 1)
    wrapping = batch(count, pid=4, seq=first)
    assert produce(log, wrapping).base_offset == 1
    assert log.producers.entries[4].last_sequence == (following - 1) % (MAX_SEQUENCE + 1)
    for current in every_way(log) if restart else [log]:
        again = produce(current, wrapping)
        assert (again.duplicate, again.base_offset, again.last_offset) == (True, 1, count)
        for wrong in (following + 1, (following - 2) % (MAX_SEQUENCE + 1)):
            with pytest.raises(OutOfOrderSequence):
                produce(current, batch(7, pid=4, seq=wrong))
        log = current
    assert not produce(log, batch(1, pid=4, seq=following)).duplicate


def test_producer_epochs_up_to_the_last() -> None:
    log = after(0, epoch=MAX_EPOCH - 1)
    assert not produce(log, batch(1, pid=4, producer_epoch=MAX_EPOCH, seq=0)).duplicate
    for current in every_way(log):
        for old in (MAX_EPOCH - 1, 0):
            with pytest.raises(InvalidProducerEpoch):
                produce(current, batch(1, pid=4, producer_epoch=old, seq=1))
        assert current.producers.entries[4].producer_epoch == MAX_EPOCH
    produce(current, batch(1, pid=4, producer_epoch=MAX_EPOCH, seq=1, txn=True))
    end = end_txn_marker(
        commit=False, producer_id=4, producer_epoch=MAX_EPOCH, coordinator_epoch=0, timestamp_ms=NOW_MS
    )
    coordinate(current, end, transaction_version=1)
    assert current.first_undecided_offset is None
    assert len(current.aborted_transactions(0, 99)) == 1


def test_the_largest_producer_id() -> None:
    log = open_log(MemoryFileSystem())
    produce(log, batch(1, pid=LONG_MAX, seq=0))
    for current in every_way(log):
        assert current.max_producer_id == LONG_MAX
        assert produce(current, batch(1, pid=LONG_MAX, seq=0)).duplicate


# --- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "config", "error", "code"),
    [
        (0, {}, None, 0),
        (1, {}, RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
        (0, {"segment_bytes": 500}, None, 0),
        (0, {"segment_bytes": 499}, RecordBatchTooLarge, ErrorCode.RECORD_LIST_TOO_LARGE),
    ],
)
def test_a_batch_as_large_as_it_may_be_and_a_byte_larger(
    size: int, config: dict[str, int], error: type[AppendRefused] | None, code: int
) -> None:
    """max.message.bytes counts the whole batch; one that fits no segment has a code of its own (UnifiedLog.append)."""
    made = (build_batch([Record(b"", b"v" * length)]) for length in range(600))
    data = next(data for data in made if len(data) == 500 + size)
    log = open_log(MemoryFileSystem(), config=LogConfig(**{"max_message_bytes": 500, **config}))  # type: ignore[arg-type]
    if error is None:
        for _ in range(3):
            produce(log, data)
        assert len(log.segments) == (3 if config else 1)
        return
    with pytest.raises(error) as refused:
        produce(log, data)
    assert api_error(refused.value).code == code
    assert (log.log_end_offset, log.size_bytes, len(log.segments)) == (0, 0, 1)


def test_a_batch_that_grows_beyond_the_limit_when_it_is_rebuilt_is_refused() -> None:
    """The topic asks for another codec: what is stored counts."""
    data = build_batch([Record(None, bytes(2_000))], compression=4)
    assert len(data) < 500
    log = open_log(MemoryFileSystem(), config=LogConfig(max_message_bytes=500, compression_type="uncompressed"))
    with pytest.raises(RecordTooLarge):
        produce(log, data)
    assert log.log_end_offset == 0


def test_a_mirror_takes_batches_that_no_client_may_write() -> None:
    """The source's limits were others; nothing may be missing."""
    log = open_log(MemoryFileSystem(), config=LogConfig(max_message_bytes=300, segment_bytes=400))
    for base in range(3):
        replicate(log, batch(1, base=base, epoch=0, size=1_000))
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    for current in every_way(log):
        assert offsets(current) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("mirrored", [True, False])
def test_no_segment_grows_beyond_its_size_nor_its_indexes_beyond_theirs(mirrored: bool) -> None:
    """`segment.bytes`, and `segment.index.bytes` for both indexes; the time index keeps room for the last entry."""
    config = LogConfig(segment_bytes=3_000, segment_index_bytes=60, index_interval_bytes=1)
    log = open_log(MemoryFileSystem(), config=config)
    for base in range(60):
        size = 1 if base < 30 else 900
        if mirrored:
            replicate(log, batch(1, base=base, epoch=0, size=size, timestamp_ms=NOW_MS + base))
        else:
            produce(log, batch(1, size=size, timestamp_ms=NOW_MS + base))
    log.flush()
    sizes = [segment.size_bytes for segment in log.segments]
    assert max(sizes) <= 3_000 and len(sizes) > 10
    for current in every_way(log):
        for segment in current.segments:
            segment.load_indexes()
            assert len(segment.offset_index) * 8 <= 60
            assert len(segment.time_index) * 12 <= 60
        assert [first_read(current, offset) for offset in range(60)] == [(n, n) for n in range(60)]


def test_headers_say_what_is_stored() -> None:
    """The largest offset delta that a client may write: offsets go on behind it."""
    log = open_log(MemoryFileSystem())
    result = produce(log, batch(10_000, size=1))
    assert (result.base_offset, result.last_offset) == (0, 9_999)
    assert produce(log, batch(1)).base_offset == 10_000
    assert parse_header(log.segments[0].file.pread(61, 0)).last_offset == 9_999
