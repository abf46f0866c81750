"""The codecs: bounds hold, foreign framings are read, damage is CorruptData."""

from __future__ import annotations

import gzip
import random

import cramjam
import pytest

from kmirror.errors import CorruptData
from kmirror.protocol.compression import Compression, compress, decompress

CODECS = [c for c in Compression if c is not Compression.NONE]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 32 * 1024 + 1, 300_000])
def test_round_trip(codec: Compression, size: int) -> None:
    data = random.Random(size).randbytes(size // 2) + b"\0" * (size - size // 2)
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_bombs_stop_at_the_limit(codec: Compression) -> None:
    bomb = compress(codec, b"\0" * 4_000_000)
    assert len(decompress(codec, bomb, limit_bytes=4_000_000)) == 4_000_000
    with pytest.raises(CorruptData, match="expands beyond"):
        decompress(codec, bomb, limit_bytes=3_999_999)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_payloads_are_corrupt(codec: Compression) -> None:
    whole = compress(codec, random.Random(1).randbytes(5_000))
    for cut in range(1, len(whole) - 1, 97):
        with pytest.raises(CorruptData):
            decompress(codec, whole[:cut])


def test_unknown_codec() -> None:
    with pytest.raises(CorruptData, match="codec 5"):
        decompress(5, b"")


def test_lz4_frames_have_independent_blocks() -> None:
    flags = compress(Compression.LZ4, b"x" * 200_000)[4]
    assert flags & 0x20, "Kafka's LZ4 reader refuses linked blocks"


def test_raw_snappy_without_framing_is_read() -> None:
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(b"hello" * 50))) == b"hello" * 50


def test_gzip_members_are_joined() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


def test_words_that_the_bound_relies_on() -> None:
    with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
        cramjam.zstd.decompress_into(bytes(cramjam.zstd.compress(b"\0" * 1000)), bytearray(10))
