"""API keys of requests that only kmirror's own command line sends. L1: imports nothing of kmirror.

They are not in ApiVersions, so that clients and comparisons with Kafka see nothing new; whoever does not know one
closes the connection, as Kafka does. Far away from the numbers that Kafka gives out one by one.
"""

from __future__ import annotations

from typing import Final

BACKUP: Final = 27_501
"""The letters "km"."""
