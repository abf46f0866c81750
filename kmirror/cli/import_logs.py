"""`kmirror import`: partition directories that an Apache Kafka wrote, taken into a data directory. Needs no broker.

Exit status: 0 all imported, 1 a topic was refused (the table says which and why), 2 a directory is in use or cannot be
meant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kmirror.cli.display import note, print_json, print_table
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.serve import DEFAULT_DIRECTORY
from kmirror.cli.session import comma_list, json_option
from kmirror.errors import ApiError, ConfigError, StorageError
from kmirror.protocol import uuids

if TYPE_CHECKING:
    from kmirror.broker.import_plan import TopicPlan
    from kmirror.broker.importing import ImportReport, ImportRequest, Progress

TOPICS_NAMED = 20
"""In one message; --json has all."""


@click.command("import")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--data-dir", metavar="D", default=DEFAULT_DIRECTORY, show_default=True, help="Where to import into.")
@click.option("--topics", metavar="LIST", help="Names or regular expressions, comma separated; all without it.")
@click.option("--set", "pairs", metavar="TOPIC:KEY=VALUE", multiple=True, help="A setting that the topic gets.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; no record is read, nothing is changed.")
@json_option
def command(
    directories: tuple[Path, ...],
    data_dir: str,
    topics: str | None,
    pairs: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Take over topics from log directories of an Apache Kafka (log.dirs), or of another kmirror.

    No broker may run on any of them. Every DIR is only read. Offsets, batches, leader epochs and topic ids stay what
    they are; each batch is checked. Several DIRs (disks, brokers) together must have each partition of a topic once.
    """
    from kmirror.storage.errors import StorageLocked

    request = _request(directories, topics, pairs)
    target = str(Path(data_dir).resolve())
    try:
        report = _plan(target, request) if dry_run else _run(target, request)
    except (ConfigError, StorageLocked) as error:
        raise BadUsage(str(error)) from error
    except StorageError as error:
        next_step = "" if dry_run else "What was not finished is removed by the next start or import."
        raise Failure(str(error), next_step=next_step) from error
    unmatched = _unmatched(topics, report)
    if as_json:
        print_json(_as_json(report, unmatched, dry_run=dry_run))
    else:
        _show(report, unmatched, dry_run=dry_run)
    return 1 if report.refused or unmatched else 0


def _request(directories: tuple[Path, ...], topics: str | None, pairs: tuple[str, ...]) -> ImportRequest:
    """Raises BadUsage."""
    from kmirror.broker.importing import ImportRequest
    from kmirror.mirror.sync import Patterns

    settings: dict[str, dict[str, str]] = {}
    for pair in pairs:
        name, colon, setting = pair.partition(":")
        key, equals, value = setting.partition("=")
        if not (colon and equals and name.strip() and key.strip()):
            raise BadUsage(f"--set {pair}: write TOPIC:KEY=VALUE")
        settings.setdefault(name.strip(), {})[key.strip()] = value.strip()
    try:
        patterns = Patterns(comma_list(topics))
    except ApiError as error:
        raise BadUsage(f"--topics {topics}: {error.message}") from error
    if topics is not None and not patterns:
        raise BadUsage("--topics: no name is given")
    wants = patterns.matches if patterns else lambda name: True
    return ImportRequest([str(path.resolve()) for path in directories], wants, settings)


def _unmatched(topics: str | None, report: ImportReport) -> list[str]:
    """Names and expressions of --topics that no topic matched: more likely misspelt than meant."""
    from kmirror.mirror.sync import Patterns

    names = [plan.name for plan in report.topics]
    return [pattern for pattern in comma_list(topics) if not any(map(Patterns([pattern]).matches, names))]


def _plan(target: str, request: ImportRequest) -> ImportReport:
    from kmirror.broker.importing import plan_import
    from kmirror.storage.filesystem import OsFileSystem

    return plan_import(OsFileSystem(), target, request)


