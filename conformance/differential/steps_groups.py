"""Steps of group members by the classic protocol, and questions about groups.

Session and rebalance timeouts are long, so that nothing happens by itself: a rebalance ends when its last member has
joined or left. Where Kafka picks a leader at random (the old one has left two or more others) all leave together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from conformance.differential.sides import Side
from conformance.differential.story import Member, Step, Story, StoryGroup
from kmirror.protocol.api.delete_groups import DeleteGroupsRequest
from kmirror.protocol.api.describe_groups import DescribeGroupsRequest
from kmirror.protocol.api.heartbeat import HeartbeatRequest
from kmirror.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kmirror.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from kmirror.protocol.api.list_groups import ListGroupsRequest
from kmirror.protocol.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

LONG_MS = 1_700_000
MAX_GROUPS, MAX_MEMBERS = 3, 5
IDS_REQUIRED_FROM, STATIC_FROM, BATCH_LEAVE_FROM = 4, 5, 3
STATIC_IN = {"SyncGroup": 3, "Heartbeat": 3}
PREPARING, COMPLETING = "PreparingRebalance", "CompletingRebalance"
UNKNOWN_MEMBER_ID, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID = 25, 79, 82
NOBODY = ("nobody", "nobody")
ABSENT_GROUPS = ("no-such-group", "")
PROTOCOLS: tuple[tuple[str, ...], ...] = (
    ("range",),
    ("range", "roundrobin"),
    ("roundrobin", "range"),
    ("sticky", "range"),
    ("range", "sticky", "roundrobin"),
)
OPERATIONS_KNOWN = 3
WRONG_SYNCS = ("generation", "protocol", "type", "instance")


def subscription(topics: list[str], user_data: bytes = b"") -> bytes:
    """ConsumerProtocolSubscription version 0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", len(user_data)) + user_data


def any_group(story: Story) -> StoryGroup:
    """One of this story's, or a new one."""
    if not story.groups or (len(story.groups) < MAX_GROUPS and story.one_in(6)):
        name = f"{story.prefix}-g{len(story.groups)}"
        kind = "consumer" if story.rng.randrange(4) else story.rng.choice(["connect", "other"])
        story.groups[name] = StoryGroup(name, kind)
    return story.rng.choice(list(story.groups.values()))


def free_members(group: StoryGroup) -> list[Member]:
    return [member for member in group.present if not member.held]


# -- JoinGroup -------------------------------------------------------------------------------------------------------


def join(story: Story) -> Step | None:
    """A new member, one that comes back with its id, one that joins again, or one with something wrong."""
    rng, group = story.rng, any_group(story)
    pending = [member for member in group.members if member.pending and not member.held]
    again = free_members(group)
    pick = rng.randrange(12)
    leader = group.leader
    if leader in again and leader is not None and leader.instance and leader.synced == group.generation:
        pick = rng.choice([pick, 9])  # in a stable group a leader that comes back need not assign again
    if pending and pick < 5:
        return join_step(story, group, rng.choice(pending), "with the id it was given")
    if again and pick < 8:
        member = rng.choice(again)
        if story.one_in(3):
            member.protocols = _protocols(story, group)
        return join_step(story, group, member, "again")
    if pick == 8:
        return _join_wrongly(story, group)
    static = [member for member in group.present if member.instance]
    if pick in (9, 10) and static:
        old = leader if leader is not None and leader in static and rng.randrange(4) else rng.choice(static)
        return _join_as_known_instance(story, group, old)
    if len(group.members) >= MAX_MEMBERS:
        return None
    member = _new_member(story, group, static=story.one_in(2))
    return join_step(story, group, member, "new")


def _new_member(story: Story, group: StoryGroup, *, static: bool) -> Member:
    group.lanes_made += 1
    number = group.lanes_made
    index = list(story.groups).index(group.name)
    lane = f"client-{number}" if index == 0 else f"client-{index}-{number}"
    instance = f"instance-{number}" if static else None
    return Member(lane, number, instance, protocols=_protocols(story, group))


