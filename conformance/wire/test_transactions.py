"""The transaction coordinator: ids and epochs (B048), what may be added when, ends (B050), time-outs (B049)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conformance.wire.batches import batch
from conformance.wire.client import Broker, Topic
from conformance.wire.groups import INVALID_GROUP, INVALID_REQUEST, UNKNOWN_TOPIC
from conformance.wire.transactions import (
    ABORTABLE,
    BEFORE_TV2,
    CONCURRENT,
    FENCED,
    INVALID_EPOCH,
    INVALID_PID_MAPPING,
    INVALID_TIMEOUT,
    INVALID_TXN_STATE,
    NOT_ATTEMPTED,
    OUT_OF_ORDER,
    TransactionalProducer,
    last_stable_offset,
    wait_for_stable_offset,
)
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest

ABORT_PATIENCE_S = 25
"""Kafka looks for transactions that are too old every 10 s."""


@pytest.fixture
def producer(broker: Broker) -> TransactionalProducer:
    return TransactionalProducer(broker).init()


# --- InitProducerId


@pytest.mark.parametrize("version", range(6))
def test_init_gives_one_id_and_a_new_epoch_each_time(broker: Broker, version: int) -> None:
    first = TransactionalProducer(broker).init(version=version)
    again = first.other().init(version=version)
    assert (first.epoch, again.epoch) == (0, 1) and first.producer_id == again.producer_id
    assert TransactionalProducer(broker).init(version=version).producer_id != first.producer_id


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
def test_init_without_a_transactional_id(broker: Broker, version: int) -> None:
    """Null: a fresh id each time, epoch 0, whatever the time-out says. Empty: 42."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    answers = [broker.request(request, broker.version("InitProducerId", version)) for _ in range(2)]
    assert [(answer.error_code, answer.producer_epoch) for answer in answers] == [(0, 0)] * 2
    assert answers[0].producer_id != answers[1].producer_id
    empty = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000)
    assert broker.request(empty, version).error_code == INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 3, 5])
def test_timeouts_that_nobody_may_promise(broker: Broker, version: int) -> None:
    """B049: 0, negative, or above transaction.max.timeout.ms (15 minutes): 50."""
    producer = TransactionalProducer(broker).init(version=version)
    for timeout_ms in (0, -1, 15 * 60_000 + 1):
        assert producer.init_once(version=version, timeout_ms=timeout_ms).error_code == INVALID_TIMEOUT
    assert producer.init_once(version=version, timeout_ms=15 * 60_000).producer_epoch == 1


@pytest.mark.parametrize("version", [3, 4, 5])
def test_init_that_names_what_it_had(broker: Broker, version: int) -> None:
    """KIP-360: the current epoch is raised; the one before is a retry and gets the current; all else is fenced."""
    producer = TransactionalProducer(broker).init(version=version)
    had = {"version": version, "producer_id": producer.producer_id}

    def again(epoch: int, **other: Any) -> tuple[int, int, int]:
        answer = producer.init_once(**(had | {"producer_epoch": epoch} | other))
        return answer.error_code, answer.producer_id, answer.producer_epoch

    mine, fenced = producer.producer_id, (FENCED if version >= 4 else INVALID_EPOCH, -1, -1)
    assert again(0) == (0, mine, 1)
    assert again(0) == (0, mine, 1), "a retry of a request whose answer was lost"
    assert again(1) == (0, mine, 2)
    assert again(0) == fenced
    assert again(3) == fenced
    assert again(2, producer_id=mine + 1000) == fenced
    assert again(-1, producer_id=mine)[0] == INVALID_REQUEST
    assert again(2, producer_id=-1)[0] == INVALID_REQUEST
    assert again(-1, producer_id=-1) == (0, mine, 3)
    assert again(2) == fenced, "an init without an id fences all before it"


@pytest.mark.parametrize("tv2", [False, True])
def test_init_aborts_what_is_open(broker: Broker, topic: Topic, tv2: bool) -> None:
    """B048: the new producer gets its epoch when the marker is written, and the old one is fenced in every path."""
    old = TransactionalProducer(broker).init()
    produce_version = broker.version("Produce") if tv2 else BEFORE_TV2["Produce"]
    if not tv2:
        old.add(topic)
    assert old.produce(topic, [b"1", b"2", b"3"], version=produce_version).error_code == 0
    new = old.other().init()
    assert new.producer_id == old.producer_id and new.epoch > old.epoch
    wait_for_stable_offset(broker, topic, 4)
    assert fenced_codes(broker, old, topic, tv2=tv2) == FENCED_CODES
    new.add(topic)
    assert new.produce(topic, [b"4"]).error_code == 0
    new.commit()
    wait_for_stable_offset(broker, topic, 6)


