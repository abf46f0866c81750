"""Carrying out the decision on one transaction: a marker in every partition, then the record of its end. L3.

Kafka: TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler. What must hold: the end is recorded
only when every marker is on disk, so a power cut anywhere leaves a decision that boot carries out again (a partition
may get a second marker then, as in Kafka); and nothing can keep a decided transaction from ending for ever.

A partition is left out where no marker can be needed: its topic was deleted; its log is read-only, since a mirror has
it, and whatever the transaction wrote there was ended or cut before the mirror took the log over; or its log knows a
newer epoch of the producer or the coordinator, which has ended this transaction (Kafka then stops in the middle and
leaves the id in its Prepare state). What a full disk refuses is tried again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from kmirror.broker.runtime import Runtime
from kmirror.coordinator.transaction_entry import Transaction
from kmirror.effects import LogId, Place, Promise
from kmirror.errors import ApiError
from kmirror.limits import TRANSACTION_MARKER_RETRY_MS, TRANSACTION_MARKERS_PER_TURN
from kmirror.protocol.errors import ErrorCode

log = logging.getLogger("kmirror.broker")

_SOON_MS: Final = 1
"""Not before the others have had their turn."""
_NEEDS_NONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.READ_ONLY_TOPIC,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)


class MarkerRound:
    """The markers of one decided transaction. `done` is called once, when all of them are on disk."""

    def __init__(
        self,
        runtime: Runtime,
        transactional_id: str,
        entry: Transaction,
        *,
        coordinator_epoch: int,
        done: Callable[[MarkerRound], None],
    ) -> None:
        self._runtime = runtime
        self.transactional_id = transactional_id
        self._entry = entry
        self._coordinator_epoch = coordinator_epoch
        self._done = done
        self._left = deque(sorted(entry.places))
        self._refused: list[Place] = []
        """By a full disk: they come after those that were never tried."""
        self._in_flight = 0
        self.finished = False

    def write(self) -> int | None:
        """Write some of the markers that are still to be written: others are served between two calls.

        Returns the milliseconds until it is to be called again, None when all that can be written is.
        """
        self._in_flight += 1  # this call: a flush may be over at once
        for _ in range(min(len(self._left), TRANSACTION_MARKERS_PER_TURN)):
            place = self._left.popleft()
            self._in_flight += 1
            try:
                flushed = self._append(place)
            except ApiError as error:
                self._in_flight -= 1
                self._refuse(place, error)
            else:
                flushed.then(lambda _done: self._flushed())
        self._in_flight -= 1
        if self._left:
            return _SOON_MS
        self._left.extend(self._refused)
        self._refused.clear()
        self._finish_if_done()
        return TRANSACTION_MARKER_RETRY_MS if self._left else None

    def _append(self, place: Place) -> Promise[None]:
        entry = self._entry
        return self._runtime.append_marker(
            LogId(*place),
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            coordinator_epoch=self._coordinator_epoch,
            commit=entry.commits,
            transaction_version=entry.client_version,
        )

    def _refuse(self, place: Place, error: ApiError) -> None:
        where = f"{place[0]}-{place[1]}"
        if error.code in _NEEDS_NONE:
            log.info("transaction of %s: no marker in %s: %s", self.transactional_id, where, error.message)
            return
        log.warning("transaction of %s: a marker in %s is tried again: %s", self.transactional_id, where, error.message)
        self._refused.append(place)

    def _flushed(self) -> None:
        self._in_flight -= 1
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._left and not self._refused and not self._in_flight and not self.finished:
            self.finished = True
            self._done(self)
