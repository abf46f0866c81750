"""The random walk: a hermetic part always, a long one on demand (KMIRROR_SIM_STEPS=100000)."""

from __future__ import annotations

import os
from collections import Counter

from kmirror.mirror.states import State
from tests.sim.walk import run

STEPS = int(os.environ.get("KMIRROR_SIM_STEPS", "5000"))
STEPS_PER_WALK = 250
STEPS_THAT_SEE_ALL = 50_000
"""Fencing and recovery after an unclean election are rare; a short run need not meet them."""


def test_random_walks(seed: int) -> None:
    first = int(os.environ.get("KMIRROR_SIM_SEED", str(seed)))
    walks = max(1, STEPS // STEPS_PER_WALK)
    visited: Counter[str] = Counter()
    for number in range(walks):
        visited += run(first + number, STEPS_PER_WALK).visited
    print(dict(visited))
    wanted = {state.name for state in State} - {"UNKNOWN"} | {"cut", "restart", "cut saved"}
    if STEPS < STEPS_THAT_SEE_ALL:
        wanted -= {"EPOCH_FENCING", "ULE_RECOVERY"}
    else:
        wanted |= {"gap", "divergence", "open transactions cut"}
    assert wanted <= set(visited), f"the walks never came to {wanted - set(visited)}"
    print(f"{walks} walks of {STEPS_PER_WALK} steps from seed {first} (KMIRROR_SIM_SEED={first})")
