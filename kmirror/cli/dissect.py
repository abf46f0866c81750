"""`kmirror dissect`: the bytes of a frame or of record batches, field by field: where each lies and what it means."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from kmirror.cli.display import print_json
from kmirror.cli.failure import BadUsage, Failure
from kmirror.cli.session import json_option
from kmirror.protocol import registry
from kmirror.protocol.dissect import Node, dissect_frame, show
from kmirror.protocol.dissect_batch import dissect_batches
from kmirror.protocol.records import HEADER_SIZE_BYTES, LENGTH_PREFIX_BYTES, MAGIC_POSITION

KINDS = ("auto", "request", "response", "batch")
LARGEST_BYTES = 64 * 1024 * 1024
"""More than a person will read; a whole segment file belongs to `kmirror dump`."""
_HEX = re.compile(rb"(?:0x)?[0-9a-fA-F\s:,]+")


@click.command("dissect")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option("--as", "kind", type=click.Choice(KINDS), default="auto", show_default=True)
@click.option("--response-to", metavar="API:VERSION", help="The bytes answer this request, such as Fetch:12.")
@json_option
def command(file: Path, kind: str, response_to: str | None, as_json: bool) -> int:
    """Explain bytes, or hexadecimal text, from a file or standard input (-).

    A request says itself what it is, a batch is recognised; of a response one must know the request.
    """
    raw = sys.stdin.buffer.read(LARGEST_BYTES + 1) if str(file) == "-" else _read(file)
    if len(raw) > LARGEST_BYTES:
        raise BadUsage(f"more than {LARGEST_BYTES} bytes", next_step="For a segment file use: kmirror dump FILE")
    data = from_hex(raw)
    if not data:
        raise BadUsage("there are no bytes")
    if kind == "response" and response_to is None:
        raise BadUsage("a response does not say what it answers", next_step="Give --response-to API:VERSION.")
    nodes = nodes_of(data, kind, response_to)
    if as_json:
        print_json([as_plain(node) for node in nodes])
    else:
        click.echo(f"{'BYTE':>8} {'SIZE':>6}  FIELD")
        for node in nodes:
            for line in node.lines():
                click.echo(line)
    return 1 if any(has_error(node) for node in nodes) else 0


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(LARGEST_BYTES + 1)


def from_hex(raw: bytes) -> bytes:
    """The bytes that hexadecimal text stands for (spaces, colons, commas and 0x are passed over), else `raw` itself."""
    if not _HEX.fullmatch(raw.strip() or b"-"):
        return raw
    digits = re.sub(rb"0x|[\s:,]", b"", raw.strip())
    if len(digits) % 2:
        raise BadUsage(f"{len(digits)} hexadecimal digits: one is missing or too many")
    return bytes.fromhex(digits.decode())


def nodes_of(data: bytes, kind: str, response_to: str | None) -> list[Node]:
    """Raises BadUsage (no such API or version) and Failure (neither a frame nor a batch)."""
    if response_to is None and (kind == "batch" or (kind == "auto" and looks_like_a_batch(data))):
        return dissect_batches(data)
    try:
        return [dissect_frame(data, response_to=_api_and_version(response_to))]
    except KeyError as error:
        raise Failure(
            f"this is no request that kmirror knows: {error.args[0]}",
            next_step="Say what it is: --as batch, or --response-to API:VERSION.",
        ) from error


def looks_like_a_batch(data: bytes) -> bool:
    """Magic 2 at its place and a length that a batch can have. As a request this would be API key 0 of version 0."""
    if len(data) < HEADER_SIZE_BYTES:
        return False
    length = int.from_bytes(data[8:12], "big", signed=True)
    return data[MAGIC_POSITION] == 2 and HEADER_SIZE_BYTES - LENGTH_PREFIX_BYTES <= length <= len(data)


def _api_and_version(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, _, version = text.partition(":")
    api = next((api for api in registry.by_name.values() if api.name.lower() == name.lower()), None)
    if api is None or not version.isdigit():
        raise BadUsage(f"--response-to {text}: write API:VERSION, such as Fetch:12")
    if not api.min_version <= int(version) <= api.max_version:
        raise BadUsage(f"{api.name} has versions {api.min_version} to {api.max_version}, not {version}")
    return api.name, int(version)


def has_error(node: Node) -> bool:
    return node.error is not None or any(has_error(child) for child in node.children)


def as_plain(node: Node) -> dict[str, Any]:
    """A node as JSON: `value` as text for everything that JSON has no form for."""
    value = node.value
    plain: dict[str, Any] = {"name": node.name, "type": node.kind, "start": node.start, "end": node.end}
    if node.children:
        plain["children"] = [as_plain(child) for child in node.children]
    elif value is None or isinstance(value, str | int | float | bool):
        plain["value"] = value
    elif isinstance(value, bytes | memoryview):
        plain["value"] = show(node.name, value) if node.name.endswith("_id") else "0x" + bytes(value).hex()
    else:
        plain["value"] = str(value)
    if node.error is not None:
        plain["error"] = node.error
    return plain
