"""`python -m conformance.differential`: the same requests to two brokers, answers compared field by field."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from conformance.differential.peers import started
from conformance.differential.rules import RULES
from conformance.differential.runner import Finding, Report, Runner, seeds
from conformance.peers.processes import PeerFailed, PeerUnavailable


@click.command(help=__doc__)
@click.option("--left", metavar="HOST:PORT", help="The reference (default: an Apache Kafka 4.4.0 started for this).")
@click.option("--right", metavar="HOST:PORT", help="The broker under test (default: a kmirror started for this).")
@click.option("--seed", type=int, help="First seed; the next sequences take the next numbers. Random when left out.")
@click.option("--sequences", type=click.IntRange(1), default=10, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=80, show_default=True, help="Steps of one sequence.")
@click.option("--keep-going", is_flag=True, help="Do not end a sequence at its first difference.")
@click.option("--dissect", is_flag=True, help="Show request and both answers field by field.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end instead of text.")
def main(
    left: str | None, right: str | None, seed: int | None, sequences: int, steps: int, keep_going: bool,
    dissect: bool, as_json: bool,
) -> None:  # fmt: skip
    """See the module."""

    def show(finding: Finding) -> None:
        if not as_json:
            click.echo(finding.dissected() if dissect else str(finding))

    with _brokers(left, right) as (left_address, right_address):
        runner = Runner(left_address, right_address, keep_going=keep_going, on_finding=show)
        began = time.monotonic()
        try:
            runner.open()
            for number in seeds(seed, sequences):
                same = runner.sequence(number, steps)
                if not as_json:
                    click.echo(f"seed {number}: {'same' if same else 'DIFFERENT'}")
        finally:
            runner.close()
        _conclude(runner.report, time.monotonic() - began, as_json=as_json)
    sys.exit(1 if runner.report.findings else 0)


@contextlib.contextmanager
def _brokers(left: str | None, right: str | None) -> Iterator[tuple[str, str]]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="differential-")))
        yield (
            left or stack.enter_context(started("kafka", directory / "left")),
            right or stack.enter_context(started("kmirror", directory / "right")),
        )


def _conclude(report: Report, seconds: float, *, as_json: bool) -> None:
    total = sum(report.steps.values())
    if as_json:
        print(
            json.dumps(
                {
                    "seeds": report.seeds, "steps": total, "seconds": round(seconds, 1),
                    "findings": [finding.as_json() for finding in report.findings],
                    "api_versions": {f"{api} v{version}": n for (api, version), n in sorted(report.steps.items())},
                    "error_codes": {f"{api} {code}": n for (api, code), n in sorted(report.error_codes.items())},
                    "rules_used": {RULES[index].reason: n for index, n in sorted(report.rules_used.items())},
                }
            )
        )  # fmt: skip
        return
    click.echo(
        f"{len(report.seeds)} sequences, {total} steps, {len(report.steps)} api versions, "
        f"{len(report.error_codes)} kinds of answer, {seconds:.0f} s: {len(report.findings)} unlisted differences"
    )


if __name__ == "__main__":
    try:
        main(prog_name="python -m conformance.differential")
    except (PeerUnavailable, PeerFailed) as error:
        print(f"conformance.differential: {error}", file=sys.stderr)
        sys.exit(2)
