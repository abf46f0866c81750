"""kmirror and Apache Kafka under the same scenario at the same time; what is seen must be equal."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from conformance.peers.kafka import KafkaInstallation
from conformance.wire.client import Broker

T = TypeVar("T")


@dataclass(slots=True)
class Peers:
    """Both brokers, and Kafka's programs."""

    kmirror: Broker
    kafka: Broker
    installation: KafkaInstallation

    def both(self, scenario: Callable[[Broker], T]) -> T:
        """What the scenario gives back against each of them, which must be equal. A failure says against whom."""

        def run(name: str, broker: Broker) -> T:
            try:
                return scenario(broker)
            except BaseException as error:
                error.add_note(f"against {name} at {broker.address}")
                raise

        with ThreadPoolExecutor(2) as pool:
            ours = pool.submit(run, "kmirror", self.kmirror)
            theirs = pool.submit(run, "Kafka", self.kafka)
        seen, expected = ours.result(), theirs.result()
        assert seen == expected, f"kmirror: {seen}\nKafka: {expected}"
        return seen
