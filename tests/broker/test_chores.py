"""Long work goes in steps: others have their turn between two, and a power cut between two loses nothing."""

from __future__ import annotations

import pytest

from kmirror.broker.chores import Steps
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.errors import ApiError
from tests.broker.harness import DIRECTORY, Broker

PARTITIONS = 5


class StepByStep:
    """Goes on when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Steps] = []

    def run(self, steps: Steps) -> None:
        self.waiting.append(steps)

    def step(self) -> bool:
        """One step of the oldest chore; False when there is none."""
        if not self.waiting:
            return False
        if next(self.waiting[0], self) is self:
            del self.waiting[0]
        return True

    def finish(self) -> None:
        while self.step():
            pass


@pytest.fixture
def stepping() -> tuple[Broker, StepByStep]:
    broker = Broker()
    chores = broker.world.chores = StepByStep()
    broker.create("t", PARTITIONS)
    broker.create("other")
    for index in range(PARTITIONS):
        broker.produce("t", b"old", index=index)
    return broker, chores


def directories(broker: Broker, suffix: str = "") -> list[str]:
    return [name for name in broker.fs.list_dir(DIRECTORY) if name.startswith("t-") and name.endswith(suffix)]


def test_a_topic_goes_in_steps(stepping: tuple[Broker, StepByStep]) -> None:
    broker, chores = stepping
    partition = broker.world.partition("t", 0)
    deleted = broker.world.delete_topic("t")
    broker.flush.run()
    assert partition.deleted, "nobody can use it from here on, its files are still there"
    created = broker.world.create_topic(CreateTopicSpec("t", 1))
    steps = 0
    while not deleted.done:
        chores.step()
        steps += 1
        assert broker.produce("other", b"served meanwhile") == steps - 1
    assert steps > 2 * PARTITIONS
    deleted.result()
    created.result()
    assert broker.world.partition("t", 0).log_end_offset == 0
    broker.clock.advance(120_000)
    broker.world.tick()
    left = len(directories(broker, "-delete"))
    assert left == PARTITIONS
    while chores.step():
        assert left - len(directories(broker, "-delete")) <= 1, "one directory per step"
        left = len(directories(broker, "-delete"))
    assert directories(broker) == ["t-0"]


@pytest.mark.parametrize("steps", range(2 * PARTITIONS + 4))
def test_the_power_goes_between_two_steps(stepping: tuple[Broker, StepByStep], steps: int) -> None:
    broker, chores = stepping
    broker.world.delete_topic("t")
    broker.flush.run()
    for _ in range(steps):
        chores.step()
        broker.flush.run()
    broker.crash()
    with pytest.raises(ApiError):
        broker.world.partition("t", 0)
    broker.create("t", PARTITIONS)
    for index in range(PARTITIONS):
        assert broker.produce("t", b"new", index=index) == 0
    broker.clock.advance(120_000)
    broker.world.tick()
    assert not directories(broker, "-delete") and len(directories(broker)) == PARTITIONS


def test_a_topic_is_renamed_with_one_sync(stepping: tuple[Broker, StepByStep]) -> None:
    """A sync of the directory for each of ten thousand partitions took seconds."""
    broker, chores = stepping
    broker.world.delete_topic("t")
    broker.flush.run()
    synced: list[str] = []
    broker.fs.observer = lambda kind, path, phase: (
        synced.append(path) if (kind, phase) == ("sync_dir", "after") else None
    )
    chores.finish()
    broker.flush.run()
    chores.finish()
    assert synced.count(DIRECTORY) == 1


def test_a_topic_deleted_during_retention_is_passed_over(stepping: tuple[Broker, StepByStep]) -> None:
    broker, chores = stepping
    broker.world.apply_retention()
    broker.world.apply_retention()
    assert len(chores.waiting) == 1, "the next pass does not begin before the last one has ended"
    chores.step()
    broker.world.delete_topic("t")
    broker.flush.run()
    chores.finish()
    assert not broker.fatal
    broker.world.apply_retention()
    assert len(chores.waiting) == 1
