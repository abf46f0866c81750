"""kmirror as a process, driven only through its command line and its ports, as an operator would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.peers.processes import PeerFailed, PeerProcess, answers_api_versions, free_port

READY_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 90.0


PROGRAM = ("kmirror.cli.main",)
"""The module to run, and what comes before kmirror's own arguments."""


def kmirror_command(*arguments: str, program: Sequence[str] = PROGRAM) -> list[str]:
    """`kmirror …` of the environment that runs this."""
    return [sys.executable, "-m", *program, *arguments]


class CommandResult:
    """What one `kmirror` command printed and how it ended."""

    def __init__(self, returncode: int, stdout: str, stderr: str) -> None:
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr

    def json(self) -> Any:
        return json.loads(self.stdout)

    def __repr__(self) -> str:
        return f"exit {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def run_kmirror(*arguments: str, timeout_s: float = COMMAND_TIMEOUT_S, check: bool = True) -> CommandResult:
    """Runs a kmirror command to its end. PeerFailed for a non-zero status unless `check` is false."""
    done = subprocess.run(
        kmirror_command(*arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=_environment(),
    )
    result = CommandResult(done.returncode, done.stdout, done.stderr)
    if check and done.returncode != 0:
        raise PeerFailed(f"kmirror {' '.join(arguments)}: {result}")
    return result


def _environment() -> dict[str, str]:
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a start that recompiles everything is not what users see
    return environment


class KmirrorBroker:
    """One `kmirror serve` process on a fixed loopback port and data directory, over any number of restarts."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        open_files: int | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """`open_files`: the process may have so many descriptors and no more (ulimit -n). `program`: see PROGRAM."""
        self.open_files = open_files
        self.program = tuple(program)
        self.directory = directory
        self.settings = dict(settings or {})
        self.arguments = list(arguments)
        self.port = free_port()
        self.ready: dict[str, Any] = {}
        self.ready_s = 0.0
        self.answered_s = 0.0
        self._process: PeerProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    @property
    def process(self) -> PeerProcess:
        if self._process is None:
            raise PeerFailed(f"kmirror in {self.directory} was not started")
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def __enter__(self) -> KmirrorBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts and waits for the ready file and for the first answered ApiVersions."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ready_file = self.directory / "ready.json"
        ready_file.unlink(missing_ok=True)
        options = [f"--set={key}={value}" for key, value in self.settings.items()]
        command = kmirror_command(
            "serve", "--data-dir", str(self.data_directory), "--listen", self.bootstrap,
            "--ready-file", str(ready_file), *options, *self.arguments, program=self.program,
        )  # fmt: skip
        if self.open_files is not None:
            command = ["sh", "-c", f'ulimit -n {self.open_files} && exec "$@"', "sh", *command]
        log_path = self.directory / "kmirror.log"
        self._process = PeerProcess.start("kmirror", command, log_path=log_path, cwd=_REPOSITORY, env=_environment())
        self.answered_s = self._process.wait_until(
            lambda: answers_api_versions(self.bootstrap), timeout_s=READY_TIMEOUT_S, what="answer to ApiVersions"
        )
        self.ready_s = self._process.wait_until(ready_file.exists, timeout_s=READY_TIMEOUT_S, what="ready file")
        self.ready = json.loads(ready_file.read_text())

    def stop(self) -> int:
        """SIGTERM; the exit status (0 is a clean stop)."""
        return 0 if self._process is None else self._process.stop()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def restart(self, *, clean: bool = True) -> None:
        if clean:
            self.stop()
        else:
            self.kill()
        self.start()

    def run(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S, check: bool = True) -> CommandResult:
        """`kmirror ARGUMENTS --bootstrap <this broker>`."""
        return run_kmirror(*arguments, "--bootstrap", self.bootstrap, timeout_s=timeout_s, check=check)

    def log_text(self) -> str:
        return (self.directory / "kmirror.log").read_text(errors="replace")


_REPOSITORY = Path(__file__).resolve().parents[2]
