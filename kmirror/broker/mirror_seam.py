"""What crosses between a mirror's link (`kmirror.source.link`, async) and `Mirrors` (`kmirror.broker.mirroring`).

Only plain values live here: numbers, names, and views of received frames. The link never sees a log or a machine, the
binding never sees a connection. Everything is keyword-only, since most fields are integers of one kind.

A `Lease` ties a fetch to the moment it was planned: the partition's machine, its log's generation, the fetch offset and
the source leader epoch that was agreed. Whatever arrives under a lease that is no longer current is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kmirror.protocol import uuids


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """One mirror's connection settings. A change of `generation` means: close the connections and begin anew."""

    mirror: str
    generation: int
    bootstrap_servers: str
    """As configured: `host:port[,host:port]...`."""
    source_cluster_id: str
    client_properties: Mapping[str, str]
    """security.protocol, sasl.*, ssl.* and the other client properties, as configured."""
    fetch_wait_max_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_response_max_bytes: int
    fetch_backoff_ms: int
    request_timeout_ms: int
    socket_timeout_ms: int
    socket_receive_buffer_bytes: int
    connection_setup_timeout_ms: int
    connection_setup_timeout_max_ms: int
    connections_max_idle_ms: int
    refresh_interval_ms: int


# --- what the source says about itself ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartition:
    leader: int = -1
    leader_epoch: int = -1
    """-1 when the source's Metadata version carries none."""
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    topic_id: bytes = uuids.ZERO
    """All zero when the source has no topic ids (before 2.8)."""
    error_code: int = 0
    partitions: Mapping[int, SourcePartition] = field(default_factory=dict)
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMetadata:
    """One whole answer. `topics` holds an entry for *every* topic that was asked for; a topic that does not exist has
    error code 3 (UNKNOWN_TOPIC_OR_PARTITION). `complete` = all topics were asked for (discovery may look at it)."""

    cluster_id: str | None
    brokers: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    topics: Mapping[str, SourceTopic] = field(default_factory=dict)
    capable: bool = False
    """The source speaks the mirror APIs: keys 98 and 99 and the feature mirror.version >= 1."""
    complete: bool = False


# --- questions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question to the source about one partition. `leader` is the broker to ask."""

    id: int
    mirror: str
    topic: str
    topic_id: bytes
    partition: int
    leader: int
    current_leader_epoch: int
    """The source leader epoch to fence with; -1 = none known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndQuery(Query):
    """OffsetForLeaderEpoch as a consumer (replica id -1, v2 or later)."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuery(Query):
    """ListOffsets, isolation READ_UNCOMMITTED; `timestamp` in ms, -1 latest, -2 earliest."""

    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuery(Query):
    """Fetch at `offset` outside the fetch sessions, no waiting; at least the first whole batch is wanted."""

    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageQuery(Query):
    """DescribeClusterMirrors by our own cluster id: the last mirror epoch that the source recorded when we fed it."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndAnswer:
    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAnswer:
    offset: int
    """-1 = no such offset (a timestamp beyond the end)."""
    timestamp: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    records: bytes | memoryview
    """Empty when the source has nothing there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageAnswer:
    """`last_mirror_offset` -1 and `last_mirror_epoch` -1: the source knows no lineage. `supported` False: too old."""

    last_mirror_epoch: int = -1
    last_mirror_offset: int = -1
    supported: bool = True
    mirror: str = ""
    """The mirror at the source that copies, or copied, this partition from us; empty without one."""
    state: str = "STOPPED"
    """That mirror's state of the partition, as people see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """`code` is Kafka's error code of the partition; `transport` = no answer at all (connection, timeout)."""

    code: int = -1
    transport: bool = False
    message: str = ""


Answer = EpochEndAnswer | OffsetAnswer | BatchAnswer | LineageAnswer | ErrorAnswer


# --- fetching -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lease:
    """Opaque to the link."""

    machine: object
    number: int
    """The machine's lease number; every revocation takes a new one."""
    generation: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchItem:
    """One partition of the next Fetch: consumer style, replica id -1, READ_UNCOMMITTED."""

    mirror: str
    topic: str
    topic_id: bytes
    """The source's topic id, all zero when it has none."""
    partition: int
    broker_id: int
    fetch_offset: int
    source_leader_epoch: int
    log_start_offset: int
    """-1, as a consumer sends it."""
    max_bytes: int
    lease: Lease


@dataclass(slots=True, kw_only=True)
class FetchAnswer:
    """`records` is a view of the received frame; it may end in a partial batch."""

    error_code: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    records: bytes | memoryview = b""
    current_leader_id: int = -1
    current_leader_epoch: int = -1


@dataclass(slots=True, kw_only=True)
class Examined:
    """What `Mirrors.examine` found in the batch headers; hand it to `plan_fetch(after=...)`, then to `apply`."""

    item: FetchItem
    answer: FetchAnswer
    accepted: bool
    """False: nothing of it will be appended (error, stale lease, nothing in it)."""
    first_offset: int = -1
    next_offset: int
    size_bytes: int = 0
    """Bytes of the complete batches."""
    batch_count: int = 0
    first_epoch: int = -1
    last_epoch: int = -1
    runs: Sequence[int] = ()
    """End positions (exclusive) of runs of whole batches of at most 1 MiB, or of one larger batch."""
    refusal: str | None = None
    passing: bool = False
    """The refusal is a matter of waiting for newer metadata; any other fails the partition."""


# --- operator side --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTopic:
    """`topic_id` is the source's (all zero: it has none). `num_partitions` 0: created at the next refresh."""

    name: str
    topic_id: bytes = uuids.ZERO
    num_partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedPartition:
    partition: int
    last_mirrored_offset: int
    source_end_offset: int = -1
    missing_offsets: int = -1
    aborted_transactions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    name: str
    error_code: int = 0
    error_message: str | None = None
    partitions: Sequence[StoppedPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorListing:
    name: str
    source_bootstrap: str
    source_cluster_id: str
    topic_names: Sequence[str]
    """Filtered by desired state; sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    from_offset: int
    to_offset: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    attempt: int
    """-1 = not retried."""
    max_attempts: int
    next_at_ms: int | None
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One line of describe. Unknown is None, never -1.

    `copied_bytes`: appended by this mirror since the topic was last started here, or since the process was.
    `cut_offsets`, `cut_saved`: what the last alignment in this process's time cut away, and the directory of its copy.
    """

    mirror: str
    topic: str
    topic_id: bytes
    partition: int
    state: str
    phase: str | None
    source_offset: int | None
    destination_offset: int | None
    lag: int | None
    leader_epoch: int
    last_mirror_epoch: int | None
    last_mirror_offset: int | None
    gaps: Sequence[Gap]
    error: str | None
    retry: Retry | None
    copied_bytes: int = 0
    cut_offsets: int | None = None
    cut_saved: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorDescription:
    name: str
    source_bootstrap: str
    source_cluster_id: str
    partitions: Sequence[PartitionRow]
    active_groups: Sequence[str] = ()
    """Groups whose offsets are not taken from the source, since they have members here."""
