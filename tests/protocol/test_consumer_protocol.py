"""Subscriptions and assignments: bytes that other clients sent, and Kafka's rule for versions nobody knows yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kmirror.errors import DecodeError
from kmirror.protocol import frames, registry
from kmirror.protocol.compile import decode
from kmirror.protocol.internal.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    SubscribedTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

GOLDEN = Path(__file__).parent / "golden"


def requests(client: str, api: str) -> list[Any]:
    """The requests of one kind that were recorded between `client` and Apache Kafka 4.4.0."""
    found = []
    for frame in json.loads((GOLDEN / f"{client}.json").read_text())["frames"]:
        if frame["api"] == api and frame["direction"] == "request":
            data = bytes.fromhex(frame["hex"])
            _, body = frames.parse_request_header(data)
            found.append(decode(registry.by_name[api].request, data, frame["version"], offset=body))
    return found


@pytest.mark.parametrize("client", ["kafka-clients-java", "librdkafka", "aiokafka", "kafka-python"])
def test_what_other_clients_send_is_read_and_written_alike(client: str) -> None:
    joins, syncs = requests(client, "JoinGroup"), requests(client, "SyncGroup")
    metadata = [bytes(protocol.metadata) for join in joins for protocol in join.protocols]
    assigned = [bytes(item.assignment) for sync in syncs for item in sync.assignments]
    assert metadata
    assert assigned
    for data in metadata:
        subscription = decode_subscription(data)
        assert subscription.topics
        assert encode_subscription(subscription, data[1]) == data
    for data in assigned:
        assignment = decode_assignment(data)
        assert [topic.partitions for topic in assignment.assigned_partitions]
        assert encode_assignment(assignment, data[1]) == data


def test_javas_subscription_field_by_field() -> None:
    join = requests("kafka-clients-java", "JoinGroup")[0]
    sticky = next(protocol for protocol in join.protocols if protocol.name == "cooperative-sticky")
    assert decode_subscription(sticky.metadata) == ConsumerProtocolSubscription(
        topics=["java-topic"], user_data=b"\xff\xff\xff\xff", owned_partitions=[], generation_id=-1, rack_id=None
    )


def test_bytes_as_kafka_writes_them() -> None:
    subscription = ConsumerProtocolSubscription(
        topics=["a", "bc"],
        owned_partitions=[SubscribedTopicPartitions(topic="a", partitions=[1])],
        generation_id=5,
        rack_id="r",
    )
    assert encode_subscription(subscription).hex() == "0000" + "00000002" + "000161" + "00026263" + "ffffffff"
    assert encode_subscription(subscription, 3).hex() == (
        "0003" + "00000002" + "000161" + "00026263" + "ffffffff" + "00000001" + "000161" + "00000001" + "00000001"
        "00000005" + "000172"
    )
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[AssignedTopicPartitions(topic="a", partitions=[0, 2])], user_data=b"x"
    )
    assert encode_assignment(assignment).hex() == (
        "0000" + "00000001" + "000161" + "00000002" + "00000000" + "00000002" + "00000001" + "78"
    )


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    data = bytearray(encode_subscription(ConsumerProtocolSubscription(topics=["t"], rack_id="r"), 3))
    data[:2] = (9).to_bytes(2, "big")
    assert decode_subscription(bytes(data) + b"whatever comes then").rack_id == "r"


def test_no_bytes_are_no_partitions_and_rubbish_is_refused() -> None:
    assert decode_assignment(b"") == ConsumerProtocolAssignment()
    for data in (b"\0", b"\xff\xff\0\0\0\0", b"\0\0\0\0\0\2\0\1a"):
        with pytest.raises(DecodeError):
            decode_subscription(data)
        with pytest.raises(DecodeError):
            decode_assignment(data)
