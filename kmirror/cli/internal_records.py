"""Records of internal topics, decoded for `kmirror dump` by the name of their directory."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any

from kmirror.errors import KmirrorError
from kmirror.protocol import uuids

Decoder = Callable[[bytes | None, bytes | None], Any]


def decoder_of(directory: str) -> Decoder | None:
    """`directory` is `topic-partition`. The codecs are imported only when such a log is dumped."""
    topic = directory.rpartition("-")[0]
    return _BY_TOPIC.get(topic)


def _metadata(_key: bytes | None, value: bytes | None) -> Any:
    from kmirror.protocol.internal import cluster_metadata

    return _guarded(cluster_metadata.decode_metadata, value)


def _mirror_state(key: bytes | None, value: bytes | None) -> Any:
    from kmirror.protocol.internal import mirror_state

    if key is None:
        return None
    try:
        typed_key = mirror_state.decode_key(key)
        return {"key": plain(typed_key), "value": plain(mirror_state.decode_value(typed_key, value))}
    except KmirrorError as error:
        return {"error": str(error)}


def _consumer_offsets(key: bytes | None, value: bytes | None) -> Any:
    """What members said to each other is decoded too, as far as they are consumers."""
    from kmirror.protocol.internal import consumer_offsets, consumer_protocol

    def show_members(group: Any, shown: dict[str, Any]) -> None:
        if isinstance(group, consumer_offsets.GroupMetadataValue):
            consumers = group.protocol_type == consumer_protocol.PROTOCOL_TYPE
            for member, row in zip(group.members, shown["members"], strict=True):
                row["subscription"] = _blob(member.subscription, consumers, consumer_protocol.decode_subscription)
                row["assignment"] = _blob(member.assignment, consumers, consumer_protocol.decode_assignment)

    return _coordinator_record(consumer_offsets, key, value, show_members)


def _blob(data: bytes | memoryview, consumers: bool, decode: Callable[[bytes], Any]) -> Any:
    decoded = _guarded(decode, bytes(data)) if consumers and data else None
    return decoded if decoded and "error" not in decoded else "0x" + bytes(data).hex()


def _transaction_state(key: bytes | None, value: bytes | None) -> Any:
    """The state by its name, if it is one of Kafka's."""
    from kmirror.coordinator.transaction_entry import State
    from kmirror.protocol.internal import transaction_state

    def show_state(transaction: Any, shown: dict[str, Any]) -> None:
        names: dict[int, str] = {state: state.shown for state in State}
        status = transaction.transaction_status
        shown["transaction_status"] = names.get(status, status)

    return _coordinator_record(transaction_state, key, value, show_state)


def _coordinator_record(
    codec: ModuleType, key: bytes | None, value: bytes | None, refine: Callable[[Any, dict[str, Any]], None]
) -> Any:
    """A record of a coordinator's topic. `refine` gets the decoded value and its plain form, and changes the latter."""
    if key is None:
        return None
    try:
        typed_key = codec.decode_key(key)
        if isinstance(typed_key, codec.UnknownKey):
            return _unknown(typed_key.type_id, key, value)
        typed_value = codec.decode_value(typed_key, value)
    except KmirrorError as error:
        return {"error": str(error)}
    shown = plain(typed_value)
    if shown is not None:
        refine(typed_value, shown)
    return {"key": plain(typed_key), "value": shown}


def _unknown(type_id: int, key: bytes, value: bytes | None) -> dict[str, Any]:
    """A record of another coordinator, such as the newer group protocols': its bytes."""
    return {"record_type": type_id, "key": "0x" + key.hex(), "value": None if value is None else "0x" + value.hex()}


_BY_TOPIC: dict[str, Decoder] = {
    "__cluster_metadata": _metadata,
    "__mirror_state": _mirror_state,
    "__consumer_offsets": _consumer_offsets,
    "__transaction_state": _transaction_state,
}


def control_value(type_id: int, value: bytes | None) -> Any:
    """The value of a control record, field by field; what cannot be decoded as `error`."""
    from kmirror.protocol.internal import control

    return _guarded(lambda data: control.decode_control_value(type_id, data), value)


def _guarded(decode: Callable[[bytes], Any], value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return plain(decode(value))
    except KmirrorError as error:
        return {"error": str(error)}


def plain(value: Any) -> Any:
    """Typed records as dicts with a `type`; ids (16 bytes) in their text form."""
    if type(value).__module__.startswith("kmirror.protocol.") and not isinstance(value, Enum):
        fields = {name: plain(getattr(value, name)) for name in type(value).__slots__}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        return uuids.to_text(raw) if len(raw) == uuids.SIZE_BYTES else "0x" + raw.hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value
