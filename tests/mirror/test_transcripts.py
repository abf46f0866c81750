"""Every state, every transition, every alignment case and every answer about epochs, as told in transcripts/*.txt.

`pytest tests/mirror --rewrite` writes the expected text anew; the difference is to be read, not just committed.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from kmirror.mirror.states import TRANSITIONS, State
from tests.mirror.stage import Stage
from tests.transcripts import now_and_expected

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    now, expected = now_and_expected(path, Stage, request.config)
    assert now == expected


def test_transcripts_go_through_every_state_and_every_way_to_stop() -> None:
    text = "\n".join(path.read_text() for path in TRANSCRIPTS)
    recorded = set(re.findall(r"record ([A-Z_]+) ", text))
    assert recorded == {state.name for state in State} - {"UNKNOWN"}
    seen = set()
    for path in TRANSCRIPTS:
        for scene in path.read_text().split("## "):
            states = ["UNKNOWN", *re.findall(r"record ([A-Z_]+) ", scene)]
            seen.update(pairwise(states))
    wanted = {(source.name, target.name) for target, sources in TRANSITIONS.items() for source in sources}
    rare = {("EPOCH_FENCING", "FAILED"), ("ULE_RECOVERY", "FAILED"), ("UNKNOWN", "STOPPING"), ("UNKNOWN", "FAILED")}
    """The first two are allowed, as the prototypes do, and never taken: they need nobody but us. For the others see
    test_machine: they need a crash between the wish and the first record."""
    assert wanted - seen - rare == set()
