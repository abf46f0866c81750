"""Fetch: limits, watermarks, waiting, sessions and the edges of the log (B012 to B021)."""

from __future__ import annotations

import threading
import time

import pytest

from conformance.wire.batches import batch
from conformance.wire.client import Broker, Row, Topic, fetched
from kmirror.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState

OUT_OF_RANGE, UNKNOWN_TOPIC, FENCED_EPOCH, UNKNOWN_EPOCH, UNKNOWN_ID = 1, 3, 74, 75, 100
SESSION_NOT_FOUND, BAD_SESSION_EPOCH = 70, 71
ALLOWED_CODES = {0, 1, 2, 3, 6, 9, 29, 56, 74, 75, 78, 100, 103, -1}
VERSIONS = list(range(4, 19))


@pytest.mark.parametrize("version", [4, 12])
def test_a_first_batch_above_every_limit_comes_whole(broker: Broker, topic: Topic, version: int) -> None:
    """B012 (KIP-74)."""
    version = broker.version("Fetch", version)
    for _ in range(2):
        broker.produce(topic, batch([b"x" * 500_000]))
    for offset in (0, 1):
        found = broker.fetch(Row(topic, offset, max_bytes=1), max_bytes=1, version=version).batches()
        assert [(entry.base_offset, entry.crc_ok) for entry in found] == [(offset, True)]
    found = broker.fetch(Row(topic, 0, max_bytes=1), max_bytes=600_000, version=version).batches()
    assert [entry.base_offset for entry in found] == [0]


def test_only_the_first_partition_may_exceed_the_limit(broker: Broker) -> None:
    topic = broker.create_topic(partition_count=2)
    for partition in (0, 1):
        broker.produce(topic, batch([b"x" * 10_000]), partition=partition)
    answer = broker.fetch(Row(topic, 0, 0, max_bytes=100), Row(topic, 0, 1, max_bytes=100), max_bytes=100)
    sizes = sorted(len(row.records or b"") for row in answer.rows.values())
    assert sizes[0] == 0 and sizes[1] > 10_000


@pytest.mark.parametrize("version", VERSIONS)
def test_watermarks_and_records_on_every_row(broker: Broker, topic: Topic, version: int) -> None:
    """B014 and B015: HW >= LSO >= log start >= 0 on good rows; records are never null, on any row."""
    version = broker.version("Fetch", version)
    broker.produce(topic, batch([b"a", b"b", b"c"]))
    for isolation_level in (0, 1):
        for offset, wait_ms in ((0, 0), (3, 0), (3, 20)):
            options = {"max_wait_ms": wait_ms, "min_bytes": int(wait_ms > 0), "isolation_level": isolation_level}
            row = broker.fetch(Row(topic, offset), version=version, **options).row()  # type: ignore[arg-type]
            assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, 3, 3)
            assert row.records is not None
            if version >= 5:
                assert row.log_start_offset == 0
            if isolation_level == 0:
                assert row.aborted_transactions is None or version < 4
            else:
                assert row.aborted_transactions in ([], None)
    bad_rows = [Row(topic, 99), Row(topic, -1), Row(topic, 0, partition=9)]
    if version >= 9:
        bad_rows.append(Row(topic, 0, current_leader_epoch=99))
    for bad in bad_rows:
        row = broker.fetch(bad, version=version).row()
        assert row.records is not None and len(row.records) == 0, (bad, row)


def test_error_codes_of_single_rows(broker: Broker, topic: Topic) -> None:
    """B019, last part, and the fencing of B030: the edges of the log and of the epochs."""
    broker.produce(topic, batch([b"a", b"b", b"c"]))
    epoch = broker.describe_topic(topic.name).partitions[0].leader_epoch
    cases = {
        "the end": (Row(topic, 3), 0),
        "beyond the end": (Row(topic, 4), OUT_OF_RANGE),
        "a negative offset": (Row(topic, -1), OUT_OF_RANGE),
        "an unknown partition": (Row(topic, 0, partition=9), UNKNOWN_TOPIC),
        "the current epoch": (Row(topic, 0, current_leader_epoch=epoch), 0),
        "a newer epoch": (Row(topic, 0, current_leader_epoch=epoch + 1), UNKNOWN_EPOCH),
    }
    if epoch > 0:
        cases["an older epoch"] = (Row(topic, 0, current_leader_epoch=epoch - 1), FENCED_EPOCH)
    for name, (asked, code) in cases.items():
        assert broker.fetch(asked).row().error_code == code, name


