"""Framing, version negotiation and wire shapes (cases B001 to B006)."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest

from conformance.wire.batches import batch
from conformance.wire.client import Broker, Connection, Row, Topic, fetched, frame
from kmirror.protocol import frames, registry
from kmirror.protocol.api.api_versions import ApiVersionsRequest
from kmirror.protocol.api.fetch import FetchRequest
from kmirror.protocol.api.metadata import MetadataRequest
from kmirror.protocol.compile import decode

API_VERSIONS, METADATA, PRODUCE, FETCH, JOIN_GROUP = 18, 3, 0, 1, 11


@pytest.mark.parametrize("version", [99, "max + 1"])
def test_an_unknown_api_versions_version_is_answered_in_version_0(broker: Broker, version: int | str) -> None:
    """B001: the body is not parsed; error 35 and the range of ApiVersions come back in the v0 shape (KIP-511)."""
    low, high = broker.ranges[API_VERSIONS]
    wanted = version if isinstance(version, int) else high + 1
    with broker.connect() as connection:
        connection.send_raw(frame(API_VERSIONS, wanted, 77, random.Random(1).randbytes(16), flexible=True))
        reply = connection.receive_frame()
        assert reply == struct.pack(">ihihhh", 77, 35, 1, API_VERSIONS, low, high)
        answer = connection.request(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        assert answer.error_code == 0


def test_api_versions_answers_have_header_version_0_at_every_version(broker: Broker) -> None:
    """B002, step 1: no tag byte between the correlation id and the error code, and nothing after the body."""
    low, high = broker.ranges[API_VERSIONS]
    for version in range(low, min(high, registry.by_name["ApiVersions"].max_version) + 1):
        with broker.connect() as connection:
            request = ApiVersionsRequest(client_software_name="probe", client_software_version="1.0")
            answer = connection.request(request, version)  # decodes exactly
            assert answer.error_code == 0
            assert {api.api_key for api in answer.api_keys} == set(broker.ranges)


def test_flexible_answers_have_a_tag_byte_in_the_header(broker: Broker) -> None:
    """B002, step 2: `Connection.receive` insists on it; Metadata and Fetch at their first flexible versions."""
    with broker.connect() as connection:
        assert connection.request(MetadataRequest(topics=[]), 9).topics == []
        assert connection.request(FetchRequest(), 12).error_code == 0


def test_unknown_tagged_fields_are_skipped(broker: Broker, topic: Topic) -> None:
    """B002, step 3: tag 1000 with three bytes, in the header, in a nested struct and in the body."""
    tag = b"\x01" + b"\xe8\x07" + b"\x03abc"  # one tag: number 1000, size 3
    name = topic.name.encode()
    body = b"\x02" + bytes(16) + bytes([len(name) + 1]) + name + tag + b"\x00\x00" + tag
    client = b"wire"
    header = struct.pack(">hhih", METADATA, 12, 5, len(client)) + client + tag
    with broker.connect() as connection:
        connection.send_raw(struct.pack(">i", len(header) + len(body)) + header + body)
        reply = connection.receive_frame()
    api = registry.by_name["Metadata"]
    answer = decode(api.response, reply, 12, offset=5, exact=True)
    assert [(row.name, row.error_code) for row in answer.topics] == [(topic.name, 0)]


def test_produce_and_join_group_are_advertised_from_0(broker: Broker) -> None:
    """B003: an older librdkafka reads its compression support from Produce 0, and its group join from JoinGroup 0."""
    assert broker.ranges[PRODUCE][0] == 0
    if JOIN_GROUP in broker.ranges:
        assert broker.ranges[JOIN_GROUP][0] == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_real_produce_below_version_3_is_refused(broker: Broker, topic: Topic, version: int) -> None:
    """B003, step 3: an error or a close, never a hang, never an append."""
    name, records = topic.name.encode(), batch()
    body = struct.pack(">hii", -1, 1000, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iii", 1, 0, len(records)) + records
    with broker.connect() as connection:
        connection.send_raw(frame(PRODUCE, version, 1, body, flexible=False))
        assert connection.closed_within(10)
    assert broker.latest(topic) == 0


def test_answers_leave_in_request_order(broker: Broker, topic: Topic) -> None:
    """B005: a parked Fetch holds back what came after it; acks=0 answers nothing."""
    fetch_version, produce_version = broker.version("Fetch"), broker.version("Produce")
    with broker.connect() as connection:
        parked = broker.fetch_request(Row(topic), version=fetch_version, max_wait_ms=500, min_bytes=1)
        connection.send(parked, fetch_version)
        connection.send(MetadataRequest(topics=[]), 9)
        unanswered = broker.produce_request(topic, batch(), version=produce_version, acks=0)
        connection.send(unanswered, produce_version, answered=False)
        connection.send(ApiVersionsRequest(), 0)
        connection.send(broker.produce_request(topic, batch(), version=produce_version, acks=1), produce_version)
        assert fetched(connection.receive()).row().error_code == 0  # each `receive` checks the correlation id
        assert connection.receive().topics == []
        assert connection.receive().error_code == 0
        assert connection.receive().responses[0].partition_responses[0].error_code == 0
    assert broker.latest(topic) == 2


def test_answers_leave_in_order_under_random_interleavings(broker: Broker, topic: Topic) -> None:
    """B005, repeated with a fixed seed: bodies from 100 bytes to 200 KB, everything written before anything is read."""
    rng = random.Random(20240601)
    version, fetch_version = broker.version("Produce"), broker.version("Fetch")
    expected_end = 0
    with broker.connect() as connection:
        for _ in range(25):
            answers = 0
            for _ in range(rng.randrange(2, 8)):
                kind = rng.randrange(4)
                if kind == 0:
                    acks = rng.choice([0, 1, -1])
                    records = batch([rng.randbytes(rng.choice([100, 4_000, 200_000]))])
                    request = broker.produce_request(topic, records, version=version, acks=acks)
                    connection.send(request, version, answered=acks != 0)
                    expected_end += 1
                    answers += acks != 0
                elif kind == 1:
                    connection.send(MetadataRequest(topics=[]), 9)
                    answers += 1
                elif kind == 2:
                    connection.send(ApiVersionsRequest(), 0)
                    answers += 1
                else:
                    rows = Row(topic, expected_end, max_bytes=1000)
                    connection.send(broker.fetch_request(rows, version=fetch_version), fetch_version)
                    answers += 1
            for _ in range(answers):
                connection.receive()
    assert broker.latest(topic) == expected_end


_TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(194)
BAD_BYTES = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "size -1": struct.pack(">i", -1) + b"xxxx",
    "size 0": struct.pack(">i", 0),
    "a size above socket.request.max.bytes": struct.pack(">i", 104_857_601) + b"xxxx",
    "a header of six bytes": struct.pack(">i", 6) + b"\x00\x12\x00\x00\x00\x00",
    "an unknown api key": frame(9999, 0, 1, b"", flexible=False),
    "a TLS hello": _TLS_HELLO,
    "Produce version 100": frame(PRODUCE, 100, 1, bytes(40), flexible=True),
    "a Metadata body that ends early": frame(METADATA, 1, 1, b"\x00\x00\x00\x05\x00", flexible=False),
    "an array longer than the frame": frame(METADATA, 1, 1, b"\x7f\xff\xff\xff", flexible=False),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bytes_that_are_not_kafka_cost_one_connection(broker: Broker, name: str) -> None:
    """B006: closed, and a client beside it notices nothing."""
    with broker.connect() as healthy, broker.connect() as bad:
        bad.send_raw(BAD_BYTES[name])
        assert bad.closed_within(10), f"{name}: the connection stays open"
        assert healthy.request(ApiVersionsRequest(), 0).error_code == 0


def test_a_client_id_of_negative_length_hangs_nobody(broker: Broker) -> None:
    """B006 (e): refused, or read as null as Kafka does (FINDINGS); either way at once."""
    with broker.connect() as connection:
        connection.send_raw(struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -7530))
        with contextlib.suppress(ConnectionError):  # closed
            assert connection.receive_frame()[:6] == struct.pack(">ih", 1, 0)


def test_a_size_without_bytes_affects_nobody_else(broker: Broker) -> None:
    """B006 (g): 20 connections announce 5 MB each and send nothing; others are served."""
    silent = [broker.connect() for _ in range(20)]
    try:
        for connection in silent:
            connection.send_raw(struct.pack(">i", 5_000_000))
        with broker.connect() as healthy:
            for _ in range(20):
                assert healthy.request(ApiVersionsRequest(), 0).error_code == 0
    finally:
        for connection in silent:
            connection.close()


def test_a_request_in_single_bytes_is_one_request(broker: Broker) -> None:
    """Split anywhere, joined anywhere: TCP has no frames."""
    data = frames.request_frame(registry.by_name["Metadata"], 9, 3, "wire", MetadataRequest(topics=[]))
    with broker.connect() as connection:
        for position in range(len(data)):
            connection.send_raw(data[position : position + 1])
        assert connection.receive_frame()[:4] == struct.pack(">i", 3)
        connection.send_raw(data * 3)
        for _ in range(3):
            assert connection.receive_frame()[:4] == struct.pack(">i", 3)


def test_every_advertised_range_is_sane(broker: Broker) -> None:
    """No key twice, no empty range; what is advertised at all includes ApiVersions itself."""
    with Connection(broker.address) as connection:
        rows = connection.request(ApiVersionsRequest(), 0).api_keys
    assert len({row.api_key for row in rows}) == len(rows)
    assert all(0 <= row.min_version <= row.max_version for row in rows)
    assert API_VERSIONS in broker.ranges and FETCH in broker.ranges
