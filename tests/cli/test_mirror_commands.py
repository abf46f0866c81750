"""mirror, verify and demo between two brokers on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.cli.conftest import Broker, Peer, Ran, Run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("source"))
    yield made
    made.close()


@pytest.fixture
def at_source(source: Broker, run: Run) -> Run:
    return lambda *arguments: run(*arguments, "--bootstrap", source.bootstrap)


@pytest.fixture
def fill(at_source: Run, lines: Callable[[bytes], None]) -> Callable[..., None]:
    """Creates a topic at the source if need be, and writes ten records to each of its two partitions."""

    def write(topic: str) -> None:
        assert at_source("topic", "create", topic, "--partitions", 2, "--if-not-exists").status == 0
        for partition in (0, 1):
            lines(b"".join(b"record %d\n" % number for number in range(10)))
            assert at_source("produce", "--topic", topic, "--partition", partition).status == 0

    return write


@pytest.fixture
def mirror(on: Run, source: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A mirror without topics, named for the test."""
    name = request.node.name.replace("_", "-")[:40]
    created = on("mirror", "create", name, "--source", source.bootstrap)
    assert (created.status, created.err) == (0, ""), created.err
    yield name


def rows_of(ran: Ran) -> list[dict[str, object]]:
    assert ran.status == 0, ran.err
    rows: list[dict[str, object]] = json.loads(ran.out)
    return rows


def states(on: Run, mirror: str) -> set[object]:
    return {row["state"] for row in rows_of(on("mirror", "describe", mirror, "--json"))}


def catch_up(on: Run, mirror: str) -> None:
    """MIRRORING does not mean that all has been copied. A bounded number of looks."""
    for _ in range(500):
        if all(row["lag"] == 0 for row in rows_of(on("mirror", "describe", mirror, "--json"))):
            return
    raise AssertionError(f"mirror {mirror} does not catch up")


def test_the_life_of_a_mirror(on: Run, at_source: Run, fill: Callable[..., None], mirror: str, source: Broker) -> None:
    fill("life-of-a-mirror")
    listed = next(row for row in rows_of(on("mirror", "list", "--json")) if row["mirror"] == mirror)
    assert (listed["source_bootstrap"], listed["topics"]) == (source.bootstrap, [])
    started = on("mirror", "start", mirror, "--topics", "life-of-a-mirror")
    assert (started.status, "Started life-of-a-mirror: MIRRORING." in started.out) == (0, True), started.err
    refused = on("mirror", "delete", mirror)
    assert (refused.status, "CLUSTER_MIRROR_NOT_EMPTY" in refused.err) == (1, True)
    for verb, said, state in (("pause", "Paused", "PAUSED"), ("resume", "Resumed", "MIRRORING")):
        ran = on("mirror", verb, mirror, "--topics", "life-.*")
        assert (ran.status, said in ran.out) == (0, True), ran.err
        assert states(on, mirror) == {state}
    recovered = on("mirror", "recover", mirror, "--topics", "life-.*")
    assert (recovered.status, recovered.out) == (0, "Nothing had failed in life-of-a-mirror.\n"), recovered.err
    promoted = on("mirror", "promote", mirror, "--topics", "life-of-a-mirror")
    assert (promoted.status, "Stopped" in promoted.out) == (0, True), promoted.err
    rows = rows_of(on("mirror", "describe", mirror, "--json"))
    assert [(row["partition"], row["state"], row["last_mirror_offset"]) for row in rows] == [
        (0, "STOPPED", 10),
        (1, "STOPPED", 10),
    ]
    assert all(row["source_offset"] is None and row["lag"] is None for row in rows)
    assert on("mirror", "delete", mirror).out == f"Deleted mirror {mirror}.\n"
    assert on("mirror", "describe", mirror).status == 1


def test_create_and_start_in_one_command(on: Run, fill: Callable[..., None], source: Broker) -> None:
    fill("at-once-1")
    fill("at-once-2")
    for name in ("at-once", "at-once-again"):
        pattern = "at-once-[12]" if name == "at-once" else "at-once-1"
        ran = on("mirror", "create", name, "--source", source.bootstrap, "--topics", pattern, "--start")
        if name == "at-once":
            assert ran.status == 0, ran.out + ran.err
            assert states(on, name) == {"MIRRORING"}
        else:
            assert (ran.status, "TOPIC_ALREADY_IN_CLUSTER_MIRROR" in ran.out) == (1, True)
    settings = {row["name"]: row["value"] for row in rows_of(on("config", "describe", "mirror", "at-once", "--json"))}
    assert "at-once-[12]" in str(settings["topics.include"]).split(",")


