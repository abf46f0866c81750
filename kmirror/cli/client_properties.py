"""`--command-config`: Kafka's client properties, as far as this client can honour them.

A security setting that cannot be honoured is refused, never passed over: a connection must not silently be less safe
than the file says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kmirror.cli.failure import BadUsage
from kmirror.cli.property_file import parse_properties

_SECURITY_PREFIXES = ("sasl.", "ssl.")


@dataclass(slots=True)
class ClientProperties:
    bootstrap: str | None = None
    client_id: str = "kmirror-cli"
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    ignored: list[str] = field(default_factory=list)
    """Names that mean nothing to this client; the caller may say so."""


def read_properties(path: Path) -> dict[str, str]:
    """Raises BadUsage when the file cannot be read."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"cannot read {path}: {error}") from error


def load(path: Path | None) -> ClientProperties:
    """Raises BadUsage for an unreadable file, a value that is none, or a security setting this client lacks."""
    settings = ClientProperties()
    for name, value in (read_properties(path) if path else {}).items():
        if name == "bootstrap.servers":
            settings.bootstrap = value
        elif name == "client.id":
            settings.client_id = value
        elif name in ("request.timeout.ms", "default.api.timeout.ms"):
            settings.request_timeout_ms = _milliseconds(name, value)
        elif name == "socket.connection.setup.timeout.ms":
            settings.connect_timeout_ms = _milliseconds(name, value)
        elif name == "security.protocol":
            _check_protocol(value, path)
        elif name.startswith(_SECURITY_PREFIXES):
            raise BadUsage(
                f"{path}: {name} is set, but this version of kmirror connects in plain text only",
                next_step="Point the command at a PLAINTEXT listener, or use Kafka's own tools for this cluster.",
            )
        else:
            settings.ignored.append(name)
    return settings


def _milliseconds(name: str, value: str) -> int:
    if not value.isdigit() or int(value) == 0:
        raise BadUsage(f"{name}={value} is not a number of milliseconds")
    return int(value)


def _check_protocol(value: str, path: Path | None) -> None:
    if value.upper() != "PLAINTEXT":
        raise BadUsage(
            f"{path}: security.protocol={value} is not supported yet, only PLAINTEXT is",
            next_step="Point the command at a PLAINTEXT listener, or use Kafka's own tools for this cluster.",
        )
