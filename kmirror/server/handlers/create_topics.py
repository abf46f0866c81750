"""CreateTopics (19): make topics, or only check that they could be made.

Versions: 2-7.

Behaviour: each topic is answered on its own; a name that comes twice, and the metadata log's own name, are
INVALID_REQUEST. -1 stands for the broker's defaults (KIP-464). From version 5 the answer holds partition count,
replication factor and all configurations (KIP-525), from version 7 the topic id. When the answer says 0 the topic can
be used at once.

Deviations: one broker, so a replication factor above 1 is INVALID_REPLICATION_FACTOR, as on a Kafka of one node.
"""

from __future__ import annotations

from collections import Counter

from kmirror.broker import topic_config
from kmirror.broker.metadata import METADATA_TOPIC, TopicState
from kmirror.broker.topic_admin import NOT_GIVEN, CreateTopicSpec
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.limits import MAX_PARTITIONS_PER_REQUEST
from kmirror.protocol.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, settled_until

VERSIONS = (2, 7)


async def handle(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    count = Counter(topic.name for topic in request.topics)
    refused: list[CreatableTopicResult] = []
    candidates = [topic for topic in request.topics if count[topic.name] == 1 and topic.name != METADATA_TOPIC]
    if _partition_total(context, candidates) > MAX_PARTITIONS_PER_REQUEST:
        reason = f"more than {MAX_PARTITIONS_PER_REQUEST} partitions in one request: create the topics one by one"
        return CreateTopicsResponse(
            topics=[_refused(topic.name, ErrorCode.POLICY_VIOLATION, reason) for topic in request.topics]
        )
    started: list[tuple[str, Promise[TopicState]]] = []
    turn = Turn()
    for topic in candidates:
        started.append((topic.name, context.world.create_topic(_spec(topic, request.validate_only))))
        await turn.let_others()
    for name in count:
        if count[name] > 1:
            refused.append(_refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        elif name == METADATA_TOPIC:
            reason = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
            refused.append(_refused(name, ErrorCode.INVALID_REQUEST, reason))
    await settled_until([promise for _, promise in started], timeout_ms=request.timeout_ms)
    made = []
    for name, promise in started:
        made.append(_result(context, name, promise))
        await turn.let_others()
    return CreateTopicsResponse(topics=[*made, *refused])


def _partition_total(context: RequestContext, topics: list[CreatableTopic]) -> int:
    """ReplicationControlManager.validateTotalNumberOfPartitions, which comes before all other checks."""
    default = context.world.config.integer("num.partitions")
    counts = [len(topic.assignments) or topic.num_partitions for topic in topics]
    return sum(default if count == NOT_GIVEN else max(0, count) for count in counts)


def _spec(topic: CreatableTopic, validate_only: bool) -> CreateTopicSpec:
    times_assigned = Counter(assignment.partition_index for assignment in topic.assignments)
    given = {config.name: config.value for config in topic.configs}
    nulls = {config.name: None for config in topic.configs if config.value is None}  # refused even if set again
    return CreateTopicSpec(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs={**given, **nulls},
        assignments={assigned.partition_index: list(assigned.broker_ids) for assigned in topic.assignments},
        validate_only=validate_only,
        assigned_twice=next((index for index, count in times_assigned.items() if count > 1), None),
    )


def _result(context: RequestContext, name: str, promise: Promise[TopicState]) -> CreatableTopicResult:
    if not promise.done:
        return _refused(name, ErrorCode.REQUEST_TIMED_OUT, f"the creation of {name} goes on; look again later")
    try:
        topic = promise.result()
    except ApiError as error:
        return _refused(name, error.code, error.message)
    entries = topic_config.describe(topic.configs, context.world.layers)
    return CreatableTopicResult(
        name=name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(
                name=entry.name,
                value=topic.configs.get(entry.name, entry.value),  # as it was given, unlike DescribeConfigs
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in sorted(entries, key=lambda entry: entry.name)
        ],
    )


def _refused(name: str, code: int, reason: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=reason)
