"""How a command talks to a cluster: the options all commands share, one `trio.run` per command, errors made readable.

What holds: whatever the broker does (refuses, hangs, hangs up, sends rubbish, answers with an error code), the user
reads one message that names the address. Exit status 2: the cluster could not be asked. 1: it said no.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
import trio

from kmirror.cli import client_properties
from kmirror.cli.client_properties import ClientProperties
from kmirror.cli.display import note
from kmirror.cli.failure import BadUsage, CannotReach, Failure
from kmirror.errors import ApiError, ConfigError, DecodeError
from kmirror.protocol.errors import ErrorCode, name_of
from kmirror.source.cluster import ClientSettings, Cluster
from kmirror.source.errors import PeerError, UnsupportedByPeer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Session:
    """Which cluster a command speaks to, and how."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    properties: ClientProperties = field(default_factory=ClientProperties)

    def cluster(self) -> Cluster:
        """A client that has not connected yet. Raises BadUsage for an address that is none."""
        settings = ClientSettings(
            client_id=self.properties.client_id,
            request_timeout_ms=self.properties.request_timeout_ms,
            connection_setup_timeout_ms=self.properties.connect_timeout_ms,
        )
        try:
            return Cluster([text for text in self.bootstrap.split(",") if text.strip()], settings)
        except ConfigError as error:
            raise BadUsage(f"--bootstrap {self.bootstrap or repr('')}: {error}") from error

    def run(self, body: Callable[[Cluster], Awaitable[T]]) -> T:
        """Run `body` with a client. Raises Failure and its subclasses for everything that the outside can cause."""

        async def main() -> T:
            cluster = self.cluster()
            try:
                return await body(cluster)
            finally:
                cluster.close()

        return run_readably(main, self.bootstrap)


def run_readably(main: Callable[[], Awaitable[T]], address: str) -> T:
    """`trio.run`, with what a peer can do to us turned into a `Failure` that names `address`."""
    try:
        return trio.run(main)
    except BaseException as raised:
        error = only_error(raised)
        failure = as_failure(error, address)
        if failure is not None:
            raise failure from error
        if error is not raised:
            raise error from None
        raise


def only_error(error: BaseException) -> BaseException:
    """What is inside groups of one: nurseries wrap everything."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def as_failure(error: BaseException, address: str) -> Failure | None:
    """The readable form of what a peer did, or None for anything else."""
    if isinstance(error, UnsupportedByPeer):
        return CannotReach(
            f"the broker cannot do this: {error}",
            next_step="Mirror commands need a kmirror with the feature mirror.version at 1."
            if "Mirror" in str(error)
            else "It is too old for that, or of another kind.",
        )
    if isinstance(error, PeerError):
        text = str(error)
        return CannotReach(
            text if address in text else f"cannot reach a broker at {address}: {text}",
            next_step="Check that it runs (kmirror serve) and that --bootstrap names its address.",
        )
    if isinstance(error, DecodeError):
        return CannotReach(
            f"what answers at {address} does not speak Kafka's protocol: {error}",
            next_step="Check the port, and that the listener is not an encrypted one.",
        )
    if isinstance(error, ApiError):
        return Failure(f"{code_name(error.code)}: {error.message}" if error.message else code_name(error.code))
    return None


def code_name(code: int) -> str:
    """`READ_ONLY_TOPIC (147)`; a number kmirror does not know stays a number."""
    name = name_of(code)
    return f"error {code}" if name == str(code) else f"{name} ({code})"


def refusal(code: int, message: str | None) -> str:
    """Why the broker said no: its own words when it sent some, else the code's usual text."""
    if message:
        return f"{code_name(code)}: {message}"
    known = {int(member): member.message for member in ErrorCode}
    return f"{code_name(code)}: {known[code]}" if code in known else code_name(code)


def check(code: int, message: str | None, what: str, *, next_step: str = "") -> None:
    """Raises Failure when `code` is an error; `what` begins the sentence."""
    if code != ErrorCode.NONE:
        raise Failure(f"{what}: {refusal(code, message)}", next_step=next_step)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --bootstrap and --command-config, and hands the command a `Session` as its first argument."""

    @click.option("--bootstrap", metavar="HOST:PORT", help=f"Broker to ask first.  [default: {DEFAULT_BOOTSTRAP}]")
    @click.option(
        "--command-config",
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Kafka client properties.",
    )
    @functools.wraps(command)
    def with_session(*args: Any, bootstrap: str | None, command_config: Path | None, **kwargs: Any) -> Any:
        properties = client_properties.load(command_config)
        if properties.ignored:
            note(f"{command_config}: without meaning here: {', '.join(properties.ignored)}")
        session = Session(_first_given(bootstrap, properties.bootstrap, DEFAULT_BOOTSTRAP), properties)
        return command(session, *args, **kwargs)

    return with_session


def _first_given(*texts: str | None) -> str:
    """An empty address is one that was given (an unset shell variable, mostly): it is refused, never replaced."""
    return next((text for text in texts if text is not None), "")


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def key_values(pairs: tuple[str, ...], option: str = "--set") -> dict[str, str]:
    """`KEY=VALUE` options as a dict. Raises BadUsage."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise BadUsage(f"{option} {pair}: write KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def time_ms(text: str) -> int:
    """A time in ISO 8601, UTC where it names no zone, in ms since 1970. Raises ValueError."""
    when = datetime.fromisoformat(text)
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def comma_list(text: str | None) -> list[str]:
    return [item.strip() for item in (text or "").split(",") if item.strip()]
