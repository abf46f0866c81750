"""The power goes at one disk operation of the file system in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kmirror.storage.memory import Kind, MemoryFileSystem, Phase


class PowerCut(BaseException):
    """Not an Exception: nothing of a broker without power may handle it."""


@dataclass
class Power:
    lasted: bool = True
    """False when the power went before the block was through."""


@contextmanager
def powered_until(fs: MemoryFileSystem, operation: int) -> Iterator[Power]:
    """A PowerCut ends the block at that operation on the disk, and the test goes on behind the block.

    The disk's operations are counted from 1, before and after each; at 0 the power never goes.
    """
    power = Power()
    left = operation

    def observer(_kind: Kind, _path: str, _phase: Phase) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PowerCut

    fs.observer = observer
    try:
        yield power
    except PowerCut:
        power.lasted = False
    finally:
        fs.observer = None
