"""Steps of transactional producers, by both protocols, of those who were fenced, and of the tools for transactions.

The broker tells the protocols apart by the request: Produce from version 12, TxnOffsetCommit from 5, EndTxn from 5 on
add partitions by themselves and raise the epoch with every transaction (KIP-890). Transaction timeouts are long. A
step is over when its transactional id has come to rest; CONCURRENT_TRANSACTIONS is asked again until then.
"""

from __future__ import annotations

from typing import Any

from conformance.differential.sides import Side
from conformance.differential.steps_data import produce_request, records
from conformance.differential.steps_groups import any_group
from conformance.differential.steps_offsets import METADATA_LIMIT, Speaker, grouped, slots, topic_id
from conformance.differential.story import Step, Story, TxnProducer
from conformance.wire.batches import batch
from kmirror.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from kmirror.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kmirror.protocol.api.describe_transactions import DescribeTransactionsRequest
from kmirror.protocol.api.end_txn import EndTxnRequest
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.api.list_transactions import ListTransactionsRequest
from kmirror.protocol.api.produce import ProduceRequest
from kmirror.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kmirror.protocol.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

CONCURRENT_TRANSACTIONS = 51
AGAIN = frozenset({CONCURRENT_TRANSACTIONS})
MAX_PRODUCERS = 3
IMPLICIT_PRODUCE_FROM, IMPLICIT_OFFSETS_FROM, RAISING_END_FROM = 12, 5, 5
IDENTITY_FROM, MEMBER_FROM, EPOCH_FROM, OFFSET_IDS_FROM, BATCHED_FROM = 3, 3, 2, 6, 4
PATTERN_FROM, DURATION_FROM, MARKER_VERSION_FROM = 2, 1, 2
LONG_MS = 800_000
TIMEOUTS_MS = (0, -1, 900_001, 2**31 - 1, 900_000, 1)
SHORT_MS = 1
MADE_UP = 6_000_000_000_000
Identity = tuple[tuple[int, int], int]


def any_producer(story: Story) -> TxnProducer:
    """One of this story's, or a new one that has not asked for an id yet."""
    if not story.transactional or (len(story.transactional) < MAX_PRODUCERS and story.one_in(5)):
        story.transactional.append(TxnProducer(f"{story.prefix}-t{len(story.transactional)}"))
    return story.rng.choice(story.transactional)


def identity(story: Story, producer: TxnProducer) -> tuple[Identity, str]:
    """Whom a request claims to come from: mostly who holds the transactional id."""
    rng = story.rng
    now: Identity = (producer.ids, producer.epoch)
    kind = rng.choice(["now"] * 9 + ["past", "epoch before", "epoch after", "other", "made up"])
    if kind == "past" and producer.past:
        return rng.choice(producer.past), kind
    if kind == "epoch before":
        return (producer.ids, max(-1, producer.epoch - 1)), kind
    if kind == "epoch after":
        return (producer.ids, producer.epoch + 1), kind
    if kind == "other":
        other = rng.choice(story.transactional)
        return (other.ids, other.epoch), kind
    if kind == "made up":
        return ((MADE_UP, MADE_UP), rng.choice([0, 5, -1])), kind
    return now, "now"


def _names(story: Story, producer: TxnProducer) -> str:
    return story.rng.choice(["", "no-such-transactional-id"]) if story.one_in(25) else producer.transactional_id


# -- InitProducerId --------------------------------------------------------------------------------------------------


def _ready(story: Story) -> TxnProducer:
    """One that has an id, mostly."""
    producer = any_producer(story)
    able = [each for each in story.transactional if each.epoch >= 0]
    return story.rng.choice(able) if producer.epoch < 0 and able and story.rng.randrange(8) else producer


