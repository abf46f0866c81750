"""There and back again at random: a hermetic part always, a long one on demand (KMIRROR_SIM_STEPS=100000)."""

from __future__ import annotations

import os
from collections import Counter

from tests.sim.failback import run

STEPS = int(os.environ.get("KMIRROR_SIM_STEPS", "4000"))
STEPS_PER_WALK = 200


def test_walks_there_and_back(seed: int) -> None:
    first = int(os.environ.get("KMIRROR_SIM_SEED", str(seed)))
    walks = max(1, STEPS // STEPS_PER_WALK)
    visited: Counter[str] = Counter()
    for number in range(walks):
        visited += run(first + number, STEPS_PER_WALK).visited
    print(dict(visited))
    wanted = {"failback", "alignment at a", "alignment at b", "cut", "cut saved", "restart"}
    assert wanted <= set(visited), f"the walks never came to {wanted - set(visited)}"
    print(f"{walks} walks of {STEPS_PER_WALK} steps from seed {first} (KMIRROR_SIM_SEED={first})")
