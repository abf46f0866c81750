"""What mirrors look like from outside: list, describe, states, offsets, configurations. L3.

What may live here: read-only views, and the two requests that other nodes would send to a coordinator
(WriteMirrorStates, BumpLeaderEpochs). What must hold: unknown is None in rows, never -1; a write of a state keeps the
transition table, and STOPPED is taken only from the partition's own seal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kmirror.broker import config_table as kinds
from kmirror.broker import mirror_seam as seam
from kmirror.broker.mirror_operator import need
from kmirror.broker.mirror_partition import MirroredPartition
from kmirror.broker.mirror_waiting import gather
from kmirror.broker.partition import Partition
from kmirror.broker.topic_config import ConfigEntry
from kmirror.effects import Effects, Promise
from kmirror.errors import ApiError
from kmirror.mirror import desired as wishes
from kmirror.mirror import events as ev
from kmirror.mirror.alignment import Lineage
from kmirror.mirror.config import SETTINGS
from kmirror.mirror.machine import Write
from kmirror.mirror.retry import NOT_RETRIED
from kmirror.mirror.states import State, allowed
from kmirror.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kmirror.broker.mirroring import Mirror, Mirrors

DYNAMIC_CLUSTER_MIRROR: Final = 9
"""ConfigSource of a mirror's own value. Kafka 4.4 uses 1 to 8; uncertain in the KIP."""
DEFAULT_CONFIG: Final = 5
_SECRETS: Final = ("password", "jaas", "secret", "key", "token")
ALIGNED: Final = frozenset({State.MIRRORING, State.PAUSING, State.PAUSED, State.EPOCH_FENCING, State.ULE_RECOVERY})


# --- list and describe ----------------------------------------------------------------------------------------------


def listing(
    mirrors: Mirrors,
    *,
    name: str | None = None,
    source_cluster_id: str | None = None,
    desired: Iterable[str] | None = None,
) -> list[seam.MirrorListing]:
    """All mirrors, sorted. `name` and `source_cluster_id` drop mirrors, `desired` only filters topic names (default
    MIRRORING and PAUSED)."""
    states = {"MIRRORING", "PAUSED"} if desired is None else {state.upper() for state in desired}
    rows = []
    for mirror in sorted(mirrors.mirrors.values(), key=lambda m: m.name):
        cluster_id = mirror.settings.source_cluster_id
        if (name is not None and mirror.name != name) or source_cluster_id not in (None, cluster_id):
            continue
        topics = sorted(n for n, t in mirror.topics.items() if t.association.desired.value in states)
        rows.append(
            seam.MirrorListing(
                name=mirror.name,
                source_bootstrap=mirror.config.text("bootstrap.servers"),
                source_cluster_id=cluster_id,
                topic_names=topics,
            )
        )
    return rows


def describe(
    mirrors: Mirrors,
    names: Sequence[str] | None = None,
    *,
    topics: Mapping[str, Sequence[int] | None] | None = None,
) -> list[seam.MirrorDescription]:
    """`names` None or empty: all. `topics`: only these (and of each only these partitions; None = all). An unknown name
    is left out; the caller answers it with 137."""
    chosen = sorted(mirrors.mirrors) if not names else [n for n in names if n in mirrors.mirrors]
    return [
        seam.MirrorDescription(
            name=name,
            source_bootstrap=mirrors.mirrors[name].config.text("bootstrap.servers"),
            source_cluster_id=mirrors.mirrors[name].settings.source_cluster_id,
            partitions=[row(mirrors.mirrors[name], p) for p in _chosen(mirrors.mirrors[name], topics)],
            active_groups=mirrors.group_sync.left_alone(name),
        )
        for name in chosen
    ]


def _chosen(mirror: Mirror, topics: Mapping[str, Sequence[int] | None] | None) -> list[MirroredPartition]:
    found = []
    for name in sorted(mirror.topics):
        if topics is not None and name not in topics:
            continue
        only = None if topics is None else topics[name]
        found += [p for p in mirror.topics[name].partitions if not only or p.index in only]
    return found


