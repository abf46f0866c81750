"""Every message in every version: encoded and decoded again, by both backends, to the same message and bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kmirror.protocol import dissect
from kmirror.protocol.compile import decode, decoder, encode, encode_pieces
from kmirror.protocol.schema import schema_of
from tests.protocol.generator import all_versions, message_classes, random_message

CLASSES = list(message_classes())


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_version_comes_back(cls: type[Any], rng: random.Random) -> None:
    for version in all_versions(cls):
        default = cls()
        assert decode(cls, encode(default, version), version, exact=True) == default
        for _ in range(6):
            message = random_message(rng, cls, version)
            data = encode(message, version)
            assert decode(cls, data, version, exact=True) == message
            assert dissect.build(message, version) == data
            assert dissect.parse(cls, data, version, exact=True) == message


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_any_buffer_and_offset_will_do(cls: type[Any], rng: random.Random) -> None:
    """Bytes, bytearray or memoryview; in the middle of a larger buffer; nothing beyond the end is looked at."""
    version = schema_of(cls).versions.high
    message = random_message(rng, cls, version)
    data = encode(message, version)
    for surrounded in (b"\xff" * 7 + data + b"\xff" * 9, bytearray(b"\x01" * 7 + data + b"\x01" * 9)):
        for buffer in (surrounded, memoryview(surrounded)):
            assert decoder(cls, version)(buffer, 7, 7 + len(data)) == (message, 7 + len(data))
            assert decode(cls, buffer, version, offset=7) == message


def test_pieces_are_appended_and_counted(rng: random.Random) -> None:
    for cls in CLASSES:
        version = schema_of(cls).versions.high
        message = random_message(rng, cls, version)
        pieces: list[Any] = [b"before"]
        size_bytes = encode_pieces(message, version, pieces)
        assert pieces[0] == b"before"
        assert b"".join(pieces[1:]) == encode(message, version)
        assert size_bytes == len(encode(message, version))


def test_the_generator_reaches_every_field() -> None:
    """A field that is never other than its default would be a field that is never tested."""
    rng = random.Random(1)
    for cls in CLASSES:
        version = schema_of(cls).versions.high
        present = {field.name for field in schema_of(cls).fields if version in field.versions}
        default = cls()
        for _ in range(60):
            message = random_message(rng, cls, version)
            present -= {name for name in present if getattr(message, name) != getattr(default, name)}
        assert not present, (cls.__name__, present)
