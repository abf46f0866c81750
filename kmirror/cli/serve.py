"""`kmirror serve`: run a broker until SIGTERM or SIGINT.

Click is not used here: its import costs a tenth of the time that a whole start takes. Exit status: 0 stopped by a
signal, 1 the broker had to stop (disk failure, corrupt data, a bug), 2 the command line, the configuration or another
process in the directory.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kmirror.errors import ConfigError, KmirrorError

if TYPE_CHECKING:
    from kmirror.app import App

DEFAULT_LISTENER = "PLAINTEXT://127.0.0.1:9092"
DEFAULT_DIRECTORY = "kmirror-data"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status. Prints the ready line on stdout; everything else goes to stderr."""
    options = _parser().parse_args(list(arguments))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    from kmirror import app
    from kmirror.storage.errors import StorageLocked

    raise_descriptor_limit()
    try:
        properties = properties_of(options)
        app.run(properties, announce=_announce, ready_file=options.ready_file)
    except ConfigError as error:
        print(f"kmirror serve: {error}", file=sys.stderr)
        return 2
    except StorageLocked as error:
        print(f"kmirror serve: {error}", file=sys.stderr)
        return 2
    except KmirrorError as error:
        print(f"kmirror serve: the broker had to stop: {error}", file=sys.stderr)
        return 1
    return 0


def raise_descriptor_limit() -> None:
    """As many open files as the system lets this process have. The usual soft limit of 1024 is there for programs that
    use select(); a broker keeps a descriptor for every partition and every client, and is stuck without."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS refuses an infinite one
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _announce(app: App) -> None:
    print(f"kmirror ready bootstrap={app.bootstrap} http=-", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kmirror serve",
        description="Run a broker. When it serves it prints one line: kmirror ready bootstrap=HOST:PORT http=-",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="server.properties with Kafka's names")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one property; wins over --config")
    add("--data-dir", metavar="DIR", help=f"where everything is kept (log.dirs); default ./{DEFAULT_DIRECTORY}")
    add(
        "--listen",
        action="append",
        default=[],
        metavar="[NAME://]HOST:PORT",
        help="replaces listeners; port 0 takes a free one; default 127.0.0.1:9092",
    )
    add("--ready-file", type=Path, metavar="FILE", help="written when it serves: JSON with addresses and the pid")
    return parser


def properties_of(options: argparse.Namespace) -> dict[str, str]:
    """All properties that the command line and its file set, later ones winning. Raises `ConfigError`."""
    properties: dict[str, str] = {}
    if options.config is not None:
        properties.update(_read(options.config))
    for item in options.set:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {item}: not KEY=VALUE")
        properties[name.strip()] = value.strip()
    if options.data_dir is not None:
        properties["log.dirs"] = options.data_dir
        properties.pop("log.dir", None)
    elif "log.dirs" not in properties and "log.dir" not in properties:
        properties["log.dirs"] = DEFAULT_DIRECTORY
    if options.listen:
        properties["listeners"] = ",".join(
            listener if "://" in listener else f"PLAINTEXT://{listener}" for listener in options.listen
        )
    properties.setdefault("listeners", DEFAULT_LISTENER)
    return properties


def _read(path: Path) -> dict[str, str]:
    from kmirror.cli.property_file import parse_properties

    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
