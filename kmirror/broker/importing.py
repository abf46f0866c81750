"""Taking over partition directories that an Apache Kafka (or another kmirror) wrote, while no broker runs. L3.

Each topic goes through the same steps: copy its files, open the copies as after a stop of the kind that the source had,
check every batch, close them, then record the topic. Sources are only read.

What must hold: a partition directory is complete and on disk, with its line in the checkpoints, before the metadata
records that make it live are appended; those of one topic are one batch, so a topic is there whole or not at all. What
is being made is listed in `import-unfinished` before it is begun (`DataDirectory.announce_import`), so that the next
start removes what a crash left, whatever the point. The leader epoch of a partition that was taken over lies above all
that its log and its old cluster's metadata know: the old cluster may live on, and may give those out for other records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kmirror.broker import topic_config, transactions
from kmirror.broker.config import BrokerConfig
from kmirror.broker.directory import METADATA_DIRECTORY, is_taken
from kmirror.broker.durability import InlineFlush
from kmirror.broker.import_plan import IMPORTED_INTERNALLY, Destination, Planner, TopicPlan
from kmirror.broker.kafka_directory import KafkaDirectory, SourcePartition
from kmirror.broker.kafka_metadata import KafkaMetadata, read_metadata
from kmirror.broker.metadata import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    Registration,
    TopicState,
)
from kmirror.broker.world import World
from kmirror.clock import Clock
from kmirror.errors import ApiError, ConfigError, CorruptData, DecodeError, DiskFailure, DiskFull
from kmirror.protocol import uuids
from kmirror.protocol.internal import consumer_offsets
from kmirror.protocol.records import BatchHeader, read_records
from kmirror.storage import checkpoints, whole_check
from kmirror.storage.filesystem import FileSystem
from kmirror.storage.flush import FACTS_FILE
from kmirror.storage.log import Log
from kmirror.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    file_name,
    offset_in,
)

_WAY_ON = "Restore it from another replica, or leave the topic out (--topics)"
_NAMED = 20
"""Topics that one note names."""


class Progress(Protocol):
    """Told how it goes on, in bytes: each is copied once and checked once."""

    def begin(self, total_bytes: int) -> None: ...

    def advance(self, topic: str, size_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """`wants(topic)`: which topics; `settings`: topic configs by topic, over what is known of it."""

    directories: Sequence[str]
    wants: Callable[[str], bool] = lambda name: True
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class ImportReport:
    """`passed_over`: (path, why) of directories that are not imported; `notes` are about all topics together."""

    topics: list[TopicPlan] = field(default_factory=list)
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def refused(self) -> list[TopicPlan]:
        return [topic for topic in self.topics if topic.refusal is not None]


def plan_import(fs: FileSystem, directory: str, request: ImportRequest) -> ImportReport:
    """What `run_import` would do, as far as can be said without reading the logs. Changes nothing.

    Raises ConfigError, StorageLocked, CorruptData, DiskFailure.
    """
    sources = _open_sources(fs, request.directories, directory)
    held = None
    try:
        if not _may_be_directory(fs, directory):
            raise ConfigError(f"{directory} cannot be used as the data directory: it is a file")
        held = fs.lock_to_read(f"{directory}/{checkpoints.LOCK_FILE}")
        report, planner = _prepared(fs, sources, _destination_now(fs, directory), request, _unopened_configs)
        report.topics = planner.plan(request.wants)
        _measure(fs, report)
        return report
    finally:
        for held_lock in (*sources, *([held] if held is not None else ())):
            held_lock.release()


def run_import(
    fs: FileSystem,
    directory: str,
    config: BrokerConfig,
    clock: Clock,
    request: ImportRequest,
    progress: Progress | None = None,
) -> ImportReport:
    """Import into the data directory `directory`, which is made if need be.

    A topic that cannot be imported has a `refusal`, and nothing of it stays. Raises ConfigError, StorageLocked,
    CorruptData when the destination or a whole source cannot be used, DiskFailure.
    """
    sources = _open_sources(fs, request.directories, directory)
    try:
        world = World.open(fs, directory, config, clock, InlineFlush(at_once=True))
        try:
            report = _Import(world, progress or _Silent()).run(sources, request)
        except ConfigError:
            world.close(clean=True)
            raise
        except BaseException:
            world.close(clean=False)  # as after a crash: the next start removes what is unfinished
            raise
        world.close(clean=True)
        return report
    finally:
        for source in sources:
            source.release()


class _Silent:
    def begin(self, total_bytes: int) -> None:
        return None

    def advance(self, topic: str, size_bytes: int) -> None:
        return None


# --- before anything is done ------------------------------------------------------------------------------------


def _open_sources(fs: FileSystem, directories: Sequence[str], destination: str) -> list[KafkaDirectory]:
    sources: list[KafkaDirectory] = []
    try:
        for path in directories:
            if path.rstrip("/") == destination.rstrip("/"):
                raise ConfigError(f"{path} is the data directory that is imported into")
            if destination.startswith(f"{path.rstrip('/')}/"):
                raise ConfigError(f"{destination} lies in {path}, in which nothing is written: name another --data-dir")
            if any(path.rstrip("/") == source.path for source in sources):
                raise ConfigError(f"{path} is named twice")
            sources.append(KafkaDirectory.open(fs, path))
        ids = {source.cluster_id: source.path for source in sources if source.cluster_id is not None}
        if len(ids) > 1:
            texts = ", ".join(f"{path} ({cluster_id})" for cluster_id, path in ids.items())
            raise ConfigError(f"these directories are of different clusters: {texts}. Import one after the other")
        if not any(source.topics or source.unreadable or source.metadata_path for source in sources):
            raise ConfigError(f"{', '.join(directories)}: no TOPIC-PARTITION directory is in there")
    except BaseException:
        for source in sources:
            source.release()
        raise
    return sources


def _prepared(
    fs: FileSystem,
    sources: list[KafkaDirectory],
    destination: Destination,
    request: ImportRequest,
    internal_configs: Callable[[str], dict[str, str]],
) -> tuple[ImportReport, Planner]:
    report = ImportReport()
    for source in sources:
        report.passed_over += source.passed_over
        report.passed_over += [
            (f"{source.path}/{name}-*", "kept by the other cluster for itself; kmirror makes its own")
            for name in sorted((source.topics.keys() & INTERNAL_TOPICS).difference(IMPORTED_INTERNALLY))
        ]
        report.notes += source.notes
        if not source.clean:
            report.notes.append(
                f"{source.path} was not stopped cleanly, or is a copy without its files: a torn end of a log is cut "
                "from the copy"
            )
    metadata = _newest_metadata(fs, sources, report)
    if metadata is not None:
        _note_absent(metadata, sources, request, report)
    planner = Planner(sources, metadata, destination, settings=request.settings, internal_configs=internal_configs)
    return report, planner


def _note_absent(
    metadata: KafkaMetadata, sources: list[KafkaDirectory], request: ImportRequest, report: ImportReport
) -> None:
    """Topics of which no partition at all is there: nobody shall think that they came over. A kmirror's are planned."""
    if any(source.is_kmirrors for source in sources):
        return
    there = {name for source in sources for name in (*source.topics, *source.unreadable)} | INTERNAL_TOPICS
    absent = sorted(name for name in metadata.topics.keys() - there if request.wants(name))
    if absent:
        named = ", ".join(absent[:_NAMED]) + (", ..." if len(absent) > _NAMED else "")
        report.notes.append(
            f"{len(absent)} topics of the cluster are in none of these directories ({named}): other disks or brokers "
            "have them"
        )


