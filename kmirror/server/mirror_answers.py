"""What the answers of the mirror APIs have in common. L4."""

from __future__ import annotations

from collections.abc import Sequence

from kmirror.broker.mirror_seam import StopResult, TopicResult
from kmirror.protocol.errors import ErrorCode


def first_error(results: Sequence[TopicResult | StopResult]) -> tuple[int, str | None]:
    """Code and message for the top of an answer: the first topic's, lateness only when nothing worse happened."""
    failed = [result for result in results if result.error_code]
    worse = [result for result in failed if result.error_code != ErrorCode.REQUEST_TIMED_OUT]
    for result in worse or failed:
        return result.error_code, f"{result.name}: {result.error_message or ErrorCode(result.error_code).name}"
    return ErrorCode.NONE, None
