"""When leadership is looked at."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from stretto.conductor.balancing import SETTLE_SECONDS, Balancing
from stretto.conductor.life import Life
from stretto.conductor.operations import Operations
from stretto.conductor.planning.assignment import assign
from stretto.conductor.view import GroupState, Module, View
from stretto.options import OptionSet
from stretto.replog.core.record import GroupRecord, Member
from stretto.specs.assignments import plans_of
from stretto.specs.modules import ModuleSpec, ModuleState
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import WorkerRegistration

ONE = Incarnation("one")


class _Scene:
    """Balancing over a module that one worker leads; what it writes is kept by the client."""

    def __init__(self) -> None:
        self.client: Any = MagicMock()
        paths = Paths()
        operations = Operations(self.client, paths)
        self._balancing = Balancing(self.client, paths, operations, Life(self.client, paths, operations))

    def look(self, state: ModuleState, now: float, *, epoch: int = 1) -> None:
        self._balancing.advance(_view(state, epoch), OptionSet(), now)

    @property
    def has_begun(self) -> bool:
        return bool(self.client.set.called)


def _view(state: ModuleState, epoch: int) -> View:
    nodes = {"n1": 0, "n2": 0, "n3": 0}
    assignment = assign("m", generation=1, tasks=8, threads=8, workers=1, factor=3, processes=nodes)
    spec = ModuleSpec(artifact="", tasks=8, threads=8, workers=1, replication_factor=3, state=state)
    leader = assignment.workers[epoch % 3].worker
    groups = tuple(
        GroupState(
            plan,
            GroupRecord(
                epoch=Epoch(epoch),
                leader=leader,
                leader_incarnation=ONE,
                isr=tuple(sorted(Member(worker, StorageId("s")) for worker in plan.replicas)),
            ),
        )
        for plan in plans_of("m", assignment)
    )
    view = View(modules={"m": Module("m", spec, 0, assignment, groups, ())})
    for worker, node in assignment.nodes.items():
        view.workers[worker] = _registration(worker, node)
        view.incarnations.add((worker, ONE))
    return view


def _registration(worker: WorkerId, node: str) -> WorkerRegistration:
    return WorkerRegistration(worker=worker, incarnation=ONE, node=node, address="127.0.0.1:1")


def test_a_module_that_has_just_been_launched_does_not_wait_for_the_interval() -> None:
    scene = _Scene()
    scene.look(ModuleState.LAUNCHING, 100)
    scene.look(ModuleState.RUNNING, 100.1)
    assert not scene.has_begun
    scene.look(ModuleState.RUNNING, 100.2 + SETTLE_SECONDS)
    assert scene.has_begun


def test_a_paused_module_is_balanced_without_being_resumed() -> None:
    scene = _Scene()
    scene.look(ModuleState.PAUSED, 100)
    for later in (1, 2):
        scene.look(ModuleState.PAUSED, 100.1 + later * SETTLE_SECONDS)
    assert scene.client.create.called
    assert not scene.has_begun


def test_leaders_that_keep_changing_are_left_to_settle() -> None:
    scene = _Scene()
    scene.look(ModuleState.LAUNCHING, 100)
    for step in range(10):
        scene.look(ModuleState.RUNNING, 101 + step * SETTLE_SECONDS / 2, epoch=step + 1)
    assert not scene.has_begun
