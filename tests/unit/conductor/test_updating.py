"""What the conductor concludes of an update from what workers and nodes have said of it."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.conductor.planning.assignment import assign
from stretto.conductor.updating import TRIAL_SECONDS, carried_out, going_by_other_code, trials
from stretto.conductor.view import GroupState, Module, View
from stretto.specs.assignments import plans_of
from stretto.specs.modules import ModuleSpec, ModuleState, Trial, Update
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Incarnation, StorageId, WorkerId
from stretto.zk.znodes.records import NodeRegistration, WorkerRegistration

ASSIGNMENT = assign(
    "m", generation=1, tasks=4, threads=4, workers=4, factor=2, processes=dict.fromkeys("abcd", 0)
)
SPEC = ModuleSpec(
    artifact="new", tasks=4, threads=4, workers=4, replication_factor=2, state=ModuleState.RUNNING
)
UPDATE = Update(id="u", next=SPEC, delete=(), began_ms=1_000)


def module(*, deleted: Mapping[str, int] | None = None, tried: Mapping[str, Trial] | None = None) -> Module:
    spec = ModuleSpec(
        artifact="new",
        tasks=4,
        threads=4,
        workers=4,
        replication_factor=2,
        state=ModuleState.RUNNING,
        deleted=dict(deleted or {}),
    )
    groups = tuple(GroupState(plan, None) for plan in plans_of("m", ASSIGNMENT))
    return Module("m", spec, 1, ASSIGNMENT, groups, (), dict(tried or {}))


def view(
    dropped: Mapping[WorkerId, int],
    *,
    nodes: str = "",
    artifact: str = "new",
    without: GroupKey | None = None,
) -> View:
    """With these workers, and how far each has carried out deletions. None has a replica of ``without``."""

    def members(worker: WorkerId) -> dict[str, StorageId]:
        plans = [
            plan for plan in plans_of("m", ASSIGNMENT) if worker in plan.replicas and plan.key != without
        ]
        return {str(plan.key): StorageId(f"{worker} {plan.key}") for plan in plans}

    return View(
        nodes={
            node: NodeRegistration(node=node, incarnation=Incarnation(node), address="tcp://127.0.0.1:1")
            for node in nodes
        },
        workers={
            worker: WorkerRegistration(
                worker=worker,
                incarnation=Incarnation("i"),
                node=ASSIGNMENT.nodes[worker],
                address="tcp://127.0.0.1:1",
                dropped=version,
                artifact=artifact,
                members=members(worker),
            )
            for worker, version in dropped.items()
        },
    )


def test_a_deletion_is_carried_out_when_some_replica_of_every_group_has_done_it() -> None:
    subject = module(deleted={"old": 2, "older": 1})
    everybody = dict.fromkeys(ASSIGNMENT.nodes, 0)
    assert carried_out(view(everybody), subject) == set()
    one_of_each = everybody | {replicas[-1]: 1 for replicas in ASSIGNMENT.replicas}
    assert carried_out(view(one_of_each), subject) == {"older"}
    assert carried_out(view(dict.fromkeys(everybody, 2)), subject) == {"old", "older"}


def test_a_deletion_is_not_carried_out_in_a_group_that_nobody_is_registered_for() -> None:
    """Its replicas are away; they go by the spec when they return, and have to find there what is to go."""
    subject = module(deleted={"old": 2})
    lost, *_ = ASSIGNMENT.replicas
    rest = {worker: 2 for worker in ASSIGNMENT.nodes if worker not in lost}
    assert any(set(replicas) & set(rest) for replicas in ASSIGNMENT.replicas)
    assert carried_out(view(rest), subject) == set()
    assert carried_out(view({}), subject) == set()
    assert carried_out(view(rest | {lost[0]: 2}), subject) == {"old"}


def test_what_a_worker_has_carried_out_says_nothing_of_a_replica_that_it_has_not_opened() -> None:
    """It is assigned to the group since a moment ago, and speaks of those that it had before."""
    subject = module(deleted={"old": 2})
    everybody = dict.fromkeys(ASSIGNMENT.nodes, 2)
    for plan in plans_of("m", ASSIGNMENT):
        assert carried_out(view(everybody, without=plan.key), subject) == set()
    assert carried_out(view(everybody), subject) == {"old"}


def test_workers_that_are_registered_have_to_take_up_the_code_and_others_do_not() -> None:
    everybody = dict.fromkeys(ASSIGNMENT.nodes, 0)
    assert going_by_other_code(view(everybody), module()) == ()
    assert set(going_by_other_code(view(everybody, artifact="old"), module())) == set(everybody)
    assert going_by_other_code(view({}), module()) == ()


def test_every_node_that_is_there_tries_the_code_of_this_update() -> None:
    good, of_another, bad = Trial(id="u"), Trial(id="t", why="of before"), Trial(id="u", why="no such name")
    away_but_running = {worker: 0 for worker, node in ASSIGNMENT.nodes.items() if node == "d"}
    seen = view(away_but_running, nodes="ab")
    found = trials(seen, module(tried={"a": good, "b": of_another}), UPDATE, 1_000)
    assert (found.failed, found.waiting) == (None, ("b", "d"))
    found = trials(seen, module(tried={"a": good, "b": good, "d": good}), UPDATE, 1_000)
    assert (found.failed, found.waiting) == (None, ())
    failed = trials(seen, module(tried={"a": good, "b": bad}), UPDATE, 1_000).failed
    assert failed is not None
    assert (failed.node, failed.why) == ("b", "no such name")
    late = trials(seen, module(tried={"a": good}), UPDATE, 1_001 + int(TRIAL_SECONDS * 1_000)).failed
    assert late is not None
    assert (late.node, late.version) == ("b", 1)
