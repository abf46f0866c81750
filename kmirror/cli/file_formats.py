"""What is in the files of a data directory, as plain rows. For `kmirror dump`.

The binary side files are declared here once more, in construct, independent of the code that writes them: a second
statement of a format finds what the first one got wrong, and a dump has to show damaged files too, which the storage
layer rightly refuses to load. Every reader yields rows (dicts of plain values) and reports damage as a row with
`error`, so that what comes before and after the damage is shown.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from construct import (
    Const,
    ConstructError,
    GreedyRange,
    Int16sb,
    Int16ub,
    Int32sb,
    Int32ub,
    Int64sb,
    Struct,
    Terminated,
)

from kmirror.cli import internal_records, old_messages
from kmirror.cli.display import iso_time, readable
from kmirror.cli.failure import BadUsage
from kmirror.errors import CorruptData
from kmirror.protocol.checksum import crc32c
from kmirror.protocol.compression import Compression
from kmirror.protocol.records import BatchHeader, Record, check_crc, parse_header, read_records, walk

Row = dict[str, Any]

OFFSET_INDEX = Struct("relative_offset" / Int32ub, "position" / Int32ub)
TIME_INDEX = Struct("timestamp" / Int64sb, "relative_offset" / Int32ub)
TXN_INDEX = Struct(
    "version" / Const(0, Int16ub),
    "producer_id" / Int64sb,
    "first_offset" / Int64sb,
    "last_offset" / Int64sb,
    "last_stable_offset" / Int64sb,
)
SNAPSHOT_ENTRY = Struct(
    "producer_id" / Int64sb,
    "producer_epoch" / Int16sb,
    "last_sequence" / Int32sb,
    "last_offset" / Int64sb,
    "offset_delta" / Int32sb,
    "timestamp" / Int64sb,
    "coordinator_epoch" / Int32sb,
    "current_transaction_first_offset" / Int64sb,
)
SNAPSHOT = Struct(
    "version" / Int16ub, "crc" / Int32ub, "count" / Int32ub, "entries" / GreedyRange(SNAPSHOT_ENTRY), Terminated
)
SNAPSHOT_CRC_START = 6
METADATA_DIRECTORY = "__cluster_metadata-0"
_SET_ASIDE = re.compile(r"\.[0-9a-f]{32}-(?:delete|stray|future)$")
CONTROL_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
    7: "MIRROR_PID_RESET",
}


def base_offset_of(path: Path) -> int:
    """From the name, as Kafka does it; 0 where the name has none."""
    digits = path.name.split(".")[0].split("-")[0]
    return int(digits) if digits.isdigit() else 0


# --- logs -------------------------------------------------------------------------------------------------------------


def log_rows(path: Path, *, with_records: bool = True) -> Iterator[Row]:
    """One row per batch of a `.log` or a metadata `.checkpoint`, the rest of the file as an error if it is none."""
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        return
    metadata = plain_name(path).endswith(".checkpoint")  # Kafka keeps one beside the partitions, too
    decode = internal_records.decoder_of(METADATA_DIRECTORY if metadata else _partition_of(path))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            yield from _rows_of_log(view, with_records=with_records, decode=decode)
        finally:
            view.release()


def _partition_of(path: Path) -> str:
    """The partition's directory as it was called before it was set aside, or saved below `cut/`."""
    inside_cut = path.parent.parent.parent.name == "cut"
    directory = path.parent.parent.name if inside_cut else path.parent.name
    return _SET_ASIDE.sub("", directory)


def _rows_of_log(view: memoryview, *, with_records: bool, decode: internal_records.Decoder | None) -> Iterator[Row]:
    """Old messages and batches may stand in one log: a broker upgraded in between wrote first these, then those."""
    position = 0
    try:
        while old_messages.magic_at(view, position) in (0, 1):
            row = old_messages.message_row(view, position)
            if row is None:
                break
            if with_records and "wraps_bytes" in row and not row["error"]:
                _unwrap(view, position, row)
            yield row
            position += row["size_bytes"]
        for begin, header in walk(view, position):
            position = begin
            yield batch_row(view, position, header, with_records=with_records, decode=decode)
            position += header.size_bytes
    except CorruptData as error:
        if position < len(view) and not any(view[position:]):
            yield _tail_row(view, position, len(view))
        else:
            yield {"kind": "damage", "position": position, "error": str(error)}
    else:
        if position < len(view):
            yield _tail_row(view, position, len(view))


