"""`kmirror dump`: what is in the files of a data directory, ours or a Kafka broker's. Reads only, needs no broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kmirror.cli.display import iso_time, print_json_line
from kmirror.cli.failure import BadUsage
from kmirror.cli.file_formats import Row, kind_of, not_ours, rows_of
from kmirror.cli.session import json_option


@click.command("dump")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--batches", "batches_only", is_flag=True, help="Batches without their records.")
@click.option(
    "--verify",
    "verified",
    is_flag=True,
    help="Check instead of printing: checksums, records, order, indexes, snapshots and checkpoints against the logs.",
)
@json_option
def command(paths: tuple[Path, ...], batches_only: bool, verified: bool, as_json: bool) -> int:
    """Print segments, indexes, snapshots and checkpoints: files, partition directories or a data directory.

    With --verify print what is wrong with them. Exit status 1 when anything is damaged. With --json one document a
    line.
    """
    if verified:
        from kmirror.cli.dump_check import verify

        return verify(paths, deep=not batches_only, as_json=as_json)
    damaged = 0
    for path in files_of(paths):
        if not as_json:
            click.echo(f"{path} ({kind_of(path)})")
        for row in rows_of(path, with_records=not batches_only):
            damaged += bool(row.get("error"))
            if as_json:
                print_json_line({"file": str(path), **row, "error": row.get("error")})
            else:
                print_row(row)
    if damaged:
        click.echo(f"{damaged} damaged", err=True)
    return 1 if damaged else 0


def files_of(paths: tuple[Path, ...]) -> Iterator[Path]:
    """The files as named; of a directory those that are known, the partitions' below it too. Raises BadUsage."""
    for path in paths:
        if path.is_dir():
            known = [file for file in sorted(path.rglob("*")) if file.is_file() and kind_of(file)]
            if not known:
                raise BadUsage(f"{path} holds no segment, index, snapshot or checkpoint")
            yield from known
        elif kind_of(path) is None:
            raise not_ours(path)
        else:
            yield path


def print_row(row: Row) -> None:
    if row.get("kind") == "batch":
        click.echo(f"  {batch_line(row)}")
        for record in row.get("records", ()):
            click.echo(f"    {record_line(record)}")
    else:
        cells = [f"{name}={_shown(value)}" for name, value in row.items() if name not in ("kind", "error", "records")]
        line = " ".join([row["kind"], *cells] if row.get("kind") in ("zeros", "message") else cells)
        if line:
            click.echo(f"  {line}")
        for record in row.get("records", ()):
            click.echo(f"    {record_line(record)}")
    if row.get("error"):
        click.echo(f"  DAMAGED: {row['error']}")


def batch_line(row: Row) -> str:
    kind = "control batch" if row["control"] else "batch"
    parts = [
        f"{kind} offsets={row['base_offset']}..{row['last_offset']} records={row['record_count']}",
        f"position={row['position']} size={row['size_bytes']} epoch={row['leader_epoch']}",
        f"compression={row['compression']} crc={row['crc']}",
    ]
    if row["producer_id"] is not None:
        parts.append(f"producer={row['producer_id']}/{row['producer_epoch']} sequence={_shown(row['base_sequence'])}")
    if row["transactional"]:
        parts.append("transactional")
    if row["timestamp_type"] == "LogAppendTime":
        parts.append("LogAppendTime")
    if row["delete_horizon_ms"] is not None:
        parts.append(f"delete-horizon={_time(row['delete_horizon_ms'])}")
    if row["max_timestamp"] >= 0:
        parts.append(f"max-timestamp={_time(row['max_timestamp'])}")
    return " ".join(parts)


def record_line(record: Row) -> str:
    if "control" in record:
        kind = f"END_TXN {record['control']}" if record["control"] in ("ABORT", "COMMIT") else record["control"]
        decoded = record.get("decoded") or {}
        detail = _decoded({name: value for name, value in decoded.items() if name != "type"})
        return f"{record['offset']} {kind} value={record['value']} {detail}".rstrip()
    if record.get("decoded") is not None:
        return f"{record['offset']} {_decoded(record['decoded'])}"
    parts = [str(record["offset"]), _time(record["timestamp"])]
    parts += [f"{name}={_shown(record[name])}" for name in ("key", "value")]
    parts += [f"header:{name}={_shown(value)}" for name, value in record.get("headers", ())]
    return " ".join(parts)


def _decoded(value: Any) -> str:
    if isinstance(value, dict):
        inner = " ".join(f"{name}={_decoded(item)}" for name, item in value.items() if name != "type")
        name = value.get("type", "")
        return f"{name}({inner})" if name else inner
    if isinstance(value, list):
        return "[" + ", ".join(_decoded(item) for item in value) + "]"
    return _shown(value)


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _time(time_ms: int) -> str:
    return iso_time(time_ms) if 0 <= time_ms < 253_402_300_800_000 else str(time_ms)
