"""Classic groups as told in transcripts/groups-*.txt; every answer was compared with the rules of Kafka 4.4.

`pytest tests/coordinator --rewrite` writes the expected text anew; the difference is to be read, not just committed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kmirror.coordinator.groups.classic import State
from kmirror.protocol.errors import ErrorCode
from tests.coordinator.group_stage import Stage
from tests.transcripts import now_and_expected

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("groups-*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    now, expected = now_and_expected(path, Stage, request.config)
    assert now == expected


def test_transcripts_go_through_every_state_and_every_refusal() -> None:
    text = "\n".join(path.read_text() for path in TRANSCRIPTS)
    assert all(f"\n{state} " in text for state in State if state is not State.DEAD)
    seen = set(re.findall(r"\b(?:join|sync|beat|commit|delete|leave): ([A-Z_]{6,})", text))
    assert {ErrorCode[name] for name in seen} >= {
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
