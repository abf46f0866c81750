"""One mirror, driven through its states by the command line, restarted and refused in each of them."""

from __future__ import annotations

import re
import threading

import pytest

from conformance.peers.fixtures import MakeKmirror
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import eventually
from conformance.wire.batches import batch
from conformance.wire.client import Broker
from tests.integration.watching import (
    control_types,
    describe,
    states,
    stored,
    topic_of,
    wait_for_state,
    wait_until_equal_ends,
)

pytestmark = pytest.mark.integration
READ_ONLY_TOPIC = 147


class Pair:
    """A source and a destination, mirror `m`, one topic."""

    def __init__(self, make_kmirror: MakeKmirror, *, settings: dict[str, str] | None = None) -> None:
        self.source = make_kmirror("source")
        self.destination = make_kmirror("destination")
        self.topic = Broker(self.source.bootstrap).create_topic()
        self.produce_at_source(b"one", b"two", b"three")
        options = [f"--set={key}={value}" for key, value in (settings or {}).items()]
        self.destination.run(
            "mirror", "create", "m", "--source", self.source.bootstrap, "--topics", self.topic.name, "--start", *options
        )
        self.wait_caught_up()

    def produce_at_source(self, *values: bytes) -> None:
        row = Broker(self.source.bootstrap).produce(self.topic, batch(list(values)))
        assert row.error_code == 0, row

    def wait_caught_up(self) -> None:
        wait_until_equal_ends(self.source.bootstrap, self.destination.bootstrap, self.topic.name)

    def command(self, verb: str, *options: str, check: bool = True) -> int:
        return self.destination.run("mirror", verb, "m", "--topics", self.topic.name, *options, check=check).returncode

    @property
    def here(self) -> Broker:
        return Broker(self.destination.bootstrap)

    def assert_identical(self) -> None:
        theirs = stored(self.source.data_directory, self.topic.name, 0, log_start=0)
        assert stored(self.destination.data_directory, self.topic.name, 0, log_start=0) == theirs

    def assert_refused(self, state: str) -> None:
        """A write is answered with 147 and a message that names the mirror and the state; nothing is appended."""
        end = self.here.latest(self.topic)
        row = self.here.produce(self.topic, batch([b"refused"]))
        assert row.error_code == READ_ONLY_TOPIC, row
        message = row.error_message or ""
        assert "m" in message and state in message, message
        assert self.here.latest(self.topic) == end


@pytest.fixture
def pair(make_kmirror: MakeKmirror) -> Pair:
    return Pair(make_kmirror)


def restart(broker: KmirrorBroker, *, clean: bool) -> None:
    broker.restart(clean=clean)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kill"])
def test_restart_while_mirroring(pair: Pair, clean: bool) -> None:
    pair.assert_refused("MIRRORING")
    pair.destination.restart(clean=clean)
    pair.assert_refused("MIRRORING")
    pair.produce_at_source(b"four")
    pair.wait_caught_up()
    pair.assert_identical()
    assert states(pair.destination) == {"MIRRORING"}


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kill"])
def test_restart_while_paused(pair: Pair, clean: bool) -> None:
    pair.command("pause")
    assert states(pair.destination) == {"PAUSED"}
    pair.produce_at_source(b"four")
    pair.destination.restart(clean=clean)
    assert states(pair.destination) == {"PAUSED"}
    pair.assert_refused("PAUSED")
    assert pair.here.latest(pair.topic) == 3, "a paused mirror fetched"
    pair.command("resume")
    pair.wait_caught_up()
    pair.assert_identical()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kill"])
def test_restart_while_stopped(pair: Pair, clean: bool) -> None:
    """STOPPED stays STOPPED and writable; the log is the source's, one reset, then our own records."""
    pair.command("stop")
    (row,) = describe(pair.destination)
    assert (row["state"], row["last_mirror_offset"], row["source_offset"], row["lag"]) == ("STOPPED", 3, None, None)
    assert control_types(pair.destination.data_directory, pair.topic.name, 0) == [(3, 7, -1)]
    assert pair.here.produce(pair.topic, batch([b"ours"])).base_offset == 4
    pair.destination.restart(clean=clean)
    (again,) = describe(pair.destination)
    assert {key: again[key] for key in ("state", "last_mirror_epoch", "last_mirror_offset")} == {
        key: row[key] for key in ("state", "last_mirror_epoch", "last_mirror_offset")
    }
    assert pair.here.produce(pair.topic, batch([b"ours too"])).base_offset == 5
    assert control_types(pair.destination.data_directory, pair.topic.name, 0) == [(3, 7, -1)]


def test_the_source_away_and_back(pair: Pair) -> None:
    """While nobody answers the topic stays read-only; the mirror goes on by itself when the source is back."""
    pair.source.kill()
    pair.assert_refused("")
    pair.source.start()
    pair.produce_at_source(b"four")
    pair.wait_caught_up()
    pair.assert_identical()


def test_stop_without_a_source(pair: Pair) -> None:
    """A failover needs nothing from the source."""
    pair.source.kill()
    pair.command("stop")
    assert states(pair.destination) == {"STOPPED"}
    assert control_types(pair.destination.data_directory, pair.topic.name, 0) == [(3, 7, -1)]
    assert pair.here.produce(pair.topic, batch([b"ours"])).base_offset == 4


def test_restart_of_the_destination_without_a_source(pair: Pair) -> None:
    pair.source.kill()
    pair.destination.restart(clean=False)
    pair.assert_refused("")
    pair.command("stop")
    assert pair.here.produce(pair.topic, batch([b"ours"])).error_code == 0


