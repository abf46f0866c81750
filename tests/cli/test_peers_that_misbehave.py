"""A peer that refuses, hangs up, stays silent or sends rubbish: one clear message, exit status 2, no traceback."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

COMMANDS = [
    ("topic", "list"),
    ("topic", "create", "t"),
    ("config", "describe", "topic", "t"),
    ("mirror", "list"),
    ("mirror", "describe"),
    ("mirror", "start", "m", "--topics", "t"),
    ("mirror", "stop", "m", "--topics", "t"),
    ("mirror", "delete", "m", "--yes"),
    ("verify", "m"),
    ("consume", "--topic", "t"),
    ("consume", "--topic", "t", "--group", "g"),
    ("group", "list"),
    ("group", "describe", "g"),
    ("group", "offsets", "g"),
    ("group", "reset", "g", "--topics", "t", "--to", "latest"),
    ("group", "delete", "g"),
    ("produce", "--topic", "t", "--transactional-id", "x"),
]
MakePeer = Callable[[Callable[[socket.socket], None]], Any]


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nobody_listens(run: Run, command: tuple[str, ...]) -> None:
    address = free_address()
    ran = run(*command, "--bootstrap", address)
    assert (ran.status, ran.out) == (2, "")
    assert address in ran.err
    assert "kmirror serve" in ran.err


def hangs_up(connection: socket.socket) -> None:
    connection.close()


def answers_rubbish(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def answers_a_short_frame(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"\x00\x00\x00\x06\x00\x00\x00\x00\xff\xff")


def answers_half(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"\x00\x00\x01\x00\x00\x00\x00\x00")
    connection.close()


@pytest.mark.parametrize("behave", [hangs_up, answers_rubbish, answers_a_short_frame, answers_half])
def test_a_peer_that_is_no_broker(run: Run, peer: MakePeer, behave: Callable[[socket.socket], None]) -> None:
    address = peer(behave).address
    ran = run("topic", "list", "--bootstrap", address)
    assert (ran.status, ran.out) == (2, "")
    assert address in ran.err
    assert "Traceback" not in ran.err


def test_a_peer_that_stays_silent(run: Run, peer: MakePeer, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("socket.connection.setup.timeout.ms=100\n")
    address = peer(lambda connection: None).address
    ran = run("topic", "list", "--bootstrap", address, "--command-config", properties)
    assert (ran.status, ran.out) == (2, "")
    assert address in ran.err


@pytest.mark.parametrize("address", ["nonsense", "host:port", "host:70000", ":9092", ""])
def test_an_address_that_is_none(run: Run, address: str) -> None:
    ran = run("topic", "list", "--bootstrap", address or ",")
    assert ran.status == 2
    assert "bootstrap" in ran.err


def test_security_that_cannot_be_honoured_is_refused(run: Run, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    for line in ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "ssl.truststore.location=/x"):
        properties.write_text(line + "\n")
        ran = run("topic", "list", "--command-config", properties)
        assert ran.status == 2
        assert line.split("=")[0] in ran.err
        assert "PLAINTEXT" in ran.err
