"""OffsetForLeaderEpoch, API key 23."""

from __future__ import annotations

from kmirror.protocol.schema import Int16, Int32, Int64, String, field, request, response, struct


@request(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """Ask where an epoch ends in the leader's log: how followers and mirrors find the common point."""

    # -1: a consumer; -2: a debugging tool
    replica_id: Int32 = field(versions="3+", ignorable=True, default=-2)
    topics: list[OffsetForLeaderTopic] = field()


@struct
class OffsetForLeaderTopic:
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = field()


@struct
class OffsetForLeaderPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


@response(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """The end of the largest epoch not above the one asked for."""

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = field()


@struct
class OffsetForLeaderTopicResult:
    topic: String = ""
    partitions: list[OffsetForLeaderEpochEndOffset] = field()


@struct
class OffsetForLeaderEpochEndOffset:
    error_code: Int16 = 0
    partition: Int32 = 0
    # the largest epoch not above the one asked for; -1: none
    leader_epoch: Int32 = -1
    # first offset after that epoch; -1: none
    end_offset: Int64 = -1