def test_start_again_without_private_records(pair: Pair) -> None:
    """Only our own reset stands behind the last mirrored offset: it is cut and the mirror goes on."""
    pair.command("stop")
    pair.produce_at_source(b"four")
    pair.command("start")
    pair.wait_caught_up()
    pair.assert_identical()
    assert states(pair.destination) == {"MIRRORING"}


def test_start_again_with_private_records_is_refused_with_the_count(pair: Pair) -> None:
    pair.command("stop")
    for value in (b"ours", b"ours too"):
        assert pair.here.produce(pair.topic, batch([value])).error_code == 0
    refused = pair.destination.run("mirror", "start", "m", "--topics", pair.topic.name, check=False)
    assert refused.returncode == 1
    said = re.sub(r"\s+", " ", refused.stdout + refused.stderr)
    assert "3 offsets" in said and "--replace" in said, said  # our reset and our two records
    assert states(pair.destination) == {"STOPPED"}
    assert pair.here.produce(pair.topic, batch([b"still writable"])).error_code == 0
    pair.command("start", "--replace")
    pair.produce_at_source(b"four")
    pair.wait_caught_up()
    pair.assert_identical()
    saved = list((pair.destination.data_directory / "cut").rglob("*.log"))
    assert saved, "what --replace cut away was not saved"


def test_repeated_commands_answer_quietly(pair: Pair) -> None:
    for verb in ("start", "pause", "pause", "resume", "resume", "stop", "stop"):
        assert pair.command(verb) == 0, verb
    assert control_types(pair.destination.data_directory, pair.topic.name, 0) == [(3, 7, -1)]


def test_stop_in_the_middle_of_catching_up(make_kmirror: MakeKmirror) -> None:
    """A stop while data streams in: the log ends in exactly one reset and holds a prefix of the source."""
    pair = Pair(make_kmirror)
    halt = threading.Event()

    def write() -> None:
        broker = Broker(pair.source.bootstrap)
        with broker.connect() as connection:
            while not halt.is_set():
                broker.produce(pair.topic, batch([b"x" * 2000] * 5), connection=connection)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        eventually(lambda: pair.here.latest(pair.topic) > 50, what="some mirrored records")
        pair.command("stop")
    finally:
        halt.set()
        writer.join(30)
    (row,) = describe(pair.destination)
    end = row["last_mirror_offset"]
    assert control_types(pair.destination.data_directory, pair.topic.name, 0) == [(end, 7, -1)]
    ours = stored(pair.destination.data_directory, pair.topic.name, 0, log_start=0)
    theirs = stored(pair.source.data_directory, pair.topic.name, 0, log_start=0)
    mirrored = ours[: len(ours) - 75]  # a MIRROR_PID_RESET batch has 75 bytes
    assert theirs.startswith(mirrored)
    pair.destination.run("verify", "m")


def test_a_chain_of_three(make_kmirror: MakeKmirror) -> None:
    """A → B → C, with B stopped, written to, started again and regrown under C.

    C may follow or fail, but it never reports itself as mirroring, without lag, and holds other bytes than B.
    """
    a, b, c = make_kmirror("a"), make_kmirror("b"), make_kmirror("c")
    topic = Broker(a.bootstrap).create_topic()

    def write(broker: KmirrorBroker, *values: bytes) -> None:
        assert Broker(broker.bootstrap).produce(topic, batch(list(values))).error_code == 0

    def assert_c_is_honest() -> None:
        def settled() -> list[dict[str, object]] | None:
            rows = describe(c)
            caught_up = rows[0]["state"] == "MIRRORING" and rows[0]["lag"] == 0
            return rows if caught_up or rows[0]["state"] == "FAILED" else None

        rows = eventually(settled, what="a settled C")
        if rows[0]["state"] == "MIRRORING":
            wait_until_equal_ends(b.bootstrap, c.bootstrap, topic.name)
            theirs = stored(b.data_directory, topic.name, 0, log_start=0)
            assert stored(c.data_directory, topic.name, 0, log_start=0) == theirs

    write(a, b"a0", b"a1", b"a2")
    b.run("mirror", "create", "m", "--source", a.bootstrap, "--topics", topic.name, "--start")
    wait_until_equal_ends(a.bootstrap, b.bootstrap, topic.name)
    c.run("mirror", "create", "m", "--source", b.bootstrap, "--topics", topic.name, "--start")
    wait_until_equal_ends(b.bootstrap, c.bootstrap, topic.name)
    assert topic_of(Broker(c.bootstrap), topic.name).topic_id == topic.topic_id
    assert_c_is_honest()

    b.run("mirror", "stop", "m", "--topics", topic.name)
    write(b, b"b0", b"b1", b"b2", b"b3")
    write(a, b"a3", b"a4", b"a5", b"a6", b"a7", b"a8")
    wait_until_equal_ends(b.bootstrap, c.bootstrap, topic.name)
    assert_c_is_honest()

    b.run("mirror", "start", "m", "--topics", topic.name, "--replace")
    wait_until_equal_ends(a.bootstrap, b.bootstrap, topic.name)
    assert stored(b.data_directory, topic.name, 0, log_start=0) == stored(a.data_directory, topic.name, 0, log_start=0)
    eventually(lambda: describe(c)[0]["destination_offset"] != 8 or states(c) == {"FAILED"}, what="reaction of C")
    assert_c_is_honest()
    write(a, b"a9")
    wait_until_equal_ends(a.bootstrap, b.bootstrap, topic.name)
    assert_c_is_honest()
    if states(c) == {"FAILED"}:  # the operator's way out
        c.run("mirror", "start", "m", "--topics", topic.name, "--replace")
        wait_for_state(c, "MIRRORING")
        wait_until_equal_ends(b.bootstrap, c.bootstrap, topic.name)
        assert_c_is_honest()
