"""Peers as fixtures; see `conformance.peers.fixtures`."""

from __future__ import annotations

from conformance.peers.fixtures import kafka_installation

__all__ = ["kafka_installation"]