def _protocols(story: Story, group: StoryGroup) -> list[tuple[str, bytes]]:
    names = story.rng.choice(PROTOCOLS)
    topics = sorted(story.topics)[: story.rng.randrange(3)]
    data = b"%d" % story.rng.randrange(3)
    if group.protocol_type == "consumer" and story.rng.randrange(6):
        return [(name, subscription(topics, data)) for name in names]
    return [(name, data) for name in names]


def join_step(
    story: Story, group: StoryGroup, member: Member, what: str, *, change: Callable[[Any], None] | None = None,
    after: Callable[[Any, Any], None] | None = None, frees: tuple[str, ...] = (),
    member_id: tuple[str, str] | None = None,
) -> Step:  # fmt: skip
    version = story.version("JoinGroup", lowest=STATIC_FROM if member.instance else 0)
    reason = story.rng.choice([None, "", "why not"])
    ids = member_id or member.ids or ("", "")

    def build(side: Side) -> JoinGroupRequest:
        request = JoinGroupRequest(
            group_id=group.name, session_timeout_ms=LONG_MS, member_id=ids[side.index],
            protocol_type=group.protocol_type, protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in member.protocols
            ],
        )  # fmt: skip
        if version >= 1:
            request.rebalance_timeout_ms = LONG_MS
        if version >= STATIC_FROM:
            request.group_instance_id = member.instance
        if version >= 8:
            request.reason = reason
        if change is not None:
            change(request)
        return request

    def learn(left: Any, right: Any) -> None:
        member.held = ""
        if member in group.joining:
            group.joining.remove(member)
        _joined(group, member, left, right)
        if after is not None:
            after(left, right)

    member.held = "JoinGroup"
    if not member.joined and member not in group.joining:
        group.joining.append(member)
    shown = f"{group.name} {member.lane} {member.instance or ''} {what} {[name for name, _ in member.protocols]}"
    return Step("JoinGroup", version, shown, build, learn, lane=member.lane, group=group.name, held_while=PREPARING,
                frees=frees, repeatable=False)  # fmt: skip


def _joined(group: StoryGroup, member: Member, left: Any, right: Any) -> None:
    if left.error_code == MEMBER_ID_REQUIRED:
        member.ids, member.pending = (left.member_id, right.member_id), True
        if member not in group.members:
            group.members.append(member)
    elif left.error_code == 0:
        member.ids, member.generation = (left.member_id, right.member_id), left.generation_id
        member.pending, member.joined, group.exists = False, True, True
        if member not in group.members:
            group.members.append(member)
        group.generation, group.protocol = left.generation_id, left.protocol_name
        if left.leader == left.member_id:
            group.leader = member
            by_id = {row.member_id: row for row in right.members}
            pairs = {known.ids[0]: known for known in group.members if known.ids is not None}
            known = sorted((pairs[row.member_id] for row in left.members if row.member_id in pairs), key=_number)
            group.roster = [each.ids for each in known if each.ids is not None and each.ids[1] in by_id]
    elif left.error_code in (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID) and member.ids is not None:
        group.drop(member)


def _number(member: Member) -> int:
    return member.number


def _join_wrongly(story: Story, group: StoryGroup) -> Step:
    """Something that refuses the request whatever the group is doing."""
    rng = story.rng
    member = _new_member(story, group, static=story.one_in(3))
    kinds = ["session", "protocol type", "no protocols", "disjoint", "group", "member id", "past id", "empty type"]
    kind = rng.choice(kinds)
    ids = None

    def change(request: JoinGroupRequest) -> None:
        if kind == "session":
            request.session_timeout_ms = timeout_ms
        elif kind == "protocol type":
            request.protocol_type = "something else"
        elif kind == "empty type":
            request.protocol_type = ""
        elif kind == "no protocols":
            request.protocols = []
        elif kind == "disjoint":
            request.protocols = [JoinGroupRequestProtocol(name="nobody has this", metadata=b"")]
        elif kind == "group":
            request.group_id = ""

    timeout_ms = rng.choice([0, 1, -1, 5999, 1_800_001, 2**31 - 1])
    if kind == "member id":
        ids = NOBODY
    elif kind == "past id":
        ids = rng.choice(group.past) if group.past else NOBODY
    if not group.present and kind in ("protocol type", "disjoint"):
        kind = "session"  # the first member decides: it would be no mistake
    return join_step(story, group, member, kind, change=change, member_id=ids)


