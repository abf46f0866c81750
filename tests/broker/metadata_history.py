"""Random but valid histories of metadata records, and what an image says, for comparing two of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kmirror.broker.metadata import MIRROR_RESOURCE, MetadataImage, TopicState
from kmirror.protocol.internal import cluster_metadata as records

TOPIC_ATTRIBUTES = {"topics_by_name", "topics_by_id", "creating", "_all_by_id"}


def facts(image: MetadataImage) -> dict[str, Any]:
    """Every attribute of the image, also those that somebody adds later; topics by name, whether published or not."""
    said = {name: _copy(value) for name, value in vars(image).items() if name not in TOPIC_ATTRIBUTES}
    del said["before_change"]
    said["removed_epochs"] = list(image.removed_epochs.items())  # in order: the oldest is forgotten first
    said["topics"] = {topic.name: _topic(topic) for topic in image.all_topics()}
    said["known names"] = {*image.topics_by_name, *image.creating}
    return said


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return set(value) if isinstance(value, set) else value


def _topic(topic: TopicState) -> Any:
    return topic.topic_id, [(r.leader_epoch, r.partition_epoch) for r in topic.registrations], dict(topic.configs)


class History:
    """An endless one; each step is the records of one commit."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topics: dict[bytes, tuple[str, list[int]]] = {}
        self.removed: list[bytes] = []
        self.configs: set[tuple[int, str, str]] = set()
        self.last_producer_id = 0

    def step(self, image: MetadataImage) -> list[Any]:
        made = self._step()
        for record in made:
            image.replay(record)
        return made

    def _step(self) -> list[Any]:
        return list(
            self.chance.choices(
                [self.create, self.grow, self.raise_epoch, self.change, self.remove, self.configure, self.other],
                [8, 3, 5, 2, 3, 8, 3],
            )[0]()
        )

    def create(self) -> Iterator[Any]:
        again = [topic_id for topic_id in self.removed if topic_id not in self.topics]
        topic_id = self.chance.choice(again) if again and self.chance.random() < 0.3 else self.chance.randbytes(16)
        name = f"t{self.chance.getrandbits(32):x}"
        self.topics[topic_id] = (name, [])
        yield records.TopicRecord(name=name, topic_id=topic_id)
        for index in range(self.chance.randint(1, 4)):
            yield self._partition(topic_id, index, self.chance.randint(0, 3))

    def _partition(self, topic_id: bytes, index: int, leader_epoch: int) -> records.PartitionRecord:
        epochs = self.topics[topic_id][1]
        epochs[index:] = [leader_epoch]
        partition_epoch = self.chance.randint(0, 9)
        return records.PartitionRecord(
            partition_id=index, topic_id=topic_id, leader_epoch=leader_epoch, partition_epoch=partition_epoch
        )

    def _some(self) -> bytes | None:
        return self.chance.choice(list(self.topics)) if self.topics else None

    def grow(self) -> Iterator[Any]:
        if (topic_id := self._some()) is not None:
            yield self._partition(topic_id, len(self.topics[topic_id][1]), 0)

    def raise_epoch(self) -> Iterator[Any]:
        if (topic_id := self._some()) is not None:
            epochs = self.topics[topic_id][1]
            index = self.chance.randrange(len(epochs))
            kept = epochs[index + 1 :]
            yield self._partition(topic_id, index, epochs[index] + self.chance.randint(1, 5))
            epochs += kept

    def change(self) -> Iterator[Any]:
        if (topic_id := self._some()) is not None:
            index = self.chance.randrange(len(self.topics[topic_id][1]))
            yield records.PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=1)

    def remove(self) -> Iterator[Any]:
        if (topic_id := self._some()) is not None:
            del self.topics[topic_id]
            self.removed.append(topic_id)
            yield records.RemoveTopicRecord(topic_id=topic_id)

    def configure(self) -> Iterator[Any]:
        topic_id = self._some()
        names = [self.topics[topic_id][0]] if topic_id is not None else []
        kind, resource = self.chance.choice(
            [(4, ""), (4, "1"), (4, "2"), (MIRROR_RESOURCE, "m"), (MIRROR_RESOURCE, "n"), (32, "group")]
            + [(2, name) for name in names] * 6
        )
        name = self.chance.choice(["a", "b", "c"])
        value = self.chance.choice([None, "1", "zwei", "ü" * 20])
        yield records.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)

    def other(self) -> Iterator[Any]:
        self.last_producer_id += 1000
        yield self.chance.choice(
            [
                records.FeatureLevelRecord(name="metadata.version", feature_level=self.chance.randint(30, 33)),
                records.FeatureLevelRecord(name="mirror.version", feature_level=self.chance.randint(0, 1)),
                records.ProducerIdsRecord(broker_id=1, next_producer_id=self.last_producer_id),
                records.RegisterBrokerRecord(broker_id=1, broker_epoch=self.chance.randint(0, 99), rack="r"),
                records.NoOpRecord(),
            ]
        )
