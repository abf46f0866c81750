"""A FileSystem in memory that can lose what was not synced. L2 storage.

For tests, the simulator and the demo. It keeps three things apart that a real disk keeps apart too: what was written,
what of a file was synced, and which names of a directory were synced. `crash()` gives back a new file system that
holds only what could have survived a power cut, chosen by the seed:

- per page of a file, the synced or the written bytes, sometimes torn inside a page; the length likewise;
- of the unsynced changes of names in a directory, some prefix in order (a journal).

`fail` plants errors, `capacity_bytes` a full disk, `skip_sync` a sync that lies, and `observer` is called before and
after everything that changes the disk, so that a test can cut the power at each point.
"""

from __future__ import annotations

import errno
import posixpath
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from kmirror.clock import Clock
from kmirror.errors import CorruptData, DiskFailure
from kmirror.storage.errors import CannotLink, StorageLocked
from kmirror.storage.filesystem import Buffer, translate
from kmirror.storage.open_files import OpenFiles

Kind = Literal["open", "read", "write", "truncate", "sync", "link", "rename", "remove", "sync_dir"]
Phase = Literal["before", "after"]
Observer = Callable[[Kind, str, Phase], None]


class _Node:
    __slots__ = ("data", "links", "modified_ms", "synced")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytes(data)
        self.modified_ms = 0
        self.links = 0
        """Names that it has now, whether they are synced or not."""


_Change = list[tuple[str, "_Node | _Directory | None"]]


class _Directory:
    __slots__ = ("entries", "pending", "synced")

    def __init__(self) -> None:
        self.entries: dict[str, _Node | _Directory] = {}
        self.synced: dict[str, _Node | _Directory] = {}
        self.pending: list[_Change] = []

    def change(self, change: _Change) -> None:
        for name, node in change:
            _count_links(self.entries.get(name), -1)
            _count_links(node, 1)
            _apply(self.entries, [(name, node)])
        self.pending.append(change)

    def sync(self) -> None:
        self.synced = dict(self.entries)
        self.pending.clear()


def _count_links(node: _Node | _Directory | None, change: int) -> None:
    """A name comes or goes: of a file, or of a directory with all that is in it."""
    if isinstance(node, _Directory):
        for inner in node.entries.values():
            _count_links(inner, change)
    elif node is not None:
        node.links += change


def _apply(entries: dict[str, _Node | _Directory], change: _Change) -> None:
    for name, node in change:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


@dataclass(slots=True)
class Fault:
    """The next `times` operations of `kind` on paths ending in `suffix` fail with `error` (an errno)."""

    kind: Kind
    suffix: str
    error: int
    times: int


