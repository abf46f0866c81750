"""`kmirror dump` over directories that Apache Kafka wrote: against golden text, and against Kafka's own dump tool.

KMIRROR_REWRITE=1 writes the golden text anew.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import struct as packing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kmirror.cli import file_formats
from kmirror.cli.internal_records import decoder_of
from kmirror.protocol.internal import consumer_offsets, transaction_state
from kmirror.protocol.records import Record, build_batch, end_txn_marker, mirror_pid_reset
from tests.cli.conftest import Run

SEGMENTS = Path(__file__).parents[1] / "storage" / "segments" / "4.4.0"
INTERNAL = Path(__file__).parent / "segments"
"""Partitions of internal topics that Apache Kafka 4.4.0 wrote, for librdkafka and kmirror as clients."""
GOLDEN = Path(__file__).parent / "golden"
DIRECTORIES = sorted(path.name for path in SEGMENTS.iterdir() if path.is_dir())
KAFKA_NAMES = {
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "count": "record_count",
    "baseSequence": "base_sequence",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "partitionLeaderEpoch": "leader_epoch",
    "isTransactional": "transactional",
    "isControl": "control",
    "position": "position",
    "size": "size_bytes",
    "compresscodec": "compression",
    "crc": "crc",
}


def check_golden_text(run: Run, name: str) -> None:
    """Of the partition of that name in the current directory."""
    ran = run("dump", name)
    assert (ran.status, ran.err) == (0, "")
    golden = GOLDEN / f"dump-{name}.txt"
    if os.environ.get("KMIRROR_REWRITE") == "1":
        golden.write_text(ran.out)
    assert ran.out == golden.read_text()


@pytest.mark.parametrize("name", ["txn-0", "idem-0", "epochs-0", "compact-0", "txn-open-0", "append-time-0"])
def test_golden_text(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(SEGMENTS)
    check_golden_text(run, name)


@pytest.mark.parametrize("name", sorted(path.name for path in INTERNAL.iterdir()))
def test_golden_text_of_internal_topics(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Groups with what their members said to each other, committed offsets, transactions, and tombstones."""
    monkeypatch.chdir(INTERNAL)
    check_golden_text(run, name)


def test_internal_records_that_nobody_understands_are_shown_as_bytes() -> None:
    offsets, transactions = decoder_of("__consumer_offsets-0"), decoder_of("__transaction_state-7")
    assert offsets is not None and transactions is not None
    unknown = {"record_type": 5, "key": "0x000501", "value": "0x02"}
    assert offsets(b"\0\5\1", b"\2") == unknown
    assert transactions(b"\0\5\1", b"\2") == unknown
    for decode in (offsets, transactions):
        assert "error" in decode(b"\0", b"")
        assert decode(None, b"") is None
    key = consumer_offsets.encode_key(consumer_offsets.GroupMetadataKey(group="g"))
    member = consumer_offsets.GroupMember(member_id="m", subscription=b"\1\2", assignment=b"")
    group = consumer_offsets.GroupMetadataValue(protocol_type="connect", members=[member])
    shown = offsets(key, consumer_offsets.encode_value(group))
    assert shown["value"]["members"][0]["subscription"] == "0x0102"
    assert offsets(key, None) == {"key": {"type": "GroupMetadataKey", "group": "g"}, "value": None}
    transaction = transaction_state.encode_value(transaction_state.TransactionLogValue(transaction_status=3))
    shown = transactions(transaction_state.encode_key("t"), transaction)
    assert shown["value"]["transaction_status"] == "PrepareAbort"


# --- magic 0 and 1 ----------------------------------------------------------------------------------------------------


def old_message(offset: int, magic: int, key: bytes | None, value: bytes | None, attributes: int = 0) -> bytes:
    """Laid out by hand, from the message format of Kafka 0.10."""
    body = packing.pack(">bb", magic, attributes) + (packing.pack(">q", 1500) if magic else b"")
    for part in (key, value):
        body += packing.pack(">i", -1 if part is None else len(part)) + (part or b"")
    message = packing.pack(">I", crc32(body)) + body
    return packing.pack(">qi", offset, len(message)) + message


