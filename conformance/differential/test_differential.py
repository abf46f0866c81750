"""kmirror against Apache Kafka, a few sequences; and the runner itself, against answers that were spoilt on purpose.

The long runs are `python -m conformance.differential`; a failure prints the seed and the command that repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.differential.compare import Kind
from conformance.differential.deviating import DEVIATIONS, DeviatingProxy, Deviation
from conformance.differential.hunt import hunt
from conformance.differential.peers import started
from conformance.differential.planted import MISTAKES, Mistake
from conformance.differential.rules import RULES
from conformance.differential.runner import Runner
from conformance.peers.kafka import KafkaInstallation

SEQUENCES = {"core": (8, 40), "groups": (10, 60), "transactions": (8, 60), "all": (2, 80)}
"""About what: how many, and how many steps each."""
FLOOR = {"core": (15, 30), "groups": (15, 40), "transactions": (20, 60), "all": (25, 40)}
"""How many APIs and kinds of answer they reach at least."""
SELF_TEST_SEQUENCES, SELF_TEST_STEPS = 12, 60
FINDINGS = Path(__file__).parent / "FINDINGS.md"


@pytest.fixture(scope="module")
def pair(
    kafka_installation: Callable[[str], KafkaInstallation], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    kafka_installation("4.4.0")
    directory = tmp_path_factory.mktemp("pair")
    with started("kafka", directory / "left") as left, started("kmirror", directory / "right") as right:
        yield left, right


@pytest.mark.kafka
@pytest.mark.parametrize("about", sorted(SEQUENCES))
def test_kafka_and_kmirror_answer_alike(pair: tuple[str, str], about: str) -> None:
    runner = Runner(*pair)
    runner.open()
    count, steps = SEQUENCES[about]
    first = 1000 * (1 + sorted(SEQUENCES).index(about))
    for seed in range(first, first + count):
        assert runner.sequence(seed, steps, about=about), (
            f"repeat with: python -m conformance.differential --seeds {seed} --steps {steps} --about {about}\n"
            + runner.report.findings[-1].dissected()
        )
    runner.close()
    apis, kinds = FLOOR[about]
    asked = {api for api, _version in runner.report.steps}
    assert len(asked) > apis, asked
    assert len(runner.report.error_codes) > kinds, "the steps reach too little"


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two kmirrors, which answer alike."""
    directory = tmp_path_factory.mktemp("twins")
    with started("kmirror", directory / "left") as left, started("kmirror", directory / "right") as right:
        yield left, right


@pytest.mark.integration
def test_nothing_differs_between_a_broker_and_its_like(twins: tuple[str, str]) -> None:
    with DeviatingProxy(twins[1]) as proxy:
        runner = Runner(twins[0], proxy.address)
        runner.open()
        for seed in range(6):
            assert runner.sequence(seed, SELF_TEST_STEPS), runner.report.findings[-1].dissected()
        runner.close()
    assert proxy.spoilt == 0


@pytest.mark.integration
@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda deviation: deviation.name)
def test_a_planted_deviation_is_caught(twins: tuple[str, str], deviation: Deviation) -> None:
    with DeviatingProxy(twins[1]) as proxy:
        runner = Runner(twins[0], proxy.address)
        runner.open()
        for seed in range(SELF_TEST_SEQUENCES):
            proxy.deviation = deviation
            same = runner.sequence(
                seed, SELF_TEST_STEPS, about="core", before_cleaning=lambda: setattr(proxy, "deviation", None)
            )
            if not same:
                break
        runner.close()
    assert proxy.spoilt, "the steps never reached it"
    assert not same, f"{proxy.spoilt} answers were spoilt and nobody noticed"
    assert runner.report.findings[0].api == deviation.api, runner.report.findings[0].dissected()


@pytest.mark.integration
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=lambda mistake: mistake.name)
def test_a_mistake_in_a_coordinator_is_noticed(tmp_path: Path, mistake: Mistake) -> None:
    found = hunt(mistake, "kmirror", tmp_path, about=mistake.about, step_count=SELF_TEST_STEPS)
    assert found.finding is not None, str(found)


def test_the_table_of_rules_is_the_one_in_the_findings() -> None:
    text = FINDINGS.read_text()
    for rule in RULES:
        assert rule.reason in text, f"FINDINGS.md does not say: {rule.reason}"
        for path in rule.paths:
            assert f"`{path}`" in text, f"FINDINGS.md does not name {path}"


def test_a_listed_difference_says_when() -> None:
    """A rule that excuses a field whatever stands in it hides what it was not made for."""
    always = [rule.paths for rule in RULES if rule.kind is Kind.LISTED and rule.when is None]
    assert always == [("ApiVersions.supported_features", "ApiVersions.finalized_features*")]
