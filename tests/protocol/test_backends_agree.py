"""Differential fuzz: valid, cut and damaged bytes must mean the same to both backends, or be refused by both."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kmirror.errors import DecodeError
from kmirror.protocol import dissect
from kmirror.protocol.compile import decode, encode
from tests.protocol.generator import all_versions, message_classes, random_message

CLASSES = list(message_classes())
MAX_CUTS = 60
DAMAGED_PER_MESSAGE = 40


def understood(read: Any, cls: type[Any], data: bytes, version: int) -> Any:
    """The message, or the string `refused`. Any other exception is a bug and escapes."""
    try:
        return read(cls, data, version, exact=True)
    except DecodeError:
        return "refused"


def agree(cls: type[Any], data: bytes, version: int) -> bool:
    """Whether it was accepted; fails when the backends differ."""
    fast = understood(decode, cls, data, version)
    slow = understood(dissect.parse, cls, data, version)
    assert fast == slow, f"{cls.__name__} v{version} {data.hex()}"
    return not isinstance(fast, str)


def sample_versions(rng: random.Random, cls: type[Any]) -> list[int]:
    """The first, the last and one between: the layouts change at few versions, and the seed varies."""
    versions = all_versions(cls)
    return sorted({versions[0], versions[-1], rng.choice(versions)})


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_cut_messages(cls: type[Any], rng: random.Random) -> None:
    """A message cut anywhere is refused by both; a long one at some of its lengths."""
    for version in sample_versions(rng, cls):
        data = encode(random_message(rng, cls, version, max_elements=2), version)
        lengths = range(len(data))
        for length in lengths if len(lengths) <= MAX_CUTS else rng.sample(lengths, MAX_CUTS):
            assert not agree(cls, data[:length], version)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_damaged_messages(cls: type[Any], rng: random.Random) -> None:
    for version in sample_versions(rng, cls):
        data = encode(random_message(rng, cls, version, max_elements=2), version)
        if not data:
            continue
        for _ in range(DAMAGED_PER_MESSAGE):
            damaged = bytearray(data)
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.2:
                damaged += rng.randbytes(rng.randint(1, 6))
            agree(cls, bytes(damaged), version)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_random_bytes(cls: type[Any], rng: random.Random) -> None:
    for version in sample_versions(rng, cls):
        for _ in range(15):
            agree(cls, rng.randbytes(rng.randint(0, 40)), version)
            agree(cls, bytes(rng.choice((0, 0, 1, 2, 255)) for _ in range(rng.randint(0, 60))), version)


def test_every_length_of_a_fetch_request_is_refused_with_a_place() -> None:
    from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic

    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=1)])], rack_id="r")
    data = encode(request, 12)
    for length in range(len(data)):
        with pytest.raises(DecodeError) as caught:
            decode(FetchRequest, data[:length], 12)
        assert caught.value.api == "FetchRequest"
        assert caught.value.version == 12
        assert caught.value.path
        assert 0 <= caught.value.offset <= length
