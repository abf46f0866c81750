"""The one table of what may differ, with the reason for each row. FINDINGS.md shows it; a test keeps them together.

Structural rows say how a field is compared (mapped, by presence, in any order); LISTED rows excuse one difference that
is on purpose and stands in docs/DEVIATIONS.md or at the head of the handler. A row must be as narrow as it can be.
"""

from __future__ import annotations

from collections.abc import Callable

from conformance.differential.compare import ABSENT, MEMBER_ID, Kind, Rule, Seen
from conformance.differential.opened import opened

BROKER = 4
COORDINATOR_NOT_AVAILABLE = 15
NO_CONFIGS_HERE = (8, 16, 32)
"""Broker loggers, client metrics, groups."""
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_HASHED = "Kafka answers in the order of a hash map"
_RANDOM_IDS = "Kafka's members are in a hash map by their random ids"
Condition = Callable[[Seen], bool]


def fact(name: str) -> Condition:
    """The step says so of itself."""
    return lambda seen: name in seen.facts


_STRUCTURAL: tuple[Rule, ...] = (
    # -- chosen by each broker
    Rule(("Metadata.cluster_id", "DescribeCluster.cluster_id"), Kind.PAIRED, "each cluster has its own id", "cluster"),
    Rule(("*.topic_id",), Kind.PAIRED, "random, chosen by the broker that creates the topic", "topic id"),
    Rule(("*.port",), Kind.PAIRED, "the two listen on different ports", "port"),
    Rule(("*.host",), Kind.PAIRED, "the two may be on different machines", "host"),
    Rule(
        ("*.node_id", "*.controller_id", "*.broker_id", "*.leader_id", "*.replica_nodes", "*.isr_nodes",
         "*.offline_replicas"),
        Kind.PAIRED, "node ids are given by configuration", "node",
    ),
    Rule(("*.producer_id",), Kind.PAIRED, "allocated by each cluster; kmirror's ids begin above 2^32", "producer id"),
    Rule(("Fetch.session_id",), Kind.PAIRED, "random", "session"),
    Rule(
        ("*.member_id", "JoinGroup.leader"), Kind.PAIRED,
        "random behind the client id or group instance id, which is compared", MEMBER_ID,
    ),
    Rule(("DescribeLogDirs.results.log_dir",), Kind.PAIRED, "each broker has its own directory", "directory"),
    Rule(
        ("DescribeLogDirs.results.usable_bytes", "DescribeLogDirs.results.total_bytes"), Kind.SIGN,
        "of the volume, which others write to as well",
    ),
    # -- time
    Rule(
        ("*.log_append_time_ms", "*.batches.base_timestamp", "*.batches.max_timestamp", "*.batches.records.timestamp",
         "ListOffsets.topics.partitions.timestamp", "*.active_producers.last_timestamp",
         "DescribeTransactions.transaction_states.transaction_start_time_ms"),
        Kind.CLOCK, "with LogAppendTime it is the broker's clock",
    ),
    # -- order without meaning
    Rule(("Produce.responses", "Metadata.topics", "DeleteTopics.responses"), Kind.UNORDERED, _HASHED, "name|topic_id"),
    Rule(("Produce.responses.partition_responses",), Kind.UNORDERED, _HASHED, "index"),
    Rule(
        ("DescribeTopicPartitions.topics",), Kind.UNORDERED, "internal topics that only Kafka has come first", "name",
        when=lambda seen: "every topic" in seen.facts,
    ),
    Rule(("DescribeProducers.topics.partitions.active_producers",), Kind.UNORDERED, _HASHED, "producer_id"),
    Rule(("ApiVersions.api_keys",), Kind.UNORDERED, "the two serve different APIs", "api_key"),
    Rule(("ListConfigResources.config_resources",), Kind.UNORDERED, _HASHED, "resource_type+resource_name"),
    Rule(("ListOffsets.topics",), Kind.UNORDERED, _HASHED, "name"),
    Rule(("ListOffsets.topics.partitions",), Kind.UNORDERED, _HASHED, "partition_index"),
    Rule(
        ("DescribeConfigs.results.configs",), Kind.UNORDERED, "broker properties that only one side has set", "name",
        when=lambda seen: getattr(seen.left_parent, "resource_type", 0) == BROKER,
    ),
    Rule(
        ("CreateTopics.topics.configs",), Kind.UNORDERED, "sorted by name, with those of KIP-1279 in between", "name"
    ),
    Rule(
        ("DescribeGroups.groups.members",), Kind.UNORDERED, _RANDOM_IDS, "member_id~client_id",
    ),
    Rule(("JoinGroup.members",), Kind.UNORDERED, _RANDOM_IDS, "member_id"),
    Rule(
        ("ListGroups.groups", "DescribeGroups.groups", "DeleteGroups.results", "OffsetFetch.groups"), Kind.UNORDERED,
        _HASHED, "group_id",
    ),
    Rule(
        ("AddPartitionsToTxn.results_by_topic_v3_and_below", "AddPartitionsToTxn.results_by_transaction.topic_results",
         "WriteTxnMarkers.markers.topics"),
        Kind.UNORDERED, _HASHED, "name",
    ),
    Rule(("*.results_by_partition", "WriteTxnMarkers.markers.topics.partitions"), Kind.UNORDERED, _HASHED,
         "partition_index"),
    Rule(
        ("OffsetFetch.topics", "OffsetFetch.groups.topics"), Kind.UNORDERED, _HASHED, "name|topic_id",
        when=fact("all offsets"),
    ),
    Rule(
        ("OffsetFetch.topics.partitions", "OffsetFetch.groups.topics.partitions"), Kind.UNORDERED, _HASHED,
        "partition_index", when=fact("all offsets"),
    ),
    Rule(("DescribeLogDirs.results.topics",), Kind.UNORDERED, _HASHED, "name"),
    Rule(("DescribeLogDirs.results.topics.partitions",), Kind.UNORDERED, _HASHED, "partition_index"),
    Rule(("ListTransactions.transaction_states",), Kind.UNORDERED, _HASHED, "transactional_id"),
    Rule(("DescribeTransactions.transaction_states.topics",), Kind.UNORDERED, _HASHED, "topic"),
    Rule(
        ("DescribeTransactions.transaction_states.topics.partitions", "ListTransactions.unknown_state_filters"),
        Kind.UNORDERED, _HASHED,
    ),
    # -- text for people
    Rule(
        ("*.error_message", "*.batch_index_error_message"), Kind.PRESENCE,
        "kmirror words its own messages (every error says what to do next); that there is one is compared",
    ),
    Rule(("DescribeConfigs.results.configs.documentation",), Kind.PRESENCE, "kmirror's documentation is its own text"),
)  # fmt: skip

