"""`kmirror serve` where the machine gives it little."""

from __future__ import annotations

import resource

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
