"""What the records of all coordinators' topics have in common: an int16 in front of the fields.

In a key it is the record type, in a value the version of its schema (Kafka: CoordinatorRecordSerde). L1.
"""

from __future__ import annotations

import struct as packing

from kmirror.errors import DecodeError
from kmirror.protocol.compile import Buffer

_PREFIX = packing.Struct(">h")
PREFIX_BYTES = _PREFIX.size


class UnknownKey:
    """The key of a record type that is not interpreted (another coordinator's, or a later version's: KIP-915)."""

    __slots__ = ("raw", "type_id")

    def __init__(self, *, type_id: int, raw: bytes) -> None:
        self.type_id = type_id
        self.raw = raw

    def __repr__(self) -> str:
        return f"UnknownKey(type_id={self.type_id}, raw={self.raw!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownKey) and other.raw == self.raw

    def __hash__(self) -> int:
        return hash(self.raw)


def framed(number: int, body: bytes) -> bytes:
    return _PREFIX.pack(number) + body


def record_type(key: Buffer, topic: str) -> int:
    """Raises DecodeError."""
    return _prefix(key, "record type", topic)


def schema_version(value: Buffer, topic: str) -> int:
    """Raises DecodeError."""
    return _prefix(value, "schema version", topic)


def _prefix(data: Buffer, what: str, topic: str) -> int:
    if len(data) < PREFIX_BYTES:
        raise DecodeError(f"ends before its {what}", api=topic)
    number: int = _PREFIX.unpack_from(data)[0]
    return number