def row(mirror: Mirror, partition: MirroredPartition) -> seam.PartitionRow:
    machine, target = partition.machine, partition.partition
    recorded, state = machine.recorded, partition.state
    known = state in ALIGNED or machine.source_high_watermark >= 0
    source = machine.source_high_watermark if known and machine.source_high_watermark >= 0 else None
    if state is State.STOPPED:
        source = None
    destination = None if target.deleted else target.high_watermark
    lag = None if source is None or destination is None else max(0, source - destination)
    retry = None
    if state is State.FAILED:
        wall_ms = None
        if machine.retry_at_ms is not None:
            clock = partition.mirrors.world.clock
            wall_ms = clock.time_ms() + machine.retry_at_ms - clock.monotonic_ms()
        retry = seam.Retry(
            attempt=recorded.retry_attempt,
            max_attempts=mirror.settings.retry.max_attempts,
            next_at_ms=wall_ms,
            retryable=recorded.retry_attempt != NOT_RETRIED,
        )
    lineage = machine.lineage
    return seam.PartitionRow(
        mirror=mirror.name,
        topic=machine.topic,
        topic_id=machine.topic_id,
        partition=partition.index,
        state=state.shown,
        phase=state.phase,
        source_offset=source,
        destination_offset=destination,
        lag=lag,
        leader_epoch=target.leader_epoch,
        last_mirror_epoch=None if lineage is None else lineage.last_mirror_epoch,
        last_mirror_offset=None if lineage is None else lineage.last_mirror_offset,
        gaps=[
            seam.Gap(from_offset=g.from_offset, to_offset=g.to_offset, at_ms=g.at_ms)
            for g in sorted(machine.gaps.values(), key=lambda g: g.from_offset)
        ],
        error=machine.shown_error,
        retry=retry,
        copied_bytes=partition.copied.size_bytes,
        cut_offsets=partition.copied.cut_offsets,
        cut_saved=partition.copied.saved_in,
    )


def describe_lineage(
    mirrors: Mirrors, source_cluster_id: str, topics: Mapping[str, Sequence[int] | None] | None
) -> list[seam.MirrorDescription]:
    """Lineage of that source cluster that stands although its mirror does not have the topic any more: the mirror was
    deleted, or another one has taken the topic over and not aligned it yet. A failback needs it as well."""
    rows: dict[str, list[seam.PartitionRow]] = {}
    for (name, topic_id, index), entry in mirrors.image.entries.items():
        lineage = entry.lineage
        topic = mirrors.world.image.topics_by_id.get(topic_id)
        if lineage is None or topic is None or lineage.source_cluster_id != source_cluster_id:
            continue
        if topics is not None and (topic.name not in topics or index not in (topics[topic.name] or (index,))):
            continue
        state = _state_beside(mirrors, name, topic.name, index)
        if state is not None:
            target = mirrors.world.partition(topic.name, index)
            row = _lineage_row(name, topic_id, target, state, lineage)
            rows.setdefault(name, []).append(row)
    return [
        seam.MirrorDescription(name=name, source_bootstrap="", source_cluster_id=source_cluster_id, partitions=found)
        for name, found in sorted(rows.items())
    ]


def _state_beside(mirrors: Mirrors, name: str, topic_name: str, index: int) -> str | None:
    """State of a partition of which `name` recorded a lineage and which it does not own now. None: it owns it, or the
    owner has appended to the log, so that the lineage does not count."""
    current = mirrors.topics.get(topic_name)
    if current is None:
        return State.STOPPED.shown
    owner, topic = current
    if owner.name == name or index >= len(topic.partitions):
        return None
    machine = topic.partitions[index].machine
    if machine.recorded.mirrored or machine.recorded.cut_pending or machine.lineage is not None:
        return None
    return machine.recorded.state.shown


def _lineage_row(name: str, topic_id: bytes, target: Partition, state: str, lineage: Lineage) -> seam.PartitionRow:
    return seam.PartitionRow(
        mirror=name,
        topic=target.topic_name,
        topic_id=topic_id,
        partition=target.index,
        state=state,
        phase=None,
        source_offset=None,
        destination_offset=target.high_watermark,
        lag=None,
        leader_epoch=target.leader_epoch,
        last_mirror_epoch=lineage.last_mirror_epoch,
        last_mirror_offset=lineage.last_mirror_offset,
        gaps=[],
        error=None,
        retry=None,
    )


