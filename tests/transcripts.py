"""Transcripts: `> command` and below it what it has to say, on a stage; the stage is empty again at every `## `.

With `--rewrite` a transcript is written anew; the difference is to be read, not just committed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest


class Stage(Protocol):
    def play(self, command: str, /) -> list[str]:
        """What the command says, line by line."""


def played(text: str, empty_stage: Callable[[], Stage]) -> str:
    """The transcript with its commands, comments and what happens now."""
    stage = empty_stage()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            if line.startswith("## "):
                stage = empty_stage()
            lines.append(line)
        elif line.startswith("> "):
            lines.append(line)
            lines += stage.play(line[2:])
    return "\n".join(lines) + "\n"


def now_and_expected(path: Path, empty_stage: Callable[[], Stage], config: pytest.Config) -> tuple[str, str]:
    """The transcript as it happens now, and as it stands in the file: with `--rewrite` that is what happens now."""
    expected = path.read_text()
    now = played(expected, empty_stage)
    if config.getoption("--rewrite"):
        path.write_text(now)
        expected = now
    return now, expected
