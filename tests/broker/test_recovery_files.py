"""The files beside the partitions, damaged in every way, on real files: a start says what was said before, or refuses
with the file's name and changes nothing. The files inside a partition: `tests/storage/test_recovery_files.py`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.partition import EARLIEST, LATEST
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.errors import ApiError, ConfigError, CorruptData
from kmirror.protocol.records import Record, build_batch
from kmirror.storage.errors import StorageLocked
from kmirror.storage.filesystem import OsFileSystem
from tests.broker.harness import QuietMirrors

Damage = Callable[[bytes], bytes | None]
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
DAMAGES: dict[str, Damage] = {
    "missing": lambda _data: None,
    "empty": lambda _data: b"",
    "half": lambda data: data[: len(data) // 2],
    "a byte short": lambda data: data[:-1],
    "a line short": lambda data: data[: data.rstrip(b"\n").rfind(b"\n") + 1],
    "another version": lambda data: b"7" + data[1:],
    "wrong count": lambda data: data.replace(b"0\n", b"0\n9", 1),
    "zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: random.Random(len(data)).randbytes(len(data) or 40),
    "not a number": lambda data: data[:-2] + b"x\n",
    "zero-padded": lambda data: data + bytes(512),
}


def opened(directory: Path) -> World:
    flush = InlineFlush(at_once=True)
    config = BrokerConfig.from_properties({})
    return World.open(OsFileSystem(), str(directory), config, ManualClock(), flush, mirrors=QuietMirrors)


def close(world: World, *, clean: bool) -> None:
    """An unclean end writes nothing more, as after a kill."""
    world.close(clean=True) if clean else world.directory.release()


def answers(world: World) -> dict[str, object]:
    """For each partition where it begins and ends, and every byte that a reader gets."""
    found: dict[str, object] = {}
    for partition in world.partitions():
        start, end = partition.list_offset(EARLIEST)[0], partition.list_offset(LATEST)[0]
        read = partition.read(start, max_bytes=1 << 20)
        found[str(partition)] = (start, end, b"".join(piece.read() for piece in read.slices)[:8], read.size_bytes)
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Ten batches in each of two partitions of `t`, the log start of the first inside one of them; one topic is empty,
    one compacted. As a clean stop leaves it, and a kill after the next records."""
    first = tmp_path_factory.mktemp("data") / "clean"
    world = opened(first)
    for name, count, configs in (("t", 2, {}), ("empty", 1, {}), ("c", 1, {"cleanup.policy": "compact"})):
        world.create_topic(CreateTopicSpec(name, count, configs=dict(configs)))
    for number in range(10):
        for name, index in (("t", 0), ("t", 1), ("c", 0)):
            records = [Record(b"k", b"%d" % number) for _ in range(3)]
            world.partition(name, index).produce(build_batch(records, timestamp_ms=1), now_ms=1, acks=-1)
    world.delete_records("t", 0, 16)
    world.partition("c", 0).cleaned_up_to = 3
    close(world, clean=True)
    second = first.parent / "unclean"
    shutil.copytree(first, second)
    world = opened(second)
    world.partition("t", 0).produce(build_batch([Record(b"k", b"last")], timestamp_ms=1), now_ms=1, acks=-1)
    close(world, clean=False)
    return {True: first, False: second}


