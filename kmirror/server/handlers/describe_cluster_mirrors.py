"""DescribeClusterMirrors (99): every partition of mirrors, its state and how far it is (KIP-1279).

Versions: 0.

Behaviour: null or no names means all mirrors; a name that is unknown is answered with UNKNOWN_CLUSTER_MIRROR.
`cluster_id` keeps only mirrors of that source: so asks another cluster, before a failback, where we stopped copying
from it. With it and no names, what deleted mirrors recorded of their last stop is told as well. `topics` keeps only
these topics, and of each only these partitions (none named: all). Without `include_mirror_state` state values are
empty; without `include_mirror_offset` offsets are -1.

Deviations: gaps, the retry that comes next, the leader epoch, the bytes copied and what was cut are tagged fields of
ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from kmirror.broker.mirror_seam import MirrorDescription, PartitionRow
from kmirror.protocol.api.describe_cluster_mirrors import (
    DescribeClusterMirrorsRequest,
    DescribeClusterMirrorsResponse,
    DescribedMirror,
    DescribedMirrorPartition,
    DescribedMirrorTopic,
    MirrorGap,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.authorized import MIRROR_OPERATIONS, NOT_ASKED
from kmirror.server.context import RequestContext

VERSIONS = (0, 0)


def handle(context: RequestContext, request: DescribeClusterMirrorsRequest) -> DescribeClusterMirrorsResponse:
    topics: dict[str, Sequence[int] | None] | None = None
    if request.topics is not None:
        topics = {topic.topic_name: topic.partitions or None for topic in request.topics}
    mirrors = context.world.mirrors
    described = list(mirrors.describe(request.mirror_names, topics=topics))
    if request.cluster_id is not None and not request.mirror_names:
        described += mirrors.describe_lineage(request.cluster_id, topics)
    response = DescribeClusterMirrorsResponse(
        mirrors=[
            _mirror(mirror, request)
            for mirror in described
            if request.cluster_id is None or mirror.source_cluster_id == request.cluster_id
        ]
    )
    found = {mirror.name for mirror in described}
    for name in request.mirror_names or ():
        if name not in found:
            text = f"there is no mirror {name!r}"
            response.mirrors.append(
                DescribedMirror(mirror_name=name, error_code=ErrorCode.UNKNOWN_CLUSTER_MIRROR, error_message=text)
            )
    return response


def _mirror(mirror: MirrorDescription, request: DescribeClusterMirrorsRequest) -> DescribedMirror:
    topics: dict[str, DescribedMirrorTopic] = {}
    for row in mirror.partitions:
        topic = topics.setdefault(row.topic, DescribedMirrorTopic(topic_name=row.topic))
        topic.partitions.append(
            _partition(row, state=request.include_mirror_state, offset=request.include_mirror_offset)
        )
    return DescribedMirror(
        mirror_name=mirror.name,
        source_bootstrap=mirror.source_bootstrap,
        source_cluster_id=mirror.source_cluster_id,
        authorized_operations=MIRROR_OPERATIONS if request.include_authorized_operations else NOT_ASKED,
        topics=list(topics.values()),
        active_groups=list(mirror.active_groups) if request.include_mirror_state else [],
    )


def _partition(row: PartitionRow, *, state: bool, offset: bool) -> DescribedMirrorPartition:
    partition = DescribedMirrorPartition(
        partition_index=row.partition,
        last_mirror_epoch=_known(row.last_mirror_epoch),
        last_mirror_offset=_known(row.last_mirror_offset),
        leader_epoch=row.leader_epoch,
        gaps=[MirrorGap(from_offset=gap.from_offset, to_offset=gap.to_offset, at_ms=gap.at_ms) for gap in row.gaps],
    )
    if state:
        partition.state_value = row.state
        partition.phase = row.phase
        partition.cut_offsets = _known(row.cut_offsets)
        partition.cut_saved = row.cut_saved
        partition.error_message = row.error
        if row.retry is not None:
            partition.retry_attempt = row.retry.attempt if row.retry.retryable else -1
            partition.retry_max = row.retry.max_attempts
            partition.retry_next_at_ms = _known(row.retry.next_at_ms)
    if offset:
        partition.source_offset = _known(row.source_offset)
        partition.destination_offset = _known(row.destination_offset)
        partition.copied_bytes = row.copied_bytes
    return partition


def _known(number: int | None) -> int:
    return -1 if number is None else number
