"""`kmirror topic`: list, create, describe, alter, delete."""

from __future__ import annotations

from typing import Any

import click

from kmirror.cli.display import note, print_json, print_table
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.queries import offsets_at, topics_named
from kmirror.cli.session import Session, check, connection_options, json_option, key_values, refusal
from kmirror.protocol import uuids
from kmirror.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kmirror.protocol.api.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kmirror.protocol.errors import ErrorCode
from kmirror.source.calls import EARLIEST, LATEST
from kmirror.source.cluster import Cluster

REQUEST_TIMEOUT_MS = 30_000


@click.group("topic")
def command() -> None:
    """List, create, describe, alter and delete topics."""


@command.command("list")
@click.option("--internal", is_flag=True, help="Internal topics too.")
@json_option
@connection_options
def list_topics(session: Session, internal: bool, as_json: bool) -> None:
    """All topics and how many partitions they have."""

    async def body(cluster: Cluster) -> list[dict[str, Any]]:
        response = await cluster.metadata(None)
        return [
            {
                "topic": topic.name,
                "topic_id": uuids.to_text(topic.topic_id),
                "partitions": len(topic.partitions),
                "internal": bool(topic.is_internal),
            }
            for topic in sorted(response.topics, key=lambda topic: topic.name or "")
            if internal or not topic.is_internal
        ]

    topics = session.run(body)
    if as_json:
        print_json(topics)
    else:
        print_table(
            ("TOPIC", "PARTITIONS", "TOPIC-ID"),
            [(topic["topic"], topic["partitions"], topic["topic_id"]) for topic in topics],
            empty="no topics",
        )


@command.command("create")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=None, help="[default: the broker's num.partitions]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A topic setting; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="An existing topic of this name is not an error.")
@connection_options
def create(session: Session, name: str, partitions: int | None, settings: tuple[str, ...], if_not_exists: bool) -> None:
    """Create one topic."""
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in key_values(settings).items()]

    async def body(cluster: Cluster) -> Any:
        topic = CreatableTopic(
            name=name, num_partitions=partitions or -1, replication_factor=-1, assignments=[], configs=configs
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=REQUEST_TIMEOUT_MS)
        return (await cluster.request(request)).topics[0]

    result = session.run(body)
    if if_not_exists and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        note(f"topic {name} exists already")
        return
    check(result.error_code, result.error_message, f"topic {name} was not created")
    click.echo(f"Created topic {name}.")


@command.command("describe", short_help="Partitions with leaders, epochs and offsets.")
@click.argument("names", nargs=-1)
@json_option
@connection_options
def describe(session: Session, names: tuple[str, ...], as_json: bool) -> None:
    """Partitions with their leaders, epochs and the range of offsets they hold."""

    async def body(cluster: Cluster) -> list[dict[str, Any]]:
        rows = []
        for topic in await topics_named(cluster, names):
            partitions = [partition.partition_index for partition in topic.partitions]
            earliest = await offsets_at(cluster, topic.name, partitions, EARLIEST)
            latest = await offsets_at(cluster, topic.name, partitions, LATEST)
            for partition in sorted(topic.partitions, key=lambda item: item.partition_index):
                index = partition.partition_index
                rows.append(
                    {
                        "topic": topic.name,
                        "topic_id": uuids.to_text(topic.topic_id),
                        "partition": index,
                        "leader": partition.leader_id,
                        "leader_epoch": partition.leader_epoch,
                        "log_start_offset": earliest.get(index),
                        "high_watermark": latest.get(index),
                        "replicas": partition.replica_nodes,
                        "in_sync": partition.isr_nodes,
                    }
                )
        return rows

    rows = session.run(body)
    if as_json:
        print_json(rows)
        return
    columns = ("topic", "partition", "leader", "leader_epoch", "log_start_offset", "high_watermark", "topic_id")
    print_table(
        [name.upper().replace("_", "-") for name in columns],
        [[row[name] for name in columns] for row in rows],
        empty="no topics",
    )


@command.command("alter")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), required=True, help="New number of partitions; it only grows.")
@connection_options
def alter(session: Session, name: str, partitions: int) -> None:
    """Add partitions to a topic (settings: kmirror config alter)."""

    async def body(cluster: Cluster) -> Any:
        topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=REQUEST_TIMEOUT_MS)
        return (await cluster.request(request)).results[0]

    result = session.run(body)
    check(result.error_code, result.error_message, f"topic {name} was not altered")
    click.echo(f"Topic {name} has {partitions} partitions now.")


@command.command("delete")
@click.argument("names", nargs=-1, required=True)
@connection_options
def delete(session: Session, names: tuple[str, ...]) -> None:
    """Delete topics and their data."""
    if len(set(names)) != len(names):
        raise BadUsage("a topic is named twice")

    async def body(cluster: Cluster) -> list[Any]:
        connection = await cluster.connection()
        request = DeleteTopicsRequest(timeout_ms=REQUEST_TIMEOUT_MS)
        if connection.version_of("DeleteTopics") >= 6:
            request.topics = [DeleteTopicState(name=name) for name in names]
        else:
            request.topic_names = list(names)
        return list((await connection.request(request)).responses)

    failed, step = [], ""
    for result in session.run(body):
        if result.error_code == ErrorCode.NONE:
            click.echo(f"Deleted topic {result.name}.")
        else:
            failed.append(f"{result.name}: {refusal(result.error_code, getattr(result, 'error_message', None))}")
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                step = "List what there is with: kmirror topic list"
    if failed:
        raise Failure("not deleted: " + "; ".join(failed), next_step=step)
