"""Changing and describing configurations of topics, of the broker and of mirrors. L3.

What may live here: the rules of AlterConfigs, IncrementalAlterConfigs and DescribeConfigs (ConfigurationControlManager)
and the ConfigRecords that follow. What must hold: one resource changes as a whole or not at all; a change is on disk
before its caller is told; what is read back is what later starts will read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from kmirror.broker import config_table as broker_table
from kmirror.broker import topic_config
from kmirror.broker.config import check_value, parse_value
from kmirror.broker.metadata import BROKER_RESOURCE, MIRROR_RESOURCE, TOPIC_RESOURCE
from kmirror.broker.topic_admin import METADATA_LOG, name_problem
from kmirror.broker.topic_config import ConfigEntry
from kmirror.effects import Effects, Promise, StateRecord
from kmirror.errors import ApiError, ConfigError
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import cluster_metadata as records

if TYPE_CHECKING:
    from kmirror.broker.world import World

NOT_DYNAMIC_HERE = frozenset({"listeners", "listener.security.protocol.map"})
"""Kafka changes these at run time; kmirror binds its sockets once."""


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(slots=True)
class ConfigOp:
    """One change of IncrementalAlterConfigs: `operation` is a ConfigOperation, `value` None only for DELETE."""

    name: str
    operation: int
    value: str | None = None


class ConfigAdmin:
    """Operations on configurations. `alter` returns a promise; refusals are ApiErrors inside it."""

    def __init__(self, world: World) -> None:
        self._world = world

    # -- alter ---------------------------------------------------------------------------------------------------

    def alter(
        self, resource_type: int, name: str, ops: list[ConfigOp], *, replace: bool = False, validate_only: bool = False
    ) -> Promise[None]:
        """Apply `ops` to one resource; `replace` makes them the whole configuration (AlterConfigs, only SET).

        ApiError 3 unknown topic, 40 bad name or value (42 for the broker, as Kafka), 42 bad operation, 137 no mirror.
        """
        promise: Promise[None] = Promise()
        try:
            current, wanted = self._planned(resource_type, name, ops, replace=replace)
        except ConfigError as error:
            code = ErrorCode.INVALID_REQUEST if resource_type == BROKER_RESOURCE else ErrorCode.INVALID_CONFIG
            promise.fail(ApiError(code, str(error)))
            return promise
        except ApiError as error:
            promise.fail(error)
            return promise
        if validate_only:
            promise.resolve(None)
            return promise
        return self.write(resource_type, name, changes(current, wanted))

    def _planned(
        self, resource_type: int, name: str, ops: list[ConfigOp], *, replace: bool
    ) -> tuple[dict[str, str], dict[str, str]]:
        """The configuration now and as it would be. The order of the checks is that of ConfigurationControlManager:
        operations, the topic's name, values, and only then whether there is such a topic."""
        _check_operations(ops)
        refusal: ApiError | None = None
        try:
            if resource_type == TOPIC_RESOURCE and not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
            current = self._current(resource_type, name)
        except ApiError as error:
            if resource_type != TOPIC_RESOURCE:
                raise
            current, refusal = {}, error
        wanted = self._applied(resource_type, current, ops, replace=replace)
        if refusal is not None and refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise refusal
        self._check(resource_type, name, wanted, changed={op.name for op in ops})
        if refusal is not None:
            raise refusal
        return current, wanted

    def write(self, resource_type: int, name: str, changed: Mapping[str, str | None]) -> Promise[None]:
        """Record values (None removes) without any check, and let everybody who reads them know."""
        promise: Promise[None] = Promise()
        accepted = self._world.commit(
            Effects(
                records=[
                    StateRecord(
                        METADATA_LOG,
                        None,
                        records.ConfigRecord(resource_type=resource_type, resource_name=name, name=config, value=value),
                    )
                    for config, value in changed.items()
                ],
                durable=[METADATA_LOG],
                replies=[(promise, None)],
            )
        )
        if accepted:
            self._world.configs_changed(resource_type, name)
        return promise

    def _current(self, resource_type: int, name: str) -> dict[str, str]:
        image = self._world.image
        if resource_type == TOPIC_RESOURCE:
            problem = name_problem(name)
            if problem is not None:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
            topic = image.topics_by_name.get(name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            return dict(topic.configs)
        if resource_type == BROKER_RESOURCE:
            self._check_broker_name(name)
            return dict(image.broker_configs.get(name, {}) if name else image.default_broker_configs)
        if resource_type == MIRROR_RESOURCE:
            if name not in image.mirror_configs:
                raise ApiError(ErrorCode.UNKNOWN_CLUSTER_MIRROR, f"there is no mirror {name}")
            return dict(image.mirror_configs[name])
        raise ApiError(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no configuration here")

    def _check_broker_name(self, name: str) -> None:
        if name and name != str(self._world.node_id):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"broker {name} is not this broker, which is {self._world.node_id}"
            )

    def _applied(
        self, resource_type: int, current: Mapping[str, str], ops: list[ConfigOp], *, replace: bool
    ) -> dict[str, str]:
        wanted = {} if replace else dict(current)
        for op in ops:
            if op.operation not in list(ConfigOperation):
                raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown config operation {op.operation} for {op.name}")
            if op.operation == ConfigOperation.DELETE:
                wanted.pop(op.name, None)
                continue
            if op.operation == ConfigOperation.SET:
                assert op.value is not None  # _check_operations
                wanted[op.name] = op.value
            else:
                wanted[op.name] = self._edited_list(resource_type, op, wanted)
        return wanted

    def _edited_list(self, resource_type: int, op: ConfigOp, wanted: Mapping[str, str]) -> str:
        if self._kind(resource_type, op.name) != broker_table.LIST:
            verb = "append to" if op.operation == ConfigOperation.APPEND else "subtract from"
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Can't {verb} key {op.name} because its type is not LIST.")
        text = wanted.get(op.name)
        if text is None:
            text = self._inherited(resource_type, op.name) or ""
        items = [item.strip() for item in text.split(",") if item.strip()]
        given = [item.strip() for item in (op.value or "").rstrip(",").split(",")]  # an empty one is refused later
        if op.operation == ConfigOperation.APPEND:
            items += [item for item in given if item not in items]
        else:
            items = [item for item in items if item not in given]
        return ",".join(items)

    def _kind(self, resource_type: int, name: str) -> int | None:
        if resource_type == TOPIC_RESOURCE:
            return topic_config.kind_of(name) if topic_config.is_known(name) else None
        if resource_type == BROKER_RESOURCE:
            return next((row[1] for row in broker_table.PROPERTIES if row[0] == name), None)
        kind: int | None = self._world.mirrors.config_kind(name)
        return kind

    def _inherited(self, resource_type: int, name: str) -> str | None:
        if resource_type == TOPIC_RESOURCE:
            return topic_config.effective(name, {}, self._world.layers)[0]
        if resource_type == BROKER_RESOURCE:
            return self._world.config.raw(name)
        return None

    def _check(self, resource_type: int, name: str, wanted: dict[str, str], *, changed: set[str]) -> None:
        if resource_type == TOPIC_RESOURCE:
            topic_config.check(wanted)
        elif resource_type == BROKER_RESOURCE:
            check_dynamic({config: value for config, value in wanted.items() if config in changed})
        else:
            self._world.mirrors.check_configs(name, wanted, changed)

    # -- describe ------------------------------------------------------------------------------------------------

    def describe(self, resource_type: int, name: str, keys: Iterable[str] | None = None) -> list[ConfigEntry]:
        """Entries in Kafka's order; `keys` None means all. Raises ApiError 3, 17, 42, 137."""
        current = self._current(resource_type, name)
        if resource_type == TOPIC_RESOURCE:
            entries = topic_config.describe(current, self._world.layers)
        elif resource_type == MIRROR_RESOURCE:
            entries = self._world.mirrors.describe_configs(name)
        elif name:
            entries = topic_config.describe_broker(self._world.layers)
        else:
            entries = topic_config.describe_dynamic(current, topic_config.DYNAMIC_DEFAULT_BROKER)
        if keys is None:
            return entries
        wanted = set(keys)
        return [entry for entry in entries if entry.name in wanted]


def _check_operations(ops: list[ConfigOp]) -> None:
    """What is wrong whatever the resource is, so that it is said even of one that does not exist (ConfigAdminManager).

    Raises ApiError 42.
    """
    names = [op.name for op in ops]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys : {', '.join(twice)}")
    empty = [op.name for op in ops if op.value is None and op.operation != ConfigOperation.DELETE]
    if empty:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(empty)}")


def changes(current: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """What to record so that `current` becomes `wanted`; None removes."""
    changed: dict[str, str | None] = {name: value for name, value in wanted.items() if current.get(name) != value}
    changed.update({name: None for name in current if name not in wanted})
    return changed


def check_dynamic(given: Mapping[str, str]) -> None:
    """Broker properties about to be set at run time. Raises ConfigError; ApiError 42 when one is static."""
    rows = {row[0]: row for row in broker_table.PROPERTIES}
    fixed = sorted(name for name in given if name in rows and (not rows[name][3] or name in NOT_DYNAMIC_HERE))
    if fixed:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {', '.join(fixed)}")
    for name, text in given.items():
        if name not in rows:
            raise ConfigError(f"Unknown broker config name: {name}")
        _name, kind, default, _dynamic, handling = rows[name]
        check_value(name, parse_value(name, kind, text))
        if handling not in (broker_table.USED, broker_table.INERT) and text != default:
            raise ConfigError(f"{name}: {handling}")
