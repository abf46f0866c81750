"""DescribeLogDirs (35): the data directory, its space, and what each partition takes of it.

Versions: 1-5.

Behaviour: null topics mean all of them, an empty list none. A partition that is not here is left out. From version 4
the answer holds the volume's total and usable bytes (KIP-827).

Deviations: one directory; nothing is ever a future replica or cordoned, and the offset lag is 0.
"""

from __future__ import annotations

from kmirror.broker.partition import Partition
from kmirror.errors import ApiError
from kmirror.protocol.api.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kmirror.server.context import RequestContext

VERSIONS = (1, 5)


def handle(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    world = context.world
    total_bytes, usable_bytes = world.fs.space(world.directory.path)
    result = DescribeLogDirsResult(
        log_dir=world.directory.path,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
        topics=_topics(context, request),
    )
    return DescribeLogDirsResponse(results=[result])


def _topics(context: RequestContext, request: DescribeLogDirsRequest) -> list[DescribeLogDirsTopic]:
    world = context.world
    found: dict[str, list[Partition]] = {}
    if request.topics is None:
        for partition in world.partitions():
            found.setdefault(partition.topic_name, []).append(partition)
    else:
        asked = dict.fromkeys((topic.topic, index) for topic in request.topics for index in topic.partitions)
        for name, index in asked:
            try:
                found.setdefault(name, []).append(world.partition(name, index))
            except ApiError:
                continue
    return [
        DescribeLogDirsTopic(
            name=name,
            partitions=[
                DescribeLogDirsPartition(partition_index=partition.index, partition_size=size_bytes)
                for partition in partitions
                if (size_bytes := _size_bytes(partition)) is not None
            ],
        )
        for name, partitions in found.items()
        if partitions
    ]


def _size_bytes(partition: Partition) -> int | None:
    """None for a log that cannot be opened; the others are answered all the same. Makes no directory: a tool that asks
    about everything must not cost a descriptor for each partition that was never written to."""
    if not partition.is_on_disk:
        return 0
    try:
        return partition.log.size_bytes
    except ApiError:
        return None
