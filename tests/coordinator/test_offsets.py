"""The rules of committed and pending offsets, on the pure machine: what Kafka's OffsetMetadataManager does."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kmirror.coordinator.groups.offsets import (
    NOTHING,
    UNSTABLE,
    GroupFacts,
    OffsetRow,
    Offsets,
    OffsetValue,
    characters,
)
from kmirror.effects import LogId, StateRecord
from kmirror.protocol.internal.consumer_offsets import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
    encode_record,
)

LOG = LogId("__consumer_offsets", 7)
OTHER_LOG = LogId("__consumer_offsets", 8)
ID, OLD_ID = b"\x01" * 16, b"\x02" * 16
DAY_MS = 86_400_000
CONSUMING = GroupFacts(state="Stable", protocol_type="consumer", state_since_ms=0, subscribed={"t"})


def commit(
    offsets: Offsets,
    offset: int,
    *,
    group: str = "g",
    topic: str = "t",
    partition: int = 0,
    producer: int = -1,
    log: LogId = LOG,
    at_ms: int = 1000,
    topic_id: bytes = ID,
    expire_ms: int = -1,
) -> None:
    row = OffsetRow(topic=topic, partition=partition, offset=offset, topic_id=topic_id)
    codes, records = offsets.commit(log, group, [row], now_ms=at_ms, max_metadata_size=10, expire_ms=expire_ms)
    assert codes == [0]
    replay(offsets, records, producer=producer)


def replay(offsets: Offsets, records: Iterable[StateRecord], *, producer: int = -1) -> None:
    for record in records:
        offsets.replay(StateRecord(record.log, record.key, record.value, producer))


def topics_of(records: Iterable[StateRecord]) -> list[str]:
    return [record.key.topic for record in records if isinstance(record.key, OffsetCommitKey)]


def offset_of(offsets: Offsets, *, group: str = "g", topic: str = "t", stable: bool = False) -> int:
    value = offsets.fetch(group, (topic, 0), require_stable=stable)
    return -88 if value is UNSTABLE else value.offset


# -- commit and fetch ------------------------------------------------------------------------------------------------


def test_a_commit_is_recorded_whole_and_read_back() -> None:
    offsets = Offsets()
    rows = [
        OffsetRow(topic="t", partition=0, offset=40, topic_id=ID, leader_epoch=7, metadata="m"),
        OffsetRow(topic="t", partition=1, offset=0, topic_id=ID, metadata=None),
    ]
    codes, records = offsets.commit(LOG, "g", rows, now_ms=5, max_metadata_size=10)
    assert codes == [0, 0]
    assert records[0] == StateRecord(
        LOG,
        OffsetCommitKey(group="g", topic="t", partition=0),
        OffsetCommitValue(offset=40, leader_epoch=7, metadata="m", commit_timestamp=5, topic_id=ID),
    )
    assert offsets.fetch("g", ("t", 0)) == NOTHING, "nothing changes before the replay"
    replay(offsets, records)
    assert offsets.fetch("g", ("t", 0)) == OffsetValue(offset=40, leader_epoch=7, metadata="m")
    assert offsets.fetch("g", ("t", 1)) == OffsetValue(offset=0, leader_epoch=-1, metadata="")
    assert offsets.fetch("g", ("t", 2)) == NOTHING
    assert offsets.fetch("other", ("t", 0)) == NOTHING
    assert offsets.places("g") == [("t", 0), ("t", 1)]


@pytest.mark.parametrize(
    ("metadata", "code"),
    [("x" * 10, 0), ("x" * 11, 12), ("\u00e9" * 10, 0), ("\U0001f600" * 5, 0), ("\U0001f600" * 6, 12)],
)
def test_metadata_is_measured_in_utf_16_units(metadata: str, code: int) -> None:
    rows = [OffsetRow(topic="t", partition=0, offset=1, metadata=metadata), OffsetRow(topic="t", partition=1, offset=2)]
    codes, records = Offsets().commit(LOG, "g", rows, now_ms=5, max_metadata_size=10)
    assert codes == [code, 0]
    assert len(records) == (2 if code == 0 else 1), "the others are accepted all the same"


def test_characters_outside_the_first_plane_count_twice() -> None:
    assert [characters(text) for text in ("", "abc", "\uffff", "a\U00010000")] == [0, 3, 1, 3]


@pytest.mark.parametrize(
    ("committed_for", "asked_with", "found"),
    [(ID, ID, True), (OLD_ID, ID, False), (b"\0" * 16, ID, True), (OLD_ID, b"\0" * 16, True)],
)
def test_an_offset_of_an_earlier_topic_is_not_the_later_one_s(
    committed_for: bytes, asked_with: bytes, found: bool
) -> None:
    offsets = Offsets()
    commit(offsets, 40, topic_id=committed_for)
    assert (offsets.fetch("g", ("t", 0), topic_id=asked_with).offset == 40) is found


# -- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_s_offsets_count_from_its_commit_on() -> None:
    offsets = Offsets()
    commit(offsets, 10)
    commit(offsets, 20, producer=5)
    assert offset_of(offsets) == 10
    assert offset_of(offsets, stable=True) == -88
    assert offsets.has_pending("g")
    offsets.ended(LOG, 5, committed=True)
    assert offset_of(offsets, stable=True) == 20
    assert not offsets.has_pending("g")


def test_an_aborted_transaction_leaves_what_was_there() -> None:
    offsets = Offsets()
    commit(offsets, 10)
    commit(offsets, 20, producer=5)
    commit(offsets, 20, group="only-pending", producer=5)
    offsets.ended(LOG, 5, committed=False)
    assert offset_of(offsets, stable=True) == 10
    assert not offsets.has_offsets("only-pending")
    assert offsets.groups() == {"g"}


def test_unstable_concerns_the_partition_only() -> None:
    offsets = Offsets()
    commit(offsets, 10, topic="u")
    commit(offsets, 20, producer=5)
    assert offset_of(offsets, topic="u", stable=True) == 10
    assert offset_of(offsets, group="other", stable=True) == -1


def test_a_plain_commit_after_the_transactional_one_wins() -> None:
    offsets = Offsets()
    commit(offsets, 20, producer=5)
    commit(offsets, 30)
    offsets.ended(LOG, 5, committed=True)
    assert offset_of(offsets) == 30


def test_of_two_transactions_the_later_record_wins_whatever_the_markers_say() -> None:
    offsets = Offsets()
    commit(offsets, 20, producer=5)
    commit(offsets, 30, producer=6)
    offsets.ended(LOG, 6, committed=True)
    assert offset_of(offsets, stable=True) == -88, "the other one is open still"
    offsets.ended(LOG, 5, committed=True)
    assert offset_of(offsets, stable=True) == 30


def test_a_second_commit_in_a_transaction_replaces_the_first() -> None:
    offsets = Offsets()
    commit(offsets, 20, producer=5)
    commit(offsets, 21, producer=5)
    offsets.ended(LOG, 5, committed=True)
    assert offset_of(offsets) == 21


def test_a_marker_speaks_for_its_own_log_only() -> None:
    offsets = Offsets()
    commit(offsets, 20, producer=5)
    commit(offsets, 30, group="h", producer=5, log=OTHER_LOG)
    offsets.ended(OTHER_LOG, 5, committed=True)
    assert offset_of(offsets, group="h", stable=True) == 30
    assert offset_of(offsets, stable=True) == -88
    offsets.ended(LOG, 5, committed=False)
    assert offset_of(offsets, stable=True) == -1


def test_a_tombstone_removes_both_kinds_and_a_later_marker_brings_nothing_back() -> None:
    offsets = Offsets()
    commit(offsets, 10)
    commit(offsets, 20, producer=5)
    commit(offsets, 21, topic="u", producer=5)
    codes, records = offsets.delete(LOG, "g", [("t", 0), ("t", 1)], GroupFacts())
    assert (codes, len(records)) == ([0, 0], 1), "no record for what is not there"
    replay(offsets, records)
    assert offset_of(offsets, stable=True) == -1
    offsets.ended(LOG, 5, committed=True)
    assert offset_of(offsets, stable=True) == -1
    assert offset_of(offsets, topic="u") == 21


def test_what_is_only_pending_can_be_deleted() -> None:
    offsets = Offsets()
    commit(offsets, 20, producer=5)
    _codes, records = offsets.delete(LOG, "g", [("t", 0)], GroupFacts())
    assert len(records) == 1
    replay(offsets, records)
    assert not offsets.has_offsets("g")
    offsets.ended(LOG, 5, committed=True)
    assert not offsets.has_offsets("g")


def test_tombstones_and_markers_for_unknown_things_are_no_ops() -> None:
    """B044: compaction may have removed what they refer to."""
    offsets = Offsets()
    replay(offsets, [StateRecord(LOG, OffsetCommitKey(group="g", topic="t", partition=0), None)])
    offsets.ended(LOG, 5, committed=True)
    commit(offsets, 10)
    replay(offsets, [StateRecord(LOG, OffsetCommitKey(group="g", topic="t", partition=9), None)])
    assert offset_of(offsets) == 10


# -- deletion --------------------------------------------------------------------------------------------------------


def test_offsets_of_a_subscribed_topic_are_not_deleted() -> None:
    offsets = Offsets()
    commit(offsets, 10)
    commit(offsets, 10, topic="u")
    codes, records = offsets.delete(LOG, "g", [("t", 0), ("u", 0)], CONSUMING)
    assert codes == [86, 0]
    assert topics_of(records) == ["u"]


def test_a_consumer_group_whose_subscriptions_are_not_known_counts_as_subscribed() -> None:
    unknown = GroupFacts(state="Stable", protocol_type="consumer")
    assert Offsets().delete(LOG, "g", [("t", 0)], unknown)[0] == [86]
    assert Offsets().delete(LOG, "g", [("t", 0)], GroupFacts(protocol_type="connect"))[0] == [0]


def test_deleting_a_group_takes_each_offset_once() -> None:
    offsets = Offsets()
    commit(offsets, 10)
    commit(offsets, 20, producer=5)
    commit(offsets, 20, topic="u", producer=5)
    commit(offsets, 1, group="other")
    records = offsets.tombstones(LOG, "g")
    assert sorted(topics_of(records)) == ["t", "u"]
    replay(offsets, records)
    assert offsets.groups() == {"other"}


def test_of_topic_finds_every_group_s_offsets_of_that_topic_id() -> None:
    offsets = Offsets()
    commit(offsets, 1)
    commit(offsets, 2, group="h", partition=3, producer=5)
    commit(offsets, 3, group="i", topic_id=OLD_ID)
    commit(offsets, 4, group="j", topic_id=b"\0" * 16)
    commit(offsets, 5, group="k", topic="u")
    assert sorted(offsets.of_topic("t", ID)) == [("g", ("t", 0)), ("h", ("t", 3)), ("j", ("t", 0))]
    assert offsets.topics() == {("t", ID), ("t", OLD_ID), ("t", b"\0" * 16), ("u", ID)}


def test_beyond_finds_groups_behind_a_cut() -> None:
    offsets = Offsets()
    commit(offsets, 10)
    commit(offsets, 11, group="h")
    commit(offsets, 99, group="i", partition=1)
    assert offsets.beyond(("t", 0), 10) == ["h"]


# -- expiry (KIP-211, B054) ------------------------------------------------------------------------------------------


def expired(offsets: Offsets, facts: GroupFacts, now_ms: int, retention_ms: int = 5000) -> tuple[list[str], bool]:
    records, empty = offsets.expired(LOG, "g", facts, now_ms=now_ms, retention_ms=retention_ms)
    return topics_of(records), empty


def test_a_simple_group_expires_by_its_commits() -> None:
    offsets = Offsets()
    commit(offsets, 10, at_ms=1000)
    commit(offsets, 10, topic="u", at_ms=3000)
    assert expired(offsets, GroupFacts(), 5999) == ([], False)
    assert expired(offsets, GroupFacts(), 6000) == (["t"], False)
    assert expired(offsets, GroupFacts(), 8000) == (["t", "u"], True)


def test_an_empty_group_expires_from_when_it_became_empty() -> None:
    offsets = Offsets()
    commit(offsets, 10, at_ms=1000)
    facts = GroupFacts(state="Empty", protocol_type="consumer", state_since_ms=20_000, subscribed=())
    assert expired(offsets, facts, 24_999) == ([], False)
    assert expired(offsets, facts, 25_000) == (["t"], True)
    unknown_since = GroupFacts(state="Empty", protocol_type="consumer", subscribed=())
    assert expired(offsets, unknown_since, 6000) == (["t"], True)


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_nothing_expires_while_a_group_rebalances(state: str) -> None:
    offsets = Offsets()
    commit(offsets, 10, at_ms=0)
    commit(offsets, 10, topic="u", at_ms=0)
    facts = GroupFacts(state=state, protocol_type="consumer", state_since_ms=0, subscribed={"t"})
    assert expired(offsets, facts, DAY_MS) == ([], False)


def test_a_stable_consumer_group_keeps_what_it_is_subscribed_to() -> None:
    offsets = Offsets()
    commit(offsets, 10, at_ms=0)
    commit(offsets, 10, topic="u", at_ms=0)
    assert expired(offsets, CONSUMING, 4999) == ([], False)
    assert expired(offsets, CONSUMING, 5000) == (["u"], False)
    unknown = GroupFacts(state="Stable", protocol_type="consumer", state_since_ms=0)
    assert expired(offsets, unknown, DAY_MS) == ([], False)


def test_groups_of_other_protocols_keep_everything_while_they_have_members() -> None:
    offsets = Offsets()
    commit(offsets, 10, at_ms=0)
    active = GroupFacts(state="Stable", protocol_type="connect", state_since_ms=0)
    assert expired(offsets, active, DAY_MS) == ([], False)
    assert expired(offsets, GroupFacts(protocol_type="connect", state_since_ms=DAY_MS), DAY_MS) == ([], False)
    assert expired(offsets, GroupFacts(protocol_type="connect", state_since_ms=0), DAY_MS) == (["t"], True)


def test_the_retention_that_a_client_asked_for_replaces_the_broker_s() -> None:
    offsets = Offsets()
    commit(offsets, 10, at_ms=0, expire_ms=100)
    commit(offsets, 10, topic="u", at_ms=0, expire_ms=DAY_MS)
    assert expired(offsets, GroupFacts(), 99) == ([], False)
    assert expired(offsets, GroupFacts(), 100) == (["t"], False)
    assert expired(offsets, GroupFacts(), DAY_MS - 1) == (["t"], False)


def test_with_an_expiry_only_that_is_kept_which_its_record_can_say() -> None:
    """The value of version 1, which has an expiry, has neither epoch nor topic id: not until a restart either."""
    row = OffsetRow(topic="t", partition=0, offset=40, topic_id=ID, leader_epoch=7, metadata="m")
    _codes, (record,) = Offsets().commit(LOG, "g", [row], now_ms=5, max_metadata_size=10, expire_ms=9)
    assert record.value == OffsetCommitValue(offset=40, metadata="m", commit_timestamp=5, expire_timestamp=9)
    assert isinstance(record.value, OffsetCommitValue)
    key, value = decode_record(*encode_record(record.key, record.value))
    assert (key, value) == (record.key, record.value)


def test_no_expiry_of_its_own_is_not_an_expiry_in_1969() -> None:
    """B054: -1 read as a time after a reload."""
    offsets = Offsets()
    commit(offsets, 10, at_ms=1000, expire_ms=-1)
    assert expired(offsets, GroupFacts(), 5999) == ([], False)


def test_an_open_transaction_keeps_the_offset_and_the_group() -> None:
    offsets = Offsets()
    commit(offsets, 10, at_ms=0)
    commit(offsets, 20, producer=5, at_ms=0)
    assert expired(offsets, GroupFacts(), DAY_MS) == ([], False)
    only_pending = Offsets()
    commit(only_pending, 20, producer=5, at_ms=0)
    assert expired(only_pending, GroupFacts(), DAY_MS) == ([], False)
    only_pending.ended(LOG, 5, committed=False)
    assert expired(only_pending, GroupFacts(), DAY_MS) == ([], True)


def test_a_group_without_offsets_may_go() -> None:
    assert expired(Offsets(), GroupFacts(), 0) == ([], True)
