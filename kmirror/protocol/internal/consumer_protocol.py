"""What members of a consumer group say to each other through a broker that does not look into it (classic protocol).

A subscription travels in JoinGroup, an assignment in SyncGroup; both are the int16 version and a body that is not
flexible. Kafka's rule for evolution: a reader takes a version it does not know as the newest it knows, so bytes behind
the known fields are ignored. Sources: ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json. L1.
"""

from __future__ import annotations

import struct as packing
from typing import Any, Final, TypeVar

from kmirror.errors import DecodeError
from kmirror.protocol.compile import Buffer, decode, encode
from kmirror.protocol.schema import Bytes, Int32, String, data, field, schema_of, struct

PROTOCOL_TYPE: Final = "consumer"
"""`protocol_type` of JoinGroup for groups whose members speak this."""
WRITTEN_VERSION: Final = 0
"""What kmirror's own client writes: it owns nothing across rebalances, and every consumer ever made reads this."""

T = TypeVar("T")


@data(versions="0-3", flexible="none")
class ConsumerProtocolSubscription:
    """What a member wants to read, and from version 1 on what it holds."""

    topics: list[String] = field()
    # the assignor's own
    user_data: Bytes | None = None
    owned_partitions: list[SubscribedTopicPartitions] = field(versions="1+", ignorable=True)
    # in which `owned_partitions` was assigned; -1: unknown
    generation_id: Int32 = field(versions="2+", default=-1, ignorable=True)
    rack_id: String | None = field(versions="3+", default=None, ignorable=True)


@struct
class SubscribedTopicPartitions:
    topic: String = field(versions="1+")
    partitions: list[Int32] = field(versions="1+")


@data(versions="0-3", flexible="none")
class ConsumerProtocolAssignment:
    """What a member shall read."""

    assigned_partitions: list[AssignedTopicPartitions] = field()
    user_data: Bytes | None = None


@struct
class AssignedTopicPartitions:
    topic: String = ""
    partitions: list[Int32] = field()


_VERSION = packing.Struct(">h")


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = WRITTEN_VERSION) -> bytes:
    """Raises EncodeError."""
    return _VERSION.pack(version) + encode(subscription, version)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = WRITTEN_VERSION) -> bytes:
    """Raises EncodeError."""
    return _VERSION.pack(version) + encode(assignment, version)


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Raises DecodeError."""
    return _decode(ConsumerProtocolSubscription, data)


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """No bytes at all are no partitions: a member that is not part of the generation's protocol gets that.

    Raises DecodeError.
    """
    return _decode(ConsumerProtocolAssignment, data) if len(data) else ConsumerProtocolAssignment()


def _decode(cls: type[T], data: Buffer) -> T:
    if len(data) < _VERSION.size:
        raise DecodeError("the bytes end before their version", api=cls.__name__)
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise DecodeError(f"version {version} is none", api=cls.__name__)
    known: Any = schema_of(cls).versions.high
    return decode(cls, data, min(version, known), offset=_VERSION.size)
