"""The one table that turns a storage error into the Kafka error code a client sees. L3.

Storage knows nothing of the protocol, handlers know nothing of storage: both meet here. An error that is not in the
table (DiskFailure above all) is not an answer to a client and goes up.
"""

from __future__ import annotations

from kmirror.errors import ApiError, CorruptData, DiskFull, OffsetOutOfRange, ReadOnlyLog, StorageError
from kmirror.protocol.errors import ErrorCode
from kmirror.storage import errors

# Looked up along the class's bases, so that a new subclass of a known error has a code as well.
CODES: dict[type[StorageError], ErrorCode] = {
    CorruptData: ErrorCode.CORRUPT_MESSAGE,
    ReadOnlyLog: ErrorCode.READ_ONLY_TOPIC,
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.FileChanged: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.InvalidRecord: ErrorCode.INVALID_RECORD,
    errors.NotOneBatch: ErrorCode.INVALID_RECORD,
    errors.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    errors.RecordTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    errors.RecordBatchTooLarge: ErrorCode.RECORD_LIST_TOO_LARGE,
    errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.InvalidTxnState: ErrorCode.INVALID_TXN_STATE,
    errors.TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    errors.UnexpectedOffset: ErrorCode.INVALID_RECORD,
    errors.UnexpectedEpoch: ErrorCode.INVALID_RECORD,
}


class RecordsRefused(ApiError):
    """The log refused what is inside a batch; `record_indexes` names the records to blame, when it is single ones."""

    def __init__(self, code: int, message: str, record_indexes: tuple[int, ...]) -> None:
        super().__init__(code, message)
        self.record_indexes = record_indexes


def api_error(error: StorageError) -> ApiError:
    """The client's view of `error`. Raises `error` itself when no client may be answered with it."""
    for base in type(error).__mro__:
        code = CODES.get(base)
        if code is not None:
            if isinstance(error, errors.InvalidRecord | errors.InvalidTimestamp) and not isinstance(
                error, errors.NotOneBatch
            ):
                return RecordsRefused(code, str(error), error.record_indexes)
            return ApiError(code, str(error))
    raise error
