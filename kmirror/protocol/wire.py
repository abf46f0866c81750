"""The few functions that generated codecs call, and the error they raise. Nothing here knows a message.

Generated code handles the common case in line (a one-byte varint, no unknown tags) and calls these for the rest.
L1: imports nothing of kmirror but limits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from kmirror.limits import MAX_STRING_BYTES, MAX_VARINT_BYTES

FORMATS: dict[str, tuple[str, int]] = {
    "Int8": ("b", 1),
    "Int16": ("h", 2),
    "Int32": ("i", 4),
    "Int64": ("q", 8),
    "Uint16": ("H", 2),
    "Uint32": ("I", 4),
    "Float64": ("d", 8),
    "Bool": ("?", 1),
    "Uuid": ("16s", 16),
}
"""Wire types of fixed size: their `struct` code and size in bytes."""

_LAST_VARINT_BYTE = 0x0F
"""The fifth byte holds the four bits that are left of 32."""


class Malformed(Exception):
    """Raised inside generated code, which turns it into a DecodeError or EncodeError with the field's path."""


def unpacker(codes: str) -> Callable[..., tuple[Any, ...]]:
    return struct.Struct(">" + codes).unpack_from


def packer(codes: str) -> Callable[..., bytes]:
    return struct.Struct(">" + codes).pack


# --- reading ------------------------------------------------------------------------------------------------------


def uvarint_rest(data: Any, offset: int, first: int) -> tuple[int, int]:
    """(value, offset after it) of an unsigned varint whose first byte was read and has the top bit set."""
    value = first & 0x7F
    for index in range(1, MAX_VARINT_BYTES):
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if index == MAX_VARINT_BYTES - 1 and byte > _LAST_VARINT_BYTE:
                break
            return value, offset
    raise Malformed("varint of more than 32 bits")


def read_uvarint(data: Any, offset: int) -> tuple[int, int]:
    """(value, offset after it)."""
    first = data[offset]
    if first < 0x80:
        return first, offset + 1
    return uvarint_rest(data, offset + 1, first)


def skip_tags(data: Any, offset: int, end: int, count: int) -> int:
    """The offset after `count` tagged fields that nobody here knows; `count` is the first byte of its varint."""
    if count > 127:
        count, offset = uvarint_rest(data, offset, count)
    for _ in range(count):
        _, offset = read_uvarint(data, offset)
        size_bytes, offset = read_uvarint(data, offset)
        offset += size_bytes
        if offset > end:
            bad_length(size_bytes, end - offset + size_bytes)
    return offset


def uuid_list(data: Any, offset: int, end: int) -> list[bytes]:
    return [bytes(data[at : at + 16]) for at in range(offset, end, 16)]


def bad_length(size_bytes: int, left_bytes: int) -> NoReturn:
    if size_bytes == -1:
        raise Malformed("null where this version does not allow it")
    if size_bytes < 0:
        raise Malformed(f"length {size_bytes}")
    if size_bytes > left_bytes:
        raise Malformed(f"length {size_bytes}, but only {left_bytes} bytes are left")
    raise Malformed(f"string of {size_bytes} bytes, Kafka allows {MAX_STRING_BYTES}")


def bad_count(count: int, left_bytes: int) -> NoReturn:
    if count == -1:
        raise Malformed("null array where this version does not allow it")
    raise Malformed(f"{count} elements, but only {left_bytes} bytes are left")


def bad_tag_size(tag: int, excess_bytes: int) -> NoReturn:
    raise Malformed(f"tagged field {tag} is {abs(excess_bytes)} bytes {'longer' if excess_bytes > 0 else 'shorter'}")


# --- writing ------------------------------------------------------------------------------------------------------

SMALL: tuple[bytes, ...] = tuple(bytes([value]) for value in range(128))
"""Unsigned varints of one byte."""


def uvarint(value: int) -> bytes:
    """The unsigned varint of `value` (32 bits)."""
    if not 0 <= value <= 0xFFFF_FFFF:
        raise Malformed(f"{value} does not fit an unsigned varint of 32 bits")
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_size(size_plus_one: int) -> bytes:
    """The length of a compact string that needs more than one byte for it."""
    if size_plus_one > MAX_STRING_BYTES + 1:
        raise Malformed(f"string of {size_plus_one - 1} bytes, Kafka allows {MAX_STRING_BYTES}")
    return uvarint(size_plus_one)


def sized(value: bytes) -> bytes:
    """An id that has the size of one; `struct` would pad or cut it in silence."""
    if len(value) != 16:
        raise Malformed(f"an id has 16 bytes, not {len(value)}")
    return value


def uuid_array(values: Iterable[bytes]) -> bytes:
    return b"".join([sized(value) for value in values])


def absent(value: Any, version: int) -> NoReturn:
    """A field that this version lacks has a value that must not be lost."""
    raise Malformed(f"version {version} has no such field, and its value {value!r} may not be dropped")
