"""`kmirror dump`: what is in the files of a data directory, ours or a Kafka broker's. Reads only, needs no broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kmirror.cli.display import iso_time, print_json_line
from kmirror.cli.failure import BadUsage
from kmirror.cli.file_formats import Row, index_damage, kind_of, rows_of
from kmirror.cli.session import json_option


@click.command("dump")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--batches", "batches_only", is_flag=True, help="Batches without their records.")
@click.option("--verify", is_flag=True, help="Check too that offsets and epochs rise and that indexes fit their logs.")
@json_option
def command(paths: tuple[Path, ...], batches_only: bool, verify: bool, as_json: bool) -> int:
    """Print segments, indexes, snapshots and checkpoints: files, partition directories or a data directory.

    Exit status 1 when anything is damaged. With --json one document a line.
    """
    damaged = 0
    for path in files_of(paths):
        if not as_json:
            click.echo(f"{path} ({kind_of(path)})")
        checker = Checker()
        for row in rows_of(path, with_records=not batches_only):
            damage = [row["error"]] if row.get("error") else []
            if verify:
                damage += checker.damage(row)
            damaged += len(damage)
            if as_json:
                print_json_line({"file": str(path), **row, "error": "; ".join(damage) or None})
            else:
                print_row(row, damage)
        if verify and kind_of(path) == "log":
            for text in index_damage(path):
                damaged += 1
                if as_json:
                    print_json_line({"file": str(path), "kind": "damage", "error": text})
                else:
                    click.echo(f"  DAMAGED: {text}")
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
            raise BadUsage(
                f"{path} is no file of a data directory, judging by its name",
                next_step="To look at the bytes of a batch or a frame: kmirror dissect FILE",
            )
        else:
            yield path


class Checker:
    """What has to hold from one batch to the next in a log."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.leader_epoch = -1

    def damage(self, row: Row) -> list[str]:
        if row.get("kind") != "batch":
            return []
        found = []
        if row["base_offset"] < self.next_offset:
            found.append(f"offset {row['base_offset']} comes again; {self.next_offset} was expected")
        if row["leader_epoch"] < self.leader_epoch:
            found.append(f"leader epoch goes back from {self.leader_epoch} to {row['leader_epoch']}")
        self.next_offset = max(self.next_offset, row["last_offset"] + 1)
        self.leader_epoch = max(self.leader_epoch, row["leader_epoch"])
        records = row.get("records")
        if records is not None and len(records) != row["record_count"]:
            found.append(f"{len(records)} records, the header says {row['record_count']}")
        return found


def print_row(row: Row, damage: list[str]) -> None:
    if row.get("kind") == "batch":
        click.echo(f"  {batch_line(row)}")
        for record in row.get("records", ()):
            click.echo(f"    {record_line(record)}")
    else:
        cells = [f"{name}={_shown(value)}" for name, value in row.items() if name not in ("kind", "error")]
        line = " ".join([row["kind"], *cells] if row.get("kind") in ("zeros", "message") else cells)
        if line:
            click.echo(f"  {line}")
    for text in damage:
        click.echo(f"  DAMAGED: {text}")


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