# --- configurations -------------------------------------------------------------------------------------------------


def config_kind(name: str) -> int | None:
    """Kafka's type id of a mirror config; client properties are strings, secrets passwords."""
    if name not in SETTINGS:
        secret = name.startswith(("sasl.", "ssl.")) and any(word in name for word in _SECRETS)
        return kinds.PASSWORD if secret else kinds.STRING
    if name in ("bootstrap.servers",) or name.endswith((".include", ".exclude")):
        return kinds.LIST
    if name == "alignment.save.cut":
        return kinds.BOOLEAN
    return kinds.INT if (SETTINGS[name].default or "").lstrip("-").isdigit() else kinds.STRING


def configs(given: Mapping[str, str]) -> list[ConfigEntry]:
    """What DescribeConfigs shows: own values, then defaults; secrets without a value."""
    own = wishes.visible(given)
    entries = []
    for name in [*SETTINGS, *sorted(n for n in own if n not in SETTINGS)]:
        default = SETTINGS[name].default if name in SETTINGS else None
        kind = config_kind(name) or kinds.STRING
        secret = kind == kinds.PASSWORD
        value = None if secret else own.get(name, default)
        source = DYNAMIC_CLUSTER_MIRROR if name in own else DEFAULT_CONFIG
        synonyms = [(name, value, source)]
        if name in own and default is not None:
            synonyms.append((name, default, DEFAULT_CONFIG))
        entries.append(
            ConfigEntry(name, value, source, kind, read_only=False, sensitive=secret, synonyms=list(synonyms))
        )
    return entries


# --- states and offsets for other nodes -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    topic: str
    partition: int
    error_code: int = 0
    error_message: str | None = None
    state: int = -1
    leader_epoch: int = -1
    state_epoch: int = 0
    last_mirror_epoch: int = -1
    last_mirror_offset: int = -1
    retry_attempt: int = 0
    previous_state: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWrite:
    """`state` -1 (UNKNOWN): position only. -1 epochs: not checked. `last_mirror_offset` -1: lineage untouched."""

    topic: str
    partition: int
    state: int = -1
    leader_epoch: int = -1
    state_epoch: int = -1
    last_mirror_epoch: int = -1
    last_mirror_offset: int = -1
    error_message: str | None = None
    retry_attempt: int = -1
    non_retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWritten:
    topic: str
    partition: int
    error_code: int = 0
    error_message: str | None = None
    state_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    topic: str
    partition: int
    source_offset: int = -1
    destination_offset: int = -1


def _find(mirror: Mirror, topic: str, index: int) -> MirroredPartition | None:
    found = mirror.topics.get(topic)
    return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None


def read_states(mirrors: Mirrors, name: str, topics: Mapping[str, Sequence[int]]) -> list[StateRow]:
    """ApiError 137; a partition that the mirror does not have is UNKNOWN."""
    mirror = need(mirrors, name)
    rows = []
    for topic, indexes in topics.items():
        for index in indexes:
            partition = _find(mirror, topic, index)
            if partition is None:
                rows.append(StateRow(topic=topic, partition=index))
                continue
            recorded, lineage = partition.machine.recorded, partition.machine.lineage
            rows.append(
                StateRow(
                    topic=topic,
                    partition=index,
                    error_message=recorded.error,
                    state=int(recorded.state),
                    leader_epoch=recorded.leader_epoch,
                    state_epoch=recorded.state_epoch,
                    last_mirror_epoch=-1 if lineage is None else lineage.last_mirror_epoch,
                    last_mirror_offset=-1 if lineage is None else lineage.last_mirror_offset,
                    retry_attempt=recorded.retry_attempt,
                    previous_state=int(recorded.previous_state),
                )
            )
    return rows