def _join_as_known_instance(story: Story, group: StoryGroup, old: Member) -> Step:
    """A static member that has lost its id, has a wrong one, or has its own."""
    rng = story.rng
    kind = rng.choice(["restarted"] * 4 + ["wrong id", "past id"])
    if kind != "restarted":
        ids = NOBODY if kind == "wrong id" or not group.past else rng.choice(group.past)
        member = Member(_new_member(story, group, static=False).lane, old.number, old.instance, protocols=old.protocols)
        return join_step(story, group, member, kind, member_id=ids)
    fresh = _new_member(story, group, static=False)
    protocols = old.protocols if rng.randrange(3) else fresh.protocols
    member = Member(fresh.lane, fresh.number, old.instance, protocols=protocols)
    was_leader = group.leader is old

    def after(left: Any, _right: Any) -> None:
        if left.error_code == 0:
            group.drop(old)
            if was_leader and group.leader is None:
                group.leader = member
            if old.ids in group.roster and member.ids is not None:
                group.roster[group.roster.index(old.ids)] = member.ids

    return join_step(story, group, member, kind, after=after, frees=(old.lane,) if old.held else ())


# -- SyncGroup, Heartbeat --------------------------------------------------------------------------------------------


def sync(story: Story) -> Step | None:
    rng, group = story.rng, any_group(story)
    members = free_members(group)
    if not members or story.one_in(8):
        return _sync_unknown(story, group)
    leader = group.leader
    member = leader if leader in members and rng.randrange(2) else rng.choice(members)
    assert member is not None
    assigned = [(ids, b"to %d in %d" % (at, member.generation)) for at, ids in enumerate(group.roster)]
    if story.one_in(8):
        assigned = assigned[:-1]
    if member is not group.leader and rng.randrange(10):
        assigned = []
    return sync_step(story, group, member, rng.choice([*["right"] * 8, *WRONG_SYNCS]), assigned)


def go_on(story: Story) -> Step | None:
    """What a well-behaved member would do next: only so do groups become stable, where other rules hold."""
    group = any_group(story)
    free = [member for member in group.members if not member.held]
    if pending := [member for member in free if member.pending]:
        return join_step(story, group, pending[0], "with the id it was given")
    due = [member for member in free if member.joined and member.synced < member.generation == group.generation]
    if not due:
        return None
    member = group.leader if group.leader in due else due[0]
    assert member is not None
    assigned = [(ids, b"to %d in %d" % (at, member.generation)) for at, ids in enumerate(group.roster)]
    return sync_step(story, group, member, "right", assigned if member is group.leader else [])


def sync_step(
    story: Story, group: StoryGroup, member: Member, kind: str, assigned: list[tuple[tuple[str, str], bytes]]
) -> Step:
    version = story.version("SyncGroup", lowest=_lowest("SyncGroup", member))
    generation = member.generation + (story.rng.choice([1, -1, 100]) if kind == "generation" else 0)
    ids = member.ids or NOBODY

    def build(side: Side) -> SyncGroupRequest:
        request = SyncGroupRequest(
            group_id=group.name, generation_id=generation, member_id=ids[side.index],
            assignments=[SyncGroupRequestAssignment(member_id=to[side.index], assignment=a) for to, a in assigned],
        )  # fmt: skip
        if version >= 3:
            request.group_instance_id = member.instance if kind != "instance" else "instance-nobody"
        if version >= 5:
            request.protocol_type = "something else" if kind == "type" else group.protocol_type
            request.protocol_name = "something else" if kind == "protocol" else group.protocol
        return request

    def after(left: Any, _right: Any) -> None:
        member.held = ""
        if left.error_code == 0:
            member.synced = generation
        if left.error_code in (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID) and kind == "right":
            group.drop(member)

    member.held = "SyncGroup"
    what = f"{group.name} {member.lane}{' leader' if member is group.leader else ''} {kind} {len(assigned)} assigned"
    return Step("SyncGroup", version, what, build, after, lane=member.lane, group=group.name, held_while=COMPLETING,
                repeatable=False)  # fmt: skip


