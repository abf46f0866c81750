"""The client's half of an incremental fetch session (KIP-227), without I/O.

The first request names every partition; later ones name only what changed, and answers carry only partitions with
news. What holds: an answer is matched with the items of the request that asked for it and with nothing else; an answer
that names a partition nobody asked for drops the whole answer and begins a new session, as Kafka's own client does.
Names identify partitions here; topic ids are used on the wire from Fetch v13 on, when every topic has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kmirror.broker.mirror_seam import FetchItem
from kmirror.protocol import uuids
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from kmirror.protocol.errors import ErrorCode

FIRST_WITH_TOPIC_IDS = 13
LAST_WITH_NAMES = 12
_MAX_EPOCH = 0x7FFFFFFF
_NEW_SESSION_CODES = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Sent:
    """What the broker holds for one partition of the session; another value has to be sent."""

    topic_id: bytes
    fetch_offset: int
    current_leader_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchSession:
    """One per connection: a session does not outlive it here, since the broker's would expire unused anyway."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        """0: the next request names everything and asks for a new session."""
        self.uses_ids = False
        self._held: dict[Key, _Sent] = {}
        self._asked: dict[Key, FetchItem] = {}
        self._names: dict[bytes, str] = {}
        self._served: dict[Key, int] = {}
        self._serial = 0
        self._greeted: set[Key] = set()
        self.has_newcomers = False
        """The request made last asks for a partition that this connection never asked for: better not to wait long,
        since its high watermark is wanted even when there is nothing to fetch."""

    def request(self, items: Sequence[FetchItem], version: int) -> FetchRequest:
        """The request that asks for exactly `items`; limits and waits are the caller's to set."""
        uses_ids = version >= FIRST_WITH_TOPIC_IDS
        if uses_ids != self.uses_ids:  # a session is by names or by ids, never both (KIP-516)
            self.reset()
            self.uses_ids = uses_ids
        before, held = self._asked, self._held
        self._asked = {(item.topic, item.partition): item for item in items}
        wanted = {  # the plan hands out the same item while a partition is idle
            key: held[key] if before.get(key) is item and key in held else _sent_of(item)
            for key, item in self._asked.items()
        }
        self.has_newcomers = not self._greeted.issuperset(wanted)
        self._greeted |= wanted.keys()
        if self.epoch == 0:
            # a full answer is filled from the front: whoever was served last goes to the end
            changed = sorted(wanted, key=lambda key: self._served.get(key, 0))
            forgotten: list[Key] = []
            self._served = {key: at for key, at in self._served.items() if key in wanted}
        else:
            changed = [key for key, sent in wanted.items() if held.get(key) is not sent and held.get(key) != sent]
            forgotten = [
                key
                for key, sent in held.items()
                if key not in wanted or (uses_ids and wanted[key].topic_id != sent.topic_id)
            ]
        request = FetchRequest(session_id=self.session_id, session_epoch=self.epoch)
        request.topics = _by_topic(changed, wanted, uses_ids=uses_ids)
        request.forgotten_topics_data = _forgotten(forgotten, self._held, uses_ids=uses_ids)
        self._held = wanted
        self._names = {sent.topic_id: key[0] for key, sent in wanted.items()} if uses_ids else {}
        return request

    def take(self, response: Any) -> list[tuple[FetchItem, Any]]:
        """(item, PartitionData) of every partition in the answer, which may be none. Ends the session on an error."""
        if response.error_code:
            if response.error_code in _NEW_SESSION_CODES:
                self.session_id = 0
            self.reset()
            return []
        found: list[tuple[FetchItem, Any]] = []
        for topic in response.responses:
            name = self._names.get(topic.topic_id) if self.uses_ids else topic.topic
            for data in topic.partitions:
                item = self._asked.get((name, data.partition_index)) if name is not None else None
                if item is None:
                    self.reset()
                    return []
                found.append((item, data))
                if len(data.records or b""):
                    self._serial += 1
                    self._served[item.topic, item.partition] = self._serial
        self._step(response.session_id)
        return found

    @staticmethod
    def renewable(error_code: int) -> bool:
        """Whether this error of a whole answer only means that the session is gone."""
        return error_code in _NEW_SESSION_CODES

    def reset(self) -> None:
        """The next request names everything; the old session, if any, is closed by it."""
        self.epoch = 0
        self._held = {}

    def _step(self, session_id: int) -> None:
        if self.epoch == 0 and session_id == 0:  # the broker's cache is full: name everything again, every time
            self.session_id = 0
            self.reset()
        elif session_id != 0 and (self.epoch == 0 or session_id == self.session_id):
            self.session_id = session_id
            self.epoch = self.epoch + 1 if self.epoch < _MAX_EPOCH else 1
        else:
            self.session_id = 0
            self.reset()


def _sent_of(item: FetchItem) -> _Sent:
    return _Sent(item.topic_id, item.fetch_offset, item.source_leader_epoch, item.log_start_offset, item.max_bytes)


def has_ids(items: Sequence[FetchItem]) -> bool:
    return all(item.topic_id != uuids.ZERO for item in items)


def _by_topic(keys: Sequence[Key], wanted: dict[Key, _Sent], *, uses_ids: bool) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for key in keys:
        name, index = key
        sent = wanted[key]
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(topic_id=sent.topic_id) if uses_ids else FetchTopic(topic=name)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=sent.current_leader_epoch,
                fetch_offset=sent.fetch_offset,
                log_start_offset=sent.log_start_offset,
                partition_max_bytes=sent.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(keys: Sequence[Key], held: dict[Key, _Sent], *, uses_ids: bool) -> list[ForgottenTopic]:
    topics: dict[str, ForgottenTopic] = {}
    for key in keys:
        name, index = key
        topic = topics.get(name)
        if topic is None:
            identity = held[key].topic_id
            topic = topics[name] = ForgottenTopic(topic_id=identity) if uses_ids else ForgottenTopic(topic=name)
        topic.partitions.append(index)
    return list(topics.values())