def test_verify_and_the_refusal_of_writes(
    on: Run, fill: Callable[..., None], mirror: str, lines: Callable[[bytes], None]
) -> None:
    fill("verified")
    on("mirror", "start", mirror, "--topics", "verified")
    results = rows_of(on("verify", mirror, "--json"))
    assert [(row["identical"], row["partition"], row["difference"]) for row in results] == [
        (True, 0, None),
        (True, 1, None),
    ]
    lines(b"x\n")
    refused = on("produce", "--topic", "verified", "--partition", 0)
    assert refused.status == 1
    assert "READ_ONLY_TOPIC (147)" in refused.out
    assert mirror in refused.out
    on("mirror", "stop", mirror, "--topics", "verified")
    lines(b"x\n")
    assert on("produce", "--topic", "verified", "--partition", 0).status == 0
    after = on("verify", mirror, "--topics", "verified")
    assert after.status == 0
    assert "written here since the failover" in after.out
    assert on("verify", mirror, "--topics", "nothing").status == 1


def test_verify_finds_a_difference(on: Run, fill: Callable[..., None], mirror: str, broker: Broker) -> None:
    """One bit of the mirror's file is flipped behind the broker's back."""
    fill("different")
    on("mirror", "start", mirror, "--topics", "different")
    catch_up(on, mirror)
    assert on("verify", mirror).status == 0
    log = next((broker.directory / "different-1").glob("*.log"))
    with log.open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([byte ^ 1]))
    ran = on("verify", mirror, "--json")
    assert ran.status == 1
    differing = [row for row in json.loads(ran.out) if not row["identical"]]
    assert [(row["partition"], row["difference"]["offset"]) for row in differing] == [(1, 0)]
    assert "DIFFERS at offset 0" in on("verify", mirror).out


def test_names_that_do_not_exist(on: Run, mirror: str) -> None:
    nothing = on("mirror", "start", mirror, "--topics", "never-made")
    assert (nothing.status, "the source has no such topic" in nothing.out) == (1, True)
    waiting = on("mirror", "start", mirror, "--topics", "never-.*")
    assert (waiting.status, "patterns are kept" in waiting.err) == (0, True)
    assert on("mirror", "pause", mirror, "--topics", "never.*").status == 1
    assert on("mirror", "pause", mirror, "--topics", "never-made").status == 1
    for verb in ("start", "stop", "pause", "resume", "recover", "promote"):
        assert on("mirror", verb, "no-such-mirror", "--topics", "x").status == 1, verb
        assert on("mirror", verb, mirror, "--topics", " , ").status == 2, verb
    assert on("mirror", "describe", "no-such-mirror").status == 1
    assert on("mirror", "delete", "no-such-mirror").status == 1
    assert on("verify", "no-such-mirror").status == 1


def test_a_pattern_that_was_stopped_twice_starts_again(on: Run, fill: Callable[..., None], mirror: str) -> None:
    """The second stop puts it into topics.exclude; a start of the same pattern takes it out and finds its topics."""
    fill("again-and-again")
    for verb in ("start", "stop", "stop", "start"):
        ran = on("mirror", verb, mirror, "--topics", "again-.*")
        assert (ran.status, "again-and-again: " in ran.out) == (0, True), verb + ran.out + ran.err


def test_internal_topics_are_never_mirrored(on: Run, at_source: Run, fill: Callable[..., None], source: Broker) -> None:
    """Also with --exclude, which takes the place of the default `__.*`."""
    fill("read")
    assert at_source("consume", "--topic", "read", "--group", "readers", "--timeout", "0.2").status == 0
    made = on("mirror", "create", "inner", "--source", source.bootstrap, "--exclude", "nothing")
    assert made.status == 0, made.err
    matching = on("mirror", "start", "inner", "--topics", "__consumer.*")
    assert (matching.status, "no topic matches yet" in matching.err) == (0, True), matching.out
    named = on("mirror", "start", "inner", "--topics", "__consumer_offsets")
    assert (named.status, "each cluster's own" in named.out) == (1, True), named.out + named.err
    assert json.loads(on("mirror", "describe", "inner", "--json").out) == []


