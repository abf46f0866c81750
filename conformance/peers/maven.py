"""Fetches the jars of one Apache Kafka version with the machine's own `mvn`.

Why Maven and not the release archive: a registry is what most build machines can reach, and it serves every version
back to 2.1. The jars are kept under <cache>/libs/<version>/; the file `.done` there says that the set is complete.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from conformance.peers.processes import PeerUnavailable, cache_home

DEFAULT_VERSION = "4.4.0"
OLD_VERSIONS = ("2.1.1", "3.9.2")
_COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
_SLF4J_BINDINGS = ("slf4j-simple", "slf4j-reload4j", "slf4j-log4j12", "log4j-slf4j")
_INSTALL_TIMEOUT_S = 900


def version_key(version: str) -> tuple[int, int, int]:
    """`4.4.0-rc1` as (4, 4, 0), to compare versions."""
    numbers = [int(part) for part in version.split("-")[0].split(".")]
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch


def jar_directory(version: str) -> Path:
    return cache_home() / "libs" / version


def is_installed(version: str) -> bool:
    return (jar_directory(version) / ".done").exists()


def installed_versions() -> list[str]:
    folders = (cache_home() / "libs").glob("*/.done")
    return sorted((done.parent.name for done in folders), key=version_key)


def find_program(name: str, *, purpose: str, hint: str) -> str:
    """The path of a program on PATH; PeerUnavailable with the way to get it when it is not there."""
    found = shutil.which(name)
    if found is None:
        raise PeerUnavailable(f"`{name}` is not on PATH; it is needed to {purpose}. {hint}")
    return found


def find_java() -> str:
    return find_program("java", purpose="run Apache Kafka", hint="Install a JDK 17 or newer.")


def install(version: str) -> Path:
    """Fetches the jars unless they are already there; the folder. About a minute with an empty Maven cache."""
    folder = jar_directory(version)
    if is_installed(version):
        return folder
    find_program("mvn", purpose=f"fetch Apache Kafka {version}", hint="Install Maven 3.6 or newer.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=folder.parent) as scratch:
        jars = Path(scratch) / "jars"
        _copy_dependencies(_coordinates(version), jars, Path(scratch))
        if not any(jar.name.startswith(_SLF4J_BINDINGS) for jar in jars.glob("*.jar")):
            # without a binding the broker logs nothing, and nobody can tell when it is ready
            _copy_dependencies([("org.slf4j", "slf4j-simple", "1.7.36")], jars, Path(scratch))
        (jars / ".done").touch()
        if folder.exists():
            shutil.rmtree(folder)
        jars.rename(folder)
    return folder


def _coordinates(version: str) -> list[tuple[str, str, str]]:
    old = version_key(version) < (2, 4, 0)
    scala = "2.12" if old else "2.13"
    wanted = [("org.apache.kafka", f"kafka_{scala}", version), ("org.apache.kafka", "kafka-tools", version)]
    if old:
        # the ZooKeeper 3.4 that belongs to these versions cannot resolve host names on a current Java
        wanted.append(("org.apache.zookeeper", "zookeeper", "3.5.9"))
    return wanted


def _copy_dependencies(coordinates: Sequence[tuple[str, str, str]], target: Path, scratch: Path) -> None:
    dependencies = "".join(
        f"<dependency><groupId>{escape(group)}</groupId><artifactId>{escape(artifact)}</artifactId>"
        f"<version>{escape(version)}</version></dependency>"
        for group, artifact, version in coordinates
    )
    pom = scratch / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>kmirror.conformance</groupId><artifactId>peer</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
    command = ["mvn", "-q", "-B", "-f", str(pom), _COPY_GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line][:3]
        names = ", ".join(":".join(coordinate) for coordinate in coordinates)
        raise PeerUnavailable(f"Maven could not fetch {names}:\n" + "\n".join(errors))


def has_class(version: str, class_name: str) -> bool:
    """Is this class in one of the version's Kafka jars?"""
    entry = class_name.replace(".", "/") + ".class"
    for jar in jar_directory(version).glob("kafka*.jar"):
        with zipfile.ZipFile(jar) as archive:
            if entry in archive.NameToInfo:
                return True
    return False
