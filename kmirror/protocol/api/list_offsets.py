"""ListOffsets, API key 2."""

from __future__ import annotations

from kmirror.protocol.schema import Int8, Int16, Int32, Int64, String, field, request, response, struct


@request(key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest:
    """Find the offset for a timestamp. Negative timestamps have names: -1 latest, -2 earliest, -3 maximum timestamp,
    -4 earliest local, -5 latest tiered, -6 earliest not yet tiered.
    """

    # -1: a client
    replica_id: Int32 = 0
    isolation_level: Int8 = field(versions="2+")
    topics: list[ListOffsetsTopic] = field()
    # for offsets that lie in tiered storage
    timeout_ms: Int32 = field(versions="10+", ignorable=True)


@struct
class ListOffsetsTopic:
    name: String = ""
    partitions: list[ListOffsetsPartition] = field()


@struct
class ListOffsetsPartition:
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = field(versions="4+", ignorable=True, default=-1)
    # milliseconds, or one of the negative names above
    timestamp: Int64 = 0


@response(key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    """One offset per partition, -1 when there is none."""

    throttle_time_ms: Int32 = field(versions="2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field()


@struct
class ListOffsetsTopicResponse:
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = field()


@struct
class ListOffsetsPartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    # of the record found; -1 for the named offsets
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = field(versions="4+", default=-1)
