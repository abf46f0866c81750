"""A disk that fills up: clients are refused first, metadata still fits, a flush without space waits, and it heals."""

from __future__ import annotations

import pytest

from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.errors import ApiError, DiskFull
from kmirror.limits import DISK_RESERVE_BYTES, DISK_RESERVE_SHARE
from kmirror.protocol.errors import ErrorCode
from kmirror.storage.memory import MemoryFileSystem
from kmirror.storage.space import SpaceGuard
from tests.broker.harness import Broker, error_code

VALUE = b"x" * 4096


def fill(broker: Broker, topic: str) -> int:
    """Produce until refused, each batch by a producer of its own; the number of acknowledged batches."""
    for number in range(10_000):
        try:
            broker.produce(topic, VALUE, producer_id=number, producer_epoch=0, base_sequence=0)
        except ApiError as error:
            assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
            return number
    raise AssertionError("the disk never became full")


def test_what_must_always_be_written_has_space_when_clients_have_none() -> None:
    broker = Broker()
    broker.create("t")
    broker.fs.capacity_bytes = broker.fs.used_bytes() + 1_000_000
    acknowledged = fill(broker, "t")
    assert acknowledged > 100

    broker.create("another")
    broker.settle(broker.world.delete_topic("another"))
    broker.world.write_checkpoints()
    assert not broker.fatal
    partition = broker.world.partition("t", 0)
    assert partition.high_watermark == acknowledged, "what was acknowledged is on disk, nothing else is there"
    assert partition.read(0, max_bytes=1 << 30).next_offset == acknowledged

    broker.fs.capacity_bytes = None
    assert broker.produce("t", VALUE) == acknowledged
    broker.crash()
    assert broker.world.partition("t", 0).high_watermark == acknowledged + 1


def test_a_flush_without_space_for_its_small_files_is_acknowledged_later() -> None:
    """Another program took the reserve too: the data is written, what recovery trusts beside it is not yet."""
    broker = Broker()
    broker.create("t")
    partition = broker.world.partition("t", 0)
    broker.produce("t", VALUE, producer_id=1, producer_epoch=0, base_sequence=0)
    broker.produce("t", VALUE, producer_id=2, producer_epoch=0, base_sequence=0, flush=False)
    told: list[str] = []
    partition.when_committed(2).then(lambda _: told.append("on disk"))
    broker.fs.capacity_bytes = broker.fs.used_bytes()
    broker.flush.run()
    assert told == []
    assert partition.high_watermark == 1
    assert not broker.fatal

    broker.fs.capacity_bytes = None
    broker.flush.run()
    assert told == ["on disk"]
    broker.crash()
    assert broker.world.partition("t", 0).high_watermark == 2


def test_deleting_records_on_a_full_disk_is_refused_with_a_code() -> None:
    broker = Broker()
    broker.create("t")
    broker.produce("t", VALUE)
    broker.fs.capacity_bytes = broker.fs.used_bytes()
    with pytest.raises(ApiError) as refused:
        broker.world.delete_records("t", 0, -1)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.fs.capacity_bytes = None
    assert broker.world.delete_records("t", 0, -1) == 1


def test_metadata_is_refused_at_the_very_end_and_heals() -> None:
    broker = Broker()
    broker.fs.capacity_bytes = broker.fs.used_bytes()
    assert error_code(broker.world.create_topic(CreateTopicSpec("t", 1))) == ErrorCode.KAFKA_STORAGE_ERROR
    broker.fs.capacity_bytes = None
    broker.create("t")


def test_the_guard_asks_again_at_every_refusal_and_never_grants_the_reserve() -> None:
    fs = MemoryFileSystem()
    fs.capacity_bytes = 16 * DISK_RESERVE_SHARE
    guard = SpaceGuard(fs, "/")
    file = fs.open("/file", create=True)
    for _ in range(15 * DISK_RESERVE_SHARE):
        guard.take(1)
        file.append([b"x"])
    with pytest.raises(DiskFull):
        guard.take(1)
    fs.capacity_bytes = 1 << 40
    guard.take((1 << 40) - DISK_RESERVE_BYTES - file.size_bytes)
    with pytest.raises(DiskFull):
        guard.take(1 << 41)
