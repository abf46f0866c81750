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

from conformance.differential.hunt import hunted
from conformance.differential.peers import started
from conformance.differential.rules import RULES
from conformance.differential.runner import THEMES, Finding, Report, Runner, listed, seeds
from conformance.differential.story import Step
from conformance.peers.processes import PeerFailed, PeerUnavailable

PROGRESS_EVERY = 10


@click.command(help=__doc__)
@click.option("--left", metavar="HOST:PORT", help="The reference (default: an Apache Kafka 4.4.0 started for this).")
@click.option("--right", metavar="HOST:PORT", help="The broker under test (default: a kmirror started for this).")
@click.option("--seed", type=int, help="First seed; the next sequences take the next numbers. Random when left out.")
@click.option("--sequences", type=click.IntRange(1), default=10, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=80, show_default=True, help="Steps of one sequence.")
@click.option("--seeds", "ranges", metavar="1-500,907", help="Exactly these seeds, instead of --seed and --sequences.")
@click.option("--about", type=click.Choice(sorted(THEMES)), help="What all sequences are about; else the seed decides.")
@click.option(
    "--against",
    type=click.Choice(["kmirror", "kafka"]),
    default="kmirror",
    show_default=True,
    help="What to start as the broker under test; kafka shows what the comparison makes of two equals.",
)
@click.option("--planted", is_flag=True, help="Run test builds with mistakes, and say which are noticed.")
@click.option(
    "--reference",
    type=click.Choice(["kafka", "kmirror"]),
    default="kafka",
    show_default=True,
    help="What test builds are compared with.",
)
@click.option("--keep-going", is_flag=True, help="Do not end a sequence at its first difference.")
@click.option("--dissect", is_flag=True, help="Show request and both answers field by field.")
@click.option("--verbose", is_flag=True, help="Show every step.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end instead of text.")
def main(
    left: str | None, right: str | None, seed: int | None, sequences: int, steps: int, ranges: str | None,
    about: str | None, against: str, planted: bool, reference: str, keep_going: bool, dissect: bool, verbose: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """See the module."""
    if planted:
        sys.exit(1 if _planted(reference, steps, as_json=as_json) else 0)

    def show(finding: Finding) -> None:
        if not as_json:
            click.echo(finding.dissected() if dissect else str(finding))

    def tell(number: int, at: int, step: Step) -> None:
        click.echo(f"    {number}.{at} {step.api} v{step.version} {step.what}")

    with _brokers(left, right, against) as (left_address, right_address):
        runner = Runner(
            left_address, right_address, keep_going=keep_going, on_finding=show, on_step=tell if verbose else None
        )
        began = time.monotonic()
        try:
            runner.open()
            chosen = seeds(seed, sequences) if ranges is None else listed(ranges)
            for done, number in enumerate(chosen, start=1):
                same = runner.sequence(number, steps, about=about)
                if not as_json and (not same or done % PROGRESS_EVERY == 0 or done == len(chosen)):
                    _progress(runner, number, done, len(chosen), time.monotonic() - began, same=same)
                if not same and not keep_going:
                    _shortest(runner, number, steps, about, as_json=as_json)
        finally:
            runner.close()
        _conclude(runner.report, time.monotonic() - began, as_json=as_json)
    sys.exit(1 if runner.report.findings else 0)


def _progress(runner: Runner, seed: int, done: int, count: int, seconds: float, *, same: bool) -> None:
    report = runner.report
    click.echo(
        f"{done}/{count} sequences, {sum(report.steps.values())} answers, {len(report.findings)} differences, "
        f"{seconds:.0f} s; seed {seed}: {'same' if same else 'DIFFERENT'}"
    )


def _shortest(runner: Runner, seed: int, steps: int, about: str | None, *, as_json: bool) -> None:
    """Runs the sequence again, shorter and shorter, and says the shortest that still differs."""
    found = runner.shortest(seed, steps, about=about)
    if not as_json:
        again = (
            f"python -m conformance.differential --seeds {seed} --steps {found}{f' --about {about}' if about else ''}"
        )
        click.echo(f"  does not differ when run again: seed {seed}" if found is None else f"  repeat with: {again}")


def _planted(reference: str, steps: int, *, as_json: bool) -> list[str]:
    """The mistakes that nobody noticed."""
    hunts = []
    for hunt in hunted(reference, step_count=steps):
        hunts.append(hunt)
        if not as_json:
            click.echo(f"{'caught' if hunt.finding else 'MISSED'} {hunt}")
    missed = [hunt.mistake for hunt in hunts if hunt.finding is None]
    if as_json:
        print(json.dumps({"caught": len(hunts) - len(missed), "missed": missed}))
    else:
        click.echo(f"{len(hunts) - len(missed)} of {len(hunts)} mistakes caught")
    return missed


@contextlib.contextmanager
def _brokers(left: str | None, right: str | None, against: str) -> Iterator[tuple[str, str]]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="differential-")))
        yield (
            left or stack.enter_context(started("kafka", directory / "left")),
            right or stack.enter_context(started(against, directory / "right")),
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
