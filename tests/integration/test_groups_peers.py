"""Show 1: other people's consumers in groups, the same scenario against kmirror and against Apache Kafka.

Both brokers run a scenario at the same time, and what can be seen of it must be equal: the shape of each assignment,
the committed offsets, the errors. Member ids are random, so a shape is the set of the members' partition sets (for
sticky assignors, which depend on who was there before, the sizes).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from conformance.peers.fixtures import MakeKafka
from conformance.peers.kafka import KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import eventually
from conformance.wire.batches import batch
from conformance.wire.client import Broker, Topic
from conformance.wire.groups import (
    REBALANCING,
    Member,
    committed,
    join_all,
    rebalance,
    state_of,
    wait_for_coordinator,
)
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from tests.integration.group_clients import (
    Aiokafka,
    Assignment,
    Confluent,
    GroupMember,
    JavaConsole,
    JavaVerifiable,
    KafkaPython,
    Kcat,
    Start,
    assignments,
)
from tests.integration.java_programs import ToolShell, normalised
from tests.integration.side_by_side import Peers

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # the clients' own
]
RECORDS = 10
COUNTS = (7, 4)
MEMBERS = 3
CROWD = 200
SETTLED_S = 45


@pytest.fixture(scope="module")
def peers(
    make_kafka: MakeKafka, kafka_installation: Callable[[str], KafkaInstallation],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Peers]:  # fmt: skip
    kafka = make_kafka()
    with KmirrorBroker(tmp_path_factory.mktemp("peers") / "kmirror") as kmirror:
        yield Peers(Broker(kmirror.bootstrap), Broker(kafka.bootstrap), kafka_installation("4.4.0"))


def fill(broker: Broker, topics: Sequence[Topic], *, tag: str) -> set[bytes]:
    """Ten records into each partition."""
    values = set()
    for topic in topics:
        for index in range(topic.partition_count):
            mine = [f"{topic.name}/{index}/{tag}/{number}".encode() for number in range(RECORDS)]
            assert broker.produce_when_ready(topic, batch(mine), partition=index).error_code == 0
            values |= set(mine)
    return values


def settled(broker: Broker, group: str, count: int, topics: Sequence[Topic]) -> list[Assignment]:
    """Waits until that many members share all partitions, each partition once."""
    everything = {(topic.name, index) for topic in topics for index in range(topic.partition_count)}

    def look() -> list[Assignment] | None:
        found = assignments(broker, group)
        if found is None or len(found) != count or sum(map(len, found)) != len(everything):
            return None
        return found if set().union(*found) == everything else None

    return eventually(look, what=f"{count} members that share {len(everything)} partitions", timeout_s=SETTLED_S)


def shape(found: Sequence[Assignment], topics: Sequence[Topic], *, sticky: bool) -> object:
    """What of an assignment must be equal on two brokers: topics by number, members without names."""
    if sticky:
        return sorted(len(partitions) for partitions in found)
    number = {topic.name: index for index, topic in enumerate(topics)}
    return sorted(sorted((number[name], index) for name, index in partitions) for partitions in found)


def read_by(members: Sequence[GroupMember]) -> list[bytes]:
    return [value for member in members for value in list(member.values)]


def all_read(members: Sequence[GroupMember], wanted: set[bytes]) -> None:
    def missing() -> set[bytes]:
        return wanted - set(read_by(members))

    with contextlib.suppress(AssertionError):
        eventually(
            lambda: not missing() or any(member.failures for member in members), what="records", timeout_s=SETTLED_S
        )
    lost = sorted(missing())
    assert not lost, "\n".join([f"{len(lost)} records not read: {lost[:3]}", *(m.account() for m in members)])


def committed_offsets(broker: Broker, group: str, topics: Sequence[Topic]) -> list[int]:
    return [committed(broker, group, topic, index) for topic in topics for index in range(topic.partition_count)]


def share_and_leave(broker: Broker, starts: Sequence[Start], counts: Sequence[int], *, sticky: bool) -> dict[str, Any]:
    """One joins, the others follow, one leaves, more records come, all leave; what is to be the same on two brokers."""
    topics = [
        broker.create_topic(partition_count=count, prefix=f"topic-{number}") for number, count in enumerate(counts)
    ]
    group = broker.new_name("group")
    names = [topic.name for topic in topics]
    wanted = fill(broker, topics, tag="first")
    members = [starts[0](broker.address, group, names)]
    running = list(members)
    try:
        seen = {"one": shape(settled(broker, group, 1, topics), topics, sticky=sticky)}
        for start in starts[1:]:
            members.append(start(broker.address, group, names))
            running.append(members[-1])
        seen["all"] = shape(settled(broker, group, len(starts), topics), topics, sticky=sticky)
        all_read(members, wanted)
        running.pop().stop()
        seen["one left"] = shape(settled(broker, group, len(starts) - 1, topics), topics, sticky=sticky)
        wanted |= fill(broker, topics, tag="second")
        all_read(members, wanted)
    finally:
        while running:
            running.pop().stop()
    eventually(lambda: state_of(broker, group) == "Empty", what="empty group")
    values = read_by(members)
    assert set(values) == wanted
    return seen | {"offsets": committed_offsets(broker, group, topics), "repeats": len(values) - len(wanted)}


def share_with_kafka_python(broker: Broker, starts: Sequence[Start], counts: Sequence[int], *, sticky: bool) -> Any:
    """The same, again when a member stalls: about once in forty joins kafka-python 3.0.12 does not take its heartbeats
    up again after a generation that it was given (every request of it is answered), and is put out of the group."""
    for attempt in range(2):
        try:
            return share_and_leave(broker, starts, counts, sticky=sticky)
        except AssertionError as error:
            print(f"attempt {attempt} against {broker.address}: {error}")
    return share_and_leave(broker, starts, counts, sticky=sticky)


def expected(counts: Sequence[int]) -> list[int]:
    return [2 * RECORDS] * sum(counts)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_confluent_kafka(peers: Peers, assignor: str) -> None:
    start = partial(Confluent, assignor=assignor)
    seen = peers.both(lambda broker: share_and_leave(broker, [start] * MEMBERS, COUNTS, sticky="sticky" in assignor))
    assert seen["offsets"] == expected(COUNTS)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
def test_aiokafka(peers: Peers, assignor: str) -> None:
    start = partial(Aiokafka, assignor=assignor)
    seen = peers.both(lambda broker: share_and_leave(broker, [start] * MEMBERS, COUNTS, sticky="sticky" in assignor))
    assert seen["offsets"] == expected(COUNTS)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_kafka_python(peers: Peers, assignor: str) -> None:
    start = partial(KafkaPython, assignor=assignor)
    seen = peers.both(
        lambda broker: share_with_kafka_python(broker, [start] * MEMBERS, COUNTS, sticky="sticky" in assignor)
    )
    assert seen["offsets"] == expected(COUNTS)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_kcat(peers: Peers, kcat: str, assignor: str) -> None:
    start = partial(Kcat, assignor=assignor)
    seen = peers.both(lambda broker: share_and_leave(broker, [start] * MEMBERS, COUNTS, sticky="sticky" in assignor))
    assert seen["offsets"] == expected(COUNTS)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_kafkas_verifiable_consumer(peers: Peers, tmp_path: Path, assignor: str) -> None:
    start = partial(JavaVerifiable, assignor=assignor, installation=peers.installation, directory=tmp_path)
    counts = COUNTS[:1]
    seen = peers.both(lambda broker: share_and_leave(broker, [start] * 2, counts, sticky="sticky" in assignor))
    assert seen["offsets"] == expected(counts)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_kafkas_console_consumer(peers: Peers, assignor: str) -> None:
    start = partial(JavaConsole, assignor=assignor, installation=peers.installation)
    seen = peers.both(lambda broker: share_and_leave(broker, [start] * 2, COUNTS, sticky="sticky" in assignor))
    assert seen["offsets"] == expected(COUNTS)


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_all_of_them_in_one_group(peers: Peers, kcat: str, assignor: str) -> None:
    starts: list[Start] = [
        partial(Confluent, assignor=assignor),
        partial(JavaConsole, assignor=assignor, installation=peers.installation),
        partial(Aiokafka, assignor=assignor),
        partial(KafkaPython, assignor=assignor),
        partial(Kcat, assignor=assignor),
    ]
    seen = peers.both(lambda broker: share_with_kafka_python(broker, starts, COUNTS, sticky=False))
    assert seen["offsets"] == expected(COUNTS)


# --- errors


def test_errors_that_librdkafka_reports(peers: Peers) -> None:
    """The same codes in the same places."""
    seen = peers.both(_errors)
    assert 0 not in seen.values()


def _errors(broker: Broker) -> dict[str, int]:
    topic = broker.create_topic(partition_count=2)
    group = broker.new_name("errors")
    seen: dict[str, int] = {}
    first = Confluent(broker.address, group, [topic.name], "range", instance="one")
    settled(broker, group, 1, [topic])
    stranger = Confluent(broker.address, group, [topic.name], "roundrobin")
    seen["another protocol"] = eventually(lambda: stranger.errors and stranger.errors[0], what="inconsistent protocol")
    stranger.stop()
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    seen["delete an active group"] = _code(admin.delete_consumer_groups([group])[group])
    seen["delete an unknown group"] = _code(admin.delete_consumer_groups(["nobody"])["nobody"])
    altered = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic.name, 0, 1)])]
    seen["commit beside members"] = _code(admin.alter_consumer_group_offsets(altered)[group])
    described = admin.describe_consumer_groups(["nobody"])["nobody"].exception()
    seen["describe an unknown group"] = -1 if described is None else int(described.args[0].code())
    outsider = Consumer({"bootstrap.servers": broker.address, "group.id": group, "log_level": 0})
    try:
        outsider.commit(offsets=[TopicPartition(topic.name, 0, 1)], asynchronous=False)
    except KafkaException as error:
        seen["commit of a consumer that is no member"] = int(error.args[0].code())
    outsider.close()
    second = Confluent(broker.address, group, [topic.name], "range", instance="one")
    seen["the same instance twice"] = eventually(lambda: first.errors and first.errors[-1], what="fenced instance")
    first.stop()
    second.stop()
    return seen


def _code(future: Any) -> int:
    """The error code in an admin client's future, also where it stands on a partition; 0 when all went well."""
    try:
        result = future.result(30)
    except KafkaException as error:
        return int(error.args[0].code())
    errors = [part.error.code() for part in getattr(result, "topic_partitions", None) or () if part.error]
    return errors[0] if errors else 0


