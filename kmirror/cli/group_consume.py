"""`kmirror consume --group`: reads what the group gives this member, commits, and leaves the group at the end.

What holds, at least once: a record counts as read when it has been handed on, and only those are committed: every few
seconds, before a rebalance, and at the end, whatever ends it (enough records, silence, Ctrl-C, a reader of the pipe
that has gone). Offsets are committed with the leader epoch of their last record (KIP-320).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

import trio

from kmirror.cli import group_offsets
from kmirror.cli.display import note
from kmirror.cli.failure import BadUsage
from kmirror.cli.group_member import GroupMember, MemberSettings
from kmirror.cli.group_offsets import Committed
from kmirror.cli.partition_reader import CannotRead, OutOfRange, PartitionReader
from kmirror.cli.queries import offsets_at
from kmirror.cli.record_display import print_record, visible_records
from kmirror.cli.session import Session
from kmirror.protocol.errors import is_retriable
from kmirror.protocol.records import Record
from kmirror.source import calls
from kmirror.source.calls import Partition
from kmirror.source.cluster import Cluster
from kmirror.source.errors import PeerError, UnsupportedByPeer

COMMIT_INTERVAL_S = 5.0
"""Kafka's auto.commit.interval.ms."""
IDLE_S = 0.1
"""Pause between two looks at partitions that had nothing."""
LONG_POLL_MS = 500
"""How long one Fetch may wait when there is only one partition, and so nothing else to look at."""
READ_PATIENCE_S = 30.0
"""How long a partition may be unreadable (its leader moves, its broker restarts) before that is the end."""
LEAVE_WITHIN_S = 5.0
RECORDS_BETWEEN_CHECKPOINTS = 200
"""A slow terminal must not keep the heartbeats from going out."""

