"""What a source may send that headers alone do not give away: beyond its own end, in parts, damaged in a comparison."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from kmirror.broker import mirror_seam as seam
from kmirror.mirror.states import State
from kmirror.protocol.records import CRC_POSITION, CRC_START, Record, build_batch
from tests.mirror.test_mirrors import mirroring


def batch(offset: int, values: int = 1) -> bytes:
    return build_batch([Record(value=b"v")] * values, base_offset=offset, leader_epoch=0, timestamp_ms=0)


def with_last_offset_delta(data: bytes, delta: int) -> bytes:
    """The checksum is right: whoever sends this means it."""
    changed = bytearray(data)
    changed[23:27] = delta.to_bytes(4)
    changed[CRC_POSITION:CRC_START] = crc32c(bytes(changed[CRC_START:])).to_bytes(4)
    return bytes(changed)


@pytest.mark.parametrize(
    ("records", "high_watermark", "taken"),
    [
        (with_last_offset_delta(batch(1), 2**31 - 1), 2, 1),
        ((2**63 - 1).to_bytes(8) + batch(1)[8:], 2, 1),
        (batch(1), 1, 1),
        (batch(1), -1, 1),
        (batch(1) + with_last_offset_delta(batch(2), 2**31 - 1), 3, 2),
        (batch(1) + batch(2), 3, 3),
    ],
    ids=["huge delta", "last offset of all", "at the end", "no end", "good one, then huge delta", "all good"],
)
def test_offsets_beyond_the_source_s_own_end_are_not_taken(records: bytes, high_watermark: int, taken: int) -> None:
    _, destination, _ = mirroring()
    mirrors = destination.mirrors
    (item,) = mirrors.plan_fetch("m", 1)
    answer = seam.FetchAnswer(records=records, high_watermark=high_watermark, log_start_offset=0)
    examined = mirrors.examine("m", item, answer)
    mirrors.apply(examined)
    destination.flush.run()
    assert destination.partition().log_end_offset == taken
    assert destination.row().state == State.MIRRORING.name, "it may be a race: asked again after a pause"
    if taken == 1:
        assert "high watermark" in (destination.row().error or "")
        assert mirrors.plan_fetch("m", 1) == [], "not at once"


def test_a_first_batch_in_part_is_said() -> None:
    """It would be asked for again and again, and describe would show nothing but a lag."""
    _, destination, _ = mirroring()
    mirrors = destination.mirrors
    (item,) = mirrors.plan_fetch("m", 1)
    records = batch(1, values=10)[:-3]
    mirrors.apply(mirrors.examine("m", item, seam.FetchAnswer(records=records, high_watermark=11, log_start_offset=0)))
    assert "bytes of the batch at offset 1" in (destination.row().error or "")


def with_record_count(data: bytes, count: int) -> bytes:
    changed = bytearray(data)
    changed[57:61] = count.to_bytes(4, signed=True)
    changed[CRC_POSITION:CRC_START] = crc32c(bytes(changed[CRC_START:])).to_bytes(4)
    return bytes(changed)


def test_a_header_that_cannot_be_one_costs_its_partition_only() -> None:
    """The link of the mirror, which has other partitions, must not end with an exception."""
    _, destination, _ = mirroring()
    mirrors = destination.mirrors
    (item,) = mirrors.plan_fetch("m", 1)
    records = batch(1) + with_record_count(batch(2), -1) + batch(3)
    mirrors.apply(mirrors.examine("m", item, seam.FetchAnswer(records=records, high_watermark=4, log_start_offset=0)))
    destination.calm()
    assert destination.partition().log_end_offset == 2, "what is good before it is kept"
    row = destination.row()
    assert row.state == State.FAILED.name
    assert row.retry is not None and row.retry.retryable
    assert "-1 records" in (row.error or "")


def test_a_log_start_beyond_the_source_s_own_end_hides_nothing() -> None:
    _, destination, _ = mirroring()
    mirrors = destination.mirrors
    (item,) = mirrors.plan_fetch("m", 1)
    answer = seam.FetchAnswer(records=batch(1) + batch(2), high_watermark=3, log_start_offset=2**62)
    mirrors.apply(mirrors.examine("m", item, answer))
    destination.calm()
    assert (destination.partition().log_start_offset, destination.partition().log_end_offset) == (0, 3)

    (item,) = mirrors.plan_fetch("m", 1)
    mirrors.apply(mirrors.examine("m", item, seam.FetchAnswer(high_watermark=3, log_start_offset=2)))
    destination.calm()
    assert destination.partition().log_start_offset == 2, "a believable one is followed"


def test_a_damaged_batch_in_a_comparison_is_no_divergence() -> None:
    """The last batch is compared when the source's epoch changes; a bit flipped on its way is no other history."""
    source, destination, pump = mirroring()
    damaged = bytearray(source.data())
    damaged[-1] ^= 1

    def alter(query: seam.Query) -> seam.Answer | None:
        return seam.BatchAnswer(records=bytes(damaged)) if isinstance(query, seam.BatchQuery) else None

    source.bump()
    pump.alter = alter
    pump.refresh()
    pump.run()
    row = destination.row()
    assert "damaged batch" in (row.error or "")
    assert row.retry is not None and row.retry.retryable

    pump.alter = lambda query: None
    source.produce(b"2")
    destination.tick(60_000)
    pump.run()
    assert destination.data() == source.data()
    assert destination.row().state == State.MIRRORING.name


def test_a_full_disk_here_is_not_the_source_s_fault() -> None:
    source, destination, pump = mirroring()
    destination.fs.capacity_bytes = destination.fs.used_bytes() + 2000
    destination.world._services.space._granted_bytes = 0
    source.produce(b"x" * 5000)
    pump.run()
    row = destination.row()
    assert row.state == State.FAILED.name
    assert (row.error or "").startswith("the disk is full")
    assert row.retry is not None and row.retry.retryable
    destination.fs.capacity_bytes = None
    destination.tick(60_000)
    pump.run()
    assert destination.data() == source.data()
