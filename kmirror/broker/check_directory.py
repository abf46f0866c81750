"""A check of a whole data directory, one partition of it, or one file: what `kmirror dump --verify` does. L3.

What may live here: what has to hold between partitions, the checkpoints around them and the metadata. What holds inside
a partition is `kmirror.storage.check.log`'s. The check reads only and needs no broker; with one running it believes a
finding only while nothing moved under it, and takes the end of each log for unfinished.

The order of reading makes that safe: checkpoints first (they lag), then the names of directories, then the metadata
(which may know more topics than there were directories), then the logs.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from kmirror.broker.check_metadata import MetadataCheck, bootstrap_damage
from kmirror.broker.directory import (
    DELETE_SUFFIX,
    META_VERSION,
    METADATA_DIRECTORY,
    STRAY_SUFFIX,
    UNFINISHED_IMPORT_FILE,
)
from kmirror.broker.metadata import INTERNAL_TOPICS, MetadataImage, TopicState
from kmirror.errors import CorruptData, DiskFailure
from kmirror.limits import CHECK_ATTEMPTS, CHECK_MAX_SMALL_FILE_BYTES
from kmirror.protocol import uuids
from kmirror.storage import checkpoints
from kmirror.storage.check.findings import Finding, ReadableFiles, Report, Severity, Totals
from kmirror.storage.check.log import LogContext, LogSummary, check_log
from kmirror.storage.checkpoints import TopicPartition
from kmirror.storage.flush import FACTS_FILE
from kmirror.storage.kraft_snapshot import id_of
from kmirror.storage.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, offset_in

CUT_DIRECTORY = "cut"
_PARTITION = re.compile(r"(?P<topic>.+)-(?P<index>\d+)")
_SET_ASIDE = re.compile(r".+-\d+\.[0-9a-f]{32}-(?:delete|stray|future)")
BOOTSTRAP_FILE = "bootstrap.checkpoint"
"""What Kafka's storage tool leaves for the first controller."""
_MARKS = (
    *checkpoints.OFFSET_FILES,
    checkpoints.META_PROPERTIES_FILE,
    checkpoints.CLEAN_SHUTDOWN_FILE,
    METADATA_DIRECTORY,
)
"""Any of these makes a directory a data directory."""
_LEVELS = 4
"""Of directories that are gone into: cut/TOPIC-N/a copy is the lowest. A link may lead back up."""
_ZOOKEEPER_VERSION = "0"
_PARTITION_FILES = (checkpoints.LEADER_EPOCH_FILE, checkpoints.PARTITION_METADATA_FILE)


@dataclass(slots=True)
class Watcher:
    """What is told while a check goes on: the directory that is looked at, and how many bytes of it were."""

    on_partition: Callable[[str], None] = lambda name: None
    on_bytes: Callable[[int], None] = lambda size_bytes: None


@dataclass(slots=True)
class DirectoryResult:
    """`partitions`: by the name of its directory, what was looked at there; `totals` covers everything."""

    totals: Totals = field(default_factory=Totals)
    partitions: dict[str, Totals] = field(default_factory=dict)
    findings: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))
    worst: dict[str, dict[Severity, int]] = field(default_factory=dict)
    """Findings by the name of the directory, "" for the data directory itself."""


def is_data_directory(names: Iterable[str]) -> bool:
    return any(name in _MARKS for name in names)


def is_partition_directory(names: Iterable[str]) -> bool:
    return any(
        name in _PARTITION_FILES
        or any(offset_in(name, suffix) is not None for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX))
        or id_of(name) is not None
        for name in names
    )


def log_bytes(fs: ReadableFiles, path: str, levels: int = _LEVELS) -> int:
    """Of all segments below `path`: what a check has to read, for its progress."""
    total = 0
    for name in (_names(fs, path) or ()) if levels else ():
        if not name.endswith(LOG_SUFFIX):
            total += log_bytes(fs, f"{path}/{name}", levels - 1)
            continue
        with suppress(OSError, DiskFailure):
            total += fs.file_size(f"{path}/{name}")
    return total