Take = Callable[[str, int, Record], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    group: str
    topics: list[str]
    instance_id: str | None = None
    start: int = calls.EARLIEST
    isolation_level: int = calls.READ_UNCOMMITTED
    max_records: int | None = None
    timeout_s: float = 5.0
    """Seconds of silence after which reading ends; 0: never."""


def run(session: Session, options: Options, *, as_json: bool) -> int:
    """Print until the end. Returns the exit status: 0, or 128 + the number of the signal that ended it."""
    if not options.topics:
        raise BadUsage("--topic names no topic")

    def show(topic: str, partition: int, record: Record) -> None:
        print_record(topic, partition, record, as_json=as_json, name_topic=len(options.topics) > 1)

    async def body(cluster: Cluster) -> int:
        reading = GroupReading(cluster, options, show)
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                ended_by = 0

                async def stop_at_a_signal() -> None:
                    nonlocal ended_by
                    async for number in signals:
                        ended_by = number
                        reading.stop()

                nursery.start_soon(stop_at_a_signal)
                await reading.run()
                nursery.cancel_scope.cancel()
        if ended_by:
            if options.instance_id is None:
                note(f"stopped; group {options.group} left")
            else:
                note(f"stopped; {options.instance_id} stays in group {options.group} until its session times out")
        return 128 + ended_by if ended_by else 0

    return session.run(body)


class GroupReading:
    """One membership, from joining to leaving."""

    def __init__(self, cluster: Cluster, options: Options, take: Take) -> None:
        self.cluster = cluster
        self.options = options
        self.take = take
        self.taken = 0
        settings = MemberSettings(instance_id=options.instance_id)
        self.member = GroupMember(cluster, options.group, options.topics, settings)
        self._readers: dict[Partition, PartitionReader] = {}
        self._positions: dict[Partition, Committed] = {}
        self._committed: dict[Partition, Committed] = {}
        self._unreadable_since_s: dict[Partition, float] = {}
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        """End reading, commit, leave; may be called more than once."""
        self._scope.cancel()

    async def run(self) -> None:
        """Until enough was read, or silence, or `stop`. Raises Failure, PeerError, DecodeError."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.member.heartbeats)
            try:
                with self._scope:
                    await self._read_all()
            finally:
                with trio.move_on_after(LEAVE_WITHIN_S, shield=True) as limit:
                    await self._commit()
                    await self.member.leave()
                if limit.cancelled_caught:
                    note(f"the coordinator of group {self.options.group} does not answer; not everything is committed")
            nursery.cancel_scope.cancel()

    async def _read_all(self) -> None:
        heard_at_s = committed_at_s = trio.current_time()
        while not self._has_enough():
            if self.member.rejoin_needed:
                await self._rejoin()
                heard_at_s = committed_at_s = trio.current_time()
            silent = True
            for key in list(self._readers):
                silent = not await self._read(key) and silent
                if self._has_enough() or self.member.rejoin_needed:
                    break
            now_s = trio.current_time()
            if now_s - committed_at_s >= COMMIT_INTERVAL_S:
                await self._commit()
                committed_at_s = now_s
            if not silent:
                heard_at_s = now_s
                continue
            if self.options.timeout_s and now_s - heard_at_s >= self.options.timeout_s:
                return
            if len(self._readers) != 1 or self._unreadable_since_s:
                await trio.sleep(IDLE_S)

    def _has_enough(self) -> bool:
        return self.options.max_records is not None and self.taken >= self.options.max_records

    # --- rebalances

    async def _rejoin(self) -> None:
        await self._commit()
        self._readers, self._positions, self._committed = {}, {}, {}
        self._unreadable_since_s = {}
        partitions = await self.member.join()
        self._committed = await group_offsets.committed(self.member.coordinator, partitions, stable=True)
        new = group_offsets.by_topic(key for key in partitions if key not in self._committed)
        starts = {key: value.offset for key, value in self._committed.items()}
        for topic, indexes in new.items():
            found = await offsets_at(self.cluster, topic, indexes, self.options.start)
            starts |= {(topic, index): offset for index, offset in found.items()}
        self._readers = {key: self._reader(key, starts[key]) for key in partitions}

    def _reader(self, key: Partition, offset: int) -> PartitionReader:
        return PartitionReader(self.cluster, *key, offset=offset, isolation_level=self.options.isolation_level)

    # --- reading

    async def _read(self, key: Partition) -> bool:
        """One Fetch. False when there was nothing."""
        reader = self._readers[key]
        first = reader.next_offset
        wait_ms = LONG_POLL_MS if len(self._readers) == 1 else 0
        try:
            batches, aborted = await reader.fetch(wait_ms=wait_ms)
        except OutOfRange as error:
            await self._start_anew(key, error)
            return True
        except (CannotRead, PeerError) as error:
            self._bear(key, error)
            return False
        self._unreadable_since_s.pop(key, None)
        if not batches:
            return False
        epoch = batches[-1].header.leader_epoch
        for record in visible_records(batches, aborted, first, self.options.isolation_level):
            self.take(key[0], key[1], record)
            self.taken += 1
            self._positions[key] = Committed(record.offset + 1, epoch)
            if self._has_enough():
                return True
            if self.taken % RECORDS_BETWEEN_CHECKPOINTS == 0:
                await trio.lowlevel.checkpoint()
        self._positions[key] = Committed(reader.next_offset, epoch)
        return True

    async def _start_anew(self, key: Partition, error: OutOfRange) -> None:
        """What Kafka calls auto.offset.reset: the log does not hold the offset any more, or not yet."""
        offset = (await offsets_at(self.cluster, key[0], [key[1]], self.options.start))[key[1]]
        note(f"{error.message}; reading on at {offset}")
        self._readers[key] = self._reader(key, offset)
        self._positions[key] = Committed(offset)

    def _bear(self, key: Partition, error: CannotRead | PeerError) -> None:
        """Raises `error` when it will not pass, or has not passed for long."""
        now_s = trio.current_time()
        since_s = self._unreadable_since_s.setdefault(key, now_s)
        lasting = isinstance(error, UnsupportedByPeer) or (
            isinstance(error, CannotRead) and not is_retriable(error.code)
        )
        if lasting or now_s - since_s >= READ_PATIENCE_S:
            raise error

    async def _commit(self) -> None:
        if self.member.was_thrown_out:
            return
        changed = {key: value for key, value in self._positions.items() if self._committed.get(key) != value}
        if changed and await self.member.commit(changed):
            self._committed |= changed
