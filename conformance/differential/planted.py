"""A test build: kmirror with one mistake in its coordinators, to see whether the comparison notices.

    python -m conformance.differential.planted NAME serve …     kmirror's own command line, with that mistake
    python -m conformance.differential --planted                all of them, one after the other

Each mistake is one that somebody could make in the coordinators: a check left out, a number one too low, a state not
changed. None of it is in kmirror; the functions are replaced in this process only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kmirror.coordinator import transaction_entry, transactions
from kmirror.coordinator.groups import classic, joining, leaving, offsets, rebalance, syncing
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Mistake:
    """`about` is the theme whose sequences should meet it."""

    name: str
    about: str
    plant: Callable[[], None]


MISTAKES: dict[str, Mistake] = {}
Plant = Callable[[], None]


def _mistake(name: str, about: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        MISTAKES[name] = Mistake(name, about, plant)
        return plant

    return register


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replaces a function by one that gets the original first, then its arguments."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: around(original, *args, **kwargs))


def _returns(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Replaces a function by one whose result is changed."""
    _wrap(owner, name, lambda original, *args, **kwargs: change(original(*args, **kwargs)))


def _with(owner: Any, name: str, **fixed: Any) -> None:
    """Replaces a function by one that always gets these arguments."""
    _wrap(owner, name, lambda original, *args, **kwargs: original(*args, **{**kwargs, **fixed}))


