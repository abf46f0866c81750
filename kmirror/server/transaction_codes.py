"""How the requests of a transactional producer name the one error whose name depends on the version. L4."""

from __future__ import annotations

from kmirror.protocol.errors import ErrorCode


def for_version(code: ErrorCode, api_version: int, first_with_fenced: int) -> ErrorCode:
    """PRODUCER_FENCED is younger than transactions: older clients know INVALID_PRODUCER_EPOCH (KAFKA-10687)."""
    if code is ErrorCode.PRODUCER_FENCED and api_version < first_with_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
