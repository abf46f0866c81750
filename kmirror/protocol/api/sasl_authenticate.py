"""SaslAuthenticate, API key 36."""

from __future__ import annotations

from kmirror.protocol.schema import Bytes, Int16, Int64, String, field, request, response


@request(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    """One message of the SASL exchange, after SaslHandshake v1."""

    auth_bytes: Bytes = b""


@response(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The broker's answer in the exchange."""

    error_code: Int16 = 0
    error_message: String | None = ""
    auth_bytes: Bytes = b""
    # 0: the session does not expire
    session_lifetime_ms: Int64 = field(versions="1+", ignorable=True)
