"""Fetch steps: offsets in, at and beyond the ends; sizes; waiting; isolation; epochs; ids; sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conformance.differential.sides import Side
from conformance.differential.story import UNKNOWN_ID, FetchSession, Step, Story
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

IDS_FROM, SESSIONS_FROM, EPOCHS_FROM, LAST_EPOCH_FROM, ZSTD_FROM = 13, 7, 9, 12, 10
WAIT_MS = 400
UNKNOWN_SESSION = 77_777_777
"""Not a high number: with those Kafka looks beyond its shards and answers UNKNOWN_SERVER_ERROR."""
UNLIMITED = 0x7FFF_FFFF


@dataclass(slots=True)
class Wanted:
    """One partition to fetch."""

    name: str
    index: int
    offset: int
    max_bytes: int = 1 << 20
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


def _lowest(story: Story) -> int:
    return ZSTD_FROM if story.zstd_topics else 4


def wanted(story: Story, version: int, *, calm: bool = False) -> Wanted:
    rng = story.rng
    topic = story.topic()
    if topic is None or (not calm and story.one_in(20)):
        return Wanted(rng.choice(["no-such-topic", "", "a b"]), 0, 0)
    index = story.partition(topic)
    if not calm and story.one_in(20):
        return Wanted(topic.name, rng.choice([topic.partition_count, -1]), 0)
    end = topic.ends.get(index, 0)
    offset = rng.choice([0, 0, 1, end // 2, max(0, end - 1), end, end])
    if not calm and story.one_in(6):
        offset = rng.choice([end + 1, -1, -2, end + 1000, 2**62])
    row = Wanted(topic.name, index, offset)
    if not calm and version >= EPOCHS_FROM and story.one_in(6):
        row.current_leader_epoch = rng.choice([0, 1, 5, -1])
    if not calm and version >= LAST_EPOCH_FROM and story.one_in(6):
        row.last_fetched_epoch = rng.choice([0, 1, 5])
    return row


def request(
    story: Story, side: Side, version: int, rows: list[Wanted], forget: list[tuple[str, int]] | None = None
) -> FetchRequest:
    """The Fetch of `rows`, topics in the order in which they come."""
    topics: dict[str, FetchTopic] = {}
    for row in rows:
        entry = topics.get(row.name)
        if entry is None:
            by_id = FetchTopic(topic_id=topic_id(story, side, row.name))
            entry = topics[row.name] = by_id if version >= IDS_FROM else FetchTopic(topic=row.name)
        partition = FetchPartition(
            partition=row.index, fetch_offset=row.offset, partition_max_bytes=row.max_bytes,
            current_leader_epoch=row.current_leader_epoch,
        )  # fmt: skip
        if version >= LAST_EPOCH_FROM:
            partition.last_fetched_epoch = row.last_fetched_epoch
        entry.partitions.append(partition)
    forgotten = []
    for name, index in forget or []:
        gone = ForgottenTopic(partitions=[index])
        if version >= IDS_FROM:
            gone.topic_id = topic_id(story, side, name)
        else:
            gone.topic = name
        forgotten.append(gone)
    return FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=UNLIMITED, topics=list(topics.values()),
        forgotten_topics_data=forgotten,
    )  # fmt: skip


def topic_id(story: Story, side: Side, name: str) -> bytes:
    known = story.topics.get(name)
    if known is not None:
        return known.ids[side.index]
    return UNKNOWN_ID  # never the zero id: two rows of it are a null pointer in Kafka


def facts(story: Story, rows: list[Wanted]) -> frozenset[str]:
    """Are stored bytes of any of these each broker's own?"""
    names = {row.name for row in rows}
    return frozenset({"rewritten"} if any(t.rewritten for t in story.topics.values() if t.name in names) else ())


