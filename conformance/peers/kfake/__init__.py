"""kfake (the fake broker of franz-go, in Go) as a peer: built once from the Go module proxy, run as a process."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from conformance.peers.maven import find_program
from conformance.peers.processes import PeerProcess, PeerUnavailable, answers_api_versions, cache_home, free_port

_SOURCE = Path(__file__).parent
_BUILD_TIMEOUT_S = 600
_READY_TIMEOUT_S = 20.0


def build() -> Path:
    """The binary, built when its sources changed. PeerUnavailable without a Go tool chain or module proxy."""
    sources = b"".join((_SOURCE / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    binary = cache_home() / "kfake" / hashlib.sha256(sources).hexdigest()[:16] / "kfake"
    if binary.exists():
        return binary
    go = find_program("go", purpose="build kfake", hint="Install Go 1.26 or newer.")
    binary.parent.mkdir(parents=True, exist_ok=True)
    partial = binary.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [go, "build", "-o", str(partial), "."],
        cwd=_SOURCE,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise PeerUnavailable(f"kfake does not build:\n{done.stderr[-2000:]}")
    partial.rename(binary)
    return binary


class KfakeBroker:
    """One kfake process. Data lie in `directory`, flushed per batch with `sync`."""

    def __init__(self, directory: Path, *, sync: bool = False) -> None:
        self.directory = directory
        self.sync = sync
        self.port = free_port()
        self.answered_s = 0.0
        self._process: PeerProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> PeerProcess:
        assert self._process is not None, "kfake was not started"
        return self._process

    def __enter__(self) -> KfakeBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        binary = build()
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [str(binary), "-port", str(self.port), "-dir", str(self.directory / "data")]
        if self.sync:
            command.append("-sync")
        self._process = PeerProcess.start("kfake", command, log_path=self.directory / "kfake.log", cwd=self.directory)
        self.answered_s = self._process.wait_until(
            lambda: answers_api_versions(self.bootstrap), timeout_s=_READY_TIMEOUT_S, what="answer to ApiVersions"
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
