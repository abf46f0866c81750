"""The cleaner's process: one job on standard input, its groups on standard output, both JSON. L4.

`python -m kmirror.workers.clean` is started by `kmirror.workers.cleaner` for one round and ends with it. It only reads
sealed segments and writes files whose names end in `.cleaned`; what becomes of them the broker decides. It ends when
the broker does: the rest of standard input is a pipe that closes then.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable

from kmirror.clock import SystemClock
from kmirror.errors import CorruptData, StorageError
from kmirror.limits import CLEANER_NICENESS
from kmirror.storage.cleaning import CleanJob, clean
from kmirror.storage.filesystem import OsFileSystem

DAMAGED_STATUS = 3
"""A batch of the log is damaged: a later round would fail as this one did."""
FAILED_STATUS = 4
"""No space, or the disk failed."""


def throttle(bytes_per_second: float) -> Callable[[int], None]:
    """Sleeps whenever more bytes were read and written than may be by now (log.cleaner.io.max.bytes.per.second)."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    done = 0

    def wait(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        ahead = done / bytes_per_second - (clock.monotonic_ms() - started_ms) / 1000
        if ahead > 0:
            time.sleep(ahead)

    return wait


def _end_with_the_broker() -> None:
    sys.stdin.buffer.read()
    os._exit(FAILED_STATUS)


def main() -> int:
    os.nice(CLEANER_NICENESS)
    given = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_broker, daemon=True).start()
    job = CleanJob.from_plain(given["job"])
    try:
        for step in clean(OsFileSystem(), job, on_bytes=throttle(given["bytes_per_second"])):
            line = {"end": step} if isinstance(step, int) else {"group": step}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    except (CorruptData, StorageError) as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return DAMAGED_STATUS if isinstance(error, CorruptData) else FAILED_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main())
