"""kmirror and Apache Kafka under the same scenario at the same time; what is seen must be equal."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from conformance.peers.kafka import KafkaInstallation
from conformance.wire.client import Broker

T = TypeVar("T")
REFERENCE_ATTEMPTS = 3


@dataclass(slots=True)
class Peers:
    """Both brokers, and Kafka's programs."""

    kmirror: Broker
    kafka: Broker
    installation: KafkaInstallation

    def both(self, scenario: Callable[[Broker], T]) -> T:
        """What the scenario gives back against each of them, which must be equal. A failure says against whom.

        Against kmirror there is one attempt. Kafka is the reference: a client that stalls there (Kafka's own consumers
        do, once in some hundred starts) says nothing about kmirror, so its answer is asked for again.
        """

        def run(name: str, broker: Broker, attempts: int) -> T:
            try:
                return scenario(broker)
            except BaseException as error:
                if isinstance(error, AssertionError) and attempts > 1:
                    print(f"against {name} at {broker.address}, tried again: {error}")
                    return run(name, broker, attempts - 1)
                error.add_note(f"against {name} at {broker.address}")
                raise

        with ThreadPoolExecutor(2) as pool:
            ours = pool.submit(run, "kmirror", self.kmirror, 1)
            theirs = pool.submit(run, "Kafka", self.kafka, REFERENCE_ATTEMPTS)
        seen, expected = ours.result(), theirs.result()
        assert seen == expected, f"kmirror: {seen}\nKafka: {expected}"
        return seen
