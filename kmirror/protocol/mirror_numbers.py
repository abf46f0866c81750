"""Every number and name of Cluster Mirroring (KIP-1279) that may still move. State of 2026-11; the KIP is not released.

The prototypes took numbers that Apache Kafka 4.4.0 has since given to others (API key 94 UnregisterController, errors
134 to 136). Exactly those are moved here, the rest is kept, so that a later Kafka needs one edit in one file. Nothing
else in kmirror may spell one of these numbers; `tests/protocol/test_mirror_numbers.py` compares the table with the
message definitions and error codes of the newest Kafka and fails on a new collision. L1: imports nothing of kmirror.
"""

from __future__ import annotations

from typing import Final

# --- API keys -----------------------------------------------------------------------------------------------------
START_MIRROR_TOPICS: Final = 95
STOP_MIRROR_TOPICS: Final = 96
CREATE_CLUSTER_MIRROR: Final = 97
"""94 in the prototypes."""
LIST_CLUSTER_MIRRORS: Final = 98
DESCRIBE_CLUSTER_MIRRORS: Final = 99
READ_MIRROR_STATES: Final = 100
WRITE_MIRROR_STATES: Final = 101
PAUSE_MIRROR_TOPICS: Final = 102
RESUME_MIRROR_TOPICS: Final = 103
DELETE_CLUSTER_MIRROR: Final = 104
BUMP_LEADER_EPOCHS: Final = 105
READ_MIRROR_OFFSETS: Final = 106
RECOVER_MIRROR_TOPICS: Final = 107

API_KEYS: Final[dict[str, int]] = {
    "StartMirrorTopics": START_MIRROR_TOPICS,
    "StopMirrorTopics": STOP_MIRROR_TOPICS,
    "CreateClusterMirror": CREATE_CLUSTER_MIRROR,
    "ListClusterMirrors": LIST_CLUSTER_MIRRORS,
    "DescribeClusterMirrors": DESCRIBE_CLUSTER_MIRRORS,
    "ReadMirrorStates": READ_MIRROR_STATES,
    "WriteMirrorStates": WRITE_MIRROR_STATES,
    "PauseMirrorTopics": PAUSE_MIRROR_TOPICS,
    "ResumeMirrorTopics": RESUME_MIRROR_TOPICS,
    "DeleteClusterMirror": DELETE_CLUSTER_MIRROR,
    "BumpLeaderEpochs": BUMP_LEADER_EPOCHS,
    "ReadMirrorOffsets": READ_MIRROR_OFFSETS,
    "RecoverMirrorTopics": RECOVER_MIRROR_TOPICS,
}

CAPABLE_SOURCE_KEYS: Final = (LIST_CLUSTER_MIRRORS, DESCRIBE_CLUSTER_MIRRORS)
"""A source can be asked for lineage only when it advertises all of these *and* the feature below at 1 or higher."""

# --- error codes --------------------------------------------------------------------------------------------------
UNKNOWN_CLUSTER_MIRROR: Final = 137
TOPIC_ALREADY_IN_CLUSTER_MIRROR: Final = 138
TOPIC_NOT_IN_CLUSTER_MIRROR: Final = 139
MIRROR_TOPIC_ALREADY_PAUSED: Final = 140
MIRROR_TOPIC_NOT_PAUSED: Final = 141
MIRROR_TOPIC_BEING_STOPPED: Final = 142
CLUSTER_MIRROR_NOT_EMPTY: Final = 143
CLUSTER_MIRROR_AUTHORIZATION_FAILED: Final = 144
INVALID_CLUSTER_MIRROR_STATE: Final = 145
MIRROR_TOPIC_NOT_STOPPED: Final = 146
READ_ONLY_TOPIC: Final = 147
"""134 in the prototypes."""
CLUSTER_MIRROR_ALREADY_EXISTS: Final = 148
"""136 in the prototypes."""