def test_an_unknown_topic_id_costs_its_row_only(broker: Broker, topic: Topic) -> None:
    version = broker.version("Fetch")
    if version < 13:
        pytest.skip("this broker has no topic ids in Fetch")
    broker.produce(topic, batch())
    answer = broker.fetch(Row(Topic("", bytes(range(1, 17)), 1)), Row(topic))
    assert answer.error_code == 0
    assert sorted(row.error_code for row in answer.rows.values()) == [0, UNKNOWN_ID]


def test_fetch_from_the_middle_of_a_batch(broker: Broker, topic: Topic) -> None:
    """The batch that contains the offset comes whole."""
    broker.produce(topic, batch([b"v"] * 10))
    broker.produce(topic, batch([b"v"] * 10))
    for offset, base in ((0, 0), (5, 0), (9, 0), (10, 10), (15, 10)):
        assert broker.fetch(Row(topic, offset)).batches()[0].base_offset == base


# --- waiting


def test_an_idle_fetch_waits_for_max_wait(broker: Broker, topic: Topic) -> None:
    """B021: about max_wait, not at once and not for ever; min_bytes 0 does not wait."""
    answer = broker.fetch(Row(topic), min_bytes=1, max_wait_ms=400)
    assert 0.3 < answer.seconds < 3 and answer.row().error_code == 0
    assert broker.fetch(Row(topic), min_bytes=0, max_wait_ms=5000).seconds < 1


def test_a_produce_wakes_a_parked_fetch(broker: Broker, topic: Topic) -> None:
    """B021: far sooner than max_wait."""
    version = broker.version("Fetch")
    with broker.connect() as connection:
        connection.send(broker.fetch_request(Row(topic), version=version, min_bytes=1, max_wait_ms=15_000), version)
        time.sleep(0.2)  # parked by now
        started = time.monotonic()
        broker.produce(topic, batch([b"wake"]))
        row = fetched(connection.receive()).row()
        assert time.monotonic() - started < 3
    assert row.error_code == 0 and len(row.records or b"") > 0


def test_too_few_bytes_come_when_the_wait_ends(broker: Broker, topic: Topic) -> None:
    """B021: 1 KB is there, 100 KB are asked for."""
    broker.produce(topic, batch([b"x" * 1000]))
    answer = broker.fetch(Row(topic), min_bytes=100_000, max_wait_ms=400)
    assert answer.seconds > 0.3 and len(answer.batches()) == 1


def test_a_row_in_error_ends_the_wait(broker: Broker, topic: Topic) -> None:
    """B021: an offset out of range, a wrong epoch, or one partition with data beside an idle one. (A partition that
    does not exist ends Kafka's wait only when it is alone: FINDINGS.)"""
    other = broker.create_topic(partition_count=2)
    for bad in (Row(other, 99, 1), Row(other, 0, 1, current_leader_epoch=99)):
        assert broker.fetch(Row(other, 0, 0), bad, min_bytes=1, max_wait_ms=10_000).seconds < 3
    assert broker.fetch(Row(topic, 0, partition=5), min_bytes=1, max_wait_ms=10_000).seconds < 3
    broker.produce(other, batch(), partition=1)
    answer = broker.fetch(Row(other, 0, 0), Row(other, 0, 1), min_bytes=1, max_wait_ms=10_000)
    assert answer.seconds < 3 and sum(len(row.records or b"") for row in answer.rows.values()) > 0


def test_parked_fetches_answer_only_codes_that_fetch_may_carry(broker: Broker) -> None:
    """B016: a topic deleted under ten parked fetches."""
    version = broker.version("Fetch")
    for _ in range(3):
        topic = broker.create_topic()
        connections = [broker.connect() for _ in range(10)]
        for connection in connections:
            parked = broker.fetch_request(Row(topic), version=version, min_bytes=1, max_wait_ms=3000)
            connection.send(parked, version)
        delete_version = broker.version("DeleteTopics")
        request = DeleteTopicsRequest(timeout_ms=10_000)
        if delete_version >= 6:
            request.topics = [DeleteTopicState(name=topic.name)]
        else:
            request.topic_names = [topic.name]
        broker.request(request, delete_version)
        for connection in connections:
            answer = fetched(connection.receive())
            codes = {answer.error_code} | {row.error_code for row in answer.rows.values()}
            assert codes <= ALLOWED_CODES, codes
            connection.close()