def test_old_messages_are_shown_for_what_they_are(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "old-0" / "00000000000000000000.log"
    log.parent.mkdir()
    messages = [
        old_message(0, 0, b"k", b"v"),
        old_message(1, 1, None, None),
        old_message(4, 1, None, gzip.compress(old_message(0, 1, b"a", b"b") + old_message(1, 1, b"a", b"c")), 1 | 8),
        build_batch([Record(None, b"new")], base_offset=5, timestamp_ms=1),
    ]
    log.write_bytes(b"".join(messages))
    log.with_suffix(".index").write_bytes(packing.pack(">ii", 1, len(messages[0])))
    ran = run("dump", "--json", log)
    assert (ran.status, ran.err) == (0, "")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [(row["kind"], row.get("magic"), row.get("offset"), row["error"]) for row in rows] == [
        ("message", 0, 0, None),
        ("message", 1, 1, None),
        ("message", 1, 4, None),
        ("batch", None, None, None),
    ]
    assert [(row["timestamp"], row["timestamp_type"]) for row in rows[:3]] == [
        (None, None),
        (1500, "CreateTime"),
        (1500, "LogAppendTime"),
    ]
    assert (rows[0]["key"], rows[0]["value"], rows[1]["value"]) == ("k", "v", None)
    assert (rows[2]["compression"], rows[2]["wraps_bytes"] > 40, "value" in rows[2]) == ("gzip", True, False)
    assert [(record["offset"], record["value"]) for record in rows[2]["records"]] == [(3, "b"), (4, "c")]
    shown = run("dump", log).out
    assert "message position=0" in shown and "key=a value=b" in shown
    assert run("dump", "--verify", log).status == 0


def test_damaged_old_messages_are_found(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "00000000000000000000.log"
    whole = old_message(0, 0, b"k", b"v") + old_message(1, 1, b"k", b"v")
    for data, said in (
        (whole[:-1] + b"w", "checksum"),
        (whole[:-1], "behind the last whole batch"),
        (whole[:20], "behind the last whole batch"),
        (whole[:8] + packing.pack(">i", -5) + whole[12:], "below"),
    ):
        log.write_bytes(data)
        assert any(said in line for line in damaged_lines(run, log)), said


def kafkas_batches(dump: Path) -> list[dict[str, str]]:
    """The batch lines of kafka-dump-log, with our names."""
    found = []
    for line in dump.read_text().splitlines():
        if line.startswith("baseOffset:"):
            pairs = re.findall(r"(\w+): (\S+)", line)
            found.append({KAFKA_NAMES[name]: value for name, value in pairs if name in KAFKA_NAMES})
    return found


def as_kafka_prints(value: Any) -> str:
    if value is None:
        return "-1"
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value, 16)) if isinstance(value, str) and value.startswith("0x") else str(value)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_batches_are_those_of_kafkas_dump_tool(name: str) -> None:
    dumps = sorted((SEGMENTS / name).glob("*.dump.txt"))
    assert dumps
    for dump in dumps:
        theirs = kafkas_batches(dump)
        assert theirs
        ours = list(file_formats.log_rows(dump.with_name(dump.name.replace(".dump.txt", ".log"))))
        shown = [
            {field: as_kafka_prints(row[field]) for field in batch} for row, batch in zip(ours, theirs, strict=True)
        ]
        assert shown == theirs


def test_json_is_one_document_a_line(run: Run) -> None:
    ran = run("dump", "--json", SEGMENTS / "txn-0")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert all(row["error"] is None for row in rows)
    controls = [record["control"] for row in rows for record in row.get("records", ()) if "control" in record]
    assert controls == ["COMMIT", "ABORT", "COMMIT", "ABORT", "COMMIT"]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    copied = tmp_path / "txn-0"
    shutil.copytree(SEGMENTS / "txn-0", copied)
    return copied


def damaged_lines(run: Run, *arguments: Any) -> list[str]:
    ran = run("dump", *arguments)
    lines = [line.strip() for line in ran.out.splitlines() if "DAMAGED" in line]
    assert ran.status == (1 if lines else 0)
    return lines


def test_a_flipped_bit_is_found(run: Run, partition: Path) -> None:
    log = partition / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    assert any("checksum" in line for line in damaged_lines(run, log))


def test_half_a_batch_at_the_end_is_found(run: Run, partition: Path) -> None:
    log = partition / "00000000000000000003.log"
    log.write_bytes(log.read_bytes()[:-10])
    assert any("behind the last whole batch" in line for line in damaged_lines(run, log))


def test_zeros_at_the_end_are_shown_and_no_damage(run: Run, partition: Path) -> None:
    log = partition / "00000000000000000003.log"
    log.write_bytes(log.read_bytes() + bytes(100))
    ran = run("dump", log)
    assert "zeros" in ran.out


@pytest.mark.parametrize("suffix", [".timeindex", ".txnindex", ".snapshot"])
def test_side_files_cut_short_are_found(run: Run, partition: Path, suffix: str) -> None:
    file = next(path for path in sorted(partition.glob(f"*{suffix}")) if path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    assert damaged_lines(run, file)


def test_a_snapshot_with_a_wrong_checksum_is_found(run: Run, partition: Path) -> None:
    file = partition / "00000000000000000021.snapshot"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert any("checksum" in line for line in damaged_lines(run, file))


def test_checkpoints_that_are_none_are_found(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "leader-epoch-checkpoint"
    for text in ("0\n2\n0 0\n", "nonsense\n", "0\n1\nx y\n"):
        file.write_text(text)
        assert damaged_lines(run, file), text
    file.write_text("0\n2\n0 0\n3 17\n")
    assert damaged_lines(run, file) == []


def test_what_a_failover_writes_is_readable(run: Run, tmp_path: Path) -> None:
    marker = end_txn_marker(commit=False, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp_ms=1)
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(marker + (1).to_bytes(8, "big") + mirror_pid_reset(timestamp_ms=1)[8:])
    ran = run("dump", log)
    assert "0 END_TXN ABORT value=0x000000000003 coordinator_epoch=3" in ran.out
    assert "1 MIRROR_PID_RESET value=0x000000 version=0" in ran.out


def test_other_files_are_refused(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "holiday.jpeg"
    other.write_bytes(b"x")
    for path in (other, tmp_path, tmp_path / "gone"):
        assert run("dump", path).status == 2