class MemoryFile:
    __slots__ = ("_fs", "_node", "path", "synced")

    def __init__(self, fs: MemoryFileSystem, path: str, node: _Node) -> None:
        self._fs = fs
        self._node = node
        self.path = path
        self.synced = True

    @property
    def size_bytes(self) -> int:
        return len(self._node.data)

    def append(self, pieces: Sequence[Buffer]) -> int:
        fs, data = self._fs, self._node.data
        position = len(data)
        size = sum(len(piece) for piece in pieces)
        try:
            fs.enter("write", self.path)
        except DiskFailure:
            if not fs.dead:
                data += b"".join(pieces)[: size // 2]  # how far it came is anybody's guess
            raise
        if fs.capacity_bytes is not None and fs.used_bytes() + size > fs.capacity_bytes:
            self._fs.refuse(errno.ENOSPC, f"write to {self.path}")
        for piece in pieces:
            data += piece
        self.synced = False
        self._node.modified_ms = fs.now_ms()
        fs.leave("write", self.path)
        return position

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._fs.enter("read", self.path)
        return bytes(self._node.data[position : position + size_bytes])

    def truncate(self, size_bytes: int) -> None:
        self._fs.enter("truncate", self.path)
        if size_bytes < len(self._node.data):
            del self._node.data[size_bytes:]
        else:
            self._node.data += bytes(size_bytes - len(self._node.data))
        self.synced = False
        self._fs.leave("truncate", self.path)

    def sync(self) -> None:
        self._fs.enter("sync", self.path)
        if not self._fs.skip_sync(self.path):
            self._node.synced = bytes(self._node.data)
        self.synced = True
        self._fs.leave("sync", self.path)

    def fileno(self) -> int | None:
        return None


class _MemoryLock:
    def __init__(self, fs: MemoryFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def release(self) -> None:
        self._fs.locks.discard(self._path)


class MemoryFileSystem:
    """See the module head. `page_bytes` is the unit that survives or is lost whole, save for torn ones."""

    def __init__(
        self,
        seed: int = 0,
        *,
        page_bytes: int = 4096,
        capacity_bytes: int | None = None,
        clock: Clock | None = None,
        open_files_limit: int = 1 << 20,
    ) -> None:
        self.open_files = OpenFiles(open_files_limit)
        self.seed = seed
        self.page_bytes = page_bytes
        self.capacity_bytes = capacity_bytes
        self.observer: Observer | None = None
        self.skip_sync: Callable[[str], bool] = lambda path: False
        self.locks: set[str] = set()
        self.mounts: set[str] = set()
        """Directories that are file systems of their own: nothing is linked across their border."""
        self.operation_count = 0
        self.counts: dict[Kind, int] = {}
        self._clock = clock
        self._faults: list[Fault] = []
        self._root = _Directory()
        self.dead = False

    # --- faults and the crash ---

    def fail(self, kind: Kind, suffix: str = "", *, error: int = errno.EIO, times: int = 1) -> None:
        """Plant a fault. A fault of kind "write" with ENOSPC is a disk that is full for that file."""
        self._faults.append(Fault(kind, suffix, error, times))

    def heal(self) -> None:
        self._faults.clear()

    def crash(self, *, keep_nothing: bool = False) -> MemoryFileSystem:
        """What a power cut leaves. `keep_nothing`: every unsynced thing is lost; else the seed decides for each.

        This object is dead afterwards: a process that outlives the crash in a test cannot write any more.
        """
        chance = random.Random(self.seed * 1_000_003 + self.operation_count)
        after = MemoryFileSystem(
            self.seed + 1,
            page_bytes=self.page_bytes,
            capacity_bytes=self.capacity_bytes,
            clock=self._clock,
            open_files_limit=self.open_files.limit,
        )
        after.mounts = set(self.mounts)
        after._root = self._survivors(self._root, chance, keep_nothing, {})
        _count_links(after._root, 1)
        self.dead = True
        return after

    def _survivors(
        self, directory: _Directory, chance: random.Random, keep_nothing: bool, files: dict[_Node, _Node]
    ) -> _Directory:
        """`files`: what became of those that were met already, under another name."""
        entries = dict(directory.synced)
        kept = 0 if keep_nothing else chance.randint(0, len(directory.pending))
        for change in directory.pending[:kept]:
            _apply(entries, change)
        after = _Directory()
        for name, node in entries.items():
            if isinstance(node, _Directory):
                after.entries[name] = self._survivors(node, chance, keep_nothing, files)
            else:
                if node not in files:
                    files[node] = _Node(node.synced if keep_nothing else self._surviving_bytes(node, chance))
                after.entries[name] = files[node]
        after.sync()
        return after

    def _surviving_bytes(self, node: _Node, chance: random.Random) -> bytes:
        old, new, page = node.synced, bytes(node.data), self.page_bytes
        if old == new:
            return old
        sizes = [len(old), len(new)]
        low, high = sorted(sizes)
        if high - low > 1:
            sizes.append(chance.randint(low, high))
            sizes.append(min(high, (chance.randint(low, high) // page) * page + page))
        size = chance.choice(sizes)
        parts = []
        for at in range(0, size, page):
            before = old[at : at + page].ljust(page, b"\0")
            after = new[at : at + page].ljust(page, b"\0")
            kind = chance.random()
            if kind < 0.4:
                parts.append(before)
            elif kind < 0.9:
                parts.append(after)
            else:
                cut = chance.randint(0, page)
                parts.append(after[:cut] + before[cut:])
        return b"".join(parts)[:size]

    def enter(self, kind: Kind, path: str) -> None:
        if self.dead:
            raise DiskFailure("this file system has crashed")
        self.operation_count += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        for fault in self._faults:
            if fault.kind == kind and path.endswith(fault.suffix):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                self.refuse(fault.error, f"{kind} of {path}")
        if self.observer is not None and kind != "read":
            self.observer(kind, path, "before")

    def leave(self, kind: Kind, path: str) -> None:
        if self.observer is not None:
            self.observer(kind, path, "after")

    def refuse(self, number: int, what: str) -> NoReturn:
        translate(OSError(number, errno.errorcode[number]), what)

    def now_ms(self) -> int:
        return 0 if self._clock is None else self._clock.time_ms()

    def used_bytes(self) -> int:
        return _size(self._root)

    # --- the port ---

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            self.enter("open", path)
            node = _Node()
            node.modified_ms = self.now_ms()
            directory.change([(name, node)])
            self.leave("open", path)
        if isinstance(node, _Directory):
            raise DiskFailure(f"open of {path}: it is a directory")
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def real_path(self, path: str) -> str:
        return "/" + "/".join(_parts(path))

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def make_dirs(self, path: str) -> None:
        directory = self._root
        for name in _parts(path):
            node = directory.entries.get(name)
            if node is None:
                self.enter("open", path)
                node = _Directory()
                directory.entries[name] = node
                directory.synced[name] = node
                self.leave("open", path)
            if not isinstance(node, _Directory):
                raise DiskFailure(f"creation of {path}: {name} is a file")
            directory = node

    def make_dir(self, path: str) -> None:
        directory, name = self._parent(path)
        if name in directory.entries:
            raise DiskFailure(f"creation of {path}: it is there already")
        self.enter("open", path)
        directory.change([(name, _Directory())])
        self.leave("open", path)

    def link(self, source: str, target: str) -> None:
        node = self._find(source)
        directory, name = self._parent(target)
        if isinstance(node, _Directory) or name in directory.entries:
            raise DiskFailure(f"link of {source} as {target}: a directory, or the name is taken")
        self.enter("link", target)
        if self._mount_of(source) != self._mount_of(target):
            raise CannotLink(f"link of {source} as {target}: another file system")
        directory.change([(name, node)])
        self.leave("link", target)

    def _mount_of(self, path: str) -> str:
        return max((mount for mount in self.mounts if path.startswith(mount + "/")), key=len, default="")

    def link_count(self, path: str) -> int:
        node = self._find(path)
        return 1 if isinstance(node, _Directory) else node.links

    def read_file(self, path: str) -> bytes:
        node = self._find(path)
        if isinstance(node, _Directory):
            raise DiskFailure(f"read of {path}: it is a directory")
        self.enter("read", path)
        return bytes(node.data)

    def file_size(self, path: str) -> int:
        node = self._find(path)
        return 0 if isinstance(node, _Directory) else len(node.data)

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        node = self._find(path)
        if not isinstance(node, _Directory):
            node.modified_ms = time_ms

    def modified_ms(self, path: str) -> int:
        node = self._find(path)
        return 0 if isinstance(node, _Directory) else node.modified_ms

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        self.remove(temporary)
        file = self.open(temporary, create=True)
        file.append([data])
        file.sync()
        self.rename(temporary, path)
        self.sync_dir(posixpath.dirname(path) or "/")

    def copy(self, source: str, target: str, copied: Callable[[int], None], *, size_bytes: int | None = None) -> None:
        try:
            data = self.read_file(source)[:size_bytes]
        except (FileNotFoundError, DiskFailure) as error:
            if self.dead:
                raise
            raise CorruptData(f"{source} cannot be read: {error}") from error
        file = self.open(target, create=True)
        if file.size_bytes:
            file.truncate(0)
        if data:
            file.append([data])
            copied(len(data))
        file.sync()

    def rename(self, source: str, target: str) -> None:
        before, old_name = self._parent(source)
        after, new_name = self._parent(target)
        node = before.entries.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        self.enter("rename", target)
        if before is after:
            before.change([(old_name, None), (new_name, node)])
        else:
            after.change([(new_name, node)])
            before.change([(old_name, None)])
        self.leave("rename", target)

    def remove(self, path: str) -> None:
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return
        if name in directory.entries:
            self.enter("remove", path)
            directory.change([(name, None)])
            self.leave("remove", path)

    def remove_tree(self, path: str) -> None:
        self.remove(path)

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self.enter("sync_dir", path)
        if not self.skip_sync(path):
            directory.sync()
        self.leave("sync_dir", path)

    def space(self, path: str) -> tuple[int, int]:
        total = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return total, max(0, total - self.used_bytes())

    def lock(self, path: str) -> _MemoryLock:
        if path in self.locks:
            raise StorageLocked(f"{path} is held by another process; stop it, or use another --data-dir")
        self.locks.add(path)
        return _MemoryLock(self, path)

    def lock_to_read(self, path: str) -> _MemoryLock | None:
        if path not in self.locks and not self.exists(path):
            return None
        return self.lock(path)

    # --- the tree ---

    def _find(self, path: str) -> _Node | _Directory:
        node: _Node | _Directory = self._root
        for name in _parts(path):
            if not isinstance(node, _Directory) or name not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            node = node.entries[name]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, "Not a directory", path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        head, name = posixpath.split(path)
        return self._directory(head), name


def _parts(path: str) -> list[str]:
    return [part for part in posixpath.normpath("/" + path).split("/") if part]


def _size(directory: _Directory) -> int:
    return sum(_size(node) if isinstance(node, _Directory) else len(node.data) for node in directory.entries.values())
