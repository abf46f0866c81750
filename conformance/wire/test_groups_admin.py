"""ListGroups, DescribeGroups and DeleteGroups at every version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from conformance.wire.client import Broker, Topic
from conformance.wire.groups import (
    GROUP_NOT_FOUND,
    NON_EMPTY_GROUP,
    Member,
    commit,
    committed,
    describe,
    fetch_offsets,
    join_all,
    new_group,
    stable_group,
)
from kmirror.protocol.api.delete_groups import DeleteGroupsRequest
from kmirror.protocol.api.describe_groups import DescribeGroupsRequest
from kmirror.protocol.api.list_groups import ListGroupsRequest

NO_OPERATIONS = -(2**31)
# READ 3, DELETE 6, DESCRIBE 8 as bits: what a broker without authorization allows on a group
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8


@pytest.fixture
def group(broker: Broker) -> str:
    return new_group(broker, "admin")


@pytest.fixture
def members(broker: Broker, group: str) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        yield [stack.enter_context(member) for member in stable_group(broker, group, 2)]


@pytest.mark.parametrize("version", range(7))
def test_describe_at_every_version(broker: Broker, members: list[Member], version: int) -> None:
    row = describe(broker, members[0].group, version)
    assert (row.error_code, row.error_message, row.group_id) == (0, None, members[0].group)
    assert (row.group_state, row.protocol_type, row.protocol_data) == ("Stable", "consumer", "range")
    assert {member.member_id for member in row.members} == {member.member_id for member in members}
    found = {member.member_id: member for member in row.members}
    for number, member in enumerate(members):
        seen = found[member.member_id]
        assert (seen.client_id, seen.client_host, seen.group_instance_id) == ("wire", "/127.0.0.1", None)
        assert bytes(seen.member_metadata) == b"range metadata"
        assert bytes(seen.member_assignment) == f"assignment {number}".encode()
    assert row.authorized_operations == NO_OPERATIONS, "nobody asked"
    if version >= 3:
        request = DescribeGroupsRequest(groups=[row.group_id], include_authorized_operations=True)
        (row,) = broker.request(request, version).groups
        assert row.authorized_operations & GROUP_OPERATIONS == GROUP_OPERATIONS


@pytest.mark.parametrize("version", range(7))
def test_describe_a_group_that_is_not(broker: Broker, group: str, version: int) -> None:
    """Dead and no error; from v6 on 69, with a message."""
    row = describe(broker, group, version)
    assert (row.group_state, row.protocol_type, row.members) == ("Dead", "", [])
    if version >= 6:
        assert row.error_code == GROUP_NOT_FOUND and group in row.error_message
    else:
        assert row.error_code == 0


def test_describe_while_the_group_rebalances(broker: Broker, members: list[Member]) -> None:
    """Until the group is stable there is no protocol and no metadata; the assignments are still the old ones."""
    join_all(members)
    row = describe(broker, members[0].group)
    assert (row.group_state, row.protocol_data) == ("CompletingRebalance", "")
    assert {(bytes(member.member_metadata), bytes(member.member_assignment)) for member in row.members} == {
        (b"", b"assignment 0"), (b"", b"assignment 1")
    }  # fmt: skip


def test_describe_several_in_order(broker: Broker, topic: Topic, members: list[Member]) -> None:
    simple = broker.new_name("simple")
    assert commit(broker, simple, topic, 1) == 0
    names = [simple, broker.new_name("absent"), members[0].group]
    rows = broker.request(DescribeGroupsRequest(groups=names), broker.version("DescribeGroups", 5)).groups
    found = {row.group_id: (row.group_state, row.protocol_type) for row in rows}
    assert found == dict(zip(names, [("Empty", ""), ("Dead", ""), ("Stable", "consumer")], strict=True))


def listed(broker: Broker, version: int, **filters: list[str]) -> dict[str, tuple[str, str, str]]:
    answer = broker.request(ListGroupsRequest(**filters), broker.version("ListGroups", version))
    assert answer.error_code == 0
    return {row.group_id: (row.protocol_type, row.group_state, row.group_type) for row in answer.groups}


@pytest.mark.parametrize("version", range(6))
def test_list_at_every_version(broker: Broker, topic: Topic, members: list[Member], version: int) -> None:
    simple, stable = broker.new_name("simple"), members[0].group
    assert commit(broker, simple, topic, 1) == 0
    found = listed(broker, version)
    kind = "classic" if version >= 5 else ""
    states = ("Stable", "Empty") if version >= 4 else ("", "")
    assert found[stable] == ("consumer", states[0], kind) and found[simple] == ("", states[1], kind)


@pytest.mark.parametrize("version", [4, 5])
def test_list_by_state(broker: Broker, topic: Topic, members: list[Member], version: int) -> None:
    simple, stable = broker.new_name("simple"), members[0].group
    assert commit(broker, simple, topic, 1) == 0
    assert {stable, simple} <= set(listed(broker, version, states_filter=["Stable", "Empty"]))
    for wanted in ("Stable", "stable", "STABLE"):
        found = listed(broker, version, states_filter=[wanted])
        assert stable in found and simple not in found
    assert not {stable, simple} & set(listed(broker, version, states_filter=["Dead", "PreparingRebalance"]))
    assert listed(broker, version, states_filter=["no such state"]) == {}


def test_list_by_type(broker: Broker, members: list[Member]) -> None:
    stable = members[0].group
    for wanted in ("classic", "Classic"):
        assert stable in listed(broker, 5, types_filter=[wanted])
    assert stable not in listed(broker, 5, types_filter=["consumer"])
    assert listed(broker, 5, types_filter=["classic"], states_filter=["Dead"]) == {}


def delete(broker: Broker, version: int, *groups: str) -> dict[str, int]:
    answer = broker.request(DeleteGroupsRequest(groups_names=list(groups)), broker.version("DeleteGroups", version))
    return {row.group_id: row.error_code for row in answer.results}


@pytest.mark.parametrize("version", range(4))
def test_delete_at_every_version(broker: Broker, topic: Topic, members: list[Member], version: int) -> None:
    """68 with members, 69 when unknown; offsets go with the group."""
    simple, absent, active = broker.new_name("simple"), broker.new_name("absent"), members[0].group
    assert commit(broker, simple, topic, 1) == members[0].commit(topic, 2) == 0
    codes = delete(broker, version, simple, absent, active)
    assert codes == {simple: 0, absent: GROUP_NOT_FOUND, active: NON_EMPTY_GROUP}
    assert fetch_offsets(broker, simple, None) == (0, [], {})
    assert simple not in listed(broker, 4) and committed(broker, active, topic) == 2
    assert describe(broker, simple, 5).group_state == "Dead"
    for member in members:
        assert member.leave() == 0
    assert delete(broker, version, active) == {active: 0}
    assert committed(broker, active, topic) == -1
    assert delete(broker, version, active) == {active: GROUP_NOT_FOUND}


def test_the_group_without_a_name_is_a_group(broker: Broker, topic: Topic) -> None:
    assert commit(broker, "", topic, 1) == 0
    assert [delete(broker, 3, "") for _ in range(2)] == [{"": 0}, {"": GROUP_NOT_FOUND}]
