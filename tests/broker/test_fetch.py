"""Fetch: sessions, the partition loop, and what an answer holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kmirror.broker.fetch import FETCH_CODES, FetchContext, Gathered, next_epoch
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from kmirror.protocol.compile import encode_pieces
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import parse_header
from tests.broker.harness import Broker

Rows = Mapping[tuple[str, int], int]


class Fetcher:
    """Sends Fetch requests by topic name or by id, and reads answers back as {(topic, partition): row}."""

    def __init__(self, broker: Broker, version: int = 13) -> None:
        self.broker = broker
        self.version = version
        self.ids: dict[str, bytes] = {}

    def request(self, rows: Rows, *, forget: Rows | None = None, **fields: Any) -> FetchRequest:
        partition_max_bytes = fields.pop("partition_max_bytes", 1 << 20)
        topics = [
            FetchTopic(
                topic=topic,
                topic_id=self.topic_id(topic),
                partitions=[
                    FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
                ],
            )
            for (topic, index), offset in rows.items()
        ]
        forgotten = [
            ForgottenTopic(topic=topic, topic_id=self.topic_id(topic), partitions=[index])
            for topic, index in (forget or {})
        ]
        values: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, "topics": topics, **fields}
        return FetchRequest(forgotten_topics_data=forgotten, **values)

    def topic_id(self, topic: str) -> bytes:
        known = self.broker.world.image.topics_by_name.get(topic)
        if known is not None:
            self.ids[topic] = known.topic_id
        return self.ids.get(topic, bytes(15) + b"\x63")

    def begin(self, rows: Rows, **fields: Any) -> tuple[FetchContext, Gathered]:
        context = self.broker.world.fetch_sessions.begin(self.broker.world, self.request(rows, **fields), self.version)
        return context, context.gather()

    def fetch(self, rows: Rows, **fields: Any) -> FetchResponse:
        context, gathered = self.begin(rows, **fields)
        response = context.respond(gathered)
        encode_pieces(response, self.version, [])
        return response

    def rows(self, response: FetchResponse) -> dict[tuple[str, int], Any]:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return {
            (names.get(bytes(topic.topic_id), "?") if self.version >= 13 else topic.topic, row.partition_index): row
            for topic in response.responses
            for row in topic.partitions
        }


def bytes_of(row: Any) -> bytes:
    return b"".join(piece.read() for piece in row.records)


def with_data() -> tuple[Broker, Fetcher]:
    broker = Broker()
    broker.create("t", 2)
    for index in (0, 1):
        for _ in range(3):
            broker.produce("t", b"v" * 100, index=index)
    return broker, Fetcher(broker)


def test_good_rows_are_complete_and_error_rows_are_empty() -> None:
    """B014, B015: at every version, for every kind of row."""
    for version in (4, 5, 10, 11, 12, 13, 18):
        broker, fetcher = with_data()
        fetcher.version = version
        broker.world.delete_records("t", 0, 1)
        asked = {("t", 0): 1, ("t", 1): 3, ("t", 9): 0, ("absent", 0): 0}
        rows = fetcher.rows(fetcher.fetch(asked, session_epoch=-1))
        good = rows["t", 0]
        assert (good.error_code, good.high_watermark, good.last_stable_offset, good.log_start_offset) == (0, 3, 3, 1)
        assert parse_header(bytes_of(good)).base_offset == 1
        caught_up = rows["t", 1]
        assert (caught_up.error_code, caught_up.high_watermark, caught_up.log_start_offset) == (0, 3, 0)
        assert bytes_of(caught_up) == b""
        bad = rows["t", 9]
        assert (bad.error_code, bad.high_watermark, bytes_of(bad)) == (3, -1, b"")
        unknown = [row for row in rows.values() if row.error_code == (100 if version >= 13 else 3)]
        assert unknown
        assert good.aborted_transactions is None
        committed = fetcher.rows(fetcher.fetch({("t", 1): 3}, session_epoch=-1, isolation_level=1))["t", 1]
        assert committed.aborted_transactions == []


def test_first_batch_larger_than_every_limit() -> None:
    """B012."""
    broker = Broker()
    broker.create("t", 2)
    for index in (0, 1):
        broker.produce("t", b"x" * 500_000, index=index)
    fetcher = Fetcher(broker, 12)
    rows = fetcher.rows(fetcher.fetch({("t", 0): 0, ("t", 1): 0}, max_bytes=1, partition_max_bytes=1))
    assert len(bytes_of(rows["t", 0])) > 500_000
    assert (bytes_of(rows["t", 1]), rows["t", 1].high_watermark) == (b"", 1)
    rows = fetcher.rows(fetcher.fetch({("t", 0): 0, ("t", 1): 0}, max_bytes=600_000, partition_max_bytes=1))
    assert len(bytes_of(rows["t", 0])) > 500_000


def test_the_brokers_own_limit_holds() -> None:
    broker = Broker({"fetch.max.bytes": "1024"})
    broker.create("t", 1)
    for _ in range(5):
        broker.produce("t", b"x" * 400)
    rows = (fetcher := Fetcher(broker)).rows(fetcher.fetch({("t", 0): 0}))
    assert 0 < len(bytes_of(rows["t", 0])) <= 1024


def test_when_to_answer() -> None:
    """B021: enough bytes, an error, nothing to wait for, or no time to wait."""
    broker, fetcher = with_data()
    idle, busy = {("t", 0): 3}, {("t", 1): 0}
    assert not fetcher.begin(idle)[1].ready
    assert fetcher.begin(idle, max_wait_ms=0)[1].ready
    assert fetcher.begin(idle, min_bytes=0)[1].ready
    assert fetcher.begin({**idle, **busy})[1].ready
    assert not fetcher.begin(busy, min_bytes=100_000)[1].ready
    assert fetcher.begin({**idle, ("t", 1): 9})[1].ready, "reading failed"
    assert fetcher.begin({})[1].ready
    absent = {("t", 9): 0, ("no such topic", 0): 0}
    assert fetcher.begin(absent)[1].ready
    context, gathered = fetcher.begin({**absent, **idle})
    assert not gathered.ready, "what is not here was set aside before anything was read"
    told = [row for topic in context.respond(gathered).responses for row in topic.partitions]
    assert [row.error_code for row in told] == [0, 100, 3], "and is last"
    assert [row.aborted_transactions for row in told] == [None, [], []]
    context, gathered = fetcher.begin(idle)
    woken: list[int] = []
    context.subscribe(gathered, lambda: woken.append(1))
    broker.produce("t", b"other partition", index=1)
    assert woken == []
    broker.produce("t", b"v")
    assert woken == [1]
    assert context.gather().ready
    context.unsubscribe()
    broker.produce("t", b"v")
    assert woken == [1]


def test_parked_fetches_hear_of_a_deletion_and_answer_with_a_known_code() -> None:
    """B016."""
    broker, fetcher = with_data()
    context, gathered = fetcher.begin({("t", 0): 3}, session_epoch=-1)
    woken: list[int] = []
    context.subscribe(gathered, lambda: woken.append(1))
    broker.settle(broker.world.delete_topic("t"))
    assert woken
    again = context.gather()
    assert again.ready
    (row,) = fetcher.rows(context.respond(again)).values()
    assert row.error_code in FETCH_CODES
    assert row.error_code == 3, "its id was known when the request came"


def test_sessions_step_by_step() -> None:
    """B017, by name and by id."""
    for version in (10, 13):
        broker, fetcher = with_data()
        fetcher.version = version
        first = fetcher.fetch({("t", 0): 0, ("t", 1): 0}, session_epoch=0)
        session = first.session_id
        assert session > 0
        assert len(fetcher.rows(first)) == 2
        second = fetcher.rows(fetcher.fetch({("t", 0): 2}, session_id=session, session_epoch=1))
        assert parse_header(bytes_of(second["t", 0])).base_offset == 2
        third = fetcher.fetch({}, forget={("t", 0): 0}, session_id=session, session_epoch=2)
        assert ("t", 0) not in fetcher.rows(third)
        for epoch in (3, 4, 5):
            rows = fetcher.rows(fetcher.fetch({}, session_id=session, session_epoch=epoch))
            assert list(rows) == [("t", 1)], "it has data, and nobody moved it on"
        assert fetcher.fetch({}, session_id=session, session_epoch=9).error_code == 71
        assert fetcher.fetch({}, session_id=session + 1, session_epoch=1).error_code == 70
        empty = fetcher.fetch({}, forget={("t", 1): 0}, session_id=session, session_epoch=6)
        assert (empty.error_code, empty.session_id, empty.responses) == (0, 0, [])
        assert fetcher.fetch({}, session_id=session, session_epoch=7).error_code == 70
        other = fetcher.fetch({("t", 0): 0}, session_epoch=0).session_id
        final = fetcher.fetch({("t", 0): 0}, session_id=other, session_epoch=-1)
        assert (final.session_id, len(fetcher.rows(final))) == (0, 1)
        assert fetcher.fetch({}, session_id=other, session_epoch=1).error_code == 70
        broker.world.close()


def test_incremental_answers_hold_what_changed() -> None:
    broker, fetcher = with_data()
    session = fetcher.fetch({("t", 0): 3, ("t", 1): 3}, session_epoch=0).session_id
    assert fetcher.rows(fetcher.fetch({}, session_id=session, session_epoch=1)) == {}
    broker.world.delete_records("t", 1, 2)
    rows = fetcher.rows(fetcher.fetch({}, session_id=session, session_epoch=2))
    assert [(key, row.log_start_offset) for key, row in rows.items()] == [(("t", 1), 2)]
    broker.produce("t", b"new")
    rows = fetcher.rows(fetcher.fetch({}, session_id=session, session_epoch=3))
    assert list(rows) == [("t", 0)]
    rows = fetcher.rows(fetcher.fetch({("t", 0): 4}, session_id=session, session_epoch=4))
    assert rows == {}
    rows = fetcher.rows(fetcher.fetch({("t", 0): 99}, session_id=session, session_epoch=5))
    assert rows["t", 0].error_code == 1
    rows = fetcher.rows(fetcher.fetch({("t", 0): 4}, session_id=session, session_epoch=6))
    assert list(rows) == [("t", 0)], "sent again when the error is gone"


def test_rows_with_data_are_served_last_next_time() -> None:
    broker, fetcher = with_data()
    session = fetcher.fetch({("t", 0): 0, ("t", 1): 0}, session_epoch=0).session_id
    first = fetcher.rows(fetcher.fetch({}, session_id=session, session_epoch=1, max_bytes=1))
    second = fetcher.rows(fetcher.fetch({}, session_id=session, session_epoch=2, max_bytes=1))
    assert [key for key, row in first.items() if row.records] == [("t", 0)]
    assert [key for key, row in second.items() if row.records] == [("t", 1)]
    assert broker.world.fetch_sessions


def test_a_recreated_topic_is_unknown_to_a_session_by_id() -> None:
    broker, fetcher = with_data()
    session = fetcher.fetch({("t", 0): 3}, session_epoch=0).session_id
    broker.settle(broker.world.delete_topic("t"))
    broker.create("t", 1)
    rows = list(fetcher.rows(fetcher.fetch({}, session_id=session, session_epoch=1)).values())
    assert [row.error_code for row in rows] == [3], "the session remembers what the id stood for"


def test_names_and_ids_do_not_mix_in_a_session() -> None:
    _broker, fetcher = with_data()
    session = fetcher.fetch({("t", 0): 0}, session_epoch=0).session_id
    fetcher.version = 12
    assert fetcher.fetch({}, session_id=session, session_epoch=1).error_code == 106


def test_slots_and_eviction() -> None:
    broker = Broker({"max.incremental.fetch.session.cache.slots": "2"})
    broker.create("t", 3)
    fetcher = Fetcher(broker)
    small = {("t", 0): 0}
    large = {("t", 0): 0, ("t", 1): 0}
    a = fetcher.fetch(small, session_epoch=0).session_id
    b = fetcher.fetch(small, session_epoch=0).session_id
    assert a
    assert b
    assert fetcher.fetch(large, session_epoch=0).session_id == 0, "no room, and nobody is old"
    broker.clock.advance(120_001)
    fetcher.fetch({}, session_id=a, session_epoch=1)
    fetcher.fetch({}, session_id=b, session_epoch=1)
    assert fetcher.fetch(small, session_epoch=0).session_id == 0, "not larger than the smallest"
    assert fetcher.fetch(large, session_epoch=0).session_id > 0
    assert len(broker.world.fetch_sessions) == 2
    broker.clock.advance(120_001)
    assert fetcher.fetch(small, session_epoch=0).session_id > 0, "the longest unused one gives way"
    off = Broker({"max.incremental.fetch.session.cache.slots": "0"})
    off.create("t", 1)
    assert (away := Fetcher(off)).fetch(small, session_epoch=0).session_id == 0
    assert away


def test_fenced_rows_name_the_leader() -> None:
    broker, fetcher = with_data()
    partition = broker.world.partition("t", 0)
    broker.settle(broker.world.bump_leader_epoch(partition, 4))
    request = fetcher.request({("t", 0): 0}, session_epoch=-1)
    request.topics[0].partitions[0].current_leader_epoch = 1
    context = broker.world.fetch_sessions.begin(broker.world, request, 16)
    (row,) = fetcher.rows(context.respond(context.gather())).values()
    assert (row.error_code, row.current_leader.leader_id, row.current_leader.leader_epoch) == (74, 1, 5)


def test_diverging_rows_say_where() -> None:
    broker, fetcher = with_data()
    request = fetcher.request({("t", 0): 3}, session_epoch=-1)
    request.topics[0].partitions[0].last_fetched_epoch = 0
    request.topics[0].partitions[0].fetch_offset = 50
    context = broker.world.fetch_sessions.begin(broker.world, request, 13)
    gathered = context.gather()
    assert gathered.ready
    (row,) = fetcher.rows(context.respond(gathered)).values()
    assert (row.error_code, row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 0, 3)


def test_zstd_topics_and_old_fetchers() -> None:
    """B008: an error with empty records, not null ones."""
    broker = Broker()
    broker.create("t", 1, compression__type="zstd")
    broker.produce("t", b"v")
    fetcher = Fetcher(broker, 9)
    row = fetcher.rows(fetcher.fetch({("t", 0): 0}))["t", 0]
    assert (row.error_code, bytes_of(row)) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")
    fetcher.version = 10
    assert bytes_of(fetcher.rows(fetcher.fetch({("t", 0): 0}))["t", 0])


def test_epoch_arithmetic() -> None:
    assert [next_epoch(epoch) for epoch in (-1, 0, 1, 2**31 - 1)] == [-1, 1, 2, 1]
