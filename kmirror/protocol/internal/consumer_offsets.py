"""Keys and values of `__consumer_offsets`, as Apache Kafka 4.4's group coordinator writes them.

A key is the int16 record type and its fields, not flexible; a value is the int16 schema version and its fields; no
value is a tombstone. Types 0 and 1 are both offset commits (0 is what Kafka before 0.9 wrote), 2 is a classic group.
Types from 3 on belong to the consumer, share and streams groups of newer protocols: they are read as `UnknownKey` and
never written.

Versions written are Kafka's: the offset value at 4, or at 1 when it carries an expiry of its own (a client of
OffsetCommit 2 to 4 asked for a retention); the group value at 3. Sources: OffsetCommitKey/Value.json,
GroupMetadataKey/Value.json, GroupCoordinatorRecordHelpers. L1.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from kmirror.errors import DecodeError, EncodeError
from kmirror.protocol.compile import Buffer, decode, encode
from kmirror.protocol.internal.framing import PREFIX_BYTES, framed, record_type, schema_version
from kmirror.protocol.internal.framing import UnknownKey as UnknownKey
from kmirror.protocol.schema import Bytes, Int32, Int64, String, Uuid, data, field, struct

TOPIC: Final = "__consumer_offsets"

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2

OFFSET_VALUE_VERSION: Final = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
GROUP_VALUE_VERSION: Final = 3


@data(key=OFFSET_COMMIT, versions="0", flexible="none")
class OffsetCommitKey:
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


@data(key=OFFSET_COMMIT, versions="0-4", flexible="4+")
class OffsetCommitValue:
    offset: Int64 = 0
    # of the last consumed record; -1: unknown
    leader_epoch: Int32 = field(versions="3+", default=-1, ignorable=True)
    metadata: String = ""
    commit_timestamp: Int64 = 0
    # when the offset expires; -1: by the broker's retention
    expire_timestamp: Int64 = field(versions="1", default=-1, ignorable=True)
    # the topic that the offset was committed for, so that a topic made anew does not inherit it
    topic_id: Uuid = field(versions="4+", tag=0, ignorable=True)


@data(key=GROUP_METADATA, versions="0", flexible="none")
class GroupMetadataKey:
    group: String = ""


@data(key=GROUP_METADATA, versions="0-4", flexible="4+")
class GroupMetadataValue:
    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = field(nullable="0+")
    leader: String | None = field(nullable="0+")
    # when the group entered its state; -1: not recorded
    current_state_timestamp: Int64 = field(versions="2+", default=-1, ignorable=True)
    members: list[GroupMember] = field()


@struct
class GroupMember:
    member_id: String = ""
    group_instance_id: String | None = field(versions="3+", default=None, ignorable=True)
    client_id: String = ""
    client_host: String = ""
    # -1 (versions without it): the session timeout
    rebalance_timeout: Int32 = field(versions="1+", default=-1, ignorable=True)
    session_timeout: Int32 = 0
    # what the member said for the protocol that was chosen
    subscription: Bytes = b""
    assignment: Bytes = b""


Key: TypeAlias = OffsetCommitKey | GroupMetadataKey | UnknownKey
Value: TypeAlias = OffsetCommitValue | GroupMetadataValue | bytes
"""bytes: the value of an `UnknownKey`, as it is."""

_KEYS: dict[int, type[Any]] = {
    LEGACY_OFFSET_COMMIT: OffsetCommitKey,
    OFFSET_COMMIT: OffsetCommitKey,
    GROUP_METADATA: GroupMetadataKey,
}
_VALUES: dict[type[Any], type[Any]] = {OffsetCommitKey: OffsetCommitValue, GroupMetadataKey: GroupMetadataValue}
_TYPES: dict[type[Any], int] = {OffsetCommitKey: OFFSET_COMMIT, GroupMetadataKey: GROUP_METADATA}


def encode_key(key: Key) -> bytes:
    """Raises EncodeError, for an UnknownKey too."""
    type_id = _TYPES.get(type(key))
    if type_id is None:
        raise EncodeError(f"{type(key).__name__} is not a key that is written to {TOPIC}")
    return framed(type_id, encode(key, 0))


def encode_value(value: OffsetCommitValue | GroupMetadataValue) -> bytes:
    """At the version that Kafka 4.4 writes. Raises EncodeError."""
    version = GROUP_VALUE_VERSION
    if isinstance(value, OffsetCommitValue):
        version = OFFSET_VALUE_VERSION if value.expire_timestamp == -1 else OFFSET_VALUE_VERSION_WITH_EXPIRY
    return framed(version, encode(value, version))


def decode_key(data: Buffer) -> Key:
    """Raises DecodeError."""
    type_id = record_type(data, TOPIC)
    cls = _KEYS.get(type_id)
    if cls is None:
        return UnknownKey(type_id=type_id, raw=bytes(data))
    key: Key = decode(cls, data, 0, offset=PREFIX_BYTES)
    return key


def decode_value(key: Key, data: Buffer | None) -> Value | None:
    """The value that belongs to `key`, None for a tombstone. Holds no view of `data`. Raises DecodeError."""
    if data is None:
        return None
    if isinstance(key, UnknownKey):
        return bytes(data)
    version = schema_version(data, TOPIC)
    value: Value = decode(_VALUES[type(key)], data, version, offset=PREFIX_BYTES)
    if isinstance(value, GroupMetadataValue):
        for member in value.members:
            member.subscription = bytes(member.subscription)
            member.assignment = bytes(member.assignment)
    return value


def encode_record(key: Any, value: Any) -> tuple[bytes | None, bytes | None]:
    """One half of the topic's codec: typed key and value to bytes, None to a tombstone."""
    return encode_key(key), None if value is None else encode_value(value)


def decode_record(key: bytes | None, value: bytes | None) -> tuple[Key, Value | None]:
    """The other half. Raises DecodeError, for a record without a key too."""
    if key is None:
        raise DecodeError("a record without a key", api=TOPIC)
    typed = decode_key(key)
    return typed, decode_value(typed, value)
