"""DescribeClusterMirrors, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, field, request, response, struct


@request(key=mirror_numbers.DESCRIBE_CLUSTER_MIRRORS, versions="0", flexible="0+")
class DescribeClusterMirrorsRequest:
    """Describe mirrors and their partitions. A destination asks its source with `cluster_id` for lineage."""

    # null: all
    mirror_names: list[String] | None = None
    topics: list[DescribeMirrorTopic] | None = None
    # only mirrors of this source cluster; null: all
    cluster_id: String | None = None
    include_mirror_state: Bool = False
    include_mirror_offset: Bool = False
    include_authorized_operations: Bool = False


@struct
class DescribeMirrorTopic:
    topic_name: String = ""
    partitions: list[Int32] = field()


@response(key=mirror_numbers.DESCRIBE_CLUSTER_MIRRORS, versions="0", flexible="0+")
class DescribeClusterMirrorsResponse:
    """The mirrors. The last mirror epochs in it are what a failback is aligned by."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    mirrors: list[DescribedMirror] = field()


@struct
class DescribedMirror:
    error_code: Int16 = 0
    error_message: String | None = None
    mirror_name: String = ""
    source_bootstrap: String | None = None
    source_cluster_id: String | None = None
    authorized_operations: Int32 = -(2**31)
    topics: list[DescribedMirrorTopic] = field()
    # ours: groups whose offsets are not taken from the source, since they have members here
    active_groups: list[String] = field(tag=0)


@struct
class DescribedMirrorTopic:
    topic_name: String = ""
    partitions: list[DescribedMirrorPartition] = field()


@struct
class DescribedMirrorPartition:
    partition_index: Int32 = 0
    # a name people see: PREPARING, MIRRORING …
    state_value: String = ""
    error_message: String | None = None
    # -1: will not be retried
    retry_attempt: Int16 = 0
    source_offset: Int64 = -1
    destination_offset: Int64 = -1
    # epoch of the last mirrored batch at the last stop
    last_mirror_epoch: Int32 = -1
    # log end offset at the last stop
    last_mirror_offset: Int64 = -1
    # of PREPARING: LOG_ALIGNMENT, EPOCH_FENCING or ULE_RECOVERY
    phase: String | None = None
    # ours: ranges of offsets that the source no longer had when they were asked for
    gaps: list[MirrorGap] = field(tag=0)
    # ours: attempts before it is given up; -1: unknown
    retry_max: Int16 = field(tag=1, default=-1)
    # ours: when the next attempt is due, ms since 1970; -1: none is
    retry_next_at_ms: Int64 = field(tag=2, default=-1)
    # ours: the partition's leader epoch here
    leader_epoch: Int32 = field(tag=3, default=-1)
    # ours: appended since the topic was last started, or since the broker was; -1: not asked for
    copied_bytes: Int64 = field(tag=4, default=-1)
    # ours: what the last alignment cut away here; -1: nothing since the broker was started
    cut_offsets: Int64 = field(tag=5, default=-1)
    # ours: directory with the copy of what was cut
    cut_saved: String | None = field(tag=6, default=None)


@struct
class MirrorGap:
    from_offset: Int64 = 0
    # exclusive
    to_offset: Int64 = 0
    # when it was found, ms since 1970
    at_ms: Int64 = 0