def init_producer_id(story: Story) -> Step:
    """A new holder, or the present one that wants its epoch raised (KIP-360), or a stale one that may not."""
    rng, producer = story.rng, any_producer(story)
    new = [each for each in story.transactional if each.epoch < 0]
    if new and rng.randrange(3):
        producer = rng.choice(new)
    version = story.version("InitProducerId")
    name = "" if story.one_in(40) else producer.transactional_id
    timeout_ms = rng.choice(TIMEOUTS_MS[:4]) if story.one_in(12) else LONG_MS
    claimed: Identity = ((-1, -1), -1)
    what = "new"
    if version >= IDENTITY_FROM and rng.randrange(2):
        claimed, what = identity(story, producer)
        if story.one_in(10):
            claimed, what = rng.choice([(claimed[0], -1), ((-1, -1), claimed[1])]), what + " in half"

    def build(side: Side) -> InitProducerIdRequest:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        if version >= IDENTITY_FROM:
            request.producer_id, request.producer_epoch = claimed[0][side.index], claimed[1]
        return request

    def after(left: Any, right: Any) -> None:
        if left.error_code == 0 and name:
            producer.becomes((left.producer_id, right.producer_id), left.producer_epoch)
            producer.over()

    shown = f"{name!r} {what} {claimed[1]} of {producer.epoch}, {timeout_ms} ms"
    return _step(producer, "InitProducerId", version, shown, build, after)


def _step(producer: TxnProducer, api: str, version: int, what: str, build: Any, after: Any = None, **more: Any) -> Step:
    return Step(api, version, what, build, after, again_for=AGAIN, transactions=(producer.transactional_id,), **more)


# -- adding to a transaction -----------------------------------------------------------------------------------------


def add_partitions(story: Story) -> Step:
    producer = _ready(story)
    claimed, what = identity(story, producer)
    name, version, chosen = _names(story, producer), story.version("AddPartitionsToTxn"), slots(story)
    if story.one_in(4):
        chosen = chosen[:1]
    verify_only = story.one_in(3)

    def build(side: Side) -> AddPartitionsToTxnRequest:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=parts) for topic, parts in grouped(chosen).items()]
        if version >= BATCHED_FROM:
            one = AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=claimed[0][side.index], producer_epoch=claimed[1],
                verify_only=verify_only, topics=topics,
            )  # fmt: skip
            return AddPartitionsToTxnRequest(transactions=[one])
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name, v3_and_below_producer_id=claimed[0][side.index],
            v3_and_below_producer_epoch=claimed[1], v3_and_below_topics=topics,
        )  # fmt: skip

    def after(left: Any, _right: Any) -> None:
        results = left.results_by_topic_v3_and_below
        if version >= BATCHED_FROM:
            results = [topic for each in left.results_by_transaction for topic in each.topic_results]
        rows = [(topic.name, row) for topic in results for row in topic.results_by_partition]
        if not (version >= BATCHED_FROM and verify_only):
            producer.partitions |= {(t, row.partition_index) for t, row in rows if row.partition_error_code == 0}

    shown = f"{name!r} {what} {claimed[1]}{' verify' if version >= BATCHED_FROM and verify_only else ''} {chosen}"
    return _step(producer, "AddPartitionsToTxn", version, shown, build, after)


def add_offsets(story: Story) -> Step:
    producer, group = _ready(story), any_group(story)
    claimed, what = identity(story, producer)
    name, version = _names(story, producer), story.version("AddOffsetsToTxn")
    group_id = "" if story.one_in(20) else group.name

    def build(side: Side) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(transactional_id=name, producer_id=claimed[0][side.index],
                                      producer_epoch=claimed[1], group_id=group_id)  # fmt: skip

    def after(left: Any, _right: Any) -> None:
        if left.error_code == 0:
            producer.groups.add(group_id)

    return _step(producer, "AddOffsetsToTxn", version, f"{name!r} {what} {claimed[1]} {group_id!r}", build, after)


