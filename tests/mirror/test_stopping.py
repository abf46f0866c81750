"""The failover: the KIP's worked example, the reset, and what must not happen twice."""

from __future__ import annotations

import pytest

from kmirror.errors import ApiError
from kmirror.protocol.records import (
    Record,
    build_batch,
    control_type,
    end_txn_marker,
    header_with_offset_and_epoch,
    mirror_pid_reset,
    parse_header,
)
from tests.sim.clusters import Cluster, Pump

ABORT_4001 = bytes.fromhex(
    "00 00 00 00 00 00 00 03 00 00 00 42 00 00 00 0b 02 06 cf 41 c6 00 30 00 00 00 00"
    "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0f a1 00 00 ff"
    "ff ff ff 00 00 00 01 20 00 00 00 08 00 00 00 00 0c 00 00 00 00 00 00 00"
)
RESET = bytes.fromhex(
    "00 00 00 00 00 00 00 05 00 00 00 3f 00 00 00 0b 02 78 a6 00 38 00 20 00 00 00 00"
    "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff ff ff ff"
    "ff ff ff ff ff ff ff 00 00 00 01 1a 00 00 00 08 00 00 00 07 06 00 00 00 00"
)


def placed(batch: bytes, *, offset: int, epoch: int) -> bytes:
    header = parse_header(batch)
    return header_with_offset_and_epoch(header, base_offset=offset, leader_epoch=epoch) + batch[61:]


def test_vectors_of_the_specification() -> None:
    marker = end_txn_marker(commit=False, producer_id=4001, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)
    assert placed(marker, offset=3, epoch=11) == ABORT_4001
    assert placed(mirror_pid_reset(timestamp_ms=0), offset=5, epoch=11) == RESET


def transactional(source: Cluster, producer_id: int, value: bytes, *, sequence: int = 0) -> None:
    source.produce(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)


def worked_example() -> tuple[Cluster, Cluster, Pump]:
    """Offsets 0 to 2 replicated: 4001 A=1, 4001 B=2, 4002 X=9; the source goes on alone."""
    source = Cluster("a", seed=1)
    destination = Cluster("b", seed=2, clock=source.clock)
    source.create_topic()
    destination.create_mirror(source)
    destination.start(source)
    pump = Pump(destination, source)
    transactional(source, 4001, b"A=1")
    transactional(source, 4001, b"B=2", sequence=1)
    transactional(source, 4002, b"X=9")
    pump.run()
    source.end_transaction(4001, commit=True)
    transactional(source, 4003, b"Y=5")
    source.produce(b"Z=10")
    return source, destination, pump


def test_worked_example() -> None:
    source, destination, _ = worked_example()
    result = destination.stop().result()[0]
    log = destination.partition().log
    shown = []
    for header, data in log.batches(0, log.log_end_offset):
        kind = control_type(data) if header.is_control else "data"
        shown.append((header.base_offset, kind, header.producer_id, header.leader_epoch))
    epoch = destination.partition().leader_epoch
    assert shown == [
        (0, "data", 4001, 0),
        (1, "data", 4001, 0),
        (2, "data", 4002, 0),
        (3, 0, 4001, epoch),
        (4, 0, 4002, epoch),
        (5, 7, -1, epoch),
    ]
    assert epoch > 0
    row = result.partitions[0]
    assert (row.last_mirrored_offset, row.aborted_transactions) == (2, 2)
    assert destination.partition().last_stable_offset == 6
    assert source.data()[: len(source.data())] != destination.data()


def test_a_second_stop_answers_the_same_and_writes_nothing() -> None:
    _, destination, _ = worked_example()
    first = destination.stop().result()[0]
    end = destination.partition().log.log_end_offset
    again = destination.stop().result()[0]
    assert (again.error_code, again.partitions) == (0, first.partitions)
    assert destination.partition().log.log_end_offset == end
    destination.restart()
    assert destination.partition().log.log_end_offset == end
    assert destination.row().state == "STOPPED"


