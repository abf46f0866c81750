"""Topic, directory and member ids: 16 raw bytes inside kmirror, 22 characters of URL-safe base64 for people.

Raw bytes because ids are compared and hashed on every Fetch; Kafka's text form (`org.apache.kafka.common.Uuid`) is for
configuration, file names, hashing into `__mirror_state` and error messages. L1: imports nothing of kmirror.
"""

from __future__ import annotations

import binascii
import os
from typing import Final

SIZE_BYTES: Final = 16
ZERO: Final = bytes(16)
"""No id. On the wire it means "absent"."""
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
"""The id Kafka reserves for `__cluster_metadata`."""

_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def to_text(value: bytes) -> str:
    """The 22 characters that Kafka's tools print. `value` is 16 bytes."""
    if len(value) != SIZE_BYTES:
        raise ValueError(f"an id has 16 bytes, not {len(value)}")
    return binascii.b2a_base64(value, newline=False).translate(_TO_URL_SAFE).rstrip(b"=").decode()


def from_text(text: str) -> bytes:
    """The opposite of `to_text`. Raises ValueError when `text` is not the text of an id."""
    try:
        value = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL_SAFE) + b"==")
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is not an id: {error}") from None
    if len(value) != SIZE_BYTES or to_text(value) != text.rstrip("="):
        raise ValueError(f"{text!r} is not an id: it must be 22 characters of URL-safe base64")
    return value


def random_id() -> bytes:
    """A random (version 4) id, never one that Kafka reserves and never one whose text looks like an option."""
    while True:
        raw = bytearray(os.urandom(SIZE_BYTES))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        value = bytes(raw)
        if not to_text(value).startswith("-"):
            return value
