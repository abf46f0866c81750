"""A data directory that somebody damaged while the broker was stopped: said, refused or healed, never silently less."""

from __future__ import annotations

import logging

import pytest

from kmirror.errors import ApiError, CorruptData
from kmirror.protocol.errors import ErrorCode
from tests.broker.harness import DIRECTORY, Broker

METADATA = f"{DIRECTORY}/__cluster_metadata-0"
METADATA_SEGMENT = f"{METADATA}/00000000000000000000.log"


@pytest.fixture
def stopped() -> Broker:
    """Ten batches in t-0, stopped cleanly; `_open` starts it again."""
    broker = Broker({"log.index.interval.bytes": "64"})
    broker.create("t")
    for _ in range(10):
        broker.produce("t", b"x" * 100)
    broker.flush.run()
    broker.world.close(clean=True)
    return broker


def flip(broker: Broker, path: str, position: int) -> None:
    data = bytearray(broker.fs.read_file(path))
    data[position] ^= 0x55
    broker.fs.write_atomic(path, bytes(data))


def code_of_read(broker: Broker) -> int:
    try:
        broker.world.partition("t", 0).read(0, max_bytes=1000)
    except ApiError as error:
        return error.code
    return 0


def test_a_flipped_bit_in_the_metadata_log_is_found(stopped: Broker) -> None:
    flip(stopped, METADATA_SEGMENT, 200)
    with pytest.raises(CorruptData, match="checksum"):
        stopped._open()


def test_data_without_its_metadata_log_is_refused(stopped: Broker) -> None:
    stopped.fs.remove_tree(METADATA)
    with pytest.raises(CorruptData, match="missing or empty"):
        stopped._open()


def test_data_without_meta_properties_is_refused(stopped: Broker) -> None:
    identity = stopped.fs.read_file(f"{DIRECTORY}/meta.properties")
    stopped.fs.remove(f"{DIRECTORY}/meta.properties")
    with pytest.raises(CorruptData, match="another id"):
        stopped._open()
    stopped.fs.write_atomic(f"{DIRECTORY}/meta.properties", identity)
    stopped._open()
    assert stopped.world.partition("t", 0).high_watermark == 10


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"], ids=["missing", "empty", "not text"])
def test_records_of_nobody_are_not_replaced_by_an_empty_log(stopped: Broker, content: bytes | None) -> None:
    path = f"{DIRECTORY}/t-0/partition.metadata"
    right = stopped.fs.read_file(path)
    stopped.fs.remove(path)
    if content is not None:
        stopped.fs.write_atomic(path, content)
    stopped._open()
    assert code_of_read(stopped) == ErrorCode.KAFKA_STORAGE_ERROR
    stopped.world.close(clean=True)
    stopped.fs.write_atomic(path, right)
    stopped._open()
    assert stopped.world.partition("t", 0).high_watermark == 10


def test_a_damaged_log_is_looked_at_once(
    stopped: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that asks again and again must not have the whole log read again and again."""
    segment = stopped.fs.open(f"{DIRECTORY}/t-0/00000000000000000000.log")
    segment.truncate(segment.size_bytes - 10)
    stopped._open()
    reads = 0
    read_file = stopped.fs.read_file

    def counted(path: str) -> bytes:
        nonlocal reads
        reads += 1
        return read_file(path)

    assert code_of_read(stopped) == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.setattr(stopped.fs, "read_file", counted)
    assert [code_of_read(stopped) for _ in range(5)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 5
    assert reads == 0
    assert sum("cannot be opened" in message for message in caplog.messages) == 1


def test_a_log_that_lost_its_end_is_offline(stopped: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Its offsets are not given out again, over any number of restarts, and the other partitions go on."""
    stopped._open()
    stopped.create("other")
    stopped.world.close(clean=True)
    names = [f"{DIRECTORY}/t-0/00000000000000000000.{suffix}" for suffix in ("log", "index", "timeindex")]
    whole = [stopped.fs.read_file(name) for name in names]
    for name in names:
        stopped.fs.open(name).truncate(0)
    for _ in range(3):
        stopped._open()
        with pytest.raises(ApiError) as refused:
            stopped.produce("t", b"would be offset 0")
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR == code_of_read(stopped)
        stopped.produce("other", b"fine")
        stopped.world.close(clean=True)
    assert any("/data/t-0 ends at offset 0, but records up to 10 were on disk" in text for text in caplog.messages)
    for name, data in zip(names, whole, strict=True):
        stopped.fs.write_atomic(name, data)
    stopped._open()
    assert stopped.world.partition("t", 0).high_watermark == 10 and stopped.produce("t", b"more") == 10
    assert stopped.world.partition("other", 0).log_end_offset == 3


def test_a_removed_segment_takes_the_partition_offline(stopped: Broker, caplog: pytest.LogCaptureFixture) -> None:
    stopped.fs.remove(f"{DIRECTORY}/t-0/00000000000000000000.log")
    stopped._open()
    assert code_of_read(stopped) == ErrorCode.KAFKA_STORAGE_ERROR
    assert any("/data/t-0/00000000000000000000.log is missing" in text for text in caplog.messages)


def test_a_stop_is_not_clean_while_a_log_waits_for_its_recovery(stopped: Broker) -> None:
    """The tail behind the recovery point of a log that could not be opened has not been looked at."""
    stopped._open()
    stopped.produce("t", b"x" * 100)
    segment = stopped.fs.open(f"{DIRECTORY}/t-0/00000000000000000000.log")
    segment.truncate(segment.size_bytes - 50)
    stopped.world.close(clean=False)
    index = f"{DIRECTORY}/t-0/partition.metadata"
    right = stopped.fs.read_file(index)
    stopped.fs.write_atomic(index, b"")
    stopped._open()
    assert code_of_read(stopped) == ErrorCode.KAFKA_STORAGE_ERROR
    stopped.world.close(clean=True)
    stopped.fs.write_atomic(index, right)
    stopped._open()
    assert not stopped.world.directory.clean
    assert stopped.world.partition("t", 0).high_watermark == 10


def test_a_directory_that_is_gone_is_missed(stopped: Broker, caplog: pytest.LogCaptureFixture) -> None:
    stopped.fs.remove_tree(f"{DIRECTORY}/t-0")
    stopped._open()
    missed = [record for record in caplog.records if "has no directory" in record.message]
    assert [record.levelno for record in missed] == [logging.ERROR]
    assert "10 offsets" in missed[0].message


@pytest.mark.parametrize(
    "name", ["foo.log", "5.log", "-5.log", "٣.log", "².snapshot", "1.snapshot", "x.snapshot", ".log", "7.index"]
)
def test_files_with_strange_names_are_left_alone(stopped: Broker, name: str) -> None:
    path = f"{DIRECTORY}/t-0/{name}"
    stopped.fs.write_atomic(path, b"not ours")
    stopped._open()
    assert stopped.world.partition("t", 0).high_watermark == 10
    assert stopped.produce("t", b"more") == 10
    assert stopped.fs.read_file(path) == b"not ours"
