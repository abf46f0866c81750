"""The demo's application: a consumer group that stops at the source and goes on at the destination.

Both halves are read by the member behind `kmirror consume --group`, so what is shown is what any client would see. The
proof is in the records: every one that was written is read, and none twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from kmirror.cli import demo_source
from kmirror.cli.coordinator import Coordinator
from kmirror.cli.demo_stage import Plan, Stage
from kmirror.cli.failure import Failure
from kmirror.cli.group_consume import GroupReading, Options
from kmirror.cli.group_offsets import committed
from kmirror.cli.group_status import describe, print_group
from kmirror.protocol.records import Record
from kmirror.source.calls import Partition
from kmirror.source.cluster import Cluster

GROUP = "billing"
READ_AT_SOURCE = 250
"""More than one partition of orders holds, so that the group stops in the middle of the second."""
SYNCED_WITHIN_S = 15.0
SYNC_POLL_S = 0.05


@dataclass(slots=True)
class Application:
    """What the group has read so far, in order, and what it had committed when it last stopped."""

    read: list[tuple[str, int, int]] = field(default_factory=list)
    committed: dict[Partition, int] = field(default_factory=dict)

    async def consume(self, cluster: Cluster, count: int) -> None:
        """Read `count` records as the group's only member. Raises Failure, PeerError, DecodeError."""

        def take(topic: str, partition: int, record: Record) -> None:
            self.read.append((topic, partition, record.offset))

        options = Options(group=GROUP, topics=[demo_source.ORDERS], max_records=count, timeout_s=10.0)
        await GroupReading(cluster, options, take).run()
        self.committed = await offsets_of(cluster)


async def offsets_of(cluster: Cluster) -> dict[Partition, int]:
    return {key: value.offset for key, value in (await committed(Coordinator(cluster, GROUP))).items()}


async def wait_for_offsets(cluster: Cluster, expected: dict[Partition, int]) -> None:
    """Until the group has these offsets there. Raises Failure when it does not get them in time."""
    deadline_s = trio.current_time() + SYNCED_WITHIN_S
    while trio.current_time() < deadline_s:
        if await offsets_of(cluster) == expected:
            return
        await trio.sleep(SYNC_POLL_S)
    found = await offsets_of(cluster)
    raise Failure(f"the offsets of group {GROUP} are {found} after {SYNCED_WITHIN_S:g} s, not {expected}")


async def begin_at_source(stage: Stage, origin: Cluster) -> Application:
    stage.step(
        "An application reads some of it there, in a consumer group",
        f"consume --topic {demo_source.ORDERS} --group {GROUP} --max {READ_AT_SOURCE}",
    )
    application = Application()
    await application.consume(origin, READ_AT_SOURCE)
    print_group(await describe(origin, GROUP), members=False)
    stage.check(len(application.read) == READ_AT_SOURCE, f"it read {READ_AT_SOURCE} records, committed and left")
    return application


async def offsets_arrive(stage: Stage, application: Application, destination: Cluster) -> None:
    stage.step("The group's offsets are mirrored too", f"group describe {GROUP}")
    await wait_for_offsets(destination, application.committed)
    print_group(await describe(destination, GROUP), members=False)
    stage.check(True, "what it has committed at the source is committed here")


async def go_on_at_destination(stage: Stage, plan: Plan, application: Application, destination: Cluster) -> None:
    assert plan.written is not None
    total = plan.written.order_records
    before = len(application.read)
    stage.step(
        "The application moves over and goes on where it stopped",
        f"consume --topic {demo_source.ORDERS} --group {GROUP} --max {total - before}",
    )
    stopped_at = dict(application.committed)
    await application.consume(destination, total - before)
    first: dict[Partition, int] = {}
    for topic, partition, offset in application.read[before:]:
        first.setdefault((topic, partition), offset)
    for (topic, partition), offset in sorted(first.items()):
        stage.saw(
            f"{topic}-{partition}: from offset {offset}; committed at the source: {stopped_at.get((topic, partition))}"
        )
    stage.check(
        all(offset == stopped_at.get(key, 0) for key, offset in first.items()),
        "its first record of each partition is the one it had committed",
    )
    stage.check(len(set(application.read)) == len(application.read), "no record was read twice")
    stage.check(len(application.read) == total, f"all {total} records were read: {before} there, {total - before} here")
