"""`leader-epoch-checkpoint` against the batches. L2 storage. Kafka: LeaderEpochFileCache.

What must hold: each batch lies, from its first offset to its last, in the range of its own epoch. Epochs without a
batch are no mistake: a leader may have written nothing, and compaction may have taken all it wrote.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from kmirror.errors import CorruptData
from kmirror.protocol.checksum import crc32c
from kmirror.protocol.records import BatchHeader
from kmirror.storage.checkpoints import parse_epochs


class EpochCheck:
    """Give it each batch in turn. `data` is None when there is no file.

    Epochs begin at the log start. Where that is not known, what the file says of it is believed.
    """

    def __init__(self, data: bytes | None, *, first_offset: int, log_start_offset: int | None) -> None:
        self.missing = data is None
        self.broken = ""
        self.seen = False
        """Whether any batch had an epoch."""
        self.last_batch_epoch = -1
        self.checksum = crc32c(data or b"")
        self._entries: list[tuple[int, int]] = []
        self._found: list[tuple[int, int, str]] = []
        """(offset, epoch, text); one for each range in which something is wrong."""
        self._reported: set[tuple[int, int]] = set()
        if data is not None:
            try:
                self._entries = parse_epochs(data)
            except CorruptData as error:
                self.broken = str(error)
        self._starts = [start for _, start in self._entries]
        if log_start_offset is None:
            log_start_offset = self._starts[0] if self._starts else 0
        self._log_start = max(first_offset, log_start_offset)

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else -1

    @property
    def last_start(self) -> int:
        return self._entries[-1][1] if self._entries else -1

    def batch(self, header: BatchHeader, first_offset: int) -> None:
        """`first_offset`: of its first record, where the header does not tell (magic 0 and 1)."""
        if header.leader_epoch < 0:
            return
        self.seen = True
        self.last_batch_epoch = header.leader_epoch
        if self.missing or self.broken or header.last_offset < self._log_start:
            return
        for offset in {max(min(header.base_offset, first_offset), self._log_start), header.last_offset}:
            said = self._epoch_at(offset)
            if said != header.leader_epoch and (said, header.leader_epoch) not in self._reported:
                self._reported.add((said, header.leader_epoch))
                text = f"offset {offset} was written in epoch {header.leader_epoch}, " + (
                    f"it says {said}" if said >= 0 else "it begins later"
                )
                self._found.append((offset, header.leader_epoch, text))

    def _epoch_at(self, offset: int) -> int:
        at = bisect_right(self._starts, offset) - 1
        return self._entries[at][0] if at >= 0 else -1

    def mistakes(self, *, behind: bool) -> Iterator[tuple[int, str]]:
        """(offset, text). `behind`: the file may not have the newest epochs yet."""
        for offset, epoch, text in self._found:
            if not (behind and epoch > self.latest):
                yield offset, text
