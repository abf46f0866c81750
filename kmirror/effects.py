"""What pure machines hand back, and the promise that joins synchronous layers to waiting callers. L0.

A machine never does anything: it returns `Effects`. The runtime (`kmirror.broker.runtime`) appends `records`, calls
`replay` on each (the only place where state changes), waits until the logs named in `durable` are on disk, then
releases `replies` and starts `actions`. Boot replays the same records, so there is no second recovery path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_UNSET: Any = object()


class Promise(Generic[T]):
    """A value that is settled once, later, on the event loop. Callbacks run in the order they were added.

    L3 returns one where an answer needs a flush; L4 awaits it (`kmirror.server.waiting`). Not thread safe: it is
    settled and read on the loop only.
    """

    __slots__ = ("_callbacks", "_error", "_value")

    def __init__(self) -> None:
        self._value: T = _UNSET
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Promise[T]], None]] = []

    @classmethod
    def of(cls, value: T) -> Promise[T]:
        promise: Promise[T] = cls()
        promise.resolve(value)
        return promise

    @property
    def done(self) -> bool:
        return self._value is not _UNSET or self._error is not None

    def result(self) -> T:
        """The value, or raises the error it was failed with. Raises RuntimeError when it is not done."""
        if self._error is not None:
            raise self._error
        if self._value is _UNSET:
            raise RuntimeError("promise is not settled yet")
        return self._value

    def resolve(self, value: T) -> None:
        if self.done:
            raise RuntimeError("promise is settled already")
        self._value = value
        self._run()

    def fail(self, error: Exception) -> None:
        if self.done:
            raise RuntimeError("promise is settled already")
        self._error = error
        self._run()

    def follow(self, other: Promise[T]) -> None:
        """Settle as `other` did, which is settled: the callback of whoever hands its answer on."""
        try:
            value = other.result()
        except Exception as error:
            self.fail(error)
        else:
            self.resolve(value)

    def then(self, callback: Callable[[Promise[T]], None]) -> None:
        """Call `callback(self)` when settled; at once when it is settled already."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _run(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


Place = tuple[str, int]
"""(topic, partition)."""


@dataclass(frozen=True, slots=True)
class LogId:
    """Names a log that holds state: ("__mirror_state", 12), ("__cluster_metadata", 0)."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One record of an internal log, still typed. `key` is None in the metadata log; `value` None is a tombstone.

    `producer_id` is filled in for replay: whose transaction the record belongs to, -1 for none. Such a record counts
    once that transaction has ended with a COMMIT marker in its log.
    """

    log: LogId
    key: object | None
    value: object | None
    producer_id: int = -1


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """The producer whose open transaction a commit's records belong to."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Timer:
    """Ask for `event` to be stepped again after `delay_ms`. A later timer of the same key replaces an earlier one."""

    key: str
    delay_ms: int
    event: object


@dataclass(slots=True)
class Effects:
    """See the module head. `records` of one log form one batch: they become durable together or not at all.

    `producer`: they are written as transactional batches of that producer (TxnOffsetCommit).
    """

    records: list[StateRecord] = field(default_factory=list)
    durable: list[LogId] = field(default_factory=list)
    replies: list[tuple[Promise[Any], object]] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    actions: list[object] = field(default_factory=list)
    producer: ProducerBatch | None = None