def _unwrap(view: memoryview, position: int, row: Row) -> None:
    """What a compressed message holds, with the offsets that readers see."""
    try:
        header = parse_header(view, position)
        row["records"] = [record_row(record, header, None) for record in read_records(view, position)]
    except CorruptData as error:
        row["error"] = str(error)


def _tail_row(view: memoryview, position: int, size_bytes: int) -> Row:
    """What stands behind the last whole batch: a preallocated tail of zeros, or half a batch."""
    if not any(view[position:]):
        return {"kind": "zeros", "position": position, "size_bytes": size_bytes - position}
    return {
        "kind": "damage",
        "position": position,
        "error": f"{size_bytes - position} bytes behind the last whole batch are none",
    }


def batch_row(
    data: memoryview,
    position: int,
    header: BatchHeader,
    *,
    with_records: bool = True,
    decode: internal_records.Decoder | None = None,
) -> Row:
    row: Row = {
        "kind": "batch",
        "position": position,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "compression": codec_name(header.compression),
        "timestamp_type": "LogAppendTime" if header.log_append_time else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id if header.has_producer_id else None,
        "producer_epoch": header.producer_epoch if header.has_producer_id else None,
        "base_sequence": header.base_sequence if header.base_sequence >= 0 else None,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "crc": f"{header.crc:#010x}",
        "error": None,
    }
    try:
        check_crc(data, position, header)
        if with_records:
            row["records"] = [record_row(record, header, decode) for record in read_records(data, position)]
    except CorruptData as error:
        row["error"] = str(error)
    return row


def codec_name(codec: int) -> str:
    names = {int(known): known.name.lower() for known in Compression}
    return names.get(codec, f"codec {codec}")


def record_row(record: Record, header: BatchHeader, decode: internal_records.Decoder | None) -> Row:
    row: Row = {"offset": record.offset, "timestamp": record.timestamp}
    if header.is_control:
        return row | control_row(record)
    row["key"] = readable(record.key)
    row["value"] = readable(record.value)
    if record.headers:
        row["headers"] = [[name, readable(value)] for name, value in record.headers]
    if decode is not None:
        row["decoded"] = decode(record.key, record.value)
    return row


def control_row(record: Record) -> Row:
    """The type of a control record and its value, such as the coordinator's epoch of a marker."""
    key, value = record.key or b"", record.value or b""
    if len(key) < 4:
        return {"control": "UNKNOWN", "key": readable(record.key), "value": readable(record.value)}
    type_id = int.from_bytes(key[2:4], "big", signed=True)
    row: Row = {"control": CONTROL_TYPES.get(type_id, f"TYPE_{type_id}"), "version": int.from_bytes(key[:2], "big")}
    row["value"] = "0x" + value.hex()
    row["decoded"] = internal_records.control_value(type_id, value)
    return row


# --- side files -------------------------------------------------------------------------------------------------------


def offset_index_rows(path: Path) -> Iterator[Row]:
    base = base_offset_of(path)
    for entry in _entries(OFFSET_INDEX, path):
        if "error" in entry:
            yield entry
        else:
            yield {"offset": base + entry["relative_offset"], "position": entry["position"]}


def time_index_rows(path: Path) -> Iterator[Row]:
    base = base_offset_of(path)
    for entry in _entries(TIME_INDEX, path):
        if "error" in entry:
            yield entry
        else:
            yield {"timestamp": entry["timestamp"], "offset": base + entry["relative_offset"]}


def txn_index_rows(path: Path) -> Iterator[Row]:
    yield from _entries(TXN_INDEX, path)


def _entries(layout: Struct, path: Path) -> Iterator[Row]:
    data = path.read_bytes()
    size = layout.sizeof()
    for position in range(0, len(data) - size + 1, size):
        try:
            entry = layout.parse(data[position : position + size])
        except ConstructError as error:
            yield {"position": position, "error": f"not an entry: {str(error).splitlines()[-1]}"}
            return
        yield {name: value for name, value in entry.items() if not name.startswith("_")}
    if len(data) % size:
        yield {"position": len(data) - len(data) % size, "error": f"{len(data) % size} bytes are no whole entry"}


def snapshot_rows(path: Path) -> Iterator[Row]:
    """The producers that the log knew at the offset in the file's name."""
    data = path.read_bytes()
    try:
        snapshot = SNAPSHOT.parse(data)
    except ConstructError as error:
        yield {"error": f"not a producer snapshot: {str(error).splitlines()[-1]}"}
        return
    computed = crc32c(data[SNAPSHOT_CRC_START:])
    if computed != snapshot.crc:
        yield {"error": f"checksum is {computed:#010x}, the file says {snapshot.crc:#010x}"}
    if snapshot.count != len(snapshot.entries):
        yield {"error": f"{len(snapshot.entries)} entries, the file says {snapshot.count}"}
    for entry in snapshot.entries:
        row = {name: value for name, value in entry.items() if not name.startswith("_")}
        first = row["current_transaction_first_offset"]
        row["current_transaction_first_offset"] = None if first < 0 else first
        row["timestamp"] = iso_time(row["timestamp"]) if row["timestamp"] >= 0 else None
        yield row


