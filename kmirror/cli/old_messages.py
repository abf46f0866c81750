"""Message sets of Kafka before 0.11 (magic 0 and 1), for `kmirror dump`.

A log that an old broker began may hold them, and a dump shows them for what they are. Declared in construct, as all
cold formats are. A compressed message is a wrapper around a set of its own: here its size is said, and what it holds by
`file_formats`.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from construct import Bytes, ConstructError, If, Int8ub, Int32sb, Int32ub, Int64sb, Struct, this

from kmirror.cli.display import readable

SIZE_POSITION, PREFIX_BYTES = 8, 12
"""Offset and size, which stand in front of a message of any magic."""
MAGIC_POSITION = 16
CRC_START = 16
COMPRESSION_MASK, LOG_APPEND_TIME = 0x07, 0x08
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4"}

MESSAGE = Struct(
    "offset" / Int64sb,
    "size" / Int32sb,
    "crc" / Int32ub,
    "magic" / Int8ub,
    "attributes" / Int8ub,
    "timestamp" / If(this.magic == 1, Int64sb),
    "key_size" / Int32sb,
    "key" / If(this.key_size >= 0, Bytes(this.key_size)),
    "value_size" / Int32sb,
    "value" / If(this.value_size >= 0, Bytes(this.value_size)),
)


def magic_at(data: bytes | memoryview, position: int) -> int | None:
    """The magic byte of whatever begins there; None too close to the end."""
    return data[position + MAGIC_POSITION] if len(data) > position + MAGIC_POSITION else None


def message_row(data: memoryview, position: int) -> dict[str, Any] | None:
    """One message as a row (`size_bytes` with its prefix), `error` set when it is damaged; None for half a one."""
    size = Int32sb.parse(data[position + SIZE_POSITION : position + PREFIX_BYTES])
    end = position + PREFIX_BYTES + size
    if size <= 0 or end > len(data):
        return None
    raw = bytes(data[position:end])
    row: dict[str, Any] = {"kind": "message", "position": position, "size_bytes": len(raw), "error": None}
    try:
        message = MESSAGE.parse(raw)
    except ConstructError as error:
        return row | {"error": f"not a message: {str(error).splitlines()[-1]}"}
    compression = message.attributes & COMPRESSION_MASK
    row |= {
        "offset": message.offset,
        "magic": message.magic,
        "compression": CODECS.get(compression, f"codec {compression}"),
        "timestamp": message.timestamp,
        "timestamp_type": None
        if message.timestamp is None
        else "LogAppendTime"
        if message.attributes & LOG_APPEND_TIME
        else "CreateTime",
        "crc": f"{message.crc:#010x}",
    }
    if compression:
        row["wraps_bytes"] = message.value_size
    else:
        row["key"], row["value"] = readable(message.key), readable(message.value)
    computed = crc32(raw[CRC_START:])
    if computed != message.crc:
        row["error"] = f"message at offset {message.offset} has checksum {computed:#010x}, it says {message.crc:#010x}"
    return row
