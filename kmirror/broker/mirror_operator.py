"""What operators ask of mirrors: create, start, stop, pause, resume, delete. L3.

What may live here: the order of checks and records of each request (docs/MIRRORING.md, "Answers"), and the
requests that wait: a start whose cut the source has to be asked about, a stop until everything is sealed. What must
hold: a start is all or nothing per topic (a refused topic is as it was), the wish is on disk before a partition acts
on it, and nobody waits for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kmirror.broker import mirror_seam as seam
from kmirror.broker.metadata import INTERNAL_TOPICS, MIRROR_STATE_TOPIC, TopicState
from kmirror.broker.mirror_partition import MirroredPartition
from kmirror.broker.mirror_waiting import StartOperation, StopOperation, failed, gather, write_configs
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.effects import Effects, Promise, StateRecord
from kmirror.errors import ApiError
from kmirror.mirror import config as mirror_config
from kmirror.mirror import desired as wishes
from kmirror.mirror import events as ev
from kmirror.mirror.alignment import Plan, Refused, still_holds
from kmirror.mirror.desired import Association
from kmirror.mirror.durable import EARLIEST
from kmirror.mirror.states import ACCEPTED, Desired, Operation, State, Verdict, decide
from kmirror.mirror.sync import Lists, Patterns, excluded, lists_after_start, lists_after_stop
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode
from kmirror.storage.log import LogMode

if TYPE_CHECKING:
    from kmirror.broker.mirroring import Mirror, MirroredTopic, Mirrors

log = logging.getLogger("kmirror.mirror")

ORDINARY: Final = LogMode.WRITABLE
T = TypeVar("T")


def need(mirrors: Mirrors, name: str) -> Mirror:
    mirror = mirrors.mirrors.get(name)
    if mirror is None:
        raise ApiError(ErrorCode.UNKNOWN_CLUSTER_MIRROR, f"there is no mirror {name!r}")
    return mirror


# --- create and delete ----------------------------------------------------------------------------------------------


def create(mirrors: Mirrors, name: str, configs: Mapping[str, str | None]) -> Promise[None]:
    """ApiError 42 bad name or missing config, 40 unknown or unparsable config, 128 bad pattern, 148 exists."""
    try:
        mirror_config.check_name(name)
        if name in mirrors.mirrors:
            raise ApiError(ErrorCode.CLUSTER_MIRROR_ALREADY_EXISTS, f"mirror {name!r} exists already")
        given = mirror_config.check_create(configs)
        for listed in mirror_config.PATTERN_LISTS:
            Patterns(mirror_config.split_list(given.get(listed, "")))
    except ApiError as error:
        return failed(error)
    done: Promise[None] = Promise()
    mirror = mirrors._add_mirror(name, given)

    def state_topic_made(made: Promise[TopicState]) -> None:
        try:
            topic = made.result()
        except ApiError as error:
            mirrors.mirrors.pop(name, None)
            done.fail(error)
            return
        mirrors.records.partition_count = len(topic.registrations)
        write_configs(mirrors, [(name, key, value) for key, value in given.items()]).then(recorded)

    def recorded(written: Promise[None]) -> None:
        try:
            written.result()
        except ApiError as error:
            mirrors.mirrors.pop(name, None)
            done.fail(error)
            return
        done.resolve(None)
        mirrors.wake(mirror.name)

    mirrors.world.topics.ensure_internal(MIRROR_STATE_TOPIC).then(state_topic_made)
    return done


def delete(mirrors: Mirrors, name: str) -> Promise[None]:
    """ApiError 137 unknown, 143 a topic is mirroring or paused, 145 a stop is under way."""
    try:
        mirror = need(mirrors, name)
        if mirror.candidates:
            raise ApiError(ErrorCode.CLUSTER_MIRROR_NOT_EMPTY, f"a start is under way: {', '.join(mirror.candidates)}")
        for topic_name, topic in mirror.topics.items():
            if topic.association.desired is not Desired.STOPPED:
                state = topic.association.desired.value
                text = f"topic {topic_name} is {state} in mirror {name!r}: stop it first"
                raise ApiError(ErrorCode.CLUSTER_MIRROR_NOT_EMPTY, text)
            for partition in topic.partitions:
                if partition.state is not State.STOPPED:
                    text = (
                        f"partition {topic_name}-{partition.index} is {partition.state.shown}: wait until it is STOPPED"
                    )
                    raise ApiError(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, text)
    except ApiError as error:
        return failed(error)
    configs = mirrors.world.image.mirror_configs.get(name, {})
    removed = write_configs(mirrors, [(name, key, None) for key in configs])
    done: Promise[None] = Promise()

    def gone(promise: Promise[None]) -> None:
        try:
            promise.result()
        except ApiError as error:
            done.fail(error)
            return
        for topic_name in list(mirror.topics):
            mirrors.detach(topic_name)
        mirrors.mirrors.pop(name, None)
        mirrors.wake(name)
        made = []
        for key, entry in list(mirrors.image.entries.items()):
            if key[0] == name:
                made += mirrors.records.tombstones(key, entry, lineage=False)
        mirrors.world.commit(Effects(records=made, replies=[(done, None)]))

    removed.then(gone)
    return done


def forget_topic(mirrors: Mirrors, topic: TopicState) -> None:
    """DeleteTopics: the association goes, and lineage too. The name is not discovered again."""
    found = mirrors.topics.get(topic.name)
    changes: list[tuple[str, str, str | None]] = []
    if found is not None and found[1].association.topic_id == topic.topic_id:
        mirror = found[0]
        mirrors.detach(topic.name)
        configs = mirrors.world.image.mirror_configs.get(mirror.name, {})
        for name in (wishes.config_name(topic.topic_id), wishes.synced_name(topic.topic_id)):
            if name in configs:
                changes.append((mirror.name, name, None))
        lists = mirror.lists
        include = tuple(p for p in lists.include if p != topic.name)
        exclude = lists.exclude
        if Patterns(include).matches(topic.name) and not Patterns(exclude).matches(topic.name):
            exclude = (*exclude, topic.name)
        changes += _list_changes(mirror, Lists(include, exclude))
    if changes:
        write_configs(mirrors, changes)
        mirrors.configs_changed(changes[0][0])
    made: list[StateRecord] = []
    for key, entry in mirrors.image.of_topic(topic.topic_id):
        made += mirrors.records.tombstones(key, entry, lineage=True)
    if made:
        mirrors.world.commit(Effects(records=made))


def _list_changes(mirror: Mirror, lists: Lists) -> list[tuple[str, str, str | None]]:
    changes: list[tuple[str, str, str | None]] = []
    before = mirror.lists
    if lists.include != before.include:
        changes.append((mirror.name, "topics.include", ",".join(lists.include)))
    if lists.exclude != before.exclude:
        changes.append((mirror.name, "topics.exclude", ",".join(lists.exclude)))
    return changes


# --- start ----------------------------------------------------------------------------------------------------------


def start(
    mirrors: Mirrors,
    name: str,
    topics: Sequence[seam.StartTopic],
    *,
    include: Sequence[str],
    exclude: Sequence[str],
    replace: bool,
    start_from: int,
) -> Promise[list[seam.TopicResult]]:
    """ApiError 137 unknown mirror, 128 bad pattern, 42 a topic that the lists do not want; the rest is per topic."""
    try:
        mirror = need(mirrors, name)
        names = [topic.name for topic in topics]
        before = mirror.lists
        lists = lists_after_start(before, names=names, include=include, exclude=exclude)
        included, excluded_by = Patterns(lists.include), Patterns(lists.exclude)
        for topic_name in names:
            if excluded_by.matches(topic_name) or not included.matches(topic_name):
                text = f"topic {topic_name} matches topics.exclude of mirror {name!r}"
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
    except ApiError as error:
        return failed(error)
    changes = _list_changes(mirror, lists)
    done: Promise[list[seam.TopicResult]] = Promise()

    def listed(written: Promise[None]) -> None:
        try:
            written.result()
        except ApiError as error:
            done.fail(error)
            return
        if changes:
            mirrors.configs_changed(name)
        mirror.metadata_wanted = True
        enforce_exclude(mirrors, mirror)
        started = [start_topic(mirrors, mirror, topic, force=replace, start_from=start_from) for topic in topics]
        gather(started).then(answered)
        mirrors.wake(name)

    def answered(all_: Promise[list[seam.TopicResult]]) -> None:
        results = all_.result()
        refused = {result.name for result in results if result.error_code} & (set(names) - set(before.include))
        if refused and mirrors.mirrors.get(name) is mirror:
            # else discovery would start it as soon as what was refused has become possible, and nobody would know
            kept = tuple(pattern for pattern in mirror.lists.include if pattern not in refused)
            write_configs(mirrors, _list_changes(mirror, Lists(kept, mirror.lists.exclude)))
            mirrors.configs_changed(name)
        done.resolve(results)

    if changes:
        write_configs(mirrors, changes).then(listed)
    else:
        listed(Promise.of(None))
    return done


def enforce_exclude(mirrors: Mirrors, mirror: Mirror) -> None:
    """Topics of the mirror that match exclude are stopped."""
    wished = {name: topic.association.desired for name, topic in mirror.topics.items()}
    for topic_name in excluded(mirror.lists, wished):
        stop_topic(mirrors, mirror.name, topic_name)


def start_topic(
    mirrors: Mirrors, mirror: Mirror, topic: seam.StartTopic, *, force: bool, start_from: int
) -> Promise[seam.TopicResult]:
    try:
        return _start_topic(mirrors, mirror, topic, force=force, start_from=start_from)
    except ApiError as error:
        return Promise.of(seam.TopicResult(name=topic.name, error_code=error.code, error_message=error.message))


def _start_topic(
    mirrors: Mirrors, mirror: Mirror, topic: seam.StartTopic, *, force: bool, start_from: int
) -> Promise[seam.TopicResult]:
    if topic.name in INTERNAL_TOPICS:
        text = f"topic {topic.name} is each cluster's own: what groups have committed comes along without it"
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    running = next((o for o in mirrors.operations if isinstance(o, StartOperation) and o.topic == topic.name), None)
    if running is not None:
        if topic.name in mirror.candidates:
            if not force or running.force or running.writing:
                return running.promise
            running.abandon(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, "a start with --replace took its place")
        else:
            text = "another mirror is about to start this topic"
            raise ApiError(ErrorCode.TOPIC_ALREADY_IN_CLUSTER_MIRROR, text)
    local = mirrors.world.image.topics_by_name.get(topic.name)
    if local is None:
        return _create_and_start(mirrors, mirror, topic, force=force, start_from=start_from)
    if topic.topic_id not in (uuids.ZERO, local.topic_id):
        ours, theirs = uuids.to_text(local.topic_id), uuids.to_text(topic.topic_id)
        text = f"the topic exists here with id {ours}, at the source with {theirs}: delete it here first"
        raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, text)
    association = Association(
        topic=topic.name,
        topic_id=local.topic_id,
        desired=Desired.MIRRORING,
        source_topic_id=topic.topic_id,
        start_from=start_from,
        partitions_at_start=len(local.partitions),
        force=force,
    )
    current = mirrors.topics.get(topic.name)
    if current is not None and current[0] is mirror:
        return _start_again(mirrors, mirror, current[1], association)
    if current is not None:
        _check_takeover(current[0].name, current[1])
    partitions = [
        mirrors.make_partition(mirror, local, index, attached=False) for index in range(len(local.partitions))
    ]
    return StartOperation(mirrors, mirror, association, partitions).begin()


def _check_takeover(owner: str, topic: MirroredTopic) -> None:
    name = topic.association.topic
    if topic.association.desired is not Desired.STOPPED:
        text = f"topic {name} belongs to mirror {owner!r}: stop it there first"
        raise ApiError(ErrorCode.TOPIC_ALREADY_IN_CLUSTER_MIRROR, text)
    for partition in topic.partitions:
        if partition.state is not State.STOPPED:
            text = f"partition {partition.index} is {partition.state.shown} in mirror {owner!r}; start needs STOPPED"
            raise ApiError(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, text)


def _start_again(
    mirrors: Mirrors, mirror: Mirror, topic: MirroredTopic, association: Association
) -> Promise[seam.TopicResult]:
    actual = [(p.index, p.state) for p in topic.partitions]
    verdict, code, message = decide(Operation.START, topic.association.desired, actual)
    if verdict is Verdict.ANSWER:
        if code is not ErrorCode.NONE:
            raise ApiError(code, message)
        return Promise.of(seam.TopicResult(name=association.topic))
    partitions = topic.partitions
    if verdict is Verdict.RESTART_IDLE:
        partitions = [p for p in partitions if p.state in ACCEPTED[Operation.START]]
    return StartOperation(mirrors, mirror, association, partitions).begin()


def _create_and_start(
    mirrors: Mirrors, mirror: Mirror, topic: seam.StartTopic, *, force: bool, start_from: int
) -> Promise[seam.TopicResult]:
    """With the source's topic id and partition count (a random id when the source has none).

    Discovery and an operator may ask for the same topic at once: the second waits until it exists, then starts it.
    """
    again: Promise[seam.TopicResult] = Promise()
    if topic.name in mirror.creating:
        mirror.creating[topic.name].then(
            lambda _made: start_topic(mirrors, mirror, topic, force=force, start_from=start_from).then(again.follow)
        )
        return again
    if topic.num_partitions <= 0:
        mirror.metadata_wanted = True
        return Promise.of(seam.TopicResult(name=topic.name))
    spec = CreateTopicSpec(
        topic.name, topic.num_partitions, topic_id=None if topic.topic_id == uuids.ZERO else topic.topic_id
    )
    result: Promise[seam.TopicResult] = Promise()

    def made(promise: Promise[TopicState]) -> None:
        mirror.creating.pop(topic.name, None)
        try:
            promise.result()
        except ApiError as error:
            result.resolve(seam.TopicResult(name=topic.name, error_code=error.code, error_message=error.message))
            return
        start_topic(mirrors, mirror, topic, force=force, start_from=start_from).then(result.follow)

    mirror.creating[topic.name] = mirrors.world.create_topic(spec)
    mirror.creating[topic.name].then(made)
    return result


def self_start(mirrors: Mirrors, mirror: Mirror, topic_name: str) -> None:
    """Partitions of a topic desired MIRRORING that have recorded nothing yet, or only STOPPED: at boot, after growth.
    Nobody waits for the answer."""
    topic = mirror.topics.get(topic_name)
    if topic is None or topic.association.desired is not Desired.MIRRORING:
        return
    for partition in topic.partitions:
        if partition.state in (State.UNKNOWN, State.STOPPED) and partition.on_decided is None:
            association = topic.association
            first = partition.index < association.partitions_at_start
            start_from = association.start_from if first else EARLIEST
            partition.on_decided = _decider(mirrors, start_from)
            partition.step(ev.Decide(start_from=start_from, force=association.force and first))


def _decider(mirrors: Mirrors, start_from: int) -> Callable[[MirroredPartition, Any], None]:
    def decided(partition: MirroredPartition, outcome: Plan | Refused) -> None:
        if isinstance(outcome, Refused):
            partition.step(ev.Refuse(outcome.message))
            return
        partition.step(ev.Prepare())
        ended = mirrors.end_transactions(partition.machine.topic, [partition])
        ended.then(lambda done: begin(partition, outcome, done))

    def begin(partition: MirroredPartition, plan: Plan, ended: Promise[Any]) -> None:
        overtaken = partition.on_decided is not None or partition.state not in (State.UNKNOWN, State.STOPPED)
        if overtaken or partition.machine.desired is not Desired.MIRRORING:
            return  # stopped, or started by somebody, while the transactions were being ended
        try:
            ended.result()
        except ApiError as error:
            partition.step(ev.Refuse(f"its open transactions could not be ended: {error.message}"))
            return
        refused = still_holds(partition.facts, plan)
        if refused is not None:
            partition.step(ev.Refuse(refused.message))
        else:
            partition.step(ev.Begin(plan=plan, start_from=start_from))

    return decided


# --- stop, pause, resume --------------------------------------------------------------------------------------------


def stop(mirrors: Mirrors, name: str, topics: Sequence[str], patterns: Sequence[str]) -> Promise[list[seam.StopResult]]:
    """ApiError 137 (only when no topic is named), 128; the rest is per topic."""
    mirror = mirrors.mirrors.get(name)
    wanted = list(dict.fromkeys(topics))
    try:
        if mirror is None and not topics:
            need(mirrors, name)
        if mirror is not None and patterns:
            lists = lists_after_stop(mirror.lists, patterns)
            wished = {n: t.association.desired for n, t in mirror.topics.items()}
            wanted += [n for n in excluded(lists, wished) if n not in wanted]
            changes = _list_changes(mirror, lists)
            if changes:
                write_configs(mirrors, changes)
                mirrors.configs_changed(name)
    except ApiError as error:
        return failed(error)
    return gather([stop_topic(mirrors, name, topic) for topic in wanted])


def stop_topic(mirrors: Mirrors, name: str, topic_name: str) -> Promise[seam.StopResult]:
    for operation in list(mirrors.operations):
        if isinstance(operation, StartOperation) and operation.topic == topic_name:
            if operation.writing:
                return _stop_after(mirrors, operation, name)
            operation.abandon(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, "the topic was stopped meanwhile")
    try:
        topic = _associated(mirrors, name, topic_name)
        actual = [(p.index, p.state) for p in topic.partitions]
        verdict, code, message = decide(Operation.STOP, topic.association.desired, actual)
        if code is not ErrorCode.NONE:
            raise ApiError(code, message)
    except ApiError as error:
        return Promise.of(seam.StopResult(name=topic_name, error_code=error.code, error_message=error.message))
    if verdict is Verdict.ANSWER:
        return StopOperation(mirrors, topic).begin()
    result: Promise[seam.StopResult] = Promise()

    def wished(written: Promise[None]) -> None:
        try:
            written.result()
        except ApiError as error:
            result.resolve(seam.StopResult(name=topic_name, error_code=error.code, error_message=error.message))
            return
        topic.association = _with(topic.association, Desired.STOPPED)
        for partition in topic.partitions:
            partition.step(ev.Wished(desired=Desired.STOPPED))
        StopOperation(mirrors, topic).begin().then(result.follow)

    _wish(mirrors, name, topic, Desired.STOPPED).then(wished)
    return result


def _stop_after(mirrors: Mirrors, start_: StartOperation, name: str) -> Promise[seam.StopResult]:
    """A start has been accepted and is being recorded: the stop comes right behind it."""
    result: Promise[seam.StopResult] = Promise()

    def started(_done: Promise[seam.TopicResult]) -> None:
        stop_topic(mirrors, name, start_.topic).then(result.follow)

    start_.promise.then(started)
    return result


def pause(mirrors: Mirrors, name: str, topics: Iterable[str]) -> Promise[list[seam.TopicResult]]:
    return gather([_change(mirrors, name, t, Operation.PAUSE, Desired.PAUSED) for t in dict.fromkeys(topics)])


def resume(mirrors: Mirrors, name: str, topics: Iterable[str]) -> Promise[list[seam.TopicResult]]:
    return gather([_change(mirrors, name, t, Operation.RESUME, Desired.MIRRORING) for t in dict.fromkeys(topics)])


def recover(mirrors: Mirrors, name: str, topics: Iterable[str]) -> Promise[list[seam.TopicResult]]:
    """RecoverMirrorTopics: FAILED partitions go back to the state that they failed from. Per topic ApiError 3, 137, 139
    (as for resume), 145: a partition failed before it began. Nothing FAILED is no error. Settled when it is on disk."""
    return gather([_recover(mirrors, name, topic) for topic in dict.fromkeys(topics)])


def _recover(mirrors: Mirrors, name: str, topic_name: str) -> Promise[seam.TopicResult]:
    try:
        topic = _associated(mirrors, name, topic_name)
        failed_ones = [p for p in topic.partitions if p.state is State.FAILED]
        for partition in failed_ones:
            if partition.machine.recorded.previous_state is State.UNKNOWN:
                text = f"partition {partition.index} failed before it began to mirror: start the topic again"
                raise ApiError(ErrorCode.INVALID_CLUSTER_MIRROR_STATE, text)
    except ApiError as error:
        return Promise.of(seam.TopicResult(name=topic_name, error_code=error.code, error_message=error.message))
    for partition in failed_ones:
        partition.step(ev.Recover())
    done: Promise[seam.TopicResult] = Promise()
    durable = list(dict.fromkeys(mirrors.records.log_of(partition.key) for partition in failed_ones))
    mirrors.world.commit(Effects(durable=durable, replies=[(done, seam.TopicResult(name=topic_name))]))
    mirrors.wake(name)
    return done


def _change(
    mirrors: Mirrors, name: str, topic_name: str, operation: Operation, wanted: Desired
) -> Promise[seam.TopicResult]:
    try:
        topic = _associated(mirrors, name, topic_name)
        actual = [(p.index, p.state) for p in topic.partitions]
        verdict, code, message = decide(operation, topic.association.desired, actual)
        if code is not ErrorCode.NONE:
            raise ApiError(code, message)
    except ApiError as error:
        return Promise.of(seam.TopicResult(name=topic_name, error_code=error.code, error_message=error.message))
    if verdict is Verdict.ANSWER:
        return Promise.of(seam.TopicResult(name=topic_name))
    result: Promise[seam.TopicResult] = Promise()

    def wished(written: Promise[None]) -> None:
        try:
            written.result()
        except ApiError as error:
            result.resolve(seam.TopicResult(name=topic_name, error_code=error.code, error_message=error.message))
            return
        topic.association = _with(topic.association, wanted)
        for partition in topic.partitions:
            partition.step(ev.Wished(desired=wanted))
        result.resolve(seam.TopicResult(name=topic_name))
        mirrors.wake(name)

    _wish(mirrors, name, topic, wanted).then(wished)
    return result


def _associated(mirrors: Mirrors, name: str, topic_name: str) -> MirroredTopic:
    """Raises ApiError 3 unknown topic, 137 in no mirror, 139 in another one (docs/MIRRORING.md, "Answers")."""
    if topic_name not in mirrors.world.image.topics_by_name:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic_name}")
    found = mirrors.topics.get(topic_name)
    if found is None:
        raise ApiError(ErrorCode.UNKNOWN_CLUSTER_MIRROR, f"topic {topic_name} is in no mirror")
    if found[0].name != name:
        text = f"topic {topic_name} belongs to mirror {found[0].name!r}, not to {name!r}"
        raise ApiError(ErrorCode.TOPIC_NOT_IN_CLUSTER_MIRROR, text)
    return found[1]


def _with(association: Association, wanted: Desired) -> Association:
    return Association(
        topic=association.topic,
        topic_id=association.topic_id,
        desired=wanted,
        source_topic_id=association.source_topic_id,
        start_from=association.start_from,
        partitions_at_start=association.partitions_at_start,
    )


def _wish(mirrors: Mirrors, name: str, topic: MirroredTopic, wanted: Desired) -> Promise[None]:
    association = _with(topic.association, wanted)
    return write_configs(mirrors, [(name, wishes.config_name(association.topic_id), wishes.encode(association))])


def start_discovered(mirrors: Mirrors, mirror: Mirror, topic: seam.StartTopic) -> None:
    """A topic that the patterns found. Nobody waits for the answer; a refusal is logged and changes nothing."""

    def done(promise: Promise[seam.TopicResult]) -> None:
        result = promise.result()
        if result.error_code:
            log.warning("mirror %s: topic %s is not started: %s", mirror.name, topic.name, result.error_message)

    start_topic(mirrors, mirror, topic, force=False, start_from=EARLIEST).then(done)
