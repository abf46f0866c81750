"""Effects become facts: append, replay, flush in order, then replies and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kmirror.broker.runtime import RecordCodec
from kmirror.effects import Effects, LogId, ProducerBatch, Promise, StateRecord, Timer
from tests.broker.harness import Broker, error_code

STATE = "__mirror_state"
TEXT = RecordCodec(
    lambda key, value: (key.encode(), None if value is None else value.encode()),
    lambda key, value: ((key or b"").decode(), None if value is None else value.decode()),
)


@dataclass(frozen=True)
class Greet:
    name: str


def prepared() -> tuple[Broker, list[StateRecord]]:
    broker = Broker()
    broker.settle(broker.world.topics.ensure_internal("__mirror_state"))
    replayed: list[StateRecord] = []
    broker.world.runtime.register(STATE, TEXT, replayed.append)
    return broker, replayed


def test_replay_at_once_replies_when_durable() -> None:
    broker, replayed = prepared()
    greeted: list[str] = []
    broker.world.runtime.on_action(Greet, lambda action: greeted.append(action.name))
    promise: Promise[str] = Promise()
    log_id = LogId(STATE, 12)
    effects = Effects(
        records=[StateRecord(log_id, "a", "1"), StateRecord(log_id, "b", None)],
        replies=[(promise, "done")],
        actions=[Greet("world")],
    )
    assert broker.world.commit(effects)
    assert [(record.key, record.value) for record in replayed] == [("a", "1"), ("b", None)]
    assert (promise.done, greeted) == (False, [])
    assert broker.settle(promise) == "done"
    assert greeted == ["world"]
    assert broker.world.partition(STATE, 12).log_end_offset == 2
    broker.crash()
    again: list[StateRecord] = []
    broker.world.runtime.register(STATE, TEXT, again.append)
    assert broker.world.runtime.replay_log(log_id) == 2
    assert again == replayed


def test_logs_are_flushed_in_the_order_asked_for() -> None:
    broker, _replayed = prepared()
    broker.create("data")
    broker.produce("data", b"x", flush=False)
    state = broker.world.partition(STATE, 0)
    order: list[str] = []
    real = broker.flush.dirty

    def dirty(log: Any, done: Any) -> None:
        def told() -> None:
            order.append(log.directory.rpartition("/")[2])
            done()

        real(log, told)

    broker.flush.dirty = dirty  # type: ignore[method-assign]
    promise: Promise[None] = Promise()
    data, log_id = LogId("data", 0), LogId(STATE, 0)
    broker.world.commit(
        Effects(records=[StateRecord(log_id, "k", "v")], durable=[data, log_id], replies=[(promise, None)])
    )
    broker.settle(promise)
    waits = [name for name in order if name == "data-0"]
    assert waits
    assert order[-1] == f"{STATE}-0"
    assert state.high_watermark == 1


def test_a_read_may_wait_for_as_many_logs_as_a_topic_has() -> None:
    """ListGroups names all of `__consumer_offsets`; most of them have nothing to flush."""
    broker, _replayed = prepared()
    promise: Promise[None] = Promise()
    logs = [LogId(STATE, 0)] * 5_000
    broker.world.commit(Effects(records=[StateRecord(LogId(STATE, 3), "k", "v")]))
    broker.world.commit(Effects(durable=[*logs, LogId(STATE, 3), *logs, LogId("gone", 0)], replies=[(promise, None)]))
    early = promise.done
    broker.settle(promise)
    assert (early, broker.world.partition(STATE, 3).high_watermark) == (False, 1)


def test_nothing_of_a_refused_batch_is_kept() -> None:
    broker, replayed = prepared()
    broker.world.partition(STATE, 0).log  # noqa: B018 (opens it)
    broker.flush.run()
    broker.fs.capacity_bytes = 0
    promise: Promise[None] = Promise()
    effects = Effects(records=[StateRecord(LogId(STATE, 0), "k", "v" * 1000)], replies=[(promise, None)])
    assert not broker.world.commit(effects)
    assert (error_code(promise), replayed) == (56, [])
    broker.fs.capacity_bytes = None
    again: Promise[None] = Promise()
    effects.replies = [(again, None)]
    assert broker.world.commit(effects)
    broker.settle(again)
    assert len(replayed) == 1


def test_timers_replace_each_other_and_fire_in_order() -> None:
    broker, _replayed = prepared()
    fired: list[str] = []
    runtime = broker.world.runtime
    runtime.on_timer(Greet, lambda event: fired.append(event.name))
    assert runtime.next_timer_ms() is None
    broker.world.commit(Effects(timers=[Timer("a", 100, Greet("late")), Timer("b", 50, Greet("early"))]))
    broker.world.commit(Effects(timers=[Timer("a", 70, Greet("sooner"))]))
    runtime.cancel_timer("none")
    assert runtime.next_timer_ms() == 50
    broker.clock.advance(80)
    assert runtime.next_timer_ms() == 0
    broker.world.tick()
    assert fired == ["early", "sooner"]
    assert runtime.next_timer_ms() is None


def test_a_transaction_in_an_internal_log_is_told_of_with_its_records() -> None:
    broker, replayed = prepared()
    ended: list[tuple[LogId, int, bool]] = []
    runtime = broker.world.runtime
    runtime.register(STATE, TEXT, replayed.append, lambda *told: ended.append(told))
    log_id = LogId(STATE, 3)
    pending = [StateRecord(log_id, "a", "1"), StateRecord(log_id, "b", "2")]
    assert broker.world.commit(Effects(records=pending, producer=ProducerBatch(77, 5)))
    assert [record.producer_id for record in replayed] == [77, 77]
    marker = runtime.append_marker(log_id, producer_id=77, producer_epoch=5, coordinator_epoch=0, commit=True)
    assert not marker.done
    broker.settle(marker)
    assert ended == [(log_id, 77, True)]
    assert broker.world.partition(STATE, 3).last_stable_offset == 3
    stale: Promise[None] = Promise()
    assert not broker.world.commit(Effects(records=pending, producer=ProducerBatch(77, 4), replies=[(stale, None)]))
    assert error_code(stale) == 47
    broker.crash()
    told: list[object] = []
    broker.world.runtime.register(STATE, TEXT, told.append, lambda *end: told.append(end))
    assert broker.world.runtime.replay_log(log_id) == 2
    assert told == [*replayed, (log_id, 77, True)]


def test_what_is_on_disk_already_is_answered_at_once() -> None:
    broker, _replayed = prepared()
    log_id = LogId(STATE, 0)
    first: Promise[None] = Promise()
    broker.world.commit(Effects(records=[StateRecord(log_id, "k", "v")], replies=[(first, None)]))
    read: Promise[str] = Promise()
    broker.world.commit(Effects(durable=[log_id], replies=[(read, "seen")]))
    assert not read.done
    broker.settle(first)
    assert read.result() == "seen"
    again: Promise[str] = Promise()
    broker.world.commit(Effects(durable=[log_id], replies=[(again, "seen")]))
    assert again.done


def test_a_timer_that_is_due_before_all_others_wakes_the_sleeper() -> None:
    broker, _replayed = prepared()
    runtime = broker.world.runtime
    runtime.on_timer(Greet, lambda event: None)
    woken: list[int | None] = []
    runtime.timers.on_sooner = lambda: woken.append(runtime.next_timer_ms())
    runtime.set_timer(Timer("a", 100, Greet("a")))
    runtime.set_timer(Timer("b", 200, Greet("b")))
    runtime.set_timer(Timer("c", 10, Greet("c")))
    runtime.cancel_timer("c")
    assert woken == [100, 10]
    assert runtime.next_timer_ms() == 100
    for _ in range(5000):
        runtime.set_timer(Timer("a", 300, Greet("a")))
    assert runtime.next_timer_ms() == 200
