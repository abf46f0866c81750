"""Records of internal topics, decoded for `kmirror dump` by the name of their directory."""

from __future__ import annotations

import dataclasses
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

    typed_key = mirror_state.decode_key(key) if key is not None else None
    return {
        "key": plain(typed_key),
        "value": None if value is None else plain(mirror_state.decode_value(typed_key, value)),
    }


def _guarded(decode: Callable[[bytes], Any], value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return plain(decode(value))
    except KmirrorError as error:
        return {"error": str(error)}


def plain(value: Any) -> Any:
    """Typed records as dicts with a `type`; ids (16 bytes) in their text form."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
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
