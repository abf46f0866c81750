"""The random walk: a hermetic part always, a long one on demand (KMIRROR_SIM_STEPS=100000)."""

from __future__ import annotations

import os

from kmirror.mirror.states import State
from tests.sim.walk import run, visited_by_walks

STEPS = int(os.environ.get("KMIRROR_SIM_STEPS", "5000"))
STEPS_PER_WALK = 250
STEPS_THAT_SEE_ALL = 50_000
"""Fencing and recovery after an unclean election are rare; a short run need not meet them."""


def test_random_walks(seed: int) -> None:
    visited = visited_by_walks(run, seed, steps=STEPS, steps_per_walk=STEPS_PER_WALK)
    wanted = {state.name for state in State} - {"UNKNOWN"} | {"cut", "restart", "cut saved"}
    if STEPS < STEPS_THAT_SEE_ALL:
        wanted -= {"EPOCH_FENCING", "ULE_RECOVERY"}
    else:
        wanted |= {"gap", "divergence", "open transactions cut"}
    assert wanted <= set(visited), f"the walks never came to {wanted - set(visited)}"