def _run(target: str, request: ImportRequest) -> ImportReport:
    from kmirror.broker.config import BrokerConfig
    from kmirror.broker.importing import run_import
    from kmirror.clock import SystemClock
    from kmirror.storage.filesystem import OsFileSystem
    from kmirror.storage.open_files import raise_descriptor_limit

    raise_descriptor_limit()
    config = BrokerConfig.from_properties({"log.dirs": target})
    with _progress() as progress:
        return run_import(OsFileSystem(), target, config, SystemClock(), request, progress)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as shown:
        yield _Bar(shown)


class _Bar:
    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._task = shown.add_task("reading directories", total=None)

    def begin(self, total_bytes: int) -> None:
        self._shown.update(self._task, total=total_bytes)

    def advance(self, topic: str, size_bytes: int) -> None:
        self._shown.update(self._task, description=topic, advance=size_bytes)


# --- what is shown ----------------------------------------------------------------------------------------------


def _status(plan: TopicPlan) -> str:
    return "refused" if plan.refusal is not None else "imported" if plan.done else "would be imported"


def _id_text(plan: TopicPlan) -> str | None:
    return None if plan.topic_id is None else uuids.to_text(plan.topic_id)


def _show(report: ImportReport, unmatched: list[str], *, dry_run: bool) -> None:
    rows = [
        (plan.name, _id_text(plan), len(plan.partitions) or None, plan.offsets, plan.size_bytes, _status(plan))
        for plan in report.topics
    ]
    columns = ("TOPIC", "ID", "PARTITIONS", "OFFSETS", "BYTES", "STATUS")
    print_table(columns, rows, empty="no topic is in there that is wanted")
    for plan in report.topics:
        for text in plan.notes:
            note(f"{plan.name}: {text}")
    _show_unknown_settings(report)
    for path, why in report.passed_over:
        note(f"not imported: {path}: {why}")
    for text in report.notes:
        note(f"note: {text}")
    for plan in report.refused:
        note(f"refused: {plan.name}: {plan.refusal}")
    for pattern in unmatched:
        note(f"--topics {pattern}: no topic in there matches")
    if not dry_run and any(plan.done for plan in report.topics):
        note("what was set there in server.properties (log.retention.hours, ...) is to be given to kmirror serve too")


def _show_unknown_settings(report: ImportReport) -> None:
    """One message for all of them: a ZooKeeper-era directory may hold thousands."""
    from kmirror.broker.import_plan import KEPT_FOR_EVER

    unset = [plan for plan in report.topics if plan.configs == KEPT_FOR_EVER]
    names = [plan.name for plan in unset if plan.refusal is None and not plan.settings_known]
    if names:
        named = ", ".join(names[:TOPICS_NAMED]) + (", ..." if len(names) > TOPICS_NAMED else "")
        note(
            f"settings of {len(names)} topics are not known ({named}): without --set TOPIC:KEY=VALUE they are kept for "
            "ever (retention.ms=-1) and not compacted. Later: kmirror config alter topic NAME --set KEY=VALUE"
        )


def _as_json(report: ImportReport, unmatched: list[str], *, dry_run: bool) -> dict[str, Any]:
    """Unknown is null."""
    return {
        "dry_run": dry_run,
        "topics": [
            {
                "topic": plan.name,
                "topic_id": _id_text(plan),
                "partitions": len(plan.partitions) or None,
                "offsets": plan.offsets if plan.done else None,
                "bytes": plan.size_bytes,
                "status": _status(plan).replace("would be imported", "planned"),
                "configs": plan.configs,
                "settings_known": plan.settings_known,
                "reason": plan.refusal,
                "notes": plan.notes,
            }
            for plan in report.topics
        ],
        "not_imported": [{"path": path, "reason": why} for path, why in report.passed_over],
        "unmatched": unmatched,
        "notes": report.notes,
    }
