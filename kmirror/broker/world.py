"""The world: everything one broker knows and keeps, behind synchronous methods. L3.

What may live here: opening and closing the data directory in the right order, finding topics and partitions, and
handing each operation to the module that knows its rules (`topic_admin`, `config_admin`, `fetch`, `producer_ids`).
Nothing here waits: what needs a flush returns a promise.

What must hold: start replays what `commit` replayed; after an unclean stop every writable partition has a new leader
epoch before anybody is served (a mirrored one keeps its own); data reaches the disk before the checkpoints that say so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from kmirror.broker import topic_config
from kmirror.broker.chores import AtOnce, Chores, Steps
from kmirror.broker.config import BrokerConfig
from kmirror.broker.config_admin import ConfigAdmin, ConfigOp
from kmirror.broker.directory import DataDirectory
from kmirror.broker.durability import FlushPort, flush_now
from kmirror.broker.elsewhere import Elsewhere, RightHere
from kmirror.broker.metadata import (
    BROKER_RESOURCE,
    METADATA_TOPIC,
    MIRROR_RESOURCE,
    MIRROR_STATE_TOPIC,
    OFFSETS_TOPIC,
    SUPPORTED_FEATURES,
    TRANSACTIONS_TOPIC,
    MetadataImage,
    TopicState,
)
from kmirror.broker.metadata_log import MetadataSnapshots
from kmirror.broker.metadata_snapshot import ImageAtOffset
from kmirror.broker.partition import Partition, Services
from kmirror.broker.producer_ids import ProducerIdAllocator
from kmirror.broker.runtime import RecordCodec, Runtime
from kmirror.broker.storage_codes import api_error
from kmirror.broker.topic_admin import METADATA_LOG, CreateTopicSpec, TopicAdmin
from kmirror.broker.topic_config import BrokerLayers, ConfigEntry
from kmirror.clock import Clock
from kmirror.effects import Effects, LogId, Promise, StateRecord
from kmirror.errors import ApiError, DiskFull, StorageError
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import cluster_metadata as records
from kmirror.storage import checkpoints
from kmirror.storage.filesystem import FileSystem
from kmirror.storage.log import Log, LogConfig, LogMode
from kmirror.storage.space import SpaceGuard

if TYPE_CHECKING:
    from kmirror.broker.backup import Backups
    from kmirror.broker.fetch import FetchSessions
    from kmirror.broker.groups import GroupCoordinator
    from kmirror.broker.mirroring import Mirrors
    from kmirror.broker.transactions import TransactionCoordinator

log = logging.getLogger("kmirror.broker")

METADATA_LEADER_EPOCH = 1
METADATA_BATCH_BYTES = 2**31 - 1


class MirrorHooks(Protocol):
    """What the world asks of mirroring (`kmirror.broker.mirroring.Mirrors`), and tells it."""

    def recovered(self) -> None:
        """All logs are replayed: set the modes of mirrored partitions, before anybody is served."""
        ...

    def change_refusal(self, topic_name: str) -> str | None:
        """Why the topic may not be deleted, grown or trimmed now (a mirror that is not STOPPED), or None."""
        ...

    def check_configs(self, mirror: str, wanted: Mapping[str, str], changed: set[str]) -> None:
        """Raises ConfigError or ApiError when `wanted` cannot be the mirror's configuration."""
        ...

    def config_kind(self, name: str) -> int | None: ...

    def describe_configs(self, mirror: str) -> list[ConfigEntry]: ...

    def configs_changed(self, mirror: str) -> None: ...

    def topic_deleted(self, topic: TopicState) -> None: ...


