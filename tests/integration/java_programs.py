"""Small Java programs of these tests, and Kafka's own tools, run on the jars of an installed Kafka."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from conformance.peers.kafka import KafkaInstallation, ToolResult
from conformance.peers.processes import PeerFailed

JAVA = Path(__file__).with_name("java")
_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_END = "\x01 "


def java_source_command(installation: KafkaInstallation, name: str, *arguments: str) -> list[str]:
    """The command that runs `java/NAME.java` as a single source file."""
    return installation.java_command(
        str(JAVA / f"{name}.java"), list(arguments), heap="256m", flags=_FLAGS, level="error", use_archive=False
    )


def run_java_source(
    installation: KafkaInstallation, name: str, *arguments: str, timeout_s: float = 120, check: bool = True
) -> ToolResult:
    """Runs it to its end; PeerFailed for a non-zero status unless `check` is false."""
    command = java_source_command(installation, name, *arguments)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if check and done.returncode != 0:
        raise PeerFailed(f"{name}.java ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return ToolResult(done.returncode, done.stdout, done.stderr)


class ToolShell:
    """Kafka's command line tools in one JVM. Use as a context manager; not from two threads at once."""

    def __init__(self, installation: KafkaInstallation) -> None:
        self._installation = installation
        self._process = subprocess.Popen(
            java_source_command(installation, "ToolShell"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> ToolShell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def run(self, tool: str, arguments: Sequence[str]) -> ToolResult:
        """One tool to its end; both its streams in `stdout`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join([self._installation.tool_class(tool), *arguments]) + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(_END):
                return ToolResult(int(line.removeprefix(_END)), "".join(lines), "")
            lines.append(line)
        raise PeerFailed(f"the tools' JVM ended in {tool}: {''.join(lines)[-2000:]}")


def normalised(text: str, address: str, names: dict[str, str]) -> list[str]:
    """A tool's output without what differs by nature: names, random ids, ports, node ids, widths, the order of rows."""
    for name, stands_for in names.items():
        text = text.replace(name, stands_for)
    text = text.replace(address, "ADDRESS")
    text = re.sub(r"rdkafka-[0-9a-f-]{36}", "MEMBER", text)
    text = re.sub(r"ADDRESS\s+\(\d+\)", "ADDRESS (NODE)", text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return sorted(line for line in lines if line and not line.startswith(("at ", "... ")))
