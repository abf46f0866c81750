"""Starting, watching and ending one child process, and asking a Kafka port whether it serves.

Shared by all peers. Blocking code on purpose: peers are driven by tests, by a command and by the benchmark, which all
want plain calls. A process is ended by its own pid, never by name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_INTERVAL_S = 0.005
STOP_TIMEOUT_S = 60.0


class PeerUnavailable(RuntimeError):
    """A peer cannot be provisioned here; the text says what is missing and how to get it."""


class PeerFailed(RuntimeError):
    """A peer was started and died, or did not become ready in time. The text ends with the tail of its log."""


def cache_home() -> Path:
    """The folder where installed peers are kept between runs: ${XDG_CACHE_HOME:-~/.cache}/kmirror-kafka."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kmirror-kafka"


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago. A caller that loses the race starts again with another."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT` to its two parts."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"not HOST:PORT: {address!r}")
    return host.strip("[]"), int(port)


def receive_exactly(sock: socket.socket, size_bytes: int) -> bytes:
    """Reads exactly that many bytes; ConnectionError when the peer closes before."""
    data = bytearray()
    while len(data) < size_bytes:
        piece = sock.recv(min(size_bytes - len(data), 1 << 20))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {size_bytes} bytes")
        data += piece
    return bytes(data)


# size 10, ApiVersions v0, correlation id 1, null client id
_API_VERSIONS_V0 = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


def answers_api_versions(address: str, *, timeout_s: float = 1.0) -> bool:
    """True when the port answers an ApiVersions v0 request with error 0."""
    try:
        with socket.create_connection(split_address(address), timeout=timeout_s) as sock:
            sock.sendall(_API_VERSIONS_V0)
            reply = receive_exactly(sock, 10)
    except OSError:
        return False
    return reply[4:10] == b"\x00\x00\x00\x01\x00\x00"


class PeerProcess:
    """One child process with its log file. `stop` is SIGTERM and wait, `kill` is SIGKILL and wait."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process
        self.started_at = time.monotonic()

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> PeerProcess:
        """Starts the command in a session of its own, both outputs appended to `log_path`."""
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=dict(os.environ, **(env or {})),
                start_new_session=True,
            )
        return cls(name, process, log_path)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float, what: str) -> float:
        """Polls `ready` until it is true and gives the seconds since the start. PeerFailed when it never is."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise PeerFailed(f"{self.name} ended with status {self.returncode} before {what}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise PeerFailed(f"{self.name}: no {what} after {timeout_s:.0f} s\n{self.log_tail()}")
            time.sleep(POLL_INTERVAL_S)
        return time.monotonic() - self.started_at

    def log_tail(self, line_count: int = 25) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(f"  | {line}" for line in lines[-line_count:])

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, then SIGKILL after the timeout; the exit status."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL, as a power button would: nothing of the process's own shutdown runs."""
        if self.running:
            self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: the process is there, its sockets are open, and it answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Resident set size now (Linux)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise PeerFailed(f"{self.name}: no VmRSS for pid {self.pid}")

    def cpu_seconds(self) -> float:
        """User and system time used so far (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end_recorded(pid: int, marker: str, *, kill: bool = False, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """Ends a process that an earlier command started and whose pid it wrote down.

    `marker` must occur in its command line, so that a pid taken over by a stranger is left alone.
    False when no such process runs.
    """
    try:
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return False
    if marker not in command_line:
        return False
    os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while recorded_runs(pid, marker):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    return True


def recorded_runs(pid: int, marker: str) -> bool:
    """Does this pid still run a command line that contains `marker`? A zombie does not count."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return False
    return marker in command_line and "State:\tZ" not in status
