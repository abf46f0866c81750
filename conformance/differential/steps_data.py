"""Steps that write and remove records: Produce with every kind of batch, producer ids, DeleteRecords."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

from conformance.differential.sides import Side
from conformance.differential.story import NO_ID, UNKNOWN_ID, Producer, Step, Story, StoryTopic
from conformance.wire.batches import Rec, batch, message_set_v1, payload, record
from kmirror.protocol.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from kmirror.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData

IDS_FROM, ZSTD_FROM = 13, 7
MADE_UP_PRODUCER_ID = 5_000_000_000_000
TIMESTAMP_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
NO_SUCH = "no-such-topic"


# -- batches ---------------------------------------------------------------------------------------------------------


def records(story: Story, *, keyed: bool | None = None) -> list[Rec]:
    """One to six records with keys, nulls, headers and times in any order."""
    rng = story.rng
    if story.one_in(25):
        return [Rec(b"x" * rng.choice([400, 5000]), b"k")]
    uniform = story.one_in(3)
    made = []
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        key = b"k%d" % rng.randrange(5) if keyed or (keyed is None and rng.randrange(5)) else None
        value = rng.choice([b"v", b"value" * rng.randrange(1, 20), b"", None if key else b"v"])
        time_ms = TIMESTAMP_MS + (0 if uniform else rng.randrange(-50, 50) * 1000)
        headers = ((b"h", rng.choice([b"1", None, b""])),) if story.one_in(4) else ()
        made.append(Rec(value, key, time_ms, headers))
    return made


def good_batch(story: Story, *, codec: int | None = None) -> bytes:
    return batch(records(story), codec=story.rng.choice([0, 0, 1, 2, 3, 4]) if codec is None else codec)


def _with_attributes(data: bytes, attributes: int) -> bytes:
    """Other attributes and the checksum that belongs to them."""
    import crc32c

    body = struct.pack(">h", attributes) + data[23:]
    return data[:17] + struct.pack(">I", crc32c.crc32c(body)) + body


def _out_of_order_deltas() -> bytes:
    two = record(Rec(b"a"), offset_delta=1, timestamp_delta=0) + record(Rec(b"b"), offset_delta=0, timestamp_delta=0)
    return batch([b"a", b"b"], raw_payload=two)


def _headers_that_lie() -> bytes:
    body = b"\0\0\0" + b"\x01" + b"\x02v" + b"\x08"  # null key, value "v", four headers that are not there
    return batch([b"v"], raw_payload=bytes([len(body) * 2]) + body)


def _key_too_long() -> bytes:
    body = b"\0\0\0" + b"\x28k" + b"\x02v" + b"\0"
    return batch([b"v"], raw_payload=bytes([len(body) * 2]) + body)


BAD_BATCHES: dict[str, Callable[[Story], bytes]] = {
    "checksum": lambda s: batch(records(s), flip_crc=True),
    "empty": lambda s: b"",
    "two batches": lambda s: batch() + batch(),
    "two batches, gzip": lambda s: batch(codec=1) + batch(),
    "magic 0": lambda s: batch(magic=0),
    "magic 1": lambda s: batch(magic=1),
    "magic 3": lambda s: batch(magic=3),
    "magic -1": lambda s: batch(magic=-1),
    "old message": lambda s: message_set_v1(b"old"),
    "no records": lambda s: batch([], count=0, last_delta=-1),
    "no records, delta 0": lambda s: batch([], count=0, last_delta=0),
    "count too large": lambda s: batch([b"a"], count=2, last_delta=1),
    "count too small": lambda s: batch([b"a", b"b"], count=1, last_delta=0),
    "count -1": lambda s: batch([b"a"], count=-1),
    "delta too large": lambda s: batch([b"a", b"b"], last_delta=9),
    "delta -1": lambda s: batch([b"a"], last_delta=-1),
    "control": lambda s: batch(control=True),
    "transactional": lambda s: batch(transactional=True, producer_id=7, producer_epoch=0, base_sequence=0),
    "producer without sequence": lambda s: batch(producer_id=MADE_UP_PRODUCER_ID, producer_epoch=0, base_sequence=-1),
    "producer without epoch": lambda s: batch(producer_id=MADE_UP_PRODUCER_ID, producer_epoch=-1, base_sequence=0),
    "base offset 5": lambda s: batch(base_offset=5),
    "base offset -1": lambda s: batch(base_offset=-1),
    "garbage behind": lambda s: batch() + b"\0" * 5,
    "garbage behind, long": lambda s: batch() + b"\0" * 40,
    "cut": lambda s: batch(records(s))[:-1],
    "header only": lambda s: batch()[:61],
    "twenty bytes": lambda s: batch()[:20],
    "five bytes": lambda s: b"abcde",
    "length 0": lambda s: struct.pack(">qi", 0, 0) + batch()[12:],
    "length -5": lambda s: struct.pack(">qi", 0, -5) + batch()[12:],
    "length 48": lambda s: struct.pack(">qi", 0, 48) + batch()[12:],
    "record cut": lambda s: batch([b"abcdef"], raw_payload=payload([Rec(b"abcdef")], TIMESTAMP_MS)[:-2]),
    "garbage in the batch": lambda s: batch([b"a"], raw_payload=payload([Rec(b"a")], TIMESTAMP_MS) + b"xyz"),
    "record length 0": lambda s: batch([b"a"], raw_payload=b"\0"),
    "record length -1": lambda s: batch([b"a"], raw_payload=b"\x01" + payload([Rec(b"a")], 0)[1:]),
    "varint that never ends": lambda s: batch([b"a"], raw_payload=b"\xff" * 12),
    "key too long": lambda s: _key_too_long(),
    "headers that lie": lambda s: _headers_that_lie(),
    "deltas out of order": lambda s: _out_of_order_deltas(),
    "gzip of nothing": lambda s: _with_attributes(batch(), 1),
    "snappy of nothing": lambda s: _with_attributes(batch(), 2),
    "lz4 of nothing": lambda s: _with_attributes(batch(), 3),
    "zstd of nothing": lambda s: _with_attributes(batch(), 4),
    "codec 5": lambda s: _with_attributes(batch(), 5),
    "codec 7": lambda s: _with_attributes(batch(), 7),
    "unknown attribute": lambda s: _with_attributes(batch(), 0x100),
    "delete horizon": lambda s: _with_attributes(batch(), 0x40),
    "says LogAppendTime": lambda s: _with_attributes(batch(), 0x08),
    "gzip, garbage behind the records": lambda s: batch(
        [b"a"], codec=1, raw_payload=payload([Rec(b"a")], TIMESTAMP_MS) + b"xyz"
    ),
    "gzip, record cut": lambda s: batch([b"abc"], codec=1, raw_payload=payload([Rec(b"abc")], TIMESTAMP_MS)[:-2]),
    "lz4, count too large": lambda s: batch([b"a"], codec=3, count=2, last_delta=1),
    "in the future": lambda s: batch(timestamp_ms=int(time.time() * 1000) + 30 * HOUR_MS),
    "no timestamp": lambda s: batch([Rec(b"a", b"k", None)], timestamp_ms=-1),
    "keyless": lambda s: batch(records(s, keyed=False)),
    "keyless, zstd": lambda s: batch([Rec(b"a"), Rec(b"b", b"k")], codec=4),
}


FAIL_ALL_SLOTS = frozenset(
    {"length 0", "length -5", "magic 3", "magic -1", "garbage behind, long", "codec 5", "codec 7", "length 48"}
)
"""An impossible length, magic or codec makes Kafka answer for every slot of the request, and before it looks whether
they are there; kmirror answers for the slot. Sent alone, to a partition that exists."""


# -- Produce ---------------------------------------------------------------------------------------------------------


def produce(story: Story) -> Step:
    """Any batch, most of them good, to any slot, most of them there."""
    rng = story.rng
    version = story.version("Produce", lowest=3)
    acks = rng.choice([-1, -1, -1, 1, 1, 2, -2]) if story.one_in(5) else rng.choice([-1, 1])
    slots: list[tuple[str, int, bytes]] = []
    what = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name, index = _slot(story)
        if story.one_in(3):
            kind = rng.choice(list(BAD_BATCHES))
            while kind in FAIL_ALL_SLOTS:
                kind = rng.choice(list(BAD_BATCHES))
            data = BAD_BATCHES[kind](story)
        else:
            kind, data = "good", good_batch(story)
        if (name, index) not in [(taken, at) for taken, at, _ in slots]:
            slots.append((name, index, data))
            what.append(f"{name}-{index} {kind}")
    transactional_id = rng.choice(["tx", ""]) if story.one_in(40) else None
    build = produce_request(story, version, acks, slots, transactional_id)
    return Step("Produce", version, f"acks {acks}: {', '.join(what)}", build)


def produce_impossible(story: Story) -> Step | None:
    topic = story.topic()
    if topic is None:
        return None
    version, index = story.version("Produce", lowest=3), story.partition(topic)
    kind = story.rng.choice(sorted(FAIL_ALL_SLOTS))
    build = produce_request(story, version, -1, [(topic.name, index, BAD_BATCHES[kind](story))], None)
    return Step("Produce", version, f"{topic.name}-{index} {kind}", build)


def produce_unanswered(story: Story) -> Step | None:
    """acks=0: nothing comes back; an error closes the connection."""
    topic = story.topic()
    if topic is None:
        return None
    version = story.version("Produce", lowest=3)
    index = story.partition(topic)
    data, kind = good_batch(story), "good"
    if story.one_in(3):
        kind = story.rng.choice(["checksum", "two batches", "control", "no records"])
        data = BAD_BATCHES[kind](story)
    build = produce_request(story, version, 0, [(topic.name, index, data)], None)
    return Step("Produce", version, f"acks 0: {topic.name}-{index} {kind}", build, answered=False)


def _slot(story: Story) -> tuple[str, int]:
    topic = story.topic()
    if topic is None or story.one_in(25):
        return story.rng.choice([NO_SUCH, "", "a b", "__cluster_metadata"]), 0
    if story.one_in(25):
        return topic.name, story.rng.choice([topic.partition_count, -1, 999])
    return topic.name, story.partition(topic)


def produce_request(
    story: Story, version: int, acks: int, slots: list[tuple[str, int, bytes]], transactional_id: str | None
) -> Callable[[Side], ProduceRequest]:
    def build(side: Side) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for name, index, data in slots:
            entry = topics.get(name)
            if entry is None:
                known = story.topics.get(name)
                topic_id = known.ids[side.index] if known else (NO_ID if name == "" else UNKNOWN_ID)
                entry = TopicProduceData(topic_id=topic_id) if version >= IDS_FROM else TopicProduceData(name=name)
                topics[name] = entry
            entry.partition_data.append(PartitionProduceData(index=index, records=data))
        return ProduceRequest(
            transactional_id=transactional_id, acks=acks, timeout_ms=10_000, topic_data=list(topics.values())
        )

    return build


def produce_idempotent(story: Story) -> Step | None:
    """A producer id with the next sequence, a duplicate, a gap, an old or a new epoch."""
    topic = story.topic()
    if topic is None:
        return None
    rng = story.rng
    if not story.producers or story.one_in(12):
        made_up = MADE_UP_PRODUCER_ID + rng.randrange(1000)
        story.producers.append(Producer((made_up, made_up)))
    producer = rng.choice(story.producers)
    version = story.version("Produce", lowest=3)
    index = story.partition(topic)
    key = (topic.name, index)
    due = producer.sequences.get(key, 0)
    kind = rng.choice(["next"] * 8 + ["again", "again", "older", "gap", "zero", "old epoch", "new epoch", "new, late",
                                      "wrap"])  # fmt: skip
    epoch, sequence = producer.epoch, due
    recs = records(story)[: rng.choice([1, 2, 3])]
    if kind == "again":
        sequence = max(0, due - len(recs))
    elif kind == "older":
        sequence = max(0, due - 20)
    elif kind == "gap":
        sequence = due + 3
    elif kind == "zero":
        sequence = 0
    elif kind == "old epoch":
        epoch = max(-1, epoch - 1)
    elif kind in ("new epoch", "new, late"):
        epoch += 1
        sequence = 0 if kind == "new epoch" else 4
    elif kind == "wrap":
        sequence = 2**31 - 1
    codec = rng.choice([0, 0, 1, 4]) if version >= ZSTD_FROM else 0

    def build(side: Side) -> ProduceRequest:
        data = batch(
            recs, codec=codec, producer_id=producer.ids[side.index], producer_epoch=epoch, base_sequence=sequence
        )
        return produce_request(story, version, -1, [(topic.name, index, data)], None)(side)

    def after(left: Any, _right: Any) -> None:
        row = left.responses[0].partition_responses[0]
        if row.error_code == 0 and kind not in ("again", "older"):
            if epoch != producer.epoch:
                producer.sequences.clear()
            producer.epoch = epoch
            producer.sequences[key] = (sequence + len(recs)) % 2**31

    what = f"{topic.name}-{index} {kind}: epoch {epoch}, sequence {sequence}, {len(recs)} records"
    return Step("Produce", version, what, build, after)


def init_producer_id(story: Story) -> Step:
    rng = story.rng
    version = story.version("InitProducerId")
    known = rng.choice(story.producers) if story.producers and story.one_in(3) else None
    pick = rng.randrange(8)

    def build(side: Side) -> InitProducerIdRequest:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=rng_timeout)
        if pick == 0:
            request.transactional_id = ""
        if version >= 3 and known is not None:
            request.producer_id = known.ids[side.index]
            request.producer_epoch = -1 if pick == 1 else known.epoch
        elif version >= 3 and pick == 2:
            request.producer_epoch = 3
        return request

    rng_timeout = rng.choice([60_000, 0, -1])

    def after(left: Any, right: Any) -> None:
        if left.error_code == 0:
            story.producers.append(Producer((left.producer_id, right.producer_id), left.producer_epoch))
            del story.producers[:-6]

    return Step("InitProducerId", version, f"variant {pick}", build, after)


def delete_records(story: Story) -> Step:
    rng = story.rng
    version = story.version("DeleteRecords")
    name, index = _slot(story)
    topic: StoryTopic | None = story.topics.get(name)
    end = topic.ends.get(index, 5) if topic is not None else 5
    offset = rng.choice([-1, 0, 1, end // 2, end, end + 1, end + 1000, -2, -5])

    def build(side: Side) -> DeleteRecordsRequest:
        asked = DeleteRecordsPartition(partition_index=index, offset=offset)
        topics = [DeleteRecordsTopic(name=name, partitions=[asked])]
        return DeleteRecordsRequest(topics=topics, timeout_ms=10_000)

    def after(_left: Any, _right: Any) -> None:
        if topic is not None:
            topic.trimmed = True

    return Step("DeleteRecords", version, f"{name}-{index} before {offset}", build, after)
