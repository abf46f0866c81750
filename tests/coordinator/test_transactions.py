"""The transaction coordinator's machine: transcripts/transactions-*.txt, and walks that nobody wrote down.

`pytest tests/coordinator --rewrite` writes the expected text anew; the difference is to be read, not just committed.
Every answer in the transcripts was compared with Kafka 4.4's TransactionCoordinator and TransactionMetadata.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from kmirror.coordinator import transaction_entry as entries
from kmirror.coordinator.transactions import Answer, Producer, State, Transaction
from kmirror.effects import Place
from kmirror.errors import CorruptData
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import transaction_state as records
from tests.coordinator.transaction_stage import Stage
from tests.transcripts import now_and_expected

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("transactions-*.txt"))
IDS = ("x", "y", "z")
PLACES: list[Place] = [("t", 0), ("t", 1), ("u", 0), ("__consumer_offsets", 7)]

KAFKA_WROTE = [
    (
        "0001000000000000000000000000ea600000000001a22b9b5f05ffffffffffffffff0100080000000000000000",
        State.EMPTY,
        0,
        0,
    ),
    (
        "0001000000000000000000000000ea600102037431020000000100000001a22b9b5f72000001a22b9b5f72"
        "020008000000000000000002020002",
        State.ONGOING,
        0,
        2,
    ),
    (
        "0001000000000000000000010000ea600202037431020000000100000001a22b9b5fad000001a22b9b5f72"
        "020008000000000000000002020002",
        State.PREPARE_COMMIT,
        1,
        2,
    ),
    (
        "0001000000000000000000010000ea600401000001a22b9b5fb1000001a22b9b5f72020008000000000000000002020002",
        State.COMPLETE_COMMIT,
        1,
        2,
    ),
]
"""A transaction of Kafka 4.4.0's own producer (kafka-producer-perf-test), from the segment of an Apache Kafka 4.4.0."""


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    now, expected = now_and_expected(path, Stage, request.config)
    assert now == expected


