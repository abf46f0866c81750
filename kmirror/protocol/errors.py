"""Kafka's error codes: every code of Apache Kafka 4.4 and those of Cluster Mirroring.

One enum, since a response field is one int16 whatever its origin. Codes, names and whether a client may retry are
Kafka's (`org.apache.kafka.common.protocol.Errors`); the sentences are ours, used when nobody has a better one to say.
Mirroring's codes come from `mirror_numbers`. L1: imports nothing of kmirror but that table.
"""

from __future__ import annotations

from enum import IntEnum

from kmirror.protocol import mirror_numbers as kip


class ErrorCode(IntEnum):
    """`int` value, `.retriable` (the same request may succeed later), `.message` (default text for people)."""

    retriable: bool
    message: str

    def __new__(cls, code: int, retriable: bool, message: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "the server met an error it did not expect"
    NONE = 0, False, "no error"
    OFFSET_OUT_OF_RANGE = 1, False, "the offset is outside the range this partition holds"
    CORRUPT_MESSAGE = 2, True, "the batch is corrupt, or a compacted topic got a record without key"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "this broker has no such topic or partition"
    INVALID_FETCH_SIZE = 4, False, "the requested fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, True, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, True, "this broker is not the leader (or not a replica) of the partition"
    REQUEST_TIMED_OUT = 7, True, "the request ran out of time"
    BROKER_NOT_AVAILABLE = 8, False, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, True, "the replica is not available"
    MESSAGE_TOO_LARGE = 10, False, "a record batch is larger than max.message.bytes allows"
    STALE_CONTROLLER_EPOCH = 11, False, "the sender's controller epoch is out of date"
    OFFSET_METADATA_TOO_LARGE = 12, False, "the metadata text of a committed offset is too long"
    NETWORK_EXCEPTION = 13, True, "the connection was lost before an answer arrived"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, True, "the coordinator is not available"
    NOT_COORDINATOR = 16, True, "this broker is not the coordinator for that key"
    INVALID_TOPIC_EXCEPTION = 17, False, "the topic name is not valid, or the topic may not be used this way"
    RECORD_LIST_TOO_LARGE = 18, False, "the batch is larger than a segment of the log may be"
    NOT_ENOUGH_REPLICAS = 19, True, "too few replicas are in sync to accept the write"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "appended, but too few replicas were in sync to confirm it"
    INVALID_REQUIRED_ACKS = 21, False, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, False, "the group generation is not the current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "the member's protocols do not fit those of the group"
    INVALID_GROUP_ID = 24, False, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, False, "the coordinator does not know this member"
    INVALID_SESSION_TIMEOUT = 26, False, "the session timeout is outside the range the broker allows"
    REBALANCE_IN_PROGRESS = 27, False, "the group is rebalancing: join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "the committed offset data is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "not authorized for the topic"
    GROUP_AUTHORIZATION_FAILED = 30, False, "not authorized for the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "not authorized for the cluster"
    INVALID_TIMESTAMP = 32, False, "the timestamp is outside the range the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "the SASL mechanism is not enabled here"
    ILLEGAL_SASL_STATE = 34, False, "the request does not fit the state of the SASL exchange"
    UNSUPPORTED_VERSION = 35, False, "this version of the API is not supported"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic of this name exists already"
    INVALID_PARTITIONS = 37, False, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, False, "the replication factor is not valid for this cluster"
    INVALID_REPLICA_ASSIGNMENT = 39, False, "the replica assignment is not valid"
    INVALID_CONFIG = 40, False, "a configuration value is not valid"
    NOT_CONTROLLER = 41, True, "this node is not the active controller"
    INVALID_REQUEST = 42, False, "the request contradicts itself or cannot be carried out"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "the message format on the broker cannot do this"
    POLICY_VIOLATION = 44, False, "a policy of the cluster forbids the request"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "the producer's sequence number does not follow the last one"
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "the producer's sequence number was seen before"
    INVALID_PRODUCER_EPOCH = 47, False, "the producer epoch is older than the current one"
    INVALID_TXN_STATE = 48, False, "the transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "the producer id does not belong to this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "the transaction timeout is longer than the broker allows"
    CONCURRENT_TRANSACTIONS = 51, True, "another operation on the same transaction is not finished"
    TRANSACTION_COORDINATOR_FENCED = 52, False, "the marker's sender is no longer the coordinator of that transaction"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "not authorized for the transactional id"
    SECURITY_DISABLED = 54, False, "security features are switched off"
    OPERATION_NOT_ATTEMPTED = 55, False, "not attempted, because another item of the request failed"
    KAFKA_STORAGE_ERROR = 56, True, "the disk failed while the log was accessed"
    LOG_DIR_NOT_FOUND = 57, False, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, False, "authentication failed"
    UNKNOWN_PRODUCER_ID = 59, False, "the broker knows nothing of this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, False, "the partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "the principal is neither owner nor renewer of the token"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "delegation tokens may not be requested over this connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "not authorized for the delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, False, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, False, "the principal type is not supported"
    NON_EMPTY_GROUP = 68, False, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, False, "no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "no such fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session epoch is not the expected one"
    LISTENER_NOT_FOUND = 72, True, "the partition leader has no listener of that name"
    TOPIC_DELETION_DISABLED = 73, False, "topic deletion is switched off"
    FENCED_LEADER_EPOCH = 74, True, "the leader epoch in the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, True, "the leader epoch in the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "the client cannot read the compression of this partition"
    STALE_BROKER_EPOCH = 77, False, "the broker epoch has changed"
    OFFSET_NOT_AVAILABLE = 78, True, "the new leader's high watermark has not caught up yet"
    MEMBER_ID_REQUIRED = 79, False, "the member must join again with the id it was given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, False, "the group is full"
    FENCED_INSTANCE_ID = 82, False, "another member uses the same group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "no replica may become leader"
    ELECTION_NOT_NEEDED = 84, True, "no election is needed"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "no reassignment is going on"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "the group is subscribed to the topic"
    INVALID_RECORD = 87, False, "a record failed the broker's checks"
    UNSTABLE_OFFSET_COMMIT = 88, True, "a transaction that commits these offsets is not finished"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "a quota was exceeded: slow down"
    PRODUCER_FENCED = 90, False, "a newer producer uses the same transactional id"
    RESOURCE_NOT_FOUND = 91, False, "no such resource"
    DUPLICATE_RESOURCE = 92, False, "the same resource is named twice"
    UNACCEPTABLE_CREDENTIAL = 93, False, "the credential is not acceptable"
    INCONSISTENT_VOTER_SET = 94, False, "the voters of sender and receiver differ"
    INVALID_UPDATE_VERSION = 95, False, "the feature level asked for is not valid"
    FEATURE_UPDATE_FAILED = 96, False, "the feature levels could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "the forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, False, "no such snapshot"
    POSITION_OUT_OF_RANGE = 99, False, "the position lies outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, True, "this broker has no topic with this id"
    DUPLICATE_BROKER_REGISTRATION = 101, False, "a broker with this id is registered already"
    BROKER_ID_NOT_REGISTERED = 102, False, "no broker with this id is registered"
    INCONSISTENT_TOPIC_ID = 103, True, "the topic id differs from the one in the log"
    INCONSISTENT_CLUSTER_ID = 104, False, "the cluster id is not the one of this cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "the fetch session mixes topic names and ids"
    INELIGIBLE_REPLICA = 107, False, "a replica in the new ISR may not be there"
    NEW_LEADER_ELECTED = 108, False, "the change was made, but the leader is another one now"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "the offset has moved to tiered storage"
    FENCED_MEMBER_EPOCH = 110, False, "the member's epoch is out of date: give up all partitions and join again"
    UNRELEASED_INSTANCE_ID = 111, False, "the instance id still belongs to another member"
    UNSUPPORTED_ASSIGNOR = 112, False, "the assignor is not supported"
    STALE_MEMBER_EPOCH = 113, False, "the member's epoch is out of date: heartbeat again"
    MISMATCHED_ENDPOINT_TYPE = 114, False, "the request went to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "this kind of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, False, "no such controller id"
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "no such telemetry subscription"
    TELEMETRY_TOO_LARGE = 118, False, "the telemetry is too large"
    INVALID_REGISTRATION = 119, False, "the registration is not valid"
    TRANSACTION_ABORTABLE = 120, False, "the transaction must be aborted; its id can be used again afterwards"
    INVALID_RECORD_STATE = 121, False, "the record is not in a state that can be acknowledged this way"
    SHARE_SESSION_NOT_FOUND = 122, True, "no such share session"
    INVALID_SHARE_SESSION_EPOCH = 123, True, "the share session epoch is not the expected one"
    FENCED_STATE_EPOCH = 124, False, "the state epoch in the request is not the current one"
    INVALID_VOTER_KEY = 125, False, "the voter key is not the replica's"
    DUPLICATE_VOTER = 126, False, "the voter is in the set already"
    VOTER_NOT_FOUND = 127, False, "the voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, False, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, False, "the client's metadata is out of date: it has to bootstrap again"
    STREAMS_INVALID_TOPOLOGY = 130, False, "the topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "the topology epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, False, "the topology epoch is out of date"
    SHARE_SESSION_LIMIT_REACHED = 133, True, "no more share sessions are allowed"
    GROUP_DELETION_FAILED = 134, False, "the group could not be deleted"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, False, "the topology description could not be processed"
    CONTROLLER_ID_NOT_REGISTERED = 136, False, "no controller with this id is registered"

    # Cluster Mirroring (KIP-1279)
    UNKNOWN_CLUSTER_MIRROR = kip.UNKNOWN_CLUSTER_MIRROR, False, "no mirror of this name"
    TOPIC_ALREADY_IN_CLUSTER_MIRROR = kip.TOPIC_ALREADY_IN_CLUSTER_MIRROR, False, "the topic belongs to another mirror"
    TOPIC_NOT_IN_CLUSTER_MIRROR = kip.TOPIC_NOT_IN_CLUSTER_MIRROR, False, "the topic does not belong to this mirror"
    MIRROR_TOPIC_ALREADY_PAUSED = kip.MIRROR_TOPIC_ALREADY_PAUSED, False, "the mirror topic is paused already"
    MIRROR_TOPIC_NOT_PAUSED = kip.MIRROR_TOPIC_NOT_PAUSED, False, "the mirror topic is not paused"
    MIRROR_TOPIC_BEING_STOPPED = kip.MIRROR_TOPIC_BEING_STOPPED, False, "the mirror topic is being stopped"
    CLUSTER_MIRROR_NOT_EMPTY = kip.CLUSTER_MIRROR_NOT_EMPTY, False, "the mirror still has active or paused topics"
    CLUSTER_MIRROR_AUTHORIZATION_FAILED = (
        kip.CLUSTER_MIRROR_AUTHORIZATION_FAILED,
        False,
        "not authorized for the mirror",
    )
    INVALID_CLUSTER_MIRROR_STATE = (
        kip.INVALID_CLUSTER_MIRROR_STATE,
        False,
        "the mirror state of a partition does not allow this",
    )
    MIRROR_TOPIC_NOT_STOPPED = kip.MIRROR_TOPIC_NOT_STOPPED, False, "the mirror topic is not stopped"
    READ_ONLY_TOPIC = kip.READ_ONLY_TOPIC, False, "the topic is a mirror: no writes until it is stopped"
    CLUSTER_MIRROR_ALREADY_EXISTS = kip.CLUSTER_MIRROR_ALREADY_EXISTS, False, "a mirror of this name exists already"


def name_of(code: int) -> str:
    """The constant's name, or the number as text for a code that this table does not have (a newer peer)."""
    member = ErrorCode._value2member_map_.get(code)
    return member.name if member is not None else str(code)


def is_retriable(code: int) -> bool:
    """False for codes that this table does not have."""
    member = ErrorCode._value2member_map_.get(code)
    return isinstance(member, ErrorCode) and member.retriable
