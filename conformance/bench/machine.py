"""What the numbers were measured on: without it a table says little."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path


def describe(directory: Path) -> dict[str, str]:
    """Processor, memory, kernel, file system of `directory`, and versions."""
    return {
        "processor": f"{_cpu_model()} x {len(os.sched_getaffinity(0))}",
        "memory": _meminfo("MemTotal"),
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": f"{_file_system(directory)} at {directory}",
        "python": platform.python_version(),
        "java": _java_version(),
        "client": f"confluent-kafka {version('confluent-kafka')}",
        "load average": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _meminfo(name: str) -> str:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(name):
                return f"{int(line.split()[1]) / (1 << 20):.1f} GiB"
    except OSError:
        pass
    return "unknown"


def _file_system(directory: Path) -> str:
    """The type of the mounted file system that holds the directory: the longest mount point above it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    path = str(directory.resolve())
    holding = [
        (len(point), kind) for point, kind in mounts if path == point or path.startswith(point.rstrip("/") + "/")
    ]
    return max(holding)[1] if holding else "unknown"


def _java_version() -> str:
    if shutil.which("java") is None:
        return "none"
    text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return text.splitlines()[0] if text else "unknown"
