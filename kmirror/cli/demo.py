"""`kmirror demo`: mirror, verify, fail over and go back between two brokers, each step explained, done and checked.

With no options a kmirror in this process plays the source; with --source it is your own cluster, which is only read,
and the steps that write there are left out. The destination is always a second kmirror process in a directory of its
own that is removed at the end. The exit status tells whether every check held.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import click
import trio

from kmirror.cli import demo_failback, demo_groups, demo_source, file_formats, mirror_actions
from kmirror.cli.byte_counter import byte_counter
from kmirror.cli.child_broker import ChildBroker, child_broker
from kmirror.cli.demo_stage import WAITING, Plan, Stage, compare_all, create_and_start
from kmirror.cli.display import print_table
from kmirror.cli.dump import batch_line, record_line
from kmirror.cli.failure import BadUsage, CannotReach, Failure
from kmirror.cli.mirror_status import Row, describe_one
from kmirror.cli.partition_reader import PartitionReader
from kmirror.cli.session import Session, code_name, comma_list, refusal, run_readably
from kmirror.clock import SystemClock
from kmirror.errors import DecodeError
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import Record, build_batch
from kmirror.source.cluster import Cluster
from kmirror.source.errors import PeerError

MIRROR = "demo"
OWN_RECORDS = 5


@click.command("demo")
@click.option("--source", metavar="HOST:PORT", help="Your own cluster, read only.  [default: a kmirror made for this]")
@click.option("--topics", metavar="LIST", help="Topics of --source: names or regular expressions.")
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Keep the data here.")
def command(source: str | None, topics: str | None, keep: Path | None) -> None:
    """Mirror, verify, fail over and go back between two brokers, step by step."""
    if source is not None and not comma_list(topics):
        raise BadUsage("--source needs --topics: which of your topics shall be mirrored")
    if source is None and topics is not None:
        raise BadUsage("--topics needs --source: without it the demo makes its own topics")
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(levelname)s %(message)s")
    began_ms = SystemClock().monotonic_ms()
    stage = Stage()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kmirror-demo-")))
            directory.mkdir(parents=True, exist_ok=True)
            await perform(stage, directory, source, comma_list(topics))

    run_readably(main, source or "the demo's brokers")
    seconds = (SystemClock().monotonic_ms() - began_ms) / 1000
    click.echo()
    click.secho(f"Done: {stage.checks} checks held in {seconds:.1f} s.", bold=True)


async def perform(stage: Stage, directory: Path, source: str | None, topics: list[str]) -> None:
    """All steps. Raises Failure at the first check that does not hold."""
    async with AsyncExitStack() as stack:
        if source is None:
            plan = await stack.enter_async_context(embedded_source(stage, directory / "source"))
        else:
            plan = Plan(source, topics)
        origin = Session(plan.source).cluster()
        stack.callback(origin.close)
        if source is not None:
            await _reach(origin, source)
        application = await demo_groups.begin_at_source(stage, origin) if plan.written is not None else None
        counter = await stack.enter_async_context(byte_counter())
        settings = " ".join(f"--set {name}={value}" for name, value in demo_source.OFTEN.items())
        stage.step("A second kmirror process is the destination", f"serve --data-dir destination {settings}")
        child = await stack.enter_async_context(
            child_broker(
                directory / "destination",
                directory / "destination.log",
                advertised=counter.address,
                settings=demo_source.OFTEN,
            )
        )
        counter.target = ("127.0.0.1", child.port)
        stage.saw(f"process {child.pid} serves {counter.address}")
        destination = Session(counter.address).cluster()
        stack.callback(destination.close)
        await mirror_step(stage, plan, destination)
        await verify_step(stage, plan, origin, destination, counter.address, child)
        await refusal_step(stage, plan, destination)
        if application is not None:
            await demo_groups.offsets_arrive(stage, application, destination)
        await failover_step(stage, plan, destination)
        markers_step(stage, plan, child)
        await own_records_step(stage, plan, destination, child)
        if application is not None:
            await demo_groups.go_on_at_destination(stage, plan, application, destination)
        await still_identical_step(stage, plan, origin, destination)
        if application is not None:
            offset = await demo_failback.write_to_the_old_source(stage, origin)
            await demo_failback.fail_back(stage, plan, counter, application, origin, destination)
            demo_failback.what_was_cut(stage, plan, offset)
            await demo_failback.promote_again(stage, plan, origin)


async def _reach(origin: Cluster, address: str) -> None:
    """Raises CannotReach before anything has been begun."""
    try:
        await origin.metadata([])
    except (PeerError, DecodeError) as error:
        raise CannotReach(
            f"cannot reach the source at {address}: {error}",
            next_step="Check that it runs, and that --source names its address and a plain-text listener.",
        ) from error


@asynccontextmanager
async def embedded_source(stage: Stage, directory: Path) -> AsyncIterator[Plan]:
    from kmirror import app as application

    stage.step("A kmirror in this process plays the source, with everything worth mirroring")
    properties = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **demo_source.OFTEN}
    async with application.running(properties) as app:
        cluster = Session(app.bootstrap).cluster()
        try:
            await demo_source.create_topics(cluster)
            written = await demo_source.fill(app, cluster)
        finally:
            cluster.close()
        stage.saw(
            f"{app.bootstrap}: {written.batches} batches, {written.records} records in {demo_source.ORDERS} "
            f"({demo_source.ORDERS_PARTITIONS} partitions) and {demo_source.PAYMENTS}\n"
            f"codecs {', '.join(written.codecs)}; an idempotent producer ({demo_source.IDEMPOTENT_PRODUCER}); leader "
            f"epochs {', '.join(map(str, sorted(written.leader_epochs)))}\n"
            f"{demo_source.PAYMENTS}: one transaction committed, one aborted, one left open"
        )
        yield Plan(app.bootstrap, [demo_source.ORDERS, demo_source.PAYMENTS], directory, written)


async def mirror_step(stage: Stage, plan: Plan, destination: Cluster) -> None:
    topics = ",".join(plan.topics)
    stage.step(
        "Mirror it",
        f"mirror create {MIRROR} --source {plan.source} --topics '{topics}'",
        f"mirror start {MIRROR} --topics '{topics}'",
    )
    plan.rows = await create_and_start(stage, destination, MIRROR, plan.source, plan.topics)


async def verify_step(
    stage: Stage, plan: Plan, origin: Cluster, destination: Cluster, address: str, child: ChildBroker
) -> None:
    stage.step("Compare it with the source, batch by batch", f"verify {MIRROR} --bootstrap {address}")
    results = await compare_all(stage, origin, destination, MIRROR)
    if plan.written is not None:
        batches = sum(result.batch_count for result in results)
        stage.check(batches == plan.written.batches, f"all {batches} batches that were written have been compared")
        for index in range(demo_source.ORDERS_PARTITIONS):
            epochs, codecs = _epochs_and_codecs(child.directory / f"{demo_source.ORDERS}-{index}")
            held = len(epochs) >= 2 and codecs >= set(plan.written.codecs)
            stage.check(held, f"{demo_source.ORDERS}-{index} has leader epochs {sorted(epochs)} and every codec")


def _epochs_and_codecs(directory: Path) -> tuple[set[int], set[str]]:
    batches = list(_batches(directory, with_records=False))
    return {row["leader_epoch"] for row in batches}, {row["compression"] for row in batches}


def _batches(directory: Path, *, with_records: bool) -> Iterator[Row]:
    """Of all segments in the directory of a partition."""
    for log in sorted(directory.glob("*.log")):
        yield from (row for row in file_formats.log_rows(log, with_records=with_records) if row["kind"] == "batch")


async def refusal_step(stage: Stage, plan: Plan, destination: Cluster) -> None:
    row = _writable_row(plan)
    stage.step("Try to write to the mirror", f"produce --topic {row['topic']} --partition {row['partition']}")
    data = build_batch([Record(b"key", b"not welcome")], timestamp_ms=SystemClock().time_ms())
    answer = await destination.produce(row["topic"], row["partition"], data)
    stage.saw(refusal(answer.error_code, answer.error_message))
    stage.check(answer.error_code == ErrorCode.READ_ONLY_TOPIC, f"refused with {code_name(ErrorCode.READ_ONLY_TOPIC)}")
    stage.check(bool(answer.error_message), "the refusal says which mirror, and what to do")


def _writable_row(plan: Plan) -> Row:
    """The partition the demo writes to: the one with the open transaction, else the first."""
    rows = [row for row in plan.rows if row["topic"] == demo_source.PAYMENTS and plan.written is not None]
    return (rows or plan.rows)[0]


async def failover_step(stage: Stage, plan: Plan, destination: Cluster) -> None:
    topics = ",".join(plan.topics)
    stage.step("Fail over: from now on the topics live here", f"mirror stop {MIRROR} --topics '{topics}'")
    names = sorted({row["topic"] for row in plan.rows})
    outcome = await mirror_actions.stop(destination, MIRROR, names, waiting=WAITING)
    print_table(outcome.detail_columns, outcome.details)
    stage.finish(outcome)
    rows = (await describe_one(destination, MIRROR)).rows
    stage.check(all(row["state"] == "STOPPED" for row in rows), "every partition is STOPPED")
    plan.rows = rows


def markers_step(stage: Stage, plan: Plan, child: ChildBroker) -> None:
    row = _writable_row(plan)
    name = f"{row['topic']}-{row['partition']}"
    stage.step("Look at what the failover wrote", f"dump destination/{name}")
    limit = row["last_mirror_offset"]
    controls = []
    for batch in _batches(child.directory / name, with_records=True):
        if batch["base_offset"] >= limit:
            stage.saw(batch_line(batch))
            for record in batch["records"]:
                stage.saw(f"  {record_line(record)}")
                controls.append(record.get("control"))
    stage.check(controls[-1:] == ["MIRROR_PID_RESET"], "the last batch is the producer-id reset (MIRROR_PID_RESET)")
    if plan.written is not None:
        stage.check(controls == ["ABORT", "MIRROR_PID_RESET"], "before it, one ABORT marker for the open transaction")


async def own_records_step(stage: Stage, plan: Plan, destination: Cluster, child: ChildBroker) -> None:
    row = _writable_row(plan)
    topic, index = row["topic"], row["partition"]
    producer_id, is_mirrored = _mirrored_producer(child.directory / f"{topic}-{index}", row["last_mirror_offset"])
    stage.step(
        "Write here, as a producer whose id the source has used, beginning at sequence 0",
        f"produce --topic {topic} --partition {index} --producer-id {producer_id} --sequence 0",
    )
    if not is_mirrored:
        stage.saw(f"no producer id occurs in what was mirrored; {producer_id} is used")
    records = [Record(b"own", f"own record {number}".encode()) for number in range(OWN_RECORDS)]
    data = build_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=0, timestamp_ms=SystemClock().time_ms()
    )
    first = await destination.produce(topic, index, data)
    again = await destination.produce(topic, index, data)
    for answer in (first, again):
        if answer.error_code:
            raise Failure(f"step {stage.number}: refused with {refusal(answer.error_code, answer.error_message)}")
    stage.saw(f"base offset {first.base_offset}; sent again: {again.base_offset}")
    stage.check(first.base_offset >= row["last_mirror_offset"], "it got a new offset: not taken for a mirrored batch")
    stage.check(again.base_offset == first.base_offset, "sent again it is known as a duplicate and not stored twice")
    batches, _ = await PartitionReader(destination, topic, index, offset=first.base_offset).fetch()
    counted = sum(batch.header.record_count for batch in batches)
    stage.check(counted == OWN_RECORDS, f"all {OWN_RECORDS} records are there, once")


def _mirrored_producer(directory: Path, limit: int) -> tuple[int, bool]:
    """A producer id from the mirrored part of a log; when none occurs there, any id and False."""
    found = [
        batch["producer_id"]
        for batch in _batches(directory, with_records=False)
        if batch["base_offset"] < limit and batch["producer_id"] is not None
    ]
    return (found[-1], True) if found else (demo_source.IDEMPOTENT_PRODUCER, False)


async def still_identical_step(stage: Stage, plan: Plan, origin: Cluster, destination: Cluster) -> None:
    stage.step("What was mirrored is still the source's, byte for byte", f"verify {MIRROR}")
    results = await compare_all(stage, origin, destination, MIRROR)
    row = _writable_row(plan)
    mine = next(result for result in results if (result.topic, result.partition) == (row["topic"], row["partition"]))
    stage.check(any("written here" in reason for reason in mine.not_compared), "our own records are told apart")
    await trio.lowlevel.checkpoint()
