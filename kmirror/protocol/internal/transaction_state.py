"""Keys and values of `__transaction_state`, as Apache Kafka 4.4's transaction coordinator writes them.

A key is the int16 record type (0, the only one) and the transactional id, not flexible. A value is the int16 schema
version and its fields; no value is a tombstone. The version written follows the finalized transaction.version: 1 from
level 1 on, with the producer ids before and after a rotation and the client's own level as tagged fields (KIP-890),
else 0. Sources: TransactionLogKey/Value.json, TransactionLog, TransactionVersion.transactionLogValueVersion. L1.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from kmirror.protocol.compile import Buffer, decode, encode
from kmirror.protocol.internal.framing import PREFIX_BYTES, framed, record_type, schema_version
from kmirror.protocol.internal.framing import UnknownKey as UnknownKey
from kmirror.protocol.schema import Int8, Int16, Int32, Int64, String, data, field, struct

TOPIC: Final = "__transaction_state"

TRANSACTION_LOG: Final = 0
NEWEST_VALUE_VERSION: Final = 1


@data(key=TRANSACTION_LOG, versions="0", flexible="none")
class TransactionLogKey:
    transactional_id: String = ""


@data(key=TRANSACTION_LOG, versions="0-1", flexible="1+")
class TransactionLogValue:
    producer_id: Int64 = 0
    # the producer id before the last change of this record; -1: none
    previous_producer_id: Int64 = field(versions="1+", tag=0, default=-1, ignorable=True)
    # a producer id that takes over once the transaction has ended, since the epochs are used up; -1: none
    next_producer_id: Int64 = field(versions="1+", tag=1, default=-1, ignorable=True)
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    # a state of kmirror.coordinator.transactions
    transaction_status: Int8 = 0
    # null in state Empty
    transaction_partitions: list[PartitionsSchema] | None = field(nullable="0+")
    transaction_last_update_timestamp_ms: Int64 = 0
    # -1: no transaction since the producer was initialized
    transaction_start_timestamp_ms: Int64 = 0
    # transaction.version as the client spoke it
    client_transaction_version: Int16 = field(versions="1+", tag=2, ignorable=True)
    # two-phase commit (KIP-939); -1: none
    next_producer_epoch: Int16 = field(versions="1+", tag=3, default=-1, ignorable=True)


@struct
class PartitionsSchema:
    topic: String = ""
    partition_ids: list[Int32] = field()


Key: TypeAlias = TransactionLogKey | UnknownKey


def encode_key(transactional_id: str) -> bytes:
    """Raises EncodeError."""
    return framed(TRANSACTION_LOG, encode(TransactionLogKey(transactional_id=transactional_id), 0))


def encode_value(value: TransactionLogValue, version: int = NEWEST_VALUE_VERSION) -> bytes:
    """Version 0 leaves out what it cannot carry. Raises EncodeError."""
    return framed(version, encode(value, version))


def decode_key(data: Buffer) -> Key:
    """Raises DecodeError."""
    type_id = record_type(data, TOPIC)
    if type_id != TRANSACTION_LOG:
        return UnknownKey(type_id=type_id, raw=bytes(data))
    return decode(TransactionLogKey, data, 0, offset=PREFIX_BYTES)


def decode_value(key: Key, data: Buffer | None) -> TransactionLogValue | None:
    """None for a tombstone, and for the value of an unknown key. Raises DecodeError."""
    if data is None or isinstance(key, UnknownKey):
        return None
    return decode(TransactionLogValue, data, schema_version(data, TOPIC), offset=PREFIX_BYTES)
