"""Records of internal topics, decoded for `kmirror dump` by the name of their directory."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from kmirror.errors import KmirrorError
from kmirror.protocol import uuids

Decoder = Callable[[bytes | None, bytes | None], Any]


def decoder_of(directory: str) -> Decoder | None:
    """`directory` is `topic-partition`. The codecs are imported only when such a log is dumped."""
    topic = directory.rpartition("-")[0]
    if topic == "__cluster_metadata":
        return _metadata
    return _mirror_state if topic == "__mirror_state" else None


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