def _newest_metadata(fs: FileSystem, sources: list[KafkaDirectory], report: ImportReport) -> KafkaMetadata | None:
    """Of the sources that have any: all are of one cluster."""
    newest: KafkaMetadata | None = None
    for source in sources:
        if source.metadata_path is None:
            continue
        try:
            found = read_metadata(fs, source.metadata_path)
        except CorruptData as error:
            report.notes.append(f"topics' settings cannot be read: {error}")
            continue
        if found.damage is not None:
            report.notes.append(f"the metadata ends at offset {found.end_offset}: {found.damage}")
        if newest is None or found.end_offset > newest.end_offset:
            newest = found
    if newest is None:
        report.notes.append(
            f"no {METADATA_DIRECTORY} to read topics' settings from: a Kafka with ZooKeeper keeps them there, one with "
            "KRaft in metadata.log.dir (name that directory too)"
        )
    return newest


def _destination_now(fs: FileSystem, directory: str) -> Destination:
    """As far as its files tell without changing them."""
    path = f"{directory}/{METADATA_DIRECTORY}"
    found = read_metadata(fs, path) if fs.exists(path) else KafkaMetadata({}, frozenset(), 0)
    ids = {topic.topic_id for topic in found.topics.values()}
    return Destination(
        {name: topic.topic_id for name, topic in found.topics.items()},
        ids.__contains__,
        lambda topic, index: is_taken(fs, f"{directory}/{topic}-{index}"),
    )


