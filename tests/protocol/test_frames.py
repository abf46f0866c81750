"""Headers and frames, against their schema and against the traps other implementations fell into."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from kmirror.errors import DecodeError, EncodeError
from kmirror.limits import COALESCE_BELOW_BYTES
from kmirror.protocol import frames, headers, registry
from kmirror.protocol.api.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kmirror.protocol.api.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kmirror.protocol.api.metadata import MetadataRequest, MetadataResponse
from kmirror.protocol.compile import decode, encode
from kmirror.protocol.errors import ErrorCode
from tests.protocol.generator import random_message

API_VERSIONS = registry.by_name["ApiVersions"]
METADATA = registry.by_name["Metadata"]
FETCH = registry.by_name["Fetch"]


def test_headers_by_hand_are_the_headers_of_the_schema(rng: random.Random) -> None:
    for api in registry.APIS:
        for version in range(api.min_version, api.max_version + 1):
            client_id = rng.choice((None, "", "größe", "c" * 300))
            message = random_message(rng, api.request, version, max_elements=1)
            frame = frames.request_frame(api, version, 77, client_id, message)
            header = headers.RequestHeader(
                request_api_key=api.key, request_api_version=version, correlation_id=77, client_id=client_id
            )
            expected = encode(header, registry.request_header_version(api, version)) + encode(message, version)
            assert frame == struct.pack(">i", len(expected)) + expected
            parsed, offset = frames.parse_request_header(frame[4:])
            assert parsed == frames.RequestHeader(api.key, version, 77, client_id)
            assert decode(api.request, frame[4:], version, offset=offset, exact=True) == message


def test_responses_come_back(rng: random.Random) -> None:
    for api in registry.APIS:
        for version in range(api.min_version, api.max_version + 1):
            message = random_message(rng, api.response, version, max_elements=1)
            if api is API_VERSIONS and version > 0:
                message.error_code = 0
            frame = b"".join(_buffers(frames.response_frame(api, version, -5, message)))
            header = encode(headers.ResponseHeader(correlation_id=-5), registry.response_header_version(api, version))
            assert frame == struct.pack(">i", len(frame) - 4) + header + encode(message, version)
            assert frames.parse_response(api, version, frame[4:]) == (-5, message)


def _buffers(pieces: list[Any]) -> list[bytes | memoryview]:
    assert all(isinstance(piece, bytes | memoryview) for piece in pieces)
    return pieces


def test_api_versions_answers_with_the_short_header_in_every_version() -> None:
    """After the correlation id comes the error code, never a tag byte (KIP-482)."""
    for version in range(API_VERSIONS.max_version + 1):
        frame = b"".join(_buffers(frames.response_frame(API_VERSIONS, version, 1, ApiVersionsResponse(error_code=35))))
        assert frame[8:10] == struct.pack(">h", 35)
    for version in range(9, METADATA.max_version + 1):
        frame = b"".join(_buffers(frames.response_frame(METADATA, version, 1, MetadataResponse())))
        assert frame[8] == 0


def test_a_refused_api_versions_is_read_as_version_0() -> None:
    """KIP-511: whoever lacks the version answers in the oldest."""
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)]
    )
    frame = b"".join(_buffers(frames.response_frame(API_VERSIONS, 0, 3, answer)))[4:]
    assert frames.parse_response(API_VERSIONS, 4, frame) == (3, answer)


def test_a_version_nobody_knows_has_the_newest_header() -> None:
    """The header of ApiVersions v99 must be readable, its body must not be touched."""
    frame = struct.pack(">hhih", 18, 99, 9, 5) + b"probe" + b"\0" + bytes(range(16))
    header, offset = frames.parse_request_header(frame)
    assert header == frames.RequestHeader(18, 99, 9, "probe")
    assert frame[offset:] == bytes(range(16))


def test_tags_in_headers_are_skipped() -> None:
    start = struct.pack(">hhih", METADATA.key, 12, 1, -1)
    body = encode(MetadataRequest(topics=None), 12)
    frame = start + bytes.fromhex("020001aae80703010203") + body
    header, offset = frames.parse_request_header(frame)
    assert header.client_id is None
    assert decode(MetadataRequest, frame, 12, offset=offset, exact=True).topics is None
    answer = struct.pack(">i", 4) + bytes.fromhex("010502ffff") + encode(MetadataResponse(), 12)
    assert frames.parse_response(METADATA, 12, answer) == (4, MetadataResponse())


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"GET / ",
        bytes(9),
        struct.pack(">hhih", 9999, 0, 0, 0),
        struct.pack(">hhih", -1, 0, 0, 0),
        struct.pack(">hhih", 3, 4, 0, -7530) + bytes(20),
        struct.pack(">hhih", 3, 4, 0, 30) + bytes(20),
        struct.pack(">hhih", 3, 12, 0, 0),
        struct.pack(">hhih", 3, 12, 0, 0) + b"\1\0\x09a",
        struct.pack(">hhih", 3, 12, 0, 0) + b"\x80\x80\x80\x80\x80\x80",
        bytes.fromhex("160301020001000107fc0303"),
    ],
    ids=["empty", "http", "short", "key", "negative key", "negative id", "id", "no tags", "tag", "varint", "tls"],
)
def test_what_is_no_request_is_refused(frame: bytes) -> None:
    with pytest.raises(DecodeError):
        frames.parse_request_header(frame)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", struct.pack(">i", 1), struct.pack(">i", 1) + b"\1\1"])
def test_what_is_no_response_is_refused(frame: bytes) -> None:
    with pytest.raises(DecodeError):
        frames.parse_response(METADATA, 12, frame)


def test_small_pieces_are_joined_and_large_ones_kept() -> None:
    large, small = memoryview(bytes(COALESCE_BELOW_BYTES)), memoryview(b"small")
    partitions = [PartitionData(records=large), PartitionData(records=small), PartitionData(records=b"")]
    answer = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    pieces = frames.response_frame(FETCH, 12, 1, answer)
    assert [piece is large for piece in pieces] == [False, True, False]
    assert struct.unpack(">i", bytes(pieces[0][:4]))[0] == sum(map(len, pieces)) - 4  # type: ignore[index]


def test_a_client_id_must_fit() -> None:
    with pytest.raises(EncodeError):
        frames.request_frame(API_VERSIONS, 3, 1, "x" * 40_000, ApiVersionsRequest())
