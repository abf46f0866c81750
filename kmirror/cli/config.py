"""`kmirror config`: settings of topics, brokers and mirrors."""

from __future__ import annotations

from typing import Any

import click

from kmirror.cli.display import print_json, print_table
from kmirror.cli.failure import BadUsage
from kmirror.cli.session import Session, check, connection_options, json_option, key_values
from kmirror.protocol import mirror_numbers
from kmirror.protocol.api import describe_configs, incremental_alter_configs
from kmirror.protocol.errors import ErrorCode
from kmirror.source.cluster import Cluster

RESOURCE_TYPES = {"topic": 2, "broker": 4, "mirror": mirror_numbers.CONFIG_RESOURCE_TYPE}
SOURCES = {
    1: "topic",
    2: "broker (dynamic)",
    3: "all brokers (dynamic)",
    4: "broker (file)",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
    9: "mirror",
}
"""DescribeConfigsResponse.ConfigSource; a number that is not here is shown as it is."""
OWN_SOURCES = {1, 2, 3, 7, 8, 9}
"""Set for this very resource, as opposed to inherited."""
SET, DELETE = 0, 1
"""IncrementalAlterConfigs operations."""

resource_argument = click.argument("kind", type=click.Choice(list(RESOURCE_TYPES)))


def _next_step(kind: str, name: str, code: int) -> str:
    """What to do about the two usual mistakes."""
    if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_CLUSTER_MIRROR):
        return f"List what there is with: kmirror {kind} list"
    if code == ErrorCode.INVALID_CONFIG:
        return f"List the settings with: kmirror config describe {kind} {name} --all"
    return ""


@click.group("config")
def command() -> None:
    """Show and change settings of topics, brokers and mirrors."""


@command.command("describe")
@resource_argument
@click.argument("name")
@click.option("--all", "show_all", is_flag=True, help="Inherited settings and defaults too.")
@json_option
@connection_options
def describe(session: Session, kind: str, name: str, show_all: bool, as_json: bool) -> None:
    """Settings of one topic, broker (its number) or mirror."""

    async def body(cluster: Cluster) -> Any:
        resource = describe_configs.DescribeConfigsResource(
            resource_type=RESOURCE_TYPES[kind], resource_name=name, configuration_keys=None
        )
        request = describe_configs.DescribeConfigsRequest(resources=[resource], include_synonyms=False)
        return (await cluster.request(request)).results[0]

    result = session.run(body)
    check(
        result.error_code,
        result.error_message,
        f"{kind} {name} cannot be described",
        next_step=_next_step(kind, name, result.error_code),
    )
    rows = [
        {
            "name": entry.name,
            "value": None if entry.is_sensitive else entry.value,
            "source": SOURCES.get(entry.config_source, str(entry.config_source)),
            "read_only": bool(entry.read_only),
            "sensitive": bool(entry.is_sensitive),
        }
        for entry in sorted(result.configs, key=lambda entry: entry.name)
        if show_all or entry.config_source in OWN_SOURCES
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("SETTING", "FROM", "VALUE"),  # last, because a list of topics can be long
        [(row["name"], row["source"], "(hidden)" if row["sensitive"] else row["value"]) for row in rows],
        empty=f"{kind} {name} has no settings of its own; --all shows what it inherits",
    )


@command.command("alter", short_help="Set or remove settings; the others stay.")
@resource_argument
@click.argument("name")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="May be repeated.")
@click.option("--unset", "removed", multiple=True, metavar="KEY", help="Back to what is inherited; may be repeated.")
@connection_options
def alter(session: Session, kind: str, name: str, settings: tuple[str, ...], removed: tuple[str, ...]) -> None:
    """Set or remove settings of one topic, broker or mirror; the others stay as they are."""
    changes: dict[str, str | None] = dict(key_values(settings))
    for key in removed:
        if key in changes:
            raise BadUsage(f"{key} is both set and removed")
        changes[key] = None
    if not changes:
        raise BadUsage("nothing to change", next_step="Give --set KEY=VALUE or --unset KEY.")

    async def body(cluster: Cluster) -> Any:
        configs = [
            incremental_alter_configs.IncrementalAlterableConfig(
                name=key, config_operation=DELETE if value is None else SET, value=value
            )
            for key, value in changes.items()
        ]
        resource = incremental_alter_configs.IncrementalAlterConfigsResource(
            resource_type=RESOURCE_TYPES[kind], resource_name=name, configs=configs
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        return (await cluster.request(request)).responses[0]

    result = session.run(body)
    check(
        result.error_code,
        result.error_message,
        f"{kind} {name} was not altered",
        next_step=_next_step(kind, name, result.error_code),
    )
    click.echo(f"Altered {kind} {name}.")