def test_a_colliding_producer_id_starts_at_sequence_zero() -> None:
    _, destination, _ = worked_example()
    destination.stop()
    destination.produce(b"new", producer_id=4001, producer_epoch=0, base_sequence=0)
    destination.crash()
    destination.produce(b"newer", producer_id=4001, producer_epoch=0, base_sequence=1)
    with pytest.raises(ApiError):
        destination.produce(b"gap", producer_id=4001, producer_epoch=0, base_sequence=7)


def test_producer_ids_here_are_above_every_mirrored_one() -> None:
    source = Cluster("a", seed=1)
    destination = Cluster("b", seed=2, clock=source.clock)
    source.create_topic()
    destination.create_mirror(source)
    destination.start(source)
    far = destination.world.producer_ids.next_id + 5_000
    source.produce(b"far", producer_id=far, producer_epoch=0, base_sequence=0)
    Pump(destination, source).run()
    destination.stop()
    assert destination.settle(destination.world.producer_ids.next()) > far
    destination.crash()
    assert destination.settle(destination.world.producer_ids.next()) > far


def test_truncate_instead_of_abort() -> None:
    source = Cluster("a", seed=1)
    destination = Cluster("b", seed=2, clock=source.clock)
    source.create_topic()
    destination.create_mirror(source, open__transactions__on__stop="truncate")
    destination.start(source)
    source.produce(b"0")
    transactional(source, 4001, b"open")
    source.produce(b"behind")
    Pump(destination, source).run()
    assert destination.partition().log.log_end_offset == 3
    result = destination.stop().result()[0]
    row = destination.row()
    assert (row.last_mirror_offset, row.state) == (1, "STOPPED")
    assert result.partitions[0].aborted_transactions == 0
    assert destination.partition().log.log_end_offset == 2  # one record, the reset
    assert any("cut" in name for name in destination.fs.list_dir("/data"))


def test_stop_of_a_topic_that_never_mirrored_anything() -> None:
    source = Cluster("a", seed=1)
    destination = Cluster("b", seed=2, clock=source.clock)
    source.create_topic()
    destination.create_mirror(source)
    destination.start(source)
    assert destination.row().state == "PREPARING"
    destination.stop()
    row = destination.row()
    assert (row.state, row.last_mirror_offset, row.leader_epoch) == ("STOPPED", None, 1)
    assert destination.partition().log.log_end_offset == 0


def test_stop_of_an_empty_partition_that_mirrored() -> None:
    source = Cluster("a", seed=1)
    destination = Cluster("b", seed=2, clock=source.clock)
    source.create_topic()
    destination.create_mirror(source)
    destination.start(source)
    Pump(destination, source).run()
    assert destination.row().state == "MIRRORING"
    destination.stop()
    row = destination.row()
    assert (row.last_mirror_epoch, row.last_mirror_offset) == (-1, 0)
    assert destination.partition().log.log_end_offset == 1


def test_mode_of_a_batch_that_clients_may_not_send() -> None:
    _, destination, _ = worked_example()
    data = build_batch([Record(value=b"x")], timestamp_ms=0)
    with pytest.raises(ApiError):
        destination.partition().append_coordinator(data)


def test_a_reset_that_was_mirrored_forgets_producers_as_one_of_our_own() -> None:
    """A to B to C: B is failed over and written to; C copies B's reset, and its producer state begins anew there."""
    a = Cluster("a", seed=1)
    b = Cluster("b", seed=2, clock=a.clock)
    c = Cluster("c", seed=3, clock=a.clock)
    a.create_topic()
    b.create_mirror(a)
    c.create_mirror(b)
    b.start(a)
    a.produce(b"1", b"2", producer_id=77, producer_epoch=5, base_sequence=0)
    Pump(b, a).run()
    c.start(b)
    chained = Pump(c, b)
    chained.run()
    assert 77 in c.partition().log.producers.entries
    b.stop()
    chained.refresh()
    chained.run()
    assert c.data() == b.data() and c.partition().log.last_pid_reset_offset == 2
    assert 77 not in c.partition().log.producers.entries
    c.crash()
    assert 77 not in c.partition().log.producers.entries
