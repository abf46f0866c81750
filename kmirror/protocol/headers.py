"""The schema of the two frame headers, for people and tests; the request path reads them by hand in `frames`. L1."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, String, data, field


@data(versions="1-2", flexible="2+")
class RequestHeader:
    request_api_key: Int16 = 0
    request_api_version: Int16 = 0
    correlation_id: Int32 = 0
    # never compact, so that a broker can read it before it knows whether the version is flexible
    client_id: String | None = field(default="", flexible="none")


@data(versions="0-1", flexible="1+")
class ResponseHeader:
    correlation_id: Int32 = 0