def _forgives(owner: Any, name: str, code: ErrorCode) -> None:
    """Replaces a check by one that does not raise this error."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except ApiError as error:
            if error.code != code:
                raise
            return None

    _wrap(owner, name, around)


def _instead_of(code: ErrorCode, other: ErrorCode) -> Callable[[Any], Any]:
    return lambda answer: other if answer == code else answer


# -- groups ----------------------------------------------------------------------------------------------------------


@_mistake("a heartbeat of another generation is welcome", "groups")
def _() -> None:
    _returns(syncing, "heartbeat", _instead_of(ErrorCode.ILLEGAL_GENERATION, ErrorCode.NONE))


@_mistake("a heartbeat is not told of the rebalance", "groups")
def _() -> None:
    _returns(syncing, "heartbeat", _instead_of(ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE))


@_mistake("protocols are taken by name, not by votes", "groups")
def _() -> None:
    def select(group: Any) -> str:
        count = len(group.members)
        return str(min(name for name, supporters in group._supporters.items() if supporters == count))

    setattr(classic.ClassicGroup, "select_protocol", select)  # noqa: B010


@_mistake("another member with the instance id is not fenced", "groups")
def _() -> None:
    _forgives(classic.ClassicGroup, "check_member", ErrorCode.FENCED_INSTANCE_ID)


@_mistake("a static member comes back without its assignment", "groups")
def _() -> None:
    def around(original: Callable[..., Any], *args: Any) -> Any:
        old, new = original(*args)
        new.assignment = b""
        return old, new

    _wrap(classic.ClassicGroup, "replace_static", around)


@_mistake("a static leader that comes back leads no more", "groups")
def _() -> None:
    def around(original: Callable[..., Any], group: Any, instance_id: str, member_id: str) -> Any:
        found = original(group, instance_id, member_id)
        others = [each for each in group.members if each != member_id]
        if group.leader == member_id and others:
            group.leader = others[0]
        return found

    _wrap(classic.ClassicGroup, "replace_static", around)


@_mistake("nobody notices when a member leaves", "groups")
def _() -> None:
    def around(original: Callable[..., Any], groups: Any, group: Any, reason: str, now_ms: int) -> None:
        if not reason.endswith("members left"):
            original(groups, group, reason, now_ms)

    _wrap(rebalance, "prepare_or_complete", around)


@_mistake("who waits for an assignment is thrown out by a rebalance", "groups")
def _() -> None:
    _wrap(
        rebalance,
        "refuse_assignments",
        lambda original, groups, group, _code: original(groups, group, ErrorCode.UNKNOWN_MEMBER_ID),
    )


@_mistake("a SyncGroup for another protocol is served", "groups")
def _() -> None:
    _forgives(syncing, "_check_generation", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


@_mistake("the first generation is 0", "groups")
def _() -> None:
    def around(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> None:
        original(group, *args, **kwargs)
        group.generation_id = -1

    _wrap(classic.ClassicGroup, "__init__", around)


@_mistake("ids that were handed out hold up no rebalance", "groups")
def _() -> None:
    joined = property(lambda group: all(member.awaits_join for member in group.members.values()))
    setattr(classic.ClassicGroup, "all_joined", joined)  # noqa: B010


@_mistake("any session timeout will do", "groups")
def _() -> None:
    def around(original: Callable[..., Any], groups: Any, request: Any, *args: Any) -> None:
        original(groups, replace(request, session_timeout_ms=100_000), *args)

    _wrap(joining, "join", around)


@_mistake("a group that rebalances is described as a stable one", "groups")
def _() -> None:
    _returns(
        classic.ClassicGroup,
        "described",
        lambda found: replace(found, state="Stable") if found.state == "CompletingRebalance" else found,
    )


@_mistake("a leader that comes back is told to assign again", "groups")
def _() -> None:
    _with(rebalance, "joined", skip_assignment=False)


@_mistake("leaving a group that one is not in succeeds", "groups")
def _() -> None:
    _returns(leaving, "_remove", _instead_of(ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE))


@_mistake("a protocol that not all members have is no reason to refuse", "groups")
def _() -> None:
    setattr(classic.ClassicGroup, "supports", lambda _group, kind, names: bool(kind) and any(names))  # noqa: B010


# -- offsets ---------------------------------------------------------------------------------------------------------


@_mistake("offsets are taken while the assignment is awaited", "groups")
def _() -> None:
    _forgives(syncing, "check_commit", ErrorCode.REBALANCE_IN_PROGRESS)


@_mistake("a stranger commits into an active group", "groups")
def _() -> None:
    _forgives(syncing, "check_commit", ErrorCode.UNKNOWN_MEMBER_ID)


@_mistake("the metadata of an offset may be a character too long", "groups")
def _() -> None:
    _with(offsets.Offsets, "commit", max_metadata_size=4097)


@_mistake("the leader epoch of an offset is forgotten", "groups")
def _() -> None:
    _returns(offsets.Offsets, "fetch", lambda value: replace(value, leader_epoch=-1))


@_mistake("offsets of a topic in use can be deleted", "groups")
def _() -> None:
    setattr(offsets.GroupFacts, "is_subscribed_to", lambda _facts, _topic: False)  # noqa: B010


@_mistake("a deleted offset stays", "groups")
def _() -> None:
    _returns(offsets.Offsets, "delete", lambda found: (found[0], []))


@_mistake("offsets of an open transaction count as stable", "transactions")
def _() -> None:
    _with(offsets.Offsets, "fetch", require_stable=False)


@_mistake("offsets of an aborted transaction are kept", "transactions")
def _() -> None:
    _with(offsets.Offsets, "ended", committed=True)


@_mistake("offsets of an open transaction are seen", "transactions")
def _() -> None:
    def around(original: Callable[..., Any], known: Any, record: Any) -> None:
        original(known, record)
        if record.producer_id != -1:
            original(known, replace(record, producer_id=-1))

    _wrap(offsets.Offsets, "replay", around)


# -- transactions ----------------------------------------------------------------------------------------------------


@_mistake("the epoch stays after a transaction of the second protocol", "transactions")
def _() -> None:
    _with(transaction_entry, "ending", client_version=0)


@_mistake("an old epoch may go on", "transactions")
def _() -> None:
    def around(original: Callable[..., Any], entry: Any, producer: Any, **kwargs: Any) -> Any:
        if entry is not None and producer.epoch < entry.producer_epoch:
            producer = producer._replace(epoch=entry.producer_epoch)
        return original(entry, producer, **kwargs)

    _wrap(transactions, "_refuse_member", around)


@_mistake("an abort is carried out as a commit", "transactions")
def _() -> None:
    setattr(transaction_entry.Transaction, "commits", property(lambda _entry: True))  # noqa: B010


@_mistake("ending a transaction again the other way succeeds", "transactions")
def _() -> None:
    _returns(transactions, "_judge_classic", _instead_of(ErrorCode.INVALID_TXN_STATE, ErrorCode.NONE))


@_mistake("a repeated InitProducerId is fenced", "transactions")
def _() -> None:
    def around(original: Callable[..., Any], entry: Any, expected: Any) -> Any:
        repeated = expected is not None and expected.epoch == entry.last_producer_epoch != entry.producer_epoch
        return None if repeated else original(entry, expected)

    _wrap(transactions, "_raised", around)


@_mistake("records of a partition that was not added are taken", "transactions")
def _() -> None:
    def around(_original: Callable[..., Any], _known: Any, _name: str, _producer: Any, places: Any) -> Any:
        return dict.fromkeys(places, ErrorCode.NONE)

    _wrap(transactions.Transactions, "verify", around)


@_mistake("any transaction timeout will do", "transactions")
def _() -> None:
    _with(transactions.Transactions, "init_producer_id", timeout_ms=60_000)


@_mistake("transactions are listed whatever their state", "transactions")
def _() -> None:
    def around(original: Callable[..., Any], known: Any, *, states: Any, **kwargs: Any) -> Any:
        found, unknown = original(known, states=states, **kwargs)
        return (original(known, states=(), **kwargs)[0] if states else found), unknown

    _wrap(transactions.Transactions, "listed", around)


@_mistake("an ended transaction keeps its partitions", "transactions")
def _() -> None:
    def around(original: Callable[..., Any], entry: Any, **kwargs: Any) -> Any:
        return replace(original(entry, **kwargs), places=entry.places)

    _wrap(transaction_entry, "ended", around)


@_mistake("the coordinator writes a later epoch of its own", "transactions")
def _() -> None:
    from kmirror.broker import transaction_markers

    def around(original: Callable[..., Any], known: Any, *args: Any) -> Any:
        known._coordinator_epoch = 1
        return original(known, *args)

    _wrap(transaction_markers.MarkerRound, "_append", around)


@_mistake("readers of committed records see open transactions", "transactions")
def _() -> None:
    from kmirror.broker.partition import Partition

    setattr(Partition, "last_stable_offset", property(lambda partition: partition.high_watermark))  # noqa: B010


@_mistake("readers are not told which transactions were aborted", "transactions")
def _() -> None:
    from kmirror.storage.log import Log

    _returns(Log, "aborted_transactions", lambda _found: [])


def main() -> None:
    """`NAME COMMAND …`: plants, and goes on as kmirror."""
    from kmirror.cli.main import main as kmirror

    MISTAKES[sys.argv[1]].plant()
    sys.argv[1:] = sys.argv[2:]
    sys.exit(kmirror())


if __name__ == "__main__":
    main()
