"""`python -m conformance.wire --address HOST:PORT`: the suite against one broker."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--address", metavar="HOST:PORT", help="A broker that runs already.")
@click.option("--start", type=click.Choice(["kafka", "kmirror"]), help="Start this one for the suite.")
@click.argument("pytest_options", nargs=-1, type=click.UNPROCESSED)
def main(address: str | None, start: str | None, pytest_options: tuple[str, ...]) -> None:
    """Run the black-box suite; options that it does not know go to pytest (-k, -x, …)."""
    if (address is None) == (start is None):
        raise click.UsageError("one of --address and --start is needed")
    here = Path(__file__).parent
    sys.exit(pytest.main([str(here), "--broker", address or start or "", "-p", "no:cacheprovider", *pytest_options]))


if __name__ == "__main__":
    main(prog_name="python -m conformance.wire")
