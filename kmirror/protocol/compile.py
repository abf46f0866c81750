"""The fast backend: decoders and encoders generated from the schema at first use, one per (message, version).

The source is written by `decode_source` and `encode_source`, compiled once and registered in `linecache`, so that
tracebacks, debuggers and `python -m kmirror.protocol show Fetch 12` can print it. Generating takes about a
millisecond, so nothing is generated at import.

What must hold: whatever bytes come in, a decoder returns a complete message or raises `DecodeError` that names the
message, version, field and byte. Lengths are compared with the end of the frame before anything is sliced, counts with
the bytes left before anything is built. An encoder writes nothing rather than something wrong: `EncodeError`.
Decoded byte strings are views of the caller's buffer. L1.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from kmirror.errors import DecodeError, EncodeError
from kmirror.protocol.decode_source import DecodeSource, Spans
from kmirror.protocol.encode_source import EncodeSource
from kmirror.protocol.schema import Piece, schema_of
from kmirror.protocol.wire import Malformed
from kmirror.slices import FileSlice

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview

_DECODE_ERRORS = (struct.error, IndexError, Malformed)
_ENCODE_ERRORS = (struct.error, TypeError, AttributeError, ValueError, Malformed)

_decoders: dict[tuple[type[Any], int], Callable[[Buffer, int, int], tuple[Any, int]]] = {}
_encoders: dict[tuple[type[Any], int], Callable[[Any, list[Any]], None]] = {}


def decode(cls: type[T], data: Buffer, version: int, *, offset: int = 0, exact: bool = False) -> T:
    """The message that starts at `offset`. Bytes after it are ignored, as Kafka does, unless `exact`.

    Raises DecodeError. Fields of type Bytes and Records are memoryviews of `data`.
    """
    found = _decoders.get((cls, version))
    if found is None:
        found = decoder(cls, version)
    message, after = found(data, offset, len(data))
    if exact and after != len(data):
        reason = f"{len(data) - after} bytes after the end of the message"
        raise DecodeError(reason, api=cls.__name__, version=version, offset=after)
    return message  # type: ignore[no-any-return]


def encode(message: object, version: int) -> bytes:
    """The bytes of `message`. A FileSlice among its records is read. Raises EncodeError."""
    pieces: list[Piece] = []
    encode_pieces(message, version, pieces)
    return b"".join([piece.read() if isinstance(piece, FileSlice) else piece for piece in pieces])


def encode_pieces(message: object, version: int, pieces: list[Piece]) -> int:
    """Append the bytes of `message` to `pieces`, records as they are; returns the size in bytes of what was appended.

    Raises EncodeError and leaves `pieces` as it was.
    """
    start = len(pieces)
    cls = type(message)
    found = _encoders.get((cls, version))
    if found is None:
        found = encoder(cls, version)
    try:
        found(message, pieces)
    except EncodeError:
        del pieces[start:]
        raise
    return sum(map(len, pieces if start == 0 else pieces[start:]))


def decoder(cls: type[T], version: int) -> Callable[[Buffer, int, int], tuple[T, int]]:
    """`(data, offset, end) -> (message, offset after it)`. Raises DecodeError when there is no such version."""
    found = _decoders.get((cls, version))
    if found is None:
        schema = schema_of(cls)
        if schema.kind == "struct" or version not in schema.versions:
            reason = f"there is no such version, only {schema.versions}"
            raise DecodeError(reason, api=cls.__name__, version=version)
        source = DecodeSource(schema, version)
        scope = source.scope | {"unpack_from": struct.unpack_from, "ERRORS": _DECODE_ERRORS}
        scope["explain"] = _decode_explainer(cls.__name__, version, source.spans)
        found = _load(source.text, f"<kmirror decode {cls.__name__} v{version}>", scope, "decode")
        _decoders[cls, version] = found
    return found


def encoder(cls: type[Any], version: int) -> Callable[[Any, list[Any]], None]:
    """`(message, pieces) -> None`. Raises EncodeError when there is no such version."""
    found = _encoders.get((cls, version))
    if found is None:
        schema = schema_of(cls)
        if schema.kind == "struct" or version not in schema.versions:
            raise EncodeError(f"{cls.__name__} has no version {version}, only {schema.versions}")
        source = EncodeSource(schema, version)
        scope = source.scope | {"pack": struct.pack, "ERRORS": _ENCODE_ERRORS}
        scope["explain"] = _encode_explainer(cls.__name__, version, source.spans)
        found = _load(source.text, f"<kmirror encode {cls.__name__} v{version}>", scope, "encode")
        _encoders[cls, version] = found
    return found


def source_text(cls: type[Any], version: int) -> str:
    """The generated source of both directions, for people."""
    schema = schema_of(cls)
    return DecodeSource(schema, version).text + "\n\n" + EncodeSource(schema, version).text


def _load(text: str, filename: str, scope: dict[str, Any], name: str) -> Any:
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    exec(compile(text, filename, "exec"), scope)
    return scope[name]


def _decode_explainer(
    name: str, version: int, spans: dict[int, Spans]
) -> Callable[[Exception, dict[str, Any]], DecodeError]:
    """The function that generated code calls when something failed: which field, at which byte."""

    def explain(error: Exception, variables: dict[str, Any]) -> DecodeError:
        line = error.__traceback__.tb_lineno if error.__traceback__ is not None else 0
        offset, end = variables["o"], variables["end"]
        path = ""
        for size_bytes, path in spans.get(line, ()):  # noqa: B007 - the last one tried is the one that did not fit
            if offset + size_bytes > end:
                break
            offset += size_bytes
        indexes = {key: value for key, value in variables.items() if key[0] == "i" and key[1:].isdigit()}
        reason = str(error) if isinstance(error, Malformed) else "the frame ends too early"
        return DecodeError(reason, api=name, version=version, path=path.format_map(indexes), offset=offset)

    return explain


def _encode_explainer(
    name: str, version: int, spans: dict[int, Spans]
) -> Callable[[Exception, dict[str, Any]], EncodeError]:
    def explain(error: Exception, variables: dict[str, Any]) -> EncodeError:
        line = error.__traceback__.tb_lineno if error.__traceback__ is not None else 0
        path = spans.get(line, ((0, ""),))[0][1]
        return EncodeError(f"{name} v{version}{' at ' + path if path else ''}: {error}")

    return explain
