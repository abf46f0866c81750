"""Group offsets of the source, as pure rules: which groups, which value, what is written (B069)."""

from __future__ import annotations

import random

import pytest

from kmirror.effects import Place
from kmirror.errors import ApiError
from kmirror.mirror.group_sync import GroupOffset, Held, ListedGroup, Readable, changes, clamped, wanted

DAY_MS = 86_400_000


def readable(start: int, high_watermark: int, epochs: dict[int, int] | None = None) -> Readable:
    """`epochs`: epoch by its first offset."""
    entries = sorted((epochs or {}).items())

    def epoch_at(offset: int) -> int:
        return max((epoch for first, epoch in entries if first <= offset), default=-1)

    return Readable(log_start_offset=start, high_watermark=high_watermark, epoch_at=epoch_at)


@pytest.mark.parametrize(
    ("case", "source", "bounds", "becomes"),
    [
        ("inside", GroupOffset(40, 7, "m"), readable(0, 100, {0: 5}), GroupOffset(40, 7, "m")),
        ("at the log start", GroupOffset(20, 7, "m"), readable(20, 100, {0: 5}), GroupOffset(20, 7, "m")),
        ("at the end", GroupOffset(100, 7, "m"), readable(0, 100, {0: 5}), GroupOffset(100, 7, "m")),
        ("zero is an offset", GroupOffset(0, -1, ""), readable(0, 100), GroupOffset(0, -1, "")),
        ("below the log start", GroupOffset(5, 1, "m"), readable(20, 100, {0: 3, 30: 5}), GroupOffset(20, 3, "")),
        ("beyond the end", GroupOffset(900, 9, "m"), readable(0, 700, {0: 3, 600: 5}), GroupOffset(700, 5, "")),
        ("empty partition", GroupOffset(50, 2, "m"), readable(0, 0), GroupOffset(0, -1, "")),
        ("empty partition that begins later", GroupOffset(5, 2, "m"), readable(50, 50), GroupOffset(50, -1, "")),
        ("no epoch known there", GroupOffset(5, 2, "m"), readable(20, 100, {50: 4}), GroupOffset(20, -1, "")),
    ],
)
def test_the_clamp(case: str, source: GroupOffset, bounds: Readable, becomes: GroupOffset) -> None:
    assert clamped(source, bounds) == becomes, case


def test_the_clamp_of_anything_can_be_read_here(rng: random.Random) -> None:
    for _ in range(2000):
        start = rng.randrange(50)
        end = start + rng.randrange(50)
        source = GroupOffset(rng.randrange(150), rng.randrange(-1, 5), rng.choice(["", "m"]))
        found = clamped(source, readable(start, end, {0: 1, 40: 2}))
        assert start <= found.offset <= end
        if start <= source.offset <= end:
            assert found == source
        else:
            assert found.offset in (start, end)
            assert found.metadata == ""


# -- which groups ----------------------------------------------------------------------------------------------------


def groups(*names: str) -> list[ListedGroup]:
    return [ListedGroup(name, "consumer") for name in names]


@pytest.mark.parametrize(
    ("include", "exclude", "found"),
    [
        ([".*"], [], ["app-1", "app-2", "internal"]),
        (["app-.*"], ["app-2"], ["app-1"]),
        (["app-1", "internal"], [], ["app-1", "internal"]),
        (["app"], [], []),
        ([], [], []),
        ([".*"], [".*"], []),
    ],
)
def test_groups_are_chosen_by_whole_names_and_exclude_wins(
    include: list[str], exclude: list[str], found: list[str]
) -> None:
    assert wanted(groups("internal", "app-2", "app-1"), include=include, exclude=exclude) == found


def test_groups_of_any_protocol_count_share_groups_do_not() -> None:
    listed = [
        ListedGroup("simple", ""),
        ListedGroup("connect", "connect", "Classic"),
        ListedGroup("new", "consumer", "Consumer"),
        ListedGroup("shared", "share", "Share"),
        ListedGroup("simple", ""),
    ]
    assert wanted(listed, include=[".*"], exclude=[]) == ["connect", "new", "simple"]


def test_a_bad_pattern_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        wanted(groups("g"), include=["("], exclude=[])
    assert refused.value.code == 128


# -- what is written -------------------------------------------------------------------------------------------------

P0, P1, P2, P3 = [("t", index) for index in range(4)]
BOUNDS = {P0: readable(0, 700), P1: readable(0, 700), P3: readable(0, 700, {0: 4})}


def written(
    source: dict[Place, GroupOffset], held: dict[Place, Held] | None = None, *, now_ms: int = 0
) -> dict[Place, GroupOffset]:
    return changes(source, BOUNDS, held or {}, now_ms=now_ms, renew_after_ms=3 * DAY_MS)


def test_what_the_source_has_and_only_for_partitions_that_take_part() -> None:
    source = {P0: GroupOffset(0), P1: GroupOffset(50, 2, "m"), P2: GroupOffset(7), P3: GroupOffset(900, 9, "m")}
    assert written(source) == {P0: GroupOffset(0), P1: GroupOffset(50, 2, "m"), P3: GroupOffset(700, 4, "")}


def test_nothing_is_invented() -> None:
    assert written({P1: GroupOffset(-1)}) == {}
    assert written({}, {P0: Held(GroupOffset(5), 0)}) == {}, "gone at the source: left to expire here"


@pytest.mark.parametrize(
    ("held", "source", "again"),
    [
        (GroupOffset(50, 2, "m"), GroupOffset(50, 2, "m"), False),
        (GroupOffset(50, 2, "m"), GroupOffset(20, 2, "m"), True),
        (GroupOffset(50, 2, "m"), GroupOffset(51, 2, "m"), True),
        (GroupOffset(50, 2, "m"), GroupOffset(50, 3, "m"), True),
        (GroupOffset(50, 2, "m"), GroupOffset(50, 2, "n"), True),
        (GroupOffset(700, -1, ""), GroupOffset(900, 9, "m"), False),
    ],
)
def test_only_what_differs_is_written(held: GroupOffset, source: GroupOffset, again: bool) -> None:
    assert (P1 in written({P1: source}, {P1: Held(held, 0)})) is again


def test_what_would_expire_here_is_written_again() -> None:
    value = GroupOffset(50, 2, "m")
    assert written({P1: value}, {P1: Held(value, 1000)}, now_ms=1000 + 3 * DAY_MS - 1) == {}
    assert written({P1: value}, {P1: Held(value, 1000)}, now_ms=1000 + 3 * DAY_MS) == {P1: value}
