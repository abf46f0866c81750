"""The features this broker supports (KIP-584), and the levels between which each may be set. L4."""

from __future__ import annotations

from kmirror.broker.metadata import SUPPORTED_FEATURES as SUPPORTED

__all__ = ["SUPPORTED"]