def txn_offset_commit(story: Story) -> Step:
    rng, producer, group = story.rng, _ready(story), any_group(story)
    claimed, what = identity(story, producer)
    name, version = _names(story, producer), story.version("TxnOffsetCommit")
    who = Speaker(story, group)
    group_id = "" if story.one_in(25) else group.name
    rows = [(topic, index, rng.choice([0, 3, 50, 2**40, -1]), rng.choice([-1, 0, 4])) for topic, index in slots(story)]
    metadata = rng.choice(["", "t", None, "x" * METADATA_LIMIT]) if story.one_in(3) else "t"
    if group.exists and story.one_in(8):
        metadata = "x" * (METADATA_LIMIT + 1)

    def build(side: Side) -> TxnOffsetCommitRequest:
        request = TxnOffsetCommitRequest(transactional_id=name, group_id=group_id,
                                         producer_id=claimed[0][side.index], producer_epoch=claimed[1])  # fmt: skip
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for topic, index, offset, epoch in rows:
            if topic not in topics:
                by_id = version >= OFFSET_IDS_FROM
                topics[topic] = TxnOffsetCommitRequestTopic(**_named(story, side, topic, by_id=by_id))
            row = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset,
                                                  committed_metadata=metadata)  # fmt: skip
            if version >= EPOCH_FROM:
                row.committed_leader_epoch = epoch
            topics[topic].partitions.append(row)
        request.topics = list(topics.values())
        if version >= MEMBER_FROM:
            request.generation_id_or_member_epoch, request.member_id = who.generation, who.ids[side.index]
            request.group_instance_id = who.instance
        return request

    def after(left: Any, _right: Any) -> None:
        if any(row.error_code == 0 for topic in left.topics for row in topic.partitions):
            producer.offsets.update((group.name, (topic, index)) for topic, index, _, _ in rows)

    speaker = who.what if version >= MEMBER_FROM else ""
    shown = f"{name!r} {what} {claimed[1]} {group_id!r} {speaker} {rows}"
    return _step(producer, "TxnOffsetCommit", version, shown, build, after, group=group.name)


def _named(story: Story, side: Side, topic: str, *, by_id: bool) -> dict[str, Any]:
    return {"topic_id": topic_id(story, side, topic)} if by_id else {"name": topic}


# -- Produce ---------------------------------------------------------------------------------------------------------


def produce(story: Story) -> Step | None:
    """A batch of a transaction with the next sequence or another; by version 12, or to partitions that were added."""
    rng, producer, topic = story.rng, _ready(story), story.topic()
    if topic is None:
        return None
    claimed, what = identity(story, producer)
    version = story.version("Produce", lowest=3)
    if claimed[0][0] < 0:
        claimed, what = ((MADE_UP, MADE_UP), 0), "made up"  # none at all: an internal error in Kafka, by chance
    slot = (topic.name, story.partition(topic))
    added = sorted(slot for slot in producer.partitions if slot[0] in story.topics)
    if version < IMPLICIT_PRODUCE_FROM and added and rng.randrange(8):
        slot = rng.choice(added)
    due = producer.sequences.get(slot, 0)
    sequence = rng.choice([due] * 10 + [max(0, due - 1), due + 2, 0])
    if slot not in producer.sequences or what != "now":
        sequence = 0  # see FINDINGS.md: what a refused batch leaves behind for those that come after it
    sequence = min(sequence, producer.refused.get(slot, sequence))
    recs = records(story)[: rng.choice([1, 2, 3])]
    name: str | None = _names(story, producer)
    transactional = rng.randrange(15) > 0 or claimed[1] > producer.epoch  # a later epoch in the log: see write_markers
    if story.one_in(25):
        name = None

    def build(side: Side) -> ProduceRequest:
        data = batch(recs, producer_id=claimed[0][side.index], producer_epoch=claimed[1], base_sequence=sequence,
                     transactional=transactional)  # fmt: skip
        return produce_request(story, version, -1, [(*slot, data)], name)(side)

    def after(left: Any, _right: Any) -> None:
        row = left.responses[0].partition_responses[0]
        if claimed[0] != producer.ids:
            return
        fresh = row.error_code == 0 and sequence == due and claimed[1] == producer.epoch
        if fresh and transactional:
            producer.refused.pop(slot, None)
        elif not fresh:  # a repeated one leaves the same behind as a refused one
            producer.refused[slot] = min(sequence, producer.refused.get(slot, sequence))
        if row.error_code == 0 and claimed == (producer.ids, producer.epoch):
            if sequence == due:
                producer.sequences[slot] = due + len(recs)
            if version >= IMPLICIT_PRODUCE_FROM:
                producer.partitions.add(slot)

    shown = f"{name!r} {what} {claimed[1]} {slot} sequence {sequence}{'' if transactional else ' plain'}"
    return _step(producer, "Produce", version, shown, build, after)


# -- EndTxn, markers -------------------------------------------------------------------------------------------------


