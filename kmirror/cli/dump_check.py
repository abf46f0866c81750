"""`kmirror dump --verify`: what a check of a data directory finds, as lines, a table, or JSON. Reads only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from kmirror.broker import check_directory
from kmirror.broker.check_directory import DirectoryResult, Watcher
from kmirror.cli.display import note, print_json_line, print_table
from kmirror.cli.failure import BadUsage
from kmirror.cli.file_formats import kind_of, not_ours
from kmirror.errors import CorruptData
from kmirror.storage.check.findings import Finding, ReadOnlyFiles, Severity
from kmirror.storage.checkpoints import LOCK_FILE
from kmirror.storage.errors import StorageLocked
from kmirror.storage.filesystem import OsFileSystem

COLUMNS = ("DIRECTORY", "FILES", "BATCHES", "RECORDS", "BYTES", "DAMAGE", "STALE", "NOTES")


def verify(paths: tuple[Path, ...], *, deep: bool, as_json: bool) -> int:
    """Check each path and print what is found. The exit status: 1 when anything is damaged. Raises BadUsage."""
    damaged = 0
    for path in paths:
        running = is_running(path)
        if running and not as_json:
            note(f"{path}: a broker is running, so that the ends of its logs are moving; they are not judged")
        result = _check(path, running=running, deep=deep, as_json=as_json)
        damaged += result.findings[Severity.DAMAGE]
        if as_json:
            print_json_line(_summary(path, result, running=running))
        else:
            _print_summary(result)
    if damaged:
        note(f"{damaged} damaged")
    return 1 if damaged else 0


def _check(path: Path, *, running: bool, deep: bool, as_json: bool) -> DirectoryResult:
    absolute = path.absolute()
    fs = ReadOnlyFiles()
    if path.is_file() and kind_of(path) is None:
        raise not_ours(path)

    def show(finding: Finding) -> None:
        place = _as_named(path, absolute, finding.path)
        if as_json:
            print_json_line(
                {
                    "kind": "finding",
                    "severity": finding.severity.value,
                    "file": place,
                    "offset": finding.offset,
                    "position": finding.position,
                    "error": finding.text,
                }
            )
        else:
            click.echo(_line(finding, place))

    try:
        size_bytes = check_directory.log_bytes(fs, str(absolute)) if path.is_dir() else path.stat().st_size
        with _progress(size_bytes, enabled=not as_json) as watcher:
            return check_directory.check(fs, str(absolute), show, running=running, deep=deep, watcher=watcher)
    except CorruptData as error:
        raise BadUsage(_as_named(path, absolute, str(error))) from error


def is_running(path: Path) -> bool:
    """Whether a broker, a Kafka too, has the data directory that `path` is or lies in."""
    for directory in (path.absolute(), *path.absolute().parents[:2]):
        lock_file = directory / LOCK_FILE
        if lock_file.is_file():
            try:
                lock = OsFileSystem().lock_to_read(str(lock_file))
            except StorageLocked:
                return True
            if lock is not None:
                lock.release()  # at once: a broker may want to start
            return False
    return False


def _as_named(path: Path, absolute: Path, text: str) -> str:
    """With the path as the user wrote it; what lies beside a named file is named from its directory on."""
    if path.is_file():
        path, absolute = path.parent, absolute.parent
    return text.replace(str(absolute), str(path), 1) if str(path) != "." else text.replace(f"{absolute}/", "", 1)


def _line(finding: Finding, place: str) -> str:
    where = [
        f"{name} {value}"
        for name, value in (("offset", finding.offset), ("byte", finding.position))
        if value is not None
    ]
    return f"{finding.severity.value.upper()} {place}{' (' + ', '.join(where) + ')' if where else ''}: {finding.text}"


def _summary(path: Path, result: DirectoryResult, *, running: bool) -> dict[str, object]:
    totals, findings = result.totals, result.findings
    return {
        "kind": "summary",
        "path": str(path),
        "files": totals.files,
        "batches": totals.batches,
        "records": totals.records,
        "bytes": totals.size_bytes,
        "damage": findings[Severity.DAMAGE],
        "stale": findings[Severity.STALE],
        "notes": findings[Severity.NOTE],
        "running": running,
    }


def _print_summary(result: DirectoryResult) -> None:
    """A row for each partition with findings, and one for everything."""
    rows = []
    for name, counts in sorted(result.worst.items()):
        if name:
            totals = result.partitions[name]
            cells = (totals.files, totals.batches, totals.records, totals.size_bytes)
            rows.append((name, *cells, *(counts[severity] for severity in Severity)))
    totals = result.totals
    cells = (totals.files, totals.batches, totals.records, totals.size_bytes)
    rows.append(("total", *cells, *(result.findings[severity] for severity in Severity)))
    print_table(COLUMNS, rows)


@contextmanager
def _progress(size_bytes: int, *, enabled: bool) -> Iterator[Watcher]:
    """On standard error, and only when somebody looks at it."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not (enabled and sys.stderr.isatty())) as progress:
        bar = progress.add_task("", total=size_bytes)
        yield Watcher(
            on_partition=lambda name: progress.update(bar, description=name),
            on_bytes=lambda count: progress.advance(bar, count),
        )
