"""Start, stop and failure of a whole broker: in this process, and as the process that scripts start."""

from __future__ import annotations

import errno
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from kmirror import app
from kmirror.cli import serve
from kmirror.errors import ConfigError, DiskFailure, KmirrorError
from kmirror.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from kmirror.protocol.api.metadata import MetadataRequest
from kmirror.protocol.records import read_records
from kmirror.storage.errors import StorageLocked
from kmirror.storage.memory import MemoryFileSystem
from tests.server.harness import Client, batch, fetch, produce, serving

# --- in this process --------------------------------------------------------------------------------------------------


async def test_what_was_written_is_there_after_a_restart() -> None:
    filesystem = MemoryFileSystem()
    async with serving(filesystem=filesystem) as broker:
        await broker.create_topic("t")
        topic_id = broker.world.image.topics_by_name["t"].topic_id
        cluster_id = broker.world.cluster_id
        await broker.connect().ask("Produce", 9, produce(batch(b"a")))
    async with serving(filesystem=filesystem) as broker:
        assert broker.world.cluster_id == cluster_id
        answer = await broker.connect().ask("Metadata", 12, MetadataRequest(topics=None))
        assert [(row.name, row.topic_id) for row in answer.topics] == [("t", topic_id)]
        row = (await broker.connect().ask("Fetch", 12, fetch())).responses[0].partitions[0]
        assert row.high_watermark == 1
        assert len(row.records) > 0


async def test_acknowledged_records_survive_a_power_cut_and_raise_the_leader_epoch(seed: int) -> None:
    """B034: nobody goes on under an epoch whose records may be gone."""
    filesystem = MemoryFileSystem(seed)
    async with serving(filesystem=filesystem) as broker:
        await broker.create_topic("t")
        client = broker.connect()
        for number in range(20):
            await client.ask("Produce", 9, produce(batch(b"%d" % number)))
        before = broker.world.partition("t", 0).leader_epoch
        survivor = filesystem.crash()
        filesystem.dead = False
    async with serving(filesystem=survivor) as broker:
        partition = broker.world.partition("t", 0)
        assert partition.high_watermark == 20
        assert partition.leader_epoch > before


async def test_a_failed_flush_stops_the_broker_and_the_next_start_recovers(seed: int) -> None:
    """With the commit thread: EIO from fdatasync. What was acknowledged is there, the rest was never promised."""
    filesystem = MemoryFileSystem(seed)
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data"}
    with pytest.raises(app.BrokerStopped):
        async with app.running(settings, filesystem=filesystem) as running:
            client = over_tcp(running.bootstrap)
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            await client.ask("CreateTopics", 7, CreateTopicsRequest(topics=[topic], timeout_ms=5000))
            await client.ask("Produce", 9, produce(batch(b"acknowledged")))
            filesystem.fail("sync", ".log", error=errno.EIO)
            await client.send("Produce", 9, produce(batch(b"a")))
            with pytest.raises(EOFError):
                await client.frame()
            await trio.sleep_forever()
    client.close()
    async with serving(filesystem=filesystem.crash()) as broker:
        partition = broker.world.partition("t", 0)
        assert 1 <= partition.high_watermark <= 2
        records = next(read_records(data) for _, data in partition.log.batches(0, 1))
        assert records[0].value == b"acknowledged"
        await broker.connect().ask("Produce", 9, produce(batch(b"b")))


async def test_after_a_failure_the_disk_is_left_alone() -> None:
    filesystem = MemoryFileSystem()
    changes: list[tuple[str, str]] = []
    with pytest.raises(app.BrokerStopped, match="no longer trusted"):
        async with serving(filesystem=filesystem) as broker:
            await broker.create_topic("t")
            broker.flush.at_once = False
            await broker.connect().send("Produce", 9, produce(batch(b"a")))
            await trio.testing.wait_all_tasks_blocked()
            filesystem.observer = lambda kind, path, phase: changes.append((kind, path))
            broker.server.fatal(DiskFailure("no longer trusted"))
    assert changes == []
    assert not filesystem.exists("/data/.kafka_cleanshutdown")
    async with serving(filesystem=filesystem):
        pass
    assert filesystem.exists("/data/.kafka_cleanshutdown")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (app.BrokerStopped("flush failed"), 1),
        (KmirrorError("damaged"), 1),
        (ConfigError("unknown property"), 2),
        (StorageLocked("another process"), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_status_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(app, "run", fail)
    assert serve.main(["--listen", "127.0.0.1:0"]) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert str(error) in said.err


def over_tcp(address: str) -> Client:
    host, _, port = address.rpartition(":")
    return Client(socket.create_connection((host, int(port)), timeout=10))


async def test_several_named_listeners_and_what_they_advertise() -> None:
    settings = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners": "OUTSIDE://broker.example:19092",
        "log.dirs": "/data",
    }
    async with app.running(settings, filesystem=MemoryFileSystem()) as running:
        said = json.loads(running.ready_json())
        inside, outside = running.listeners
        assert said["bootstrap"] == f"127.0.0.1:{inside.port}"
        assert said["listeners"] == {"INSIDE": f"127.0.0.1:{inside.port}", "OUTSIDE": "broker.example:19092"}
        for port, expected in (
            (inside.port, ("127.0.0.1", inside.port)),
            (outside.port, ("broker.example", 19092)),
        ):
            client = over_tcp(f"127.0.0.1:{port}")
            answer = await client.ask("Metadata", 12, MetadataRequest(topics=[]))
            assert (answer.brokers[0].host, answer.brokers[0].port) == expected
            client.close()


