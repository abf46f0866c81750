"""Frames that other people's clients and Apache Kafka exchanged: decoded, and encoded again to the same bytes.

Neither end was ours. Every file says which client, which broker, and how it was captured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kmirror.protocol import dissect, frames, registry
from kmirror.protocol.compile import decode
from kmirror.slices import FileSlice

FOLDER = Path(__file__).with_name("golden")
FILES = sorted(FOLDER.glob("*.json"))
MANY = 200
"""Fewer frames than this would mean that a capture got lost."""


def frames_of(path: Path) -> list[dict[str, Any]]:
    content: dict[str, Any] = json.loads(path.read_text())
    found: list[dict[str, Any]] = content["frames"]
    return found


def test_there_are_frames_of_several_clients() -> None:
    assert len(FILES) >= 5
    assert sum(len(frames_of(path)) for path in FILES) >= MANY


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_frames_come_back_byte_by_byte(path: Path) -> None:
    for entry in frames_of(path):
        api, version, frame = registry.by_name[entry["api"]], entry["version"], bytes.fromhex(entry["hex"])
        where = f"{path.stem} {entry['api']} v{version} {entry['direction']} {entry['correlation_id']}"
        if entry["direction"] == "request":
            header, offset = frames.parse_request_header(frame)
            message = decode(api.request, frame, version, offset=offset, exact=True)
            again = frames.request_frame(api, version, header.correlation_id, header.client_id, message)
            assert (header.api_key, header.api_version) == (api.key, version), where
        else:
            correlation_id, message = frames.parse_response(api, version, frame)
            pieces = frames.response_frame(api, version, correlation_id, message)
            again = b"".join([piece for piece in pieces if not isinstance(piece, FileSlice)])
            assert correlation_id == entry["correlation_id"], where
        assert again[4:] == frame, where


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_frames_can_be_taken_apart(path: Path) -> None:
    """Down to records, without an error and without bytes that nobody explains."""
    for entry in frames_of(path):
        response_to = (entry["api"], entry["version"]) if entry["direction"] == "response" else None
        node = dissect.dissect_frame(bytes.fromhex(entry["hex"]), response_to=response_to)
        text = "\n".join(node.lines())
        assert "!!" not in text, f"{path.stem} {entry['api']} v{entry['version']}\n{text}"
        assert "bytes after the message" not in text
