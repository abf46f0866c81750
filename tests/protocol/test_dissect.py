"""The readable view, and the second statement of the batch format against the first."""

from __future__ import annotations

import random

import pytest

from kmirror.protocol import dissect, dissect_batch, frames, records, registry
from kmirror.protocol.api.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.compression import Compression
from kmirror.protocol.records import Record, build_batch

METADATA = registry.by_name["Metadata"]
FETCH = registry.by_name["Fetch"]


def some_records(rng: random.Random, count: int) -> list[Record]:
    return [
        Record(
            key=rng.choice((None, b"", rng.randbytes(rng.randint(1, 90)))),
            value=rng.choice((None, rng.randbytes(rng.randint(0, 300)))),
            headers=[("größe", None), ("h", b"v")][: rng.randint(0, 2)],
            timestamp=1_700_000_000_000 + rng.randint(0, 10_000),
        )
        for _ in range(count)
    ]


def test_both_statements_of_the_batch_format_agree(rng: random.Random) -> None:
    for _ in range(60):
        wanted = some_records(rng, rng.randint(1, 6))
        batch = build_batch(
            wanted,
            base_offset=rng.getrandbits(40),
            leader_epoch=rng.randint(-1, 2**31 - 1),
            producer_id=rng.choice((-1, rng.getrandbits(40))),
            producer_epoch=rng.choice((-1, 7)),
            base_sequence=rng.choice((-1, 2**31 - 2)),
            transactional=rng.random() < 0.3,
            timestamp_ms=1_700_000_000_000,
        )
        header = records.parse_header(batch)
        parsed = dissect_batch.BATCH.parse(batch)
        for ours, theirs in (
            (header.base_offset, parsed.base_offset),
            (header.leader_epoch, parsed.partition_leader_epoch),
            (header.magic, parsed.magic),
            (header.crc, parsed.crc),
            (header.attributes, parsed.attributes),
            (header.last_offset_delta, parsed.last_offset_delta),
            (header.base_timestamp, parsed.base_timestamp),
            (header.max_timestamp, parsed.max_timestamp),
            (header.producer_id, parsed.producer_id),
            (header.producer_epoch, parsed.producer_epoch),
            (header.base_sequence, parsed.base_sequence),
            (header.record_count, parsed.record_count),
            (header.size_bytes, parsed.batch_length + 12),
        ):
            assert ours == theirs
        bodies = dissect_batch.RECORDS.parse(parsed.payload)
        assert dissect_batch.RECORDS.build(bodies) == parsed.payload
        assert dissect_batch.BATCH.build(parsed) == batch
        read = records.read_records(batch)
        assert len(bodies) == len(read) == header.record_count
        for body, record in zip(bodies, read, strict=True):
            assert (body.key, body.value) == (record.key, record.value)
            assert header.base_offset + body.offset_delta == record.offset
            assert header.base_timestamp + body.timestamp_delta == record.timestamp
            assert [(h.name.decode(), h.value) for h in body.headers] == record.headers


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name)
def test_batches_are_taken_apart(codec: Compression, rng: random.Random) -> None:
    batch = build_batch(some_records(rng, 3), compression=codec, base_offset=100, timestamp_ms=0)
    nodes = dissect_batch.dissect_batches(batch + batch)
    assert [(node.start, node.end) for node in nodes] == [(0, len(batch)), (len(batch), 2 * len(batch))]
    assert not any(node.error for node in nodes)
    assert [child.name for child in nodes[1].children[-1].children] == ["record 0", "record 1", "record 2"]
    assert codec.name.lower() in nodes[0].find("attributes").value


def test_offsets_point_at_the_bytes() -> None:
    record = Record(key=b"the key", value=b"the value", timestamp=5)
    batch = build_batch([record], timestamp_ms=5)
    answer = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(records=batch)])])
    frame = b"".join(p for p in frames.response_frame(FETCH, 12, 3, answer) if isinstance(p, bytes | memoryview))
    root = dissect.dissect_frame(frame, response_to=("Fetch", 12))
    found = root.find("FetchResponse v12/responses/0/partitions/0/records/batch/payload/record 0/key")
    assert frame[found.start : found.end] == b"the key"
    topic = root.find("FetchResponse v12/responses/0/topic")
    assert frame[topic.start : topic.end] == b"\2t"
    with pytest.raises(KeyError):
        root.find("FetchResponse v12/nonsense")


def test_a_request_with_and_without_its_size() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="my-topic")])
    frame = frames.request_frame(METADATA, 12, 9, "me", request)
    with_size = "\n".join(dissect.dissect_frame(frame).lines())
    without = "\n".join(dissect.dissect_frame(frame[4:]).lines())
    for text in (with_size, without):
        assert "name = 'my-topic'" in text
        assert "client_id = 'me'" in text
    assert "size = " in with_size and "size = " not in without


def test_damage_is_shown_where_it_is() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="my-topic")])
    frame = frames.request_frame(METADATA, 12, 9, "me", request)[4:-8]
    text = "\n".join(dissect.dissect_frame(frame).lines())
    assert "!!" in text
    assert "topic_id" in text  # what came before the damage is still shown
    batch = build_batch([Record(value=b"v")], timestamp_ms=0)
    cut = dissect_batch.dissect_batches(batch + batch[:30])
    assert cut[0].error is None
    assert cut[1].error is not None and "cut" in cut[1].error
    broken = bytearray(batch)
    broken[61] = 0x7F
    assert dissect_batch.dissect_batches(bytes(broken))[0].error is not None


def test_frames_without_a_schema() -> None:
    with pytest.raises(KeyError, match="4242"):
        dissect.dissect_frame(bytes.fromhex("1092000000000000ffff"))
    with pytest.raises(KeyError, match="Metadata v99"):
        dissect.dissect_frame(bytes.fromhex("0003006300000000ffff"))


def test_control_batches_say_what_they_are() -> None:
    text = "\n".join(line for node in dissect_batch.dissect_batches(
        records.end_txn_marker(commit=False, producer_id=5, producer_epoch=0, coordinator_epoch=3, timestamp_ms=0)
        + records.mirror_pid_reset(timestamp_ms=0)
    ) for line in node.lines())  # fmt: skip
    assert "EndTxnMarker(coordinator_epoch=3)" in text
    assert "MirrorPidReset" in text
    assert "transactional, control" in text


def test_a_records_headers_are_shown_in_their_order_and_repeats_too() -> None:
    data = build_batch([Record(None, b"v", headers=[("a", b"1"), ("a", None)])], timestamp_ms=0)
    text = "\n".join(line for node in dissect_batch.dissect_batches(data) for line in node.lines())
    assert "headers = 'a=[1] 31, a=null'  <headers>" in text
    assert "key_size = -1  <varint>" in text
