"""The power cut before and after each operation of an import: what survives is a topic, whole, or no trace of it.

Whatever the point: the next start finds nothing that it stumbles over, an import that is repeated takes over what is
not there yet, and then every batch is there. The same with one sync left out must fail: else it could find nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kmirror.broker.config import BrokerConfig
from kmirror.broker.importing import ImportRequest, run_import
from kmirror.clock import ManualClock
from kmirror.errors import KmirrorError
from kmirror.protocol import uuids
from kmirror.storage import checkpoints
from kmirror.storage.flush import FACTS_FILE
from kmirror.storage.memory import MemoryFileSystem
from tests.broker.harness import DIRECTORY
from tests.broker.kafka_source import (
    SOURCE,
    do_import,
    log_bytes,
    put_checkpoint,
    put_metadata,
    put_partition,
    serve,
    stopped_cleanly,
    topic_records,
    tree,
)
from tests.power_cut import powered_until

TOPICS = {"a": uuids.from_text("AAAAAAAAAAAAAAAAAAAAAQ"), "b": uuids.from_text("AAAAAAAAAAAAAAAAAAAAAg")}
LOG_START = 4
"""Of b-0: inside of its log."""


def filled(seed: int) -> MemoryFileSystem:
    """Topic a with two partitions, one with two segments; topic b, trimmed."""
    fs = MemoryFileSystem(seed=seed)
    put_partition(fs, "4.4.0/txn-0", "a-0", topic_id=TOPICS["a"])
    put_partition(fs, "4.4.0/epochs-0", "a-1", topic_id=TOPICS["a"])
    put_partition(fs, "4.4.0/idem-0", "b-0", topic_id=TOPICS["b"])
    put_checkpoint(fs, checkpoints.LOG_START_FILE, {("b", 0): LOG_START})
    configs = {"retention.ms": "-1"}
    put_metadata(
        fs, [*topic_records("a", TOPICS["a"], [3, 4], configs), *topic_records("b", TOPICS["b"], [1], configs)]
    )
    stopped_cleanly(fs)
    return fs


def wrong_after(fs: MemoryFileSystem, warnings: list[str]) -> str | None:
    """What is wrong with what survived, None when nothing is."""
    try:
        warnings.clear()
        world = serve(fs)
        live = dict(world.image.topics_by_name)
        world.tick()
        world.close()
        left = [
            path for path in tree(fs, DIRECTORY) if path.endswith((".log", ".metadata")) and "__cluster" not in path
        ]
        strays = [path for path in left if path.removeprefix(f"{DIRECTORY}/").partition("-")[0] not in live]
        if strays or fs.exists(f"{DIRECTORY}/import-unfinished"):
            return f"left behind: {strays or 'import-unfinished'}"
        if any("belongs to no topic" in text for text in warnings):
            return "the start knew of a directory that belongs to no topic"
        report = do_import(fs)
        refused = {plan.name for plan in report.refused}
        if refused != live.keys():
            return f"live after the cut: {sorted(live)}; refused the second time: {sorted(refused)}"
        return _wrong_when_served(fs)
    except KmirrorError as error:
        return f"{type(error).__name__}: {error}"


def _wrong_when_served(fs: MemoryFileSystem) -> str | None:
    world = serve(fs)
    for name, topic_id in TOPICS.items():
        topic = world.image.topics_by_name[name]
        if topic.topic_id != topic_id or topic.configs != {"retention.ms": "-1"}:
            return f"{name} has another id or other configs"
        for partition in topic.partitions:
            found = b"".join(data for _header, data in partition.log.batches(0, 2**62))
            if found != log_bytes(fs, f"{SOURCE}/{partition}"):
                return f"{partition} has other bytes"
    start = world.partition("b", 0).log_start_offset
    world.close()
    return None if start == LOG_START else f"b-0 begins at {start}"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the broker logs."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Handler()
    logging.getLogger("kmirror.broker").addHandler(handler)
    yield found
    logging.getLogger("kmirror.broker").removeHandler(handler)


def failures(
    warnings: list[str],
    *,
    first: int = 1,
    step: int = 1,
    existing: bool = False,
    skip_sync: Callable[[str], bool] = lambda path: False,
) -> Iterator[str]:
    """One line per point and kind of crash after which something is wrong."""
    for point in range(first, 100_000, step):
        for keep_nothing in (True, False):
            fs = filled(point)
            if existing:
                serve(fs).close()
            fs.skip_sync = skip_sync
            with powered_until(fs, point) as power:
                do_import(fs)
            if power.lasted:
                assert point > 150, "the import has fewer steps than it was meant to have"
                survived = fs.crash(keep_nothing=keep_nothing)
                wrong = wrong_after(survived, warnings)
                if wrong is not None:
                    yield f"cut after the end, keep_nothing={keep_nothing}: {wrong}"
                if not keep_nothing:
                    return
                continue
            wrong = wrong_after(fs.crash(keep_nothing=keep_nothing), warnings)
            if wrong is not None:
                yield f"point {point}, keep_nothing={keep_nothing}: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2])
def test_a_topic_is_there_whole_or_not_at_all(warnings: list[str], first: int) -> None:
    """Every point, of an import into a directory that is not there yet."""
    assert list(failures(warnings, first=first, step=2)) == []


@pytest.mark.slow
def test_the_same_in_a_directory_that_is_there(warnings: list[str]) -> None:
    assert list(failures(warnings, first=3, step=7, existing=True)) == []


@pytest.mark.slow
def test_a_cut_while_the_next_start_removes_what_is_unfinished(warnings: list[str]) -> None:
    for point in range(60, 160, 17):
        for second in range(1, 60, 3):
            fs = filled(point)
            with powered_until(fs, point) as power:
                do_import(fs)
            assert not power.lasted
            survived = fs.crash()
            with powered_until(survived, second) as power:
                serve(survived).tick()
            wrong = wrong_after(survived.crash(), warnings)
            assert wrong is None, f"cut at {point}, then at {second}: {wrong}"
            if power.lasted:
                break


def test_an_import_that_is_interrupted(warnings: list[str]) -> None:
    """Ctrl-C while a partition is being copied, and while one is being checked."""
    for times in range(1, 40):
        fs = filled(1)
        progress = Interrupting(times)
        with suppress(KeyboardInterrupt):
            run_import(
                fs, DIRECTORY, BrokerConfig.from_properties({}), ManualClock(), ImportRequest([SOURCE]), progress
            )
        assert fs.locks == set()
        wrong = wrong_after(fs, warnings)
        assert wrong is None, f"interrupted at report {times}: {wrong}"
        if progress.left > 0:
            assert times > 10
            return


class Interrupting:
    """A progress display during which somebody presses Ctrl-C."""

    def __init__(self, times: int) -> None:
        self.left = times

    def begin(self, total_bytes: int) -> None:
        return None

    def advance(self, topic: str, size_bytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda path: path.startswith(f"{DIRECTORY}/a-") and path.endswith(".log"), id="copied logs"),
        pytest.param(lambda path: path in (f"{DIRECTORY}/a-0", f"{DIRECTORY}/a-1"), id="names of copied files"),
        pytest.param(lambda path: checkpoints.LOG_START_FILE in path or FACTS_FILE in path, id="log starts"),
        pytest.param(lambda path: "import-unfinished" in path, id="what is unfinished"),
        pytest.param(lambda path: "partition.metadata" in path, id="topic ids"),
    ],
)
def test_a_sync_that_is_left_out_is_found(warnings: list[str], lie: Callable[[str], bool]) -> None:
    assert next(failures(warnings, first=150, step=3, skip_sync=lie), None) is not None
