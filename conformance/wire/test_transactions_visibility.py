"""What readers see of transactions (B022), offsets inside them (B031, KIP-447), and what operators can ask and do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conformance.wire.batches import batch, parse
from conformance.wire.client import Broker, Row, Topic
from conformance.wire.groups import (
    GROUP_NOT_FOUND,
    ILLEGAL_GENERATION,
    INVALID_REQUEST,
    METADATA_TOO_LARGE,
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    UNSTABLE_OFFSETS,
    commit,
    committed,
    fetch_offsets,
    new_group,
    stable_group,
)
from conformance.wire.transactions import (
    ABORTABLE,
    BEFORE_TV2,
    INVALID_EPOCH,
    INVALID_PID_MAPPING,
    INVALID_TXN_STATE,
    NO_SUCH_TRANSACTIONAL_ID,
    TransactionalProducer,
    aborted,
    active_producers,
    last_stable_offset,
    listed,
    until_settled,
    wait_for_stable_offset,
)
from kmirror.protocol.api.delete_groups import DeleteGroupsRequest
from kmirror.protocol.api.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from kmirror.protocol.api.describe_transactions import DescribeTransactionsRequest
from kmirror.protocol.api.list_transactions import ListTransactionsRequest
from kmirror.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kmirror.protocol.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

CONTROL, TRANSACTIONAL = 0x20, 0x10
INVALID_REGULAR_EXPRESSION, COORDINATOR_FENCED = 128, 52


@pytest.fixture
def producer(broker: Broker) -> TransactionalProducer:
    return TransactionalProducer(broker).init()


@pytest.fixture
def group(broker: Broker) -> str:
    return new_group(broker, "txn-group")


# --- reading


def read_all(broker: Broker, topic: Topic, end: int, *, version: int, isolation_level: int) -> bytes:
    """The bytes up to `end`, in as many fetches as it takes (one may bring less than there is)."""
    data, offset = b"", 0
    while offset < end:
        row = broker.fetch(Row(topic, offset), version=version, isolation_level=isolation_level).row()
        assert (row.high_watermark, row.last_stable_offset, row.error_code) == (end, end, 0)
        records = bytes(row.records or b"")  # type: ignore[arg-type]
        found = parse(records)
        assert found, f"nothing at {offset}"
        data += records[: sum(entry.size_bytes for entry in found)]
        offset = found[-1].last_offset + 1
    return data


@pytest.mark.parametrize("version", [4, 5, 11, 12, 13, 18])
def test_aborted_lists(broker: Broker, topic: Topic, producer: TransactionalProducer, version: int) -> None:
    """B022: records 0-2 aborted, marker 3, records 4-5 committed, marker 6."""
    version = broker.version("Fetch", version)
    for values, commit_it in (([b"1", b"2", b"3"], False), ([b"4", b"5"], True)):
        producer.add(topic)
        assert producer.produce(topic, values).error_code == 0
        assert producer.end(commit_it) == 0
        wait_for_stable_offset(broker, topic, 4 if not commit_it else 7)
    seen = {level: read_all(broker, topic, 7, version=version, isolation_level=level) for level in (0, 1)}
    assert seen[0] == seen[1], "consumers filter, not the broker"
    found = parse(seen[0])
    assert [(entry.base_offset, bool(entry.attributes & CONTROL)) for entry in found] == [
        (0, False), (3, True), (4, False), (6, True)
    ]  # fmt: skip
    assert all(entry.attributes & TRANSACTIONAL and entry.producer_id == producer.producer_id for entry in found)
    mine = [(producer.producer_id, 0)]
    for offset, expected in ((0, mine), (1, mine), (3, mine), (4, []), (6, []), (7, [])):
        assert aborted(broker, topic, offset, version=version, isolation_level=1) == expected, offset
        assert aborted(broker, topic, offset, version=version, isolation_level=0) is None


def test_an_open_transaction_hides_what_follows(broker: Broker, topic: Topic, producer: TransactionalProducer) -> None:
    """read_committed ends at the first offset of the oldest open transaction, in Fetch and in ListOffsets."""
    assert broker.produce(topic, batch([b"before"])).base_offset == 0
    producer.add(topic)
    assert producer.produce(topic, [b"open"]).base_offset == 1
    assert broker.produce(topic, batch([b"after"])).base_offset == 2
    assert last_stable_offset(broker, topic) == 1 and broker.latest(topic) == 3
    fetched = broker.fetch(Row(topic, 0), isolation_level=1)
    assert [entry.last_offset for entry in fetched.batches()] == [0]
    assert (fetched.row().high_watermark, fetched.row().last_stable_offset) == (3, 1)
    at_the_end = broker.fetch(Row(topic, 1), isolation_level=1, max_wait_ms=200, min_bytes=1)
    assert at_the_end.batches() == [] and at_the_end.row().error_code == 0 and at_the_end.seconds > 0.15
    assert [entry.base_offset for entry in broker.fetch(Row(topic, 1)).batches()] == [1, 2]
    other = TransactionalProducer(broker).init()
    other.add(topic)
    assert other.produce(topic, [b"younger"]).base_offset == 3
    other.commit()
    assert last_stable_offset(broker, topic) == 1, "the younger one ended, the older one holds"
    producer.abort()
    wait_for_stable_offset(broker, topic, 6)
    assert aborted(broker, topic, 0, version=broker.version("Fetch"), isolation_level=1) == [(producer.producer_id, 1)]


def test_a_waiting_reader_hears_of_the_end(broker: Broker, topic: Topic, producer: TransactionalProducer) -> None:
    """A read_committed long poll at the last stable offset is answered when the marker comes."""
    producer.add(topic)
    assert producer.produce(topic, [b"1"]).error_code == 0
    with broker.connect() as connection:
        version = broker.version("Fetch")
        request = broker.fetch_request(
            Row(topic, 0), version=version, max_wait_ms=15_000, min_bytes=1, isolation_level=1
        )
        connection.send(request, version)
        producer.commit()
        row = connection.receive().responses[0].partitions[0]
        assert [entry.base_offset for entry in parse(row.records)][:1] == [0]


# --- offsets inside transactions


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("commit_it", [True, False], ids=["commit", "abort"])
def test_offsets_of_a_transaction(broker: Broker, topic: Topic, group: str, version: int, commit_it: bool) -> None:
    """Nobody sees them before the commit; whoever requires stable offsets is told to wait (88); an abort drops them."""
    assert commit(broker, group, topic, 10) == 0
    producer = TransactionalProducer(broker).init()
    if version <= BEFORE_TV2["TxnOffsetCommit"]:
        assert producer.add_offsets(group) == 0
    code = producer.commit_offset(group, topic, 20, version=version, leader_epoch=3, metadata="in it")
    assert code == 0
    assert committed(broker, group, topic) == 10
    fetch_version = broker.version("OffsetFetch", 9)
    for asked in ([(topic, [0])], None):
        code, _, rows = fetch_offsets(broker, group, asked, version=fetch_version, stable=True)
        assert (code, rows) == (0, {(topic.name, 0): (-1, -1, "", UNSTABLE_OFFSETS)})
    code, _, rows = fetch_offsets(broker, group, None, version=7, stable=True)
    assert rows[topic.name, 0][3] == UNSTABLE_OFFSETS
    end = producer.end_once(commit_it, version=broker.version("EndTxn") if version > 4 else BEFORE_TV2["EndTxn"])
    assert end.error_code == 0
    rows = until_settled(
        lambda: fetch_offsets(broker, group, [(topic, [0])], version=fetch_version, stable=True)[2],
        lambda found: 51 if found[topic.name, 0][3] == UNSTABLE_OFFSETS else 0,
    )
    epoch = 3 if version >= 2 else -1
    assert rows[topic.name, 0] == ((20, epoch, "in it", 0) if commit_it else (10, -1, "", 0))


def test_offsets_whose_group_was_not_added(broker: Broker, topic: Topic, group: str) -> None:
    """TxnOffsetCommit up to v4 is checked against the transaction as a Produce is: 48 where AddOffsets was left out."""
    producer = TransactionalProducer(broker).init()
    for version, code in ((3, INVALID_TXN_STATE), (4, ABORTABLE)):
        assert producer.commit_offset(group, topic, 1, version=version) == code
    assert fetch_offsets(broker, group, None)[2] == {}


@pytest.mark.parametrize("version", [0, 2, 3, 4, 5])
def test_offset_commits_that_are_refused(broker: Broker, topic: Topic, group: str, version: int) -> None:
    producer = TransactionalProducer(broker).init()
    assert producer.add_offsets(group) == 0

    def refused(**wrong: Any) -> int:
        return producer.commit_offset(group, wrong.pop("topic", topic), 1, version=version, **wrong)

    absent = Topic(broker.new_name("absent"), bytes(16), 1)
    assert refused(topic=absent) == UNKNOWN_TOPIC and refused(partition=9) == UNKNOWN_TOPIC
    assert refused(metadata="m" * 5000) == METADATA_TOO_LARGE
    assert refused(producer_epoch=producer.epoch + 1) == INVALID_EPOCH
    assert refused(producer_id=producer.producer_id + 1000) == INVALID_PID_MAPPING
    assert refused(transactional_id=broker.new_name("nobody")) == INVALID_PID_MAPPING
    if version >= 3:
        assert refused(generation=5, member_id="nobody") in (ILLEGAL_GENERATION, UNKNOWN_MEMBER, GROUP_NOT_FOUND)
    producer.abort()
    assert fetch_offsets(broker, group, None)[2] == {}


def test_offsets_by_topic_id_in_a_transaction(broker: Broker, topic: Topic, group: str) -> None:
    version = broker.version("TxnOffsetCommit", 6)
    producer = TransactionalProducer(broker).init()
    stranger = Topic("x", bytes(range(16)), 1)
    assert producer.commit_offset(group, stranger, 1, version=version) == UNKNOWN_TOPIC_ID
    assert producer.commit_offset(group, topic, 1, version=version) == 0
    producer.end_once(False, version=broker.version("EndTxn"))


def test_offsets_of_members_in_a_transaction(broker: Broker, topic: Topic, group: str) -> None:
    """KIP-447: a member's generation fences; a producer without one (generation -1) is not checked beside members."""
    (member,) = stable_group(broker, group)
    producer = TransactionalProducer(broker).init()
    assert producer.add_offsets(group) == 0
    mine = {"generation": member.generation, "member_id": member.member_id}
    assert producer.commit_offset(group, topic, 1, **(mine | {"generation": 99})) == ILLEGAL_GENERATION
    assert producer.commit_offset(group, topic, 1, **(mine | {"member_id": "nobody"})) == UNKNOWN_MEMBER
    assert producer.commit_offset(group, topic, 2) == 0
    assert producer.commit_offset(group, topic, 3, **mine) == 0
    producer.commit()
    rows = until_settled(
        lambda: fetch_offsets(broker, group, [(topic, [0])], version=9, stable=True)[2],
        lambda found: 51 if found[topic.name, 0][3] == UNSTABLE_OFFSETS else 0,
    )
    assert rows[topic.name, 0][0] == 3
    member.close()