def end_txn(story: Story) -> Step:
    producer = _ready(story)
    claimed, what = identity(story, producer)
    name, version, committed = _names(story, producer), story.version("EndTxn"), story.rng.randrange(3) > 0

    def build(side: Side) -> EndTxnRequest:
        return EndTxnRequest(transactional_id=name, producer_id=claimed[0][side.index], producer_epoch=claimed[1],
                             committed=committed)  # fmt: skip

    def after(left: Any, right: Any) -> None:
        if left.error_code == 0 and name == producer.transactional_id:
            producer.over()
            if version >= RAISING_END_FROM and left.producer_id >= 0:
                producer.becomes((left.producer_id, right.producer_id), left.producer_epoch)

    shown = f"{name!r} {what} {claimed[1]} {'commit' if committed else 'abort'}"
    return _step(producer, "EndTxn", version, shown, build, after)


def write_markers(story: Story) -> Step:
    """As the tool for hanging transactions does it: past the coordinator, into the logs.

    Later epochs only for ids that no coordinator knows: Kafka's own marker would come too late for ever, and its
    transaction would never end.
    """
    rng, producer = story.rng, any_producer(story)
    claimed, what = identity(story, producer)
    if story.one_in(3) or claimed[1] > producer.epoch:
        claimed, what = ((MADE_UP, MADE_UP), rng.choice([0, 1, 5])), "made up"
    version = story.version("WriteTxnMarkers")
    chosen = list(dict.fromkeys(slot for slot in slots(story) if slot[0]))  # the same twice: Kafka never answers
    chosen = chosen or [("no-such-topic", 0)]
    committed, marker_version = story.one_in(3), rng.choice([0, 1, 2])
    coordinator_epoch, raised = rng.choice([0, 0, -1]), 0
    if what == "made up":
        coordinator_epoch, raised = rng.choice([0, 1, 2]), rng.choice([0, 0, 1])

    def build(side: Side) -> WriteTxnMarkersRequest:
        topics = [WritableTxnMarkerTopic(name=name, partition_indexes=parts) for name, parts in grouped(chosen).items()]
        marker = WritableTxnMarker(
            producer_id=claimed[0][side.index], producer_epoch=claimed[1] + raised, transaction_result=committed,
            topics=topics, coordinator_epoch=coordinator_epoch,
        )  # fmt: skip
        if version >= MARKER_VERSION_FROM:
            marker.transaction_version = marker_version
        return WriteTxnMarkersRequest(markers=[marker])

    shown = f"{what} {claimed[1] + raised} {'commit' if committed else 'abort'} {chosen} of {coordinator_epoch}"
    return _step(producer, "WriteTxnMarkers", version, shown, build)


# -- questions -------------------------------------------------------------------------------------------------------


def describe(story: Story) -> Step:
    names = [producer.transactional_id for producer in story.transactional if story.rng.randrange(2)]
    if story.one_in(4):
        names.append(story.rng.choice(["", "no-such-transactional-id"]))
    return describe_step(story, names)


def describe_step(story: Story, names: list[str]) -> Step:
    def build(side: Side) -> DescribeTransactionsRequest:
        return DescribeTransactionsRequest(transactional_ids=names)

    return Step("DescribeTransactions", story.versions("DescribeTransactions")[1], f"{names}", build)


def list_transactions(story: Story) -> Step:
    rng, version = story.rng, story.version("ListTransactions")
    states = rng.choice([[], ["Ongoing"], ["Empty", "CompleteCommit"], ["ongoing"], ["CompleteAbort", "No such state"]])
    producer = rng.choice(story.transactional) if story.transactional and story.one_in(2) else None
    duration_ms = rng.choice([-1, -1, 3_600_000])
    patterns = [f"{story.prefix}-.*", f"{story.prefix}-.*", f"^{story.prefix}-t[01]$", "no such", "", "("]
    pattern = rng.choice(patterns)

    def build(side: Side) -> ListTransactionsRequest:
        request = ListTransactionsRequest(state_filters=states)
        if producer is not None:
            request.producer_id_filters = [producer.ids[side.index]]
        if version >= DURATION_FROM:
            request.duration_filter = duration_ms
        if version >= PATTERN_FROM:
            request.transactional_id_pattern = pattern
        return request

    return Step("ListTransactions", version, f"{states} {producer and producer.transactional_id} {pattern!r}", build)
