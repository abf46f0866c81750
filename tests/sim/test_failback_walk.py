"""There and back again at random: a hermetic part always, a long one on demand (KMIRROR_SIM_STEPS=100000)."""

from __future__ import annotations

import os

from tests.sim.failback import run
from tests.sim.walk import visited_by_walks

STEPS = int(os.environ.get("KMIRROR_SIM_STEPS", "4000"))
STEPS_PER_WALK = 200


def test_walks_there_and_back(seed: int) -> None:
    visited = visited_by_walks(run, seed, steps=STEPS, steps_per_walk=STEPS_PER_WALK)
    wanted = {"failback", "alignment at a", "alignment at b", "cut", "cut saved", "restart"}
    assert wanted <= set(visited), f"the walks never came to {wanted - set(visited)}"