def test_a_commit_after_the_pending_one_wins_the_race_of_offsets(broker: Broker, topic: Topic, group: str) -> None:
    """A plain commit between a pending one and its end: the one that was *written* later stays."""
    producer = TransactionalProducer(broker).init()
    assert producer.add_offsets(group) == 0
    assert producer.commit_offset(group, topic, 20) == 0
    assert commit(broker, group, topic, 30) == 0
    assert committed(broker, group, topic) == 30
    producer.commit()
    rows = until_settled(
        lambda: fetch_offsets(broker, group, [(topic, [0])], version=9, stable=True)[2],
        lambda found: 51 if found[topic.name, 0][3] == UNSTABLE_OFFSETS else 0,
    )
    assert rows[topic.name, 0][0] == 30


def test_deleting_beside_pending_offsets(broker: Broker, topic: Topic, group: str) -> None:
    """DeleteGroups and OffsetDelete while offsets are pending: the offsets of the transaction are gone as well."""
    producer = TransactionalProducer(broker).init()
    assert commit(broker, group, topic, 5) == 0
    assert producer.add_offsets(group) == 0
    assert producer.commit_offset(group, topic, 20) == 0
    entry = OffsetDeleteRequestTopic(name=topic.name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    answer = broker.request(OffsetDeleteRequest(group_id=group, topics=[entry]))
    assert answer.error_code == 0 and answer.topics[0].partitions[0].error_code == 0
    assert committed(broker, group, topic) == -1
    assert broker.request(DeleteGroupsRequest(groups_names=[group])).results[0].error_code == 0
    producer.commit()
    rows = until_settled(
        lambda: fetch_offsets(broker, group, [(topic, [0])], version=9, stable=True)[2],
        lambda found: 51 if found[topic.name, 0][3] == UNSTABLE_OFFSETS else 0,
    )
    assert rows[topic.name, 0] == (-1, -1, "", 0)


# --- asking


def test_describe_a_transaction(broker: Broker, producer: TransactionalProducer) -> None:
    topic = broker.create_topic(partition_count=3)
    row = producer.describe()
    assert (row.error_code, row.transaction_state, row.transaction_timeout_ms) == (0, "Empty", 60_000)
    assert (row.producer_id, row.producer_epoch, row.topics) == (producer.producer_id, producer.epoch, [])
    assert row.transaction_start_time_ms == -1
    assert set(producer.add_partitions((topic, 0), (topic, 2)).values()) == {0}
    row = producer.describe()
    assert row.transaction_state == "Ongoing" and row.transaction_start_time_ms > 1_600_000_000_000
    assert [(entry.topic, sorted(entry.partitions)) for entry in row.topics] == [(topic.name, [0, 2])]
    producer.commit()
    row = producer.wait_for_state("CompleteCommit")
    assert (row.topics, row.transaction_timeout_ms) == ([], 60_000)
    producer.init()
    assert producer.describe().transaction_state == "Empty"
    producer.add(topic)
    producer.abort()
    producer.wait_for_state("CompleteAbort")


def test_describe_a_transactional_id_that_is_not(broker: Broker) -> None:
    for name, code in ((broker.new_name("nobody"), NO_SUCH_TRANSACTIONAL_ID), ("", INVALID_REQUEST)):
        (row,) = broker.request(DescribeTransactionsRequest(transactional_ids=[name])).transaction_states
        assert (row.error_code, row.transactional_id, row.transaction_state, row.topics) == (code, name, "", [])


@pytest.mark.parametrize("version", range(3))
def test_list_transactions(broker: Broker, topic: Topic, version: int) -> None:
    ongoing, ended = TransactionalProducer(broker).init(), TransactionalProducer(broker).init()
    for one in (ongoing, ended):
        one.add(topic)
    ended.commit()
    ended.wait_for_state("CompleteCommit")
    everything = listed(broker, version=version)
    assert everything[ongoing.transactional_id] == (ongoing.producer_id, "Ongoing")
    assert everything[ended.transactional_id] == (ended.producer_id, "CompleteCommit")
    found = listed(broker, version=version, state_filters=["Ongoing"])
    assert ongoing.transactional_id in found and ended.transactional_id not in found
    found = listed(broker, version=version, producer_id_filters=[ended.producer_id])
    assert found == {ended.transactional_id: (ended.producer_id, "CompleteCommit")}
    assert listed(broker, version=version, producer_id_filters=[ended.producer_id], state_filters=["Ongoing"]) == {}
    request = ListTransactionsRequest(state_filters=["Ongoing", "Asleep"], producer_id_filters=[ongoing.producer_id])
    answer = broker.request(request, version)
    assert answer.error_code == 0 and answer.unknown_state_filters == ["Asleep"]
    assert [row.transactional_id for row in answer.transaction_states] == [ongoing.transactional_id]
    if version >= 1:
        mine = {"version": version, "producer_id_filters": [ongoing.producer_id]}
        assert set(listed(broker, duration_filter=0, **mine)) == {ongoing.transactional_id}
        assert listed(broker, duration_filter=600_000, **mine) == {}
    if version >= 2:
        pattern = re.escape(ongoing.transactional_id).replace(r"\-", "-")
        assert set(listed(broker, version=2, transactional_id_pattern=pattern)) == {ongoing.transactional_id}
        assert listed(broker, version=2, transactional_id_pattern=pattern[:-1]) == {}, "the whole id must match"
        bad = ListTransactionsRequest(transactional_id_pattern="(unclosed")
        assert broker.request(bad, 2).error_code == INVALID_REGULAR_EXPRESSION
    ongoing.abort()


def test_describe_producers(broker: Broker, topic: Topic, producer: TransactionalProducer) -> None:
    """Who writes to a partition, and where its open transaction begins: what finds hanging ones."""
    assert active_producers(broker, topic).active_producers == []
    assert broker.produce(topic, batch([b"plain"])).error_code == 0
    producer.add(topic)
    assert producer.produce(topic, [b"1", b"2"]).base_offset == 1
    (row,) = active_producers(broker, topic).active_producers
    assert (row.producer_id, row.producer_epoch, row.last_sequence) == (producer.producer_id, producer.epoch, 1)
    assert (row.current_txn_start_offset, row.coordinator_epoch) == (1, -1) and row.last_timestamp > 0
    producer.commit()
    wait_for_stable_offset(broker, topic, 4)
    (row,) = active_producers(broker, topic).active_producers
    assert (row.current_txn_start_offset, row.coordinator_epoch) == (-1, 0)
    assert active_producers(broker, topic, 7).error_code == UNKNOWN_TOPIC
    asked = DescribeProducersTopicRequest(name=broker.new_name("absent"), partition_indexes=[0])
    answer = broker.request(DescribeProducersRequest(topics=[asked]))
    assert answer.topics[0].partitions[0].error_code == UNKNOWN_TOPIC


def write_marker(broker: Broker, producer: TransactionalProducer, topic: Topic, *, version: int, **other: Any) -> int:
    """An ABORT as `kafka-transactions abort` sends it; the partition's error code."""
    marker = WritableTxnMarker(
        producer_id=producer.producer_id, topics=[WritableTxnMarkerTopic(name=topic.name, partition_indexes=[0])]
    )
    for name, value in ({"producer_epoch": producer.epoch, "coordinator_epoch": 0} | other).items():
        setattr(marker, name, value)
    answer = broker.request(WriteTxnMarkersRequest(markers=[marker]), broker.version("WriteTxnMarkers", version))
    (found,) = answer.markers
    assert found.producer_id == producer.producer_id
    return int(found.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [1, 2])
def test_an_operator_writes_the_marker(broker: Broker, topic: Topic, version: int) -> None:
    """What ends a hanging transaction: the partition's own is closed, old producer epochs are refused."""
    producer = TransactionalProducer(broker).init()
    producer.init()
    producer.add(topic)
    assert producer.produce(topic, [b"1"]).error_code == 0
    stale = {"version": version, "producer_epoch": producer.epoch - 1}
    assert write_marker(broker, producer, topic, **stale) == INVALID_EPOCH
    assert last_stable_offset(broker, topic) == 0
    assert write_marker(broker, producer, topic, version=version) == 0
    wait_for_stable_offset(broker, topic, 2)
    assert aborted(broker, topic, 0, version=broker.version("Fetch"), isolation_level=1) == [(producer.producer_id, 0)]
    absent = Topic(broker.new_name("absent"), bytes(16), 1)
    assert write_marker(broker, producer, absent, version=version) == UNKNOWN_TOPIC
    assert write_marker(broker, producer, topic, version=version, coordinator_epoch=7) == 0
    assert write_marker(broker, producer, topic, version=version) == COORDINATOR_FENCED
