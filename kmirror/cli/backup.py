"""`kmirror backup`: a consistent copy of a data directory, made by the broker that has it, or here when none runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import trio
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kmirror.broker.backup import copy_stopped
from kmirror.cli.display import print_json, print_table
from kmirror.cli.failure import BadUsage, CannotReach, Failure
from kmirror.cli.session import Session, connection_options, json_option, refusal
from kmirror.clock import SystemClock
from kmirror.errors import ConfigError, StorageError
from kmirror.protocol.api.backup import BackupRequest, BackupResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.source.cluster import Cluster
from kmirror.source.connection import Connection
from kmirror.source.errors import PeerClosed
from kmirror.storage.backup import BadDestination
from kmirror.storage.errors import StorageLocked
from kmirror.storage.filesystem import OsFileSystem

VERSION = 0
ASK_AGAIN_MS = 500
"""How long each question waits for the end: as often the progress moves."""
STOP_S = 10.0
"""For the broker's answer when the user does not want the backup any more."""


@click.command("backup")
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.option(
    "--data-dir", metavar="DIR", type=click.Path(path_type=Path), help="Copy this one, whose broker does not run."
)
@json_option
@connection_options
def command(session: Session, destination: Path, data_dir: Path | None, as_json: bool) -> None:
    """Make a consistent copy of a data directory; `kmirror serve --data-dir DEST` starts on it.

    The broker, which must be on this host, goes on serving. All that it had acknowledged before is in the copy. Files
    that do not change any more are linked when DEST is on the same file system: they take no space there.
    """
    target = os.path.abspath(destination)
    try:
        target.encode()
    except UnicodeEncodeError as error:
        raise BadUsage(f"{os.fsencode(target)!r} is not UTF-8: name another DEST") from error
    if data_dir is None:
        result = session.run(lambda cluster: _ask(cluster, target, session.bootstrap, show_progress=not as_json))
    else:
        given = click.get_current_context().get_parameter_source("bootstrap")
        if given is not ParameterSource.DEFAULT:
            raise BadUsage("--data-dir is for a broker that does not run, --bootstrap for one that does: give one")
        result = _copy(data_dir, target, show_progress=not as_json)
    if as_json:
        print_json(result)
    else:
        print_table(
            ("DESTINATION", "PARTITIONS", "BYTES-LINKED", "BYTES-COPIED", "SECONDS"),
            [
                (
                    result["destination"],
                    result["partitions"],
                    result["bytes_linked"],
                    result["bytes_copied"],
                    f"{result['duration_ms'] / 1000:.1f}",
                )
            ],
        )


def _result(destination: str, partitions: int, linked_bytes: int, copied_bytes: int, duration_ms: int) -> Any:
    return {
        "destination": destination,
        "partitions": partitions,
        "bytes_linked": linked_bytes,
        "bytes_copied": copied_bytes,
        "duration_ms": duration_ms,
    }


class _Bar:
    """On standard error, and only when somebody looks at it."""

    def __init__(self, *, enabled: bool) -> None:
        columns = (TextColumn("backup"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
        shown = enabled and sys.stderr.isatty()
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self._task: TaskID = self.progress.add_task("backup", total=None)

    def show(self, done_bytes: int, total_bytes: int | None) -> None:
        self.progress.update(self._task, completed=done_bytes, total=total_bytes or None)


# --- a broker that runs ---------------------------------------------------------------------------------------------


async def _ask(cluster: Cluster, destination: str, bootstrap: str, *, show_progress: bool) -> Any:
    connection = await cluster.connection()
    try:
        answer = await connection.request(BackupRequest(destination=destination), VERSION)
    except PeerClosed as error:
        raise CannotReach(
            f"the broker at {bootstrap} closed the connection when it was asked for a backup: it is no kmirror, or one "
            "that is too old",
            next_step="Stop it, and name its data directory with --data-dir.",
        ) from error
    bar = _Bar(enabled=show_progress)
    with bar.progress:
        try:
            while not answer.done:
                _check(answer, destination)
                question = BackupRequest(backup_id=answer.backup_id, wait_ms=ASK_AGAIN_MS)
                answer = await connection.request(question, VERSION)
                bar.show(answer.linked_bytes + answer.copied_bytes, answer.total_bytes)
        except BaseException:
            await _stop(connection, answer)
            raise
    _check(answer, destination)
    return _result(destination, answer.partition_count, answer.linked_bytes, answer.copied_bytes, answer.duration_ms)


def _check(answer: BackupResponse, destination: str) -> None:
    """Raises Failure; BadUsage for what the command line says."""
    if answer.error_code == ErrorCode.NONE:
        return
    text = f"no backup was made to {destination}: {refusal(answer.error_code, answer.error_message)}"
    if answer.error_code in (ErrorCode.INVALID_REQUEST, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        raise BadUsage(text)
    if answer.error_code == ErrorCode.DUPLICATE_RESOURCE:
        raise Failure(text, next_step="Try again then.")
    raise Failure(text, next_step="Nothing is left of it, and the broker goes on. Its log may say more.")


async def _stop(connection: Connection, answer: BackupResponse) -> None:
    """The user does not want it any more, and nobody would tell them that it was made."""
    if answer.done or connection.closed:
        return
    with trio.move_on_after(STOP_S, shield=True):
        try:
            await connection.request(BackupRequest(backup_id=answer.backup_id, stop=True), VERSION)
        except PeerClosed:
            return


# --- a broker that does not -----------------------------------------------------------------------------------------


def _copy(data_dir: Path, destination: str, *, show_progress: bool) -> Any:
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    linked = copied = 0
    bar = _Bar(enabled=show_progress)

    def told(linked_bytes: int, copied_bytes: int) -> None:
        nonlocal linked, copied
        linked += linked_bytes
        copied += copied_bytes
        bar.show(linked + copied, None)

    try:
        with bar.progress:
            count, _total = copy_stopped(OsFileSystem(), os.path.abspath(data_dir), destination, told)
    except StorageLocked as error:
        raise BadUsage(
            f"{data_dir} is in use", next_step="Ask the broker that runs on it: --bootstrap HOST:PORT, no --data-dir."
        ) from error
    except ConfigError as error:
        raise BadUsage(str(error)) from error
    except BadDestination as error:
        raise BadUsage(f"no backup was made: {error}") from error
    except (StorageError, OSError) as error:
        raise Failure(f"no backup was made to {destination}: {error}", next_step="Nothing is left of it.") from error
    return _result(destination, count, linked, copied, clock.monotonic_ms() - started_ms)