def _lowest(api: str, member: Member) -> int:
    return STATIC_IN[api] if member.instance else 0


def _sync_unknown(story: Story, group: StoryGroup) -> Step:
    version = story.version("SyncGroup")
    name = story.rng.choice([group.name, group.name, *ABSENT_GROUPS])
    ids, generation = story.rng.choice([NOBODY, ("", ""), *group.past]), story.rng.choice([group.generation, -1, 0, 1])

    def build(side: Side) -> SyncGroupRequest:
        request = SyncGroupRequest(group_id=name, generation_id=generation, member_id=ids[side.index])
        if version >= 5:
            request.protocol_type, request.protocol_name = group.protocol_type, group.protocol
        return request

    return Step("SyncGroup", version, f"{name!r} by nobody, generation {generation}", build, group=group.name)


def heartbeat(story: Story) -> Step:
    rng, group = story.rng, any_group(story)
    name = rng.choice(ABSENT_GROUPS) if story.one_in(15) else group.name
    member = rng.choice(group.members) if group.members and rng.randrange(6) else None
    ids, generation, instance = rng.choice([NOBODY, ("", ""), *group.past]), group.generation, None
    if member is not None and member.ids is not None:
        ids, generation, instance = member.ids, member.generation, member.instance
    version = story.version("Heartbeat", lowest=STATIC_IN["Heartbeat"] if instance else 0)
    if story.one_in(6):
        generation = rng.choice([generation + 1, generation - 1, -1])
    if version >= STATIC_IN["Heartbeat"] and story.one_in(12):
        instance = rng.choice(["instance-nobody", "instance-1", ""])

    def build(side: Side) -> HeartbeatRequest:
        request = HeartbeatRequest(group_id=name, generation_id=generation, member_id=ids[side.index])
        if version >= STATIC_IN["Heartbeat"]:
            request.group_instance_id = instance
        return request

    what = f"{name!r} {member.lane if member else 'nobody'} {instance or ''} generation {generation}"
    return Step("Heartbeat", version, what, build, group=group.name)


# -- LeaveGroup ------------------------------------------------------------------------------------------------------


def leave(story: Story) -> Step:
    """One or several members, also ones that are not there."""
    rng, group = story.rng, any_group(story)
    version = story.version("LeaveGroup")
    known = [member for member in group.members if member.held != "SyncGroup"]  # Kafka would never answer those
    count = rng.choice([1, 1, 1, 2, 3]) if version >= BATCH_LEAVE_FROM else 1
    chosen = rng.sample(known, min(count, len(known)))
    staying = dict.fromkeys([*group.present, *group.joining])
    rest = [member for member in staying if member not in chosen]
    if len(rest) > 1 and group.leader in chosen:  # whom of two or more Kafka makes leader is chance
        everybody = version >= BATCH_LEAVE_FROM and not group.joining and len(known) == len(group.members)
        chosen = known if everybody else [member for member in chosen if member is not group.leader]
    strangers: list[tuple[tuple[str, str], str | None]] = []
    if story.one_in(6) or not chosen:
        kinds = [(NOBODY, None), (("", ""), None), (("", ""), "instance-nobody"), *((ids, None) for ids in group.past)]
        strangers = [rng.choice(kinds)]
        if version < BATCH_LEAVE_FROM:
            chosen = []
    return leave_step(story, group, version, chosen, strangers, by_instance=story.one_in(2))


