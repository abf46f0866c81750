"""What this server answers: one row per API, one module per row. L4.

The table is static because starting fast is a feature: a handler module, and with it the message classes of its API,
is imported when its first request arrives. ApiVersions is computed from this table. The ranges are those of Apache
Kafka 4.4.0; the test of the handlers' docstrings keeps table, modules and `docs/APIS.md` together.
"""

from __future__ import annotations

from typing import NamedTuple

from kmirror.protocol import mirror_numbers, private_numbers


class Served(NamedTuple):
    """`module` below `kmirror.server.handlers`; versions that ApiVersions advertises, both ends included.

    `served_from` is larger than `min_version` where old clients read the range but must not use its low end
    (KIP-896's exceptions); `feature` names the feature whose level 0 hides the API. One that is `private` is never
    advertised.
    """

    module: str
    min_version: int
    max_version: int
    served_from: int = -1
    feature: str | None = None
    private: bool = False

    @property
    def first_version(self) -> int:
        return max(self.min_version, self.served_from)


MIRROR_FEATURE = mirror_numbers.FEATURE

TABLE: dict[int, Served] = {
    0: Served("produce", 0, 13, served_from=3),
    1: Served("fetch", 4, 18),
    2: Served("list_offsets", 1, 11),
    3: Served("metadata", 0, 13),
    8: Served("offset_commit", 2, 10),
    9: Served("offset_fetch", 1, 10),
    10: Served("find_coordinator", 0, 6),
    11: Served("join_group", 0, 9),
    12: Served("heartbeat", 0, 4),
    13: Served("leave_group", 0, 5),
    14: Served("sync_group", 0, 5),
    15: Served("describe_groups", 0, 6),
    16: Served("list_groups", 0, 5),
    18: Served("api_versions", 0, 5),
    19: Served("create_topics", 2, 7),
    20: Served("delete_topics", 1, 6),
    21: Served("delete_records", 0, 2),
    22: Served("init_producer_id", 0, 5),
    23: Served("offset_for_leader_epoch", 2, 4),
    24: Served("add_partitions_to_txn", 0, 5),
    25: Served("add_offsets_to_txn", 0, 4),
    26: Served("end_txn", 0, 5),
    27: Served("write_txn_markers", 1, 2),
    28: Served("txn_offset_commit", 0, 6),
    32: Served("describe_configs", 1, 4),
    33: Served("alter_configs", 0, 2),
    35: Served("describe_log_dirs", 1, 5),
    37: Served("create_partitions", 0, 3),
    42: Served("delete_groups", 0, 3),
    44: Served("incremental_alter_configs", 0, 1),
    47: Served("offset_delete", 0, 0),
    57: Served("update_features", 0, 2),
    60: Served("describe_cluster", 0, 2),
    61: Served("describe_producers", 0, 0),
    65: Served("describe_transactions", 0, 0),
    66: Served("list_transactions", 0, 2),
    74: Served("list_config_resources", 0, 1),
    75: Served("describe_topic_partitions", 0, 0),
    mirror_numbers.START_MIRROR_TOPICS: Served("start_mirror_topics", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.STOP_MIRROR_TOPICS: Served("stop_mirror_topics", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.CREATE_CLUSTER_MIRROR: Served("create_cluster_mirror", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.LIST_CLUSTER_MIRRORS: Served("list_cluster_mirrors", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.DESCRIBE_CLUSTER_MIRRORS: Served("describe_cluster_mirrors", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.READ_MIRROR_STATES: Served("read_mirror_states", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.WRITE_MIRROR_STATES: Served("write_mirror_states", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.PAUSE_MIRROR_TOPICS: Served("pause_mirror_topics", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.RESUME_MIRROR_TOPICS: Served("resume_mirror_topics", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.DELETE_CLUSTER_MIRROR: Served("delete_cluster_mirror", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.BUMP_LEADER_EPOCHS: Served("bump_leader_epochs", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.READ_MIRROR_OFFSETS: Served("read_mirror_offsets", 0, 0, feature=MIRROR_FEATURE),
    mirror_numbers.RECOVER_MIRROR_TOPICS: Served("recover_mirror_topics", 0, 0, feature=MIRROR_FEATURE),
    private_numbers.BACKUP: Served("backup", 0, 0, private=True),
}


def advertised(*, mirroring_enabled: bool) -> dict[int, Served]:
    """What ApiVersions lists, by api key."""
    return {
        key: served
        for key, served in TABLE.items()
        if not served.private and (served.feature is None or mirroring_enabled)
    }
