"""A fixed story of the metadata log with snapshots, the power cut before and after each operation on its directory.

Whatever the point: the broker starts, its image is one that there was, at or behind the last that anybody was told of,
and it goes on from there. The same with one sync left out must fail: else it could find nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import pytest

from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.metadata import MIRROR_RESOURCE
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.effects import Effects, Promise
from kmirror.errors import CorruptData
from kmirror.protocol import uuids
from kmirror.storage.memory import Kind, MemoryFileSystem, Phase
from tests.broker.harness import DIRECTORY, OverlappingFlush, QuietMirrors
from tests.broker.metadata_history import facts
from tests.power_cut import PowerCut

METADATA = f"{DIRECTORY}/__cluster_metadata-0"


class Story:
    """Tells the story on one file system. The same ids every time, so that two tellings can be compared.

    `states` is the image after each commit; `told` how many commits anybody was told of.
    """

    def __init__(self, fs: MemoryFileSystem, flush: type[InlineFlush] = InlineFlush) -> None:
        self.fs = fs
        self.flush_kind = flush
        self.clock = ManualClock()
        self.states: list[dict[str, Any]] = []
        self.told = 0

    def open(self) -> None:
        self.flush = self.flush_kind()
        properties = {"metadata.max.retention.bytes": "2500", "metadata.log.max.snapshot.interval.ms": "0"}
        self.world = _watched(self.states).open(
            self.fs,
            DIRECTORY,
            BrokerConfig.from_properties(properties),
            self.clock,
            self.flush,
            mirrors=QuietMirrors,
        )
        log = self.world._metadata.log
        log.apply_config(replace(log.config, segment_bytes=700))
        self.told = len(self.states)

    def told_now(self, promises: list[Promise[Any]]) -> None:
        count = len(self.states)
        self.flush.run()
        for promise in promises:
            promise.result()
        self.told = count

    def create(self, *names: str, **spec: Any) -> None:
        self.told_now([self.world.create_topic(CreateTopicSpec(name, 2, **spec)) for name in names])

    def delete(self, name: str) -> None:
        self.told_now([self.world.delete_topic(name)])

    def tell(self) -> None:
        numbers = count(1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(uuids, "random_id", lambda: next(numbers).to_bytes(16, "big"))
            self._tell()

    def _tell(self) -> None:
        self.open()
        self.create("a", "b", configs={"retention.ms": "1"})
        self.world.snapshots.write()
        self.create("c")
        self.delete("b")
        for number in range(5):
            self.create(f"n{number}")
        self.world.snapshots.write()
        self.told_now([self.world.configs.write(MIRROR_RESOURCE, "m", {"bootstrap.servers": "h:1"})])
        self.told_now([self.world.producer_ids.next()])
        self.told_now([self.world.bump_leader_epoch(self.world.partition("a", 0), 5)])
        self.clock.advance(61_000)
        self.world.tick()
        for number in range(5, 10):
            self.create(f"n{number}")
        unflushed = self.world.create_topic(CreateTopicSpec("unflushed", 1))
        self.world.snapshots.write()
        self.told_now([unflushed])
        self.delete("c")
        self.world.snapshots.write()
        self.flush.run()
        self.world.close()
        self.open()
        self.delete("n1")
        self.world.snapshots.write()
        self.flush.run()
        self.clock.advance(61_000)
        self.world.tick()
        self.flush.run()
        self.create("last")

    def after_the_cut(self, fs: MemoryFileSystem, told_uncut: Sequence[dict[str, Any]]) -> str | None:
        """Open what survived, and again after more was done; says what is wrong, None when nothing is.

        `told_uncut`: the states of the whole story.
        """
        after = Story(fs, self.flush_kind)
        try:
            after.open()
            said = facts(after.world.image)
            possible = told_uncut[max(0, self.told - 1) : len(self.states) + 1]  # the last one was being written
            if self.told and said not in possible:
                return f"the image is none of the last {len(possible)}: topics {sorted(said['topics'])}"
            after.create("afterwards")
            after.world.snapshots.write()
            after.flush.run()
            expected = facts(after.world.image)
            after.world.close()
            after.open()
        except CorruptData as error:
            return str(error)
        return None if facts(after.world.image) == expected else "a restart changed the image"


def _watched(states: list[dict[str, Any]]) -> type[World]:
    class Watched(World):
        def commit(self, effects: Effects) -> bool:
            done = super().commit(effects)
            states.append(facts(self.image))
            return done

        def _raise_epochs(self) -> None:
            """An unclean start raises leader epochs; here the image is wanted as the disk has it."""

    return Watched


@cache
def whole_story() -> tuple[dict[str, Any], ...]:
    story = Story(MemoryFileSystem())
    story.tell()
    return tuple(story.states)


def cut_at(story: Story, point: int, tell: Callable[[Story], None] = Story.tell) -> bool:
    """Tell the story up to operation `point` on the metadata directory; False when it ended before."""
    seen = 0

    def observe(_kind: Kind, path: str, _phase: Phase) -> None:
        nonlocal seen
        if path.startswith(METADATA):
            seen += 1
            if seen == point:
                raise PowerCut

    story.fs.observer = observe
    try:
        tell(story)
    except PowerCut:
        story.fs.observer = None
        return True
    return False


def failures(
    flush: type[InlineFlush],
    *,
    step: int = 1,
    first: int = 1,
    skip_sync: Callable[[str], bool] = lambda path: False,
) -> Iterator[str]:
    """One line per point and kind of crash after which something is wrong."""
    for point in range(first, 100_000, step):
        for keep_nothing in (True, False):
            fs = MemoryFileSystem(seed=point)
            fs.skip_sync = skip_sync
            story = Story(fs, flush)
            if not cut_at(story, point):
                assert point > 500, "the story is shorter than it was meant to be"
                return
            wrong = story.after_the_cut(fs.crash(keep_nothing=keep_nothing), whole_story())
            if wrong is not None:
                yield f"point {point}, keep_nothing={keep_nothing}: {wrong}"


def test_the_story_does_what_it_is_told_for() -> None:
    story = Story(MemoryFileSystem())
    story.tell()
    log = story.world._metadata.log
    assert log.segments[0].base_offset > 0, "no segment went"
    assert 1 <= len(story.world.snapshots.known) <= 2, "no snapshot went"
    assert len(story.world.image.removed_ids) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("flush", "first"), [(InlineFlush, 1), (OverlappingFlush, 2), (InlineFlush, 3)])
def test_nothing_is_lost_wherever_the_power_is_cut(flush: type[InlineFlush], first: int) -> None:
    """Each point once; the two kinds of flush differ in nothing but the order of what they do."""
    assert list(failures(flush, first=first, step=3)) == []


@pytest.mark.slow
def test_a_second_cut_while_it_starts() -> None:
    for point in range(150, 500, 23):
        for second in range(1, 200, 7):
            story = Story(MemoryFileSystem(seed=point))
            assert cut_at(story, point)
            survived = story.fs.crash()
            if not cut_at(Story(survived), second, tell=Story.open):
                break
            wrong = story.after_the_cut(survived.crash(), whole_story())
            assert wrong is None, f"cut at {point}, then at {second}: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda path: path.endswith(".part"), id="bytes of a snapshot"),
        pytest.param(lambda path: path == METADATA, id="names"),
    ],
)
def test_a_sync_that_is_left_out_is_found(lie: Callable[[str], bool]) -> None:
    assert next(failures(InlineFlush, step=5, skip_sync=lie), None) is not None
