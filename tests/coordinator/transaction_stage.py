"""The transaction coordinator's machine on a stage: commands in, what it records and answers out.

`init NAME [timeout=MS] [as=P/E]`, `add NAME P/E t-0 u-1 [v2]`, `verify NAME P/E t-0`, `end NAME P/E commit|abort [v2]`,
`markers NAME` (every marker is on disk), `wait MS`, `sweep` (old transactions), `expire` (old ids), `abort NAME`,
`level N` (transaction.version), `restart` (everything back from its records), `show`, `list [state=] [pid=] [longer=]`,
`set NAME P/E STATE [MS]` (a record out of nowhere). Producer ids are 1000, 1001, ...; time begins at 0.
"""

from __future__ import annotations

from typing import Any

from kmirror.coordinator import transaction_entry as entries
from kmirror.coordinator.transactions import (
    Answer,
    Limits,
    Producer,
    ProducerIdNeeded,
    State,
    Transaction,
    Transactions,
    WriteMarkers,
)
from kmirror.effects import Effects, LogId, Place, Promise, StateRecord
from kmirror.protocol.internal import transaction_state as records

LOG = LogId("__transaction_state", 0)


class Stage:
    def __init__(self) -> None:
        self.now_ms = 0
        self.next_id = 1000
        self.level = 2
        self.written: dict[str, tuple[bytes, bytes | None]] = {}
        """The log, compacted."""
        self.marking: list[str] = []
        self.machine = self._machine()
        self.out: list[str] = []

    def _machine(self) -> Transactions:
        return Transactions(lambda _name: LOG, self._limits)

    def _limits(self) -> Limits:
        return Limits(max_timeout_ms=900_000, expiration_ms=604_800_000, server_version=self.level)

    # -- the runtime's part --------------------------------------------------------------------------------------

    def commit(self, effects: Effects) -> None:
        for record in effects.records:
            self.write(record)
        for promise, value in effects.replies:
            promise.resolve(value)
        for action in effects.actions:
            assert isinstance(action, WriteMarkers)
            entry = self.machine.get(action.transactional_id)
            assert entry is not None
            kind = "COMMIT" if entry.commits else "ABORT"
            self.out.append(f"  markers {kind} {identity(entry)} [{shown(entry.places)}]")
            self.marking.append(action.transactional_id)

    def write(self, record: StateRecord) -> None:
        name = str(record.key)
        entry: Any = record.value
        value = None if entry is None else records.encode_value(entries.to_record(entry))
        self.written[name] = (records.encode_key(name), value)
        self.out.append(f"  record {name} " + ("nothing" if entry is None else described(entry)))
        self.machine.replay(record)

    def ask(self, decide: Any) -> Answer:
        reply: Promise[Answer] = Promise()
        try:
            effects = decide(None, reply)
        except ProducerIdNeeded:
            self.next_id += 1
            effects = decide(self.next_id - 1, reply)
        self.commit(effects)
        return reply.result()

    def reloaded(self) -> Transactions:
        """What boot makes of the log."""
        machine = self._machine()
        for key, value in self.written.values():
            typed = records.decode_key(key)
            assert isinstance(typed, records.TransactionLogKey)
            decoded = records.decode_value(typed, value)
            entry = None if decoded is None else entries.from_record(decoded)
            machine.replay(StateRecord(LOG, typed.transactional_id, entry))
        return machine

    # -- requests ------------------------------------------------------------------------------------------------

    def init(self, name: str, *, timeout_ms: int = 60_000, expected: Producer | None = None) -> Answer:
        return self.ask(
            lambda fresh, reply: self.machine.init_producer_id(
                name,
                timeout_ms=timeout_ms,
                expected=expected,
                fresh=fresh,
                now_ms=self.now_ms,
                reply=reply,
            )
        )

    def add(self, name: str, producer: Producer, places: list[Place], *, version: int) -> Answer:
        return self.ask(
            lambda _fresh, reply: self.machine.add(
                name, producer, places, client_version=version, now_ms=self.now_ms, reply=reply
            )
        )

    def end(self, name: str, producer: Producer, *, commit: bool, version: int) -> Answer:
        return self.ask(
            lambda fresh, reply: self.machine.end(
                name,
                producer,
                commit=commit,
                client_version=version,
                fresh=fresh,
                now_ms=self.now_ms,
                reply=reply,
            )
        )

    def markers(self, name: str) -> Answer:
        self.marking.remove(name)
        return self.ask(lambda _fresh, reply: self.machine.complete(name, now_ms=self.now_ms, reply=reply))

    def abort(self, name: str) -> Answer:
        return self.ask(lambda fresh, reply: self.machine.abort(name, fresh=fresh, now_ms=self.now_ms, reply=reply))

    # -- words ---------------------------------------------------------------------------------------------------

    def play(self, line: str) -> list[str]:
        verb, *words = line.split()
        self.out = []
        getattr(self, f"_{verb}")(*words)
        return self.out

    def _say(self, name: str, answer: Answer) -> None:
        who = "" if answer.producer_id < 0 else f" {answer.producer_id}/{answer.producer_epoch}"
        self.out.append(f"{name}: {answer.code.name}{who}")

    def _init(self, name: str, *words: str) -> None:
        name = "" if name == '""' else name
        options = dict(word.split("=") for word in words if "=" in word)
        expected = parsed(options["as"]) if "as" in options else None
        self._say(name, self.init(name, timeout_ms=int(options.get("timeout", 60_000)), expected=expected))

    def _add(self, name: str, producer: str, *words: str) -> None:
        name = "" if name == '""' else name
        version = 2 if "v2" in words else 0
        chosen = places(word for word in words if word != "v2")
        self._say(name, self.add(name, parsed(producer), chosen, version=version))

    def _verify(self, name: str, producer: str, *words: str) -> None:
        name = "" if name == '""' else name
        codes = self.machine.verify(name, parsed(producer), places(words))
        self.out.append(
            f"{name}: " + " ".join(f"{topic}-{index}={code.name}" for (topic, index), code in codes.items())
        )

    def _end(self, name: str, producer: str, result: str, version: str = "") -> None:
        name = "" if name == '""' else name
        answer = self.end(name, parsed(producer), commit=result == "commit", version=2 if version else 0)
        self._say(name, answer)

    def _markers(self, name: str) -> None:
        self.markers(name)

    def _abort(self, name: str) -> None:
        self.abort(name)

    def _wait(self, duration_ms: str) -> None:
        self.now_ms += int(duration_ms)

    def _sweep(self) -> None:
        for name in self.machine.timed_out(self.now_ms):
            self.abort(name)

    def _expire(self) -> None:
        self.commit(self.machine.expire(self.now_ms))

    def _level(self, level: str) -> None:
        self.level = int(level)

    def _restart(self) -> None:
        self.machine = self.reloaded()
        self.marking = self.machine.deciding()
        self.out.append(f"  to carry out [{' '.join(self.marking)}]")

    def _show(self) -> None:
        self.out += [f"{name} {described(entry)}" for name, entry in sorted(self.machine.items())]

    def _open(self, place: str) -> None:
        topic, index = places([place])[0]
        self.out.append(f"  open in {place}: [{' '.join(self.machine.open_in(topic, index))}]")

    def _list(self, *words: str) -> None:
        options = dict(word.split("=") for word in words)
        found, unknown = self.machine.listed(
            states=options.get("state", "").split(",") if "state" in options else [],
            producer_ids=[int(number) for number in options.get("pid", "").split(",") if number],
            duration_ms=int(options.get("longer", -1)),
            matches=lambda name: name.startswith(options.get("prefix", "")),
            now_ms=self.now_ms,
        )
        names = " ".join(f"{name}={entry.state.shown}" for name, entry in sorted(found))
        self.out.append(f"  [{names}]" + (f" unknown [{' '.join(unknown)}]" if unknown else ""))

    def _set(self, name: str, producer: str, state: str, timeout_ms: str = "60000") -> None:
        chosen = parsed(producer)
        self.next_id = max(self.next_id, chosen.producer_id + 1)
        entry = Transaction(
            state=State[state],
            producer_id=chosen.producer_id,
            producer_epoch=chosen.epoch,
            previous_producer_id=chosen.producer_id,
            timeout_ms=int(timeout_ms),
            places=frozenset({("t", 0)}) if state == "ONGOING" else frozenset(),
            start_ms=self.now_ms if state == "ONGOING" else -1,
            updated_ms=self.now_ms,
        )
        self.write(StateRecord(LOG, name, entry))


def parsed(text: str) -> Producer:
    producer_id, epoch = text.split("/")
    return Producer(int(producer_id), int(epoch))


def places(words: Any) -> list[Place]:
    return [(topic, int(index)) for topic, _, index in (word.rpartition("-") for word in words)]


def shown(chosen: frozenset[Place]) -> str:
    return " ".join(f"{topic}-{index}" for topic, index in sorted(chosen))


def identity(entry: Transaction) -> str:
    return f"{entry.producer_id}/{entry.producer_epoch}"


def described(entry: Transaction) -> str:
    parts = [entry.state.shown, identity(entry)]
    if entry.last_producer_epoch >= 0:
        parts.append(f"last={entry.last_producer_epoch}")
    if entry.previous_producer_id != entry.producer_id:
        parts.append(f"before={entry.previous_producer_id}")
    if entry.next_producer_id >= 0:
        parts.append(f"next={entry.next_producer_id}")
    if entry.places:
        parts.append(f"[{shown(entry.places)}]")
    if entry.start_ms >= 0:
        parts.append(f"since {entry.start_ms}")
    if entry.client_version:
        parts.append(f"v{entry.client_version}")
    return " ".join(parts)
