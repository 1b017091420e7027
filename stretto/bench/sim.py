"""How long the simulator takes: a deadline, because a slow simulator is one that is not run."""

from __future__ import annotations

import time
from pathlib import Path

from stretto.bench import Result
from stretto.sim.campaigns.replication import Summary, cores, run_seeds

SEEDS = 300
SECONDS_MAX = 60


def seeds(_folder: Path) -> Result:
    """Measure how long a fixed range of seeds takes on all cores."""
    summary = Summary()
    began = time.monotonic()
    for verdict in run_seeds(0, SEEDS):
        summary.add(verdict)
    seconds = time.monotonic() - began
    return Result(
        value=seconds,
        unit="s",
        target=SECONDS_MAX,
        at_most=True,
        detail=f"{summary.steps:,} steps on {cores()} cores, {len(summary.violations)} violations",
    )
