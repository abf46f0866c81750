"""What the source says, turned into events: metadata, configs, answers to questions. L3.

What may live here: the reading of a metadata answer (cluster id, deleted and re-created topics, growth, leaders, new
topics), the topic-config sync, and the comparison of our last batch with the source's. What must hold: STOPPED topics
are never touched, PAUSED ones get no sync; a topic counts as deleted after two observations.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kmirror.broker import mirror_operator, topic_config
from kmirror.broker import mirror_seam as seam
from kmirror.broker.metadata import TOPIC_RESOURCE
from kmirror.broker.mirror_partition import MirroredPartition
from kmirror.broker.mirror_waiting import StartOperation, write_configs
from kmirror.effects import Promise
from kmirror.errors import ApiError, ConfigError, CorruptData, StorageError
from kmirror.limits import MIRROR_TAIL_BATCH_MAX_BYTES
from kmirror.mirror import desired as wishes
from kmirror.mirror import events as ev
from kmirror.mirror.agreement import AskBatch, AskEpochEnd, Compared
from kmirror.mirror.alignment import Lineage
from kmirror.mirror.states import Desired
from kmirror.mirror.sync import config_changes, discovered, grown, is_literal
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode, name_of
from kmirror.protocol.records import check_crc, parse_header

if TYPE_CHECKING:
    from kmirror.broker.mirroring import Mirror, MirroredTopic, Mirrors

log = logging.getLogger("kmirror.mirror")

DELETED: Final = "The source topic is deleted."
_NO_PERMISSION: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED}
)


# --- the link -------------------------------------------------------------------------------------------------------


def active(mirror: Mirror) -> bool:
    """Whether the mirror needs a connection: something mirrors, is about to, or may be discovered."""
    if mirror.starting or any(t.association.desired is Desired.MIRRORING for t in mirror.topics.values()):
        return True
    return any(not is_literal(p) or p not in mirror.topics for p in mirror.lists.include)


def link_config(mirrors: Mirrors, mirror: Mirror) -> seam.LinkConfig:
    number = mirror.config.number
    return seam.LinkConfig(
        mirror=mirror.name,
        generation=mirror.generation,
        bootstrap_servers=mirror.config.text("bootstrap.servers"),
        source_cluster_id=mirror.settings.source_cluster_id,
        client_properties=mirror.config.client_properties(),
        fetch_wait_max_ms=number("fetch.wait.max.ms"),
        fetch_min_bytes=number("fetch.min.bytes"),
        fetch_max_bytes=number("fetch.max.bytes"),
        fetch_response_max_bytes=number("fetch.response.max.bytes"),
        fetch_backoff_ms=number("fetch.backoff.ms"),
        request_timeout_ms=number("request.timeout.ms"),
        socket_timeout_ms=number("socket.timeout.ms"),
        socket_receive_buffer_bytes=number("socket.receive.buffer.bytes"),
        connection_setup_timeout_ms=number("socket.connection.setup.timeout.ms"),
        connection_setup_timeout_max_ms=number("socket.connection.setup.timeout.max.ms"),
        connections_max_idle_ms=number("connections.max.idle.ms"),
        refresh_interval_ms=mirrors.world.config.integer("mirror.metadata.refresh.interval.ms"),
    )


def mirroring_topics(mirrors: Mirrors, name: str) -> list[str]:
    mirror = mirrors.mirrors.get(name)
    if mirror is None:
        return []
    return sorted(n for n, topic in mirror.topics.items() if topic.association.desired is Desired.MIRRORING)


def metadata_topics(mirrors: Mirrors, name: str) -> list[str] | None:
    mirror = mirrors.mirrors.get(name)
    if mirror is None:
        return []
    include = mirror.lists.include
    if any(not is_literal(pattern) for pattern in include):
        return None
    wanted = {*mirroring_topics(mirrors, name), *mirror.starting}
    wanted.update(pattern for pattern in include if pattern not in mirrors.topics)
    return sorted(wanted)


# --- metadata -------------------------------------------------------------------------------------------------------


def metadata_arrived(mirrors: Mirrors, name: str, metadata: seam.SourceMetadata) -> None:
    mirror = mirrors.mirrors.get(name)
    if mirror is None:
        return
    mirror.metadata_wanted = False
    mirror.settings.ask_lineage = metadata.capable
    expected = mirror.settings.source_cluster_id
    if metadata.cluster_id is not None and metadata.cluster_id != expected:
        text = f"the source is cluster {metadata.cluster_id}, this mirror was made for {expected}"
        _everybody(mirror, ev.SourceLost(text))
        for operation in list(mirrors.operations):
            if isinstance(operation, StartOperation) and operation.mirror is mirror:
                operation.abandon(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, text)
        return
    for topic_name, topic in list(mirror.topics.items()):
        if topic.association.desired is Desired.MIRRORING:
            seen = metadata.topics.get(topic_name)
            if seen is not None or metadata.complete:
                _topic_seen(mirrors, mirror, topic, seen)
    for topic_name in list(mirror.starting):
        seen = metadata.topics.get(topic_name)
        if seen is not None and seen.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            _start_of_nothing(mirrors, mirror, topic_name)
        elif seen is not None and not seen.error_code:
            known = mirror.topics.get(topic_name)
            attached = [] if known is None or known.association.desired is Desired.MIRRORING else known.partitions
            for partition in [*mirror.candidates.get(topic_name, []), *attached]:
                _partition_seen(partition, seen)
    _discover(mirrors, mirror, metadata)
    mirrors.wake(name)


def _start_of_nothing(mirrors: Mirrors, mirror: Mirror, topic_name: str) -> None:
    """A start waits for what the source says about a topic that it does not have."""
    if not mirror.missing.observe(topic_name, missing=True):
        mirror.metadata_wanted = True
        return
    for operation in list(mirrors.operations):
        if isinstance(operation, StartOperation) and operation.mirror is mirror and operation.topic == topic_name:
            operation.abandon(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the source has no topic {topic_name}")


def _everybody(mirror: Mirror, event: ev.Event) -> None:
    for topic in list(mirror.topics.values()):
        if topic.association.desired is Desired.MIRRORING:
            for partition in list(topic.partitions):
                partition.step(event)


def _topic_seen(mirrors: Mirrors, mirror: Mirror, topic: MirroredTopic, seen: seam.SourceTopic | None) -> None:
    association = topic.association
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if seen is None else seen.error_code
    missing = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if mirror.missing.observe(association.topic, missing=missing):
        _deleted(mirrors, mirror, topic)
        return
    if missing:
        mirror.metadata_wanted = True  # look again soon: one observation is not enough
        return
    assert seen is not None
    if code in _NO_PERMISSION:
        for partition in list(topic.partitions):
            partition.step(ev.SourceUnreachable(f"the source refuses topic {association.topic}: error {code}"))
        return
    if code:
        return
    theirs = seen.topic_id
    if association.source_topic_id == uuids.ZERO != theirs:
        _learn_id(mirrors, mirror, topic, theirs)
    if uuids.ZERO not in (association.source_topic_id, theirs) and association.source_topic_id != theirs:
        text = (
            f"the source topic was re-created: its id is {uuids.to_text(theirs)}, "
            f"ours was {uuids.to_text(association.source_topic_id)}"
        )
        for partition in list(topic.partitions):
            partition.step(ev.SourceLost(text))
        return
    _grow(mirrors, mirror, topic, seen)
    for partition in list(topic.partitions):
        _partition_seen(partition, seen)


def _learn_id(mirrors: Mirrors, mirror: Mirror, topic: MirroredTopic, topic_id: bytes) -> None:
    """The start named no id (the source had none then, or whoever asked did not know it): from now on it is this one,
    and another is another topic."""
    topic.association = replace(topic.association, source_topic_id=topic_id)
    name = wishes.config_name(topic.association.topic_id)
    write_configs(mirrors, [(mirror.name, name, wishes.encode(topic.association))])


def _deleted(mirrors: Mirrors, mirror: Mirror, topic: MirroredTopic) -> None:
    if mirror.config.text("source.topic.deleted.action") == "stop":
        mirror_operator.stop_topic(mirrors, mirror.name, topic.association.topic)
        return
    for partition in list(topic.partitions):
        partition.step(ev.SourceLost(DELETED))


def _partition_seen(partition: MirroredPartition, seen: seam.SourceTopic) -> None:
    found = seen.partitions.get(partition.index)
    if found is not None:
        partition.step(ev.SourceSeen(leader=found.leader, leader_epoch=found.leader_epoch))


def _grow(mirrors: Mirrors, mirror: Mirror, topic: MirroredTopic, seen: seam.SourceTopic) -> None:
    name = topic.association.topic
    local = mirrors.world.image.topics_by_name.get(name)
    if local is None:
        return
    count = grown(seen.partitions, len(local.registrations))
    if count is None:
        return
    mirrors.growing = name
    try:
        made = mirrors.world.create_partitions(name, count)
    finally:
        mirrors.growing = None

    def done(promise: Promise[None]) -> None:
        try:
            promise.result()
        except ApiError as error:
            log.warning("mirror %s: topic %s does not grow to %s: %s", mirror.name, name, count, error.message)
            return
        adopt_partitions(mirrors, mirror, topic)

    made.then(done)


def adopt_partitions(mirrors: Mirrors, mirror: Mirror, topic: MirroredTopic) -> None:
    """Machines for partitions that have come into being; read-only before anything else happens."""
    local = mirrors.world.image.topics_by_name.get(topic.association.topic)
    if local is None:
        return
    for index in range(len(topic.partitions), len(local.partitions)):
        partition = mirrors.make_partition(mirror, local, index, attached=True)
        partition.machine.desired = topic.association.desired
        topic.partitions.append(partition)
        mirrors.adopt(partition)
        partition.sync_mode()
    mirror_operator.self_start(mirrors, mirror, topic.association.topic)
    mirror.metadata_wanted = True
    mirrors.wake(mirror.name)


def _discover(mirrors: Mirrors, mirror: Mirror, metadata: seam.SourceMetadata) -> None:
    names = [n for n, t in metadata.topics.items() if not t.error_code and not t.internal]
    for name in discovered(mirror.lists, names, [*mirrors.topics, *mirror.starting]):
        seen = metadata.topics[name]
        count = max(seen.partitions, default=-1) + 1
        if count > 0:
            topic = seam.StartTopic(name=name, topic_id=seen.topic_id, num_partitions=count)
            mirror_operator.start_discovered(mirrors, mirror, topic)
    mirror_operator.enforce_exclude(mirrors, mirror)


def unreachable(mirrors: Mirrors, name: str, broker_id: int | None, reason: str) -> None:
    """`broker_id` None: metadata could not be had, which matters to those that wait for it, not to running fetches."""
    mirror = mirrors.mirrors.get(name)
    if mirror is None:
        return
    if broker_id is None:
        mirror.metadata_wanted = False
    for partition in list(mirror.partitions()):
        machine = partition.machine
        if broker_id is None:
            concerned = machine.wants_metadata or machine.source_leader < 0
        else:
            concerned = machine.source_leader == broker_id
        if concerned:
            partition.step(ev.SourceUnreachable(f"the source cannot be reached: {reason}"))
    mirrors.wake(name)


# --- configs --------------------------------------------------------------------------------------------------------


def configs_arrived(mirrors: Mirrors, name: str, configs: Mapping[str, Mapping[str, str | None]]) -> None:
    mirror = mirrors.mirrors.get(name)
    if mirror is None:
        return
    exclude = mirror.config.items("topic.properties.exclude")
    for topic_name, source in configs.items():
        topic = mirror.topics.get(topic_name)
        local = mirrors.world.image.topics_by_name.get(topic_name)
        if topic is None or local is None or topic.association.desired is not Desired.MIRRORING:
            continue
        own = mirrors.world.image.mirror_configs.get(name, {})
        synced = wishes.synced(own, local.topic_id)
        changes = config_changes(source, local.configs, synced, exclude)
        usable = {n: v for n, v in changes.items() if _usable(mirror.name, topic_name, n, v, local.configs)}
        if not usable:
            _settings_are_known(topic)
            continue
        # first what the mirror set, then the setting itself: an override is never taken for one that people made
        after = (synced | {n for n, v in usable.items() if v is not None}) - {n for n, v in usable.items() if v is None}
        value = ",".join(sorted(synced | after))
        write_configs(mirrors, [(name, wishes.synced_name(local.topic_id), value)])
        mirrors.world.configs.write(TOPIC_RESOURCE, topic_name, usable).then(partial(_written, topic))
        if after != synced | after:
            rest = ",".join(sorted(after)) or None
            write_configs(mirrors, [(name, wishes.synced_name(local.topic_id), rest)])


def configs_refused(mirrors: Mirrors, name: str, refusals: Mapping[str, int]) -> None:
    """Error codes by topic. A topic whose configs this mirror may not read goes by the settings that it has here."""
    mirror = mirrors.mirrors.get(name)
    if mirror is None:
        return
    for topic_name, code in refusals.items():
        topic = mirror.topics.get(topic_name)
        if topic is not None and not topic.settings_known and code in _NO_PERMISSION:
            log.warning("mirror %s: configs of topic %s cannot be read: %s", name, topic_name, name_of(code))
            _settings_are_known(topic)


def _written(topic: MirroredTopic, written: Promise[None]) -> None:
    try:
        written.result()
    except ApiError:
        return  # no room for the record: the next look at the source's settings finds the same difference
    _settings_are_known(topic)


def _settings_are_known(topic: MirroredTopic) -> None:
    if not topic.settings_known:
        topic.settings_known = True
        for partition in topic.partitions:
            partition.sync_mode()


def _usable(mirror: str, topic: str, name: str, value: str | None, local: Mapping[str, str]) -> bool:
    if value is None:
        return True
    try:
        topic_config.check({**local, name: value})
    except ConfigError as error:
        log.warning("mirror %s: topic %s: %s=%s of the source is not taken: %s", mirror, topic, name, value, error)
        return False
    return True


# --- questions ------------------------------------------------------------------------------------------------------


def query(mirrors: Mirrors, partition: MirroredPartition, ask: ev.Ask, query_id: int) -> seam.Query:
    machine = partition.machine
    topic_id = mirrors.source_topic_id(machine.topic)
    common: dict[str, Any] = {
        "id": query_id,
        "mirror": machine.mirror,
        "topic": machine.topic,
        "topic_id": topic_id if topic_id != uuids.ZERO else machine.topic_id,
        "partition": machine.partition,
        "leader": machine.source_leader,
        "current_leader_epoch": machine.source_epoch,
    }
    question = ask.question
    if isinstance(question, AskEpochEnd):
        return seam.EpochEndQuery(epoch=question.epoch, **common)
    if isinstance(question, ev.AskOffset):
        return seam.OffsetQuery(timestamp=question.timestamp, **common)
    if isinstance(question, AskBatch):
        size = min(max(question.size_bytes, 1), MIRROR_TAIL_BATCH_MAX_BYTES)
        return seam.BatchQuery(offset=question.offset, max_bytes=size, **common)
    return seam.LineageQuery(cluster_id=mirrors.world.cluster_id, **common)


def answered(partition: MirroredPartition, asked: seam.Query, answer: seam.Answer) -> None:
    question = partition.machine.open_question
    if question is None:
        return
    partition.step(ev.Answered(question[0], _translate(partition, asked, answer)))


def _translate(partition: MirroredPartition, asked: seam.Query, answer: seam.Answer) -> Any:
    if isinstance(answer, seam.ErrorAnswer):
        text = answer.message or f"the source answered error {answer.code} about {partition.partition}"
        if answer.transport:
            text = f"the source cannot be reached: {answer.message}"
        return ev.QuestionFailed(code=answer.code, transport=answer.transport, message=text)
    if isinstance(answer, seam.EpochEndAnswer):
        return ev.EpochEnd(leader_epoch=answer.leader_epoch, end_offset=answer.end_offset)
    if isinstance(answer, seam.OffsetAnswer):
        return ev.Offset(answer.offset)
    if isinstance(answer, seam.LineageAnswer):
        known = answer.supported and (answer.last_mirror_epoch, answer.last_mirror_offset) != (-1, -1)
        lineage = Lineage(answer.last_mirror_epoch, answer.last_mirror_offset) if known else None
        return ev.Reported(lineage=lineage, mirror=answer.mirror, state=answer.state)
    assert isinstance(asked, seam.BatchQuery)
    if _damaged(answer.records):
        text = f"the source sent a damaged batch at offset {asked.offset} of {partition.partition}"
        return ev.QuestionFailed(code=ErrorCode.CORRUPT_MESSAGE, transport=False, message=text)
    return compare(partition, asked.offset, answer.records)


def _damaged(records: bytes | memoryview) -> bool:
    """Whether the first batch is not what its producer wrote: it proves nothing about the logs."""
    try:
        header = parse_header(records)
    except StorageError:
        return False  # no batch at all, or one of another format
    try:
        check_crc(records, 0, header)
    except CorruptData:
        return True
    return False


def compare(partition: MirroredPartition, offset: int, theirs: bytes | memoryview) -> Compared:
    """Our batch at `offset` against what the source has there."""
    ours = next(iter(partition.partition.log.batches(offset, offset + 1)), None)
    if ours is None or ours[0].base_offset != offset:
        return Compared.NOT_COMPARED
    header, data = ours
    try:
        found = parse_header(theirs)
    except (CorruptData, StorageError):
        return Compared.NOT_COMPARED  # nothing there any more, or a format that says nothing about ours
    if found.base_offset > header.last_offset:
        return Compared.NOT_COMPARED
    if found.base_offset != header.base_offset or found.last_offset != header.last_offset:
        return Compared.DIFFERENT
    if len(theirs) >= found.size_bytes and bytes(theirs[: found.size_bytes]) == bytes(data[: header.size_bytes]):
        return Compared.EQUAL
    same_batch = (found.leader_epoch, found.producer_id, found.producer_epoch, found.base_sequence) == (
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
    cleaned = found.record_count <= found.last_offset_delta or header.record_count <= header.last_offset_delta
    if same_batch and (cleaned or found.delete_horizon_ms != header.delete_horizon_ms):
        return Compared.NOT_COMPARED
    return Compared.DIFFERENT