def damaged(source: Path, place: Path, name: str, damage: Damage) -> Path:
    shutil.copytree(source, place)
    data = damage((place / name).read_bytes())
    if data is None:
        (place / name).unlink()
    else:
        (place / name).write_bytes(data)
    return place


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_damaged_checkpoint_costs_no_record(
    told: dict[bool, Path], tmp_path: Path, name: str, damage: str, clean: bool
) -> None:
    """Nor brings a deleted one back."""
    whole = tmp_path / "whole"
    shutil.copytree(told[clean], whole)
    world = opened(whole)
    expected = answers(world)
    close(world, clean=False)
    place = damaged(told[clean], tmp_path / "data", name, DAMAGES[damage])
    for end in (False, True):
        world = opened(place)
        assert answers(world) == expected
        close(world, clean=end)
    shutil.rmtree(place)
    assert expected["t-0"] == (16, 31 if not clean else 30, (15).to_bytes(8), expected["t-0"][3])  # type: ignore[index]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_flipped_bit_in_a_checkpoint_is_harmless_or_said(
    told: dict[bool, Path], tmp_path: Path, rng: random.Random, name: str
) -> None:
    """Kafka's format has no checksum. A recovery point too high takes the partition offline with a sentence, too low it
    costs time; a log start beyond the end is refused; nothing is ever cut for one."""
    source = told[True]
    size = len((source / name).read_bytes())
    sizes = {path.relative_to(source): path.stat().st_size for path in source.rglob("*.log")}
    for at in range(4, size):
        bit = 1 << rng.randrange(8)
        place = damaged(
            source,
            tmp_path / str(at),
            name,
            lambda data, at=at, bit=bit: _flipped(data, at, bit),  # type: ignore[misc]
        )
        world = opened(place)
        for partition in world.partitions():
            try:
                end = partition.list_offset(LATEST)[0]
            except ApiError as error:
                assert "Restore" in str(error) or "offline" in str(error) or "checkpoint" in str(error)
                continue
            assert end == (0 if partition.topic_name == "empty" else 30)
        close(world, clean=False)
        for path, size_bytes in sizes.items():
            assert (place / path).stat().st_size >= size_bytes or "cluster_metadata" in str(path)
        shutil.rmtree(place)


def _flipped(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= bit
    return bytes(changed)


@pytest.mark.parametrize("damage", ["missing", "empty", "half", "zeros", "garbage"])
@pytest.mark.parametrize("name", ["meta.properties", "t-0/partition.metadata"])
def test_identities_are_never_invented(told: dict[bool, Path], tmp_path: Path, name: str, damage: str) -> None:
    """A cluster without its id does not start, a partition without its topic's id is offline; both say what to do, and
    with the file in its place again everything is there."""
    whole = (told[True] / name).read_bytes()
    place = damaged(told[True], tmp_path / "data", name, DAMAGES[damage])
    before = {path: path.read_bytes() for path in place.rglob("*.log")}
    for _ in range(2):
        if name == "meta.properties":
            with pytest.raises((CorruptData, ConfigError), match=r"meta\.properties"):
                opened(place)
        else:
            world = opened(place)
            with pytest.raises(ApiError, match=r"partition\.metadata"):
                world.partition("t", 0).read(16, max_bytes=1000)
            assert world.partition("t", 1).list_offset(LATEST)[0] == 30
            close(world, clean=True)
    assert {path: path.read_bytes() for path in before} == before or name != "meta.properties"
    (place / name).write_bytes(whole)
    world = opened(place)
    assert world.partition("t", 0).list_offset(LATEST)[0] == 30
    close(world, clean=False)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_mark_of_a_clean_stop_is_a_mark_whatever_is_in_it(
    told: dict[bool, Path], tmp_path: Path, damage: str
) -> None:
    """Without it everything is recovered, with the same answers."""
    world = opened(damaged(told[True], tmp_path / "whole", ".kafka_cleanshutdown", lambda data: data))
    expected = answers(world)
    close(world, clean=False)
    place = damaged(told[True], tmp_path / "data", ".kafka_cleanshutdown", DAMAGES[damage])
    world = opened(place)
    assert answers(world) == expected
    assert world.directory.clean == (damage != "missing")
    assert not (place / ".kafka_cleanshutdown").exists()
    close(world, clean=False)


def test_the_directory_is_locked_while_somebody_has_it(told: dict[bool, Path], tmp_path: Path) -> None:
    """And nothing of it is touched by who comes second, the mark of the clean stop included."""
    place = tmp_path / "data"
    shutil.copytree(told[True], place)
    lock = OsFileSystem().lock(str(place / ".lock"))
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with pytest.raises(StorageLocked, match="another process"):
        opened(place)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    lock.release()
    close(opened(place), clean=True)