def _may_be_directory(fs: FileSystem, path: str) -> bool:
    try:
        fs.list_dir(path)
    except FileNotFoundError:
        return not fs.exists(path)
    return True


def _unopened_configs(name: str) -> dict[str, str]:
    return {"cleanup.policy": "compact"}


def _measure(fs: FileSystem, report: ImportReport) -> int:
    """Bytes to be copied and to be checked, of all topics that will be."""
    total = 0
    for plan in report.topics:
        if plan.refusal is None:
            try:
                sizes = [_sizes(fs, partition) for partition in plan.partitions if partition is not None]
            except FileNotFoundError as error:  # a link to nowhere
                plan.refusal = f"{error.filename} cannot be read: {error.strerror}. {_WAY_ON}"
                continue
            plan.size_bytes = sum(files for files, _logs in sizes)
            total += sum(files + logs for files, logs in sizes)
    return total


def _sizes(fs: FileSystem, partition: SourcePartition) -> tuple[int, int]:
    files = [(name, fs.file_size(f"{partition.path}/{name}")) for name in _wanted_files(fs, partition)]
    return sum(size for _name, size in files), sum(size for name, size in files if name.endswith(LOG_SUFFIX))


def _wanted_files(fs: FileSystem, partition: SourcePartition) -> list[str]:
    """What recovery knows how to read. The indexes of the segment that was being written are not among them when the
    stop was not clean: they are made at their full size (10 MiB), mostly empty, and recovery makes them anew."""
    names = fs.list_dir(partition.path)
    bases = [base for name in names if (base := offset_in(name.removesuffix(SWAP_SUFFIX), LOG_SUFFIX)) is not None]
    newest = max(bases, default=-1)
    wanted = []
    for name in names:
        plain = name.removesuffix(SWAP_SUFFIX).removesuffix(CLEANED_SUFFIX)
        suffix = next((one for one in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX) if plain.endswith(one)), None)
        if name == checkpoints.LEADER_EPOCH_FILE or (name == FACTS_FILE and partition.facts_are_true):
            wanted.append(name)
        if suffix is None or (base := offset_in(plain, suffix)) is None:
            continue
        if partition.clean or base != newest or suffix not in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            wanted.append(name)
    return wanted


# --- the work ---------------------------------------------------------------------------------------------------


