"""What whoever makes a snapshot concludes from the answers of workers, which the test gives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from stretto import control
from stretto.control.snapshots import CutTask, CutView
from stretto.errors import RetriableError, StrettoError
from stretto.snapshot import creating
from stretto.snapshot.manifest import ARTIFACT
from stretto.snapshot.unfinished import MARKER_PREFIX
from stretto.specs.modules import ModuleSpec, ModuleState, TopologySpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId
from stretto.wire import messages as wire
from tests.support.syncs import RecordedSyncs

LEADER, FOLLOWER, OTHER = WORKERS = (WorkerId("w0"), WorkerId("w1"), WorkerId("w2"))
TASKS = (TaskId(0), TaskId(1))
VIEW = wire.GroupView(GroupKey("bank", 1, 0), TASKS, WORKERS, Epoch(3), LEADER, WORKERS, 2)
SPEC = ModuleSpec(
    artifact="code",
    tasks=2,
    threads=1,
    workers=3,
    replication_factor=3,
    state=ModuleState.RUNNING,
    topologies=(TopologySpec(name="book", kind="stream", depots=("orders",)),),
)


class World:
    """Three replicas of one group, and whoever makes a snapshot of them. Time passes only while it sleeps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        #: Of who leads when topologies are held, and when the marker is applied.
        self.held_epoch = self.marked_epoch = Epoch(3)
        #: How long the group takes to take its marker.
        self.mark_seconds = 0.0
        #: By task; whoever is not here says the same as the others.
        self.digests: dict[WorkerId, dict[TaskId, str | None]] = {}
        self.holds: list[int] = []
        self.markers: list[str] = []
        self.dropped: list[str] = []
        self.copied: set[WorkerId] = set()
        for name, stand_in in (("ask", self._ask), ("mark", self._mark)):
            monkeypatch.setattr(creating, name, stand_in)
        self.clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(creating, "time", self.clock)
        monkeypatch.setattr(creating, "Client", lambda _: SimpleNamespace(refresh=lambda: None))
        metadata = wire.Metadata(0, {worker: worker for worker in WORKERS}, (VIEW,))
        cluster = SimpleNamespace(network=None, metadata=lambda: metadata, ask=lambda _: SPEC)
        self.making = creating._Making(
            cast(Any, cluster), "bank", folder, token="t", timeout=60.0, progress=lambda *_: None
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _mark(self, _: object, __: wire.GroupView, marker: str, ___: float) -> Offset:
        self.now += self.mark_seconds
        self.markers.append(marker)
        return Offset(7)

    def _ask(self, _: object, worker: WorkerId, call: Any, *, timeout: float) -> Any:
        assert timeout
        match call:
            case control.HoldTopologies(hold_ms=hold_ms):
                self.holds.append(hold_ms)
                led = ((VIEW.key, self.held_epoch),) if worker == LEADER else ()
                return control.HoldView(led=led, waits="", was_held=True)
            case control.Cut():
                return self._view(worker)
            case control.CopyCut():
                self.copied.add(worker)
                return True
            case control.DropCut(marker=marker):
                self.dropped.append(marker)
                return None
            case _:
                raise AssertionError(call)

    def _view(self, worker: WorkerId) -> CutView:
        digests = self.digests.get(worker, {})
        tasks = {
            task: CutTask(
                microbatches={},
                digest=digests.get(task, f"digest of {task}"),
                size_bytes=10 if worker in self.copied else None,
                sha256="hash" if worker in self.copied else "",
            )
            for task in TASKS
        }
        return CutView(
            offset=Offset(7), epoch=self.marked_epoch, cluster="c", tasks=tasks, copied_bytes=0, problem=""
        )

    def cut(self) -> list[creating._Group]:
        return self.making._cut(SPEC)[2]

    def copy(self) -> list[str]:
        """The digests that the manifest has."""
        groups = self.cut()
        self.making._copy(groups, self.markers[-1])
        return [stored.digest for stored in self.making._stored(groups)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, monkeypatch)
    with ThreadPoolExecutor(1) as world.making._pool:
        yield world


def test_a_cut_is_made_while_topologies_are_held_and_lets_them_go(world: World) -> None:
    [group] = world.cut()
    assert (group.offset, group.epoch) == (7, 3)
    assert len(world.markers) == 1
    assert world.holds[0] > 0
    assert world.holds[-len(WORKERS) :] == [0] * len(WORKERS)
    assert world.dropped == []


def test_a_cut_at_a_leader_that_was_not_held_is_made_again(world: World) -> None:
    """Its topologies may have begun what the others do not show."""
    world.marked_epoch = Epoch(4)
    with pytest.raises(RetriableError, match=r"could not be cut .* another worker leads group 0 since"):
        world.cut()
    assert len(world.markers) == creating.ATTEMPTS
    assert {MARKER_PREFIX.decode() + marker for marker in world.dropped} == set(world.markers)
    world.held_epoch = Epoch(4)
    [group] = world.cut()
    assert group.epoch == 4


def test_a_cut_that_took_longer_than_the_hold_is_made_again(world: World) -> None:
    world.mark_seconds = creating.HOLD_SECONDS + 0.1
    with pytest.raises(RetriableError, match=r"could not be cut .* took too long to take a marker"):
        world.cut()
    assert len(world.markers) == creating.ATTEMPTS
    world.mark_seconds = creating.HOLD_SECONDS - 0.1
    assert len(world.cut()) == 1


def test_replicas_that_hold_the_same_are_a_snapshot(world: World) -> None:
    assert world.copy() == ["digest of 0", "digest of 1"]
    assert world.copied == {FOLLOWER}, "a follower copies, so that the leader need not"


@pytest.mark.parametrize("differs", WORKERS)
@pytest.mark.parametrize("task", TASKS)
def test_replicas_that_hold_different_things_are_no_snapshot(
    world: World, differs: WorkerId, task: TaskId
) -> None:
    world.digests[differs] = {task: "another"}
    with pytest.raises(StrettoError, match=f"replicas of task {task} hold different things at entry 7"):
        world.copy()


def test_a_replica_in_sync_that_takes_longer_for_its_digest_is_waited_for(
    world: World,
) -> None:
    world.digests[OTHER] = dict.fromkeys(TASKS)

    def compute(seconds: float) -> None:
        world.sleep(seconds)
        if world.now > creating.PATIENCE_SECONDS / 2:
            world.digests[OTHER] = dict.fromkeys(TASKS, "another")

    world.clock.sleep = compute
    with pytest.raises(StrettoError, match="hold different things"):
        world.copy()


def test_a_replica_that_never_tells_its_digest_is_not_waited_for_for_good(world: World) -> None:
    world.digests[OTHER] = dict.fromkeys(TASKS)
    assert world.copy() == ["digest of 0", "digest of 1"]
    assert world.now > creating.PATIENCE_SECONDS


def test_the_folder_of_a_snapshot_is_on_disk_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = RecordedSyncs(monkeypatch)
    creating._make_folder(tmp_path / "bank" / "one", "token")
    assert [syncs.count(path) for path in (tmp_path, tmp_path / "bank", tmp_path / "bank" / "one")] == [1] * 3


def test_the_code_of_a_snapshot_is_on_disk_before_the_manifest_says_that_it_is_there(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = b"code" * 1_000
    nodes = [SimpleNamespace(node="n1", address=None), SimpleNamespace(node="n2", address="n2")]

    def ask_with_body(_: object, address: str, call: control.GetArtifact) -> tuple[int, list[bytes]]:
        assert address == "n2"
        return len(code), [code[call.offset : call.offset + 1_500]]

    monkeypatch.setattr(creating, "ask_with_body", ask_with_body)
    monkeypatch.setattr(world.making._cluster, "ask", lambda _: nodes)
    syncs = RecordedSyncs(monkeypatch)
    digest = hashlib.sha256(code).hexdigest()
    world.making._fetch_code(msgspec.structs.replace(SPEC, artifact=digest))
    assert (tmp_path / ARTIFACT).read_bytes() == code
    assert syncs.count(tmp_path / ARTIFACT) == 1
