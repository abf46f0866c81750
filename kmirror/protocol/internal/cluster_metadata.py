"""Records of the metadata log, `__cluster_metadata-0`, as far as kmirror writes or interprets them.

The framing is Kafka's (`MetadataRecordSerde`): unsigned varints for the frame version 1, the record type and the
record's version, then the body and nothing after it. Only types and versions that Kafka 4.4 decodes are written, so
that its tools read our log and a Kafka could take it over. The other types stand in `cluster_metadata_rest`, which is
loaded when one of them is met: start-up reads this module. L1.
"""

from __future__ import annotations

from typing import Any, Final

from kmirror.errors import DecodeError, EncodeError
from kmirror.protocol import wire
from kmirror.protocol.compile import Buffer, decoder, encode
from kmirror.protocol.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Uint16,
    Uuid,
    data,
    field,
    schema_of,
    struct,
)
from kmirror.protocol.uuids import ZERO

FRAME_VERSION: Final = 1
NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2
"""`PartitionChangeRecord.leader` when the leader stays."""
RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
"""`ConfigRecord.resource_type`; the mirrors' stands in `mirror_numbers`."""


@data(key=0, versions="0-4", flexible="0+")
class RegisterBrokerRecord:
    """A broker introduced itself. It stays fenced until an UnfenceBrokerRecord or a change says otherwise."""

    broker_id: Int32 = 0
    is_migrating_zk_broker: Bool = field(versions="2+")
    incarnation_id: Uuid = ZERO
    broker_epoch: Int64 = 0
    end_points: list[BrokerEndpoint] = field()
    features: list[BrokerFeature] = field()
    rack: String | None = ""
    fenced: Bool = True
    in_controlled_shutdown: Bool = field(versions="1+")
    log_dirs: list[Uuid] = field(versions="3+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = field(versions="4+", tag=1, default=None)


@struct
class BrokerEndpoint:
    name: String = ""
    host: String = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@struct
class BrokerFeature:
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@data(key=2, versions="0", flexible="0+")
class TopicRecord:
    """A topic was created; its PartitionRecords follow."""

    name: String = ""
    topic_id: Uuid = ZERO


@data(key=3, versions="0-2", flexible="0+")
class PartitionRecord:
    """The whole state of a partition: at creation, and here also whenever the leader epoch jumps."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO
    replicas: list[Int32] = field()
    isr: list[Int32] = field()
    removing_replicas: list[Int32] = field()
    adding_replicas: list[Int32] = field()
    # -1: none
    leader: Int32 = -1
    # 1: recovering from an unclean election
    leader_recovery_state: Int8 = field(tag=0)
    leader_epoch: Int32 = -1
    # grows with every change of the partition
    partition_epoch: Int32 = -1
    # one per replica
    directories: list[Uuid] = field(versions="1+")
    eligible_leader_replicas: list[Int32] | None = field(versions="2+", tag=1, default=None)
    last_known_elr: list[Int32] | None = field(versions="2+", tag=2, default=None)


@data(key=4, versions="0", flexible="0+")
class ConfigRecord:
    """One override of a topic, broker or mirror was set, or deleted (value null)."""

    # 2 topic, 4 broker, 16 client metrics, 32 group, 64 mirror
    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    # null: deleted
    value: String | None = ""


@data(key=5, versions="0-2", flexible="0+")
class PartitionChangeRecord:
    """Parts of a partition's state changed. A change of leader or replicas raises the leader epoch by one."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO
    # null in these fields: unchanged
    isr: list[Int32] | None = field(tag=0, default=None)
    # -1: none now; -2: unchanged
    leader: Int32 = field(tag=1, default=-2)
    replicas: list[Int32] | None = field(tag=2, default=None)
    removing_replicas: list[Int32] | None = field(tag=3, default=None)
    adding_replicas: list[Int32] | None = field(tag=4, default=None)
    # -1: unchanged
    leader_recovery_state: Int8 = field(tag=5, default=-1)
    directories: list[Uuid] | None = field(versions="1+", tag=8, default=None)
    eligible_leader_replicas: list[Int32] | None = field(versions="2+", tag=6, default=None)
    last_known_elr: list[Int32] | None = field(versions="2+", tag=7, default=None)


@data(key=7, versions="0", flexible="0+")
class FenceBrokerRecord:
    """A broker lost its lease."""

    id: Int32 = 0
    epoch: Int64 = 0


@data(key=8, versions="0", flexible="0+")
class UnfenceBrokerRecord:
    """A broker serves again."""

    id: Int32 = 0
    epoch: Int64 = 0


@data(key=9, versions="0", flexible="0+")
class RemoveTopicRecord:
    """A topic and all its partitions were deleted."""

    topic_id: Uuid = ZERO


@data(key=12, versions="0", flexible="0+")
class FeatureLevelRecord:
    """A feature changed its level; 0 switches it off."""

    name: String = ""
    feature_level: Int16 = 0


@data(key=15, versions="0", flexible="0+")
class ProducerIdsRecord:
    """A block of producer ids was handed out: everything below `next_producer_id` is taken."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@data(key=17, versions="0-3", flexible="0+")
class BrokerRegistrationChangeRecord:
    """Parts of a broker's registration changed."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    # -1: unfenced now; 0: unchanged; 1: fenced now
    fenced: Int8 = field(tag=0)
    # 0: unchanged; 1: shutting down
    in_controlled_shutdown: Int8 = field(versions="1+", tag=1)
    log_dirs: list[Uuid] = field(versions="2+", tag=2)
    cordoned_log_dirs: list[Uuid] | None = field(versions="3+", tag=3, default=None)


@data(key=20, versions="0", flexible="0+")
class NoOpRecord:
    """Nothing; a controller writes it to make progress visible."""


@data(key=27, versions="0", flexible="0+")
class RegisterControllerRecord:
    """A controller introduced itself."""

    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO
    zk_migration_ready: Bool = False
    end_points: list[ControllerEndpoint] = field()
    features: list[ControllerFeature] = field()


@struct
class ControllerEndpoint:
    name: String = ""
    host: String = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@struct
class ControllerFeature:
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


_TYPES: dict[int, type[Any]] = {
    0: RegisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    7: FenceBrokerRecord,
    8: UnfenceBrokerRecord,
    9: RemoveTopicRecord,
    12: FeatureLevelRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    20: NoOpRecord,
    27: RegisterControllerRecord,
}


def encode_metadata(record: object, version: int | None = None) -> bytes:
    """The value of one record; `version` defaults to the newest that Kafka 4.4 knows. Raises EncodeError."""
    schema = schema_of(type(record))
    if schema.key is None:
        raise EncodeError(f"{type(record).__name__} is not a metadata record")
    if version is None:
        version = schema.versions.high
    return bytes([FRAME_VERSION, schema.key]) + wire.uvarint(version) + encode(record, version)


def decode_metadata(data: Buffer) -> Any:
    """The record in a value. Raises DecodeError: unknown frame version, type or version, or bytes after the body."""
    try:
        frame_version, offset = wire.read_uvarint(data, 0)
        key, offset = wire.read_uvarint(data, offset)
        version, offset = wire.read_uvarint(data, offset)
    except (IndexError, wire.Malformed) as error:
        raise DecodeError(f"no frame of a metadata record: {error}", api="metadata record") from None
    if frame_version != FRAME_VERSION:
        raise DecodeError(f"frame version {frame_version}, only {FRAME_VERSION} is known", api="metadata record")
    record, after = decoder(record_type(key), version)(data, offset, len(data))
    if after != len(data):
        name = type(record).__name__
        raise DecodeError(f"{len(data) - after} bytes after the record", api=name, version=version, offset=after)
    return record


def record_type(key: int) -> type[Any]:
    """The class of a record type. Raises DecodeError when nobody knows it."""
    found = _TYPES.get(key)
    if found is None:
        from kmirror.protocol.internal import cluster_metadata_rest

        found = cluster_metadata_rest.TYPES.get(key)
    if found is None:
        raise DecodeError(f"unknown record type {key}", api="metadata record")
    return found
