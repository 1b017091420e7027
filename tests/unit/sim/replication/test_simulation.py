from __future__ import annotations

from collections import Counter

import pytest

from stretto.sim.replication.scenario import calm_plan
from stretto.sim.replication.simulation import Simulation, Verdict
from stretto.vocabulary.types import Epoch, WorkerId
from tests.unit.sim.replication.calm import Calm, replica_of


def test_a_group_in_which_nothing_goes_wrong_is_quiet_and_passes() -> None:
    calm = Calm()
    calm.append(b"a")
    assert calm._is_quiet()
    calm.checkers.finish()


@pytest.mark.parametrize("trouble", ["pending", "behind", "away"])
def test_a_group_that_has_not_recovered_is_not_quiet(trouble: str) -> None:
    calm = Calm()
    if trouble == "pending":
        calm.workload.submit_new(calm.producer, 1, b"a")
    elif trouble == "behind":
        calm.follower.apply_ms = (5_000, 5_000)
        batch = calm.workload.submit_new(calm.producer, 1, b"a")
        calm.run_until(lambda: batch.acked)
    else:
        calm.follower.crash()
    assert not calm._is_quiet()


def test_a_group_whose_new_leader_does_not_know_it_yet_is_not_quiet() -> None:
    calm = Calm()
    calm.append(b"a")
    w1 = replica_of(calm.follower).incarnation
    assert w1 is not None
    calm.metastore.create(calm.metastore.record.with_leader(WorkerId("w1"), w1, Epoch(2)))
    assert not calm._is_quiet()


def test_a_verdict_tells_its_story_only_if_something_went_wrong() -> None:
    simulation = Simulation(calm_plan(2))
    simulation.tell("happens", "w0", 1, 2)
    assert simulation.verdict(None) == Verdict(0, 0, Counter({"expiries": 0}))
    failed = simulation.verdict("why")
    assert failed.violation == "why"
    assert [line.split() for line in failed.story] == [["0", "w0", "happens", "1", "2"]]
