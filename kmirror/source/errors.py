"""What can go wrong between us and a broker that we are the client of.

Only failures of the *way* to a broker stand here. An answer that carries a Kafka error code is an answer: it is
returned, and whoever asked decides. A broker that sends rubbish raises `kmirror.errors.DecodeError`.
"""

from __future__ import annotations

from kmirror.errors import KmirrorError


class PeerError(KmirrorError):
    """The broker could not be asked. Every subclass leaves the connection closed, save `UnsupportedByPeer`."""


class PeerUnreachable(PeerError):
    """No connection could be made: refused, no route, name unknown, or set-up took too long."""


class PeerClosed(PeerError):
    """The connection ended while an answer was awaited, or had ended before."""


class PeerTimeout(PeerError):
    """The broker stayed silent longer than allowed."""


class UnsupportedByPeer(PeerError):
    """The broker and we have no version of this API in common. The connection stays usable."""
