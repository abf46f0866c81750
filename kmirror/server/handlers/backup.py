"""Backup (27501): make a consistent copy of the data directory, and say how far it is.

Versions: 0. kmirror's own request, which ApiVersions does not list; `kmirror backup` sends it.

Behaviour: without an id a backup begins, with an id the one that has it is asked about. The answer comes when the
backup ends, at the latest after `wait_ms`: `done` tells. `stop` ends it, and nothing of it is left. A destination that
is no absolute path, is there already and not an empty directory, has no directory above it or is inside the data
directory: INVALID_REQUEST. While a backup is being made, another is refused with DUPLICATE_RESOURCE. An id that this
broker does not know, since it was started after that backup: RESOURCE_NOT_FOUND. No space, or files that cannot be read
or written: KAFKA_STORAGE_ERROR. The destination is a path of the broker's host: from another host the request is
CLUSTER_AUTHORIZATION_FAILED.

Deviations: Kafka has no such request.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.limits import BACKUP_WAIT_MS
from kmirror.protocol import uuids
from kmirror.protocol.api.backup import BackupRequest, BackupResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled_until

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: BackupRequest) -> BackupResponse:
    if not context.connection.same_host:
        return BackupResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="a backup is a directory on the broker's host: give the command there",
            done=True,
        )
    backups = context.world.backups
    try:
        backup = (
            backups.begin(request.destination) if request.backup_id == uuids.ZERO else backups.find(request.backup_id)
        )
    except ApiError as error:
        return BackupResponse(error_code=error.code, error_message=error.message, done=True)
    backup.stopped = backup.stopped or request.stop
    if request.wait_ms > 0:
        await settled_until([backup.finished], timeout_ms=min(request.wait_ms, BACKUP_WAIT_MS))
    response = BackupResponse(
        backup_id=backup.id,
        done=backup.finished.done,
        partition_count=backup.partition_count,
        total_bytes=backup.total_bytes,
        linked_bytes=backup.linked_bytes,
        copied_bytes=backup.copied_bytes,
        duration_ms=backup.duration_ms,
    )
    if backup.error is not None:
        response.error_code, response.error_message = backup.error.code, backup.error.message
    return response
