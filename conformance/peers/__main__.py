"""`python -m conformance.peers`: install, start, stop and use the peers from a shell."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import click

from conformance.peers import kfake, maven
from conformance.peers.kafka import TOOLS, KafkaBroker, KafkaInstallation
from conformance.peers.processes import PeerFailed, PeerUnavailable, cache_home, end_recorded, recorded_runs

REPOSITORY = Path(__file__).resolve().parents[2]


def _instance_directory(name: str) -> Path:
    if "/" in name or name.startswith("."):
        raise click.UsageError(f"not a broker name: {name!r}")
    return cache_home() / "instances" / name


def _load(name: str) -> dict[str, object]:
    record = _instance_directory(name) / "instance.json"
    if not record.exists():
        raise click.ClickException(f"no broker named {name!r}; start it first")
    loaded: dict[str, object] = json.loads(record.read_text())
    return loaded


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


@main.command()
@click.argument("peer", type=click.Choice(["kafka", "kfake"]))
@click.argument("version", default=maven.DEFAULT_VERSION)
def install(peer: str, version: str) -> None:
    """Fetch a peer: `install kafka [VERSION]` (jars and class-data archive) or `install kfake`."""
    if peer == "kfake":
        click.echo(f"kfake: {kfake.build()}")
        return
    installation = KafkaInstallation(version)
    click.echo(f"Kafka {version}: {installation.jars}")
    if installation.kraft:
        click.echo(f"class-data archive: {installation.build_archive()}")


@main.command()
@click.argument("name")
@click.option("--version", default=maven.DEFAULT_VERSION, show_default=True)
@click.option("--port", type=int, default=None, help="Client port (a free one when left out).")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A server property.")
def start(name: str, version: str, port: int | None, settings: tuple[str, ...]) -> None:
    """Start a Kafka broker called NAME; it goes on running until `stop`."""
    directory = _instance_directory(name)
    record = directory / "instance.json"
    overrides = dict(setting.split("=", 1) for setting in settings)
    if record.exists():
        old = _load(name)
        if recorded_runs(int(str(old["pid"])), str(directory)):
            raise click.ClickException(f"{name} already runs at {old['bootstrap']} (pid {old['pid']})")
        if version != old["version"]:
            raise click.ClickException(f"{name} holds data of Kafka {old['version']}; wipe it first")
        port = port or int(str(old["bootstrap"]).rpartition(":")[2])
    broker = KafkaBroker(KafkaInstallation(version), directory, port=port, overrides=overrides)
    broker.start()
    zookeeper = broker.zookeeper_pid
    record.write_text(
        json.dumps(
            {"bootstrap": broker.bootstrap, "pid": broker.process.pid, "zookeeper_pid": zookeeper, "version": version}
        )
    )
    click.echo(f"{name} bootstrap={broker.bootstrap} pid={broker.process.pid} ready_ms={broker.ready_s * 1000:.0f}")


@main.command()
@click.argument("name")
@click.option("--kill", is_flag=True, help="SIGKILL instead of a clean stop.")
@click.option("--wipe", is_flag=True, help="Forget its data too.")
def stop(name: str, kill: bool, wipe: bool) -> None:
    """Stop the broker called NAME."""
    record, directory = _load(name), _instance_directory(name)
    stopped = end_recorded(int(str(record["pid"])), str(directory), kill=kill)
    if record["zookeeper_pid"] is not None:
        end_recorded(int(str(record["zookeeper_pid"])), str(directory), kill=kill)
    click.echo(f"{name} {'stopped' if stopped else 'was not running'}")
    if wipe:
        shutil.rmtree(directory)


@main.command("list")
def list_() -> None:
    """List installed versions and started brokers."""
    click.echo(f"installed: {', '.join(maven.installed_versions()) or 'none'}")
    for record in sorted((cache_home() / "instances").glob("*/instance.json")):
        info = json.loads(record.read_text())
        state = "running" if recorded_runs(info["pid"], str(record.parent)) else "stopped"
        click.echo(f"{record.parent.name} version={info['version']} bootstrap={info['bootstrap']} {state}")


@main.command(context_settings={"ignore_unknown_options": True}, epilog=f"Tools: {', '.join(sorted(TOOLS))}")
@click.option("--version", default=maven.DEFAULT_VERSION, show_default=True)
@click.argument("tool")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tool(version: str, tool: str, arguments: tuple[str, ...]) -> NoReturn:
    """Run one of Kafka's tools in place of this process, for example `tool dump-log --files PATH`."""
    command = KafkaInstallation(version).tool_command(tool, arguments)
    os.execv(command[0], command)


@main.command()
@click.argument("names", nargs=-1)
@click.option("--version", default=maven.DEFAULT_VERSION, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=REPOSITORY / "tests" / "protocol" / "golden")
def capture(names: tuple[str, ...], version: str, output: Path) -> None:
    """Take golden frames from other people's clients (all, or the named ones) against a real Kafka."""
    from conformance.peers import golden

    for path in golden.capture(list(names), output, version=version):
        click.echo(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    try:
        main(prog_name="python -m conformance.peers")
    except (PeerUnavailable, PeerFailed) as error:
        print(f"conformance.peers: {error}", file=sys.stderr)
        sys.exit(1)
