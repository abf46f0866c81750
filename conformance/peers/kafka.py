"""Apache Kafka as a peer: an installed version, its tools, and single-node brokers.

A broker is KRaft (one process, broker and controller) from 3.3 and ZooKeeper plus broker below. It listens on free
loopback ports, is formatted on first start, and is ready when it has said so in its log and answers ApiVersions.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.peers import maven
from conformance.peers.processes import (
    PeerFailed,
    PeerProcess,
    PeerUnavailable,
    answers_api_versions,
    cache_home,
    free_port,
    split_address,
)

READY_TIMEOUT_S = 90.0
TOOL_TIMEOUT_S = 120.0
START_ATTEMPTS = 3

# each tool moved between packages over the years: the first class that the version has is the right one
TOOLS: dict[str, tuple[str, ...]] = {
    "topics": ("org.apache.kafka.tools.TopicCommand", "kafka.admin.TopicCommand"),
    "configs": ("org.apache.kafka.tools.ConfigCommand", "kafka.admin.ConfigCommand"),
    "consumer-groups": (
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "kafka.admin.ConsumerGroupCommand",
    ),
    "dump-log": ("org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments"),
    "console-producer": ("org.apache.kafka.tools.ConsoleProducer", "kafka.tools.ConsoleProducer"),
    "console-consumer": ("org.apache.kafka.tools.consumer.ConsoleConsumer", "kafka.tools.ConsoleConsumer"),
    "producer-perf-test": ("org.apache.kafka.tools.ProducerPerformance",),
    "consumer-perf-test": ("org.apache.kafka.tools.ConsumerPerformance", "kafka.tools.ConsumerPerformance"),
    "get-offsets": ("org.apache.kafka.tools.GetOffsetShell", "kafka.tools.GetOffsetShell"),
    "delete-records": ("org.apache.kafka.tools.DeleteRecordsCommand", "kafka.admin.DeleteRecordsCommand"),
    "leader-election": ("org.apache.kafka.tools.LeaderElectionCommand", "kafka.admin.LeaderElectionCommand"),
    "broker-api-versions": (
        "org.apache.kafka.tools.BrokerApiVersionsCommand",
        "kafka.admin.BrokerApiVersionsCommand",
    ),
    "features": ("org.apache.kafka.tools.FeatureCommand", "kafka.admin.FeatureCommand"),
    "transactions": ("org.apache.kafka.tools.TransactionsCommand",),
    "verifiable-producer": ("org.apache.kafka.tools.VerifiableProducer",),
    "storage": ("kafka.tools.StorageTool", "org.apache.kafka.tools.StorageTool"),
}


@dataclass(slots=True)
class ToolResult:
    returncode: int
    stdout: str
    stderr: str


class KafkaInstallation:
    """The jars of one version, and what can be run from them."""

    def __init__(self, version: str = maven.DEFAULT_VERSION) -> None:
        self.version = version
        self.java = maven.find_java()
        self.jars = maven.install(version)

    @property
    def kraft(self) -> bool:
        return maven.version_key(self.version) >= (3, 3, 0)

    @property
    def archive_path(self) -> Path:
        """Where this version's class-data archive for this Java belongs (it may not be there)."""
        text = subprocess.run([self.java, "-version"], capture_output=True, text=True, check=True).stderr
        java_version = re.sub(r"[^0-9.+]", "", text.splitlines()[0])
        return cache_home() / "archives" / f"kafka-{self.version}-java-{java_version}.jsa"

    def java_command(
        self,
        main_class: str,
        arguments: Sequence[str],
        *,
        heap: str,
        flags: Sequence[str] = (),
        level: str = "warn",
        use_archive: bool = True,
    ) -> list[str]:
        """The command line that runs a class of this version; logs go to stderr at `level`."""
        archive = self.archive_path
        shared = [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
        making_one = any("ArchiveClassesAtExit" in flag for flag in flags)
        if making_one or not use_archive or not archive.exists():
            shared = []
        logging = [
            f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            f"-Dlog4j2.level={level}",
            f"-Dlog4j.configuration=file:{self._log4j_file(level)}",
        ]
        classpath = f"{self.jars}/*"
        return [self.java, f"-Xmx{heap}", *shared, *flags, *logging, "-cp", classpath, main_class, *arguments]

    def _log4j_file(self, level: str) -> Path:
        """Versions below 4.0 log through log4j 1, which says nothing at all without a file."""
        path = cache_home() / f"log4j-{level}.properties"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"log4j.rootLogger={level.upper()}, err\n"
                "log4j.appender.err=org.apache.log4j.ConsoleAppender\n"
                "log4j.appender.err.target=System.err\n"
                "log4j.appender.err.layout=org.apache.log4j.PatternLayout\n"
                "log4j.appender.err.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
            )
        return path

    def tool_class(self, name: str) -> str:
        """The class of a tool (`dump-log`, `kafka-topics.sh` …), or the name itself when it is a class name."""
        short = name.removesuffix(".sh").removeprefix("kafka-")
        candidates = TOOLS.get(short)
        if candidates is None:
            if "." not in name:
                raise PeerUnavailable(f"no tool named {name!r}; known: {', '.join(sorted(TOOLS))}")
            return name
        for candidate in candidates:
            if maven.has_class(self.version, candidate):
                return candidate
        raise PeerUnavailable(f"Kafka {self.version} has no tool {short!r}")

    def tool_command(
        self, name: str, arguments: Sequence[str], *, heap: str = "256m", level: str = "warn"
    ) -> list[str]:
        flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return self.java_command(self.tool_class(name), arguments, heap=heap, flags=flags, level=level)

    def tool(
        self,
        name: str,
        *arguments: str,
        timeout_s: float = TOOL_TIMEOUT_S,
        stdin: str | None = None,
        check: bool = True,
    ) -> ToolResult:
        """Runs a tool to its end. PeerFailed for a non-zero status unless `check` is false."""
        done = subprocess.run(
            self.tool_command(name, arguments),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            raise PeerFailed(
                f"kafka tool {name} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return ToolResult(done.returncode, done.stdout, done.stderr)

    def build_archive(self) -> Path:
        """Makes the class-data archive once (about 15 s), so that later starts take half the time."""
        archive = self.archive_path
        if archive.exists():
            return archive
        archive.parent.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(f".{os.getpid()}.partial")
        directory = archive.parent / f"training-{os.getpid()}"
        broker = KafkaBroker(self, directory, jvm_flags=[f"-XX:ArchiveClassesAtExit={partial}"])
        try:
            broker.start()
            self.tool("topics", *broker.topic_tool_address(), "--create", "--topic", "t", "--partitions", "1",
                      "--replication-factor", "1")  # fmt: skip
            broker.stop()
        finally:
            broker.kill()
            shutil.rmtree(directory, ignore_errors=True)
        if not partial.exists():
            raise PeerUnavailable(f"this Java made no class-data archive for Kafka {self.version}")
        partial.rename(archive)
        return archive


@dataclass(slots=True)
class _Listeners:
    """The ports of one broker. They stay the same over restarts, since clients keep them."""

    client: int = field(default_factory=free_port)
    control: int = field(default_factory=free_port)  # KRaft controller, or ZooKeeper


class KafkaBroker:
    """One single-node Kafka cluster in `directory`. Use as a context manager, or start/stop/kill by hand."""

    def __init__(
        self,
        installation: KafkaInstallation,
        directory: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        proxied_port: int | None = None,
        heap: str = "512m",
        jvm_flags: Sequence[str] = (),
        port: int | None = None,
        use_archive: bool = True,
    ) -> None:
        """`proxied_port` adds a second listener whose advertised address is that port (a proxy's)."""
        self.installation = installation
        self.directory = directory
        self.overrides = dict(overrides or {})
        self.heap = heap
        self.jvm_flags = list(jvm_flags)
        self.use_archive = use_archive
        self.proxied_port = proxied_port
        self.proxy_target_port: int | None = None
        self._ports = _Listeners() if port is None else _Listeners(client=port)
        self._process: PeerProcess | None = None
        self._zookeeper: PeerProcess | None = None
        self.ready_s = 0.0
        self.answered_s = 0.0

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._ports.client}"

    @property
    def data_directory(self) -> Path:
        """log.dirs: the partition directories lie here."""
        return self.directory / "data"

    @property
    def process(self) -> PeerProcess:
        if self._process is None:
            raise PeerFailed(f"Kafka in {self.directory} is not running")
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def zookeeper_pid(self) -> int | None:
        return None if self._zookeeper is None else self._zookeeper.pid

    def topic_tool_address(self) -> list[str]:
        """What `topics` needs to reach this broker: below 2.2 it talks to ZooKeeper."""
        if maven.version_key(self.installation.version) < (2, 2, 0):
            return ["--zookeeper", f"127.0.0.1:{self._ports.control}"]
        return ["--bootstrap-server", self.bootstrap]

    def properties(self) -> dict[str, str]:
        """server.properties: small internal topics, loopback listeners, then the caller's overrides."""
        ports, kraft = self._ports, self.installation.kraft
        listeners = [f"PLAINTEXT://127.0.0.1:{ports.client}"]
        advertised = list(listeners)
        protocol_map = ["PLAINTEXT:PLAINTEXT"]
        if self.proxied_port is not None:
            self.proxy_target_port = self.proxy_target_port or free_port()
            listeners.append(f"PROXIED://127.0.0.1:{self.proxy_target_port}")
            advertised.append(f"PROXIED://127.0.0.1:{self.proxied_port}")
            protocol_map.append("PROXIED:PLAINTEXT")
        values = {
            "log.dirs": str(self.data_directory),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "5",
            "group.initial.rebalance.delay.ms": "0",
            "inter.broker.listener.name": "PLAINTEXT",
        }
        if kraft:
            listeners.append(f"CONTROLLER://127.0.0.1:{ports.control}")
            protocol_map.append("CONTROLLER:PLAINTEXT")
            values |= {
                "process.roles": "broker,controller",
                "node.id": "1",
                "controller.listener.names": "CONTROLLER",
                # a broker that was killed is forgotten quickly, so that it can come back quickly
                "broker.session.timeout.ms": "2000",
                "broker.heartbeat.interval.ms": "500",
            }
            if maven.version_key(self.installation.version) >= (3, 9, 0):
                values["controller.quorum.bootstrap.servers"] = f"127.0.0.1:{ports.control}"
            else:
                values["controller.quorum.voters"] = f"1@127.0.0.1:{ports.control}"
        else:
            values |= {"broker.id": "1", "zookeeper.connect": f"127.0.0.1:{ports.control}"}
        values["listeners"] = ",".join(listeners)
        values["advertised.listeners"] = ",".join(advertised)
        values["listener.security.protocol.map"] = ",".join(protocol_map)
        return values | self.overrides

    def start(self) -> None:
        """Formats if need be, starts, and waits until the broker serves. PeerFailed when it does not."""
        if self.running:
            raise PeerFailed(f"Kafka in {self.directory} already runs (pid {self.process.pid})")
        fresh = not self.directory.exists()
        for attempt in range(START_ATTEMPTS):
            try:
                self._start_once()
                return
            except PeerFailed:
                self.kill()
                # only a port that somebody took meanwhile is worth another try, and only before clients know it
                if not fresh or "in use" not in self._log_path.read_text(errors="replace"):
                    raise
                if attempt + 1 == START_ATTEMPTS:
                    raise
                shutil.rmtree(self.directory)
                self._ports, self.proxy_target_port = _Listeners(), None

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _start_once(self) -> None:
        self.data_directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in sorted(self.properties().items())))
        self._log_path.write_bytes(b"")
        if self.installation.kraft:
            if not (self.data_directory / "meta.properties").exists():
                self._format(config)
        elif self._zookeeper is None or not self._zookeeper.running:
            self._start_zookeeper()
        flags = [f"-Xms{min(64, _megabytes(self.heap))}m", f"-Dkafka.logs.dir={self.directory}", *self.jvm_flags]
        command = self.installation.java_command(
            "kafka.Kafka", [str(config)], heap=self.heap, flags=flags, level="info", use_archive=self.use_archive
        )
        self._process = PeerProcess.start(
            f"Kafka {self.installation.version}", command, log_path=self._log_path, cwd=self.directory
        )
        self.answered_s = self._process.wait_until(
            lambda: answers_api_versions(self.bootstrap), timeout_s=READY_TIMEOUT_S, what="answer to ApiVersions"
        )
        self.ready_s = self._process.wait_until(self._said_started, timeout_s=READY_TIMEOUT_S, what="`started` line")

    def _said_started(self) -> bool:
        text = self._log_path.read_text(errors="replace")
        return "Kafka Server started" in text or re.search(r"KafkaServer id=.*started", text) is not None

    def _format(self, config: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if cluster_id.startswith("-"):
            cluster_id = "A" + cluster_id[1:]  # the tool takes a leading dash for an option
        arguments = ["format", "-t", cluster_id, "-c", str(config)]
        if maven.version_key(self.installation.version) >= (3, 9, 0):
            arguments.append("--standalone")
        self.installation.tool("storage", *arguments)

    def _start_zookeeper(self) -> None:
        data = self.directory / "zookeeper"
        data.mkdir(exist_ok=True)
        config = self.directory / "zookeeper.properties"
        config.write_text(
            f"dataDir={data}\nclientPort={self._ports.control}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\nmaxClientCnxns=0\ntickTime=2000\n"
        )
        command = self.installation.java_command(
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", [str(config)], heap="128m", level="info"
        )
        self._zookeeper = PeerProcess.start(
            "ZooKeeper", command, log_path=self.directory / "zookeeper.log", cwd=self.directory
        )
        address = ("127.0.0.1", self._ports.control)
        self._zookeeper.wait_until(lambda: _accepts(address), timeout_s=READY_TIMEOUT_S, what="open port")

    def stop(self) -> None:
        """Clean shutdown of the broker, and of its ZooKeeper if it has one."""
        if self._process is not None:
            self._process.stop()
        if self._zookeeper is not None:
            self._zookeeper.stop()
            self._zookeeper = None

    def kill(self) -> None:
        """SIGKILL; ZooKeeper too."""
        for process in (self._process, self._zookeeper):
            if process is not None:
                process.kill()
        self._zookeeper = None

    def restart(self, *, clean: bool = True) -> None:
        """Stops (or kills) and starts again on the same ports and data. Every partition gets a new leader epoch."""
        if clean:
            self.stop()
        else:
            self.kill()
        self.start()

    def tool(self, name: str, *arguments: str, timeout_s: float = TOOL_TIMEOUT_S, check: bool = True) -> ToolResult:
        return self.installation.tool(name, *arguments, timeout_s=timeout_s, check=check)


def _megabytes(heap: str) -> int:
    number, unit = int(heap[:-1]), heap[-1].lower()
    return number * 1024 if unit == "g" else number


def _accepts(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1):
            return True
    except OSError:
        return False


def port_of(address: str) -> int:
    return split_address(address)[1]