def test_transcripts_go_through_every_state_and_every_refusal() -> None:
    text = "\n".join(path.read_text() for path in TRANSCRIPTS)
    assert all(f"record x {state.shown} " in text for state in entries.PREDECESSORS)
    wanted = {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert [code.name for code in wanted if code.name not in text] == []


# -- the record ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(entries.PREDECESSORS))
def test_a_record_gives_the_entry_back(state: State) -> None:
    entry = Transaction(
        state=state,
        producer_id=7,
        producer_epoch=3,
        previous_producer_id=6,
        next_producer_id=8,
        timeout_ms=60_000,
        places=frozenset() if state is State.EMPTY else frozenset(PLACES),
        start_ms=11,
        updated_ms=12,
        client_version=2,
    )
    value = entries.to_record(entry)
    key = records.decode_key(records.encode_key("x"))
    decoded = records.decode_value(key, records.encode_value(value))
    assert decoded is not None
    assert entries.from_record(decoded) == entry
    old = records.decode_value(key, records.encode_value(value, 0))
    assert old is not None
    assert entries.from_record(old).places == entry.places
    assert entries.from_record(old).client_version == 0


@pytest.mark.parametrize("status", [State.DEAD, State.PREPARE_EPOCH_FENCE, 8, -1])
def test_states_that_are_never_recorded_are_refused(status: int) -> None:
    with pytest.raises(CorruptData, match=str(int(status))):
        entries.from_record(records.TransactionLogValue(transaction_status=int(status)))


@pytest.mark.parametrize(("raw", "state", "epoch", "version"), KAFKA_WROTE)
def test_records_that_kafka_wrote(raw: str, state: State, epoch: int, version: int) -> None:
    key = records.decode_key(bytes.fromhex("0000000470657266"))
    assert isinstance(key, records.TransactionLogKey)
    assert (key.transactional_id, records.encode_key("perf").hex()) == ("perf", "0000000470657266")
    value = records.decode_value(key, bytes.fromhex(raw))
    assert value is not None
    entry = entries.from_record(value)
    assert (entry.state, entry.producer_epoch, entry.client_version) == (state, epoch, version)
    assert entry.places == (frozenset() if state.idle else frozenset({("t1", 1)}))
    assert records.encode_value(entries.to_record(entry)).hex() == raw


# -- walks -----------------------------------------------------------------------------------------------------------


class Walk:
    """Several clients per id, some of them fenced, some of them out of their mind; the laws after every step."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.stage = Stage()
        self.stage.level = rng.choice([0, 1, 2, 2, 2])
        self.clients: dict[str, list[Producer]] = {name: [] for name in IDS}
        """Every identity that was ever given out, the newest last."""
        self.decided: dict[tuple[str, Producer], bool] = {}
        self.open: dict[str, Producer] = {}
        """Whose transaction is open."""

    def step(self) -> None:
        rng, stage = self.rng, self.stage
        name = rng.choice(IDS)
        before = stage.machine.get(name)
        kind = rng.choice(
            ["init", "init", "add", "add", "add", "end", "end", "end", "markers", "wait", "sweep", "restart"]
        )
        if kind == "init":
            self._init(name)
        elif kind == "add":
            who = self._who(name)
            answer = stage.add(name, who, rng.sample(PLACES, rng.randint(1, 3)), version=self._version())
            if answer.code is ErrorCode.NONE:
                assert who == self.clients[name][-1], "a fenced producer was let in"
        elif kind == "end":
            self._end(name, before)
        elif kind == "markers" and stage.marking:
            stage.markers(rng.choice(stage.marking))
        elif kind == "wait":
            stage.now_ms += rng.choice([1, 50, 400])
        elif kind == "sweep":
            stage.play("sweep")
        elif kind == "restart":
            stage.play("restart")
        self.check()

    def _version(self) -> int:
        """Clients speak the newer protocol only where the cluster's level allows it."""
        return self.rng.choice([0, 2, 2]) if self.stage.level >= entries.EPOCH_BUMPS else 0

    def _who(self, name: str) -> Producer:
        known = self.clients[name]
        if not known or self.rng.random() < 0.05:
            return Producer(999, self.rng.randint(0, 2))
        return known[-1] if self.rng.random() < 0.8 else self.rng.choice(known)

    def _init(self, name: str) -> None:
        expected = self._who(name) if self.rng.random() < 0.4 else None
        answer = self.stage.init(name, timeout_ms=self.rng.choice([100, 1000]), expected=expected)
        if answer.code is ErrorCode.NONE:
            self._given(name, answer)

    def _given(self, name: str, answer: Answer) -> None:
        given = Producer(answer.producer_id, answer.producer_epoch)
        assert 0 <= given.epoch < entries.MAX_EPOCH, "the last epoch is kept back for fencing"
        known = self.clients[name]
        if known and given == known[-1]:
            return  # the same answer again
        assert given not in known, "an identity was given out twice"
        known.append(given)

    def _end(self, name: str, before: Transaction | None) -> None:
        who, commit, version = self._who(name), self.rng.random() < 0.6, self._version()
        answer = self.stage.end(name, who, commit=commit, version=version)
        if answer.code is not ErrorCode.NONE:
            return
        if version:
            self._given(name, answer)
        after = self.stage.machine.get(name)
        assert before is not None and after is not None
        if before.state is State.ONGOING:
            assert who == self.identity(before), "somebody else ended it"
            assert after.commits is commit
        elif before.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT) and after is before:
            assert commit is (before.state is State.COMPLETE_COMMIT), "told of another end than there was"

    @staticmethod
    def identity(entry: Transaction) -> Producer:
        return Producer(entry.producer_id, entry.producer_epoch)

    def check(self) -> None:
        stage = self.stage
        reloaded = dict(stage.reloaded().items())
        live = {name: entries.from_record(entries.to_record(entry)) for name, entry in stage.machine.items()}
        assert reloaded == live, "boot would not find this state again"
        assert set(stage.marking) == set(stage.machine.deciding()), "a decision that nobody carries out"
        for name, entry in stage.machine.items():
            assert bool(entry.places) <= (not entry.state.idle)
            assert (name in stage.machine.open_in("t") or name in stage.machine.open_in("u")) <= (not entry.state.idle)


@pytest.mark.parametrize("run", range(40))
def test_walks_keep_the_laws_and_end(rng: random.Random, run: int) -> None:
    walk = Walk(rng)
    stage = walk.stage
    if run % 2:  # near the end of the epochs
        for name in IDS:
            chosen = Producer(stage.next_id, entries.MAX_EPOCH - rng.randint(2, 6))
            stage.next_id += 1
            stage.play(f"set {name} {chosen.producer_id}/{chosen.epoch} EMPTY")
            walk.clients[name].append(chosen)
    seen: dict[str, list[Transaction]] = {name: [] for name in IDS}
    for _ in range(300):
        walk.step()
        for name, entry in stage.machine.items():
            if not seen[name] or seen[name][-1] is not entry:
                seen[name].append(entry)
    for entries_of_one in seen.values():
        _check_history(entries_of_one)
    _comes_to_an_end(stage)


def _check_history(history: list[Transaction]) -> None:
    """Each decision is followed by its own end and nothing else."""
    for earlier, later in pairwise(history):
        if earlier.state.deciding and later.state != earlier.state:
            wanted = State.COMPLETE_COMMIT if earlier.commits else State.COMPLETE_ABORT
            assert later.state is wanted
        assert later.producer_id >= earlier.producer_id
        if later.producer_id == earlier.producer_id:
            assert later.producer_epoch >= earlier.producer_epoch


def _comes_to_an_end(stage: Stage) -> None:
    stage.now_ms += 10_000
    stage.play("sweep")
    for name in list(stage.marking):
        stage.markers(name)
    assert all(entry.state.idle for _name, entry in stage.machine.items())
