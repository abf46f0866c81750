"""Members of a consumer group as real clients run them, each behind the same three calls: start, records, stop.

What a member was assigned is not asked of the client but of the broker (DescribeGroups), the same way for all of them.
Every client commits what it has read every 200 ms and once more when it leaves.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from conformance.peers.kafka import KafkaInstallation
from conformance.wire.client import Broker
from conformance.wire.groups import describe

SESSION_MS, HEARTBEAT_MS, COMMIT_MS = 6_000, 300, 200
STOP_S = 30.0
LOG_LINES = 60
Assignment = frozenset[tuple[str, int]]


class GroupMember(Protocol):
    """A running member. `values` grows while it runs; `failures` holds what a client reported that was not expected."""

    values: list[bytes]
    failures: list[str]

    def stop(self) -> None:
        """Leaves the group as the client does when it is closed."""

    def account(self) -> str:
        """What it has to say of itself when a test fails."""


class _InThread:
    """A client with a poll loop in a thread of its own."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self.run()
        except Exception as error:  # a thread's failure belongs to the test that started it
            self.failures.append(repr(error))

    def run(self) -> None:
        raise NotImplementedError

    @property
    def halted(self) -> bool:
        return self._ended.is_set()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(STOP_S)
        assert not self._thread.is_alive(), "the client did not close"
        assert not self.failures, self.failures

    def account(self) -> str:
        return f"{type(self).__name__}: {len(self.values)} records, failures {self.failures}"


class Confluent(_InThread):
    """confluent-kafka (librdkafka)."""

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], assignor: str, *, instance: str | None = None
    ) -> None:
        from confluent_kafka import Consumer

        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap, "group.id": group, "partition.assignment.strategy": assignor,
            "auto.offset.reset": "earliest", "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.commit.interval.ms": COMMIT_MS, "fetch.wait.max.ms": 50, "log_level": 0,
            "topic.metadata.refresh.interval.ms": 2000,
        }  # fmt: skip
        if instance is not None:
            config["group.instance.id"] = instance
        self.assigned = 0
        self.errors: list[int] = []
        self._consumer = Consumer(config)
        self._topics = list(topics)
        super().__init__()

    def run(self) -> None:
        self._consumer.subscribe(self._topics, on_assign=self._count)
        while not self.halted:
            message: Any = self._consumer.poll(0.05)
            if message is None:
                continue
            if message.error():
                self.errors.append(message.error().code())
            else:
                self.values.append(message.value())
        self._consumer.close()

    def _count(self, _consumer: Any, _partitions: Any) -> None:
        self.assigned += 1


class Aiokafka(_InThread):
    """aiokafka, in an event loop of its own."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], assignor: str) -> None:
        self._bootstrap, self._group, self._topics, self._assignor = bootstrap, group, topics, assignor
        super().__init__()

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
        }  # fmt: skip
        consumer = AIOKafkaConsumer(
            *self._topics, bootstrap_servers=self._bootstrap, group_id=self._group, auto_offset_reset="earliest",
            partition_assignment_strategy=[assignors[self._assignor]], session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS, auto_commit_interval_ms=COMMIT_MS, fetch_max_wait_ms=50,
        )  # fmt: skip
        await consumer.start()
        try:
            while not self.halted:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    self.values += [record.value for record in records]
        finally:
            await consumer.stop()


class KafkaPython(_InThread):
    """kafka-python."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], assignor: str) -> None:
        from kafka import KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor,
        }  # fmt: skip
        self._consumer = KafkaConsumer(
            *topics, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
            partition_assignment_strategy=[assignors[assignor]], session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS, auto_commit_interval_ms=COMMIT_MS, fetch_max_wait_ms=50,
        )  # fmt: skip
        super().__init__()

    def run(self) -> None:
        while not self.halted:
            for records in self._consumer.poll(timeout_ms=50).values():
                self.values += [record.value for record in records]
        self._consumer.close()


