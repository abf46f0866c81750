"""Broker configuration from Kafka's property names: parsing, defaults, and refusing what would be ignored in silence.

What may live here: everything that turns text properties into typed values. What must hold: an unknown name is an
error that names the nearest known one (a misspelt `log.retention.msx` must not mean "keep for a week"), a property
that means nothing here is accepted with a warning, and one that would promise what kmirror does not do is refused
with the way round it. Facts are in `config_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kmirror.broker import config_table as table
from kmirror.errors import ConfigError

Value = bool | int | float | str | list[str] | None

_ROWS = {row[0]: row for row in table.PROPERTIES}
_DIFFERENT = {name: value for name, value, _reason in table.DIFFERENT_DEFAULTS}
_REMOVED = dict(table.REMOVED)
_INTEGER_RANGES = {
    table.SHORT: (-(2**15), 2**15 - 1),
    table.INT: (-(2**31), 2**31 - 1),
    table.LONG: (-(2**63), 2**63 - 1),
}
LISTENER_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Listener:
    """One entry of `listeners` or `advertised.listeners`. Port 0 asks the system for a free one."""

    name: str
    host: str
    port: int
    security_protocol: str


def parse_value(name: str, kind: int, text: str) -> Value:
    """A property's text as its typed value, by the rules of Kafka's ConfigDef. Raises ConfigError."""
    text = text.strip()
    if kind == table.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}: {text!r} is not true or false")
        return text.lower() == "true"
    if kind in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[kind]
        try:
            number = int(text.replace("_", "?"))  # Python would take 1_000, Java does not
        except ValueError:
            raise ConfigError(f"{name}: {text!r} is not a whole number") from None
        if not low <= number <= high:
            raise ConfigError(f"{name}: {number} does not fit (from {low} to {high})")
        return number
    if kind == table.DOUBLE:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{name}: {text!r} is not a number") from None
    if kind == table.LIST:
        return [item.strip() for item in text.split(",")] if text else []
    return text


def check_value(name: str, value: Value) -> None:
    """Bounds and choices. Raises ConfigError."""
    if name in table.BOUNDS and isinstance(value, int):
        low, high = table.BOUNDS[name]
        if value < low:
            raise ConfigError(f"{name}: {value} is below {low}")
        if high is not None and value > high:
            why = " (kmirror is one node)" if "replication.factor" in name else ""
            raise ConfigError(f"{name}: {value} is above {high}{why}")
    if name in table.CHOICES:
        for item in value if isinstance(value, list) else [str(value)]:
            if item not in table.CHOICES[name]:
                raise ConfigError(f"{name}: {item!r} is none of {', '.join(table.CHOICES[name])}")


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # only when somebody has made a mistake

    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def parse_listeners(text: str, protocols: Mapping[str, str], *, what: str = "listeners") -> tuple[Listener, ...]:
    """`NAME://HOST:PORT,...` as Kafka writes it; an empty host means every interface. Raises ConfigError."""
    found: list[Listener] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, address = item.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"{what}: {item!r} is not NAME://HOST:PORT")
        name = name.upper()
        if name == "CONTROLLER" and name not in protocols:
            continue
        if name not in protocols:
            raise ConfigError(
                f"{what}: no security protocol for {name}: add {name}:PLAINTEXT to listener.security.protocol.map"
            )
        if any(other.name == name for other in found):
            raise ConfigError(f"{what}: {name} is there twice")
        found.append(Listener(name, host.strip("[]"), int(port), protocols[name]))
    return tuple(found)


class BrokerConfig:
    """Typed view of the broker's properties. Immutable; a change at run time makes a new one (`overlaid`).

    `explicit` holds the text of what was set, `warnings` what a person should be told once at the start.
    """

    def __init__(self, explicit: dict[str, str], warnings: list[str] | None = None) -> None:
        self.explicit = explicit
        self.warnings = warnings or []
        self._values: dict[str, Value] = {}
        self.node_id = self.integer("node.id")
        self.log_directory = self._one_directory()
        self.security_protocols = self._protocols()
        self.listeners = parse_listeners(self.text("listeners"), self.security_protocols)
        advertised = self.raw("advertised.listeners") or ""
        self.advertised_listeners = parse_listeners(advertised, self.security_protocols, what="advertised.listeners")
        self._check_together()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Raises ConfigError: unknown name, value that does not parse, property that kmirror cannot honour."""
        explicit: dict[str, str] = {}
        warnings: list[str] = []
        for name, text in properties.items():
            row = _ROWS.get(name)
            if row is None:
                warnings.append(_without_row(name))
                continue
            _name, kind, default, _dynamic, handling = row
            value = parse_value(name, kind, text)
            check_value(name, value)
            if name in table.STORE_TYPES and text.strip().upper() != "PEM":
                raise ConfigError(f"{name}={text.strip()}: {table.JAVA_STORES}")
            is_default = default is not None and value == parse_value(name, kind, default)
            if handling == table.INERT:
                warnings.append(f"{name} has no meaning for kmirror and is ignored")
            elif handling != table.USED and not is_default and text.strip():
                raise ConfigError(f"{name}: {handling}")
            explicit[name] = text.strip()
        if "broker.id" in explicit and "node.id" not in explicit and explicit["broker.id"] != "-1":
            explicit["node.id"] = explicit["broker.id"]
        return cls(explicit, warnings)

    def overlaid(self, *layers: Mapping[str, str]) -> BrokerConfig:
        """This configuration with dynamic values on top; later layers win."""
        explicit = dict(self.explicit)
        for layer in layers:
            explicit.update(layer)
        return BrokerConfig(explicit, self.warnings)

    # -- values --------------------------------------------------------------------------------------------------

    @staticmethod
    def default_text(name: str) -> str | None:
        """kmirror's default, which is Kafka's unless DIFFERENT_DEFAULTS says otherwise."""
        return _DIFFERENT.get(name, _ROWS[name][2])

    def raw(self, name: str) -> str | None:
        text = self.explicit.get(name)
        return text if text is not None else self.default_text(name)

    def value(self, name: str) -> Value:
        if name not in self._values:
            text = self.raw(name)
            self._values[name] = None if text is None else parse_value(name, _ROWS[name][1], text)
        return self._values[name]

    def integer(self, name: str) -> int:
        value = self.value(name)
        if not isinstance(value, int):
            raise ConfigError(f"{name} has no value")
        return value

    def optional_integer(self, name: str) -> int | None:
        value = self.value(name)
        return value if isinstance(value, int) else None

    def boolean(self, name: str) -> bool:
        return bool(self.value(name))

    def number(self, name: str) -> float:
        value = self.value(name)
        if not isinstance(value, (int, float)):
            raise ConfigError(f"{name} has no value")
        return float(value)

    def text(self, name: str) -> str:
        return self.raw(name) or ""

    def listing(self, name: str) -> list[str]:
        value = self.value(name)
        return value if isinstance(value, list) else []

    def effective_ms(self, name: str) -> int | None:
        """A time that Kafka also takes from coarser properties (`log.retention.ms` from minutes or hours)."""
        value = self.optional_integer(name)
        if value is not None:
            return value
        for other, factor in table.FALLBACKS.get(name, ()):
            coarse = self.optional_integer(other)
            if coarse is not None:
                return coarse if coarse < 0 else coarse * factor
        return None

    # -- checks that need more than one property -----------------------------------------------------------------

    def _one_directory(self) -> str:
        text = self.explicit.get("log.dirs") or self.explicit.get("log.dir") or self.text("log.dirs")
        directories = [item.strip() for item in text.split(",") if item.strip()]
        if len(directories) != 1:
            raise ConfigError(
                f"log.dirs: {len(directories)} directories given, kmirror keeps its data in exactly one: "
                "name one, and join disks below the file system (LVM, RAID)"
            )
        return directories[0]

    def _protocols(self) -> dict[str, str]:
        protocols: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in self.text("listener.security.protocol.map").split(","))):
            name, _colon, protocol = item.partition(":")
            if protocol.upper() not in LISTENER_PROTOCOLS:
                raise ConfigError(
                    f"listener.security.protocol.map: {item!r} is not NAME:PROTOCOL with one of "
                    f"{', '.join(LISTENER_PROTOCOLS)}"
                )
            protocols[name.strip().upper()] = protocol.upper()
        return protocols

    def _check_together(self) -> None:
        controllers = {name.upper() for name in self.listing("controller.listener.names")}
        self.listeners = tuple(listener for listener in self.listeners if listener.name not in controllers)
        if not self.listeners:
            raise ConfigError("listeners: at least one listener for clients is needed")
        for listener in self.listeners:
            if listener.security_protocol != "PLAINTEXT":
                raise ConfigError(
                    f"listeners: {listener.name} speaks {listener.security_protocol}, but {table.SECURITY}"
                )
        for listener in self.advertised_listeners:
            if listener.name not in {known.name for known in self.listeners}:
                raise ConfigError(f"advertised.listeners: {listener.name} is not in listeners")
            if listener.host in ("", "0.0.0.0", "::"):
                raise ConfigError(f"advertised.listeners: {listener.name} needs an address that clients can reach")


def _without_row(name: str) -> str:
    """The warning for a property that Kafka 4.4 does not define. Raises ConfigError when it must not be ignored."""
    way_round = _REMOVED.get(name) or next(
        (why for prefix, why in table.REMOVED_PREFIXES if name.startswith(prefix)), None
    )
    if way_round is not None:
        raise ConfigError(f"{name}: {way_round}")
    if name in table.OBSOLETE:
        return f"{name} is no longer a property of Kafka and is ignored"
    near = nearest_name(name, _ROWS)
    raise ConfigError(f"unknown property {name}" + (f": did you mean {near}?" if near else ""))