async def test_an_address_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}", "log.dirs": str(tmp_path)}
        with pytest.raises(ConfigError, match="cannot listen"):
            async with app.running(settings):
                raise AssertionError("it runs")
    settings["listeners"] = "PLAINTEXT://127.0.0.1:0"
    async with app.running(settings):  # nothing of the failed start holds the directory
        pass


# --- the process ------------------------------------------------------------------------------------------------------

START_S = 60


class Process:
    def __init__(self, directory: Path, *options: str) -> None:
        self.ready_file = directory / "ready.json"
        command = [sys.executable, "-m", "kmirror.cli.main", "serve", "--data-dir", str(directory / "data")]
        command += ["--listen", "127.0.0.1:0", "--ready-file", str(self.ready_file), *options]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ready(self) -> dict[str, object]:
        """Waits for the ready line; the content of the ready file."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        said: dict[str, object] = json.loads(self.ready_file.read_text())
        assert line == f"kmirror ready bootstrap={said['bootstrap']} http=-\n"
        return said

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Send a signal, if any, and wait: exit status and what was said on stderr."""
        if number is not None:
            self.popen.send_signal(number)
        _, stderr = self.popen.communicate(timeout=START_S)
        return self.popen.returncode, stderr


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*options: str) -> Process:
        started.append(Process(tmp_path, *options))
        return started[-1]

    yield begin
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.communicate()


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_and_a_clean_stop(start: Start, tmp_path: Path, number: int) -> None:
    process = start()
    said = process.ready()
    assert said["pid"] == process.popen.pid
    assert said["node_id"] == 1
    assert said["http"] is None
    assert said["listeners"] == {"PLAINTEXT": said["bootstrap"]}
    host, _, port = str(said["bootstrap"]).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert sock.recv(4096)[8:10] == b"\0\0"
        status, stderr = process.end(number)
    assert status == 0
    assert "Traceback" not in stderr
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    again = start()
    assert again.ready()["cluster_id"] == said["cluster_id"]


@pytest.mark.integration
def test_a_second_process_on_the_directory_is_refused(start: Start) -> None:
    first = start()
    first.ready()
    status, stderr = start().end()
    assert status == 2
    assert "kmirror serve:" in stderr
    assert "Traceback" not in stderr
    assert first.popen.poll() is None
    first.popen.kill()
    first.popen.communicate()
    start().ready()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--set", "num.partition=3"), "num.partitions"),
        (("--set", "nothing"), "KEY=VALUE"),
        (("--config", "/no/such/file"), "/no/such/file"),
        (("--listen", "127.0.0.1"), "HOST:PORT"),
    ],
)
def test_a_wrong_command_line_is_exit_status_2(start: Start, options: tuple[str, ...], names: str) -> None:
    status, stderr = start(*options).end()
    assert status == 2
    assert names in stderr
    assert "Traceback" not in stderr


@pytest.mark.integration
def test_config_file_and_options_in_their_order(start: Start, tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("node.id=7\nlisteners=PLAINTEXT://127.0.0.1:1\n# no comment\n")
    process = start("--config", str(tmp_path / "server.properties"), "--set", "node.id=8")
    said = process.ready()
    assert said["node_id"] == 8
    assert said["bootstrap"] != "127.0.0.1:1"


@pytest.mark.integration
def test_damaged_metadata_is_exit_status_1_with_a_sentence(start: Start, tmp_path: Path) -> None:
    first = start()
    first.ready()
    assert first.end(signal.SIGTERM)[0] == 0
    (log,) = (tmp_path / "data" / "__cluster_metadata-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[-1] ^= 0xFF
    log.write_bytes(data)
    status, stderr = start().end()
    assert status == 1
    assert "Traceback" not in stderr