class _InProcess:
    """A client that is a program: SIGTERM (or another signal) makes it leave."""

    stop_signal = signal.SIGTERM

    def __init__(self, command: Sequence[str]) -> None:
        self.values: list[bytes] = []
        self.failures: list[str] = []
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._errors: list[bytes] = []
        self._readers = [
            threading.Thread(target=self._read_values, daemon=True),
            threading.Thread(target=lambda: self._errors.extend(self._process.stderr or ()), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_values(self) -> None:
        for line in self._process.stdout or ():
            value = self.value_of(line.rstrip(b"\n"))
            if value is not None:
                self.values.append(value)

    def value_of(self, line: bytes) -> bytes | None:
        """The record's value in a line of output."""
        return line

    def stop(self) -> None:
        assert self._process.poll() is None, f"ended by itself: {self._process.returncode} {self._errors[-5:]!r}"
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(STOP_S)
        finally:
            self._process.kill()
        for reader in self._readers:
            reader.join(STOP_S)

    def account(self) -> str:
        alive = ", ".join("reading" if reader.is_alive() else "ended" for reader in self._readers)
        log = b"".join(self._errors[-LOG_LINES:]).decode(errors="replace")
        return f"{type(self).__name__}: {len(self.values)} records, status {self._process.poll()}, {alive}\n{log}"


class Kcat(_InProcess):
    """kcat in balanced consumer mode (an older librdkafka)."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], assignor: str) -> None:
        settings = {
            "auto.offset.reset": "earliest", "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.commit.interval.ms": COMMIT_MS, "partition.assignment.strategy": assignor, "fetch.wait.max.ms": 50,
        }  # fmt: skip
        options = [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]
        super().__init__(["kcat", "-b", bootstrap, "-q", "-u", *options, "-G", group, *topics])


_JAVA_ASSIGNORS = {
    "range": "RangeAssignor", "roundrobin": "RoundRobinAssignor", "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}  # fmt: skip


def java_settings(assignor: str) -> dict[str, object]:
    return {
        "partition.assignment.strategy": f"org.apache.kafka.clients.consumer.{_JAVA_ASSIGNORS[assignor]}",
        "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS, "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": COMMIT_MS, "fetch.max.wait.ms": 50, "group.protocol": "classic",
    }  # fmt: skip


class JavaConsole(_InProcess):
    """Kafka's console consumer; one topic, or several by a pattern."""

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], assignor: str, installation: KafkaInstallation
    ) -> None:
        options = [
            part for item in java_settings(assignor).items() for part in ("--command-property", "{}={}".format(*item))
        ]
        arguments = ["--bootstrap-server", bootstrap, "--include", "|".join(topics), "--group", group, *options]
        super().__init__(installation.tool_command("console-consumer", arguments, level="info"))


class JavaVerifiable(_InProcess):
    """Kafka's verifiable consumer, which reads one topic and reports in JSON what happens to it."""

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], assignor: str, installation: KafkaInstallation,
        directory: Path,
    ) -> None:  # fmt: skip
        (topic,) = topics
        config = directory / f"{group}-{threading.get_ident()}-{id(self)}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in java_settings(assignor).items()))
        arguments = [
            "--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group, "--verbose", "--enable-autocommit",
            "--session-timeout", str(SESSION_MS), "--command-config", str(config),
            "--assignment-strategy", str(java_settings(assignor)["partition.assignment.strategy"]),
        ]  # fmt: skip
        super().__init__(
            installation.tool_command("org.apache.kafka.tools.VerifiableConsumer", arguments, level="info")
        )

    def value_of(self, line: bytes) -> bytes | None:
        event = json.loads(line) if line.startswith(b"{") else {"name": "a line of the log"}
        return str(event["value"]).encode() if event["name"] == "record_data" else None


Start = Callable[..., GroupMember]


# --- what the broker says


def decode_assignment(data: bytes) -> Assignment:
    """ConsumerProtocolAssignment v0 to v3: version, topics with partitions; what follows is of no interest."""
    if not data:
        return frozenset()
    found: set[tuple[str, int]] = set()
    position = 2
    topic_count = int.from_bytes(data[position : position + 4], "big")
    position += 4
    for _ in range(topic_count):
        size = int.from_bytes(data[position : position + 2], "big")
        name = data[position + 2 : position + 2 + size].decode()
        position += 2 + size
        count = int.from_bytes(data[position : position + 4], "big")
        position += 4
        for _ in range(count):
            found.add((name, int.from_bytes(data[position : position + 4], "big")))
            position += 4
    return frozenset(found)


def assignments(broker: Broker, group: str) -> list[Assignment] | None:
    """Each member's partitions while the group is stable; None while it is not."""
    row = describe(broker, group, 5)
    if row.group_state != "Stable":
        return None
    return [decode_assignment(bytes(member.member_assignment)) for member in row.members]
