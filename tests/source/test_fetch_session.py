"""The client's half of KIP-227, against the rules of Kafka's FetchSessionHandler."""

from __future__ import annotations

from typing import Any

from kmirror.broker.mirror_seam import FetchItem, Lease
from kmirror.protocol import uuids
from kmirror.protocol.api.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kmirror.protocol.errors import ErrorCode
from kmirror.source.fetch_session import FetchSession, has_ids

IDS = {"a": b"a" * 16, "b": b"b" * 16}


def item(topic: str, partition: int, offset: int = 0, *, topic_id: bytes | None = None, epoch: int = 3) -> FetchItem:
    return FetchItem(
        mirror="m",
        topic=topic,
        topic_id=IDS[topic] if topic_id is None else topic_id,
        partition=partition,
        broker_id=1,
        fetch_offset=offset,
        source_leader_epoch=epoch,
        log_start_offset=-1,
        max_bytes=1000,
        lease=Lease(machine=None, number=0, generation=0, offset=offset),
    )


def answer(session_id: int, *rows: tuple[str, int, bytes], by_id: bool = True) -> FetchResponse:
    return FetchResponse(
        session_id=session_id,
        responses=[
            FetchableTopicResponse(
                **({"topic_id": IDS[topic]} if by_id else {"topic": topic}),
                partitions=[PartitionData(partition_index=index, records=records)],
            )
            for topic, index, records in rows
        ],
    )


def named(request: Any) -> list[tuple[bytes | str, int, int]]:
    return [
        (topic.topic or topic.topic_id, part.partition, part.fetch_offset)
        for topic in request.topics
        for part in topic.partitions
    ]


def test_names_everything_first_and_then_only_what_changed() -> None:
    session = FetchSession()
    request = session.request([item("a", 0), item("a", 1), item("b", 0)], 13)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert named(request) == [(IDS["a"], 0, 0), (IDS["a"], 1, 0), (IDS["b"], 0, 0)]
    found = session.take(answer(77, ("a", 0, b"x"), ("a", 1, b""), ("b", 0, b"")))
    assert [(one.topic, one.partition) for one, _ in found] == [("a", 0), ("a", 1), ("b", 0)]

    request = session.request([item("a", 0, 5), item("a", 1), item("b", 0)], 13)
    assert (request.session_id, request.session_epoch) == (77, 1)
    assert named(request) == [(IDS["a"], 0, 5)]
    assert request.forgotten_topics_data == []
    assert session.take(answer(77)) == []

    request = session.request([item("a", 0, 5), item("b", 0, epoch=4)], 13)
    assert request.session_epoch == 2
    assert named(request) == [(IDS["b"], 0, 0)]
    assert [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data] == [(IDS["a"], [1])]


def test_an_answer_is_matched_with_the_newest_item_of_its_partition() -> None:
    session = FetchSession()
    session.request([item("a", 0)], 13)
    session.take(answer(1, ("a", 0, b"")))
    newest = item("a", 0)
    session.request([newest], 13)
    ((found, data),) = session.take(answer(1, ("a", 0, b"abc")))
    assert found is newest and data.records == b"abc"


def test_a_recreated_topic_leaves_the_session_under_its_old_id() -> None:
    session = FetchSession()
    session.request([item("a", 0)], 13)
    session.take(answer(1, ("a", 0, b"")))
    request = session.request([item("a", 0, topic_id=b"n" * 16)], 13)
    assert named(request) == [(b"n" * 16, 0, 0)]
    assert [topic.topic_id for topic in request.forgotten_topics_data] == [IDS["a"]]


def test_names_below_version_13_and_a_new_session_when_that_changes() -> None:
    session = FetchSession()
    request = session.request([item("a", 0)], 10)
    assert named(request) == [("a", 0, 0)]
    assert session.take(answer(9, ("a", 0, b""), by_id=False))[0][0].topic == "a"
    request = session.request([item("a", 0)], 13)
    assert (request.session_id, request.session_epoch) == (9, 0)  # closes the old one, asks for a new one
    assert named(request) == [(IDS["a"], 0, 0)]
    assert not has_ids([item("a", 0), item("b", 0, topic_id=uuids.ZERO)])


def test_a_lost_session_is_begun_anew() -> None:
    for code, kept_id in (
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 5),
    ):
        session = FetchSession()
        session.request([item("a", 0)], 13)
        session.take(answer(5, ("a", 0, b"")))
        session.request([item("a", 0, 1)], 13)
        assert session.take(FetchResponse(error_code=code)) == []
        request = session.request([item("a", 0, 1)], 13)
        assert (request.session_id, request.session_epoch) == (kept_id, 0)
        assert named(request) == [(IDS["a"], 0, 1)]


def test_an_answer_about_somebody_else_drops_the_whole_answer() -> None:
    session = FetchSession()
    session.request([item("a", 0)], 13)
    assert session.take(answer(5, ("a", 0, b"x"), ("b", 0, b"y"))) == []
    assert session.request([item("a", 0)], 13).session_epoch == 0


def test_without_a_session_who_was_served_goes_to_the_end() -> None:
    session = FetchSession()
    items = [item("a", 0), item("a", 1), item("b", 0)]
    session.request(items, 13)
    session.take(answer(0, ("a", 0, b"x"), ("a", 1, b""), ("b", 0, b"")))  # session id 0: the broker's cache is full
    request = session.request(items, 13)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert named(request)[-1] == (IDS["a"], 0, 0) or named(request)[0] == (IDS["a"], 1, 0)


def test_the_epoch_wraps_to_one() -> None:
    session = FetchSession()
    session.request([item("a", 0)], 13)
    session.take(answer(5, ("a", 0, b"")))
    session.epoch = 0x7FFFFFFF
    session.take(answer(5))
    assert session.epoch == 1