def checkpoint_rows(path: Path) -> Iterator[Row]:
    """`leader-epoch-checkpoint` has two columns, the offset checkpoints three."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) < 2 or not lines[0].isdigit() or not lines[1].isdigit():
        yield {"error": "not a checkpoint: the first two lines are a version and a count"}
        return
    if int(lines[1]) != len(lines) - 2:
        yield {"error": f"{len(lines) - 2} entries, the file says {lines[1]}"}
    for line in lines[2:]:
        words = line.split(" ")
        names = ("epoch", "start_offset") if len(words) == 2 else ("topic", "partition", "offset")
        if len(words) != len(names) or not all(word.lstrip("-").isdigit() for word in words[len(words) == 3 :]):
            yield {"error": f"not an entry: {line!r}"}
        else:
            yield {
                name: int(word) if word.lstrip("-").isdigit() else word for name, word in zip(names, words, strict=True)
            }


def facts_rows(path: Path) -> Iterator[Row]:
    """`log-facts`: in the form of a checkpoint, lines of a word and numbers."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines[:1] != ["0"] or len(lines) < 2 or lines[1] != str(len(lines) - 2):
        yield {"error": "not what kmirror writes: the first two lines are version 0 and a count"}
        return
    for line in lines[2:]:
        key, _, values = line.partition(" ")
        yield {key: values}


def text_rows(path: Path) -> Iterator[Row]:
    """`meta.properties`, `partition.metadata`, `.kafka_cleanshutdown`, `quorum-state`: key and value, whatever the
    separator."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.startswith("{"):
        try:
            yield dict(json.loads(text))
        except ValueError as error:
            yield {"error": f"not JSON: {error}"}
        return
    for line in text.splitlines():
        if line and not line.startswith("#"):
            separator = ":" if ":" in line.split("=")[0] else "="
            key, _, value = line.partition(separator)
            yield {key.strip(): value.strip()}


# --- which reader -----------------------------------------------------------------------------------------------------

READERS = {
    ".index": ("offset index", offset_index_rows),
    ".timeindex": ("time index", time_index_rows),
    ".txnindex": ("transaction index", txn_index_rows),
    ".snapshot": ("producer snapshot", snapshot_rows),
}
TEXT_FILES = ("meta.properties", "partition.metadata", ".kafka_cleanshutdown", "quorum-state")
FACTS_FILE = "log-facts"
LOG_SUFFIXES = (".log", ".checkpoint")
_ON_ITS_WAY = re.compile(r"(?:\.deleted|\.swap|(?:\.[0-9a-f]{8})?\.cleaned|\.part)$")
"""What a segment's file is called before it has its place, or after it had: `.cleaned` with a number before it, too."""


def plain_name(path: Path) -> str:
    """Without the suffix of a file that is on its way in or out."""
    return _ON_ITS_WAY.sub("", path.name)


def kind_of(path: Path) -> str | None:
    """What the file is, by its name; None for one that is none of ours."""
    name = plain_name(path)
    suffix = Path(name).suffix
    if suffix in LOG_SUFFIXES:
        return "log"
    if suffix in READERS:
        return READERS[suffix][0]
    if name.endswith("-checkpoint"):
        return "checkpoint"
    if name == FACTS_FILE:
        return "log facts"
    return "text" if name in TEXT_FILES else None


def not_ours(path: Path) -> BadUsage:
    """What to raise for a file of no known kind."""
    return BadUsage(
        f"{path} is no file of a data directory, judging by its name",
        next_step="To look at the bytes of a batch or a frame: kmirror dissect FILE",
    )


def rows_of(path: Path, *, with_records: bool = True) -> Iterator[Row]:
    kind = kind_of(path)
    if kind == "log":
        yield from log_rows(path, with_records=with_records)
    elif kind == "checkpoint":
        yield from checkpoint_rows(path)
    elif kind == "text":
        yield from text_rows(path)
    elif kind == "log facts":
        yield from facts_rows(path)
    elif kind is not None:
        yield from READERS[Path(plain_name(path)).suffix][1](path)