FENCED_CODES = {
    "Produce": INVALID_EPOCH, "AddPartitionsToTxn": FENCED, "AddOffsetsToTxn": FENCED, "EndTxn commit": FENCED,
    "EndTxn abort": FENCED, "InitProducerId": FENCED, "TxnOffsetCommit": INVALID_EPOCH,
}  # fmt: skip


def fenced_codes(broker: Broker, old: TransactionalProducer, topic: Topic, *, tv2: bool) -> dict[str, int]:
    """What a producer hears that was replaced, request by request."""
    version = (lambda name: broker.version(name)) if tv2 else (lambda name: BEFORE_TV2[name])
    init = {"producer_id": old.producer_id, "producer_epoch": old.epoch}
    return {
        "Produce": old.produce(topic, version=version("Produce")).error_code,
        "AddPartitionsToTxn": old.add_partitions((topic, 0))[topic.name, 0],
        "AddOffsetsToTxn": old.add_offsets("g"),
        "EndTxn commit": old.end(True, version=version("EndTxn")),
        "EndTxn abort": old.end(False, version=version("EndTxn")),
        "InitProducerId": old.init_once(**init).error_code,
        "TxnOffsetCommit": old.commit_offset("g", topic, 1, version=version("TxnOffsetCommit")),
    }


# --- adding partitions and groups


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_at_every_version(broker: Broker, version: int) -> None:
    producer = TransactionalProducer(broker).init()
    topic = broker.create_topic(partition_count=2)
    both = [(topic, 0), (topic, 1)]
    assert set(producer.add_partitions(*both, version=version).values()) == {0}
    assert set(producer.add_partitions(*both, version=version).values()) == {0}, "again is no error"
    for partition in (0, 1):
        assert producer.produce(topic, partition=partition).error_code == 0
    producer.commit()
    wait_for_stable_offset(broker, topic, 2)


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_that_are_refused(broker: Broker, topic: Topic, version: int) -> None:
    """B050: by name and number of version. One unknown partition spoils the whole request."""
    producer = TransactionalProducer(broker).init()
    absent = Topic(broker.new_name("absent"), bytes(16), 1)
    codes = producer.add_partitions((topic, 0), (absent, 0), (topic, 7), version=version)
    assert codes == {(topic.name, 0): NOT_ATTEMPTED, (absent.name, 0): UNKNOWN_TOPIC, (topic.name, 7): UNKNOWN_TOPIC}

    def refused(**wrong: Any) -> int:
        return producer.add_partitions((topic, 0), version=version, **wrong)[topic.name, 0]

    stale = FENCED if version >= 2 else INVALID_EPOCH
    assert refused(producer_epoch=producer.epoch + 1) == stale
    assert refused(producer_id=producer.producer_id + 1000) == INVALID_PID_MAPPING
    assert refused(transactional_id=broker.new_name("nobody")) == INVALID_PID_MAPPING
    assert refused(transactional_id="") == INVALID_REQUEST
    assert producer.describe().transaction_state == "Empty"


def test_asking_whether_a_partition_belongs(broker: Broker, topic: Topic) -> None:
    """v4 with verify_only is what another broker asks before it takes a batch: nothing is added."""
    other = broker.create_topic()
    version = broker.version("AddPartitionsToTxn", 4)
    producer = TransactionalProducer(broker).init()
    ask = {"version": version, "verify_only": True}
    assert producer.add_partitions((topic, 0), **ask) == {(topic.name, 0): ABORTABLE}
    producer.add(topic)
    assert producer.add_partitions((topic, 0), (other, 0), **ask) == {
        (topic.name, 0): 0, (other.name, 0): ABORTABLE
    }  # fmt: skip
    assert producer.add_partitions((other, 0), version=version) == {(other.name, 0): 0}
    assert producer.add_partitions((other, 0), **ask) == {(other.name, 0): 0}
    producer.abort()


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_at_every_version(broker: Broker, version: int) -> None:
    producer = TransactionalProducer(broker).init()
    group = broker.new_name("group")
    stale = FENCED if version >= 2 else INVALID_EPOCH
    assert producer.add_offsets(group, version=version, producer_epoch=producer.epoch + 1) == stale
    assert producer.add_offsets(group, version=version, producer_id=producer.producer_id + 1) == INVALID_PID_MAPPING
    unknown = broker.new_name("nobody")
    assert producer.add_offsets(group, version=version, transactional_id=unknown) == INVALID_PID_MAPPING
    assert producer.add_offsets("", version=version) in (0, INVALID_GROUP)
    assert producer.add_offsets(group, version=version) == 0
    assert [topic.topic for topic in producer.describe().topics] == ["__consumer_offsets"]
    producer.abort()


