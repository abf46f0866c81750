"""The demo's way back: the old source becomes a mirror of the new one, and only the difference moves.

The destination is reached through a relay that counts (`byte_counter`), so the number of bytes is measured on the wire,
requests of every kind included, and not worked out from what should have moved.
"""

from __future__ import annotations

from pathlib import Path

from kmirror.cli import demo_groups, demo_source, file_formats, mirror_actions
from kmirror.cli.byte_counter import ByteCounter
from kmirror.cli.demo_groups import Application
from kmirror.cli.demo_stage import WAITING, Plan, Stage, compare_all, create_and_start
from kmirror.cli.session import check
from kmirror.clock import SystemClock
from kmirror.protocol.records import Record, build_batch
from kmirror.source.cluster import Cluster

BACK = "back"
LATE_VALUE = "written to the old source after the failover"
MOVED_SHARE = 4
"""At most one part in so many of the logs may come over the wire for the failback to have moved a difference only."""


async def write_to_the_old_source(stage: Stage, origin: Cluster) -> int:
    """Somebody did not hear of the failover. The offset of the record."""
    stage.step("Somebody still writes to the old source", f"produce --topic {demo_source.ORDERS} --partition 0")
    offset = await _produce(origin, LATE_VALUE)
    stage.saw(f"accepted there, at offset {offset}: the two clusters have parted")
    return offset


async def _produce(cluster: Cluster, value: str) -> int:
    data = build_batch([Record(b"key", value.encode())], timestamp_ms=SystemClock().time_ms())
    answer = await cluster.produce(demo_source.ORDERS, 0, data)
    check(answer.error_code, answer.error_message, "a batch was refused")
    return answer.base_offset


async def fail_back(
    stage: Stage, plan: Plan, counter: ByteCounter, application: Application, origin: Cluster, destination: Cluster
) -> None:
    topics = ",".join(plan.topics)
    stage.step(
        "Go back: the old source mirrors the new one",
        f"mirror create {BACK} --source {counter.address} --topics '{topics}'",
        f"mirror start {BACK} --topics '{topics}'",
    )
    before_bytes = counter.sent_bytes
    await create_and_start(stage, origin, BACK, counter.address, plan.topics)
    moved_bytes = counter.sent_bytes - before_bytes
    assert plan.directory is not None
    log_bytes = sum(path.stat().st_size for topic in plan.topics for path in plan.directory.glob(f"{topic}-*/*.log"))
    stage.saw(f"{moved_bytes} bytes came over the wire; the logs hold {log_bytes} bytes")
    stage.check(moved_bytes * MOVED_SHARE < log_bytes, "only the difference moved")
    results = await compare_all(stage, destination, origin, BACK)
    stage.check(
        sum(result.size_bytes for result in results) == log_bytes, "and now the logs are the same from end to end"
    )
    await demo_groups.wait_for_offsets(origin, application.committed)
    stage.check(True, f"group {demo_groups.GROUP} has its offsets there again")


def what_was_cut(stage: Stage, plan: Plan, offset: int) -> None:
    assert plan.directory is not None
    place = plan.directory / "cut"
    stage.step("What only the old source had is not lost", f"dump source/{place.name}")
    values = _saved_values(place)
    stage.check((offset, LATE_VALUE) in values, f"the record at offset {offset} was cut, and saved under cut/")


def _saved_values(place: Path) -> list[tuple[int, str | None]]:
    return [
        (record["offset"], record.get("value"))
        for log in sorted(place.rglob("*.log"))
        for row in file_formats.log_rows(log)
        for record in row.get("records", ())
    ]


async def promote_again(stage: Stage, plan: Plan, origin: Cluster) -> None:
    topics = ",".join(plan.topics)
    stage.step("And the old source serves again", f"mirror promote {BACK} --topics '{topics}'")
    stage.finish(await mirror_actions.promote(origin, BACK, plan.topics, max_lag=0, waiting=WAITING))
    offset = await _produce(origin, "written after the way back")
    stage.check(offset >= 0, f"it takes writes: offset {offset}")
