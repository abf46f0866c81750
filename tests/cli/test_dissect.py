"""`kmirror dissect`: frames and batches, as bytes and as hexadecimal text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmirror.protocol import frames, registry
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.records import Record, build_batch
from tests.cli.conftest import Run

FRAME = frames.request_frame(
    registry.by_name["Metadata"], 12, 7, "me", MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
)
BATCH = build_batch([Record(b"key", b"value")], base_offset=42)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bytes"


def test_a_request(run: Run, file: Path) -> None:
    file.write_bytes(FRAME)
    ran = run("dissect", file)
    assert ran.status == 0
    assert "MetadataRequest v12" in ran.out
    assert "name = 'orders'" in ran.out


@pytest.mark.parametrize(
    "text", [FRAME.hex(), FRAME.hex(" "), FRAME.hex(":"), "0x" + FRAME.hex().upper(), FRAME.hex("\n") + "\n"]
)
def test_hexadecimal_text(run: Run, file: Path, text: str) -> None:
    file.write_text(text)
    assert "name = 'orders'" in run("dissect", file).out


def test_a_batch_is_recognised(run: Run, file: Path) -> None:
    file.write_bytes(BATCH)
    ran = run("dissect", "--json", file)
    assert ran.status == 0
    shown = json.loads(ran.out)
    assert shown[0]["name"] == "batch"
    assert {"name": "base_offset", "type": "int64", "start": 0, "end": 8, "value": 42} in shown[0]["children"]


def test_a_response_needs_to_be_told(run: Run, file: Path) -> None:
    file.write_bytes(FRAME)
    assert run("dissect", "--as", "response", file).status == 2
    for wrong in ("Metadata", "Nonsense:1", "Metadata:99", "Metadata:x"):
        assert run("dissect", "--response-to", wrong, file).status == 2


def test_damage_is_shown_up_to_where_it_begins(run: Run, file: Path) -> None:
    file.write_bytes(FRAME[4:-8])
    ran = run("dissect", file)
    assert ran.status == 1
    assert "correlation_id = 7" in ran.out
    assert "!!" in ran.out


def test_bytes_that_are_nothing(run: Run, file: Path) -> None:
    for data in (b"", b"hello world, this is text", b"abc"):
        file.write_bytes(data)
        ran = run("dissect", file)
        assert ran.status in (1, 2), data
        assert "Traceback" not in ran.err
