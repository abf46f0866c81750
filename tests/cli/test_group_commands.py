"""`kmirror group`, `consume --group` and `produce --transactional-id` against a broker in this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kmirror.clock import SystemClock
from tests.cli.conftest import Broker, Ran, Run

pytestmark = pytest.mark.integration

WAIT_S = 20
"""Bound for what takes milliseconds."""


@pytest.fixture
def fill(on: Run, lines: Callable[[bytes], None]) -> Callable[..., None]:
    """Ten records, 0 to 9, in each partition of a new topic."""

    def make(topic: str, partitions: int = 1) -> None:
        assert on("topic", "create", topic, "--partitions", partitions).status == 0
        for index in range(partitions):
            lines(b"".join(b"%d\n" % number for number in range(10)))
            assert on("produce", "--topic", topic, "--partition", index).status == 0

    return make


def documents(ran: Ran) -> Any:
    assert ran.status == 0, ran.err
    return json.loads(ran.out)


def consumed(on: Run, topic: str, group: str, *arguments: object) -> list[tuple[int, int]]:
    """(partition, offset) of what `consume --group` printed."""
    ran = on("consume", "--topic", topic, "--group", group, "--json", *arguments)
    assert ran.status == 0, ran.err
    return [(row["partition"], row["offset"]) for row in map(json.loads, ran.out.splitlines())]


def committed(on: Run, group: str) -> dict[int, int | None]:
    rows = documents(on("group", "describe", group, "--json"))[0]["partitions"]
    return {row["partition"]: row["committed_offset"] for row in rows}


def test_a_group_reads_everything_once_over_several_runs(on: Run, fill: Callable[..., None]) -> None:
    fill("once", 2)
    seen = consumed(on, "once", "once-readers", "--max", 7)
    assert len(seen) == 7
    assert sum(offset or 0 for offset in committed(on, "once-readers").values()) == 7
    seen += consumed(on, "once", "once-readers", "--max", 13)
    assert sorted(seen) == [(index, offset) for index in (0, 1) for offset in range(10)]
    assert committed(on, "once-readers") == {0: 10, 1: 10}
    assert consumed(on, "once", "once-readers", "--timeout", "0.2") == []


def test_a_new_group_begins_where_it_is_told(on: Run, fill: Callable[..., None]) -> None:
    fill("begin")
    assert consumed(on, "begin", "from-the-end", "--from", "latest", "--timeout", "0.2") == []
    assert consumed(on, "begin", "from-the-start", "--max", 1) == [(0, 0)]
    for wrong in (("--from", 3), ("--partition", 0)):
        assert on("consume", "--topic", "begin", "--group", "g", *wrong).status == 2
    assert on("consume", "--topic", "begin", "--instance-id", "i").status == 2
    assert on("consume", "--topic", ",", "--group", "g").status == 2


def test_describe_and_list(on: Run, fill: Callable[..., None]) -> None:
    fill("described", 2)
    consumed(on, "described", "described-readers", "--max", 4)
    listed = documents(on("group", "list", "--state", "Empty", "--json"))
    assert {"group": "described-readers", "type": "classic", "protocol_type": "consumer", "state": "Empty"} in listed
    assert on("group", "list", "--state", "Stable").out == "no groups\n"
    group = documents(on("group", "describe", "described-readers", "--json"))[0]
    assert (group["state"], group["members"], group["coordinator"]["node_id"]) == ("Empty", [], 1)
    rows = {row["partition"]: row for row in group["partitions"]}
    assert (rows[0]["committed_offset"], rows[0]["log_end_offset"], rows[0]["lag"]) == (4, 10, 6)
    text = on("group", "describe", "described-readers").out
    assert text.splitlines()[0].startswith("described-readers: Empty, classic, 0 members, coordinator 1 (")
    assert "COMMITTED-OFFSET" in text
    assert "no members" in on("group", "describe", "described-readers", "--members").out
    everything = on("group", "describe")
    assert everything.status == 0
    assert "described-readers: Empty" in everything.out
    gone = on("group", "describe", "no-such-group")
    assert (gone.status, "kmirror group list" in gone.err) == (1, True)


def test_moving_a_group(on: Run, fill: Callable[..., None]) -> None:
    fill("moved", 2)
    group = ("group", "reset", "movers", "--topics", "moved")
    dry = on(*group, "--to", "latest", "--dry-run")
    assert (dry.status, "Nothing was changed" in dry.err) == (0, True)
    assert on("group", "describe", "movers").status == 1
    moves = documents(on(*group, "--to", 4, "--json"))
    assert [(move["before"], move["after"], move["error"]) for move in moves] == [(None, 4, None)] * 2
    moves = documents(on(*group, "--to", 99, "--partitions", 1, "--json"))
    assert [(move["before"], move["after"]) for move in moves] == [(4, 10)]
    assert "99 is beyond the end 10" in moves[0]["note"]
    assert committed(on, "movers") == {0: 4, 1: 10}
    assert consumed(on, "moved", "movers", "--max", 1) == [(0, 4)]
    documents(on("group", "reset", "movers", "--topics", "mov.*", "--to", "earliest", "--json"))
    assert committed(on, "movers") == {0: 0, 1: 0}
    late = documents(on(*group, "--to", "2999-01-01T00:00:00", "--json"))
    assert [(move["after"], move["note"]) for move in late] == [(10, "no record is that new: the end")] * 2
    early = documents(on(*group, "--to", "1999-01-01T00:00:00Z", "--json"))
    assert [move["after"] for move in early] == [0, 0]


def test_moves_that_are_refused(on: Run, fill: Callable[..., None]) -> None:
    fill("refused")
    assert on("group", "reset", "g", "--topics", "refused", "--to", "tomorrow").status == 2
    assert on("group", "reset", "g", "--topics", ",", "--to", "latest").status == 2
    assert on("group", "reset", "g", "--topics", "refused", "--partitions", "x", "--to", "latest").status == 2
    unknown = on("group", "reset", "g", "--topics", "never-made", "--to", "latest")
    assert (unknown.status, "UNKNOWN_TOPIC_OR_PARTITION" in unknown.err) == (1, True)
    assert on("group", "reset", "g", "--topics", "refused", "--partitions", 7, "--to", "latest").status == 1
    assert on("group", "reset", "g", "--topics", "nothing.*", "--to", "latest").status == 1
    stateless = on("group", "list", "--state", "running")
    assert (stateless.status, "PreparingRebalance" in stateless.out) == (0, True), "a state that no group can be in"


def test_offsets_are_shown_and_deleted(on: Run, fill: Callable[..., None]) -> None:
    fill("shown")
    consumed(on, "shown", "shown-readers", "--max", 3)
    rows = documents(on("group", "offsets", "shown-readers", "--json"))
    assert [(row["topic"], row["committed_offset"], row["lag"], row["leader_epoch"]) for row in rows] == [
        ("shown", 3, 7, 0)
    ]
    assert on("group", "offsets", "shown-readers", "--delete").status == 2
    assert on("group", "offsets", "shown-readers", "--topics", "other", "--delete").status == 1
    deleted = on("group", "offsets", "shown-readers", "--topics", "sho.*", "--delete")
    assert (deleted.status, "deleted" in deleted.out) == (0, True), deleted.err
    assert on("group", "offsets", "shown-readers").out == "no committed offsets\n"
    assert on("group", "offsets", "no-such-group").status == 1


def test_deleting_groups(on: Run, fill: Callable[..., None]) -> None:
    fill("deleted")
    consumed(on, "deleted", "deleted-readers", "--max", 1)
    ran = on("group", "delete", "deleted-readers", "no-such-group")
    assert ran.status == 1
    assert "Deleted group deleted-readers." in ran.out
    assert "no-such-group: GROUP_ID_NOT_FOUND" in ran.err
    assert on("group", "describe", "deleted-readers").status == 1


# --- members that stay ------------------------------------------------------------------------------------------------


class Consumer:
    """`kmirror consume --group` as a process, so that several can be members at once."""

    def __init__(self, broker: Broker, topic: str, group: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "kmirror.cli.main", "consume", "--topic", topic, "--group", group]
        command += ["--timeout", "0", "--json", "--bootstrap", broker.bootstrap, *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self.rows: list[tuple[int, int]] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            row = json.loads(line)
            with self._grown:
                self.rows.append((row["partition"], row["offset"]))
                self._grown.notify_all()

    def wait_for(self, count: int) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: len(self.rows) >= count, timeout=WAIT_S), self.rows

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Exit status and what was said."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        status = self.process.wait(timeout=WAIT_S)
        self._reader.join(timeout=WAIT_S)
        return status, said


def members_of(on: Run, group: str, count: int) -> list[dict[str, Any]]:
    """Once the group is Stable with so many members: a member hears of a rebalance with its next heartbeat."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + WAIT_S * 1000
    found: list[dict[str, Any]] = []
    while clock.monotonic_ms() < deadline_ms:
        ran = on("group", "describe", group, "--json")
        found = json.loads(ran.out) if ran.status == 0 else []
        if found and found[0]["state"] == "Stable" and len(found[0]["members"]) == count:
            members: list[dict[str, Any]] = found[0]["members"]
            return members
    raise AssertionError(f"group {group} has no {count} stable members: {found}")


