"""The random walk: a hermetic part always, a long one on demand (KMIRROR_SIM_STEPS=100000)."""

from __future__ import annotations

import os
import time

from tests.sim.walk import run

STEPS = int(os.environ.get("KMIRROR_SIM_STEPS", "5000"))
STEPS_PER_WALK = 250


def test_random_walks(seed: int) -> None:
    begun = time.monotonic()
    first = int(os.environ.get("KMIRROR_SIM_SEED", str(seed)))
    walks = max(1, STEPS // STEPS_PER_WALK)
    for number in range(walks):
        run(first + number, STEPS_PER_WALK)
    took = time.monotonic() - begun
    print(f"{walks} walks of {STEPS_PER_WALK} steps from seed {first} in {took:.1f} s (KMIRROR_SIM_SEED={first})")