_CONFIG_PATHS = ("DescribeConfigs.results.configs*", "CreateTopics.topics.configs*")
NODE_SPECIFIC = frozenset(
    {
        "advertised.listeners",
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "group.initial.rebalance.delay.ms",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "log.initial.task.delay.ms",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "broker.id",
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "process.roles",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "transaction.state.log.min.isr",
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
    }
)
"""Broker properties that the two starts give differently, or whose default docs/DEVIATIONS.md lists."""
_FLUSH = frozenset({"flush.messages", "log.flush.interval.messages"})


def of_config(names: frozenset[str]) -> Condition:
    """The field of a configuration entry, or of a synonym, with one of these names."""
    return lambda seen: any(
        getattr(value, "name", None) in names for value in (seen.left, seen.right, seen.left_parent, seen.right_parent)
    )


def _name(value: object) -> object:
    return getattr(value, "name", None) or getattr(value, "resource_name", None)


def _codes(seen: Seen) -> tuple[object, object]:
    """The error codes of the two rows that the field is in."""
    return getattr(seen.left_parent, "error_code", None), getattr(seen.right_parent, "error_code", None)


def _end_of(records: bytes | memoryview | None) -> int:
    """The offset behind the last whole batch; 0 when there is none."""
    return max((batch.base_offset + batch.last_offset_delta + 1 for batch in opened(records or b"")), default=0)