def check(
    fs: ReadableFiles,
    path: str,
    report: Report,
    *,
    running: bool = False,
    deep: bool = True,
    watcher: Watcher | None = None,
) -> DirectoryResult:
    """Check what `path` names: a data directory, a partition directory, or a file of either.

    `path` is absolute. Of a file the directory around it is checked, and the findings about the file are reported (of a
    segment's log, those of its index files too). `running`: a broker has the directory. Raises CorruptData when `path`
    is nothing of a data directory, FileNotFoundError when it is not there.
    """
    path = path.rstrip("/") or "/"
    names = _names(fs, path)
    work = _DirectoryCheck(fs, report, running, deep, watcher or Watcher())
    if names is None:
        fs.file_size(path)
        return work.only_file(posixpath.dirname(path), path)
    if is_data_directory(names):
        return work.data_directory(path)
    if is_partition_directory(names):
        return work.one_partition(path)
    inside = [name for name in names if is_partition_directory(_names(fs, f"{path}/{name}") or ())]
    if not inside:
        raise CorruptData(f"{path} holds no segment, index, snapshot or checkpoint")
    return work.loose_partitions(path, inside)


def _names(fs: ReadableFiles, path: str) -> list[str] | None:
    """What the directory holds, None when `path` is none."""
    try:
        return fs.list_dir(path)
    except PermissionError:
        return []  # what is in it is told when it is looked into
    except (OSError, DiskFailure):
        return None


