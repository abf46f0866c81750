"""Kafka's error codes: every code of Apache Kafka 4.4 and those of Cluster Mirroring.

One enum, since a response field is one int16 whatever its origin. Codes, names and whether a client may retry are
Kafka's (`org.apache.kafka.common.protocol.Errors`); the sentences are ours, used when nobody has a better one to say.
Mirroring's codes come from `mirror_numbers`. L1: imports nothing of kmirror but that table.
"""

from __future__ import annotations

from enum import IntEnum

from kmirror.protocol import mirror_numbers as kip


class ErrorCode(IntEnum):
    """The int16 of every `error_code` field."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136

    # Cluster Mirroring (KIP-1279)
    UNKNOWN_CLUSTER_MIRROR = kip.UNKNOWN_CLUSTER_MIRROR
    TOPIC_ALREADY_IN_CLUSTER_MIRROR = kip.TOPIC_ALREADY_IN_CLUSTER_MIRROR
    TOPIC_NOT_IN_CLUSTER_MIRROR = kip.TOPIC_NOT_IN_CLUSTER_MIRROR
    MIRROR_TOPIC_ALREADY_PAUSED = kip.MIRROR_TOPIC_ALREADY_PAUSED
    MIRROR_TOPIC_NOT_PAUSED = kip.MIRROR_TOPIC_NOT_PAUSED
    MIRROR_TOPIC_BEING_STOPPED = kip.MIRROR_TOPIC_BEING_STOPPED
    CLUSTER_MIRROR_NOT_EMPTY = kip.CLUSTER_MIRROR_NOT_EMPTY
    CLUSTER_MIRROR_AUTHORIZATION_FAILED = kip.CLUSTER_MIRROR_AUTHORIZATION_FAILED
    INVALID_CLUSTER_MIRROR_STATE = kip.INVALID_CLUSTER_MIRROR_STATE
    MIRROR_TOPIC_NOT_STOPPED = kip.MIRROR_TOPIC_NOT_STOPPED
    READ_ONLY_TOPIC = kip.READ_ONLY_TOPIC
    CLUSTER_MIRROR_ALREADY_EXISTS = kip.CLUSTER_MIRROR_ALREADY_EXISTS

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.name in _RETRIABLE

    @property
    def message(self) -> str:
        """A default text for people."""
        return _MESSAGES[self.name]


# by name: hashing enum members while this module loads would double its time
_RETRIABLE: frozenset[str] = frozenset(
    (
        "CORRUPT_MESSAGE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "REQUEST_TIMED_OUT",
        "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_CONTROLLER",
        "CONCURRENT_TRANSACTIONS",
        "KAFKA_STORAGE_ERROR",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH",
        "LISTENER_NOT_FOUND",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "ELECTION_NOT_NEEDED",
        "UNSTABLE_OFFSET_COMMIT",
        "THROTTLING_QUOTA_EXCEEDED",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "FETCH_SESSION_TOPIC_ID_ERROR",
        "SHARE_SESSION_NOT_FOUND",
        "INVALID_SHARE_SESSION_EPOCH",
        "SHARE_SESSION_LIMIT_REACHED",
    )
)

_MESSAGES: dict[str, str] = {
    "UNKNOWN_SERVER_ERROR": "the server met an error it did not expect",
    "NONE": "no error",
    "OFFSET_OUT_OF_RANGE": "the offset is outside the range this partition holds",
    "CORRUPT_MESSAGE": "the batch is corrupt, or a compacted topic got a record without key",
    "UNKNOWN_TOPIC_OR_PARTITION": "this broker has no such topic or partition",
    "INVALID_FETCH_SIZE": "the requested fetch size is not valid",
    "LEADER_NOT_AVAILABLE": "the partition has no leader at the moment",
    "NOT_LEADER_OR_FOLLOWER": "this broker is not the leader (or not a replica) of the partition",
    "REQUEST_TIMED_OUT": "the request ran out of time",
    "BROKER_NOT_AVAILABLE": "the broker is not available",
    "REPLICA_NOT_AVAILABLE": "the replica is not available",
    "MESSAGE_TOO_LARGE": "a record batch is larger than max.message.bytes allows",
    "STALE_CONTROLLER_EPOCH": "the sender's controller epoch is out of date",
    "OFFSET_METADATA_TOO_LARGE": "the metadata text of a committed offset is too long",
    "NETWORK_EXCEPTION": "the connection was lost before an answer arrived",
    "COORDINATOR_LOAD_IN_PROGRESS": "the coordinator is still loading its state",
    "COORDINATOR_NOT_AVAILABLE": "the coordinator is not available",
    "NOT_COORDINATOR": "this broker is not the coordinator for that key",
    "INVALID_TOPIC_EXCEPTION": "the topic name is not valid, or the topic may not be used this way",
    "RECORD_LIST_TOO_LARGE": "the batch is larger than a segment of the log may be",
    "NOT_ENOUGH_REPLICAS": "too few replicas are in sync to accept the write",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "appended, but too few replicas were in sync to confirm it",
    "INVALID_REQUIRED_ACKS": "acks must be 0, 1 or -1",
    "ILLEGAL_GENERATION": "the group generation is not the current one",
    "INCONSISTENT_GROUP_PROTOCOL": "the member's protocols do not fit those of the group",
    "INVALID_GROUP_ID": "the group id is not valid",
    "UNKNOWN_MEMBER_ID": "the coordinator does not know this member",
    "INVALID_SESSION_TIMEOUT": "the session timeout is outside the range the broker allows",
    "REBALANCE_IN_PROGRESS": "the group is rebalancing: join again",
    "INVALID_COMMIT_OFFSET_SIZE": "the committed offset data is too large",
    "TOPIC_AUTHORIZATION_FAILED": "not authorized for the topic",
    "GROUP_AUTHORIZATION_FAILED": "not authorized for the group",
    "CLUSTER_AUTHORIZATION_FAILED": "not authorized for the cluster",
    "INVALID_TIMESTAMP": "the timestamp is outside the range the topic accepts",
    "UNSUPPORTED_SASL_MECHANISM": "the SASL mechanism is not enabled here",
    "ILLEGAL_SASL_STATE": "the request does not fit the state of the SASL exchange",
    "UNSUPPORTED_VERSION": "this version of the API is not supported",
    "TOPIC_ALREADY_EXISTS": "a topic of this name exists already",
    "INVALID_PARTITIONS": "the number of partitions is not valid",
    "INVALID_REPLICATION_FACTOR": "the replication factor is not valid for this cluster",
    "INVALID_REPLICA_ASSIGNMENT": "the replica assignment is not valid",
    "INVALID_CONFIG": "a configuration value is not valid",
    "NOT_CONTROLLER": "this node is not the active controller",
    "INVALID_REQUEST": "the request contradicts itself or cannot be carried out",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "the message format on the broker cannot do this",
    "POLICY_VIOLATION": "a policy of the cluster forbids the request",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "the producer's sequence number does not follow the last one",
    "DUPLICATE_SEQUENCE_NUMBER": "the producer's sequence number was seen before",
    "INVALID_PRODUCER_EPOCH": "the producer epoch is older than the current one",
    "INVALID_TXN_STATE": "the transaction is not in a state that allows this",
    "INVALID_PRODUCER_ID_MAPPING": "the producer id does not belong to this transactional id",
    "INVALID_TRANSACTION_TIMEOUT": "the transaction timeout is longer than the broker allows",
    "CONCURRENT_TRANSACTIONS": "another operation on the same transaction is not finished",
    "TRANSACTION_COORDINATOR_FENCED": "the marker's sender is no longer the coordinator of that transaction",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "not authorized for the transactional id",
    "SECURITY_DISABLED": "security features are switched off",
    "OPERATION_NOT_ATTEMPTED": "not attempted, because another item of the request failed",
    "KAFKA_STORAGE_ERROR": "the disk failed while the log was accessed",
    "LOG_DIR_NOT_FOUND": "the broker has no such log directory",
    "SASL_AUTHENTICATION_FAILED": "authentication failed",
    "UNKNOWN_PRODUCER_ID": "the broker knows nothing of this producer id",
    "REASSIGNMENT_IN_PROGRESS": "the partition is being reassigned",
    "DELEGATION_TOKEN_AUTH_DISABLED": "delegation tokens are switched off",
    "DELEGATION_TOKEN_NOT_FOUND": "no such delegation token",
    "DELEGATION_TOKEN_OWNER_MISMATCH": "the principal is neither owner nor renewer of the token",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED": "delegation tokens may not be requested over this connection",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": "not authorized for the delegation token",
    "DELEGATION_TOKEN_EXPIRED": "the delegation token has expired",
    "INVALID_PRINCIPAL_TYPE": "the principal type is not supported",
    "NON_EMPTY_GROUP": "the group still has members",
    "GROUP_ID_NOT_FOUND": "no such group",
    "FETCH_SESSION_ID_NOT_FOUND": "no such fetch session",
    "INVALID_FETCH_SESSION_EPOCH": "the fetch session epoch is not the expected one",
    "LISTENER_NOT_FOUND": "the partition leader has no listener of that name",
    "TOPIC_DELETION_DISABLED": "topic deletion is switched off",
    "FENCED_LEADER_EPOCH": "the leader epoch in the request is older than the broker's",
    "UNKNOWN_LEADER_EPOCH": "the leader epoch in the request is newer than the broker's",
    "UNSUPPORTED_COMPRESSION_TYPE": "the client cannot read the compression of this partition",
    "STALE_BROKER_EPOCH": "the broker epoch has changed",
    "OFFSET_NOT_AVAILABLE": "the new leader's high watermark has not caught up yet",
    "MEMBER_ID_REQUIRED": "the member must join again with the id it was given",
    "PREFERRED_LEADER_NOT_AVAILABLE": "the preferred leader is not available",
    "GROUP_MAX_SIZE_REACHED": "the group is full",
    "FENCED_INSTANCE_ID": "another member uses the same group.instance.id",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "no replica may become leader",
    "ELECTION_NOT_NEEDED": "no election is needed",
    "NO_REASSIGNMENT_IN_PROGRESS": "no reassignment is going on",
    "GROUP_SUBSCRIBED_TO_TOPIC": "the group is subscribed to the topic",
    "INVALID_RECORD": "a record failed the broker's checks",
    "UNSTABLE_OFFSET_COMMIT": "a transaction that commits these offsets is not finished",
    "THROTTLING_QUOTA_EXCEEDED": "a quota was exceeded: slow down",
    "PRODUCER_FENCED": "a newer producer uses the same transactional id",
    "RESOURCE_NOT_FOUND": "no such resource",
    "DUPLICATE_RESOURCE": "the same resource is named twice",
    "UNACCEPTABLE_CREDENTIAL": "the credential is not acceptable",
    "INCONSISTENT_VOTER_SET": "the voters of sender and receiver differ",
    "INVALID_UPDATE_VERSION": "the feature level asked for is not valid",
    "FEATURE_UPDATE_FAILED": "the feature levels could not be updated",
    "PRINCIPAL_DESERIALIZATION_FAILURE": "the forwarded principal could not be read",
    "SNAPSHOT_NOT_FOUND": "no such snapshot",
    "POSITION_OUT_OF_RANGE": "the position lies outside the snapshot",
    "UNKNOWN_TOPIC_ID": "this broker has no topic with this id",
    "DUPLICATE_BROKER_REGISTRATION": "a broker with this id is registered already",
    "BROKER_ID_NOT_REGISTERED": "no broker with this id is registered",
    "INCONSISTENT_TOPIC_ID": "the topic id differs from the one in the log",
    "INCONSISTENT_CLUSTER_ID": "the cluster id is not the one of this cluster",
    "TRANSACTIONAL_ID_NOT_FOUND": "no such transactional id",
    "FETCH_SESSION_TOPIC_ID_ERROR": "the fetch session mixes topic names and ids",
    "INELIGIBLE_REPLICA": "a replica in the new ISR may not be there",
    "NEW_LEADER_ELECTED": "the change was made, but the leader is another one now",
    "OFFSET_MOVED_TO_TIERED_STORAGE": "the offset has moved to tiered storage",
    "FENCED_MEMBER_EPOCH": "the member's epoch is out of date: give up all partitions and join again",
    "UNRELEASED_INSTANCE_ID": "the instance id still belongs to another member",
    "UNSUPPORTED_ASSIGNOR": "the assignor is not supported",
    "STALE_MEMBER_EPOCH": "the member's epoch is out of date: heartbeat again",
    "MISMATCHED_ENDPOINT_TYPE": "the request went to the wrong kind of endpoint",
    "UNSUPPORTED_ENDPOINT_TYPE": "this kind of endpoint is not supported",
    "UNKNOWN_CONTROLLER_ID": "no such controller id",
    "UNKNOWN_SUBSCRIPTION_ID": "no such telemetry subscription",
    "TELEMETRY_TOO_LARGE": "the telemetry is too large",
    "INVALID_REGISTRATION": "the registration is not valid",
    "TRANSACTION_ABORTABLE": "the transaction must be aborted; its id can be used again afterwards",
    "INVALID_RECORD_STATE": "the record is not in a state that can be acknowledged this way",
    "SHARE_SESSION_NOT_FOUND": "no such share session",
    "INVALID_SHARE_SESSION_EPOCH": "the share session epoch is not the expected one",
    "FENCED_STATE_EPOCH": "the state epoch in the request is not the current one",
    "INVALID_VOTER_KEY": "the voter key is not the replica's",
    "DUPLICATE_VOTER": "the voter is in the set already",
    "VOTER_NOT_FOUND": "the voter is not in the set",
    "INVALID_REGULAR_EXPRESSION": "the regular expression is not valid",
    "REBOOTSTRAP_REQUIRED": "the client's metadata is out of date: it has to bootstrap again",
    "STREAMS_INVALID_TOPOLOGY": "the topology is not valid",
    "STREAMS_INVALID_TOPOLOGY_EPOCH": "the topology epoch is not valid",
    "STREAMS_TOPOLOGY_FENCED": "the topology epoch is out of date",
    "SHARE_SESSION_LIMIT_REACHED": "no more share sessions are allowed",
    "GROUP_DELETION_FAILED": "the group could not be deleted",
    "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED": "the topology description could not be processed",
    "CONTROLLER_ID_NOT_REGISTERED": "no controller with this id is registered",
    "UNKNOWN_CLUSTER_MIRROR": "no mirror of this name",
    "TOPIC_ALREADY_IN_CLUSTER_MIRROR": "the topic belongs to another mirror",
    "TOPIC_NOT_IN_CLUSTER_MIRROR": "the topic does not belong to this mirror",
    "MIRROR_TOPIC_ALREADY_PAUSED": "the mirror topic is paused already",
    "MIRROR_TOPIC_NOT_PAUSED": "the mirror topic is not paused",
    "MIRROR_TOPIC_BEING_STOPPED": "the mirror topic is being stopped",
    "CLUSTER_MIRROR_NOT_EMPTY": "the mirror still has active or paused topics",
    "CLUSTER_MIRROR_AUTHORIZATION_FAILED": "not authorized for the mirror",
    "INVALID_CLUSTER_MIRROR_STATE": "the mirror state of a partition does not allow this",
    "MIRROR_TOPIC_NOT_STOPPED": "the mirror topic is not stopped",
    "READ_ONLY_TOPIC": "the topic is a mirror: no writes until it is stopped",
    "CLUSTER_MIRROR_ALREADY_EXISTS": "a mirror of this name exists already",
}


def name_of(code: int) -> str:
    """The constant's name, or the number as text for a code that this table does not have (a newer peer)."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def is_retriable(code: int) -> bool:
    """False for codes that this table does not have."""
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False
