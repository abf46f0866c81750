"""A consistent copy of a data directory that is written to meanwhile. L2 storage.

Three steps, so that nobody waits for the copying:
- `LogNote.of` (on the loop, for all logs in one step) notes what each log has at one moment. Segment files only grow at
  their ends, so that a noted size says which bytes belong to that moment, whatever is appended later.
- `Staging.take_log` (on the loop, in steps) gives the noted files a second name, so that retention, compaction and
  cuts may go on: they rename and remove names, and a cut leaves a file with two names as it is
  (`Segment.copy_if_shared`). Who removes, renames or cuts asks for it before (`Log.before_removal`).
- `Staging.write_out` (any thread) puts the copy together beside its destination and syncs it: sealed segments and other
  files that nobody writes into any more are linked, or copied to another file system; of a segment that was active the
  noted bytes are copied, since its file goes on. At last the copy gets its name.

What must hold: no file of the copy is one that is still written into; the copy has its name only when all of it is on
disk; whatever is left of a backup that did not come to its end is found by the next start (`remove_leftovers`): the
staging directory names the unfinished copy, durably, before that is begun.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kmirror.errors import StorageError
from kmirror.storage import flush
from kmirror.storage.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, format_epochs
from kmirror.storage.errors import CannotLink, FileChanged
from kmirror.storage.filesystem import FileSystem
from kmirror.storage.kraft_snapshot import PART_SUFFIX, id_of
from kmirror.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    offset_in,
)
from kmirror.storage.space import SpaceGuard

if TYPE_CHECKING:
    from kmirror.storage.log import Log

RECORD_FILE = "unfinished-copy"
"""In the staging directory: where the copy is put together."""
_STAGING = re.compile(r"backup-([0-9a-f]{8})\.tmp")
_LEFT_OUT = (DELETED_SUFFIX, PART_SUFFIX, ".tmp")
"""What interrupted work leaves, and recovery removes. Not `.cleaned`: it tells recovery what a `.swap` beside it is."""

Told = Callable[[int, int], None]
"""(bytes linked, bytes copied) since it was last called; may raise to break the copying off."""


class BadDestination(StorageError):
    """The copy cannot be made there; nothing was."""


class LogNote(NamedTuple):
    """What a log had at one moment. `segments`: (base offset, size in bytes), the active one last."""

    directory: str
    segments: list[tuple[int, int]]
    end_offset: int
    flushed_offset: int
    epochs: list[tuple[int, int]]
    facts: flush.Facts

    @classmethod
    def of(cls, log: Log) -> LogNote:
        facts = flush.facts_without_epochs(log)
        facts.cut_offset = -1  # the copy's recovery point is its end
        return cls(
            log.directory,
            [(segment.base_offset, segment.size_bytes) for segment in log.segments],
            log.log_end_offset,
            log.flushed_offset,
            list(log.epochs.entries),
            facts,
        )


class Piece(NamedTuple):
    """One file of the copy, at `path` below it. `source`: another name of the file, or its content."""

    path: str
    source: str | bytes
    size_bytes: int
    grows: bool = False
    """Only the first `size_bytes` belong to the copy; others may follow, or do already."""
    on_disk: bool = False
    """Known to be synced."""


class Staging:
    """The pieces of one backup. `number`: 8 hex digits; `destination`: absolute. Nothing is done to the disk yet."""

    def __init__(self, fs: FileSystem, data_directory: str, destination: str, number: str) -> None:
        self._fs = fs
        self._data_directory = data_directory
        self._number = number
        self._can_link = True
        self._place(destination.rstrip("/"))
        self.path = f"{data_directory}/backup-{number}.tmp"
        self.pieces: list[Piece] = []

    def _place(self, destination: str) -> None:
        self.destination = destination
        self._parent, name = posixpath.split(destination)
        self._unfinished = f"{self._parent}/.{name}.backup-{self._number}.tmp"

    def prepare(self) -> None:
        """Check the destination, which becomes one without symbolic links, and begin. Any thread.

        Raises BadDestination, StorageError.
        """
        fs = self._fs
        place, data = fs.real_path(self.destination), fs.real_path(self._data_directory)
        self._place(place)
        if place == data or place.startswith(data + "/"):
            raise BadDestination(f"{self.destination} is inside the data directory {self._data_directory}")
        if data.startswith(place + "/"):
            raise BadDestination(f"the data directory {self._data_directory} is inside {self.destination}")
        if not fs.exists(f"{self._parent}/."):
            raise BadDestination(f"there is no directory {self._parent}: make it first, or mount what belongs there")
        if fs.exists(self.destination) and not self._is_empty_directory():
            raise BadDestination(f"{self.destination} is there already and not an empty directory: name a new one")
        try:
            fs.remove_tree(self.destination)  # empty
        except (OSError, StorageError) as error:
            raise BadDestination(
                f"{self.destination} cannot be replaced, as no mount can; name a new directory in it: {error}"
            ) from error
        try:
            fs.make_dirs(self.path)
            fs.write_atomic(f"{self.path}/{RECORD_FILE}", self._unfinished.encode())
            fs.make_dir(self._unfinished)
            fs.sync_dir(self._parent or "/")
        except BaseException:
            with suppress(OSError, StorageError):
                self.remove()
            raise

    def _is_empty_directory(self) -> bool:
        try:
            return not self._fs.list_dir(self.destination)
        except (OSError, StorageError):
            return False

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(
        self, source: str, path: str, *, size_bytes: int | None = None, grows: bool = False, on_disk: bool = False
    ) -> None:
        """`size_bytes`: as noted; None is the present one. FileNotFoundError, StorageError."""
        link = f"{self.path}/{len(self.pieces):08d}"
        try:
            self._fs.link(source, link)
        except CannotLink as error:
            raise CannotLink(
                f"{error}. A backup needs hard links in the data directory: stop the broker and copy it by other means"
            ) from error
        if size_bytes is None:
            size_bytes = self._fs.file_size(link)
        self.pieces.append(Piece(path, link, size_bytes, grows, on_disk))

    def add(self, path: str, content: bytes) -> None:
        """A file that is made for the copy."""
        self.pieces.append(Piece(path, content, len(content)))

    def take_log(self, note: LogNote, name: str) -> Iterator[None]:
        """An open log as it was noted, for the directory `name`, in steps. Raises FileChanged, StorageError.

        Between two steps the log may grow; before its files are changed otherwise the steps are brought to their end.
        Indexes of the active segment stay out: recovery makes them. The two small files that speak about the whole log
        are written for that moment.
        """
        here = f"{note.directory}/"
        following = [base for base, _ in note.segments[1:]]
        for (base, size_bytes), end in zip(note.segments, [*following, None], strict=True):
            # A roll comes after a flush of the same end, so that an equal offset says nothing of what the roll wrote.
            on_disk = end is not None and end < note.flushed_offset
            log_file = file_name(base, LOG_SUFFIX)
            try:
                self.take(
                    here + log_file, f"{name}/{log_file}", size_bytes=size_bytes, grows=end is None, on_disk=on_disk
                )
            except FileNotFoundError as error:
                raise FileChanged(f"{here}{log_file} is gone: stop the broker and restore it") from error
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX) if end is not None else ():
                with suppress(FileNotFoundError):
                    self.take(here + file_name(base, suffix), f"{name}/{file_name(base, suffix)}", on_disk=on_disk)
            yield
        for other in self._fs.list_dir(note.directory):
            snapshot, metadata = offset_in(other, SNAPSHOT_SUFFIX), id_of(other)
            if snapshot is not None and snapshot <= note.end_offset:
                self.take(here + other, f"{name}/{other}", on_disk=snapshot < note.flushed_offset)
            elif other == PARTITION_METADATA_FILE or (metadata is not None and metadata.end_offset <= note.end_offset):
                self.take(here + other, f"{name}/{other}", on_disk=True)
        if note.epochs:
            self.add(f"{name}/{LEADER_EPOCH_FILE}", format_epochs(note.epochs))
        note.facts.epochs_checksum = flush.epochs_checksum(note.epochs, note.end_offset)
        self.add(f"{name}/{flush.FACTS_FILE}", note.facts.encode())
        yield

    def take_closed_log(self, directory: str, name: str, *, on_disk: bool) -> Iterator[None]:
        """A log that nobody has open, in steps that nobody opens it between: all that its directory holds, which may be
        nothing. Raises StorageError."""
        try:
            names = self._fs.list_dir(directory)
        except FileNotFoundError:
            return
        newest = max((other for other in names if offset_in(other, LOG_SUFFIX) is not None), default="")
        for other in names:
            if not other.endswith(_LEFT_OUT):
                self.take(f"{directory}/{other}", f"{name}/{other}", grows=other == newest, on_disk=on_disk)
                yield

    # --- making the copy --------------------------------------------------------------------------------------------

    def write_out(self, told: Told) -> None:
        """Put the copy together, on disk, and give it its name. Any thread; nothing may be taken any more.

        Raises FileChanged when somebody else was at the files, StorageError.
        """
        try:
            self._write_all(told)
        except FileNotFoundError as error:
            raise FileChanged(f"{error.filename} is gone: somebody removed it while the backup was made") from error

    def _write_all(self, told: Told) -> None:
        fs = self._fs
        space = SpaceGuard(fs, self._unfinished)  # the broker's last bytes are not for this
        by_directory = sorted(self.pieces, key=lambda piece: posixpath.dirname(piece.path))
        for directory, pieces in groupby(by_directory, key=lambda piece: posixpath.dirname(piece.path)):
            target = f"{self._unfinished}/{directory}".rstrip("/")
            if directory:
                fs.make_dir(target)
            for piece in pieces:
                self._put(piece, f"{self._unfinished}/{piece.path}", space, told)
            fs.sync_dir(target)
        fs.sync_dir(self._unfinished)
        fs.rename(self._unfinished, self.destination)
        try:
            fs.sync_dir(self._parent or "/")
        except BaseException:
            with suppress(OSError, StorageError):
                fs.rename(self.destination, self._unfinished)
            raise

    def _put(self, piece: Piece, target: str, space: SpaceGuard, told: Told) -> None:
        fs = self._fs
        if isinstance(piece.source, bytes):
            space.take(piece.size_bytes)
            file = fs.open(target, create=True)
            if piece.source:
                file.append([piece.source])
            file.sync()
            told(0, piece.size_bytes)
            return
        found = fs.file_size(piece.source)
        if found != piece.size_bytes if not piece.grows else found < piece.size_bytes:
            raise FileChanged(f"{piece.path} had {piece.size_bytes} bytes when the backup began, now it has {found}")
        if not piece.grows and self._can_link:
            try:
                fs.link(piece.source, target)
            except CannotLink:
                self._can_link = False
            else:
                if not piece.on_disk:
                    fs.open(target).sync()
                told(piece.size_bytes, 0)
                return
        space.take(piece.size_bytes)
        fs.copy(piece.source, target, lambda size_bytes: told(0, size_bytes), size_bytes=piece.size_bytes)
        if fs.file_size(target) != piece.size_bytes:
            raise FileChanged(f"{piece.path} could be read only to byte {fs.file_size(target)} of {piece.size_bytes}")
        fs.set_modified_ms(target, fs.modified_ms(piece.source))  # retention may ask for it

    def remove(self) -> None:
        """What is left: after the end the staging directory, before it the unfinished copy too. StorageError."""
        _remove(self._fs, self.path, self._unfinished)
        self._fs.sync_dir(self._data_directory)


def _remove(fs: FileSystem, staging: str, unfinished: str) -> None:
    """The links first: whatever becomes of the rest, they must not keep the space of what the broker deletes."""
    with suppress(FileNotFoundError):
        for name in fs.list_dir(staging):
            if name != RECORD_FILE:
                fs.remove(f"{staging}/{name}")
    if fs.exists(unfinished):
        fs.remove_tree(unfinished)
        fs.sync_dir(posixpath.dirname(unfinished) or "/")  # before its record goes
    fs.remove_tree(staging)


def remove_leftovers(fs: FileSystem, data_directory: str) -> Iterable[str]:
    """What backups left that a stop of the process interrupted; a line for each. Before any log is opened: a file with
    two names is taken for one that a backup has."""
    for name in fs.list_dir(data_directory):
        found = _STAGING.fullmatch(name)
        if found is None:
            continue
        staging = f"{data_directory}/{name}"
        unfinished = ""
        with suppress(FileNotFoundError, UnicodeDecodeError):
            unfinished = fs.read_file(f"{staging}/{RECORD_FILE}").decode()
        if not unfinished.endswith(f".backup-{found[1]}.tmp"):
            unfinished = staging
        try:
            _remove(fs, staging, unfinished)
        except (OSError, StorageError) as error:
            yield f"{staging}: a backup did not come to its end, and what it left cannot be removed: {error}"
        else:
            fs.sync_dir(data_directory)
            yield f"{staging}: a backup did not come to its end; what it left is removed"