ERROR_CODES: Final[dict[str, int]] = {
    "UNKNOWN_CLUSTER_MIRROR": UNKNOWN_CLUSTER_MIRROR,
    "TOPIC_ALREADY_IN_CLUSTER_MIRROR": TOPIC_ALREADY_IN_CLUSTER_MIRROR,
    "TOPIC_NOT_IN_CLUSTER_MIRROR": TOPIC_NOT_IN_CLUSTER_MIRROR,
    "MIRROR_TOPIC_ALREADY_PAUSED": MIRROR_TOPIC_ALREADY_PAUSED,
    "MIRROR_TOPIC_NOT_PAUSED": MIRROR_TOPIC_NOT_PAUSED,
    "MIRROR_TOPIC_BEING_STOPPED": MIRROR_TOPIC_BEING_STOPPED,
    "CLUSTER_MIRROR_NOT_EMPTY": CLUSTER_MIRROR_NOT_EMPTY,
    "CLUSTER_MIRROR_AUTHORIZATION_FAILED": CLUSTER_MIRROR_AUTHORIZATION_FAILED,
    "INVALID_CLUSTER_MIRROR_STATE": INVALID_CLUSTER_MIRROR_STATE,
    "MIRROR_TOPIC_NOT_STOPPED": MIRROR_TOPIC_NOT_STOPPED,
    "READ_ONLY_TOPIC": READ_ONLY_TOPIC,
    "CLUSTER_MIRROR_ALREADY_EXISTS": CLUSTER_MIRROR_ALREADY_EXISTS,
}

# --- records ------------------------------------------------------------------------------------------------------
CONTROL_RECORD_TYPE_PID_RESET: Final = 7
"""MIRROR_PID_RESET, in the key of a control record."""
STATE_RECORD_TYPE: Final = 1
"""Key types in `__mirror_state`: the state of one partition,"""
LAST_MIRROR_EPOCHS_RECORD_TYPE: Final = 2
"""its last mirror epoch and offset (its lineage),"""
GAP_RECORD_TYPE: Final = 3
"""and one range of offsets that the source had already dropped."""

# --- resources, feature, topic ------------------------------------------------------------------------------------
CONFIG_RESOURCE_TYPE: Final = 64
"""CLUSTER_MIRROR in DescribeConfigs, IncrementalAlterConfigs and ConfigRecord."""
ACL_RESOURCE_TYPE: Final = 8
FEATURE: Final = "mirror.version"
FEATURE_MAX_LEVEL: Final = 1
STATE_TOPIC: Final = "__mirror_state"
STATE_TOPIC_PARTITIONS: Final = 50

# --- state bytes (the newest prototype's) -------------------------------------------------------------------------
STATE_UNKNOWN: Final = -1
STATE_LOG_ALIGNMENT: Final = 0
STATE_EPOCH_FENCING: Final = 1
STATE_ULE_RECOVERY: Final = 2
STATE_MIRRORING: Final = 3
STATE_PAUSING: Final = 4
STATE_PAUSED: Final = 5
STATE_STOPPING: Final = 6
STATE_STOPPED: Final = 7
STATE_FAILED: Final = 8
"""The three before MIRRORING are shown to people as PREPARING, with the name of the byte as its phase."""

# --- names of configurations --------------------------------------------------------------------------------------
BROKER_CONFIGS: Final = (
    "mirror.coordinator.threads",
    "mirror.coordinator.write.timeout.ms",
    "mirror.coordinator.append.linger.ms",
    "mirror.coordinator.load.buffer.size",
    "mirror.state.topic.num.partitions",
    "mirror.state.topic.replication.factor",
    "mirror.num.replica.fetchers",
    "mirror.metadata.refresh.interval.ms",
    "mirror.failed.retry.initial.backoff.ms",
    "mirror.failed.retry.max.backoff.ms",
    "mirror.failed.retry.max.attempts",
    "mirror.admin.listener.name",
    "sasl.mechanism.mirror.admin.protocol",
    "mirror.replication.throttled.rate",
)
MIRROR_CONFIGS: Final = (
    "bootstrap.servers",
    "source.cluster.id",
    "request.timeout.ms",
    "socket.connection.setup.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "connections.max.idle.ms",
    "fetch.wait.max.ms",
    "fetch.backoff.ms",
    "fetch.min.bytes",
    "fetch.response.max.bytes",
    "fetch.max.bytes",
    "socket.timeout.ms",
    "socket.receive.buffer.bytes",
    "topic.properties.exclude",
    "topics.include",
    "topics.exclude",
    "groups.include",
    "groups.exclude",
    "acls.include",
)
"""Beside these a mirror takes Kafka's client names `security.protocol`, `sasl.*`, `ssl.*`."""
TOPIC_UNCLEAN_ELECTION_CONFIG: Final = "mirror.unclean.leader.election.enable"
TOPIC_THROTTLED_REPLICAS_CONFIG: Final = "mirror.replication.throttled.replicas"
