"""Running the command line in this process, and peers that misbehave."""

from __future__ import annotations

import io
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from kmirror import app
from kmirror.app import App
from kmirror.cli.main import main
from kmirror.effects import Promise
from kmirror.server.waiting import settled

T = TypeVar("T")


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("topic", "list", ...)`: exit status and what was printed. A traceback fails the test by itself."""

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return call


class Peer:
    """Listens on a free port and gives every connection to `behave` in a thread of its own."""

    def __init__(self, behave: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._behave = behave
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            try:
                self._behave(connection)
            except OSError:
                continue  # the client hung up first, which is fine

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()
        self._thread.join(timeout=5)


@pytest.fixture
def peer() -> Iterator[Callable[[Callable[[socket.socket], None]], Peer]]:
    peers: list[Peer] = []

    def make(behave: Callable[[socket.socket], None]) -> Peer:
        peers.append(Peer(behave))
        return peers[-1]

    yield make
    for made in peers:
        made.close()


class Broker:
    """A broker on a thread with a Trio run of its own, so that commands can have theirs."""

    def __init__(self, directory: Path, properties: Mapping[str, str] | None = None) -> None:
        self.bootstrap = ""
        self._properties = dict(properties or {})
        self.directory = directory
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self.app: App
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        failure = self._ready.get(timeout=20)
        if failure is not None:
            raise failure

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            self._ready.put(error)
            raise

    async def _serve(self) -> None:
        properties = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(self.directory), **self._properties}
        async with app.running(properties) as running:
            self.app = running
            self.bootstrap = running.bootstrap
            self._token = trio.lowlevel.current_trio_token()
            self._stop = trio.Event()
            self._ready.put(None)
            await self._stop.wait()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the broker's loop."""
        return trio.from_thread.run_sync(function, trio_token=self._token)

    async def _settled(self, make: Callable[[], Promise[T]]) -> T:
        return await settled(make())

    def settle(self, make: Callable[[], Promise[T]]) -> T:
        """Make a promise on the broker's loop and wait for it."""
        return trio.from_thread.run(self._settled, make, trio_token=self._token)

    def close(self) -> None:
        self.call(self._stop.set)
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the tests of a module; each test uses topics of its own."""
    made = Broker(tmp_path_factory.mktemp("broker"))
    yield made
    made.close()


@pytest.fixture
def on(broker: Broker, run: Run) -> Run:
    """`run`, with --bootstrap."""
    return lambda *arguments: run(*arguments, "--bootstrap", broker.bootstrap)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Gives the next command its standard input."""

    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give
