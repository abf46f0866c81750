"""Producer ids are never handed out twice."""

from __future__ import annotations

from kmirror.broker.producer_ids import first_producer_id
from kmirror.limits import PRODUCER_ID_BLOCK
from kmirror.protocol import uuids
from tests.broker.harness import Broker, error_code


def test_ids_begin_at_a_hash_of_the_cluster_id() -> None:
    for _ in range(100):
        first = first_producer_id(uuids.to_text(uuids.random_id()))
        assert first % 2**32 == 0
        assert 1 <= first >> 32 < 2**20


def test_blocks_are_durable_before_they_are_used() -> None:
    broker = Broker()
    promise = broker.world.producer_ids.next()
    assert not promise.done
    first = broker.settle(promise)
    assert first == first_producer_id(broker.world.cluster_id)
    assert broker.world.producer_ids.next().result() == first + 1, "the block lasts"
    broker.crash()
    after = broker.settle(broker.world.producer_ids.next())
    assert after >= first + 2


def test_no_id_twice_through_restarts_crashes_and_exhausted_blocks() -> None:
    broker = Broker()
    seen: list[int] = []
    for round_number in range(6):
        promises = [broker.world.producer_ids.next() for _ in range(PRODUCER_ID_BLOCK // 2 + 7)]
        broker.flush.run()
        seen += [promise.result() for promise in promises]
        if round_number % 2:
            broker.crash()
        else:
            broker.restart()
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


def test_raising_above_an_id_outlives_a_crash() -> None:
    broker = Broker()
    first = broker.settle(broker.world.producer_ids.next())
    for target in (first, first + 10, first + PRODUCER_ID_BLOCK * 5, 2**40 * 3):
        broker.settle(broker.world.producer_ids.raise_above(target))
        assert broker.settle(broker.world.producer_ids.next()) > target
        broker.crash()
        assert broker.settle(broker.world.producer_ids.next()) > target


def test_a_full_disk_fails_the_ask_and_heals() -> None:
    broker = Broker()
    broker.fs.capacity_bytes = 0
    promise = broker.world.producer_ids.next()
    broker.flush.run()
    assert error_code(promise) == 56
    broker.fs.capacity_bytes = None
    assert broker.settle(broker.world.producer_ids.next()) > 0
