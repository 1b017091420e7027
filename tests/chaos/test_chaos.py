"""Random faults, one worker at a time, under load; then everything heals and every promise is checked.

The seed is printed; ``STRETTO_CHAOS_SEED`` gives it back. Real processes do not repeat a run exactly, but the
same faults come in the same order. ``STRETTO_CHAOS_SECONDS`` makes it longer.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from pathlib import Path

import pytest

from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import Cluster, WorkerProcess
from tests.support.load import Load, check_history
from tests.support.waiting import wait_until

SEED = int(os.environ.get("STRETTO_CHAOS_SEED", secrets.randbelow(1 << 31)))
SECONDS = float(os.environ.get("STRETTO_CHAOS_SECONDS", "20"))


class Chaos:
    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self._cluster = cluster
        self._dice = dice
        self._rest = threading.Event()
        self.story: list[str] = []

    def strike(self) -> None:
        """One worker suffers, and is whole again some time later."""
        worker = self._cluster.workers[self._dice.choice(sorted(self._cluster.workers))]
        fault = self._dice.choice([self.kill, self.kill, self.pause, self.terminate, self.wipe])
        seconds = self._dice.choice([0.0, 0.5, 2.0, 5.0])
        self.story.append(f"{fault.__name__} {worker.name} for {seconds} s")
        fault(worker, seconds)
        self._rest.wait(self._dice.choice([0.2, 1.0, 3.0]))

    def kill(self, worker: WorkerProcess, seconds: float) -> None:
        worker.kill()
        self._rest.wait(seconds)
        worker.start()

    def pause(self, worker: WorkerProcess, seconds: float) -> None:
        worker.pause()
        self._rest.wait(seconds)
        worker.resume()

    def terminate(self, worker: WorkerProcess, seconds: float) -> None:
        wait_until(f"{worker.name} has started", worker.has_started)
        worker.terminate()
        code = worker.wait()
        assert code == 0, f"{worker.name} ended with {code} when it was told to stop"
        self._rest.wait(seconds)
        worker.start()

    def wipe(self, worker: WorkerProcess, seconds: float) -> None:
        """Only from a group that is whole: one disk may be lost, two are a loss."""
        self._cluster.wait_healed()
        worker.kill()
        worker.wipe()
        self._rest.wait(seconds)
        worker.start()
        self._cluster.wait_healed()


@pytest.mark.soak
def test_no_promise_is_broken_whatever_happens_to_one_worker_at_a_time(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper
) -> None:
    print(f"reproduce with: STRETTO_CHAOS_SEED={SEED} STRETTO_CHAOS_SECONDS={SECONDS} pytest tests/chaos")  # noqa: T201
    with Cluster(tmp_path, zookeeper.address) as cluster:
        chaos = Chaos(cluster, random.Random(SEED))
        end = time.monotonic() + SECONDS
        with Load(cluster.connect(), producers=3) as load:
            while time.monotonic() < end:
                chaos.strike()
                print(chaos.story[-1])  # noqa: T201
            cluster.heal()
        outcomes = check_history(cluster, load)
        assert outcomes["acked"]
        assert not outcomes["failed"]