def test_a_source_that_cannot_be_reached(on: Run, run: Run, broker: Broker, source: Broker) -> None:
    silent = Peer(lambda connection: connection.close())
    address = silent.address
    silent.close()
    ran = on("mirror", "create", "unreachable", "--source", address)
    assert (ran.status, address in ran.err, "source.cluster.id" in ran.err) == (2, True, True)
    ran = on("mirror", "create", "unreachable", "--source", address, "--set", "source.cluster.id=somewhere")
    assert ran.status == 0, ran.err
    late = on("mirror", "start", "unreachable", "--topics", "t", "--timeout", "0.3")
    assert (late.status, "the broker looks topics up itself" in late.err) == (1, True)
    assert "not here yet" in late.out
    accepted = on("mirror", "start", "unreachable", "--topics", "t", "--no-wait")
    assert accepted.status == 0, accepted.out + accepted.err
    demo = run("demo", "--source", address, "--topics", "t")
    assert (demo.status, address in demo.err, "--set" in demo.out + demo.err) == (2, True, False), demo.out + demo.err


def test_bad_settings_and_names(on: Run, source: Broker) -> None:
    for name, setting in (("bad name!", "fetch.min.bytes=1"), ("bad-setting", "no.such.setting=1")):
        ran = on("mirror", "create", name, "--source", source.bootstrap, "--set", setting)
        assert ran.status == 1, name
    assert on("mirror", "create", "x", "--source", source.bootstrap, "--set", "novalue").status == 2
    assert on("mirror", "create", "x", "--source", source.bootstrap, "--start").status == 2
    assert on("mirror", "create", "twice", "--source", source.bootstrap).status == 0
    again = on("mirror", "create", "twice", "--source", source.bootstrap)
    assert (again.status, "CLUSTER_MIRROR_ALREADY_EXISTS" in again.err) == (1, True)


def test_local_records_are_not_cut_without_a_word(
    on: Run, fill: Callable[..., None], mirror: str, lines: Callable[[bytes], None], at_source: Run
) -> None:
    """A topic that failed over and was written to: start refuses and counts, --replace goes on."""
    fill("kept")
    on("mirror", "start", mirror, "--topics", "kept")
    on("mirror", "stop", mirror, "--topics", "kept")
    lines(b"own\n" * 7)
    assert on("produce", "--topic", "kept", "--partition", 0).status == 0
    refused = on("mirror", "start", mirror, "--topics", "kept")
    assert (refused.status, "INVALID_CLUSTER_MIRROR_STATE" in refused.out) == (1, True), refused.out + refused.err
    assert " 8 offsets" in refused.out, "seven records and the producer-id reset"
    assert states(on, mirror) == {"STOPPED"}
    replaced = on("mirror", "start", mirror, "--topics", "kept", "--replace")
    assert replaced.status == 0, replaced.out + replaced.err
    assert on("verify", mirror, "--topics", "kept").status == 0


def test_where_a_topic_begins(on: Run, fill: Callable[..., None], mirror: str) -> None:
    fill("from-latest")
    ran = on("mirror", "start", mirror, "--topics", "from-latest", "--from", "latest")
    assert ran.status == 0, ran.out + ran.err
    rows = rows_of(on("topic", "describe", "from-latest", "--json"))
    assert [(row["log_start_offset"], row["high_watermark"]) for row in rows] == [(10, 10), (10, 10)]
    assert on("mirror", "start", mirror, "--topics", "from-latest", "--from", "whenever").status == 2


def test_the_demo(run: Run) -> None:
    ran = run("demo")
    assert ran.status == 0, ran.out + ran.err
    for said in (
        "one transaction committed, one aborted, one left open",
        "identical",
        "READ_ONLY_TOPIC (147)",
        "what it has committed at the source is committed here",
        "END_TXN ABORT",
        "MIRROR_PID_RESET",
        "all 720 records were read: 250 there, 470 here",
        "bytes came over the wire",
        "was cut, and saved under cut/",
        "checks held",
    ):
        assert said in ran.out, said
    assert "Traceback" not in ran.out + ran.err


def test_the_demo_on_somebodys_own_cluster(run: Run, at_source: Run, fill: Callable[..., None], source: Broker) -> None:
    fill("theirs")
    before = at_source("topic", "describe", "--json").out
    ran = run("demo", "--source", source.bootstrap, "--topics", "theirs")
    assert ran.status == 0, ran.out + ran.err
    assert at_source("topic", "describe", "--json").out == before
    assert run("demo", "--source", source.bootstrap).status == 2
    assert run("demo", "--topics", "theirs").status == 2
    nothing = run("demo", "--source", source.bootstrap, "--topics", "no-such-topic")
    assert (nothing.status, "no such topic" in nothing.out) == (1, True)
