"""Records of `__consumer_offsets`: bytes that Kafka 4.4.0's own serializer (GroupCoordinatorRecordSerde) made."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kmirror.errors import DecodeError, EncodeError
from kmirror.protocol.compile import encode
from kmirror.protocol.internal import consumer_offsets as topic
from kmirror.protocol.internal.consumer_offsets import (
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kmirror.protocol.schema import schema_of
from tests.protocol.generator import all_versions, random_message

TOPIC_ID = bytes(range(16))
OFFSET_KEY = OffsetCommitKey(group="g", topic="t", partition=7)
GROUP_KEY = GroupMetadataKey(group="g")
MEMBERS = [
    GroupMember(
        member_id="m1",
        group_instance_id="i1",
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout=60000,
        session_timeout=10000,
        subscription=b"\1\2",
        assignment=b"\3",
    ),
    GroupMember(
        member_id="m2",
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout=60000,
        session_timeout=10000,
    ),
]
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=5,
    protocol="range",
    leader="m1",
    current_state_timestamp=1_700_000_000_001,
    members=MEMBERS,
)

WRITTEN = [
    (
        OFFSET_KEY,
        "000100016700017400000007",
        OffsetCommitValue(
            offset=42, leader_epoch=3, metadata="note", commit_timestamp=1_700_000_000_000, topic_id=TOPIC_ID
        ),
        "0004000000000000002a00000003056e6f74650000018bcfe56800010010000102030405060708090a0b0c0d0e0f",
    ),
    (
        OFFSET_KEY,
        "000100016700017400000007",
        OffsetCommitValue(offset=42, commit_timestamp=1_700_000_000_000),
        "0004000000000000002affffffff010000018bcfe5680000",
    ),
    (OFFSET_KEY, "000100016700017400000007", None, None),
    (
        GROUP_KEY,
        "0002000167",
        GROUP,
        "00030008636f6e73756d657200000005000572616e676500026d310000018bcfe568010000000200026d310002693100016300"
        "0a2f3132372e302e302e310000ea6000002710000000020102000000010300026d32ffff000163000a2f3132372e302e302e31"
        "0000ea60000027100000000000000000",
    ),
    (
        GROUP_KEY,
        "0002000167",
        GroupMetadataValue(current_state_timestamp=1_700_000_000_001),
        "0003000000000000000000000000018bcfe5680100000000",
    ),
    (GROUP_KEY, "0002000167", None, None),
]


@pytest.mark.parametrize(("key", "key_hex", "value", "value_hex"), WRITTEN)
def test_what_kafka_writes(key: Any, key_hex: str, value: Any, value_hex: str | None) -> None:
    raw = None if value_hex is None else bytes.fromhex(value_hex)
    assert topic.encode_record(key, value) == (bytes.fromhex(key_hex), raw)
    assert topic.decode_record(bytes.fromhex(key_hex), raw) == (key, value)


def test_an_expiry_is_written_at_version_1_which_has_no_epoch_and_no_id() -> None:
    value = OffsetCommitValue(
        offset=42,
        leader_epoch=3,
        metadata="note",
        commit_timestamp=1_700_000_000_000,
        expire_timestamp=1_700_000_005_000,
        topic_id=TOPIC_ID,
    )
    raw = bytes.fromhex("0001000000000000002a00046e6f74650000018bcfe568000000018bcfe57b88")
    assert topic.encode_value(value) == raw
    value.leader_epoch, value.topic_id = -1, bytes(16)
    assert topic.decode_value(OFFSET_KEY, raw) == value


def test_older_and_newer_versions_of_the_group_that_kafka_can_write() -> None:
    version_4 = bytes.fromhex(
        "000409636f6e73756d6572000000050672616e6765036d310000018bcfe5680103036d3103693102630b2f3132372e302e302e31"
        "0000ea6000002710030102020300036d320002630b2f3132372e302e302e310000ea600000271001010000"
    )
    assert topic.decode_value(GROUP_KEY, version_4) == GROUP
    version_0 = bytes.fromhex(
        "00000008636f6e73756d657200000005000572616e676500026d310000000200026d31000163000a2f3132372e302e302e310000"
        "2710000000020102000000010300026d32000163000a2f3132372e302e302e31000027100000000000000000"
    )
    old = topic.decode_value(GROUP_KEY, version_0)
    assert isinstance(old, GroupMetadataValue)
    assert (old.current_state_timestamp, old.members[0].rebalance_timeout) == (-1, -1)
    assert (old.members[0].group_instance_id, old.members[0].session_timeout) == (None, 10000)
    assert (old.members[0].subscription, old.members[0].assignment) == (b"\1\2", b"\3")


def test_offset_commits_of_the_oldest_kind() -> None:
    key = bytes.fromhex("000000016700017400000007")
    value = bytes.fromhex("0000000000000000002a00016d0000000000000009")
    assert topic.decode_record(key, value) == (
        OFFSET_KEY,
        OffsetCommitValue(offset=42, metadata="m", commit_timestamp=9),
    )


def test_records_of_newer_group_kinds_are_kept_apart() -> None:
    key, value = topic.decode_record(bytes.fromhex("0003000167"), b"\0\0rest")
    assert key == topic.UnknownKey(type_id=3, raw=bytes.fromhex("0003000167"))
    assert value == b"\0\0rest"
    with pytest.raises(EncodeError):
        topic.encode_record(key, None)


def test_every_version_comes_back(rng: random.Random) -> None:
    for key_class, value_class in topic._VALUES.items():
        for version in all_versions(value_class):
            value = random_message(rng, value_class, version)
            raw = version.to_bytes(2, "big") + encode(value, version)
            assert topic.decode_value(key_class(), memoryview(raw)) == value
        assert schema_of(value_class).versions.high == 4


@pytest.mark.parametrize("data", ["", "00", "0001", "00010006", "ffff"])
def test_bad_records(data: str) -> None:
    raw = bytes.fromhex(data)
    with pytest.raises(DecodeError):
        topic.decode_value(GROUP_KEY, raw)
    if data != "ffff":
        with pytest.raises(DecodeError):
            topic.decode_key(raw)
    with pytest.raises(DecodeError):
        topic.decode_record(None, raw)
