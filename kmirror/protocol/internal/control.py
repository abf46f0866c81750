"""Keys and values of control records, for reading them field by field.

The markers that kmirror writes are built in `records`, because storage needs them and never sees a schema; here is
what a dump shows. A key is two int16: version and type. Most values begin with their own version; L1.
"""

from __future__ import annotations

import struct as packing
from typing import Any, Final

from kmirror.errors import DecodeError
from kmirror.protocol import mirror_numbers
from kmirror.protocol.compile import Buffer, decode
from kmirror.protocol.schema import Int16, Int32, Int64, String, Uint16, Uuid, data, field, schema_of, struct
from kmirror.protocol.uuids import ZERO

ABORT: Final = 0
COMMIT: Final = 1
LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4
KRAFT_VERSION: Final = 5
KRAFT_VOTERS: Final = 6
MIRROR_PID_RESET: Final = mirror_numbers.CONTROL_RECORD_TYPE_PID_RESET


@data(versions="0", flexible="none")
class EndTxnMarker:
    """Value of an ABORT or COMMIT record, after its int16 version."""

    coordinator_epoch: Int32 = 0


@data(versions="0-1", flexible="0+")
class LeaderChangeMessage:
    """A quorum elected a leader."""

    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[Voter] = field()
    granting_voters: list[Voter] = field()


@struct
class Voter:
    voter_id: Int32 = 0
    voter_directory_id: Uuid = field(versions="1+")


@data(versions="0", flexible="0+")
class SnapshotHeaderRecord:
    """First record of a snapshot."""

    version: Int16 = 0
    # of the last record that the snapshot covers
    last_contained_log_timestamp: Int64 = 0


@data(versions="0", flexible="0+")
class SnapshotFooterRecord:
    """Last record of a snapshot."""

    version: Int16 = 0


@data(versions="0", flexible="0+")
class KRaftVersionRecord:
    """The version of the quorum's own protocol."""

    version: Int16 = 0
    kraft_version: Int16 = 0


@data(versions="0", flexible="0+")
class VotersRecord:
    """The members of the quorum."""

    version: Int16 = 0
    voters: list[QuorumVoter] = field()


@struct
class QuorumVoter:
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO
    endpoints: list[QuorumVoterEndpoint] = field()
    kraft_version_feature: KRaftVersionFeature = field()


@struct
class QuorumVoterEndpoint:
    name: String = ""
    host: String = ""
    port: Uint16 = 0


@struct
class KRaftVersionFeature:
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@data(versions="0", flexible="0+")
class MirrorPidReset:
    """The barrier behind which no mirrored producer is known any more (KIP-1279)."""

    version: Int16 = 0


_VALUES: dict[int, type[Any]] = {
    ABORT: EndTxnMarker,
    COMMIT: EndTxnMarker,
    LEADER_CHANGE: LeaderChangeMessage,
    SNAPSHOT_HEADER: SnapshotHeaderRecord,
    SNAPSHOT_FOOTER: SnapshotFooterRecord,
    KRAFT_VERSION: KRaftVersionRecord,
    KRAFT_VOTERS: VotersRecord,
    MIRROR_PID_RESET: MirrorPidReset,
}
_VERSION = packing.Struct(">h")
_KEY = packing.Struct(">hh")


def decode_control_key(key: Buffer) -> int:
    """The type in the key of a control record. Raises DecodeError."""
    if len(key) < _KEY.size:
        raise DecodeError(f"a control record key has {_KEY.size} bytes, not {len(key)}", api="control record")
    type_id: int = _KEY.unpack_from(key)[1]
    return type_id


def decode_control_value(type_id: int, value: Buffer) -> Any:
    """The value of a control record of that type. Bytes of a later version are ignored. Raises DecodeError."""
    cls = _VALUES.get(type_id)
    if cls is None:
        raise DecodeError(f"unknown control record type {type_id}", api="control record")
    if len(value) < _VERSION.size:
        raise DecodeError("the value ends before its version", api=cls.__name__)
    version = max(0, _VERSION.unpack_from(value)[0])
    if cls is EndTxnMarker:
        return decode(cls, value, 0, offset=_VERSION.size)
    return decode(cls, value, min(version, schema_of(cls).versions.high))