# --- producing


@pytest.mark.parametrize("version", [3, 7, 9, 11])
def test_a_partition_that_was_not_added(broker: Broker, topic: Topic, version: int) -> None:
    """KIP-890: the broker asks the coordinator before it opens a transaction in a partition; nothing is appended.

    48, and from Produce v11 on 120, which tells the client to abort and go on.
    """
    refused = ABORTABLE if version >= 11 else INVALID_TXN_STATE
    producer = TransactionalProducer(broker).init()
    assert producer.produce(topic, version=version).error_code == refused
    assert broker.latest(topic) == 0
    producer.add(topic)
    assert producer.produce(topic, version=version).error_code == 0
    producer.commit()
    wait_for_stable_offset(broker, topic, 2)
    assert producer.produce(topic, version=version).error_code == refused, "between two transactions"
    assert broker.latest(topic) == 2


def test_new_produce_adds_its_partition(broker: Broker, topic: Topic) -> None:
    """Produce v12 and above: the batch itself is the request to add. Each transaction has an epoch of its own."""
    producer = TransactionalProducer(broker).init()
    produce, end = broker.version("Produce"), broker.version("EndTxn")
    if produce < 12 or end < 5:
        pytest.skip("transaction version 2 is not served")
    assert producer.produce(topic, version=produce).error_code == 0
    assert [row.topic for row in producer.describe().topics] == [topic.name]
    answer = producer.end_once(True, version=end)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
        0,
        producer.producer_id,
        producer.epoch + 1,
    )
    wait_for_stable_offset(broker, topic, 2)
    assert producer.produce(topic, version=produce).error_code == INVALID_EPOCH, "the epoch of the transaction before"
    producer.epoch = answer.producer_epoch
    producer.sequences.clear()
    assert producer.produce(topic, version=produce).error_code == 0
    producer.end_once(False, version=end)
    wait_for_stable_offset(broker, topic, 4)


def test_a_first_sequence_above_0(broker: Broker, topic: Topic) -> None:
    """B046: under transaction version 2 the broker knows that there was nothing before: 45."""
    producer = TransactionalProducer(broker).init()
    version = broker.version("Produce")
    if version < 12:
        pytest.skip("transaction version 2 is not served")
    assert producer.produce(topic, version=version, sequence=7).error_code == OUT_OF_ORDER
    assert producer.produce(topic, version=version).error_code == 0
    assert producer.produce(topic, version=version, sequence=7).error_code == OUT_OF_ORDER
    producer.end_once(False, version=broker.version("EndTxn"))


@pytest.mark.parametrize("tv2", [False, True])
def test_a_batch_that_is_sent_again_inside_a_transaction(broker: Broker, topic: Topic, tv2: bool) -> None:
    """B045, transactional: the first offset, and nothing appended."""
    version = broker.version("Produce") if tv2 else BEFORE_TV2["Produce"]
    producer = TransactionalProducer(broker).init()
    if not tv2:
        producer.add(topic)
    offsets = [producer.produce(topic, [b"a", b"b"], version=version).base_offset for _ in range(3)]
    assert offsets == [0, 2, 4]
    for sequence, offset in ((4, 4), (0, 0), (2, 2)):
        row = producer.produce(topic, [b"a", b"b"], version=version, sequence=sequence)
        assert (row.error_code, row.base_offset) == (0, offset)
    assert broker.latest(topic) == 6
    producer.end(False, version=broker.version("EndTxn") if tv2 else BEFORE_TV2["EndTxn"])
    wait_for_stable_offset(broker, topic, 7)


def test_transactional_and_plain_batches_of_one_producer(
    broker: Broker, topic: Topic, producer: TransactionalProducer
) -> None:
    """An id inside a transaction may not write outside it: 48."""
    producer.add(topic)
    assert producer.produce(topic).error_code == 0
    plain = batch(producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=1)
    assert broker.produce(topic, plain).error_code == INVALID_TXN_STATE
    producer.abort()
    wait_for_stable_offset(broker, topic, 2)


# --- EndTxn


