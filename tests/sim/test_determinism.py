"""Same seed, same bytes: whatever the process, and however Python hashes its strings there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.sim.replication.simulation import run_seed


def traced(seed: int, path: Path, hash_seed: int) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = ["sim", "--seeds", "1", "--seed", str(seed), "--trace", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "stretto", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return path.read_bytes()


def digest(trace: bytes) -> str:
    assert trace.count(b"\n") > 2_000
    return hashlib.sha256(trace).hexdigest()


@pytest.mark.parametrize("seed", [0, 3, 17, 42])
def test_a_seed_writes_the_same_trace_in_every_process(seed: int, tmp_path: Path) -> None:
    one = traced(seed, tmp_path / "one", hash_seed=1)
    other = traced(seed, tmp_path / "other", hash_seed=4_242)
    assert digest(one) == digest(other)


def test_tracing_changes_nothing() -> None:
    lines: list[str] = []
    traced_verdict = run_seed(5, trace=lines.append)
    assert traced_verdict == run_seed(5)
    assert len(lines) > 2_000


def test_seeds_differ() -> None:
    assert run_seed(5).totals != run_seed(6).totals