class _Import:
    def __init__(self, world: World, progress: Progress) -> None:
        self._world = world
        self._fs = world.fs
        self._directory = world.directory
        self._progress = progress
        self._open_transactions: dict[str, list[str]] = {}
        """Notes on them by topic: they are of interest when nobody is there to end them."""

    def run(self, sources: list[KafkaDirectory], request: ImportRequest) -> ImportReport:
        image = self._world.image
        destination = Destination(
            {name: topic.topic_id for name, topic in image.topics_by_name.items()},
            image.known_id,
            lambda topic, index: is_taken(self._world.fs, self._directory.partition_path(topic, index)),
        )
        self._sweep()
        internal = self._world.topics.internal_configs
        report, planner = _prepared(self._fs, sources, destination, request, internal)
        report.topics = planner.plan(request.wants)
        total_bytes = _measure(self._fs, report)
        self._check_space(report)
        self._progress.begin(total_bytes)
        wanted = [plan for plan in report.topics if plan.refusal is None]
        for plan in wanted:
            if plan.topic_id is None:
                plan.topic_id = uuids.random_id()
                plan.notes.append(f"it had no topic id (Kafka before 2.8); it has {uuids.to_text(plan.topic_id)} now")
        self._directory.announce_import((plan.name, plan.topic_id or b"", len(plan.partitions)) for plan in wanted)
        for plan in wanted:
            try:
                self._take_over(plan)
            except DiskFull as error:
                self._give_up(plan, f"{error}. Make room, then import it again")
            except CorruptData as error:
                self._give_up(plan, str(error))
            except ApiError as error:
                self._give_up(plan, error.message or str(error))
        self._directory.end_import(image.known_id, self._world.clock.monotonic_ms())
        self._sweep()
        self._note_open_transactions(report)
        return report

    def _check_space(self, report: ImportReport) -> None:
        _total, usable = self._fs.space(self._directory.path)
        needed = sum(plan.size_bytes for plan in report.topics if plan.refusal is None)
        if needed > usable:
            report.notes.append(
                f"{needed} bytes are to be copied and {usable} are free: it fits only where files can share their bytes"
            )

    def _sweep(self) -> None:
        """Remove the directories whose deletion was interrupted, and those that were given up."""
        due = self._directory.due_removals(self._world.clock.monotonic_ms())
        for _ in self._directory.remove(due):
            pass

    def _give_up(self, plan: TopicPlan, why: str) -> None:
        """Nothing of it stays."""
        plan.refusal, plan.offsets = why, None
        now_ms = self._world.clock.monotonic_ms()
        for index in range(len(plan.partitions)):
            self._directory.discard(plan.name, index, now_ms)
        self._directory.sync()
        self._sweep()

    def _take_over(self, plan: TopicPlan) -> None:
        assert plan.topic_id is not None
        topic = TopicState(plan.name, plan.topic_id, configs=plan.configs)
        floor = self._world.image.removed_epochs.get(plan.topic_id, -1)
        plan.offsets = 0
        for index, source in enumerate(plan.partitions):
            newest = max(plan.leader_epochs[index], floor)
            if source is not None:
                newest = max(newest, self._take_partition(plan, index, source))
            topic.registrations.append(Registration(newest + 1, 0))
        self._directory.write_adopted()
        adopted = self._world.topics.adopt(topic)
        if not adopted.done:  # recorded, and then there was no space to sync it: only a start knows what is there
            raise DiskFailure(f"the records of topic {plan.name} could not be brought on disk")
        adopted.result()
        plan.done = True

    def _take_partition(self, plan: TopicPlan, index: int, source: SourcePartition) -> int:
        """Returns the newest leader epoch that the log knows. Raises CorruptData, DiskFull, DiskFailure."""
        assert plan.topic_id is not None
        path = self._directory.partition_path(plan.name, index)
        self._fs.make_dirs(path)
        checkpoints.write_partition_metadata(self._fs, path, uuids.to_text(plan.topic_id))
        names = _wanted_files(self._fs, source)
        try:
            for name in names:
                self._fs.copy(
                    f"{source.path}/{name}", f"{path}/{name}", lambda size: self._progress.advance(plan.name, size)
                )
            self._fs.sync_dir(path)
            epoch_before = _newest_epoch(self._fs, path)
            log = Log.open(
                self._fs,
                path,
                config=topic_config.log_config(plan.configs, self._world.layers),
                clock=self._world.clock,
                clean=source.clean,
                recovery_point=_recovery_point(source, names),
                log_start_offset=source.log_start_offset,
            )
            if source.clean:
                _check_clean_end(self._fs, source, names, log)
            whole_check.check_whole(
                log,
                checked=lambda size: self._progress.advance(plan.name, size),
                inspect=_INSPECT.get(plan.name),
            )
        except CorruptData as error:
            raise CorruptData(f"{str(error).replace(path, source.path)}. {_WAY_ON}") from error
        plan.notes += [note.replace(path, source.path) for note in log.report.notes]
        self._note(plan, index, source, log)
        known_epoch = max(epoch_before, plan.leader_epochs[index])
        if source.clean and 0 <= known_epoch < log.last_leader_epoch:
            plan.notes.append(
                f"partition {index}: its newest batches say that they are of leader epoch {log.last_leader_epoch}, and "
                f"nothing else knows one above {known_epoch}; that number has no checksum: compare with another replica"
            )
        log.close(clean=True)
        self._directory.adopt(
            (plan.name, index),
            recovery_point=log.log_end_offset,
            log_start_offset=log.log_start_offset,
            cleaned_up_to=min(source.cleaned_up_to, log.log_end_offset),
        )
        assert plan.offsets is not None
        plan.offsets += log.log_end_offset - log.log_start_offset
        return max(epoch_before, log.epochs.latest, log.last_leader_epoch)

    def _note(self, plan: TopicPlan, index: int, source: SourcePartition, log: Log) -> None:
        hidden = log.log_end_offset - (source.high_watermark or 0)
        if source.clean and source.high_watermark and hidden > 0:
            plan.notes.append(
                f"partition {index}: {hidden} offsets above the high watermark {source.high_watermark} are taken over; "
                "not all replicas had them, as far as this broker knew"
            )
        first = log.first_undecided_offset
        if first is not None:
            self._open_transactions.setdefault(plan.name, []).append(
                f"partition {index}: a transaction that is open since offset {first} holds back readers with "
                f"read_committed; end it with kafka-transactions.sh abort --topic {plan.name} --partition {index} "
                f"--start-offset {first}"
            )

    def _note_open_transactions(self, report: ImportReport) -> None:
        """With `__transaction_state` taken over its coordinator ends them, at the latest when they time out."""
        if not any(plan.name == TRANSACTIONS_TOPIC and plan.done for plan in report.topics):
            for plan in report.topics:
                if plan.done:
                    plan.notes += self._open_transactions.get(plan.name, [])


