"""Fetch: sessions (KIP-227), the partition loop, and which rows an answer holds. L3.

A Fetch is begun once (`FetchSessions.begin`), gathered as often as somebody wakes it, and answered once (`respond`).
Waiting is L4's: `gather` says whether to answer now, `subscribe` who will wake it. The bytes stay in files.

What must hold: every row without an error has high watermark, last stable offset and log start, and records that are
never null; the first partition with data gives at least one batch, whatever the limits; an incremental answer has
exactly the rows with data, an error, or a changed high watermark or log start. A row whose reading fails ends the
waiting of all; a row whose partition was not here when the request came does not, as in Kafka (KafkaApis sets such
rows aside, ReplicaManager never sees them): a session with a deleted topic in it would otherwise never wait again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmirror.broker.partition import READ_COMMITTED, Partition, PartitionRead
from kmirror.clock import Clock
from kmirror.errors import ApiError
from kmirror.limits import FETCH_SESSION_EVICTION_MS
from kmirror.protocol.api.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchLeaderIdAndEpoch,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kmirror.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kmirror.broker.world import World

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
NO_SESSION = 0
MAX_SESSION_ID = 2**31 - 1
FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_ZSTD = 10
FIRST_WITH_CURRENT_LEADER = 16
"""KIP-951; before version 12 the field cannot even be written."""

Key = tuple[str | bytes, int]
"""(topic name below version 13, topic id from there on; partition)"""


class Row:
    """One partition of a Fetch or of a session: what was asked, and what the fetcher was last told."""

    __slots__ = ("found", "high_watermark", "index", "log_start_offset", "requested", "topic")

    def __init__(self, topic: str | bytes, index: int, requested: FetchPartition) -> None:
        self.topic = topic
        self.index = index
        self.requested = requested
        self.high_watermark = -1
        self.log_start_offset = -1
        self.found = False
        """Its topic id was known at least once: from then on a missing topic is said of its name, as in Kafka."""


@dataclass(slots=True)
class Answer:
    """What one row gets. `read` is None exactly when there is an error code."""

    row: Row
    error_code: int
    read: PartitionRead | None
    partition: Partition | None


@dataclass(slots=True)
class Gathered:
    """`ready`: answer now. Else wait for any of `partitions`, or for the request's time to run out."""

    answers: list[Answer]
    size_bytes: int
    ready: bool
    partitions: list[Partition]


class Session:
    """The partitions one fetcher is interested in, in the order in which they are served."""

    __slots__ = ("created_ms", "epoch", "rows", "session_id", "used_ms", "uses_topic_ids")

    def __init__(self, session_id: int, rows: dict[Key, Row], *, uses_topic_ids: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.rows = rows
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)


def next_epoch(epoch: int) -> int:
    """FetchMetadata.nextEpoch: 1 again after the greatest int32; the final epoch stays."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == MAX_SESSION_ID else epoch + 1


class FetchSessions:
    """All incremental sessions of the broker; at most `slots` (max.incremental.fetch.session.cache.slots)."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self.slots = slots
        self._clock = clock
        self._sessions: dict[int, Session] = {}
        """Least recently used first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, world: World, request: FetchRequest, api_version: int) -> FetchContext:
        """Find or leave the session that the request names (FetchManager.newContext)."""
        with_ids = api_version >= FIRST_WITH_TOPIC_IDS
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._sessions.pop(request.session_id, None)
            rows = dict(_rows(request, with_ids))
            wants_session = request.session_epoch == INITIAL_EPOCH
            return FetchContext(world, self, request, api_version, rows, wants_session=wants_session)
        session = self._sessions.get(request.session_id)
        error = ErrorCode.NONE
        if session is None:
            error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        elif session.epoch != request.session_epoch:
            error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        elif session.uses_topic_ids != with_ids:
            error = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if error or session is None:
            return FetchContext(world, self, request, api_version, {}, error_code=error)
        self._update(session, request, with_ids)
        if not session.rows:
            del self._sessions[session.session_id]  # what was asked for with it is answered without a session
            return FetchContext(world, self, request, api_version, dict(_rows(request, with_ids)))
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
        session.used_ms = self._clock.monotonic_ms()
        session.epoch = next_epoch(session.epoch)
        return FetchContext(world, self, request, api_version, session.rows, session=session)

    def _update(self, session: Session, request: FetchRequest, with_ids: bool) -> None:
        for key, row in _rows(request, with_ids):
            known = session.rows.get(key)
            if known is None:
                session.rows[key] = row
            else:
                known.requested = row.requested
        for topic in request.forgotten_topics_data:
            name = bytes(topic.topic_id) if with_ids else topic.topic
            for index in topic.partitions:
                session.rows.pop((name, index), None)

    def create(self, rows: dict[Key, Row], *, uses_topic_ids: bool) -> Session | None:
        """A new session, when there is room or a session that must give way to it; None otherwise."""
        now_ms = self._clock.monotonic_ms()
        if len(self._sessions) >= self.slots and not self._evict(len(rows), now_ms):
            return None
        session_id = random.randint(1, MAX_SESSION_ID)
        while session_id in self._sessions:
            session_id = random.randint(1, MAX_SESSION_ID)
        session = Session(session_id, rows, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        self._sessions[session_id] = session
        return session

    def _evict(self, size: int, now_ms: int) -> bool:
        """FetchSessionCacheShard.tryEvict: the longest unused one, or an old one smaller than the newcomer."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > FETCH_SESSION_EVICTION_MS:
            del self._sessions[oldest.session_id]
            return True
        old = [s for s in self._sessions.values() if now_ms - s.created_ms > FETCH_SESSION_EVICTION_MS]
        smallest = min(old, key=lambda session: (len(session.rows), session.session_id), default=None)
        if smallest is None or len(smallest.rows) >= size:
            return False
        del self._sessions[smallest.session_id]
        return True


