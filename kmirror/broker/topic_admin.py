"""Creating, growing and deleting topics, and raising leader epochs: the controller's part, on one node. L3.

What may live here: validation with Kafka's codes (ReplicationControlManager) and the metadata records that follow.
What must hold: every check comes before the first record; all records of one operation are one batch; nobody is told
of a change before it is on disk, and nobody is fenced by an epoch that a power cut could take back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kmirror.broker import topic_config
from kmirror.broker.metadata import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    MIRROR_STATE_TOPIC,
    OFFSETS_TOPIC,
    Registration,
    TopicState,
)
from kmirror.effects import Effects, LogId, Promise, StateRecord
from kmirror.errors import ApiError, ConfigError
from kmirror.limits import MAX_PARTITIONS_PER_REQUEST, MAX_TOPIC_NAME_LENGTH
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import cluster_metadata as records

if TYPE_CHECKING:
    from kmirror.broker.partition import Partition
    from kmirror.broker.world import World

METADATA_LOG = LogId(METADATA_TOPIC, 0)
NOT_GIVEN = -1
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


@dataclass(slots=True)
class CreateTopicSpec:
    """What CreateTopics asks for. -1 means the broker's default; `assignments` maps partition to broker ids.

    `assigned_twice`: a partition that the request gave two assignments, or None.
    """

    name: str
    partition_count: int = NOT_GIVEN
    replication_factor: int = NOT_GIVEN
    configs: dict[str, str | None] = field(default_factory=dict)
    assignments: dict[int, list[int]] = field(default_factory=dict)
    topic_id: bytes | None = None
    validate_only: bool = False
    assigned_twice: int | None = None


def name_problem(name: str) -> str | None:
    """Why `name` cannot name a topic, or None (Kafka: Topic.validate)."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"Topic name is invalid: it is longer than {MAX_TOPIC_NAME_LENGTH} characters"
    if not _LEGAL_NAME.match(name):
        return f"Topic name is invalid: '{name}' contains characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def colliding_name(name: str, others: Iterable[str]) -> str | None:
    """One of `others` that has '.' where `name` has '_', or the other way round (Kafka: Topic.hasCollision)."""
    if "." in name or "_" in name:
        plain = name.replace(".", "_")
        for other in others:
            if other.replace(".", "_") == plain:
                return other
    return None


