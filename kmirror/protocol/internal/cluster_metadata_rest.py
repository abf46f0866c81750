"""Records of the metadata log that kmirror only shows: they occur in a log that a Kafka wrote, or in later milestones.

Loaded by `cluster_metadata.record_type` when one of them is met. L1.
"""

from __future__ import annotations

from typing import Any

from kmirror.protocol.schema import Bool, Bytes, Float64, Int8, Int32, Int64, String, Uuid, data, field, struct
from kmirror.protocol.uuids import ZERO


@data(key=1, versions="0", flexible="0+")
class UnregisterBrokerRecord:
    """A broker left for good."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


@data(key=10, versions="0", flexible="0+")
class DelegationTokenRecord:
    """A delegation token was created or renewed."""

    owner: String = ""
    requester: String = ""
    renewers: list[String] = field()
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: String = ""


@data(key=11, versions="0", flexible="0+")
class UserScramCredentialRecord:
    """SCRAM credentials of a user were set."""

    name: String = ""
    mechanism: Int8 = 0
    salt: Bytes = b""
    stored_key: Bytes = b""
    server_key: Bytes = b""
    iterations: Int32 = 0


@data(key=14, versions="0", flexible="0+")
class ClientQuotaRecord:
    """A quota was set or removed."""

    entity: list[QuotaEntity] = field()
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


@struct
class QuotaEntity:
    entity_type: String = ""
    entity_name: String | None = ""


@data(key=18, versions="0", flexible="0+")
class AccessControlEntryRecord:
    """An ACL was added."""

    id: Uuid = ZERO
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 0
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@data(key=19, versions="0", flexible="0+")
class RemoveAccessControlEntryRecord:
    """An ACL was removed."""

    id: Uuid = ZERO


@data(key=21, versions="0", flexible="0+")
class ZkMigrationStateRecord:
    """The state of a migration from ZooKeeper."""

    zk_migration_state: Int8 = 0


@data(key=22, versions="0", flexible="0+")
class RemoveUserScramCredentialRecord:
    """SCRAM credentials of a user were removed."""

    name: String = ""
    mechanism: Int8 = 0


@data(key=23, versions="0", flexible="0+")
class BeginTransactionRecord:
    """What follows is applied only when EndTransactionRecord comes."""

    name: String | None = field(tag=0, default=None)


@data(key=24, versions="0", flexible="0+")
class EndTransactionRecord:
    """Apply what was begun."""


@data(key=25, versions="0", flexible="0+")
class AbortTransactionRecord:
    """Forget what was begun."""

    reason: String | None = field(tag=0, default=None)


@data(key=26, versions="0", flexible="0+")
class RemoveDelegationTokenRecord:
    """A delegation token was removed."""

    token_id: String = ""


@data(key=28, versions="0", flexible="0+")
class ClearElrRecord:
    """Forget the eligible leader replicas of a topic, or of all topics (empty name)."""

    topic_name: String = ""


@data(key=29, versions="0", flexible="0+")
class UnregisterControllerRecord:
    """A controller left for good."""

    controller_id: Int32 = 0


TYPES: dict[int, type[Any]] = {
    1: UnregisterBrokerRecord,
    10: DelegationTokenRecord,
    11: UserScramCredentialRecord,
    14: ClientQuotaRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    21: ZkMigrationStateRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    26: RemoveDelegationTokenRecord,
    28: ClearElrRecord,
    29: UnregisterControllerRecord,
}
