"""The tables: states, answers, retries, epochs, placement, wishes, lists. Against the specification and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmirror.errors import ApiError, CorruptData
from kmirror.mirror import desired as wishes
from kmirror.mirror import epochs, sync
from kmirror.mirror.config import MirrorConfig, check_change, check_create, check_name
from kmirror.mirror.desired import Association
from kmirror.mirror.durable import state_partition
from kmirror.mirror.plan import Appetite, shares
from kmirror.mirror.retry import NOT_RETRIED, RetryPolicy
from kmirror.mirror.states import ACCEPTED, Desired, Mode, Operation, State, Verdict, allowed, decide, mode_of, refusal
from kmirror.protocol import mirror_numbers as numbers
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.java_hash import java_hash, partition_for

# -- states -----------------------------------------------------------------------------------------------------------


def test_bytes_and_names() -> None:
    assert {state.name: int(state) for state in State} == {
        "UNKNOWN": -1,
        "LOG_ALIGNMENT": 0,
        "EPOCH_FENCING": 1,
        "ULE_RECOVERY": 2,
        "MIRRORING": 3,
        "PAUSING": 4,
        "PAUSED": 5,
        "STOPPING": 6,
        "STOPPED": 7,
        "FAILED": 8,
    }
    shown = {state.shown for state in State}
    assert shown == {"UNKNOWN", "PREPARING", "MIRRORING", "PAUSING", "PAUSED", "STOPPING", "STOPPED", "FAILED"}
    assert [state.phase for state in State if state.phase] == ["LOG_ALIGNMENT", "EPOCH_FENCING", "ULE_RECOVERY"]


def test_stopping_can_be_entered_from_everywhere_and_left_only_to_stopped() -> None:
    for state in State:
        assert allowed(state, State.STOPPING) == (state is not State.STOPPED)
        assert allowed(State.STOPPING, state) == (state in (State.STOPPING, State.STOPPED))
        assert allowed(state, State.STOPPED) == (state in (State.STOPPING, State.STOPPED))
        assert not allowed(state, State.UNKNOWN)
        assert not (state in (State.STOPPING, State.STOPPED) and allowed(state, State.FAILED))


def test_every_state_has_a_way_to_stopped_and_to_mirroring() -> None:
    for goal in (State.STOPPED, State.MIRRORING):
        reached = {goal}
        while True:
            more = {s for s in State for t in reached if allowed(s, t)} | reached
            if more == reached:
                break
            reached = more
        assert reached == set(State)


@given(st.sampled_from(list(State)))
def test_only_stopped_is_writable(state: State) -> None:
    assert (mode_of(state) is Mode.WRITABLE) == (state is State.STOPPED)
    assert (mode_of(state) is Mode.SEALING) == (state is State.STOPPING)
    assert "'m'" in refusal("m", state)


# -- answers (docs/MIRRORING.md, "Answers") --------------------------------------------------------------------------

ANSWERS = {
    (Operation.START, Desired.MIRRORING): ErrorCode.NONE,
    (Operation.START, Desired.PAUSED): ErrorCode.MIRROR_TOPIC_NOT_STOPPED,
    (Operation.STOP, Desired.STOPPED): ErrorCode.NONE,
    (Operation.PAUSE, Desired.STOPPED): ErrorCode.MIRROR_TOPIC_BEING_STOPPED,
    (Operation.PAUSE, Desired.PAUSED): ErrorCode.NONE,
    (Operation.RESUME, Desired.STOPPED): ErrorCode.MIRROR_TOPIC_NOT_PAUSED,
    (Operation.RESUME, Desired.MIRRORING): ErrorCode.NONE,
}
ACTUAL = {
    (Operation.START, Desired.STOPPED): {State.STOPPED, State.UNKNOWN, State.FAILED},
    (Operation.STOP, Desired.MIRRORING): set(State),
    (Operation.STOP, Desired.PAUSED): set(State),
    (Operation.PAUSE, Desired.MIRRORING): {State.MIRRORING},
    (Operation.RESUME, Desired.PAUSED): {State.PAUSED},
}


def test_the_two_tables_cover_everything() -> None:
    every = {(operation, desired) for operation in Operation for desired in Desired}
    assert set(ANSWERS) | set(ACTUAL) == every
    assert not set(ANSWERS) & set(ACTUAL)


@given(
    st.sampled_from(list(Operation)), st.sampled_from(list(Desired)), st.lists(st.sampled_from(list(State)), min_size=1)
)
def test_answers(operation: Operation, desired: Desired, states: list[State]) -> None:
    verdict, code, message = decide(operation, desired, enumerate(states))
    if (operation, desired) == (Operation.START, Desired.MIRRORING) and ACCEPTED[operation] & set(states):
        assert (verdict, code) == (Verdict.RESTART_IDLE, ErrorCode.NONE)
    elif (operation, desired) in ANSWERS:
        assert (verdict, code) == (Verdict.ANSWER, ANSWERS[operation, desired])
    elif set(states) <= ACTUAL[operation, desired]:
        assert (verdict, code, message) == (Verdict.CHANGE, ErrorCode.NONE, None)
    else:
        assert (verdict, code) == (Verdict.ANSWER, ErrorCode.INVALID_CLUSTER_MIRROR_STATE)
        wrong = next(i for i, state in enumerate(states) if state not in ACTUAL[operation, desired])
        assert message is not None and f"partition {wrong} " in message


# -- retries ----------------------------------------------------------------------------------------------------------


def test_back_off_doubles_up_to_the_maximum() -> None:
    policy = RetryPolicy(initial_backoff_ms=100, max_backoff_ms=1_000, max_attempts=6)
    assert [policy.delay_ms(n, lambda: 0.5) for n in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]
    assert [policy.schedules(n) for n in range(1, 7)] == [True] * 5 + [False]
    assert not policy.schedules(NOT_RETRIED)
    assert not RetryPolicy(max_attempts=0).schedules(RetryPolicy(max_attempts=0).next_attempt(0))


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_jitter_is_twenty_percent(attempt: int, chance: float) -> None:
    policy = RetryPolicy(initial_backoff_ms=100, max_backoff_ms=300_000)
    exact = min(100 * 2 ** min(attempt - 1, 40), 300_000)
    assert exact * 0.8 - 1 <= policy.delay_ms(attempt, lambda: chance) <= exact * 1.2 + 1


# -- epochs -----------------------------------------------------------------------------------------------------------


@st.composite
def entries(draw: st.DrawFn) -> list[tuple[int, int]]:
    epoch_list = sorted(draw(st.sets(st.integers(0, 12), max_size=5)))
    starts = sorted(draw(st.sets(st.integers(0, 30), min_size=len(epoch_list), max_size=len(epoch_list))))
    return list(zip(epoch_list, starts, strict=True))


@given(entries(), st.integers(0, 40))
def test_epochs_of_a_log(cache: list[tuple[int, int]], offset: int) -> None:
    at = {o: max((e for e, s in cache if s <= o), default=-1) for o in range(41)}
    assert epochs.epoch_below(cache, offset) == (at[offset - 1] if offset else -1)
    for epoch in range(-1, 13):
        end = next((o for o in range(41) if at[o] > epoch), 40)
        assert epochs.end_of(cache, epoch, 40) == end
        assert epochs.next_lower(cache, epoch) == max((e for e, _ in cache if e < epoch), default=-1)


def test_thresholds() -> None:
    assert not epochs.should_raise(7, 10) and epochs.should_raise(8, 10)
    assert not epochs.must_fence(10, 10) and epochs.must_fence(11, 10)
    assert epochs.raise_minimum(8) == 18


# -- placement --------------------------------------------------------------------------------------------------------


def test_hash_vectors_of_the_specification() -> None:
    assert java_hash("a-to-b:AAAAAAAAAAAAAAAAAAABAQ:0") == 837329509
    assert java_hash("my-mirror") == 1191661312 and partition_for("my-mirror", 50) == 12
    assert java_hash("a-to-b") == -1472817284 and partition_for("a-to-b", 50) == 34
    assert state_partition("a-to-b", uuids.from_text("AAAAAAAAAAAAAAAAAAABAQ"), 0, 50) == 9
    assert java_hash("polygenelubricants") == -(1 << 31) and partition_for("polygenelubricants", 50) == 0


# -- wishes -----------------------------------------------------------------------------------------------------------


@given(
    st.text(min_size=1),
    st.sampled_from(list(Desired)),
    st.sampled_from([uuids.ZERO, bytes(range(16))]),
    st.integers(-2, 2**50),
    st.integers(0, 1000),
    st.booleans(),
)
def test_a_wish_comes_back(topic: str, wish: Desired, source: bytes, start: int, count: int, force: bool) -> None:
    association = Association(
        topic=topic,
        topic_id=bytes(range(1, 17)),
        desired=wish,
        source_topic_id=source,
        start_from=start,
        partitions_at_start=count,
        force=force,
    )
    name = wishes.config_name(association.topic_id)
    assert wishes.decode(name, wishes.encode(association)) == association
    assert wishes.visible({name: "x", wishes.synced_name(association.topic_id): "y", "fetch.min.bytes": "1"}) == {
        "fetch.min.bytes": "1"
    }


@pytest.mark.parametrize("value", ["", "{}", "[1]", '{"topic":"t","state":"GONE","partitions":1}', "null"])
def test_a_damaged_wish_is_corrupt_data(value: str) -> None:
    with pytest.raises(CorruptData):
        wishes.decode(wishes.config_name(bytes(16)), value)


# -- configuration ----------------------------------------------------------------------------------------------------


def code_of(call: object) -> int:
    assert callable(call)
    with pytest.raises(ApiError) as refused:
        call()
    return refused.value.code


def test_configuration() -> None:
    for name in ("", ".", "..", "a b", "a" * 250, "ä"):
        assert code_of(lambda name=name: check_name(name)) == ErrorCode.INVALID_REQUEST
    check_name("a-to_b.2")
    given_ = {"bootstrap.servers": "h:1", "source.cluster.id": "c"}
    assert check_create({**given_, "sasl.mechanism": "PLAIN", "fetch.min.bytes": None}) == {
        **given_,
        "sasl.mechanism": "PLAIN",
    }
    assert code_of(lambda: check_create({"bootstrap.servers": "h:1"})) == ErrorCode.INVALID_REQUEST
    assert code_of(lambda: check_create({**given_, "fetch.min.byte": "1"})) == ErrorCode.INVALID_CONFIG
    assert code_of(lambda: check_create({**given_, "fetch.min.bytes": "one"})) == ErrorCode.INVALID_CONFIG
    assert code_of(lambda: check_change("source.cluster.id", "d", given_)) == ErrorCode.INVALID_CONFIG
    assert code_of(lambda: check_change("bootstrap.servers", None, given_)) == ErrorCode.INVALID_CONFIG
    check_change("gap.action", "halt", given_)
    config = MirrorConfig({**given_, "topics.include": "[a.*, b]"})
    assert config.items("topics.include") == ["a.*", "b"]
    assert config.items("topics.exclude") == ["__.*"]
    assert (config.number("fetch.max.bytes"), config.number("fetch.response.max.bytes")) == (1048576, 10485760)
    assert set(numbers.MIRROR_CONFIGS) <= set(__import__("kmirror.mirror.config", fromlist=["SETTINGS"]).SETTINGS)


# -- sync -------------------------------------------------------------------------------------------------------------


def test_patterns_match_whole_names_and_exclude_wins() -> None:
    lists = sync.Lists(("orders-.*", "payments"), ("orders-internal", "__.*"))
    found = sync.discovered(lists, ["orders-us", "orders-internal", "payments", "payments2", "__x"], ["orders-eu"])
    assert found == ["orders-us", "payments"]
    assert sync.excluded(lists, {"orders-internal": Desired.MIRRORING, "__x": Desired.STOPPED}) == ["orders-internal"]
    assert code_of(lambda: sync.Patterns(["a("])) == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert code_of(lambda: sync.Patterns(["(?=a)"])) == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_lists_after_start_and_stop() -> None:
    lists = sync.lists_after_start(
        sync.Lists(("a.*",), ("b", "__.*")), names=["b"], include=["c.*"], exclude=["a.*", "d"]
    )
    assert lists == sync.Lists(("b", "c.*"), ("__.*", "a.*", "d"))
    assert sync.lists_after_stop(lists, ["c.*", "e"]) == sync.Lists(("b",), ("__.*", "a.*", "d", "e"))


def test_config_changes() -> None:
    changes = sync.config_changes(
        {"retention.ms": "5", "flush.messages": "9", "min.insync.replicas": "2", "cleanup.policy": "delete"},
        {"cleanup.policy": "delete", "segment.bytes": "7", "max.message.bytes": "8", "flush.ms": "1"},
        {"segment.bytes", "flush.ms"},
        ["min.insync.replicas"],
    )
    assert changes == {"retention.ms": "5", "segment.bytes": None}


def test_growth_and_deletion() -> None:
    assert sync.grown([0, 1, 2], 2) == 3 and sync.grown([0], 2) is None and sync.grown([], 1) is None
    missing = sync.Missing()
    assert [missing.observe("t", missing=m) for m in (True, False, True, True)] == [False, False, False, True]


# -- plan -------------------------------------------------------------------------------------------------------------


def test_sizes_grow_while_behind_and_shrink_when_caught_up() -> None:
    one = 1024 * 1024
    appetite = Appetite()
    sizes = []
    for _ in range(5):
        size = appetite.wanted(one)
        sizes.append(size // one)
        appetite.learn(asked_bytes=size, received_bytes=size, fetch_max_bytes=one)
    assert sizes == [1, 2, 4, 8, 8]
    for _ in range(4):
        appetite.learn(asked_bytes=appetite.wanted(one), received_bytes=0, fetch_max_bytes=one)
    assert appetite.wanted(one) == one


@given(st.lists(st.integers(1, 2**23), max_size=20), st.integers(1, 2**24), st.integers(1, 2**21))
def test_shares(wanted: list[int], response: int, fetch: int) -> None:
    got = shares(wanted, response_max_bytes=response, fetch_max_bytes=fetch)
    assert len(got) == len(wanted)
    assert all(0 < share <= max(response, fetch) for share in got)
    if wanted:
        assert got[0] == max(min(wanted[0], response), min(fetch, response))
