"""Two logs, one of which may have parted from the other: the dialog finds exactly where. Against brute force."""

from __future__ import annotations

import random

import pytest

from kmirror.mirror.agreement import Agreed, Agreement, AskBatch, AskEpochEnd, Compared, Diverged, LocalBatch

Batch = tuple[int, int, int, str]
"""base offset, next offset, epoch, bytes"""


def grow(chance: random.Random, log: list[Batch], count: int, epoch: int, tag: str) -> list[Batch]:
    log = list(log)
    end = log[-1][1] if log else 0
    for _ in range(count):
        epoch += chance.choice([0, 0, 0, 1, 3])
        base = end + chance.choice([0, 0, 0, 2])
        end = base + chance.randint(1, 3)
        log.append((base, end, epoch, f"{tag}{base}"))
    return log


def entries(log: list[Batch]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for base, _, epoch, _ in log:
        if not found or found[-1][0] < epoch:
            found.append((epoch, base))
    return found


class Source:
    """Answers as a leader does (LeaderEpochFileCache.endOffsetFor)."""

    def __init__(self, log: list[Batch]) -> None:
        self.log = log
        self.end = log[-1][1] if log else 0

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        cache = entries(self.log)
        if not cache or epoch > cache[-1][0]:
            return -1, -1
        if epoch == cache[-1][0]:
            return epoch, self.end
        higher = next(start for e, start in cache if e > epoch)
        lower = [e for e, _ in cache if e <= epoch]
        return (lower[-1] if lower else epoch), higher

    def compare(self, ours: Batch) -> Compared:
        theirs = next((b for b in self.log if b[1] > ours[0]), None)
        if theirs is None or theirs[0] >= ours[1]:
            return Compared.NOT_COMPARED
        return Compared.EQUAL if theirs == ours else Compared.DIFFERENT


def dialog(mine: list[Batch], source: Source, *, bound: int | None = None) -> tuple[Agreed | Diverged, int]:
    def batch_below(offset: int) -> LocalBatch | None:
        found = [b for b in mine if b[0] < offset]
        return LocalBatch(found[-1][0], found[-1][1], 1) if found else None

    end = (mine[-1][1] if mine else 0) if bound is None else bound
    agreement = Agreement(entries(mine), log_start_offset=0, bound=end, batch_below=batch_below)
    asked = 0
    while agreement.result is None:
        asked += 1
        assert asked < 200, "the dialog does not end"
        question = agreement.question
        if isinstance(question, AskEpochEnd):
            assert agreement.epoch_end(*source.epoch_end(question.epoch))
        else:
            assert isinstance(question, AskBatch)
            agreement.compared(source.compare(next(b for b in mine if b[0] == question.offset)))
    return agreement.result, asked


@pytest.mark.parametrize("part", range(4))
def test_divergence_is_found_exactly(part: int, seed: int) -> None:
    chance = random.Random(seed + part)
    for _ in range(1_500):
        shared = grow(chance, [], chance.randint(0, 6), chance.randint(0, 3), "s")
        epoch = shared[-1][2] if shared else 0
        mine = grow(chance, shared, chance.choice([0, 0, 1, 3]), epoch + chance.choice([0, 0, 1]), "m")
        theirs = grow(chance, shared, chance.choice([0, 1, 4]), epoch + chance.choice([0, 0, 1, 2]), "t")
        result, _ = dialog(mine, Source(theirs))
        check(mine, theirs, shared, result)


def check(mine: list[Batch], theirs: list[Batch], shared: list[Batch], result: Agreed | Diverged) -> None:
    end = mine[-1][1] if mine else 0
    if mine == shared:
        assert isinstance(result, Agreed), (mine, theirs, result)
        return
    if isinstance(result, Agreed):
        # nothing of ours that differs overlaps a batch of theirs: a hole there, as compaction leaves it
        last = mine[-1]
        assert not [b for b in theirs if b[0] < last[1] and last[0] < b[1]], (mine, theirs)
        return
    assert result.common_offset < end
    kept = [b for b in mine if b[1] <= result.common_offset]
    beyond = kept[len(shared) :]
    in_holes = [b for b in beyond if not any(t[0] < b[1] and b[0] < t[1] for t in theirs)]
    assert kept[: len(shared)] == shared[: len(kept)], (mine, theirs, result)
    assert beyond == in_holes, (mine, theirs, result)
    lost = [b for b in shared if b[1] > result.common_offset]
    assert not lost, f"cut more than it had to: {mine}, {theirs}, {result}"


def test_the_same_log_needs_two_questions() -> None:
    log = grow(random.Random(1), [], 50, 0, "s")
    result, asked = dialog(log, Source([*log, (log[-1][1], log[-1][1] + 1, log[-1][2], "more")]))
    assert result == Agreed(tail_compared=True) and asked == 2


def test_equal_epochs_everywhere_and_other_bytes_from_the_middle_on() -> None:
    mine = [(n, n + 1, 0, f"m{n}") for n in range(1_000)]
    theirs = [(n, n + 1, 0, f"m{n}" if n < 333 else f"t{n}") for n in range(1_000)]
    result, asked = dialog(mine, Source(theirs))
    assert isinstance(result, Diverged) and result.common_offset == 333
    assert asked < 20


def test_an_answer_above_the_question_is_not_taken() -> None:
    agreement = Agreement([(1, 0)], log_start_offset=0, bound=5, batch_below=lambda _: None)
    assert not agreement.epoch_end(2, 5)
    assert agreement.result is None


def test_an_empty_log_agrees_at_once() -> None:
    agreement = Agreement([], log_start_offset=7, bound=7, batch_below=lambda _: None)
    assert agreement.result == Agreed(tail_compared=False)
