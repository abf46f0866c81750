"""DescribeLogDirs, API key 35."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, field, request, response, struct


@request(key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    """Ask for the log directories and the sizes of partitions in them."""

    topics: list[DescribableLogDirTopic] | None = field()


@struct
class DescribableLogDirTopic:
    topic: String = ""
    partitions: list[Int32] = field()


@response(key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    """One result per directory."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(versions="3+", ignorable=True)
    results: list[DescribeLogDirsResult] = field()


@struct
class DescribeLogDirsResult:
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = field()
    # of the volume; -1: unknown
    total_bytes: Int64 = field(versions="4+", ignorable=True, default=-1)
    usable_bytes: Int64 = field(versions="4+", ignorable=True, default=-1)
    is_cordoned: Bool = field(versions="5+", ignorable=True)


@struct
class DescribeLogDirsTopic:
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = field()


@struct
class DescribeLogDirsPartition:
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    # behind the high watermark, or behind the current replica for a future one
    offset_lag: Int64 = 0
    # a replica being moved here from another directory
    is_future_key: Bool = False
