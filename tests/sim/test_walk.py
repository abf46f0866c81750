"""The random walk: a hermetic part always, a long one on demand (KMIRROR_SIM_STEPS=100000)."""

from __future__ import annotations

import os
from collections import Counter

from kmirror.mirror.states import State
from tests.sim.walk import run

STEPS = int(os.environ.get("KMIRROR_SIM_STEPS", "5000"))
STEPS_PER_WALK = 250


def test_random_walks(seed: int) -> None:
    first = int(os.environ.get("KMIRROR_SIM_SEED", str(seed)))
    walks = max(1, STEPS // STEPS_PER_WALK)
    visited: Counter[str] = Counter()
    for number in range(walks):
        visited += run(first + number, STEPS_PER_WALK).visited
    print(dict(visited))
    missing = {state.name for state in State} - {"UNKNOWN"} - set(visited)
    assert not missing, f"the walks never came to {missing}"
    assert {"cut", "restart", "gap", "divergence", "cut saved"} <= set(visited)
    print(f"{walks} walks of {STEPS_PER_WALK} steps from seed {first} (KMIRROR_SIM_SEED={first})")