class _DirectoryCheck:
    def __init__(self, fs: ReadableFiles, report: Report, running: bool, deep: bool, watcher: Watcher) -> None:
        self._fs = fs
        self._emit = report
        self._running = running
        self._deep = deep
        self._watcher = watcher
        self._root = ""
        self._result = DirectoryResult()
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        """What the checkpoints say that can be read, by file name."""
        self._unfinished: dict[TopicPartition, bytes] = {}
        """Topic ids of what an import announced and did not see through."""
        self._clean: bool | None = None
        self._image: MetadataImage | None = None

    def _report(self, finding: Finding) -> None:
        result = self._result
        name = finding.path.removeprefix(f"{self._root}/").partition("/")[0]
        if name not in result.partitions:
            name = ""
        counts = result.worst.setdefault(name, dict.fromkeys(Severity, 0))
        counts[finding.severity] += 1
        result.findings[finding.severity] += 1
        self._emit(finding)

    def _say(self, severity: Severity, name: str, text: str, *, offset: int | None = None) -> None:
        self._report(Finding(severity, f"{self._root}/{name}" if name else self._root, text, offset))

    # --- what may be checked ------------------------------------------------------------------------------------

    def data_directory(self, path: str) -> DirectoryResult:
        self._root = path
        self._read_around(path)
        names = self._fs.list_dir(path)
        partitions = [name for name in names if self._is_partition(path, name, names)]
        self._check_metadata(names)
        for name in partitions:
            if self._is_of_unfinished_import(name):
                if not self._running:
                    self._say(Severity.STALE, name, "its import did not come to its end: removed at the next start")
            else:
                self._partition(name, self._context(name))
        self._check_topics(partitions)
        self._check_checkpoints(partitions)
        if CUT_DIRECTORY in names:
            self._check_cut(f"{path}/{CUT_DIRECTORY}")
        return self._result

    def one_partition(self, path: str) -> DirectoryResult:
        """With what the data directory around it says, if it is in one."""
        self._root = posixpath.dirname(path)
        name = posixpath.basename(path)
        if is_data_directory(_names(self._fs, self._root) or ()):
            quiet, self._emit = self._emit, lambda finding: None
            self._read_around(self._root)
            self._emit, self._result = quiet, DirectoryResult()
        if name == METADATA_DIRECTORY:
            self._check_metadata([name])
        self._partition(name, self._context(name))
        return self._result

    def loose_partitions(self, path: str, names: list[str]) -> DirectoryResult:
        """Partition directories side by side, of which nothing else is known: copies, or a broker's cuts."""
        self._root = path
        for name in names:
            self._partition(name, LogContext(running=self._running))
        return self._result

    def only_file(self, parent: str, path: str) -> DirectoryResult:
        emit = self._emit
        base = posixpath.basename(path).partition(".")[0] if path.endswith(LOG_SUFFIX) else None

        def about_it(finding: Finding) -> None:
            if finding.path == path or (base is not None and posixpath.basename(finding.path).startswith(f"{base}.")):
                emit(finding)
                counted[finding.severity] += 1

        counted = dict.fromkeys(Severity, 0)
        self._emit = about_it
        names = self._fs.list_dir(parent)
        if is_partition_directory(names):
            result = self.one_partition(parent)
        elif is_data_directory(names):
            self._deep = False
            result = self.data_directory(parent)
        else:
            raise CorruptData(f"{path} is no file of a data directory, judging by its name")
        result.findings = counted
        result.worst = {}
        return result

    # --- around the partitions ----------------------------------------------------------------------------------

    def _is_partition(self, path: str, name: str, names: list[str]) -> bool:
        if name == CUT_DIRECTORY or name.endswith(DELETE_SUFFIX):
            return False
        inside = _names(self._fs, f"{path}/{name}")
        if inside is None:
            return False
        found = _PARTITION.fullmatch(name)
        if _SET_ASIDE.fullmatch(name) or name.endswith(STRAY_SUFFIX):
            self._say(Severity.NOTE, name, "set aside, and not looked into: it belongs to no topic")
            return False
        if found is None:
            if is_partition_directory(inside):
                self._say(Severity.NOTE, name, "it has a partition's files, but is not called TOPIC-NUMBER: not served")
            return False
        plain = f"{found['topic']}-{int(found['index'])}"
        if plain != name:
            twin = f"a second one beside {plain}" if plain in names else f"it should be called {plain}"
            self._say(Severity.NOTE, name, f"{twin}: not served")
            return False
        return True

    def _read_around(self, path: str) -> None:
        """Checkpoints, identity, the mark of a clean stop."""
        names = self._fs.list_dir(path)
        for name in checkpoints.OFFSET_FILES:
            said = self._read_checkpoint(name) if name in names else None
            if said is not None:
                self._offsets[name] = said
        marked = checkpoints.CLEAN_SHUTDOWN_FILE in names
        if self._running or checkpoints.META_PROPERTIES_FILE in names or marked:
            self._clean = marked and not self._running
        if marked:
            self._check_clean_mark()
        if UNFINISHED_IMPORT_FILE in names:
            self._read_unfinished_import()
        if BOOTSTRAP_FILE in names and (damage := bootstrap_damage(self._fs, f"{path}/{BOOTSTRAP_FILE}")):
            self._say(Severity.DAMAGE, BOOTSTRAP_FILE, damage)
        if checkpoints.META_PROPERTIES_FILE in names:
            self._check_identity()
        elif METADATA_DIRECTORY in names:
            text = "the file is missing: without it nobody knows which cluster the data belongs to"
            self._say(Severity.DAMAGE, checkpoints.META_PROPERTIES_FILE, text)

    def _read_small(self, name: str) -> bytes | None:
        """None for one that is gone meanwhile, or cannot be read, which is said. Raises CorruptData."""
        try:
            if self._fs.file_size(f"{self._root}/{name}") > CHECK_MAX_SMALL_FILE_BYTES:
                raise CorruptData("it is too large for what it should be")
            data = self._fs.read_file(f"{self._root}/{name}")
        except (OSError, DiskFailure) as error:
            if not (self._running and isinstance(error, FileNotFoundError)):
                self._unreadable(name, error)
            return None
        self._result.totals.files += 1
        self._result.totals.size_bytes += len(data)
        return data

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """None for one that cannot be read, which costs a longer recovery: the next start goes on without it."""
        found: dict[TopicPartition, int] = {}
        try:
            data = self._read_small(name)
            if data is None:
                return None
            if not data and self._is_kafkas():
                return {}  # made so at its first start (CheckpointFile)
            for words in checkpoints.parse_lines(data, name):
                topic, index, offset = words
                key = (topic, int(index))
                if key in found:
                    self._say(Severity.NOTE, name, f"{topic}-{index} stands there twice; the last line counts")
                if int(offset) < 0:
                    raise CorruptData(f"{topic}-{index} has offset {offset}")
                found[key] = int(offset)
        except (CorruptData, ValueError) as error:
            self._say(Severity.STALE, name, f"{error}: the next start goes on without it")
            return None
        return found

    def _is_kafkas(self) -> bool:
        return FACTS_FILE not in (_names(self._fs, f"{self._root}/{METADATA_DIRECTORY}") or ())

    def _read_unfinished_import(self) -> None:
        name = UNFINISHED_IMPORT_FILE
        try:
            for words in checkpoints.parse_lines(self._read_small(name) or b"", name):
                topic, index, topic_id = words
                self._unfinished[topic, int(index)] = uuids.from_text(topic_id)
        except (CorruptData, ValueError) as error:
            self._say(Severity.DAMAGE, name, f"no broker starts with it: {error}")

    def _is_of_unfinished_import(self, name: str) -> bool:
        key = _key_of(name)
        topic_id = self._unfinished.get(key) if key is not None else None
        if topic_id is None or self._image is None or self._image.known_id(topic_id):
            return False
        return self._topic_id_in(name) in (None, topic_id)

    def _topic_id_in(self, name: str) -> bytes | None:
        """Raises CorruptData, ValueError."""
        said = checkpoints.read_partition_metadata(self._fs, f"{self._root}/{name}")  # type: ignore[arg-type]
        return None if said is None else uuids.from_text(said)

    def _check_clean_mark(self) -> None:
        try:
            data = self._read_small(checkpoints.CLEAN_SHUTDOWN_FILE)
            if data is None:
                return
            said = json.loads(data or b'{"version": 0}')  # older brokers leave it empty
            if not isinstance(said, dict) or said.get("version") != 0:
                raise ValueError
        except (ValueError, CorruptData):
            text = "it is not what a broker writes; that it is there is what counts"
            self._say(Severity.NOTE, checkpoints.CLEAN_SHUTDOWN_FILE, text)

    def _check_identity(self) -> None:
        name = checkpoints.META_PROPERTIES_FILE
        try:
            data = self._read_small(name)
            if data is None:
                return
            properties = checkpoints.parse_properties(data, name)
            if properties.get("version") == _ZOOKEEPER_VERSION:
                self._say(
                    Severity.NOTE, name, "a Kafka with ZooKeeper wrote it: kmirror does not start here, but imports"
                )
                return
            if properties.get("version") != META_VERSION:
                raise ValueError(f"it has version {properties.get('version')}, only {META_VERSION} is served")
            int(properties["node.id"])
            for key in ("cluster.id", "directory.id"):
                if not properties.get(key):
                    raise ValueError(f"it has no {key}")
            uuids.from_text(properties["directory.id"].replace("\\", ""))
        except (ValueError, KeyError, CorruptData) as error:
            self._say(Severity.DAMAGE, name, f"no broker starts with it: {error}")

    # --- one partition ------------------------------------------------------------------------------------------

    def _context(self, name: str) -> LogContext:
        key = _key_of(name)
        topic = self._topic(key[0]) if key is not None else None
        policy = topic.configs.get("cleanup.policy", "") if topic is not None else ""
        interval = topic.configs.get("index.interval.bytes", "") if topic is not None else ""

        def said(checkpoint: str) -> int:
            return self._offsets.get(checkpoint, {}).get(key, 0) if key is not None else 0

        clean = self._clean
        if name == METADATA_DIRECTORY and self._is_kafkas():
            clean = None if clean is None else False  # Kafka's mark of a clean stop is not about its metadata log
        return LogContext(
            clean=clean,
            running=self._running,
            recovery_point=said(checkpoints.RECOVERY_POINT_FILE),
            log_start_offset=said(checkpoints.LOG_START_FILE) if checkpoints.LOG_START_FILE in self._offsets else None,
            compacted="compact" in policy
            or (key is not None and key[0] in INTERNAL_TOPICS)
            or (key is not None and key in self._offsets.get(checkpoints.CLEANER_FILE, {})),
            index_interval_bytes=int(interval) if interval.isdigit() else None,
        )

    def _topic(self, name: str) -> TopicState | None:
        return self._image.known_topic(name) if self._image is not None else None

    def _partition(self, name: str, context: LogContext) -> None:
        self._watcher.on_partition(name)
        self._result.partitions.setdefault(name, Totals())
        try:
            summary = check_log(
                self._fs,
                f"{self._root}/{name}",
                self._report,
                context=context,
                deep=self._deep,
                on_bytes=self._watcher.on_bytes,
            )
        except (OSError, DiskFailure) as error:
            if not (self._running and isinstance(error, FileNotFoundError)):  # deleted meanwhile
                self._unreadable(name, error)
            return
        self._result.partitions[name].add(summary.totals)
        self._result.totals.add(summary.totals)
        key = _key_of(name)
        if key is not None:
            self._compare_ends(key, name, summary)
        self._check_topic_id(name, summary)

    def _unreadable(self, name: str, error: Exception) -> None:
        if isinstance(error, OSError):
            inside = str(error.filename or "").removeprefix(f"{self._root}/")
            name = inside if inside.startswith(f"{name}/") else name
        self._say(Severity.DAMAGE, name, f"it cannot be read: {getattr(error, 'strerror', None) or error}")

    def _compare_ends(self, key: TopicPartition, name: str, summary: LogSummary) -> None:
        """The two checkpoints that a start corrects by itself; the others are `check_log`'s."""
        if self._running or summary.damaged or not summary.has_log:
            return
        for file in (checkpoints.HIGH_WATERMARK_FILE, checkpoints.CLEANER_FILE):
            said = self._offsets.get(file, {}).get(key, 0)
            if said > summary.end_offset:
                text = f"{name} ends at {summary.end_offset}, it says {said}: corrected at the next start"
                self._say(Severity.STALE, file, text, offset=said)

    def _check_topic_id(self, name: str, summary: LogSummary) -> None:
        """Against the metadata: a start sets aside what belongs to another topic, and refuses what it cannot tell."""
        file = f"{name}/{checkpoints.PARTITION_METADATA_FILE}"
        found: bytes | None = None
        try:
            found = self._topic_id_in(name)
        except (CorruptData, ValueError) as error:
            self._say(Severity.DAMAGE, file, f"the partition is not served: {error}")
            return
        if found is not None:
            self._result.totals.files += 1
            self._result.partitions[name].files += 1
        key = _key_of(name)
        if self._image is None or key is None or name == METADATA_DIRECTORY:
            return
        topic = self._topic(key[0])
        if topic is None or key[1] >= len(topic.registrations):
            if found in self._image.removed_ids:
                if not self._running:
                    self._say(Severity.STALE, name, "its topic was deleted: removed at the next start")
            else:
                self._say(Severity.NOTE, name, "it belongs to no topic of this cluster: left alone, and not served")
        elif found is None:
            if summary.has_log:
                expected = uuids.to_text(topic.topic_id)
                text = f"the file is missing, and the partition is not served; it should say topic_id: {expected}"
                self._say(Severity.DAMAGE, file, text)
        elif found != topic.topic_id:
            expected = uuids.to_text(topic.topic_id)
            severity = Severity.STALE if found in self._image.removed_ids else Severity.DAMAGE
            text = f"it says topic id {uuids.to_text(found)}, the topic has {expected}: set aside at the next start"
            self._say(severity, file, text)

    # --- between partitions -------------------------------------------------------------------------------------

    def _check_metadata(self, names: list[str]) -> None:
        if METADATA_DIRECTORY not in names:
            return
        self._result.partitions.setdefault(METADATA_DIRECTORY, Totals())
        for attempt in range(CHECK_ATTEMPTS):
            found: list[Finding] = []
            place = f"{self._root}/{METADATA_DIRECTORY}"
            work = MetadataCheck(self._fs, place, found.append, running=self._running)
            try:
                work.run()
            except FileNotFoundError as error:
                if self._running and attempt + 1 < CHECK_ATTEMPTS:
                    continue  # an old snapshot or segment went in this moment
                self._unreadable(METADATA_DIRECTORY, error)
            except (OSError, DiskFailure) as error:
                self._unreadable(METADATA_DIRECTORY, error)
            if not self._running or not found:
                break
        for finding in found:
            self._report(finding)
        self._image = work.image
        self._result.partitions[METADATA_DIRECTORY].add(work.totals)
        self._result.totals.add(work.totals)

    def _check_topics(self, partitions: list[str]) -> None:
        """Partitions of the metadata that have no directory: right for those that were never written to."""
        there = set(partitions)
        for topic in self._image.all_topics() if self._image is not None else ():
            for index in range(len(topic.registrations)):
                name = f"{topic.name}-{index}"
                known = max(
                    self._offsets.get(file, {}).get((topic.name, index), 0) for file in checkpoints.OFFSET_FILES
                )
                if name not in there and known:
                    text = f"the directory is missing: the checkpoints know of records up to offset {known}"
                    self._say(Severity.DAMAGE, name, text, offset=known)

    def _check_checkpoints(self, partitions: list[str]) -> None:
        """Lines about partitions that are not there, where no metadata tells whether they should be."""
        there = set(partitions)
        for file, offsets in self._offsets.items():
            for (topic, index), offset in offsets.items():
                if f"{topic}-{index}" in there or not offset:
                    continue
                if self._image is None:
                    text = f"{topic}-{index} has offset {offset}, and no directory"
                    self._say(Severity.DAMAGE, file, text, offset=offset)
                elif self._topic(topic) is None and not self._running:
                    self._say(Severity.NOTE, file, f"{topic}-{index} belongs to no topic any more")

    def _check_cut(self, path: str) -> None:
        """Copies of what was cut: never served, so that damage there is worth a note."""
        directories = [(path, _LEVELS)]
        while directories:
            directory, levels = directories.pop()
            names = _names(self._fs, directory) or []
            if is_partition_directory(names):
                context = LogContext(running=self._running, compacted=True)
                try:
                    summary = check_log(
                        self._fs,
                        directory,
                        self._note,
                        context=context,
                        deep=self._deep,
                        on_bytes=self._watcher.on_bytes,
                    )
                except (OSError, DiskFailure) as error:
                    self._say(Severity.NOTE, directory.removeprefix(f"{self._root}/"), f"it cannot be read: {error}")
                else:
                    self._result.totals.add(summary.totals)
            if levels:
                directories += [(f"{directory}/{name}", levels - 1) for name in names]

    def _note(self, finding: Finding) -> None:
        self._report(Finding(Severity.NOTE, finding.path, finding.text, finding.offset, finding.position))


def _key_of(name: str) -> TopicPartition | None:
    found = _PARTITION.fullmatch(name)
    return None if found is None else (found["topic"], int(found["index"]))