def test_members_share_a_topic_and_hand_it_over(
    on: Run, broker: Broker, fill: Callable[..., None], lines: Callable[[bytes], None]
) -> None:
    fill("shared", 2)
    first = Consumer(broker, "shared", "sharers")
    first.wait_for(20)
    assert [len(member["partitions"]) for member in members_of(on, "sharers", 1)] == [2]
    second = Consumer(broker, "shared", "sharers")
    assert [len(member["partitions"]) for member in members_of(on, "sharers", 2)] == [1, 1]
    refused = on("group", "delete", "sharers")
    assert (refused.status, "NON_EMPTY_GROUP" in refused.err, "--members" in refused.err) == (1, True, True)
    moved = on("group", "reset", "sharers", "--topics", "shared", "--to", "earliest")
    assert (moved.status, "2 members" in moved.err) == (1, True)
    for index in (0, 1):
        lines(b"x\n")
        on("produce", "--topic", "shared", "--partition", index)
    second.wait_for(1)
    status, said = first.end()
    assert (status, "left" in said) == (130, True)
    assert [len(member["partitions"]) for member in members_of(on, "sharers", 1)] == [2]
    lines(b"y\n")
    on("produce", "--topic", "shared", "--partition", first.rows[-1][0])
    second.wait_for(23 - len(first.rows))  # the first one may have left before its last record came
    assert second.end(signal.SIGTERM)[0] == 143
    everything = first.rows + second.rows
    assert len(everything) == len(set(everything)) == 23
    assert committed(on, "sharers") == {index: 11 + (index == first.rows[-1][0]) for index in (0, 1)}


