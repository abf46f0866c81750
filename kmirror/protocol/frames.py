"""Frames: size, header, body. Sans-IO: bytes in, bytes out; who reads and writes sockets is no concern of this file.

A *frame* here is what stands after the four-byte size. The headers are read and written by hand, because every
request passes here; their schema stands in `headers` and a test holds both to the same bytes.
The request header's client id keeps its int16 length even in flexible versions. L1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kmirror.errors import DecodeError, EncodeError
from kmirror.limits import COALESCE_BELOW_BYTES, MAX_CLIENT_ID_BYTES
from kmirror.protocol import registry, wire
from kmirror.protocol.compile import Buffer, decode, encode_pieces
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.registry import Api
from kmirror.protocol.schema import Piece
from kmirror.slices import FileSlice

_REQUEST_START = struct.Struct(">hhih")
_RESPONSE_START = struct.Struct(">ii")
_SIZE = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")


@dataclass(slots=True)
class RequestHeader:
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def parse_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """(header, offset of the body). Raises DecodeError, also for an API that has no schema here.

    The version may be one that nobody serves: the caller answers (ApiVersions) or closes. Its header is read as the
    newest, since flexible versions stay flexible.
    """
    end = len(frame)
    if end < _REQUEST_START.size:
        raise DecodeError(f"a request header has at least {_REQUEST_START.size} bytes, not {end}", api="RequestHeader")
    key, version, correlation_id, size_bytes = _REQUEST_START.unpack_from(frame, 0)
    api = registry.by_key.get(key)
    if api is None:
        raise DecodeError(f"unknown API key {key}", api="RequestHeader", path="request_api_key", offset=0)
    offset = _REQUEST_START.size
    client_id = None
    if size_bytes != -1:
        after = offset + size_bytes
        if not offset <= after <= end:
            reason = f"length {size_bytes}, but {end - offset} bytes are left"
            raise DecodeError(reason, api="RequestHeader", path="client_id", offset=offset - 2)
        client_id = str(frame[offset:after], "utf-8", "replace")
        offset = after
    if version >= api.flexible_from:
        offset = _skip_header_tags(frame, offset, end, "RequestHeader")
    return RequestHeader(key, version, correlation_id, client_id), offset


def _skip_header_tags(frame: Buffer, offset: int, end: int, name: str) -> int:
    """The offset after the tagged fields of a header: Kafka has none yet, a newer peer may."""
    if offset < end and frame[offset] == 0:
        return offset + 1
    try:
        return wire.skip_tags(frame, offset + 1, end, frame[offset])
    except (IndexError, wire.Malformed) as error:
        raise DecodeError(f"bad tagged fields: {error}", api=name, path="<tags>", offset=offset) from None


def request_frame(api: Api, version: int, correlation_id: int, client_id: str | None, message: object) -> bytes:
    """A whole request, with the size in front. Raises EncodeError."""
    name = None if client_id is None else client_id.encode()
    if name is not None and len(name) > MAX_CLIENT_ID_BYTES:
        raise EncodeError(f"client id of {len(name)} bytes, its length field holds {MAX_CLIENT_ID_BYTES}")
    header = _REQUEST_START.pack(api.key, version, correlation_id, -1 if name is None else len(name))
    pieces: list[Piece] = []
    size_bytes = encode_pieces(message, version, pieces)
    tags = b"\0" if version >= api.flexible_from else b""
    size_bytes += len(header) + len(name or b"") + len(tags)
    body = [piece.read() if isinstance(piece, FileSlice) else piece for piece in pieces]
    return b"".join([_SIZE.pack(size_bytes), header, name or b"", tags, *body])


def response_frame(api: Api, version: int, correlation_id: int, message: object) -> list[Piece]:
    """A whole response as few pieces; the first one begins with size and header. Raises EncodeError.

    FileSlices and large buffers stay pieces of their own, everything between them is joined.
    """
    body: list[Piece] = []
    size_bytes = encode_pieces(message, version, body)
    if version >= api.flexible_from and api.key != registry.API_VERSIONS_KEY:
        start = _RESPONSE_START.pack(size_bytes + 5, correlation_id) + b"\0"
    else:
        start = _RESPONSE_START.pack(size_bytes + 4, correlation_id)
    return join_small([start, *body])


def join_small(pieces: list[Piece]) -> list[Piece]:
    """The same bytes with runs of small buffers joined; FileSlices and large buffers are kept, empty pieces dropped."""
    joined: list[Piece] = []
    run: list[bytes | memoryview] = []
    for piece in pieces:
        if isinstance(piece, FileSlice) or len(piece) >= COALESCE_BELOW_BYTES:
            if run:
                joined.append(b"".join(run))
                run = []
            if len(piece):
                joined.append(piece)
        else:
            run.append(piece)
    if run:
        joined.append(b"".join(run))
    return joined


def parse_response(api: Api, version: int, frame: Buffer) -> tuple[int, Any]:
    """(correlation id, message). Raises DecodeError.

    A broker that does not know our ApiVersions version answers in version 0 with error 35 (KIP-511): so is it read.
    """
    if len(frame) < 4:
        raise DecodeError(f"a response has at least 4 bytes, not {len(frame)}", api="ResponseHeader")
    (correlation_id,) = _SIZE.unpack_from(frame, 0)
    offset = 4
    if api.key == registry.API_VERSIONS_KEY:
        if version > 0 and len(frame) >= 6 and _ERROR_CODE.unpack_from(frame, 4)[0] == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
    elif version >= api.flexible_from:
        offset = _skip_header_tags(frame, offset, len(frame), "ResponseHeader")
    return correlation_id, decode(api.response, frame, version, offset=offset)
