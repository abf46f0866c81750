"""The table of subcommands, and what happens to an error that leaves one of them.

Every subcommand is one module, imported when it is named. Exit status, as scripts rely on it: 0 done, 1 the operation
failed for any item, 2 usage or cannot reach. A traceback never reaches the user for something that a broker, a file or
a command line did: those are `Failure`s with a next step. A traceback means a bug of ours.
"""

from __future__ import annotations

import difflib
import errno
import importlib
from collections.abc import Sequence

import click

from kmirror import __version__

# name -> (module, what it does). The text stands here so that `kmirror --help` imports no subcommand.
SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "Run a broker (kmirror serve --help)."),
    "mirror": ("mirror", "Create, start, watch and fail over mirrors."),
    "verify": ("verify", "Compare a mirror with its source, batch by batch."),
    "topic": ("topic", "List, create, describe, alter and delete topics."),
    "group": ("group", "List, describe, move and delete consumer groups."),
    "config": ("config", "Show and change settings of topics, brokers and mirrors."),
    "produce": ("produce", "Write the lines of standard input to a topic."),
    "consume": ("consume", "Print the records of a topic."),
    "import": ("import_logs", "Take over log directories of an Apache Kafka that is stopped."),
    "backup": ("backup", "Make a consistent copy of a data directory, of a running broker's too."),
    "dump": ("dump", "Print what is in segment files, indexes, snapshots and checkpoints."),
    "dissect": ("dissect", "Explain the bytes of a frame or a record batch, field by field."),
    "demo": ("demo", "Mirror, verify, fail over and go back between two brokers, step by step."),
}


class LazyGroup(click.Group):
    """Imports a subcommand's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        if cmd_name == "serve":
            return _serve
        module = importlib.import_module(f"kmirror.cli.{SUBCOMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], SUBCOMMANDS, n=1)
        if near and args[0] not in SUBCOMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{near[0]}'?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in SUBCOMMANDS.items()])


@click.command(
    "serve", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.pass_context
def _serve(context: click.Context) -> None:
    """Stands in the table of commands; `kmirror.cli.main` dispatches serve before click is imported."""
    from kmirror.cli import serve

    context.exit(serve.main(context.args))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kmirror")
def group() -> None:
    """A Kafka cluster in one process: mirrors topics from real Kafka clusters byte for byte, and fails over."""


_OUTPUT_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns the exit status; only a reader that has gone (`| head`) ends the process inside."""
    try:
        status = group.main(list(arguments), prog_name="kmirror", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("stopped", err=True)
        return 130
    except OSError as error:
        if error.errno not in _OUTPUT_IS_FULL:
            raise
        click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
        return 1
    return status if isinstance(status, int) else 0