def _rows(request: FetchRequest, with_ids: bool) -> Iterable[tuple[Key, Row]]:
    for topic in request.topics:
        name: str | bytes = bytes(topic.topic_id) if with_ids else topic.topic
        for requested in topic.partitions:
            yield (name, requested.partition), Row(name, requested.partition, requested)


class FetchContext:
    """One Fetch on its way. Keeps nothing of the request's frame, so it may be parked."""

    def __init__(
        self,
        world: World,
        sessions: FetchSessions,
        request: FetchRequest,
        api_version: int,
        rows: dict[Key, Row],
        *,
        session: Session | None = None,
        wants_session: bool = False,
        error_code: int = 0,
    ) -> None:
        self._world = world
        self._sessions = sessions
        self._rows = rows
        self._session = session
        self._session_epoch = session.epoch if session is not None else 0
        self._wants_session = wants_session
        self._with_ids = api_version >= FIRST_WITH_TOPIC_IDS
        self._names_leader = api_version >= FIRST_WITH_CURRENT_LEADER
        self._zstd_allowed = api_version >= FIRST_WITH_ZSTD
        self._handles: list[tuple[Partition, int]] = []
        self._absent: frozenset[int] | None = None
        """Rows (by identity) whose partition was not here when the request came; None before the first gathering."""
        self.error_code = error_code
        self.isolation_level = request.isolation_level
        self.max_wait_ms = request.max_wait_ms
        self.max_bytes = min(request.max_bytes, world.config.integer("fetch.max.bytes"))
        self.min_bytes = min(request.min_bytes, self.max_bytes)

    # -- gathering -----------------------------------------------------------------------------------------------

    def gather(self) -> Gathered:
        """Read every partition once, in order, within the limits (ReplicaManager.readFromLog)."""
        answers: list[Answer] = []
        absent: list[Answer] = []
        partitions: list[Partition] = []
        size_bytes = 0
        now = self.max_wait_ms <= 0
        for row in self._rows.values():
            answer = self._read(row, size_bytes)
            if answer.partition is None and (self._absent is None or id(row) in self._absent):
                absent.append(answer)
                continue
            answers.append(answer)
            if answer.read is None or answer.read.diverging is not None:
                now = True
            else:
                size_bytes += answer.read.size_bytes
            if answer.partition is not None:
                partitions.append(answer.partition)
        if self._absent is None:
            self._absent = frozenset(id(answer.row) for answer in absent)
        absent.sort(key=lambda answer: answer.error_code != ErrorCode.UNKNOWN_TOPIC_ID)  # the order of KafkaApis
        ready = now or not answers or size_bytes >= self.min_bytes
        return Gathered(answers + absent, size_bytes, ready, partitions)

    def _read(self, row: Row, taken_bytes: int) -> Answer:
        partition: Partition | None = None
        requested = row.requested
        try:
            if isinstance(row.topic, bytes):
                row.found = row.found or row.topic in self._world.image.topics_by_id
                partition = self._world.partition_by_id(row.topic, row.index)
            else:
                partition = self._world.partition(row.topic, row.index)
            if not self._zstd_allowed and partition.log.config.compression_type == "zstd":
                raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            read = partition.read(
                requested.fetch_offset,
                max_bytes=max(0, min(requested.partition_max_bytes, self.max_bytes - taken_bytes)),
                isolation_level=self.isolation_level,
                at_least_one=taken_bytes == 0,
                current_leader_epoch=requested.current_leader_epoch,
                last_fetched_epoch=requested.last_fetched_epoch,
            )
        except ApiError as error:
            code = _fetch_code(error.code)
            if code == ErrorCode.UNKNOWN_TOPIC_ID and row.found:
                code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return Answer(row, code, None, partition)
        return Answer(row, 0, read, partition)

    # -- waiting -------------------------------------------------------------------------------------------------

    def subscribe(self, gathered: Gathered, wake: Callable[[], None]) -> None:
        """Call `wake` when any of the partitions may have more to say. Undone by `unsubscribe`."""
        self._handles += [(partition, partition.subscribe(wake)) for partition in gathered.partitions]

    def unsubscribe(self) -> None:
        handles, self._handles = self._handles, []
        for partition, handle in handles:
            partition.unsubscribe(handle)

    # -- answering -----------------------------------------------------------------------------------------------

    def respond(self, gathered: Gathered) -> FetchResponse:
        """The response; opens, advances or leaves the session. Call once."""
        session = self._session
        if self.error_code:
            return FetchResponse(error_code=self.error_code)
        if session is not None:
            if session.epoch != self._session_epoch:
                return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id)
            chosen = self._changed(session, gathered.answers)
        else:
            chosen = gathered.answers
            if self._wants_session and self._rows:
                rows = {(answer.row.topic, answer.row.index): answer.row for answer in chosen}  # the answer's order
                session = self._sessions.create(rows, uses_topic_ids=self._with_ids)
                for answer in chosen:
                    _remember(answer)
        return FetchResponse(
            session_id=NO_SESSION if session is None else session.session_id, responses=self._grouped(chosen)
        )

    def _changed(self, session: Session, answers: list[Answer]) -> list[Answer]:
        """Rows that an incremental answer must hold; those with data are served last next time."""
        chosen: list[Answer] = []
        for answer in answers:
            row, read = answer.row, answer.read
            if read is None:
                chosen.append(answer)
                row.high_watermark = -1  # sent again when the error is gone
                continue
            if (
                read.size_bytes
                or read.diverging is not None
                or read.high_watermark != row.high_watermark
                or read.log_start_offset != row.log_start_offset
            ):
                chosen.append(answer)
                _remember(answer)
            key = (row.topic, row.index)
            if read.size_bytes and key in session.rows:
                session.rows[key] = session.rows.pop(key)
        return chosen

    def _grouped(self, answers: list[Answer]) -> list[FetchableTopicResponse]:
        """Neighbouring rows of one topic share an entry (FetchResponse.toMessage)."""
        grouped: list[FetchableTopicResponse] = []
        last: str | bytes | None = None
        for answer in answers:
            topic = answer.row.topic
            if topic != last:
                last = topic
                grouped.append(
                    FetchableTopicResponse(topic_id=topic)
                    if isinstance(topic, bytes)
                    else FetchableTopicResponse(topic=topic)
                )
            grouped[-1].partitions.append(self._partition_data(answer))
        return grouped

    def _partition_data(self, answer: Answer) -> PartitionData:
        read = answer.read
        if read is None:
            row = PartitionData(partition_index=answer.row.index, error_code=answer.error_code, high_watermark=-1)
            if answer.partition is not None:  # null for what could not be read, empty for what is not here: as in Kafka
                row.aborted_transactions = None
            fenced = answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
            if fenced and self._names_leader and answer.partition is not None:
                row.current_leader = FetchLeaderIdAndEpoch(
                    leader_id=self._world.node_id, leader_epoch=answer.partition.leader_epoch
                )
            return row
        row = PartitionData(
            partition_index=answer.row.index,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            aborted_transactions=None,
            records=list(read.slices),
        )
        if self.isolation_level == READ_COMMITTED and read.diverging is None:
            row.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in read.aborted or ()
            ]
        if read.diverging is not None:
            row.diverging_epoch = FetchEpochEndOffset(epoch=read.diverging[0], end_offset=read.diverging[1])
        return row


def _remember(answer: Answer) -> None:
    read = answer.read
    answer.row.high_watermark = -1 if read is None else read.high_watermark
    answer.row.log_start_offset = -1 if read is None else read.log_start_offset


FETCH_CODES = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Row codes that deployed consumers handle; any other kills a Java consumer with IllegalStateException."""


def _fetch_code(code: int) -> int:
    return code if code in FETCH_CODES else int(ErrorCode.UNKNOWN_SERVER_ERROR)