def test_a_static_member_comes_back_to_its_partitions(on: Run, broker: Broker, fill: Callable[..., None]) -> None:
    fill("static")
    first = Consumer(broker, "static", "statics", "--instance-id", "one")
    first.wait_for(10)
    first.end()
    members = members_of(on, "statics", 1)
    assert [member["instance_id"] for member in members] == ["one"], "it has not left"
    refused = on("group", "reset", "statics", "--topics", "static", "--to", "earliest")
    assert (refused.status, "until its session times out" in refused.err) == (1, True), refused.err
    assert consumed(on, "static", "statics", "--instance-id", "one", "--timeout", "0.2") == []


def test_a_reader_of_the_pipe_that_goes_away(broker: Broker, on: Run, fill: Callable[..., None]) -> None:
    """`kmirror consume | head`: what was printed is committed, the group is left, and nobody sees a traceback."""
    fill("piped")
    command = [sys.executable, "-m", "kmirror.cli.main", "consume", "--topic", "piped", "--group", "pipers"]
    process = subprocess.Popen(
        [*command, "--bootstrap", broker.bootstrap, "--timeout", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.wait(timeout=WAIT_S)
    assert "Traceback" not in said
    assert json.loads(on("group", "describe", "pipers", "--json").out)[0]["state"] == "Empty"


# --- transactions -----------------------------------------------------------------------------------------------------


def visible(on: Run, topic: str) -> list[str]:
    ran = on("consume", "--topic", topic, "--isolation", "read_committed", "--timeout", "0.1", "--json")
    return [json.loads(line)["value"] for line in ran.out.splitlines()]


def test_transactions_of_some_lines_each(on: Run, lines: Callable[[bytes], None]) -> None:
    on("topic", "create", "in-transactions", "--partitions", 2)
    produce = ("produce", "--topic", "in-transactions", "--transactional-id", "writer", "--json")
    lines(b"a\nb\nc\nd\ne\n")
    rows = documents(on(*produce, "--transaction-size", 2))
    assert [(row["transaction"], row["records"], row["outcome"]) for row in rows] == [
        (1, 2, "committed"),
        (2, 2, "committed"),
        (3, 1, "committed"),
    ]
    lines(b"x\ny\n")
    assert [row["outcome"] for row in documents(on(*produce, "--abort"))] == ["aborted"]
    lines(b"f\n")
    text = on("produce", "--topic", "in-transactions", "--transactional-id", "writer")
    assert "committed" in text.out
    assert sorted(visible(on, "in-transactions")) == ["a", "b", "c", "d", "e", "f"]
    lines(b"")
    assert documents(on(*produce)) == []


def test_a_refused_batch_aborts_its_transaction(on: Run, lines: Callable[[bytes], None]) -> None:
    on("topic", "create", "small", "--partitions", 1, "--set", "max.message.bytes=200")
    produce = ("produce", "--topic", "small", "--transactional-id", "large", "--transaction-size", 1, "--json")
    lines(b"fits\n" + b"x" * 500 + b"\nnever sent\n")
    ran = on(*produce)
    rows = json.loads(ran.out)
    assert ran.status == 1
    assert [(row["outcome"], bool(row["error"])) for row in rows] == [("committed", False), ("aborted", True)]
    assert visible(on, "small") == ["fits"]


def test_a_line_that_is_none_aborts_the_transaction(on: Run, lines: Callable[[bytes], None]) -> None:
    on("topic", "create", "broken-off", "--partitions", 1)
    lines(b"k=v\n" * 500 + b"no separator\n")
    ran = on("produce", "--topic", "broken-off", "--transactional-id", "broken", "--key-separator", "=")
    assert (ran.status, "was aborted" in ran.err) == (2, True)
    assert visible(on, "broken-off") == []


def test_transactional_options(on: Run) -> None:
    for wrong in (
        ("--abort",),
        ("--transaction-size", 3),
        ("--transactional-id", ""),
        ("--transactional-id", "t", "--acks", 1),
        ("--transactional-id", "t", "--producer-id", 5, "--partition", 0),
    ):
        assert on("produce", "--topic", "t", *wrong).status == 2, wrong
    refused = on("produce", "--topic", "t", "--transactional-id", "t", "--transaction-timeout", 86_400)
    assert (refused.status, "transaction.max.timeout.ms" in refused.err) == (1, True)