def write_states(mirrors: Mirrors, name: str, writes: Sequence[StateWrite]) -> Promise[list[StateWritten]]:
    """The coordinator's rules (docs/MIRRORING.md, "State topic"). ApiError 137; per partition 3, 40, 74, 124, 145."""
    try:
        mirror = need(mirrors, name)
    except ApiError as error:
        refused: Promise[list[StateWritten]] = Promise()
        refused.fail(error)
        return refused
    return gather([_write_state(mirrors, mirror, write) for write in writes])


def _write_state(mirrors: Mirrors, mirror: Mirror, write: StateWrite) -> Promise[StateWritten]:
    def answer(code: ErrorCode, message: str | None = None, epoch: int = -1) -> StateWritten:
        return StateWritten(
            topic=write.topic, partition=write.partition, error_code=int(code), error_message=message, state_epoch=epoch
        )

    partition = _find(mirror, write.topic, write.partition)
    if partition is None:
        return Promise.of(answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    recorded = partition.machine.recorded
    if 0 <= write.leader_epoch < recorded.leader_epoch:
        return Promise.of(answer(ErrorCode.FENCED_LEADER_EPOCH))
    if 0 <= write.state_epoch < recorded.state_epoch:
        return Promise.of(answer(ErrorCode.FENCED_STATE_EPOCH))
    try:
        state = State(write.state)
    except ValueError:
        return Promise.of(answer(ErrorCode.INVALID_REQUEST, f"{write.state} is no state"))
    if partition.machine.busy or (state is State.STOPPED and recorded.state is not State.STOPPED):
        text = f"{partition.partition} is {recorded.state.shown} and only its own leader may go on from there"
        return Promise.of(answer(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, text))
    lineage = None
    if write.last_mirror_offset >= 0:
        lineage = Lineage(write.last_mirror_epoch, write.last_mirror_offset, mirror.settings.source_cluster_id)
    new = None
    if state is not State.UNKNOWN:
        if not allowed(recorded.state, state):
            return Promise.of(answer(ErrorCode.NONE, None, recorded.state_epoch))  # no record and no error
        attempt = NOT_RETRIED if write.non_retryable else max(write.retry_attempt, 0)
        new = replace(
            recorded,
            state=state,
            leader_epoch=max(write.leader_epoch, recorded.leader_epoch),
            state_epoch=recorded.state_epoch + 1,
            error=write.error_message,
            retry_attempt=attempt,
            previous_state=recorded.state if state is State.FAILED else State.UNKNOWN,
        )
    done: Promise[StateWritten] = Promise()
    made = mirrors.records.write(
        partition.key, Write(token=0, state=new, lineage=lineage), wall_ms=mirrors.world.clock.time_ms()
    )
    epoch = recorded.state_epoch if new is None else new.state_epoch
    mirrors.world.commit(Effects(records=made, replies=[(done, answer(ErrorCode.NONE, None, epoch))]))
    done.then(lambda _done: partition.step(ev.Loaded()))
    return done


def read_offsets(mirrors: Mirrors, name: str, topics: Mapping[str, Sequence[int]]) -> list[OffsetRow]:
    """ApiError 137. Source and destination high watermark, -1 = unknown."""
    mirror = need(mirrors, name)
    rows = []
    for topic, indexes in topics.items():
        for index in indexes:
            partition = _find(mirror, topic, index)
            if partition is None or partition.partition.deleted:
                rows.append(OffsetRow(topic=topic, partition=index))
                continue
            source = -1 if partition.state is State.STOPPED else partition.machine.source_high_watermark
            rows.append(
                OffsetRow(
                    topic=topic,
                    partition=index,
                    source_offset=source,
                    destination_offset=partition.partition.high_watermark,
                )
            )
    return rows


def bump_leader_epochs(
    mirrors: Mirrors, bumps: Sequence[tuple[str, int, int]]
) -> list[tuple[str, int, Promise[int] | ApiError]]:
    """(topic, partition, minimum): each raised above its minimum, unless it is already."""
    result: list[tuple[str, int, Promise[int] | ApiError]] = []
    for topic, index, minimum in bumps:
        try:
            partition = mirrors.world.partition(topic, index)
        except ApiError as error:
            result.append((topic, index, error))
        else:
            result.append((topic, index, mirrors.world.bump_leader_epoch(partition, minimum)))
    return result
