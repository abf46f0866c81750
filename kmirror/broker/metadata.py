"""The cluster's metadata as the records of `__cluster_metadata-0` say it is. L3.

What may live here: the image and its replay, one method per record type. Record types and versions are those that Kafka
4.4 decodes (KRaft), so Kafka's dump tool reads the log; mirrors' configurations and desired states are ConfigRecords of
resource type 64.

What must hold: state changes in `replay` and nowhere else, at run time as at start. A topic is in `creating` from the
moment its records are appended and in `topics_by_name` only once they are on disk (`publish`), so nobody is told of a
topic that a power cut could take back. `TopicState.registrations` holds epochs as appended; `Partition.leader_epoch`
follows when they are on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kmirror.errors import CorruptData
from kmirror.limits import REMOVED_TOPICS_REMEMBERED
from kmirror.protocol import mirror_numbers as kip
from kmirror.protocol import uuids
from kmirror.protocol.internal import cluster_metadata as records

if TYPE_CHECKING:
    from kmirror.broker.partition import Partition

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
MIRROR_RESOURCE = kip.CONFIG_RESOURCE_TYPE

METADATA_TOPIC = "__cluster_metadata"
MIRROR_STATE_TOPIC = "__mirror_state"
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state", MIRROR_STATE_TOPIC})

METADATA_VERSION_FEATURE = "metadata.version"
METADATA_LEVEL = 33
"""metadata.version of Kafka 4.4: the level whose record versions are written."""
TRANSACTION_VERSION_FEATURE = "transaction.version"
"""KIP-890: from level 1 on the transaction log has tagged fields, from 2 on each transaction its own epoch."""


@dataclass(slots=True)
class Registration:
    """One partition's PartitionRecord: epochs as appended, maybe not yet on disk."""

    leader_epoch: int
    partition_epoch: int


@dataclass(slots=True)
class TopicState:
    name: str
    topic_id: bytes
    registrations: list[Registration] = field(default_factory=list)
    partitions: list[Partition] = field(default_factory=list)
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    METADATA_VERSION_FEATURE: (METADATA_LEVEL, METADATA_LEVEL),
    TRANSACTION_VERSION_FEATURE: (0, 2),
    kip.FEATURE: (0, kip.FEATURE_MAX_LEVEL),
}
"""A feature is listed when what it stands for is served: groups, transactions and share groups bring their own."""


