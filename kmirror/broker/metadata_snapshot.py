"""What a snapshot of the metadata says: the image as records, at one offset, while it goes on changing. L3.

A snapshot is replayed by the same code as the log (`MetadataImage.replay`), so it may hold only record types that the
log may hold; Kafka 4.4 decodes all of them. What is the fruit of records that are no longer there is written as records
that bear it again: a removed topic as its creation, one partition of its highest leader epoch, and its removal.

What must hold: every attribute of the image that replay changes comes back (a test compares them all). Writing takes
many turns of the loop, and none of it copies the whole image: `ImageAtOffset` notes which topics it has still to
write, and copies one only when it is about to change before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kmirror.broker.metadata import (
    BROKER_RESOURCE,
    METADATA_VERSION_FEATURE,
    MIRROR_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
    TopicState,
)
from kmirror.protocol import uuids
from kmirror.protocol.internal import cluster_metadata as records

PartitionRecordOf = Callable[..., records.PartitionRecord]
"""`TopicAdmin.partition_record`."""


class _TopicThen(NamedTuple):
    """A topic as it was."""

    name: str
    topic_id: bytes
    epochs: list[tuple[int, int]]
    """(leader epoch, partition epoch) by partition."""
    configs: dict[str, str]


class ImageAtOffset:
    """The image as it is now. Go through `records` once, with pauses at will, and `close` it in any case."""

    def __init__(self, image: MetadataImage, node_id: int, partition_record: PartitionRecordOf) -> None:
        self._image = image
        self._partition_record = partition_record
        self._before = list(_features(image))
        self._after = [*_configs(image), *_producer_ids(image, node_id)]
        self._removed = list(image.removed_epochs.items())
        self._topics: dict[bytes, TopicState | _TopicThen] = {topic.topic_id: topic for topic in image.all_topics()}
        image.before_change = self._keep

    def close(self) -> None:
        self._image.before_change = None

    def _keep(self, topic: TopicState) -> None:
        if self._topics.get(topic.topic_id) is topic:
            self._topics[topic.topic_id] = _then(topic)

    def records(self) -> Iterator[Any]:
        """In Kafka's order (MetadataImage.write): features, brokers, topics, configs, producer ids."""
        yield from self._before
        for topic_id, epoch in self._removed:
            yield from self._removed_topic(topic_id, epoch)
        for topic_id in list(self._topics):
            topic = self._topics.pop(topic_id)
            yield from self._topic(_then(topic) if isinstance(topic, TopicState) else topic)
        yield from self._after

    def _topic(self, topic: _TopicThen) -> Iterator[Any]:
        yield records.TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for index, (leader_epoch, partition_epoch) in enumerate(topic.epochs):
            yield self._partition_record(
                topic.topic_id, index, leader_epoch=leader_epoch, partition_epoch=partition_epoch
            )
        for name, value in topic.configs.items():
            yield records.ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)

    def _removed_topic(self, topic_id: bytes, epoch: int) -> Iterator[Any]:
        """They come before the topics that are there: one of these may have the same id again."""
        yield records.TopicRecord(name=f"removed-{uuids.to_text(topic_id)}", topic_id=topic_id)
        if epoch >= 0:
            yield self._partition_record(topic_id, 0, leader_epoch=epoch, partition_epoch=0)
        yield records.RemoveTopicRecord(topic_id=topic_id)


def _then(topic: TopicState) -> _TopicThen:
    epochs = [(registration.leader_epoch, registration.partition_epoch) for registration in topic.registrations]
    return _TopicThen(topic.name, topic.topic_id, epochs, topic.configs.copy())


def _features(image: MetadataImage) -> Iterator[Any]:
    """Kafka wants metadata.version first: it says how the rest is read."""
    for name, level in sorted(image.features.items(), key=lambda item: item[0] != METADATA_VERSION_FEATURE):
        yield records.FeatureLevelRecord(name=name, feature_level=level)
    if image.broker is not None:
        yield image.broker


def _configs(image: MetadataImage) -> Iterator[Any]:
    resources = [(BROKER_RESOURCE, "", image.default_broker_configs)]
    resources += [(BROKER_RESOURCE, name, configs) for name, configs in image.broker_configs.items()]
    resources += [(MIRROR_RESOURCE, name, configs) for name, configs in image.mirror_configs.items()]
    resources += [(kind, name, configs) for (kind, name), configs in image.other_configs.items()]
    for kind, resource, configs in resources:
        for name, value in configs.items():
            yield records.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)


def _producer_ids(image: MetadataImage, node_id: int) -> Iterator[Any]:
    if image.next_producer_id >= 0:
        yield records.ProducerIdsRecord(broker_id=node_id, broker_epoch=0, next_producer_id=image.next_producer_id)