def _recovery_point(source: SourcePartition, names: Iterable[str]) -> int:
    """Where no checkpoint says it: the newest segment alone may be torn, the others were synced when they were full."""
    if source.recovery_point is not None:
        return max(0, source.recovery_point)
    if source.clean:
        return 0
    return max((base for name in names if (base := offset_in(name, LOG_SUFFIX)) is not None), default=0)


def _check_clean_end(fs: FileSystem, source: SourcePartition, names: Iterable[str], log: Log) -> None:
    """A clean stop leaves the newest segment whole, and the recovery point at its end. Raises CorruptData otherwise.

    Nothing else tells of a batch whose length or base offset is wrong: no checksum covers them.
    """
    name = file_name(log.active.base_offset, LOG_SUFFIX)
    if name in names and log.active.size_bytes < fs.file_size(f"{source.path}/{name}"):
        raise CorruptData(
            f"{source.path}/{name} is damaged at byte {log.active.size_bytes} (offset {log.log_end_offset}), and its "
            "broker was stopped cleanly"
        )
    if source.recovery_point is not None and log.log_end_offset > source.recovery_point:
        raise CorruptData(
            f"{source.path}/{name} ends at offset {log.log_end_offset}, but its broker stopped cleanly at offset "
            f"{source.recovery_point}: the base offset of its last batch is wrong, or it was written to since"
        )


def _newest_epoch(fs: FileSystem, path: str) -> int:
    """Of the epoch file, which may name one that no batch was written under."""
    file = f"{path}/{checkpoints.LEADER_EPOCH_FILE}"
    try:
        return max((epoch for epoch, _offset in checkpoints.parse_epochs(fs.read_file(file), file)), default=-1)
    except (FileNotFoundError, CorruptData):
        return -1  # recovery says it, and reads it from the log


# --- records that the coordinators will read at the next start --------------------------------------------------


def _inspect_offsets(header: BatchHeader, data: memoryview) -> None:
    _inspect(header, data, consumer_offsets.decode_record)


def _inspect_transactions(header: BatchHeader, data: memoryview) -> None:
    _inspect(header, data, transactions.decode)


def _inspect(header: BatchHeader, data: memoryview, decode: Callable[[bytes | None, bytes | None], object]) -> None:
    """A broker does not start on an internal topic that it cannot read. Raises CorruptData."""
    if header.is_control:
        return
    for record in read_records(data):
        try:
            decode(record.key, record.value)
        except (DecodeError, ValueError) as error:
            raise CorruptData(f"a record that this version cannot read: {error}") from error


_INSPECT: dict[str, whole_check.Inspect] = {
    OFFSETS_TOPIC: _inspect_offsets,
    TRANSACTIONS_TOPIC: _inspect_transactions,
}