def leave_step(
    story: Story, group: StoryGroup, version: int, chosen: list[Member],
    strangers: list[tuple[tuple[str, str], str | None]], *, by_instance: bool,
) -> Step:  # fmt: skip
    reason = story.rng.choice([None, "", "enough"])
    leaving = [(_leaving_as(member, by_instance=by_instance), member.instance) for member in chosen] + strangers

    def build(side: Side) -> LeaveGroupRequest:
        if version < BATCH_LEAVE_FROM:
            return LeaveGroupRequest(group_id=group.name, member_id=leaving[0][0][side.index] if leaving else "")
        members = []
        for ids, instance in leaving:
            identity = MemberIdentity(member_id=ids[side.index], group_instance_id=instance)
            if version >= 5:
                identity.reason = reason
            members.append(identity)
        return LeaveGroupRequest(group_id=group.name, members=members)

    def after(left: Any, _right: Any) -> None:
        for at, member in enumerate(chosen):
            code = left.members[at].error_code if version >= BATCH_LEAVE_FROM and left.members else left.error_code
            if left.error_code == 0 and code == 0:
                group.drop(member)

    what = f"{group.name} {[member.lane for member in chosen]} and {[name for _, name in strangers]}"
    frees = tuple(member.lane for member in chosen if member.held)
    return Step("LeaveGroup", version, what, build, after, group=group.name, frees=frees)


def _leaving_as(member: Member, *, by_instance: bool) -> tuple[str, str]:
    if (member.instance is not None and by_instance) or member.ids is None:
        return ("", "")
    return member.ids


# -- questions, deletion ---------------------------------------------------------------------------------------------


def _names(story: Story) -> list[str]:
    names = [any_group(story).name for _ in range(story.rng.choice([0, 1, 1, 2]))]
    return list(dict.fromkeys([*names, *([story.rng.choice(ABSENT_GROUPS)] if story.one_in(3) else [])]))


def describe_groups(story: Story) -> Step:
    return describe_step(story, _names(story), story.version("DescribeGroups"))


def describe_step(story: Story, names: list[str], version: int) -> Step:
    operations = version >= OPERATIONS_KNOWN and story.seed % 2 == 0

    def build(side: Side) -> DescribeGroupsRequest:
        request = DescribeGroupsRequest(groups=names)
        if version >= OPERATIONS_KNOWN:
            request.include_authorized_operations = operations
        return request

    return Step("DescribeGroups", version, f"{names}", build)


def list_groups(story: Story) -> Step:
    rng, version = story.rng, story.version("ListGroups")
    states = rng.choice([[], [], ["Empty"], ["Stable", PREPARING], [COMPLETING], ["stable"], ["EMPTY", "Dead"],
                         ["No such state"], [""]])  # fmt: skip
    types = rng.choice([[], [], ["classic"], ["Classic"], ["consumer"], ["share"], ["No such type"]])

    def build(side: Side) -> ListGroupsRequest:
        request = ListGroupsRequest()
        if version >= 4:
            request.states_filter = states
        if version >= 5:
            request.types_filter = types
        return request

    return Step("ListGroups", version, f"{states} {types}", build)


def delete_groups(story: Story) -> Step:
    names, version = _names(story), story.version("DeleteGroups")
    if story.one_in(10):
        names = names * 2
    return delete_step(story, names, version)


def delete_step(story: Story, names: list[str], version: int) -> Step:
    def build(side: Side) -> DeleteGroupsRequest:
        return DeleteGroupsRequest(groups_names=names)

    def after(left: Any, _right: Any) -> None:
        for row in left.results:
            if row.error_code == 0 and (group := story.groups.get(row.group_id)) is not None:
                group.exists = False
                for member in list(group.members):
                    group.drop(member)

    return Step("DeleteGroups", version, f"{names}", build, after)