class TopicAdmin:
    """Operations on topics. Every method returns a promise; refusals are ApiErrors inside it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._making: dict[str, Promise[TopicState]] = {}
        """Internal topics on their way."""
        self._leaving: dict[bytes, Promise[None]] = {}
        """Topics, by id, from the moment their removal is appended until their directories are renamed."""

    # -- create --------------------------------------------------------------------------------------------------

    def create(self, spec: CreateTopicSpec) -> Promise[TopicState]:
        """Settled when the topic can be produced to. With `validate_only` the topic is described, not made.

        An id that comes again (a mirror's, after its topic was deleted here) waits until the directories of its last
        life are renamed: after a crash nobody could tell them from those of the new one.
        """
        promise: Promise[TopicState] = Promise()
        leaving = None if spec.topic_id is None or spec.validate_only else self._leaving.get(spec.topic_id)
        if leaving is not None:
            leaving.then(lambda _gone: self.create(spec).then(promise.follow))
            return promise
        try:
            planned = self._plan(spec)
        except ApiError as error:
            promise.fail(error)
            return promise
        if spec.validate_only:
            planned.partitions = self._world.make_partitions(planned, range(len(planned.registrations)))
            promise.resolve(planned)
            return promise
        return self._make(planned)

    def _make(self, planned: TopicState) -> Promise[TopicState]:
        """Record it; it can be seen once that is on disk, and the topic of that name before it is withdrawn."""
        promise: Promise[TopicState] = Promise()

        def on_disk(done: Promise[None]) -> None:
            try:
                done.result()
            except ApiError as error:
                promise.fail(error)
                return
            topic = self._world.image.creating.get(planned.name)
            if topic is None or topic.topic_id != planned.topic_id:
                promise.fail(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{planned.name} was deleted meanwhile"))
                return

            def name_is_free(_gone: Promise[None]) -> None:
                self._world.publish(topic)
                promise.resolve(topic)

            self._world.withdrawing.get(planned.name, Promise.of(None)).then(name_is_free)

        self._write(self._creation_records(planned)).then(on_disk)
        return promise

    def adopt(self, topic: TopicState) -> Promise[TopicState]:
        """Make a topic live whose partition directories are there, complete and on disk, with its id, leader epochs and
        configs. Raises ApiError 17, 36 before anything is recorded."""
        self._check_name(topic.name)
        if self._world.image.known_id(topic.topic_id):
            raise ApiError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic id {uuids.to_text(topic.topic_id)} belongs to another topic"
            )
        return self._make(topic)

    def internal_configs(self, name: str) -> dict[str, str]:
        """Those that an internal topic is made with."""
        return self._checked_configs(self._internal_spec(name).configs)

    def _plan(self, spec: CreateTopicSpec) -> TopicState:
        """All checks; the topic as it would be. Raises ApiError."""
        self._check_name(spec.name)
        configs = self._checked_configs(spec.configs)
        count = self._partition_count(spec)
        if spec.topic_id is not None and self._world.image.known_id(spec.topic_id):
            raise ApiError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic id {uuids.to_text(spec.topic_id)} belongs to another topic"
            )
        planned = TopicState(spec.name, spec.topic_id or uuids.random_id(), configs=configs)
        first_epoch = self._world.image.removed_epochs.get(planned.topic_id, -1) + 1
        planned.registrations = [Registration(first_epoch, 0) for _ in range(count)]
        return planned

    def _check_name(self, name: str) -> None:
        problem = name_problem(name)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name == METADATA_TOPIC:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
        image = self._world.image
        if image.known_topic(name) is not None:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        other = colliding_name(name, (*image.topics_by_name, *image.creating))
        if other is not None:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {other} ('.' and '_' are one in metric names)",
            )

    def _checked_configs(self, configs: dict[str, str | None]) -> dict[str, str]:
        checked: dict[str, str] = {}
        for name, value in configs.items():
            if value is None:
                raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
            checked[name] = value
        try:
            topic_config.check(checked)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return checked

    def _partition_count(self, spec: CreateTopicSpec) -> int:
        if spec.assignments:
            if spec.replication_factor != NOT_GIVEN:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "A manual partition assignment was specified, but replication factor was not set to -1.",
                )
            if spec.partition_count != NOT_GIVEN:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "A manual partition assignment was specified, but numPartitions was not set to -1.",
                )
            if spec.assigned_twice is not None:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Found multiple manual partition assignments for partition {spec.assigned_twice}",
                )
            self._check_assignments(list(spec.assignments.values()))
            if sorted(spec.assignments) != list(range(len(spec.assignments))):
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
                )
            return len(spec.assignments)
        if spec.replication_factor < NOT_GIVEN or spec.replication_factor == 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if spec.partition_count < NOT_GIVEN or spec.partition_count == 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        if spec.replication_factor > 1:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {spec.replication_factor} time(s): this is one broker.",
            )
        count = spec.partition_count
        if count == NOT_GIVEN:
            count = self._world.config.integer("num.partitions")
        if count > MAX_PARTITIONS_PER_REQUEST:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{count} partitions are more than the {MAX_PARTITIONS_PER_REQUEST} that one request may create",
            )
        return count

    def _check_assignments(self, assignments: list[list[int]]) -> None:
        for brokers in assignments:
            if not brokers:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "The manual partition assignment includes an empty replica list.",
                )
            for broker in brokers:
                if broker != self._world.node_id:
                    raise ApiError(
                        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                        f"The manual partition assignment includes broker {broker}, but no such broker is registered.",
                    )
            if len(brokers) > 1:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment includes the broker {brokers[0]} more than once.",
                )

    def _creation_records(self, planned: TopicState) -> list[Any]:
        made: list[Any] = [records.TopicRecord(name=planned.name, topic_id=planned.topic_id)]
        made += [
            records.ConfigRecord(resource_type=2, resource_name=planned.name, name=name, value=value)
            for name, value in planned.configs.items()
        ]
        made += [
            self.partition_record(planned.topic_id, index, leader_epoch=registration.leader_epoch)
            for index, registration in enumerate(planned.registrations)
        ]
        return made

    def partition_record(
        self, topic_id: bytes, index: int, *, leader_epoch: int = 0, partition_epoch: int = 0
    ) -> records.PartitionRecord:
        """The whole state of a partition: this node has it."""
        node_id = self._world.node_id
        return records.PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=[node_id],
            isr=[node_id],
            leader=node_id,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            directories=[self._world.directory.identity.directory_id],
        )

    def ensure(self, name: str) -> Promise[TopicState]:
        """The topic, created when it is missing and the broker may (auto.create.topics.enable). ApiError 3, 17."""
        topic = self._world.image.topics_by_name.get(name)
        if topic is not None:
            return Promise.of(topic)
        promise: Promise[TopicState] = Promise()
        problem = name_problem(name)
        if problem is not None:
            promise.fail(ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem))
        elif name in INTERNAL_TOPICS or not self._world.config.boolean("auto.create.topics.enable"):
            promise.fail(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}"))
        else:
            return self.create(CreateTopicSpec(name))
        return promise

    def ensure_internal(self, name: str) -> Promise[TopicState]:
        """An internal topic, made when its first record is about to be; its logs open as they are used. ApiError 56."""
        topic = self._world.image.topics_by_name.get(name)
        if topic is not None:
            return Promise.of(topic)
        making = self._making.get(name)
        if making is not None:
            return making
        promise = self._making[name] = self.create(self._internal_spec(name))

        def made(_done: Promise[TopicState]) -> None:
            del self._making[name]

        promise.then(made)
        return promise

    def _internal_spec(self, name: str) -> CreateTopicSpec:
        """Partition counts and configurations as Kafka gives them (AutoTopicCreationManager)."""
        config = self._world.config
        configs: dict[str, str | None]
        if name == MIRROR_STATE_TOPIC:
            count = config.integer("mirror.state.topic.num.partitions")
            configs = {"compression.type": "producer", "retention.ms": "-1"}
        elif name == OFFSETS_TOPIC:
            count = config.integer("offsets.topic.num.partitions")
            configs = {"compression.type": "producer", "segment.bytes": config.raw("offsets.topic.segment.bytes")}
        else:
            count = config.integer("transaction.state.log.num.partitions")
            configs = {
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": config.raw("transaction.state.log.min.isr"),
                "segment.bytes": config.raw("transaction.state.log.segment.bytes"),
            }
        return CreateTopicSpec(name, count, configs={"cleanup.policy": "compact", "flush.messages": "1", **configs})

    # -- grow and delete -----------------------------------------------------------------------------------------

    def create_partitions(
        self, name: str, count: int, assignments: list[list[int]] | None = None, *, validate_only: bool = False
    ) -> Promise[None]:
        """Grow a topic to `count` partitions. Settled when the new ones can be produced to. ApiError 3, 37, 39, 145."""
        promise: Promise[None] = Promise()
        try:
            topic = self._changeable(name)
            present = len(topic.registrations)
            self._check_growth(topic, present, count, assignments)
        except ApiError as error:
            promise.fail(error)
            return promise
        if validate_only:
            promise.resolve(None)
            return promise

        def on_disk(done: Promise[None]) -> None:
            try:
                done.result()
            except ApiError as error:
                promise.fail(error)
                return
            topic.partitions.extend(self._world.make_partitions(topic, range(len(topic.partitions), count)))
            promise.resolve(None)

        self._write([self.partition_record(topic.topic_id, index) for index in range(present, count)]).then(on_disk)
        return promise

    def _check_growth(self, topic: TopicState, present: int, count: int, assignments: list[list[int]] | None) -> None:
        if count == present:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if count < present:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {present} partition(s); {count} would not be an increase.",
            )
        if count - present > MAX_PARTITIONS_PER_REQUEST:
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"at most {MAX_PARTITIONS_PER_REQUEST} partitions per request")
        if assignments is not None:
            if len(assignments) != count - present:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {count - present} additional partition(s), but only {len(assignments)} "
                    "assignment(s) were specified.",
                )
            self._check_assignments(assignments)

    def delete(self, name: str) -> Promise[None]:
        """Settled when the topic is gone for good; files go `file.delete.delay.ms` later. ApiError 3, 42, 73, 145."""
        promise: Promise[None] = Promise()
        try:
            if not self._world.config.boolean("delete.topic.enable"):
                raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
            topic = self._changeable(name)
            if topic.name == MIRROR_STATE_TOPIC:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} holds the states of all mirrors and stays")
        except ApiError as error:
            promise.fail(error)
            return promise

        def on_disk(done: Promise[None]) -> None:
            try:
                done.result()
            except ApiError as error:
                promise.fail(error)
                return
            self._world.withdraw(topic).then(lambda _gone: promise.resolve(None))

        def gone(_promise: Promise[None]) -> None:
            del self._leaving[topic.topic_id]

        self._leaving[topic.topic_id] = promise
        promise.then(gone)
        self._write([records.RemoveTopicRecord(topic_id=topic.topic_id)]).then(on_disk)
        return promise

    def _changeable(self, name: str) -> TopicState:
        topic = self._world.image.topics_by_name.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        self._world.check_not_mirrored(name)
        return topic

    # -- leader epochs -------------------------------------------------------------------------------------------

    def bump_leader_epoch(self, partition: Partition, minimum: int) -> Promise[int]:
        """An epoch above `minimum`, on disk before it is used; the present one when it is above already."""
        return self.bump_leader_epochs([(partition, minimum)])[0]

    def bump_leader_epochs(self, bumps: list[tuple[Partition, int]]) -> list[Promise[int]]:
        """As `bump_leader_epoch` for many partitions, in one batch. ApiError 3 for a topic that is gone."""
        made: list[Any] = []
        promises: list[Promise[int]] = []
        targets: list[int] = []
        for partition, minimum in bumps:
            promise: Promise[int] = Promise()
            promises.append(promise)
            topic = self._world.image.topics_by_id.get(partition.topic_id)
            if topic is None:
                targets.append(-1)
                promise.fail(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} was deleted"))
                continue
            registration = topic.registrations[partition.index]
            target = registration.leader_epoch
            if target <= minimum:
                target = minimum + 1
                made.append(
                    self.partition_record(
                        topic.topic_id,
                        partition.index,
                        leader_epoch=target,
                        partition_epoch=registration.partition_epoch + 1,
                    )
                )
            targets.append(target)

        def on_disk(done: Promise[None]) -> None:
            for (partition, _minimum), target, promise in zip(bumps, targets, promises, strict=True):
                if promise.done:
                    continue
                try:
                    done.result()
                except ApiError as error:
                    promise.fail(error)
                    continue
                partition.set_leader_epoch(target)
                promise.resolve(target)

        self._write(made).then(on_disk)
        return promises

    def _write(self, made: list[Any]) -> Promise[None]:
        """Append metadata records as one batch; settled when they, and all before them, are on disk."""
        promise: Promise[None] = Promise()
        self._world.commit(
            Effects(
                records=[StateRecord(METADATA_LOG, None, record) for record in made],
                durable=[METADATA_LOG],
                replies=[(promise, None)],
            )
        )
        return promise
