"""Backup, API key in `private_numbers`: kmirror's own, for its command line."""

from __future__ import annotations

from kmirror.protocol import private_numbers, uuids
from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, Uuid, request, response


@request(key=private_numbers.BACKUP, versions="0", flexible="0+")
class BackupRequest:
    """Begin a backup (`backup_id` zero), or ask how far one is."""

    backup_id: Uuid = uuids.ZERO
    destination: String = ""
    stop: Bool = False
    wait_ms: Int32 = 0


@response(key=private_numbers.BACKUP, versions="0", flexible="0+")
class BackupResponse:
    """How far it is. `done` with an error code: there is no backup, and nothing is left of it."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    backup_id: Uuid = uuids.ZERO
    done: Bool = False
    partition_count: Int32 = 0
    total_bytes: Int64 = 0
    linked_bytes: Int64 = 0
    copied_bytes: Int64 = 0
    duration_ms: Int64 = 0
