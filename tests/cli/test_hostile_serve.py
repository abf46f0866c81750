"""Where the machine gives little: few open files, an output that is full."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kmirror.cli.serve import raise_descriptor_limit


@pytest.mark.parametrize(("soft", "hard", "wanted"), [(1024, 4096, [(4096, 4096)]), (64, 64, [])])
def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: list[tuple[int, int]]
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, limits: asked.append(limits))
    raise_descriptor_limit()
    assert asked == wanted


def test_a_system_that_refuses_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: int, _limits: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_descriptor_limit()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a file that is always full")
def test_an_output_that_is_full_is_said_without_a_traceback() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kmirror.cli.main", "dump", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
