"""A log directory of an Apache Kafka on a file system in memory, made of recorded partitions, to be imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.importing import ImportReport, ImportRequest, plan_import, run_import
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.protocol import uuids
from kmirror.protocol.internal import cluster_metadata as records
from kmirror.protocol.records import Record, build_batch
from kmirror.storage import checkpoints
from kmirror.storage.kraft_snapshot import SnapshotId, SnapshotWriter
from kmirror.storage.memory import MemoryFileSystem
from tests.broker.harness import DIRECTORY, QuietMirrors

SEGMENTS = Path(__file__).parents[1] / "storage" / "segments"
SOURCE = "/kafka"
METADATA = f"{SOURCE}/__cluster_metadata-0"
RECORDED = sorted(str(path.relative_to(SEGMENTS)) for path in SEGMENTS.glob("*/*-0"))


def put(fs: MemoryFileSystem, path: str, data: bytes) -> None:
    """A file that has been on disk for long."""
    fs.make_dirs(path.rpartition("/")[0])
    file = fs.open(path, create=True)
    file.truncate(0)
    file.append([data])
    file.sync()
    fs.sync_dir(path.rpartition("/")[0])


def put_partition(
    fs: MemoryFileSystem, recorded: str, name: str | None = None, *, source: str = SOURCE, topic_id: bytes | None = None
) -> str:
    """A recorded directory, as `name` (TOPIC-N); returns its path. `topic_id`: another than the recorded one."""
    place = f"{source}/{name or recorded.partition('/')[2]}"
    for path in sorted((SEGMENTS / recorded).iterdir()):
        if not path.name.endswith(".dump.txt"):
            put(fs, f"{place}/{path.name}", path.read_bytes())
    if topic_id is not None:
        put(fs, f"{place}/partition.metadata", f"version: 0\ntopic_id: {uuids.to_text(topic_id)}".encode())
    return place


def put_checkpoint(
    fs: MemoryFileSystem, name: str, offsets: Mapping[tuple[str, int], int], source: str = SOURCE
) -> None:
    lines = (f"{topic} {index} {offset}" for (topic, index), offset in offsets.items())
    put(fs, f"{source}/{name}", checkpoints.format_lines(lines))


def stopped_cleanly(fs: MemoryFileSystem, source: str = SOURCE) -> None:
    put(fs, f"{source}/{checkpoints.CLEAN_SHUTDOWN_FILE}", b'{"version":0,"brokerEpoch":7}')


def topic_records(
    name: str, topic_id: bytes, epochs: Sequence[int] = (0,), configs: Mapping[str, str] | None = None
) -> list[Any]:
    made: list[Any] = [records.TopicRecord(name=name, topic_id=topic_id)]
    made += [
        records.ConfigRecord(resource_type=2, resource_name=name, name=key, value=value)
        for key, value in (configs or {}).items()
    ]
    made += [
        records.PartitionRecord(
            partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1, leader_epoch=epoch, directories=[]
        )
        for index, epoch in enumerate(epochs)
    ]
    return made


def put_metadata(
    fs: MemoryFileSystem, log: Sequence[Any], *, snapshot: Sequence[Any] = (), covered: int = 0, source: str = SOURCE
) -> None:
    """`log`: metadata records (or raw values) in one segment behind `snapshot`, which covers `covered` offsets."""
    place = f"{source}/__cluster_metadata-0"
    values = [one if isinstance(one, bytes) else records.encode_metadata(one) for one in log]
    batches = [
        build_batch([Record(value=value)], base_offset=covered + number, leader_epoch=3)
        for number, value in enumerate(values)
    ]
    put(fs, f"{place}/{covered:020d}.log", b"".join(batches))
    if covered:
        writer = SnapshotWriter(fs, place, SnapshotId(3, covered), reserve=lambda size: None)
        writer.begin(last_timestamp_ms=1, now_ms=2)
        for one in snapshot:
            writer.add(records.encode_metadata(one))
        writer.finish()
        fs.open(writer.part_path).sync()
        writer.publish()
        fs.sync_dir(place)


def id_in(fs: MemoryFileSystem, path: str) -> bytes:
    text = checkpoints.read_partition_metadata(fs, path)
    assert text is not None
    return uuids.from_text(text)


def tree(fs: MemoryFileSystem, path: str) -> dict[str, bytes]:
    """Every file below `path`, by path."""
    found: dict[str, bytes] = {}
    for name in fs.list_dir(path):
        inner = f"{path}/{name}"
        try:
            fs.list_dir(inner)
        except FileNotFoundError:
            found[inner] = fs.read_file(inner)
        else:
            found |= tree(fs, inner)
    return found


def log_bytes(fs: MemoryFileSystem, directory: str) -> bytes:
    """All batches of a partition directory."""
    names = [name for name in fs.list_dir(directory) if name.endswith(".log")]
    return b"".join(fs.read_file(f"{directory}/{name}") for name in names)


def do_import(
    fs: MemoryFileSystem,
    *sources: str,
    settings: Mapping[str, Mapping[str, str]] | None = None,
    only: Sequence[str] = (),
    clock: ManualClock | None = None,
) -> ImportReport:
    request = _request(sources, settings, only)
    return run_import(fs, DIRECTORY, BrokerConfig.from_properties({}), clock or ManualClock(), request)


def dry_run(
    fs: MemoryFileSystem, *sources: str, settings: Mapping[str, Mapping[str, str]] | None = None
) -> ImportReport:
    return plan_import(fs, DIRECTORY, _request(sources, settings, ()))


def _request(
    sources: Sequence[str], settings: Mapping[str, Mapping[str, str]] | None, only: Sequence[str]
) -> ImportRequest:
    return ImportRequest(sources or (SOURCE,), lambda name: not only or name in only, settings or {})


def serve(fs: MemoryFileSystem, clock: ManualClock | None = None) -> World:
    """A broker on what was imported."""
    return World.open(
        fs,
        DIRECTORY,
        BrokerConfig.from_properties({}),
        clock or ManualClock(),
        InlineFlush(at_once=True),
        mirrors=QuietMirrors,
    )