class MetadataImage:
    """See the module head."""

    def __init__(self) -> None:
        self.topics_by_name: dict[str, TopicState] = {}
        self.topics_by_id: dict[bytes, TopicState] = {}
        self.creating: dict[str, TopicState] = {}
        self.removed_ids: set[bytes] = set()
        """Topics this log has seen removed: their directories may go."""
        self.removed_epochs: dict[bytes, int] = {}
        """The highest leader epoch each of them had: a topic made again under the same id (a mirror's, after it was
        deleted here) begins above it, so that whoever mirrors from us is fenced. In the order of their removal."""
        self.features: dict[str, int] = {}
        self.default_broker_configs: dict[str, str] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.mirror_configs: dict[str, dict[str, str]] = {}
        self.other_configs: dict[tuple[int, str], dict[str, str]] = {}
        """Of resource types that only a Kafka wrote, by (type, name): kept for it."""
        self.next_producer_id = -1
        """First id that no durable block covers; -1 before the first block."""
        self.broker: records.RegisterBrokerRecord | None = None
        self._all_by_id: dict[bytes, TopicState] = {}
        self.before_change: Callable[[TopicState], None] | None = None
        """Called before a topic, its partitions or its configs change: `metadata_snapshot` keeps what was."""

    # -- questions -----------------------------------------------------------------------------------------------

    def known_topic(self, name: str) -> TopicState | None:
        """A topic by name, also one whose creation is not on disk yet."""
        return self.topics_by_name.get(name) or self.creating.get(name)

    def known_id(self, topic_id: bytes) -> bool:
        return topic_id in self._all_by_id

    def all_topics(self) -> list[TopicState]:
        """Those as well whose creation is not on disk yet; in the order of their creation."""
        return list(self._all_by_id.values())

    @property
    def mirroring_enabled(self) -> bool:
        return self.features.get(kip.FEATURE, 0) > 0

    # -- changes -------------------------------------------------------------------------------------------------

    def publish(self, topic: TopicState) -> None:
        """The topic's records are on disk: from now on it can be seen. A topic removed meanwhile stays away."""
        if self.creating.get(topic.name) is topic:
            del self.creating[topic.name]
            self.topics_by_name[topic.name] = topic
            self.topics_by_id[topic.topic_id] = topic

    @staticmethod
    def understands(record: Any) -> bool:
        """Whether `replay` knows what to do with a record of this type."""
        return type(record).__name__ in _REPLAY

    def replay(self, record: Any) -> None:
        """Apply one metadata record. Raises CorruptData when it contradicts what was replayed before it."""
        handler = _REPLAY.get(type(record).__name__)
        if handler is None:
            raise CorruptData(f"the metadata log holds a {type(record).__name__}, which this version does not know")
        handler(self, record)

    def _topic_record(self, record: records.TopicRecord) -> None:
        if self.known_topic(record.name) is not None:
            raise CorruptData(f"the metadata log creates topic {record.name} twice")
        topic = TopicState(record.name, bytes(record.topic_id))
        self.creating[topic.name] = topic
        self._all_by_id[topic.topic_id] = topic

    def _partition_record(self, record: records.PartitionRecord) -> None:
        topic = self._topic_to_change(record.topic_id)
        registration = Registration(record.leader_epoch, record.partition_epoch)
        if record.partition_id < len(topic.registrations):
            topic.registrations[record.partition_id] = registration
        elif record.partition_id == len(topic.registrations):
            topic.registrations.append(registration)
        else:
            raise CorruptData(f"the metadata log leaves out a partition of {topic.name} before {record.partition_id}")

    def _partition_change_record(self, record: records.PartitionChangeRecord) -> None:
        """Kafka raises the leader epoch with each change of leader or replicas; read here for logs Kafka wrote."""
        topic = self._topic_to_change(record.topic_id)
        registration = topic.registrations[record.partition_id]
        registration.partition_epoch += 1
        if record.leader != records.NO_LEADER_CHANGE or record.replicas is not None:
            registration.leader_epoch += 1

    def _remove_topic_record(self, record: records.RemoveTopicRecord) -> None:
        topic = self._topic_to_change(record.topic_id)
        del self._all_by_id[topic.topic_id]
        self._remember_removed(topic)
        self.topics_by_id.pop(topic.topic_id, None)
        for names in (self.topics_by_name, self.creating):
            if names.get(topic.name) is topic:
                del names[topic.name]

    def _remember_removed(self, topic: TopicState) -> None:
        """The order is that of removals, in a snapshot too, so that the same ones are forgotten after a restart."""
        self.removed_epochs.pop(topic.topic_id, None)
        self.removed_epochs[topic.topic_id] = max((r.leader_epoch for r in topic.registrations), default=-1)
        self.removed_ids.add(topic.topic_id)
        if len(self.removed_epochs) > REMOVED_TOPICS_REMEMBERED:
            oldest = next(iter(self.removed_epochs))
            del self.removed_epochs[oldest]
            self.removed_ids.discard(oldest)

    def _topic_to_change(self, topic_id: bytes) -> TopicState:
        topic = self._topic(topic_id)
        if self.before_change is not None:
            self.before_change(topic)
        return topic

    def _topic(self, topic_id: bytes) -> TopicState:
        topic = self._all_by_id.get(bytes(topic_id))
        if topic is None:
            raise CorruptData(f"the metadata log speaks of topic {uuids.to_text(bytes(topic_id))} before creating it")
        return topic

    def _config_record(self, record: records.ConfigRecord) -> None:
        configs = self._configs(record.resource_type, record.resource_name)
        if configs is None:
            return
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        if not configs:
            self._forget_configs(record.resource_type, record.resource_name)

    def _configs(self, resource_type: int, name: str) -> dict[str, str] | None:
        if resource_type == TOPIC_RESOURCE:
            topic = self.known_topic(name)
            return None if topic is None else self._topic_to_change(topic.topic_id).configs
        if resource_type == BROKER_RESOURCE:
            return self.broker_configs.setdefault(name, {}) if name else self.default_broker_configs
        if resource_type == MIRROR_RESOURCE:
            return self.mirror_configs.setdefault(name, {})
        return self.other_configs.setdefault((resource_type, name), {})

    def _forget_configs(self, resource_type: int, name: str) -> None:
        """The last one is gone. A mirror is there as long as it has any."""
        if resource_type == BROKER_RESOURCE:
            self.broker_configs.pop(name, None)
        elif resource_type == MIRROR_RESOURCE:
            self.mirror_configs.pop(name, None)
        else:
            self.other_configs.pop((resource_type, name), None)

    def _feature_level_record(self, record: records.FeatureLevelRecord) -> None:
        if record.feature_level:
            self.features[record.name] = record.feature_level
        else:
            self.features.pop(record.name, None)

    def _producer_ids_record(self, record: records.ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _register_broker_record(self, record: records.RegisterBrokerRecord) -> None:
        self.broker = record

    def _nothing(self, record: object) -> None:
        """A record that has no meaning for one node."""


_REPLAY: dict[str, Callable[[MetadataImage, Any], None]] = {
    "TopicRecord": MetadataImage._topic_record,
    "PartitionRecord": MetadataImage._partition_record,
    "PartitionChangeRecord": MetadataImage._partition_change_record,
    "RemoveTopicRecord": MetadataImage._remove_topic_record,
    "ConfigRecord": MetadataImage._config_record,
    "FeatureLevelRecord": MetadataImage._feature_level_record,
    "ProducerIdsRecord": MetadataImage._producer_ids_record,
    "RegisterBrokerRecord": MetadataImage._register_broker_record,
    "NoOpRecord": MetadataImage._nothing,
    "BrokerRegistrationChangeRecord": MetadataImage._nothing,
    "FenceBrokerRecord": MetadataImage._nothing,
    "UnfenceBrokerRecord": MetadataImage._nothing,
    "UnregisterBrokerRecord": MetadataImage._nothing,
    "RegisterControllerRecord": MetadataImage._nothing,
    "BeginTransactionRecord": MetadataImage._nothing,
    "EndTransactionRecord": MetadataImage._nothing,
}
