"""Errors that cross layers. L0: imports nothing of kmirror.

Two families. *Peer errors* say that somebody else sent or asked something wrong (`DecodeError`, `ApiError`); they end
in a response code or a closed connection. *Own errors* say that this process or its disk is in trouble (`EncodeError`,
`StorageError`); they are never turned into a silent default.
"""

from __future__ import annotations


class KmirrorError(Exception):
    """Base of every error that kmirror raises on purpose."""


class DecodeError(KmirrorError):
    """A peer sent bytes that are not the message they claim to be. The connection that sent them is closed."""

    def __init__(self, reason: str, *, api: str = "", version: int = -1, path: str = "", offset: int = -1) -> None:
        self.reason = reason
        self.api = api
        self.version = version
        self.path = path
        self.offset = offset
        where = f"{api} v{version} " if api else ""
        at = f" at {path}" if path else ""
        byte = f" (byte {offset})" if offset >= 0 else ""
        super().__init__(f"{where}{reason}{at}{byte}")


class EncodeError(KmirrorError):
    """We tried to send something that the message's version cannot carry: a bug of ours."""


class ApiError(KmirrorError):
    """A request, or one item of it, is refused with a Kafka error code.

    `code` is a value of `kmirror.protocol.errors.ErrorCode`; `message` says what the caller can do about it.
    """

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = int(code)
        self.message = message
        super().__init__(f"error {int(code)}: {message or ''}")


class ConfigError(KmirrorError):
    """A property or option is unknown, unsupported or not parsable; the text names the way round it."""


class StorageError(KmirrorError):
    """The log layer cannot do what was asked."""


class CorruptData(StorageError):
    """Bytes on disk, or bytes handed in for an append, are not a valid log."""


class DiskFull(StorageError):
    """A write failed for lack of space. It was cut back; nothing of it is kept. Reads go on, freed space heals it."""


class DiskFailure(StorageError):
    """EIO, a failed fsync, or anything after which memory and disk may disagree. The process must stop."""


class ReadOnlyLog(StorageError):
    """The log's mode does not let this origin append (a mirror that has not been failed over)."""


class OffsetOutOfRange(StorageError):
    """A read or a cut named an offset outside [log_start_offset, log_end_offset]."""