@pytest.mark.parametrize("version", range(5))
def test_end_at_every_version(broker: Broker, topic: Topic, version: int) -> None:
    """B050: wrong epochs, ids and states, each with the name that the version knows."""
    producer = TransactionalProducer(broker).init()
    producer.init()  # epoch 1, so that there is a lower one
    producer.add(topic)
    assert producer.produce(topic).error_code == 0
    stale = FENCED if version >= 2 else INVALID_EPOCH
    end = {"version": version}
    assert producer.end(True, producer_epoch=producer.epoch + 1, **end) == stale
    assert producer.end(True, producer_epoch=producer.epoch - 1, **end) == stale
    assert producer.end(True, producer_id=producer.producer_id + 1000, **end) == INVALID_PID_MAPPING
    assert producer.end(True, transactional_id=broker.new_name("nobody"), **end) == INVALID_PID_MAPPING
    assert producer.end(True, transactional_id="", **end) == INVALID_REQUEST
    assert producer.end(True, **end) == 0
    assert producer.end(True, **end) == 0, "a retry"
    assert producer.end(False, **end) == INVALID_TXN_STATE
    producer.init()
    assert producer.end(True, **end) == INVALID_TXN_STATE, "a commit of nothing"
    producer.add(topic)
    assert producer.end(False, **end) == 0 and producer.end(False, **end) == 0
    assert producer.end(True, **end) == INVALID_TXN_STATE
    wait_for_stable_offset(broker, topic, 3)


def test_the_end_of_a_transaction_of_version_2(broker: Broker, topic: Topic) -> None:
    """B050, EndTxn v5: the epoch goes up with each end, and a retry under the old epoch is told the new one."""
    end = broker.version("EndTxn")
    if end < 5:
        pytest.skip("transaction version 2 is not served")
    producer = TransactionalProducer(broker).init()
    produce = broker.version("Produce")
    for commit in (True, False):
        epoch = producer.epoch
        assert producer.produce(topic, version=produce).error_code == 0
        assert producer.end(not commit, version=end, producer_epoch=epoch + 5) == FENCED
        for _ in range(3):
            answer = producer.end_once(commit, version=end)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
                0,
                producer.producer_id,
                epoch + 1,
            )
        assert producer.end(not commit, version=end) == INVALID_TXN_STATE
        producer.epoch = epoch + 1
        producer.sequences.clear()
    assert producer.end(True, version=end) == INVALID_TXN_STATE, "a commit of nothing"
    answer = producer.end_once(False, version=end)
    assert (answer.error_code, answer.producer_epoch) == (0, producer.epoch + 1), "an abort of nothing raises the epoch"
    wait_for_stable_offset(broker, topic, 4)


def test_a_transaction_that_only_added(broker: Broker, topic: Topic, producer: TransactionalProducer) -> None:
    """A partition that was added and not written to gets a marker all the same, and its readers see none of it."""
    producer.add(topic)
    producer.commit()
    wait_for_stable_offset(broker, topic, 1)
    (marker,) = broker.scan(topic)
    assert marker.attributes & 0x30 == 0x30 and marker.producer_id == producer.producer_id


# --- time-outs


def test_a_transaction_that_takes_too_long(broker: Broker, topic: Topic) -> None:
    """B049: aborted by the coordinator, and its producer is fenced in every path until it asks for a new epoch."""
    producer = TransactionalProducer(broker, timeout_ms=1000).init()
    producer.add(topic)
    assert producer.produce(topic, [b"1", b"2", b"3"]).error_code == 0
    started = time.monotonic()
    wait_for_stable_offset(broker, topic, 4, timeout_s=ABORT_PATIENCE_S)
    assert time.monotonic() - started > 0.9
    producer.wait_for_state("CompleteAbort")
    assert fenced_codes(broker, producer, topic, tv2=False) == FENCED_CODES | {"InitProducerId": 0}
    producer.init()
    producer.add(topic)
    assert producer.produce(topic).error_code == 0
    producer.commit()
    wait_for_stable_offset(broker, topic, 6)


def test_concurrent_ends(broker: Broker, producer: TransactionalProducer) -> None:
    """What comes while markers are being written is 51, or waits its turn; nothing else."""
    topics = [broker.create_topic(partition_count=8) for _ in range(2)]
    everything = [(topic, index) for topic in topics for index in range(8)]
    assert set(producer.add_partitions(*everything).values()) == {0}
    producer.commit()
    codes = producer.add_partitions(*everything, once=True)
    assert set(codes.values()) in ({CONCURRENT}, {0})
    assert set(producer.add_partitions(*everything).values()) == {0}
    producer.abort()
    for topic, index in everything:
        while last_stable_offset(broker, topic, index) != 2:
            time.sleep(0.01)