def test_a_static_member_restarts(peers: Peers) -> None:
    """The others are not disturbed, and it gets its partitions back."""
    assert peers.both(_restart_static) == (True, 0)


def _restart_static(broker: Broker) -> tuple[bool, int]:
    topic = broker.create_topic(partition_count=4)
    group = broker.new_name("static")

    def start(name: str) -> Confluent:
        return Confluent(broker.address, group, [topic.name], "range", instance=name)

    members = [start(name) for name in ("one", "two")]
    before = settled(broker, group, 2, [topic])
    eventually(lambda: all(member.assigned for member in members), what="assigned members")
    assigned = members[0].assigned
    members[1].stop()  # a static member does not leave when it closes
    members[1] = start("two")
    eventually(lambda: members[1].assigned, what="the restarted member's assignment")
    after = settled(broker, group, 2, [topic])
    disturbed = members[0].assigned - assigned
    for member in members:
        member.stop()
    return sorted(map(sorted, before)) == sorted(map(sorted, after)), disturbed


# --- many


def test_two_hundred_members(peers: Peers) -> None:
    """Join, three generations, half of them leave at once, the rest goes on; every member gets its own assignment."""
    peers.both(_crowd)


def _crowd(broker: Broker) -> list[tuple[int, int]]:
    group = broker.new_name("crowd")
    wait_for_coordinator(broker, group, 0)
    members = [
        Member(
            broker, group, session_timeout_ms=60_000, rebalance_timeout_ms=60_000, protocols=[("range", b"%d" % index)]
        )
        for index in range(CROWD)
    ]
    seen = []
    try:
        for member in members:
            member.take_id()
        for _ in range(3):
            given = rebalance(members)
            assert [given[member.member_id] for member in members] == [b"assignment %d" % i for i in range(CROWD)]
            (leader,) = [member for member in members if member.is_leader]
            assert {bytes(row.metadata) for row in leader.members.values()} == {b"%d" % i for i in range(CROWD)}
            seen.append((members[0].generation, len(leader.members)))
        leaving, staying = members[::2], members[1::2]
        request = LeaveGroupRequest(
            group_id=group, members=[MemberIdentity(member_id=member.member_id) for member in leaving]
        )
        answer = broker.request(request)
        assert {row.error_code for row in answer.members} == {0} and len(answer.members) == CROWD // 2
        assert [member.heartbeat() for member in staying] == [REBALANCING] * len(staying)
        join_all(staying)
        seen.append((staying[0].generation, len({member.member_id for member in staying})))
        for member in staying:
            assert member.leave() == 0
        assert state_of(broker, group) == "Empty"
    finally:
        for member in members:
            member.close()
    return seen


