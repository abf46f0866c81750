"""`kmirror backup` against a broker with a real disk and a real thread, and of a directory that nobody serves."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kmirror.broker.backup import Backup
from tests.cli.conftest import Broker, Peer, Run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(directory: Path) -> Iterator[Broker]:
    broker = Broker(directory)
    yield broker
    if not broker.app.world.closed:
        broker.close()


def write(run: Run, broker: Broker, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"line {number}\n" for number in range(count))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert run("produce", "--topic", "t", "--bootstrap", broker.bootstrap).status == 0


def lines_of(run: Run, broker: Broker) -> list[str]:
    count = broker.call(lambda: broker.app.world.partition("t", 0).log_end_offset)
    ran = run("consume", "--topic", "t", "--max-messages", count, "--bootstrap", broker.bootstrap)
    assert ran.status == 0, ran.err
    assert len(ran.out.splitlines()) == count
    return ran.out.splitlines()


def test_a_running_broker(
    run: Run, broker: Broker, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, broker, 20, monkeypatch)
    partition = broker.app.world.partition("t", 0)
    broker.call(partition.log.roll)
    write(run, broker, 5, monkeypatch)
    monkeypatch.chdir(tmp_path)
    ran = run("backup", "copy", "--bootstrap", broker.bootstrap, "--json")
    assert ran.status == 0 and ran.err == ""
    result = json.loads(ran.out)
    copy = tmp_path / "copy"
    assert result["destination"] == str(copy) and result["partitions"] >= 2
    name = "00000000000000000000.log"
    assert (copy / "t-0" / name).samefile(directory / "t-0" / name)
    assert (directory / "t-0" / name).stat().st_nlink == 2, "the staging directory is gone"
    newest = Path(broker.call(partition.log.active.path))
    assert newest.stat().st_nlink == 1 and (copy / "t-0" / newest.name).read_bytes() == newest.read_bytes()
    size = sum(path.stat().st_size for path in copy.rglob("*") if path.is_file())
    assert result["bytes_linked"] + result["bytes_copied"] == size
    assert {path.name for path in copy.iterdir()} >= {"meta.properties", "recovery-point-offset-checkpoint", "t-0"}
    assert not list(copy.rglob(".kafka_cleanshutdown")) and not list(tmp_path.glob(".copy*"))
    assert not list(directory.glob("backup-*"))
    write(run, broker, 3, monkeypatch)
    restored = Broker(copy)
    try:
        assert lines_of(run, restored) == lines_of(run, broker)[:-3]
    finally:
        restored.close()


def test_the_table(run: Run, broker: Broker, tmp_path: Path) -> None:
    ran = run("backup", tmp_path / "copy", "--bootstrap", broker.bootstrap)
    assert ran.status == 0
    header, row = ran.out.splitlines()
    assert header.split() == ["DESTINATION", "PARTITIONS", "BYTES-LINKED", "BYTES-COPIED", "SECONDS"]
    assert row.split()[0] == str(tmp_path / "copy")


def test_refusals_say_what_to_do(run: Run, broker: Broker, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for destination, reason in (
        (directory / "inside", "inside the data directory"),
        (tmp_path, "is inside"),
        (tmp_path / "full", "not an empty directory"),
        (tmp_path / "none" / "copy", "make it first"),
    ):
        ran = run("backup", destination, "--bootstrap", broker.bootstrap)
        assert ran.status == 2 and reason in ran.err and ran.out == ""
    ran = run("backup", tmp_path / "copy", "--data-dir", directory, "--bootstrap", broker.bootstrap)
    assert ran.status == 2 and "give one" in ran.err
    ran = run("backup", tmp_path / "copy", "--data-dir", directory)
    assert ran.status == 2 and "--bootstrap HOST:PORT" in ran.err
    ran = run("backup", tmp_path / "copy", "--data-dir", tmp_path / "full")
    assert ran.status == 2 and "not a data directory" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "full"]


def test_a_destination_behind_a_symbolic_link(run: Run, broker: Broker, directory: Path, tmp_path: Path) -> None:
    """The copy is made where the link leads to, an empty directory or nothing; what is refused there is refused."""
    (tmp_path / "empty").mkdir()
    for name, target in (("to-empty", "empty"), ("to-nothing", "new"), ("inside", "data/x"), ("to-file", "file")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "file").touch()
    for name, target in (("to-empty", "empty"), ("to-nothing", "new")):
        ran = run("backup", tmp_path / name, "--bootstrap", broker.bootstrap)
        assert ran.status == 0, ran.err
        assert (tmp_path / name).is_symlink() and (tmp_path / target / "meta.properties").exists()
    for name, reason in (("inside", "inside the data directory"), ("to-file", "not an empty directory")):
        ran = run("backup", tmp_path / name, "--bootstrap", broker.bootstrap)
        assert ran.status == 2 and reason in ran.err
    ran = run("backup", tmp_path / "file" / "x", "--bootstrap", broker.bootstrap)
    assert ran.status == 2 and "there is no directory" in ran.err


def test_a_destination_that_is_a_mount(
    run: Run, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mount").mkdir()

    def busy(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "rmdir", busy)
    ran = run("backup", tmp_path / "mount", "--bootstrap", broker.bootstrap)
    assert ran.status == 2 and "name a new directory in it" in ran.err
    assert not list((tmp_path / "data").glob("backup*"))


def test_a_destination_that_no_request_can_name(run: Run, broker: Broker, directory: Path, tmp_path: Path) -> None:
    strange = os.fsdecode(b"caf\xe9")
    for where in (("--bootstrap", broker.bootstrap), ("--data-dir", directory)):
        ran = run("backup", tmp_path / strange, *where)
        assert ran.status == 2 and "UTF-8" in ran.err


def test_a_destination_that_may_not_be_written(
    run: Run, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def refuse(path: str, *rest: int) -> None:
        if "/.copy." in str(path):
            raise OSError(errno.EACCES, "Permission denied")
        make(path, *rest)

    monkeypatch.setattr(os, "mkdir", refuse)
    ran = run("backup", tmp_path / "copy", "--bootstrap", broker.bootstrap)
    assert ran.status == 1 and "Permission denied" in ran.err and "the broker goes on" in ran.err
    assert run("topic", "list", "--bootstrap", broker.bootstrap).status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_another_file_system_gets_copies(
    run: Run, broker: Broker, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, broker, 20, monkeypatch)
    link = os.link

    def far(source: str, target: str, **options: bool) -> None:
        if not str(target).startswith(str(directory)):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", far)
    ran = run("backup", tmp_path / "copy", "--bootstrap", broker.bootstrap, "--json")
    assert ran.status == 0 and json.loads(ran.out)["bytes_linked"] == 0
    assert all(path.stat().st_nlink == 1 for path in tmp_path.rglob("*") if path.is_file())
    shutil.rmtree(tmp_path / "copy")
    broker.close()
    ran = run("backup", tmp_path / "copy", "--data-dir", directory, "--json")
    assert ran.status == 0 and json.loads(ran.out)["bytes_linked"] == 0


def test_no_hard_links_at_all(run: Run, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    ran = run("backup", tmp_path / "copy", "--bootstrap", broker.bootstrap)
    assert ran.status == 1 and "link of" in ran.err and "not permitted" in ran.err and "other means" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["data"] and not list((tmp_path / "data").glob("backup*"))


def test_a_broker_that_stops_meanwhile_leaves_nothing(
    run: Run, broker: Broker, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is in the middle of its work."""
    told = Backup.told
    app = broker.app

    def stop(self: Backup, *rest: object) -> None:
        broker.call(broker._stop.set)
        told(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Backup, "told", stop)
    ran = run("backup", tmp_path / "copy", "--bootstrap", broker.bootstrap)
    assert ran.status == 2
    broker._thread.join(timeout=20)
    assert app.world.closed and app.failure is None
    assert [path.name for path in tmp_path.iterdir()] == ["data"] and not list(directory.glob("backup*"))
    assert (directory / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_that_does_not_run(
    run: Run, broker: Broker, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    write(run, broker, 20, monkeypatch)
    before = lines_of(run, broker)
    broker.close()
    if not clean:
        (directory / ".kafka_cleanshutdown").unlink()
    ran = run("backup", tmp_path / "copy", "--data-dir", directory)
    assert ran.status == 0, ran.err
    for place in (tmp_path / "copy", directory):
        again = Broker(place)
        try:
            assert lines_of(run, again) == before
        finally:
            again.close()


def test_a_broker_that_does_not_know_the_request(
    run: Run, tmp_path: Path, peer: Callable[[Callable[[socket.socket], None]], Peer]
) -> None:
    """It answers ApiVersions, and closes at a key that it does not know, as Kafka does."""

    def old(connection: socket.socket) -> None:
        size_bytes = int.from_bytes(connection.recv(4), "big")
        request = connection.recv(size_bytes)
        body = request[4:8] + b"\0\0" + (2).to_bytes(1, "big") + b"\0\x12\0\0\0\4\0" + b"\0\0\0\0" + b"\0"
        connection.sendall(len(body).to_bytes(4, "big") + body)
        connection.recv(1 << 16)
        connection.shutdown(socket.SHUT_RDWR)

    made = peer(old)
    ran = run("backup", tmp_path / "copy", "--bootstrap", made.address)
    assert ran.status == 2 and "no kmirror, or one that is too old" in ran.err and "--data-dir" in ran.err
