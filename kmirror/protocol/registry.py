"""Every API that kmirror has a schema for: key, name, module, versions. A table and nothing else.

It is imported on the way to ready, so it loads no schema: an api module is imported when `Api.request` or
`Api.response` is first asked for. The ranges are those of the *schema*; which versions a server offers is its own
table. `tests/protocol/test_registry.py` compares this table with the decorators of the classes. L1.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kmirror.protocol import mirror_numbers, private_numbers

API_VERSIONS_KEY = 18


class Api:
    """One row. `flexible_from` is the first version with compact lengths, tags and the longer headers."""

    __slots__ = ("_classes", "flexible_from", "key", "max_version", "min_version", "module", "name")

    def __init__(
        self, key: int, name: str, module: str, min_version: int, max_version: int, flexible_from: int
    ) -> None:
        self.key = key
        self.name = name
        self.module = module
        self.min_version = min_version
        self.max_version = max_version
        self.flexible_from = flexible_from
        self._classes: tuple[type[Any], type[Any]] | None = None

    def _load(self) -> tuple[type[Any], type[Any]]:
        if self._classes is None:
            module = import_module(f"kmirror.protocol.api.{self.module}")
            self._classes = getattr(module, f"{self.name}Request"), getattr(module, f"{self.name}Response")
        return self._classes

    @property
    def request(self) -> type[Any]:
        return self._load()[0]

    @property
    def response(self) -> type[Any]:
        return self._load()[1]

    def __repr__(self) -> str:
        return f"Api({self.key} {self.name} v{self.min_version}-{self.max_version})"


NEVER_FLEXIBLE = 32_767

# key, name, module, first version, last version, first flexible version
_ROWS: tuple[tuple[int, str, str, int, int, int], ...] = (
    (0, "Produce", "produce", 3, 13, 9),
    (1, "Fetch", "fetch", 4, 18, 12),
    (2, "ListOffsets", "list_offsets", 1, 11, 6),
    (3, "Metadata", "metadata", 0, 13, 9),
    (8, "OffsetCommit", "offset_commit", 2, 10, 8),
    (9, "OffsetFetch", "offset_fetch", 1, 10, 6),
    (10, "FindCoordinator", "find_coordinator", 0, 6, 3),
    (11, "JoinGroup", "join_group", 0, 9, 6),
    (12, "Heartbeat", "heartbeat", 0, 4, 4),
    (13, "LeaveGroup", "leave_group", 0, 5, 4),
    (14, "SyncGroup", "sync_group", 0, 5, 4),
    (15, "DescribeGroups", "describe_groups", 0, 6, 5),
    (16, "ListGroups", "list_groups", 0, 5, 3),
    (17, "SaslHandshake", "sasl_handshake", 0, 1, NEVER_FLEXIBLE),
    (18, "ApiVersions", "api_versions", 0, 5, 3),
    (19, "CreateTopics", "create_topics", 2, 7, 5),
    (20, "DeleteTopics", "delete_topics", 1, 6, 4),
    (21, "DeleteRecords", "delete_records", 0, 2, 2),
    (22, "InitProducerId", "init_producer_id", 0, 6, 2),
    (23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", 2, 4, 4),
    (24, "AddPartitionsToTxn", "add_partitions_to_txn", 0, 5, 3),
    (25, "AddOffsetsToTxn", "add_offsets_to_txn", 0, 4, 3),
    (26, "EndTxn", "end_txn", 0, 5, 3),
    (27, "WriteTxnMarkers", "write_txn_markers", 1, 2, 1),
    (28, "TxnOffsetCommit", "txn_offset_commit", 0, 6, 3),
    (32, "DescribeConfigs", "describe_configs", 1, 4, 4),
    (33, "AlterConfigs", "alter_configs", 0, 2, 2),
    (35, "DescribeLogDirs", "describe_log_dirs", 1, 5, 2),
    (36, "SaslAuthenticate", "sasl_authenticate", 0, 2, 2),
    (37, "CreatePartitions", "create_partitions", 0, 3, 2),
    (42, "DeleteGroups", "delete_groups", 0, 3, 2),
    (44, "IncrementalAlterConfigs", "incremental_alter_configs", 0, 1, 1),
    (46, "ListPartitionReassignments", "list_partition_reassignments", 0, 0, 0),
    (47, "OffsetDelete", "offset_delete", 0, 0, NEVER_FLEXIBLE),
    (57, "UpdateFeatures", "update_features", 0, 2, 0),
    (60, "DescribeCluster", "describe_cluster", 0, 2, 0),
    (61, "DescribeProducers", "describe_producers", 0, 0, 0),
    (65, "DescribeTransactions", "describe_transactions", 0, 0, 0),
    (66, "ListTransactions", "list_transactions", 0, 2, 0),
    (69, "ConsumerGroupDescribe", "consumer_group_describe", 0, 1, 0),
    (74, "ListConfigResources", "list_config_resources", 0, 1, 0),
    (75, "DescribeTopicPartitions", "describe_topic_partitions", 0, 0, 0),
    (mirror_numbers.START_MIRROR_TOPICS, "StartMirrorTopics", "start_mirror_topics", 0, 0, 0),
    (mirror_numbers.STOP_MIRROR_TOPICS, "StopMirrorTopics", "stop_mirror_topics", 0, 0, 0),
    (mirror_numbers.CREATE_CLUSTER_MIRROR, "CreateClusterMirror", "create_cluster_mirror", 0, 0, 0),
    (mirror_numbers.LIST_CLUSTER_MIRRORS, "ListClusterMirrors", "list_cluster_mirrors", 0, 0, 0),
    (mirror_numbers.DESCRIBE_CLUSTER_MIRRORS, "DescribeClusterMirrors", "describe_cluster_mirrors", 0, 0, 0),
    (mirror_numbers.READ_MIRROR_STATES, "ReadMirrorStates", "read_mirror_states", 0, 0, 0),
    (mirror_numbers.WRITE_MIRROR_STATES, "WriteMirrorStates", "write_mirror_states", 0, 0, 0),
    (mirror_numbers.PAUSE_MIRROR_TOPICS, "PauseMirrorTopics", "pause_mirror_topics", 0, 0, 0),
    (mirror_numbers.RESUME_MIRROR_TOPICS, "ResumeMirrorTopics", "resume_mirror_topics", 0, 0, 0),
    (mirror_numbers.DELETE_CLUSTER_MIRROR, "DeleteClusterMirror", "delete_cluster_mirror", 0, 0, 0),
    (mirror_numbers.BUMP_LEADER_EPOCHS, "BumpLeaderEpochs", "bump_leader_epochs", 0, 0, 0),
    (mirror_numbers.READ_MIRROR_OFFSETS, "ReadMirrorOffsets", "read_mirror_offsets", 0, 0, 0),
    (mirror_numbers.RECOVER_MIRROR_TOPICS, "RecoverMirrorTopics", "recover_mirror_topics", 0, 0, 0),
    (private_numbers.BACKUP, "Backup", "backup", 0, 0, 0),
)

APIS: tuple[Api, ...] = tuple(Api(*row) for row in _ROWS)
by_key: dict[int, Api] = {api.key: api for api in APIS}
by_name: dict[str, Api] = {api.name: api for api in APIS}


def api_of(message: object) -> Api:
    """The API of a request or response object. Raises KeyError for anything else."""
    name = type(message).__name__
    return by_name[name.removesuffix("Request").removesuffix("Response")]


def request_header_version(api: Api, version: int) -> int:
    """1, or 2 (with tags) from the first flexible version on."""
    return 2 if version >= api.flexible_from else 1


def response_header_version(api: Api, version: int) -> int:
    """0, or 1 (with tags) from the first flexible version on; ApiVersions keeps 0 so that anyone can read it."""
    return 1 if version >= api.flexible_from and api.key != API_VERSIONS_KEY else 0