# --- kafka-consumer-groups


def test_kafkas_consumer_groups_tool(peers: Peers) -> None:
    """Show 2: the same tables on both, of a running group and of an empty one, and the same work done by the tool."""
    tables = peers.both(partial(_tables, peers))
    assert all(tables.values())


def _tables(peers: Peers, broker: Broker) -> dict[str, list[str]]:
    with ToolShell(peers.installation) as shell:
        return _tables_by(shell, broker)


def _tables_by(shell: ToolShell, broker: Broker) -> dict[str, list[str]]:
    topic = broker.create_topic(partition_count=3)
    group = broker.new_name("table")
    fill(broker, [topic], tag="first")

    def tool(*arguments: str) -> list[str]:
        done = shell.run("consumer-groups", ["--bootstrap-server", broker.address, *arguments])
        return normalised(done.stdout, broker.address, {group: "GROUP", topic.name: "TOPIC"})

    member = Confluent(broker.address, group, [topic.name], "range")
    tables = {}
    try:
        settled(broker, group, 1, [topic])
        eventually(lambda: committed_offsets(broker, group, [topic]) == [RECORDS] * 3, what="commits")
        tables["offsets"] = tool("--describe", "--group", group)
        tables["members"] = tool("--describe", "--group", group, "--members", "--verbose")
        tables["state"] = tool("--describe", "--group", group, "--state")
        tables["reset while active"] = tool(
            "--reset-offsets", "--group", group, "--topic", topic.name, "--to-earliest", "--execute"
        )
        tables["delete while active"] = tool("--delete", "--group", group)
        tables["delete offsets while active"] = tool("--delete-offsets", "--group", group, "--topic", topic.name)
    finally:
        member.stop()
    eventually(lambda: state_of(broker, group) == "Empty", what="empty group")
    listed = [line for line in tool("--list", "--state") if line.startswith("GROUP ")]
    tables["list"] = [line for line in listed if line.split()[0] == "GROUP"]
    tables["reset"] = tool("--reset-offsets", "--group", group, "--topic", topic.name, "--shift-by", "-3", "--execute")
    assert committed_offsets(broker, group, [topic]) == [RECORDS - 3] * 3
    tables["offsets of an empty group"] = tool("--describe", "--group", group)
    tables["delete offsets"] = tool("--delete-offsets", "--group", group, "--topic", f"{topic.name}:1")
    assert committed_offsets(broker, group, [topic]) == [RECORDS - 3, -1, RECORDS - 3]
    tables["delete"] = tool("--delete", "--group", group)
    tables["offsets of no group"] = tool("--describe", "--group", group)
    return tables
