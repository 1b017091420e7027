"""What the metastore wants on a node; and that what is not known changes nothing."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from stretto.specs.assignments import Assignment, PlacedWorker
from stretto.specs.modules import ModuleSpec, ModuleState, Update
from stretto.supervisor.desired import Desired, Fate
from stretto.vocabulary.types import WorkerId
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import DestroyedModules, encode
from tests.support.turns import StillLoop
from tests.unit.supervisor.followed import ToldView

PATHS = Paths("/c")
W, ELSEWHERE, OLD = WorkerId("m-1"), WorkerId("m-2"), WorkerId("m-0")


class Node:
    """The node n1, whose supervisor follows the modules."""

    def __init__(self) -> None:
        self.loop = StillLoop()
        self.view = ToldView()
        self.changes = 0
        self.desired = Desired(cast(Any, self.loop), cast(Any, self.view), PATHS, "n1", self._changed)
        self.desired.start()

    def _changed(self) -> None:
        self.changes += 1

    def tell(self, path: str, data: Any) -> None:
        self.view.told[path](data)
        self.loop.run()

    def list(self, *names: str) -> None:
        self.tell(PATHS.modules, [*names])

    def know(self, module: str, spec: ModuleSpec | None, assignment: Assignment | None) -> None:
        self.tell(PATHS.spec(module), None if spec is None else encode(spec))
        self.tell(PATHS.assignment(module), None if assignment is None else encode(assignment))

    def is_known(self) -> bool:
        return self.desired.is_known

    def is_any_destroyed(self) -> bool:
        return self.desired.is_any_destroyed

    def fate(self, worker: WorkerId = W) -> Fate:
        return self.desired.fate(worker, "m")


def spec(state: ModuleState = ModuleState.RUNNING, artifact: str = "a") -> ModuleSpec:
    return ModuleSpec(
        artifact=artifact, tasks=2, threads=1, workers=1, replication_factor=1, state=state, entry="m:M"
    )


def assignment(generation: int = 3) -> Assignment:
    return Assignment(
        generation=generation,
        tasks=2,
        workers=(PlacedWorker(W, "n1"), PlacedWorker(ELSEWHERE, "n2")),
        groups=((0, 1),),
        retired=(PlacedWorker(OLD, "n1"),),
    )


@pytest.fixture
def node() -> Node:
    return Node()


def test_what_is_not_known_is_kept_as_it_is(node: Node) -> None:
    assert node.fate() is Fate.KEEP
    assert not node.is_known()
    node.list("m")
    assert node.fate() is Fate.KEEP
    node.tell(PATHS.spec("m"), encode(spec()))
    assert node.fate() is Fate.KEEP
    assert not node.is_known()
    node.tell(PATHS.assignment("m"), encode(assignment()))
    assert node.fate() is Fate.RUN
    assert node.is_known()
    assert node.changes == 3


def test_a_worker_runs_on_the_node_that_it_is_placed_on(node: Node) -> None:
    node.list("m")
    node.know("m", spec(), assignment())
    assert node.fate(W) is Fate.RUN
    assert node.fate(ELSEWHERE) is Fate.LEAVE
    assert node.fate(WorkerId("m-9")) is Fate.LEAVE
    assert node.fate(OLD) is Fate.DESTROY
    assert node.desired.here() == {W: "m", OLD: "m"}


def test_a_worker_that_is_retired_on_another_node_is_left(node: Node) -> None:
    node.list("m")
    retired = (PlacedWorker(W, "n2"),)
    node.know("m", spec(), msgspec.structs.replace(assignment(), retired=retired))
    assert node.fate(W) is Fate.RUN
    node.know("m", spec(), msgspec.structs.replace(assignment(), retired=(PlacedWorker(ELSEWHERE, "n2"),)))
    assert node.fate(ELSEWHERE) is Fate.LEAVE


def test_a_worker_of_a_module_that_is_destroyed_is_deleted_and_of_one_that_is_gone_left(node: Node) -> None:
    node.list("m")
    node.know("m", spec(ModuleState.DESTROYING), assignment())
    assert node.fate() is Fate.DESTROY
    node.list()
    assert node.fate() is Fate.LEAVE
    assert node.desired.here() == {}


def test_a_module_without_a_spec_is_kept_and_one_without_an_assignment_left(node: Node) -> None:
    node.list("m")
    node.know("m", None, assignment())
    assert node.fate() is Fate.KEEP
    node.know("m", spec(), None)
    assert node.fate() is Fate.LEAVE


def test_what_cannot_be_read_leaves_what_was_known(node: Node) -> None:
    node.list("m")
    node.know("m", spec(), assignment())
    changes = node.changes
    node.tell(PATHS.spec("m"), b"no spec")
    node.tell(PATHS.assignment("m"), b"no assignment")
    node.tell(PATHS.destroyed, b"nothing")
    assert node.fate() is Fate.RUN
    assert node.changes == changes


def test_a_module_that_goes_is_followed_no_more_and_what_is_still_told_of_it_is_void(node: Node) -> None:
    node.list("m")
    late = node.view.told[PATHS.spec("m")]
    followed = [node.view.followed[path] for path in (PATHS.spec("m"), PATHS.assignment("m"))]
    node.list("other")
    assert all(each.is_stopped for each in followed)
    assert not node.view.followed[PATHS.spec("other")].is_stopped
    node.list("m", "other")
    late(encode(spec(ModuleState.DESTROYING)))
    node.loop.run()
    node.tell(PATHS.assignment("m"), encode(assignment()))
    assert node.fate() is Fate.KEEP, "the namesake's spec is not known yet"


def test_a_module_that_stays_is_followed_as_before(node: Node) -> None:
    node.list("m")
    node.know("m", spec(), assignment())
    node.list("m", "other")
    assert node.fate() is Fate.RUN
    assert not node.is_known()
    assert not node.view.followed[PATHS.spec("m")].is_stopped


def test_replicas_of_a_module_that_was_destroyed_meanwhile_are_known_by_their_grouping(node: Node) -> None:
    assert not node.is_any_destroyed()
    node.tell(PATHS.destroyed, encode(DestroyedModules(groupings={"m": 5})))
    assert node.is_any_destroyed()
    assert node.changes == 1
    node.list()
    assert node.desired.is_destroyed("m", 5)
    assert not node.desired.is_destroyed("m", 6)
    assert not node.desired.is_destroyed("other", 1)
    node.list("m")
    assert not node.desired.is_destroyed("m", 5), "whether a namesake holds it is not known"
    node.know("m", spec(), assignment(generation=5))
    assert not node.desired.is_destroyed("m", 5)
    node.know("m", spec(), assignment(generation=6))
    assert node.desired.is_destroyed("m", 5)
    node.tell(PATHS.destroyed, None)
    assert not node.is_any_destroyed()
    assert not node.desired.is_destroyed("m", 5)


def test_code_is_needed_that_any_module_uses_or_is_about_to(node: Node) -> None:
    node.list("m", "other", "unread")
    coming = spec(ModuleState.RUNNING, "b")
    updating = msgspec.structs.replace(
        spec(ModuleState.UPDATING), update=Update(id="u", next=coming, delete=(), began_ms=0)
    )
    node.know("m", updating, assignment())
    node.know("other", spec(artifact="c"), None)
    assert node.desired.artifacts() == {"a", "b", "c"}
    assert node.desired.artifact("m") == "a"
    assert node.desired.artifact("unread") == node.desired.artifact("unlisted") == ""


def test_code_is_tried_where_its_module_has_a_worker_and_while_it_is_updated(node: Node) -> None:
    update = Update(id="u", next=spec(), delete=(), began_ms=0)
    updating = msgspec.structs.replace(spec(ModuleState.UPDATING), update=update)
    node.list("m")
    for found, placed, expected in [
        (updating, assignment(), [("m", update)]),
        (msgspec.structs.replace(updating, state=ModuleState.DESTROYING), assignment(), []),
        (spec(ModuleState.UPDATING), assignment(), []),
        (updating, None, []),
        (updating, msgspec.structs.replace(assignment(), workers=(PlacedWorker(W, "n2"),) * 2), []),
        (None, assignment(), []),
    ]:
        node.know("m", found, placed)
        assert node.desired.updates() == expected
