"""The four codecs of Kafka's record batches, each decompression bounded.

What may live here: turning one batch's payload into bytes and back. Traps that cost others days:

* LZ4 frames must use independent blocks; Kafka's reader refuses linked ones (KafkaLZ4BlockInputStream).
* Snappy travels in the framing of the Java library "xerial" (a 16-byte header, then length-prefixed raw blocks);
  some clients send one raw block without it, and Kafka's reader takes both.
* Gzip may consist of several members, one after the other.
* A small batch may expand without end: every decompression stops at a limit and says so.
"""

from __future__ import annotations

import io
import zlib
from enum import IntEnum

import cramjam

from kmirror.errors import CorruptData
from kmirror.limits import DECOMPRESSED_PIECE_BYTES, MAX_DECOMPRESSED_BYTES

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    """Bits 0-2 of a batch's attributes (CompressionType in Kafka)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES = 32 * 1024
_GZIP_WINDOW_BITS = 31
_FIRST_GUESS_BYTES = 64 * 1024
# cramjam reports a full output buffer only in words; tests/protocol/test_compression.py pins them
_OUTPUT_FULL = "failed to write whole buffer"


class ExpandsTooFar(CorruptData):
    """The payload would be larger than the limit given."""


def compress(codec: int, data: Buffer) -> bytes:
    """Compress one batch's records. Raises ValueError for a codec that Kafka does not have."""
    codec = Compression(codec)
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        squeezer = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
        return squeezer.compress(data) + squeezer.flush()
    if codec is Compression.SNAPPY:
        return _snappy_compress(memoryview(data))
    if codec is Compression.LZ4:
        lz4 = cramjam.lz4.Compressor(block_linked=False)
        lz4.compress(bytes(data))
        return bytes(lz4.finish())
    return bytes(cramjam.zstd.compress(bytes(data)))


def decompress(codec: int, data: Buffer, *, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Expand one batch's records.

    Raises CorruptData when the payload is not valid for the codec or is cut short, ExpandsTooFar beyond `limit_bytes`.
    """
    expanded = expand(codec, data, limit_bytes=limit_bytes)
    return expanded if isinstance(expanded, bytes) else bytes(expanded)


def expand(codec: int, data: Buffer, *, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """As `decompress`, but large results are handed out as they are: copying them would stop all threads."""
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return _gzip_decompress(data, limit_bytes)
    if codec == Compression.SNAPPY:
        return _snappy_decompress(memoryview(data), limit_bytes)
    if codec == Compression.LZ4:
        return _bounded(cramjam.lz4, bytes(data), limit_bytes, "lz4")
    if codec == Compression.ZSTD:
        return _bounded(cramjam.zstd, bytes(data), limit_bytes, "zstd")
    raise CorruptData(f"unknown compression codec {codec}")


def _too_large(name: str, limit_bytes: int) -> ExpandsTooFar:
    return ExpandsTooFar(f"{name} payload expands beyond {limit_bytes} bytes")


def _gzip_decompress(data: Buffer, limit_bytes: int) -> bytes:
    expanded = io.BytesIO()  # its bytes are handed out without another copy
    rest: Buffer = data
    while True:
        expander = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        while not expander.eof:
            try:
                part = expander.decompress(rest, DECOMPRESSED_PIECE_BYTES)
            except zlib.error as error:
                raise CorruptData(f"gzip payload is corrupt: {error}") from None
            if not part and not expander.eof:
                raise CorruptData("gzip payload is cut short")
            if expanded.tell() + len(part) > limit_bytes:
                raise _too_large("gzip", limit_bytes)
            expanded.write(part)
            rest = expander.unconsumed_tail
        rest = expander.unused_data
        if not rest:
            return expanded.getvalue()


def _snappy_compress(data: memoryview) -> bytes:
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_BLOCK_BYTES])))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _snappy_decompress(data: memoryview, limit_bytes: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(bytes(data), limit_bytes)
    expanded = io.BytesIO()
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise CorruptData("snappy payload is cut short")
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or position + size > len(data):
            raise CorruptData("snappy payload has a block that ends beyond it")
        expanded.write(_snappy_block(bytes(data[position : position + size]), limit_bytes - expanded.tell()))
        position += size
    return expanded.getvalue()


def _snappy_block(block: bytes, limit_bytes: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > limit_bytes:
            raise _too_large("snappy", limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptData(f"snappy payload is corrupt: {error}") from None


def _bounded(codec: object, data: bytes, limit_bytes: int, name: str) -> Buffer:
    """Decompress into a buffer that grows by four up to the limit: the frame headers need not tell the size."""
    size = min(limit_bytes, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        output = bytearray(size)
        try:
            written: int = codec.decompress_into(data, output)  # type: ignore[attr-defined]
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CorruptData(f"{name} payload is corrupt: {error}") from None
            if size >= limit_bytes:
                raise _too_large(name, limit_bytes) from None
            size = min(limit_bytes, size * 4)
            continue
        expanded = memoryview(output)[:written]
        return bytes(expanded) if written <= DECOMPRESSED_PIECE_BYTES else expanded
