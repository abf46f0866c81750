"""Keys and values of `__mirror_state` (KIP-1279; docs/MIRRORING.md, "State topic").

A key is the int16 record type and its fields, not flexible. A value is the int16 schema version and a flexible body;
no value is a tombstone. Three types: the state of a partition, its lineage (last mirror epoch and offset), and one
entry of the gap ledger, whose key holds the first offset of the gap so that compaction keeps every gap.

The tagged fields are kmirror's own: a reader that does not know them skips them. L1.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from kmirror.errors import DecodeError, EncodeError
from kmirror.protocol import mirror_numbers
from kmirror.protocol.compile import Buffer, decode, encode
from kmirror.protocol.internal.framing import PREFIX_BYTES, framed, record_type, schema_version
from kmirror.protocol.schema import Bool, Int8, Int16, Int32, Int64, String, Uuid, data, field
from kmirror.protocol.uuids import ZERO

VALUE_VERSION = 0


@data(key=mirror_numbers.STATE_RECORD_TYPE, versions="0", flexible="none")
class MirrorPartitionStateKey:
    mirror_name: String = ""
    topic_id: Uuid = ZERO
    partition: Int32 = 0


@data(key=mirror_numbers.LAST_MIRROR_EPOCHS_RECORD_TYPE, versions="0", flexible="none")
class LastMirrorEpochsKey:
    mirror_name: String = ""
    topic_id: Uuid = ZERO
    partition: Int32 = 0


@data(key=mirror_numbers.GAP_RECORD_TYPE, versions="0", flexible="none")
class MirrorGapKey:
    mirror_name: String = ""
    topic_id: Uuid = ZERO
    partition: Int32 = 0
    # first offset that is missing
    from_offset: Int64 = 0


@data(key=mirror_numbers.STATE_RECORD_TYPE, versions="0", flexible="0+")
class MirrorPartitionState:
    """The recorded state of one partition; `state` is a byte of `mirror_numbers` (and the phase of PREPARING)."""

    state: Int8 = mirror_numbers.STATE_UNKNOWN
    # the partition's leader epoch when the state was entered
    leader_epoch: Int32 = -1
    # grows with every write
    state_epoch: Int32 = 0
    error_message: String | None = None
    # failures in a row; -1: will not be retried
    retry_attempt: Int16 = 0
    # FAILED only: the state it failed from
    previous_state: Int8 = mirror_numbers.STATE_UNKNOWN
    # a cut that was decided and is not confirmed yet; -1: none
    cut_to: Int64 = field(tag=0, default=-1)
    # the same, but the whole log goes and begins again here; -1: none
    restart_at: Int64 = field(tag=1, default=-1)
    # the log holds bytes of the source that no last mirror epoch stands for
    mirrored: Bool = field(tag=2)
    # the source's log start is not followed below this; -1: no limit
    history_end: Int64 = field(tag=3, default=-1)
    # where the first fetch begins: a timestamp in ms, -2 earliest, -1 latest
    start_from: Int64 = field(tag=4, default=-2)
    # the operator allowed the alignment to cut local records
    force: Bool = field(tag=5)


@data(key=mirror_numbers.LAST_MIRROR_EPOCHS_RECORD_TYPE, versions="0", flexible="0+")
class LastMirrorEpochs:
    """Lineage: what a stop left behind. (-1, 0) is an empty partition failed over; (-1, -1) is no lineage."""

    # epoch of the last mirrored batch; -1: there was none
    last_mirror_epoch: Int32 = -1
    # the log end offset at the stop
    last_mirror_offset: Int64 = -1
    source_cluster_id: String = field(tag=0)


@data(key=mirror_numbers.GAP_RECORD_TYPE, versions="0", flexible="0+")
class MirrorGap:
    """Offsets that the source had dropped before they were fetched: from the key's `from_offset` up to `to_offset`."""

    # first offset after the gap
    to_offset: Int64 = 0
    at_ms: Int64 = 0


Key: TypeAlias = MirrorPartitionStateKey | LastMirrorEpochsKey | MirrorGapKey
Value: TypeAlias = MirrorPartitionState | LastMirrorEpochs | MirrorGap

_KEYS: dict[int, type[Any]] = {
    mirror_numbers.STATE_RECORD_TYPE: MirrorPartitionStateKey,
    mirror_numbers.LAST_MIRROR_EPOCHS_RECORD_TYPE: LastMirrorEpochsKey,
    mirror_numbers.GAP_RECORD_TYPE: MirrorGapKey,
}
_VALUES: dict[type[Any], type[Any]] = {
    MirrorPartitionStateKey: MirrorPartitionState,
    LastMirrorEpochsKey: LastMirrorEpochs,
    MirrorGapKey: MirrorGap,
}
_TYPES: dict[type[Any], int] = {cls: type_id for type_id, cls in _KEYS.items()}


def encode_key(key: Key) -> bytes:
    """Raises EncodeError."""
    type_id = _TYPES.get(type(key))
    if type_id is None:
        raise EncodeError(f"{type(key).__name__} is not a key of {mirror_numbers.STATE_TOPIC}")
    return framed(type_id, encode(key, 0))


def encode_value(value: Value) -> bytes:
    """Raises EncodeError."""
    return framed(VALUE_VERSION, encode(value, VALUE_VERSION))


def decode_key(data: Buffer) -> Key:
    """Raises DecodeError, for an unknown record type too."""
    type_id = record_type(data, mirror_numbers.STATE_TOPIC)
    cls = _KEYS.get(type_id)
    if cls is None:
        raise DecodeError(f"unknown record type {type_id}", api=mirror_numbers.STATE_TOPIC, path="key")
    key: Key = decode(cls, data, 0, offset=PREFIX_BYTES, exact=True)
    return key


def decode_value(key: Key, data: Buffer | None) -> Value | None:
    """The value that belongs to `key`, None for a tombstone. Raises DecodeError."""
    if data is None:
        return None
    version = schema_version(data, mirror_numbers.STATE_TOPIC)
    value: Value = decode(_VALUES[type(key)], data, version, offset=PREFIX_BYTES, exact=True)
    return value