def fetch(story: Story) -> Step:
    """Without a session."""
    rng = story.rng
    version = story.version("Fetch", lowest=_lowest(story))
    rows: list[Wanted] = []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        row = wanted(story, version)
        if (row.name, row.index) not in [(taken.name, taken.index) for taken in rows]:
            rows.append(row)
    marks = set(facts(story, rows))
    max_bytes = UNLIMITED
    if story.one_in(4) and "rewritten" not in marks:
        marks.add("prefix")
        max_bytes = rng.choice([UNLIMITED, 0, 1, 150, 400])
        for row in rows:
            row.max_bytes = rng.choice([1 << 20, 0, 1, 100, 300])
    max_wait_ms, min_bytes = 0, rng.choice([0, 1, 1000])
    if story.one_in(6):
        max_wait_ms, min_bytes = WAIT_MS, rng.choice([0, 1, 1, 100_000_000])
    if min_bytes > 1 and max_wait_ms:
        marks.add("many bytes")
    isolation = rng.choice([0, 0, 1])
    if isolation and max_wait_ms:
        for row in rows:  # beyond the last stable offset Kafka answers at once, kmirror waits for it
            if row.name in story.topics:
                row.offset = min(row.offset, max(0, story.sides[0].stable(row.name, row.index)))
    use_session = version >= SESSIONS_FROM and story.one_in(12)

    def build(side: Side) -> FetchRequest:
        message = request(story, side, version, rows)
        message.max_wait_ms, message.min_bytes, message.isolation_level = max_wait_ms, min_bytes, isolation
        message.max_bytes = max_bytes
        if use_session:
            message.session_id, message.session_epoch = 12345, -1
        return message

    what = f"{rows} wait {max_wait_ms} min {min_bytes} max {max_bytes} isolation {isolation}"
    return Step("Fetch", version, what, build, wait_ms=max_wait_ms, facts=frozenset(marks))


def fetch_session(story: Story) -> Step | None:
    """Opens a session, goes on with one, forgets, breaks or closes it."""
    if not story.topics:
        return None
    rng = story.rng
    if not story.sessions or story.one_in(5):
        return _open_session(story)
    session = rng.choice(story.sessions)
    low, high = story.versions("Fetch")
    in_kind = (max(IDS_FROM, low), high) if session.by_id else (max(SESSIONS_FROM, low), min(IDS_FROM - 1, high))
    wrong_kind = (max(SESSIONS_FROM, low), IDS_FROM - 1) if session.by_id else (IDS_FROM, high)
    kind = rng.choice(["next"] * 10 + ["wrong epoch", "wrong id", "wrong version", "close"])
    version = max(_lowest(story), rng.randint(*(wrong_kind if kind == "wrong version" else in_kind)))
    rows = [wanted(story, version) for _ in range(rng.choice([0, 0, 1, 2]))]
    rows = list({(row.name, row.index): row for row in rows}.values())
    forget = []
    if session.partitions and story.one_in(4):
        forget = [rng.choice(session.partitions)]
    if story.one_in(20):
        forget.append(("no-such-topic", 0))
    epoch = {"next": session.epoch, "wrong epoch": session.epoch + 7, "close": -1}.get(kind, session.epoch)
    isolation = rng.choice([0, 0, 1])

    def build(side: Side) -> FetchRequest:
        message = request(story, side, version, rows, forget)
        message.session_id = (
            session.ids[side.index] if kind != "wrong id" else UNKNOWN_SESSION
        )  # high ones make Kafka look beyond its shards
        message.session_epoch, message.isolation_level = epoch, isolation
        return message

    def after(left: Any, _right: Any) -> None:
        if kind == "close" or left.error_code in (70,):
            story.sessions.remove(session) if kind != "wrong id" else None
        elif kind == "next" and left.error_code == 0:
            session.epoch += 1
            session.partitions += [(row.name, row.index) for row in rows]
            session.partitions = [entry for entry in dict.fromkeys(session.partitions) if entry not in forget]
            if left.session_id == 0:
                story.sessions.remove(session)

    known = [*rows, *(Wanted(name, index, 0) for name, index in session.partitions)]
    what = f"session {kind}, epoch {epoch}: {rows} forget {forget}"
    return Step("Fetch", version, what, build, after, repeatable=False, facts=facts(story, known))


def _open_session(story: Story) -> Step:
    rng = story.rng
    version = story.version("Fetch", lowest=max(SESSIONS_FROM, _lowest(story)))
    rows = [wanted(story, version, calm=rng.randrange(4) > 0) for _ in range(rng.choice([1, 2, 4]))]
    rows = list({(row.name, row.index): row for row in rows}.values())

    def build(side: Side) -> FetchRequest:
        message = request(story, side, version, rows)
        message.session_epoch = 0
        return message

    def after(left: Any, right: Any) -> None:
        if left.error_code == 0 and left.session_id != 0:
            entries = [(row.name, row.index) for row in rows]
            ids = (left.session_id, right.session_id)
            story.sessions.append(FetchSession(ids, 1, version >= IDS_FROM, entries))
            del story.sessions[:-3]

    return Step("Fetch", version, f"session open: {rows}", build, after, repeatable=False, facts=facts(story, rows))