class World:
    """See the module head. Made by `open`."""

    def __init__(
        self,
        fs: FileSystem,
        directory: DataDirectory,
        config: BrokerConfig,
        clock: Clock,
        flush: FlushPort,
        fatal: Callable[[BaseException], None],
        chores: Chores,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.static_config = config
        self.config = config
        self.clock = clock
        self.cluster_id = directory.identity.cluster_id
        self.node_id = directory.identity.node_id
        self.image = MetadataImage()
        self.closed = False
        self.chores = chores
        self._retaining = False
        self._services = Services(flush, clock, SpaceGuard(fs, directory.path), fatal)
        self._metadata = self._metadata_partition()
        self.runtime = Runtime(clock, self._partition_of)
        self.runtime.register(METADATA_TOPIC, _METADATA_CODEC, lambda record: self.image.replay(record.value))
        self.layers = BrokerLayers(config, self.image.default_broker_configs, {})
        self.topics = TopicAdmin(self)
        self.snapshots = MetadataSnapshots(
            self._metadata,
            self.image,
            config=config,
            clock=clock,
            chores=chores,
            image_now=lambda: ImageAtOffset(self.image, self.node_id, self.topics.partition_record),
            reserve=self._services.space.take,
        )
        self.configs = ConfigAdmin(self)
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._mirrors: Mirrors | None = None
        self._make_mirrors: Callable[[World], MirrorHooks] = _load_mirrors
        self._when_mirrors: list[Callable[[Mirrors], None]] = []
        self.producer_ids: ProducerIdAllocator
        self._fetch_sessions: FetchSessions | None = None
        self._backups: Backups | None = None
        self.elsewhere: Elsewhere = RightHere()
        """Who copies files; L4 puts somebody with a thread here."""
        self.withdrawing: dict[str, Promise[None]] = {}
        """Topics whose deletion is on disk and whose files are still in use; the name is free when it settles."""

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        config: BrokerConfig,
        clock: Clock,
        flush: FlushPort,
        *,
        fatal: Callable[[BaseException], None] | None = None,
        mirrors: Callable[[World], MirrorHooks] | None = None,
        chores: Chores | None = None,
    ) -> World:
        """Lock, identify, recover, replay. Raises ConfigError, StorageError; the lock is free again then."""
        data = DataDirectory(fs, directory, config)
        try:
            world = cls(fs, data, config, clock, flush, fatal or _nobody_listens, chores or AtOnce())
            world._make_mirrors = mirrors or _load_mirrors
            world._start()
        except BaseException:
            data.release()
            raise
        return world

    # -- start ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.runtime.replay_log(METADATA_LOG, self.snapshots.load())
        if self._metadata.log.log_end_offset == 0:
            self.directory.check_metadata_is_there()
            self._write_first_records()
        for topic in list(self.image.creating.values()):
            self.publish(topic)
        self._apply_broker_configs()
        self.producer_ids = ProducerIdAllocator(
            self.cluster_id, self.image.next_producer_id, self._take_producer_id_block
        )
        live = {f"{topic.name}-{p.index}" for topic in self.image.topics_by_name.values() for p in topic.partitions}
        live.add(f"{METADATA_TOPIC}-0")
        self.directory.end_import(self.image.known_id, self.clock.monotonic_ms())
        self.directory.find_leftovers(live, self.image.removed_ids, self.clock.monotonic_ms())
        self._look_for_missing()
        if not self.directory.clean:
            self._recover_logs()
        if OFFSETS_TOPIC in self.image.topics_by_name:
            self._groups = self._begin_groups()
        if TRANSACTIONS_TOPIC in self.image.topics_by_name:
            self._transactions = self._begin_transactions()
        if self.image.mirror_configs or MIRROR_STATE_TOPIC in self.image.topics_by_name:
            self._mirrors = self._begin_mirroring()
        if not self.directory.clean:
            self._raise_epochs()

    def _write_first_records(self) -> None:
        """A new cluster: its feature levels and this node, flushed before anything refers to them."""
        first: list[Any] = [
            *(
                records.FeatureLevelRecord(name=name, feature_level=highest)
                for name, (_lowest, highest) in SUPPORTED_FEATURES.items()
            ),
            records.RegisterBrokerRecord(
                broker_id=self.node_id,
                incarnation_id=uuids.random_id(),
                broker_epoch=0,
                rack=self.config.raw("broker.rack"),
                end_points=[
                    records.BrokerEndpoint(name=listener.name, host=listener.host, port=listener.port)
                    for listener in self.config.advertised_listeners or self.config.listeners
                ],
                features=[
                    records.BrokerFeature(name=name, min_supported_version=lowest, max_supported_version=highest)
                    for name, (lowest, highest) in SUPPORTED_FEATURES.items()
                ],
                fenced=False,
                log_dirs=[self.directory.identity.directory_id],
            ),
        ]
        self.commit(Effects(records=[StateRecord(METADATA_LOG, None, record) for record in first]))
        flush_now(self._metadata.log)

    def _look_for_missing(self) -> None:
        """A partition's directory that somebody removed: it begins anew at 0, but not without a word."""
        for partition in self.partitions():
            end = self.directory.recovery_points.offsets.get((partition.topic_name, partition.index), 0)
            if end and not partition.is_on_disk:
                log.error(
                    "%s has no directory, the last checkpoint knew of %d offsets: it is empty now", partition, end
                )

    def _recover_logs(self) -> None:
        """After an unclean stop every log on disk is opened, so that what it says is known and flushed."""
        for partition in self.partitions():
            if partition.is_on_disk:
                with suppress(ApiError):  # the partition has said it, and says it to its clients
                    flush_now(partition.log)
        flush_now(self._metadata.log)

    def _raise_epochs(self) -> None:
        """Clients may hold offsets that the crash took back: a new epoch makes them ask (KIP-320)."""
        writable = [
            (partition, self.image.topics_by_id[partition.topic_id].registrations[partition.index].leader_epoch)
            for partition in self.partitions()
            if partition.mode is LogMode.WRITABLE and not partition.internal
        ]
        if writable:
            promises = self.topics.bump_leader_epochs(writable)
            flush_now(self._metadata.log)
            for (partition, minimum), _promise in zip(writable, promises, strict=True):
                partition.set_leader_epoch(minimum + 1)

    # -- coordinators and mirroring ------------------------------------------------------------------------------
    # Loaded at start when they have state, else at first use: a broker that does without them never pays.

    @property
    def groups(self) -> GroupCoordinator:
        """Consumer groups and their committed offsets."""
        if self._groups is None:
            self._groups = self._begin_groups()
        return self._groups

    @property
    def groups_if_loaded(self) -> GroupCoordinator | None:
        """For whoever only has something to tell them."""
        return self._groups

    def _begin_groups(self) -> GroupCoordinator:
        from kmirror.broker.groups import GroupCoordinator

        groups = self._groups = GroupCoordinator(self)
        groups.recovered()
        return groups

    @property
    def transactions(self) -> TransactionCoordinator:
        """Transactional producers and their transactions."""
        if self._transactions is None:
            self._transactions = self._begin_transactions()
        return self._transactions

    @property
    def transactions_if_loaded(self) -> TransactionCoordinator | None:
        """For whoever only has something to tell them."""
        return self._transactions

    def _begin_transactions(self) -> TransactionCoordinator:
        from kmirror.broker.transactions import TransactionCoordinator

        transactions = self._transactions = TransactionCoordinator(self)
        transactions.recovered()
        return transactions

    @property
    def mirrors(self) -> Mirrors:
        """Mirroring."""
        if self._mirrors is None:
            self._mirrors = self._begin_mirroring()
        return self._mirrors

    def when_mirrors(self, callback: Callable[[Mirrors], None]) -> None:
        """Call `callback(mirrors)` as soon as mirroring is in use; at once when it is. L4 starts the links then."""
        if self._mirrors is None:
            self._when_mirrors.append(callback)
        else:
            callback(self._mirrors)

    def _begin_mirroring(self) -> Mirrors:
        mirrors = self._mirrors = cast("Mirrors", self._make_mirrors(self))
        mirrors.recovered()
        callbacks, self._when_mirrors = self._when_mirrors, []
        for callback in callbacks:
            callback(mirrors)
        return mirrors

    # -- logs ----------------------------------------------------------------------------------------------------

    def _metadata_partition(self) -> Partition:
        config = LogConfig(
            segment_bytes=self.static_config.integer("metadata.log.segment.bytes"),
            segment_ms=self.static_config.integer("metadata.log.segment.ms"),
            max_message_bytes=METADATA_BATCH_BYTES,
            retention_ms=-1,
            flush_messages=1,
        )

        def open_log() -> Log:
            return self._open_log(METADATA_TOPIC, 0, uuids.METADATA_TOPIC_ID, config)

        return Partition(
            METADATA_TOPIC,
            uuids.METADATA_TOPIC_ID,
            0,
            METADATA_LEADER_EPOCH,
            services=self._services,
            open_log=open_log,
            exists=lambda: self.fs.exists(self.directory.partition_path(METADATA_TOPIC, 0)),
            internal=True,
        )

    def make_partitions(self, topic: TopicState, indexes: Iterable[int]) -> list[Partition]:
        """Partition objects for registered partitions. Their logs open at first use."""
        return [self._make_partition(topic, index) for index in indexes]

    def _make_partition(self, topic: TopicState, index: int) -> Partition:
        def open_log() -> Log:
            config = topic_config.log_config(topic.configs, self.layers)
            return self._open_log(topic.name, index, topic.topic_id, config)

        return Partition(
            topic.name,
            topic.topic_id,
            index,
            topic.registrations[index].leader_epoch,
            services=self._services,
            open_log=open_log,
            exists=lambda: self.fs.exists(self.directory.partition_path(topic.name, index)),
            internal=topic.internal,
            cleaned_up_to=self.directory.cleaned_up_to.offsets.get((topic.name, index), -1),
        )

    def _open_log(self, name: str, index: int, topic_id: bytes, config: LogConfig) -> Log:
        now_ms = self.clock.monotonic_ms()
        key = (name, index)
        if self._backups is not None:
            self._backups.preserve(key)
        path = self.directory.claim(name, index, topic_id, self.image.removed_ids, now_ms)
        opened = Log.open(
            self.fs,
            path,
            config=config,
            clock=self.clock,
            clean=self.directory.clean,
            recovery_point=self.directory.recovery_points.offsets.get(key, 0),
            log_start_offset=self.directory.log_starts.offsets.get(key, 0),
            names=1 if self._backups is None else self._backups.names_of_active(key),
        )
        for note in opened.report.notes:
            log.warning("%s-%d: %s", name, index, note)
        return opened

    # -- finding -------------------------------------------------------------------------------------------------

    def partition(self, topic_name: str, index: int) -> Partition:
        """Raises ApiError 3."""
        topic = self.image.topics_by_name.get(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic_name}-{index}")
        return topic.partitions[index]

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        """Raises ApiError 100 for an unknown topic id, 3 for an unknown partition."""
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {uuids.to_text(topic_id)}")
        if not 0 <= index < len(topic.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{index}")
        return topic.partitions[index]

    @property
    def metadata_offset(self) -> int:
        """Offset of the newest metadata record; grows with every change of the image."""
        return self._metadata.log_end_offset - 1

    def partitions(self) -> Iterable[Partition]:
        """All data and internal partitions, not the metadata log."""
        for topic in self.image.topics_by_name.values():
            yield from topic.partitions

    def all_partitions(self) -> Iterable[Partition]:
        """The metadata log's, and `partitions`."""
        yield self._metadata
        yield from self.partitions()

    def _partition_of(self, log_id: LogId) -> Partition:
        if log_id == METADATA_LOG:
            return self._metadata
        return self.partition(log_id.topic, log_id.partition)

    # -- operations ----------------------------------------------------------------------------------------------

    def commit(self, effects: Effects) -> bool:
        """`Runtime.commit`."""
        return self.runtime.commit(effects)

    def create_topic(self, spec: CreateTopicSpec) -> Promise[TopicState]:
        return self.topics.create(spec)

    def ensure_topic(self, name: str) -> Promise[TopicState]:
        return self.topics.ensure(name)

    def ensure_internal_topic(self, name: str) -> Promise[TopicState]:
        return self.topics.ensure_internal(name)

    def delete_topic(self, name: str) -> Promise[None]:
        return self.topics.delete(name)

    def create_partitions(
        self, name: str, count: int, assignments: list[list[int]] | None = None, *, validate_only: bool = False
    ) -> Promise[None]:
        return self.topics.create_partitions(name, count, assignments, validate_only=validate_only)

    def bump_leader_epoch(self, partition: Partition, minimum: int) -> Promise[int]:
        return self.topics.bump_leader_epoch(partition, minimum)

    def alter_configs(
        self, resource_type: int, name: str, ops: list[ConfigOp], *, replace: bool = False, validate_only: bool = False
    ) -> Promise[None]:
        return self.configs.alter(resource_type, name, ops, replace=replace, validate_only=validate_only)

    def describe_configs(self, resource_type: int, name: str, keys: Iterable[str] | None = None) -> list[ConfigEntry]:
        return self.configs.describe(resource_type, name, keys)

    def set_feature(self, name: str, level: int) -> Promise[None]:
        """Record a feature level; the caller has checked that it is supported."""
        promise: Promise[None] = Promise()
        record = records.FeatureLevelRecord(name=name, feature_level=level)
        self.commit(Effects(records=[StateRecord(METADATA_LOG, None, record)], replies=[(promise, None)]))
        return promise

    def delete_records(self, topic_name: str, index: int, offset: int) -> int:
        """Raise the log start to `offset` (-1: high watermark), durably. Returns the low watermark.

        Raises ApiError 1, 3, 17, 44, 56, 145; DiskFailure.
        """
        partition = self.partition(topic_name, index)
        self.check_not_mirrored(topic_name)
        low_watermark = partition.delete_records(offset)
        try:
            self.write_log_starts()
        except StorageError as error:  # the start is raised; the next checkpoint says so too
            raise api_error(error) from error
        return low_watermark

    def check_not_mirrored(self, topic_name: str) -> None:
        """Raises ApiError 145 while a mirror has the topic and it is not STOPPED."""
        reason = None if self._mirrors is None else self._mirrors.change_refusal(topic_name)
        if reason is not None:
            raise ApiError(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, reason)

    @property
    def fetch_sessions(self) -> FetchSessions:
        if self._fetch_sessions is None:
            from kmirror.broker.fetch import FetchSessions  # not needed before the first Fetch

            slots = self.config.integer("max.incremental.fetch.session.cache.slots")
            self._fetch_sessions = FetchSessions(slots, self.clock)
        return self._fetch_sessions

    # -- called by the modules that decide -----------------------------------------------------------------------

    def publish(self, topic: TopicState) -> None:
        """The topic's records are on disk."""
        topic.partitions = self.make_partitions(topic, range(len(topic.registrations)))
        self.image.publish(topic)

    def withdraw(self, topic: TopicState) -> Promise[None]:
        """The topic's removal is on disk: fail whoever waits, rename the directories. Settled when that is done."""
        gone: Promise[None] = Promise()
        self.withdrawing[topic.name] = gone
        for partition in topic.partitions:
            partition.withdraw()
        self.chores.run(self._let_go(topic, gone))
        for told in (self._groups, self._transactions, self._mirrors):
            if told is not None:
                told.topic_deleted(topic)
        return gone

    def _let_go(self, topic: TopicState, gone: Promise[None]) -> Steps:
        """Close the deleted topic's logs; when the last one is, rename the directories."""
        left = len(topic.partitions)

        def closed(_done: Promise[None]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.chores.run(self._discard(topic, gone))

        for partition in topic.partitions:
            partition.let_go().then(closed)
            yield

    def _discard(self, topic: TopicState, gone: Promise[None]) -> Steps:
        delay_ms = int(topic_config.effective("file.delete.delay.ms", topic.configs, self.layers)[0] or 0)
        due_ms = self.clock.monotonic_ms() + delay_ms
        renamed = False
        try:
            for partition in topic.partitions:
                renamed = self.directory.discard(topic.name, partition.index, due_ms) or renamed
                yield
            if renamed:
                self.directory.sync()
        except DiskFull as error:
            log.error("the directories of deleted topic %s stay until the next start: %s", topic.name, error)
        if self.withdrawing.get(topic.name) is gone:
            del self.withdrawing[topic.name]
        gone.resolve(None)

    def configs_changed(self, resource_type: int, name: str) -> None:
        if resource_type == MIRROR_RESOURCE:
            self.mirrors.configs_changed(name)
            return
        if resource_type == BROKER_RESOURCE:
            self._apply_broker_configs()
        changed = (
            self.image.topics_by_name.values()
            if resource_type == BROKER_RESOURCE
            else [self.image.topics_by_name[name]]
        )
        for topic in changed:
            self._apply_topic_configs(topic)

    def _apply_broker_configs(self) -> None:
        this_node = self.image.broker_configs.get(str(self.node_id), {})
        self.layers = BrokerLayers(self.static_config, self.image.default_broker_configs, this_node)
        self.config = self.layers.effective()

    def _apply_topic_configs(self, topic: TopicState) -> None:
        config = topic_config.log_config(topic.configs, self.layers)
        for partition in topic.partitions:
            if partition.opened_log is not None:
                partition.apply_config(config)

    def _take_producer_id_block(self, end: int) -> Promise[None]:
        promise: Promise[None] = Promise()
        record = records.ProducerIdsRecord(broker_id=self.node_id, broker_epoch=0, next_producer_id=end)
        self.commit(Effects(records=[StateRecord(METADATA_LOG, None, record)], replies=[(promise, None)]))
        return promise

    # -- time and end --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Periodic work: due timers, removal of deleted directories, `flush.ms`."""
        self.runtime.fire_timers()
        now_ms = self.clock.monotonic_ms()
        due = self.directory.due_removals(now_ms)
        if due:
            self.chores.run(self.directory.remove(due))
        self.snapshots.tick()
        for partition in self.partitions():
            partition.flush_if_overdue(now_ms)

    def apply_retention(self) -> None:
        """Every log.retention.check.interval.ms: begin to drop old segments, of logs that are not open yet as well."""
        if not self._retaining:
            self._retaining = True
            self.chores.run(self._retain())

    def _retain(self) -> Steps:
        count = 0
        try:
            for partition in list(self.partitions()):
                if not partition.deleted and partition.is_on_disk:
                    try:
                        count += partition.apply_retention()
                    except ApiError as error:
                        log.error("retention of %s: %s", partition, error.message)
                yield
        finally:
            self._retaining = False
        if count:
            log.info("retention dropped %d segments", count)

    def expire_producers(self) -> int:
        """Forget producers that were idle for producer.id.expiration.ms. Returns how many."""
        now_ms, expiration_ms = self.clock.time_ms(), self.config.integer("producer.id.expiration.ms")
        opened = (partition.opened_log for partition in self.partitions())
        return sum(log.producers.remove_expired(now_ms, expiration_ms) for log in opened if log is not None)

    @property
    def backups(self) -> Backups:
        """Backups of the data directory."""
        if self._backups is None:
            from kmirror.broker.backup import Backups  # most brokers make none in their first days

            self._backups = Backups(self)
        return self._backups

    def checkpoints_of_a_copy(self) -> dict[str, dict[tuple[str, int], int]]:
        """What the checkpoints (file name, offsets) would be if all that there is now were on disk."""
        data = self.directory
        return {
            checkpoints.RECOVERY_POINT_FILE: self._offsets(data.recovery_points.offsets, _end),
            checkpoints.LOG_START_FILE: self._log_starts(),
            checkpoints.HIGH_WATERMARK_FILE: self._high_watermarks(),
            checkpoints.CLEANER_FILE: self._cleaned_up_to(),
        }

    def write_checkpoints(self) -> None:
        """Recovery points, log starts, high watermarks and how far logs are compacted, every minute. StorageError."""
        checkpoint = self.directory.recovery_points
        checkpoint.write(self._offsets(checkpoint.offsets, _flushed))
        self.write_log_starts()
        self.directory.high_watermarks.write(self._high_watermarks())
        self.write_cleaned_up_to()

    def _high_watermarks(self) -> dict[tuple[str, int], int]:
        """Of data partitions only, as in Kafka: the quorum decides about the metadata log's."""
        offsets = self._offsets(self.directory.high_watermarks.offsets, _committed)
        offsets.pop((METADATA_TOPIC, 0), None)
        return offsets

    def write_cleaned_up_to(self) -> None:
        """How far each log is compacted. Raises StorageError."""
        self.directory.cleaned_up_to.write(self._cleaned_up_to())

    def _cleaned_up_to(self) -> dict[tuple[str, int], int]:
        found = {(partition.topic_name, partition.index): partition.cleaned_up_to for partition in self.partitions()}
        return {key: offset for key, offset in found.items() if offset >= 0}

    def write_log_starts(self) -> None:
        self.directory.log_starts.write(self._log_starts())

    def _log_starts(self) -> dict[tuple[str, int], int]:
        starts = self._offsets(self.directory.log_starts.offsets, _start)
        return {key: offset for key, offset in starts.items() if offset}

    def _offsets(self, before: Mapping[tuple[str, int], int], of: Callable[[Log], int]) -> dict[tuple[str, int], int]:
        """One value per partition: of its log when that is open, else what the last checkpoint said."""
        offsets: dict[tuple[str, int], int] = {}
        for partition in self.all_partitions():
            key = (partition.topic_name, partition.index)
            opened = partition.opened_log
            value = before.get(key, 0) if opened is None else of(opened)
            if value or opened is not None:
                offsets[key] = value
        return offsets

    def close(self, *, clean: bool = True) -> None:
        """Flush and close every log; `clean` leaves the mark that saves the next start a recovery. DiskFailure."""
        if self.closed:
            return
        self.closed = True
        if self._backups is not None:
            self._backups.close()
        try:
            if clean:
                for partition in self.all_partitions():
                    if partition.opened_log is not None:
                        flush_now(partition.opened_log)
                self.write_checkpoints()
            for partition in self.all_partitions():
                if partition.opened_log is not None:
                    partition.opened_log.close(clean=clean)
            if clean and (self.directory.clean or not any(partition.is_damaged for partition in self.partitions())):
                self.directory.mark_clean()  # a log that could not be opened still has its recovery to come
        finally:
            self.directory.release()


def _flushed(log: Log) -> int:
    return log.flushed_offset


def _committed(log: Log) -> int:
    """The high watermark (`Partition`), also while closing."""
    return log.flushed_offset if log.config.flush_messages <= 1 else log.log_end_offset


def _end(log: Log) -> int:
    return log.log_end_offset


def _start(log: Log) -> int:
    return log.log_start_offset


def _encode_metadata(_key: object, value: Any) -> tuple[bytes | None, bytes | None]:
    return None, records.encode_metadata(value)


def _decode_metadata(_key: bytes | None, value: bytes | None) -> tuple[None, Any]:
    return None, records.decode_metadata(value or b"")


_METADATA_CODEC = RecordCodec(_encode_metadata, _decode_metadata)


def _nobody_listens(error: BaseException) -> None:
    """Without a `fatal` callback the error that is raised after it is all there is."""
    log.critical("the disk failed: %s", error)


def _load_mirrors(world: World) -> MirrorHooks:
    from kmirror.broker.mirroring import Mirrors

    return Mirrors(world)
