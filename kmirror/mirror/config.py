"""A mirror's configuration: names, types, defaults, and what may be changed when. Pure.

Names and defaults are the newest prototype's
(docs/MIRRORING.md, "Configuration") plus kmirror's own four (marked). Kafka's client
properties (`security.protocol`, `sasl.*`, `ssl.*`) are taken as they are and handed to the link.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from kmirror.errors import ApiError
from kmirror.protocol import mirror_numbers as numbers
from kmirror.protocol.errors import ErrorCode

MAX_NAME_LENGTH: Final = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_CLIENT_PREFIXES: Final = ("sasl.", "ssl.", "security.")

DEFAULT_PROPERTIES_EXCLUDE: Final = (
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "message.timestamp.difference.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms",
    "message.timestamp.type",
    "unclean.leader.election.enable",
    "min.insync.replicas",
    numbers.TOPIC_THROTTLED_REPLICAS_CONFIG,
    numbers.TOPIC_UNCLEAN_ELECTION_CONFIG,
)
NEVER_SYNCED: Final = frozenset({"flush.messages", "flush.ms"})
"""Durability is this cluster's own choice, whatever `topic.properties.exclude` says."""


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text.strip())
        if value < minimum:
            raise ValueError(f"must be at least {minimum}")
        return value

    return parse


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text.strip()

    return parse


def _boolean(text: str) -> bool:
    return _one_of("true", "false")(text.lower()) == "true"


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def split_list(text: str) -> list[str]:
    """A comma separated list; Kafka's `[a,b]` form is taken too."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    return [part.strip() for part in text.split(",") if part.strip()]


@dataclass(frozen=True, slots=True)
class Setting:
    default: str | None
    parse: Callable[[str], object]
    connection: bool = True
    """A change closes the link's connections and begins anew."""
    required: bool = False


SETTINGS: Final[dict[str, Setting]] = {
    "bootstrap.servers": Setting(None, _filled, required=True),
    "source.cluster.id": Setting(None, _filled, required=True),
    "request.timeout.ms": Setting("30000", _at_least(0)),
    "socket.connection.setup.timeout.ms": Setting("10000", _at_least(0)),
    "socket.connection.setup.timeout.max.ms": Setting("30000", _at_least(0)),
    "connections.max.idle.ms": Setting("600000", _at_least(0)),
    "fetch.wait.max.ms": Setting("1000", _at_least(0)),
    "fetch.backoff.ms": Setting("1000", _at_least(0)),
    "fetch.min.bytes": Setting("1", _at_least(0)),
    "fetch.response.max.bytes": Setting("10485760", _at_least(1)),
    "fetch.max.bytes": Setting("1048576", _at_least(1)),
    "socket.timeout.ms": Setting("30000", _at_least(0)),
    "socket.receive.buffer.bytes": Setting("65536", _at_least(-1)),
    "topic.properties.exclude": Setting(",".join(DEFAULT_PROPERTIES_EXCLUDE), split_list, connection=False),
    "topics.include": Setting("", split_list, connection=False),
    "topics.exclude": Setting("__.*", split_list, connection=False),
    "groups.include": Setting(".*", split_list, connection=False),
    "groups.exclude": Setting("", split_list, connection=False),
    "acls.include": Setting("*", split_list, connection=False),
    "open.transactions.on.stop": Setting("abort", _one_of("abort", "truncate"), connection=False),
    "alignment.save.cut": Setting("true", _boolean, connection=False),
    "gap.action": Setting("continue", _one_of("continue", "halt"), connection=False),
    "source.topic.deleted.action": Setting("fail", _one_of("fail", "stop"), connection=False),
}
"""The last four are kmirror's own."""

PATTERN_LISTS: Final = ("topics.include", "topics.exclude", "groups.include", "groups.exclude")


def check_name(name: str) -> None:
    """Raises ApiError INVALID_REQUEST unless `name` may name a mirror."""
    if not name or name in (".", "..") or len(name) > MAX_NAME_LENGTH or _NAME.fullmatch(name) is None:
        text = f"{name!r} cannot name a mirror: 1 to {MAX_NAME_LENGTH} of a-z A-Z 0-9 . _ - and neither '.' nor '..'"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)


def check_value(name: str, value: str) -> object:
    """The parsed value. Raises ApiError INVALID_CONFIG for an unknown name or a value that does not parse."""
    setting = SETTINGS.get(name)
    if setting is None:
        if name.startswith(_CLIENT_PREFIXES):
            return value
        near = get_close_matches(name, SETTINGS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ApiError(ErrorCode.INVALID_CONFIG, f"a mirror has no config {name!r}{hint}")
    try:
        return setting.parse(value)
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{name}={value!r}: {error}") from None


def check_create(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The configs of a new mirror. Raises ApiError: 42 for a missing required one, 40 for a bad one."""
    given = {name: value for name, value in configs.items() if value is not None}
    for name, setting in SETTINGS.items():
        if setting.required and not given.get(name, "").strip():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"a mirror needs {name}")
    for name, value in given.items():
        check_value(name, value)
    return given


def check_change(name: str, value: str | None, current: Mapping[str, str]) -> None:
    """One change of an existing mirror (value None: back to the default). Raises ApiError INVALID_CONFIG."""
    if name == "source.cluster.id" and value != current.get(name):
        text = "a mirror keeps its source cluster: create another mirror for another cluster"
        raise ApiError(ErrorCode.INVALID_CONFIG, text)
    if value is not None:
        check_value(name, value)
    elif name in SETTINGS and SETTINGS[name].required:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"a mirror needs {name}")
    elif name not in SETTINGS and not name.startswith(_CLIENT_PREFIXES):
        check_value(name, "")


class MirrorConfig:
    """The parsed configuration of one mirror, defaults filled in."""

    def __init__(self, configs: Mapping[str, str]) -> None:
        self._given = dict(configs)

    def text(self, name: str) -> str:
        value = self._given.get(name, SETTINGS[name].default)
        return "" if value is None else value

    def number(self, name: str) -> int:
        value = SETTINGS[name].parse(self.text(name))
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        return bool(SETTINGS[name].parse(self.text(name)))

    def items(self, name: str) -> list[str]:
        return split_list(self.text(name))

    def client_properties(self) -> dict[str, str]:
        return {name: value for name, value in self._given.items() if name.startswith(_CLIENT_PREFIXES)}

    def connection_part(self) -> tuple[tuple[str, str], ...]:
        """Two configurations with the same part share their connections."""
        return tuple(sorted((n, v) for n, v in self._given.items() if n not in SETTINGS or SETTINGS[n].connection))
