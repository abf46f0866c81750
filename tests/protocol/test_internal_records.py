"""Records of internal topics: framing, tombstones, and bytes that a real Kafka wrote."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kmirror.errors import DecodeError, EncodeError
from kmirror.protocol import records, uuids
from kmirror.protocol.internal import cluster_metadata as metadata
from kmirror.protocol.internal import cluster_metadata_rest as rest
from kmirror.protocol.internal import control
from kmirror.protocol.internal import mirror_state as mirror
from kmirror.protocol.schema import schema_of
from tests.protocol.generator import all_versions, random_message

WRITTEN_BY_KAFKA = {
    # values in the metadata log of an Apache Kafka 4.4.0 broker (KRaft, one node), read out of its segment file
    "010c00116d657461646174612e76657273696f6e002100": metadata.FeatureLevelRecord(
        name="metadata.version", feature_level=33
    ),
    "01170001001212426f6f747374726170207265636f726473": rest.BeginTransactionRecord(name="Bootstrap records"),
    "0104000401146d696e2e696e73796e632e7265706c69636173023100": metadata.ConfigRecord(
        resource_type=4, resource_name="", name="min.insync.replicas", value="1"
    ),
    "01180000": rest.EndTransactionRecord(),
    "01110000000001000000000000000d010001ff": metadata.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=13, fenced=-1
    ),
    "01110300000001000000000000000d01030101": metadata.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=13, cordoned_log_dirs=[]
    ),
    "01140000": metadata.NoOpRecord(),
    "0102000374311cbac86510a2480ab3dd3dcb6a1e30a700": metadata.TopicRecord(
        name="t1", topic_id=bytes.fromhex("1cbac86510a2480ab3dd3dcb6a1e30a7")
    ),
    "010f0000000001000000000000000e00000000000003e800": metadata.ProducerIdsRecord(
        broker_id=1, broker_epoch=14, next_producer_id=1000
    ),
    "0109003d25b20055464a39859306c4bd57c4d000": metadata.RemoveTopicRecord(
        topic_id=bytes.fromhex("3d25b20055464a39859306c4bd57c4d0")
    ),
    "011c00145f5f7472616e73616374696f6e5f737461746500": rest.ClearElrRecord(topic_name="__transaction_state"),
}


@pytest.mark.parametrize("value", WRITTEN_BY_KAFKA, ids=lambda value: type(WRITTEN_BY_KAFKA[value]).__name__)
def test_metadata_records_that_kafka_wrote(value: str) -> None:
    data = bytes.fromhex(value)
    record = metadata.decode_metadata(data)
    assert record == WRITTEN_BY_KAFKA[value]
    assert metadata.encode_metadata(record, version=data[2]) == data


def test_every_metadata_record_and_version(rng: random.Random) -> None:
    for cls in (metadata._TYPES | rest.TYPES).values():
        for version in all_versions(cls):
            record = random_message(rng, cls, version)
            data = metadata.encode_metadata(record, version)
            assert data[:2] == bytes([1, schema_of(cls).key or 0])
            assert metadata.decode_metadata(memoryview(data)) == record
        newest = metadata.encode_metadata(cls())
        assert newest[2] == schema_of(cls).versions.high


@pytest.mark.parametrize(
    "data", ["", "01", "0102", "0202000374", "01020103743100", "01630000", "0114000000", "01ffffffffff"]
)
def test_bad_metadata_records(data: str) -> None:
    with pytest.raises(DecodeError):
        metadata.decode_metadata(bytes.fromhex(data))


def test_only_metadata_records_are_framed() -> None:
    with pytest.raises(EncodeError):
        metadata.encode_metadata(control.EndTxnMarker())


TOPIC_ID = uuids.from_text("AAAAAAAAAAAAAAAAAAABAQ")


def test_mirror_state_in_bytes() -> None:
    """Key: type, name, id, partition, none of it compact. Value: version, then a flexible body."""
    key = mirror.MirrorPartitionStateKey(mirror_name="a-to-b", topic_id=TOPIC_ID, partition=7)
    assert mirror.encode_key(key) == bytes.fromhex("00010006") + b"a-to-b" + TOPIC_ID + bytes.fromhex("00000007")
    state = mirror.MirrorPartitionState(state=0, leader_epoch=5, state_epoch=3, cut_to=258)
    assert mirror.encode_value(state) == bytes.fromhex("0000000000000500000003000000ff0100080000000000000102")
    lineage = mirror.LastMirrorEpochs(last_mirror_epoch=4, last_mirror_offset=99, source_cluster_id="src")
    assert mirror.encode_value(lineage) == bytes.fromhex("000000000004000000000000006301000404") + b"src"
    gap = mirror.MirrorGapKey(mirror_name="m", topic_id=TOPIC_ID, partition=0, from_offset=10)
    assert mirror.encode_key(gap) == bytes.fromhex("00030001") + b"m" + TOPIC_ID + bytes.fromhex(
        "00000000000000000000000a"
    )


def test_mirror_state_comes_back(rng: random.Random) -> None:
    for key_class, value_class in mirror._VALUES.items():
        for _ in range(20):
            key: Any = random_message(rng, key_class, 0)
            value: Any = random_message(rng, value_class, 0)
            assert mirror.decode_key(mirror.encode_key(key)) == key
            assert mirror.decode_value(key, mirror.encode_value(value)) == value
            assert mirror.decode_value(key, None) is None


def test_defaults_of_mirror_state_mean_nothing_known() -> None:
    lineage = mirror.LastMirrorEpochs()
    assert (lineage.last_mirror_epoch, lineage.last_mirror_offset) == (-1, -1)
    assert mirror.MirrorPartitionState().state == -1


@pytest.mark.parametrize("data", ["", "00", "0000", "0004" + "0000", "0001" + "0006"])
def test_bad_mirror_state_keys(data: str) -> None:
    with pytest.raises(DecodeError):
        mirror.decode_key(bytes.fromhex(data))
    with pytest.raises(DecodeError):
        mirror.decode_value(mirror.LastMirrorEpochsKey(), bytes.fromhex(data)[:3])


def test_a_value_of_a_later_version_is_refused() -> None:
    value = mirror.encode_value(mirror.LastMirrorEpochs())
    with pytest.raises(DecodeError):
        mirror.decode_value(mirror.LastMirrorEpochsKey(), b"\0\1" + value[2:])


def control_record(batch: bytes) -> tuple[int, Any]:
    record = records.read_records(batch)[0]
    assert record.key is not None and record.value is not None
    type_id = control.decode_control_key(record.key)
    return type_id, control.decode_control_value(type_id, record.value)


def test_control_records_that_kmirror_writes() -> None:
    batch = records.end_txn_marker(commit=True, producer_id=1, producer_epoch=2, coordinator_epoch=9, timestamp_ms=0)
    assert control_record(batch) == (control.COMMIT, control.EndTxnMarker(coordinator_epoch=9))
    batch = records.end_txn_marker(commit=False, producer_id=1, producer_epoch=2, coordinator_epoch=-1, timestamp_ms=0)
    assert control_record(batch) == (control.ABORT, control.EndTxnMarker(coordinator_epoch=-1))
    reset = records.mirror_pid_reset(timestamp_ms=0)
    assert control_record(reset) == (control.MIRROR_PID_RESET, control.MirrorPidReset())


def test_control_records_that_kafka_wrote() -> None:
    """From the metadata log and the snapshot of an Apache Kafka 4.4.0."""
    leader = control.decode_control_value(2, bytes.fromhex("00000000000102000000010002000000010000"))
    assert leader == control.LeaderChangeMessage(
        leader_id=1, voters=[control.Voter(voter_id=1)], granting_voters=[control.Voter(voter_id=1)]
    )
    assert control.decode_control_value(5, bytes.fromhex("0000000100")).kraft_version == 1
    snapshot = control.decode_control_value(3, bytes.fromhex("0000000001a22a3c9e1500"))
    assert snapshot == control.SnapshotHeaderRecord(last_contained_log_timestamp=0x1A22A3C9E15)
    voters = control.decode_control_value(
        6,
        bytes.fromhex(
            "000002000000011f7c531e09834d02afae63ec95ca1905020b434f4e54524f4c4c45520a3132372e302e302e314bc000000000"
            "01000000"
        ),
    )
    assert [(v.voter_id, v.endpoints[0].name, v.endpoints[0].port) for v in voters.voters] == [(1, "CONTROLLER", 19392)]


@pytest.mark.parametrize(("type_id", "value"), [(99, "0000"), (1, "00"), (1, "0000"), (2, "0000")])
def test_bad_control_records(type_id: int, value: str) -> None:
    with pytest.raises(DecodeError):
        control.decode_control_value(type_id, bytes.fromhex(value))


def test_ids() -> None:
    assert uuids.to_text(TOPIC_ID) == "AAAAAAAAAAAAAAAAAAABAQ"
    assert uuids.to_text(uuids.ZERO) == "A" * 22
    for _ in range(200):
        value = uuids.random_id()
        text = uuids.to_text(value)
        assert uuids.from_text(text) == value
        assert len(text) == 22 and not text.startswith("-")
    for bad in ("", "AAAA", "A" * 23, "!" * 22, "größe" * 5, "A" * 21 + "B"):
        with pytest.raises(ValueError, match="not an id"):
            uuids.from_text(bad)
    with pytest.raises(ValueError, match="16 bytes"):
        uuids.to_text(b"short")
