"""BumpLeaderEpochs, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Int16, Int32, String, field, request, response, struct


@request(key=mirror_numbers.BUMP_LEADER_EPOCHS, versions="0", flexible="0+")
class BumpLeaderEpochsRequest:
    """Raise leader epochs to at least a minimum."""

    topics: list[BumpLeaderEpochsTopic] = field()


@struct
class BumpLeaderEpochsTopic:
    topic_name: String = ""
    partitions: list[BumpLeaderEpochsPartition] = field()


@struct
class BumpLeaderEpochsPartition:
    partition_index: Int32 = 0
    # -1: any higher one
    min_leader_epoch: Int32 = -1


@response(key=mirror_numbers.BUMP_LEADER_EPOCHS, versions="0", flexible="0+")
class BumpLeaderEpochsResponse:
    """One result per partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[BumpLeaderEpochsTopicResult] = field()


@struct
class BumpLeaderEpochsTopicResult:
    topic_name: String = ""
    partitions: list[BumpLeaderEpochsPartitionResult] = field()


@struct
class BumpLeaderEpochsPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