def _behind(aborted: object, row: object) -> bool:
    """An aborted transaction that begins behind all the records that Kafka returned."""
    first_offset = getattr(aborted, "first_offset", -1)
    return bool(first_offset >= _end_of(getattr(row, "records", None)) > 0)


def gives_up_with(left: int, right: int) -> Condition:
    """The left says one error code where the right says the other."""
    return lambda seen: (seen.left, seen.right) == (left, right)


_LISTED: tuple[Rule, ...] = (
    Rule(
        ("Produce.responses.partition_responses.error_message", "DescribeProducers.topics.partitions.error_message",
         "CreatePartitions.results.error_message"),
        Kind.LISTED, "kmirror says why something was refused where Kafka leaves the text null",
        when=lambda seen: seen.left is None,
    ),
    Rule(
        _CONFIG_PATHS, Kind.LISTED, "configurations of KIP-1279, which Kafka does not have",
        when=lambda seen: seen.left is ABSENT and "mirror." in getattr(seen.right, "name", ""),
    ),
    Rule(
        _CONFIG_PATHS, Kind.LISTED, "kmirror flushes before it acknowledges: the default is 1 (docs/DEVIATIONS.md)",
        when=of_config(_FLUSH),
    ),
    Rule(
        ("DescribeConfigs.results.configs.synonyms*", "DescribeConfigs.results.configs",
         "DescribeConfigs.results.configs.config_source", "CreateTopics.topics.configs.config_source"), Kind.LISTED,
        "a new Kafka cluster records min.insync.replicas for all brokers (KIP-966), kmirror leaves the default",
        when=of_config(frozenset({"min.insync.replicas"})),
    ),
    Rule(
        _CONFIG_PATHS, Kind.LISTED, "the two are started with other values, or docs/DEVIATIONS.md lists the default",
        when=of_config(NODE_SPECIFIC),
    ),
    Rule(
        ("Fetch.responses.partitions.records.batches.payload",),
        Kind.LISTED, "compressed by the broker (compression.type): the bytes are the library's, the records are equal",
        when=lambda seen: "rewritten" in seen.facts and bool(seen.left_parent.records) and seen.left is not ABSENT,
    ),
    Rule(
        ("Metadata.topics", "DescribeTopicPartitions.topics", "ListConfigResources.config_resources"), Kind.LISTED,
        "Kafka has made the internal topics of its coordinators, kmirror has none yet",
        when=lambda seen: seen.right is ABSENT and _name(seen.left) in INTERNAL,
    ),
    Rule(
        ("ApiVersions.api_keys",), Kind.LISTED, "APIs of later milestones, and those of KIP-1279",
        when=lambda seen: ABSENT in (seen.left, seen.right),
    ),
    Rule(
        ("ApiVersions.supported_features", "ApiVersions.finalized_features*"), Kind.LISTED,
        "each says which features it has; kmirror has mirror.version and one metadata.version",
    ),
    Rule(
        ("IncrementalAlterConfigs.responses*", "AlterConfigs.responses*"), Kind.LISTED,
        "kmirror knows every property of the broker and refuses others, so that a misspelt one is noticed",
        when=lambda seen: "unknown property" in seen.facts and _codes(seen) == (0, 42),
    ),
    Rule(
        ("DescribeConfigs.results.configs",), Kind.LISTED, "an unknown property that Kafka took, see above",
        when=lambda seen: seen.right is ABSENT and _name(seen.left) == "unknown.property",
    ),
    Rule(
        ("IncrementalAlterConfigs.responses*",), Kind.LISTED,
        "an operation that does not exist: a null pointer in Kafka, INVALID_REQUEST here",
        when=lambda seen: _codes(seen) == (-1, 42),
    ),
    Rule(
        ("DescribeConfigs.results.configs.documentation",), Kind.LISTED, "kmirror documents topic properties only",
        when=lambda seen: seen.right is None,
    ),
    Rule(
        ("DescribeConfigs.results",), Kind.LISTED,
        "kmirror has no configurations of loggers, client metrics and groups",
        when=lambda seen: getattr(seen.left, "resource_type", 0) in NO_CONFIGS_HERE,
    ),
    Rule(
        ("FindCoordinator.coordinators",), Kind.LISTED,
        "Kafka has no coordinator before it has made an internal topic; one node is its own at once",
        when=lambda seen: getattr(seen.left, "error_code", 0) == COORDINATOR_NOT_AVAILABLE,
    ),
    Rule(
        ("Fetch.responses.partitions.records.batches",), Kind.LISTED,
        "Kafka ends a partition's records at the end of a segment, kmirror goes on in the next",
        when=lambda seen: seen.left is ABSENT and bool(seen.left_parent.records),
    ),
    Rule(
        ("Fetch.responses.partitions.aborted_transactions",), Kind.LISTED,
        "transactions behind the records of the answer: Kafka lists those up to the next index entry or segment, "
        "kmirror those of the records, which may go on in the next segment",
        when=lambda seen: (
            ABSENT in (seen.left, seen.right)
            and (_behind(seen.left, seen.left_parent) or _behind(seen.right, seen.left_parent))
        ),
    ),
    Rule(
        ("Fetch.responses.partitions.aborted_transactions",), Kind.LISTED,
        "where limits leave no byte for a partition, Kafka's list is null or empty as its reader happens to end",
        when=lambda seen: "prefix" in seen.facts and not seen.left_parent.records and not (seen.left or seen.right),
    ),
    Rule(
        ("DescribeLogDirs.results.topics",), Kind.LISTED,
        "what the coordinators have recorded takes other numbers of batches, and not all of these topics are there",
        when=lambda seen: _name(seen.left) in INTERNAL or _name(seen.right) in INTERNAL,
    ),
    Rule(
        ("DescribeLogDirs.results.topics.partitions.partition_size",), Kind.LISTED,
        "compressed by the broker, see above",
        when=lambda seen: "rewritten" in seen.facts and seen.left > 0 and seen.right > 0,
    ),
    Rule(
        ("ListOffsets.topics.partitions.offset", "ListOffsets.topics.partitions.timestamp",
         "ListOffsets.topics.partitions.leader_epoch"), Kind.LISTED,
        "Kafka looks a time up in one segment: when that lies below the log start it finds nothing, kmirror goes on",
        when=lambda seen: (
            "trimmed" in seen.facts and (seen.left_parent.error_code, seen.left_parent.offset) == (0, -1)
        ),
    ),
    Rule(
        ("WriteTxnMarkers.markers.topics.partitions.error_code",), Kind.LISTED,
        "a marker of no producer: an internal exception for the whole request in Kafka, INVALID_REQUEST here",
        when=lambda seen: seen.left == -1 and seen.right in (3, 42),
    ),
    Rule(
        ("Produce.responses.partition_responses.log_start_offset",), Kind.LISTED,
        "an exception of a library leaves Kafka's row without it",
        when=lambda seen: _codes(seen) == (-1, 87),
    ),
    Rule(
        ("Produce.responses.partition_responses.error_code",), Kind.LISTED,
        "compressed records that are no such thing: Kafka lets the library's exception out as UNKNOWN_SERVER_ERROR, "
        "kmirror says INVALID_RECORD",
        when=gives_up_with(-1, 87),
    ),
)  # fmt: skip

RULES: tuple[Rule, ...] = (*_STRUCTURAL, *_LISTED)
