"""Why an append was refused. L2 storage.

Storage never sees a protocol code: the broker maps these classes to Kafka's error codes in one table. Each class names
the Kafka exception it stands for. `CorruptData`, `ReadOnlyLog`, `DiskFull` and `OffsetOutOfRange` are in
`kmirror.errors`, because other layers raise and catch them too.
"""

from __future__ import annotations

from kmirror.errors import CorruptData, DiskFull, StorageError


class OutOfDescriptors(DiskFull):
    """No file can be opened: like a full disk, nothing is kept of what was tried, and it heals by itself."""


class CannotLink(StorageError):
    """A file gets no second name there: another file system, one without hard links, or too many links."""


class FileChanged(StorageError):
    """A segment's file is gone or has another size than the broker left it with: somebody was at it."""


class AppendRefused(StorageError):
    """The log is fine, the batch is not acceptable; nothing of it was written."""


class InvalidRecord(AppendRefused):
    """The batch or a record inside it breaks a rule of the format (Kafka: InvalidRecordException)."""

    def __init__(self, reason: str, *, record_indexes: tuple[int, ...] = ()) -> None:
        """`record_indexes`: which records of the batch are to blame, when it is single ones."""
        self.record_indexes = record_indexes
        super().__init__(reason)


class NotOneBatch(InvalidRecord):
    """The bytes are none, several, or an older format's batches (Kafka refuses them before it asks the log)."""


class InvalidTimestamp(AppendRefused):
    """A record's time is outside `message.timestamp.{before,after}.max.ms` (Kafka: InvalidTimestampException)."""

    def __init__(self, reason: str, *, record_indexes: tuple[int, ...] = ()) -> None:
        self.record_indexes = record_indexes
        super().__init__(reason)


class RecordTooLarge(AppendRefused):
    """The batch is larger than `max.message.bytes` (Kafka: RecordTooLargeException)."""


class RecordBatchTooLarge(AppendRefused):
    """The batch is larger than `segment.bytes` (Kafka: RecordBatchTooLargeException)."""


class OutOfOrderSequence(AppendRefused):
    """The batch's first sequence does not follow the producer's last one (Kafka: OutOfOrderSequenceException)."""


class InvalidProducerEpoch(AppendRefused):
    """The batch or marker comes from an older producer epoch (Kafka: InvalidProducerEpochException)."""


class InvalidTxnState(AppendRefused):
    """A plain batch of a producer whose transaction is open (Kafka: InvalidTxnStateException)."""


class TransactionCoordinatorFenced(AppendRefused):
    """A marker from an older coordinator epoch (Kafka: TransactionCoordinatorFencedException)."""


class UnexpectedOffset(AppendRefused):
    """A replicated batch begins below the log end or goes back (Kafka: UnexpectedAppendOffsetException)."""


class UnexpectedEpoch(AppendRefused):
    """A replicated batch has a lower leader epoch than the batch before it: the source's log is not this log."""


class StorageLocked(StorageError):
    """Another process has the data directory."""


__all__ = [
    "AppendRefused",
    "CannotLink",
    "CorruptData",
    "FileChanged",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidTimestamp",
    "InvalidTxnState",
    "NotOneBatch",
    "OutOfOrderSequence",
    "RecordBatchTooLarge",
    "RecordTooLarge",
    "StorageLocked",
    "TransactionCoordinatorFenced",
    "UnexpectedEpoch",
    "UnexpectedOffset",
]
