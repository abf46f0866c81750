"""A broker as a process of its own, for the demo: started on a free port, stopped by its process id, never by name."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from kmirror.cli.failure import Failure

READY_WITHIN_S = 20.0
STOPS_WITHIN_S = 10.0
READY_PREFIX = b"kmirror ready "
SHOWN_LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class ChildBroker:
    """`port`: where it listens itself, whatever it tells its clients."""

    bootstrap: str
    port: int
    pid: int
    directory: Path


@asynccontextmanager
async def child_broker(
    directory: Path, log_file: Path, *, advertised: str | None = None, settings: Mapping[str, str] | None = None
) -> AsyncIterator[ChildBroker]:
    """`kmirror serve` on a free port with its data in `directory`. Raises Failure when it does not get ready.

    `advertised`: the HOST:PORT that clients are told, instead of the one they came to. `settings`: properties.
    """
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "kmirror.cli.main",
        "serve",
        "--data-dir",
        str(directory),
        "--listen",
        f"127.0.0.1:{port}",
    ]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    if advertised is not None:
        command += ["--set", f"advertised.listeners=PLAINTEXT://{advertised}"]
    with log_file.open("wb") as log:
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=log)
    try:
        fields = await _ready_fields(process, log_file)
        yield ChildBroker(fields["bootstrap"], port, process.pid, directory)
    finally:
        with trio.CancelScope(shield=True):
            await _stop(process)


def _free_port() -> int:
    """Chosen here, since a broker that advertises another address announces that one. Somebody may take it first: then
    the broker does not get ready, and says why."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def _ready_fields(process: trio.Process, log_file: Path) -> dict[str, str]:
    assert process.stdout is not None
    seen = b""
    with trio.move_on_after(READY_WITHIN_S):
        while b"\n" not in seen:
            part = await process.stdout.receive_some()
            if not part:
                break
            seen += part
    line = seen.split(b"\n", 1)[0]
    if not line.startswith(READY_PREFIX):
        words = await trio.Path(log_file).read_text(errors="replace")
        tail = "\n".join(words.splitlines()[-SHOWN_LOG_LINES:])
        raise Failure(f"the destination broker did not get ready within {READY_WITHIN_S:g} s. Its last words:\n{tail}")
    pairs = line.removeprefix(READY_PREFIX).decode().split()
    return dict(pair.partition("=")[::2] for pair in pairs)


async def _stop(process: trio.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(STOPS_WITHIN_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    if process.stdout is not None:
        await process.stdout.aclose()