def test_concurrent_readers_see_only_whole_batches(broker: Broker, topic: Topic) -> None:
    """Readers at the end of a log that grows: contiguous offsets, right CRCs."""
    problems: list[str] = []
    total = 300

    def read() -> None:
        offset = 0
        with broker.connect() as connection:
            deadline = time.monotonic() + 30
            while offset < total and time.monotonic() < deadline:
                answer = broker.fetch(Row(topic, offset), min_bytes=1, max_wait_ms=500, connection=connection)
                for entry in answer.batches():
                    if entry.base_offset != offset or not entry.crc_ok:
                        problems.append(f"expected {offset}, got {entry}")
                    offset = entry.last_offset + 1
        if offset != total:
            problems.append(f"stopped at {offset}")

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    with broker.connect() as connection:
        for _ in range(total // 3):
            broker.produce(topic, batch([b"x" * 50] * 3), connection=connection)
    for reader in readers:
        reader.join(40)
    assert problems == []


# --- sessions (B017, KIP-227)


@pytest.mark.parametrize("version", [10, 13])
def test_an_incremental_session(broker: Broker, version: int) -> None:
    """B017: changed offsets, forgotten partitions, wrong epochs, an empty session, closing."""
    version = broker.version("Fetch", version)
    topic = broker.create_topic(partition_count=2)
    for partition in (0, 1):
        for _ in range(2):
            broker.produce(topic, batch([b"v"] * 500), partition=partition)
    with broker.connect() as connection:
        options = {"version": version, "connection": connection}
        first = broker.fetch(Row(topic, 0, 0), Row(topic, 0, 1), session_id=0, session_epoch=0, **options)  # type: ignore[arg-type]
        session = first.session_id
        assert first.error_code == 0 and session > 0 and len(first.rows) == 2
        moved = broker.fetch(Row(topic, 600, 0), session_id=session, session_epoch=1, **options)  # type: ignore[arg-type]
        bases = {key[1]: fetched_base(row) for key, row in moved.rows.items()}
        assert bases[0] == 500
        forgotten = broker.fetch(session_id=session, session_epoch=2, forget=[(topic, 0)], **options)  # type: ignore[arg-type]
        assert forgotten.error_code == 0 and all(key[1] != 0 for key in forgotten.rows)
        for epoch in (3, 4, 5):
            again = broker.fetch(session_id=session, session_epoch=epoch, **options)  # type: ignore[arg-type]
            assert again.error_code == 0 and all(key[1] != 0 for key in again.rows)
        assert broker.fetch(session_id=session, session_epoch=9, **options).error_code == BAD_SESSION_EPOCH  # type: ignore[arg-type]
        unknown = broker.fetch(session_id=session + 1, session_epoch=1, **options)  # type: ignore[arg-type]
        assert unknown.error_code == SESSION_NOT_FOUND
        emptied = broker.fetch(session_id=session, session_epoch=6, forget=[(topic, 1)], **options)  # type: ignore[arg-type]
        assert emptied.error_code == 0
        gone = broker.fetch(session_id=session, session_epoch=7, **options)  # type: ignore[arg-type]
        assert gone.error_code == SESSION_NOT_FOUND
        second = broker.fetch(Row(topic, 0, 0), session_id=0, session_epoch=0, **options)  # type: ignore[arg-type]
        assert second.session_id > 0
        full = broker.fetch(Row(topic, 0, 0), session_id=second.session_id, session_epoch=-1, **options)  # type: ignore[arg-type]
        assert (full.error_code, full.session_id, len(full.rows)) == (0, 0, 1)
        closed = broker.fetch(session_id=second.session_id, session_epoch=1, **options)  # type: ignore[arg-type]
        assert closed.error_code == SESSION_NOT_FOUND


def fetched_base(row: object) -> int | None:
    from conformance.wire.batches import parse

    found = parse(row.records or b"")  # type: ignore[attr-defined]
    return found[0].base_offset if found else None


def test_an_unchanged_partition_is_left_out(broker: Broker) -> None:
    """B014: in an incremental session a caught-up partition has no row; it comes back with new data."""
    topic = broker.create_topic(partition_count=2)
    with broker.connect() as connection:
        first = broker.fetch(Row(topic, 0, 0), Row(topic, 0, 1), session_epoch=0, connection=connection)
        session = first.session_id
        quiet = broker.fetch(session_id=session, session_epoch=1, connection=connection)
        assert quiet.rows == {}
        broker.produce(topic, batch(), partition=1)
        woken = broker.fetch(session_id=session, session_epoch=2, min_bytes=1, max_wait_ms=5000, connection=connection)
        assert [key[1] for key in woken.rows] == [1]
