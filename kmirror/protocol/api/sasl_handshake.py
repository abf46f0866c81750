"""SaslHandshake, API key 17."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, String, field, request, response


@request(key=17, versions="0-1", flexible="none")
class SaslHandshakeRequest:
    """Choose a SASL mechanism. In v0 bare SASL bytes follow on the connection, in v1 SaslAuthenticate requests."""

    mechanism: String = ""


@response(key=17, versions="0-1", flexible="none")
class SaslHandshakeResponse:
    """Whether the mechanism is enabled, and which ones are."""

    error_code: Int16 = 0
    mechanisms: list[String] = field()
