"""A real conductor and a real ZooKeeper; the test plays supervisors and workers, znode by znode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from stretto import control
from stretto.conductor.process import Conductor, ConductorConfig
from stretto.network.asking import ask
from stretto.network.loop import Loop
from stretto.network.routing import Network
from stretto.network.service import Service
from stretto.replog.core.record import GroupRecord
from stretto.specs.assignments import Assignment
from stretto.specs.modules import DepotSpec, ModuleSpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.sessions.client import close, new_client
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import NodeRegistration, ResignRequest, WorkerRegistration, decode, encode
from tests.support.waiting import wait_until

MANIFEST = control.ModuleManifest(name="m", entry="m:M", depots=(DepotSpec(name="sentences"),))
DIGEST = "d" * 64


class Scene:
    def __init__(self, zookeeper: EmbeddedZooKeeper, paths: Paths, closing: ExitStack) -> None:
        self._zookeeper = zookeeper.address
        self.paths = paths
        self._closing = closing
        self.zk: KazooClient = new_client(zookeeper.address, 4_000)
        self.zk.start()
        closing.callback(close, self.zk)
        self.network = Network(["127.0.0.1:1"], None)
        closing.callback(self.network.close)
        self.artifacts: set[str] = {DIGEST}
        self.supervisors = self._serve()

    def _serve(self) -> str:
        """One that keeps artifacts, at an address that all nodes give as theirs."""

        def handle(call: control.AnyCall, _: list[memoryview]) -> object:
            assert isinstance(call, control.HasArtifact)
            return call.digest in self.artifacts

        loop = Loop()
        service = Service(
            loop, address="127.0.0.1:0", cluster="stretto", name="nodes", key=None, handle=handle
        )
        thread = threading.Thread(target=loop.run)
        thread.start()

        def end() -> None:
            loop.call_soon(loop.stop)
            thread.join()
            service.close()
            loop.close()

        self._closing.callback(end)
        return service.address

    def conductor(
        self, address: str = "127.0.0.1:0", *, zookeeper: str | None = None
    ) -> tuple[Conductor, Callable[[], None]]:
        """Started, and how to stop it."""
        conductor = Conductor(
            ConductorConfig(
                cluster="stretto",
                zookeeper=zookeeper or self._zookeeper,
                root=self.paths.root,
                address=address,
                session_timeout_ms=4_000,
            )
        )
        thread = threading.Thread(target=conductor.run)
        thread.start()

        def end() -> None:
            conductor.stop()
            thread.join()

        self._closing.callback(end)
        return conductor, end

    def active(self, conductor: Conductor) -> None:
        wait_until("it is active", lambda: self.ask(conductor, control.FindConductor()) == conductor.address)

    def ask(self, conductor: Conductor, call: control.Call[control.Result]) -> control.Result:
        return ask(self.network, conductor.address, call)

    def launch(self, conductor: Conductor, **changed: object) -> None:
        arguments: dict[str, object] = {
            "tasks": 8,
            "threads": 4,
            "workers": 1,
            "replication_factor": 3,
            "artifact": DIGEST,
            "manifest": MANIFEST,
        }
        call = control.Launch(module="m", **(arguments | changed))  # type: ignore[arg-type]
        self.ask(conductor, call)

    # Playing nodes.

    def node(self, name: str) -> str:
        """Register one; returns its path."""
        incarnation = Incarnation(f"i-{name}")
        path = self.paths.node(name, incarnation)
        registration = NodeRegistration(node=name, incarnation=incarnation, address=self.supervisors)
        self.zk.create(path, encode(registration), ephemeral=True, makepath=True)
        return path

    def nodes(self, conductor: Conductor, *names: str) -> None:
        for name in names:
            self.node(name)
        wait_until(
            "the nodes are known",
            lambda: (
                set(names) <= {node.node for node in self.ask(conductor, control.Nodes()) if node.address}
            ),
        )

    # Playing workers.

    def assignment(self, module: str = "m") -> Assignment:
        path = self.paths.assignment(module)
        return decode(self.zk.get(path)[0], Assignment, path)

    def spec(self, module: str = "m") -> ModuleSpec | None:
        path = self.paths.spec(module)
        try:
            return decode(self.zk.get(path)[0], ModuleSpec, path)
        except NoNodeError:
            return None

    def state(self, module: str = "m") -> str | None:
        spec = self.spec(module)
        return None if spec is None else spec.state

    def start_workers(self, module: str = "m") -> None:
        """All that the assignment names register, with the storage ids of their replicas."""
        assignment = self.assignment(module)
        for worker, node in assignment.nodes.items():
            members = {
                str(GroupKey(module, assignment.generation, number)): StorageId(f"{worker}/{number}")
                for number, replicas in enumerate(assignment.replicas)
                if worker in replicas
            }
            incarnation = incarnation_of(worker)
            registration = WorkerRegistration(
                worker=worker, incarnation=incarnation, node=node, address="127.0.0.1:1", members=members
            )
            path = self.paths.registration(worker, incarnation)
            self.zk.create(path, encode(registration), ephemeral=True, makepath=True)

    def stop_worker(self, worker: WorkerId) -> None:
        self.zk.delete(self.paths.registration(worker, incarnation_of(worker)))

    def has_registered(self, conductor: Conductor, worker: WorkerId, module: str = "m") -> bool:
        """As far as the conductor knows."""
        [view] = self.ask(conductor, control.Modules(module=module))
        return any(each.worker == worker and each.address is not None for each in view.processes)

    def record(self, number: int, module: str = "m") -> tuple[GroupRecord, int] | None:
        path = self.paths.group(GroupKey(module, self.assignment(module).generation, number))
        try:
            data, stat = self.zk.get(path)
        except NoNodeError:
            return None
        return decode(data, GroupRecord, path), stat.version

    def lead(self, number: int, worker: WorkerId, module: str = "m") -> None:
        """That worker wins the next epoch of a group."""
        wait_until(f"group {number} has a record", lambda: self.record(number, module))
        found = self.record(number, module)
        assert found is not None
        record, version = found
        key = GroupKey(module, self.assignment(module).generation, number)
        led = record.with_leader(worker, incarnation_of(worker), Epoch(record.epoch + 1))
        self.zk.set(self.paths.group(key), encode(led), version)

    def requests(self, module: str = "m") -> dict[int, ResignRequest]:
        """Requests to resign, by group."""
        assignment = self.assignment(module)
        found = {}
        for number in range(len(assignment.groups)):
            path = self.paths.resign(GroupKey(module, assignment.generation, number))
            try:
                found[number] = decode(self.zk.get(path)[0], ResignRequest, path)
            except NoNodeError:
                continue
        return found

    def obey(self, module: str = "m") -> int:
        """Every leader that is asked to resign does; returns how many."""
        requests = self.requests(module)
        for number, request in requests.items():
            key = GroupKey(module, self.assignment(module).generation, number)
            found = self.record(number, module)
            self.zk.delete(self.paths.resign(key))
            if found is not None and found[0].epoch == request.epoch:
                self.lead(number, request.target, module)
        return len(requests)

    def leaders(self, module: str = "m") -> dict[str, int]:
        """How many groups each node leads."""
        assignment = self.assignment(module)
        counts = dict.fromkeys(assignment.nodes.values(), 0)
        for number in range(len(assignment.groups)):
            found = self.record(number, module)
            if found is not None and found[0].leader is not None:
                counts[assignment.nodes[found[0].leader]] += 1
        return counts

    def running(self, conductor: Conductor, *, leader_index: int | None = None) -> None:
        """A module that runs: led by the preferred leaders, or all by one worker."""
        self.nodes(conductor, "n1", "n2", "n3")
        self.launch(conductor)
        self.start_workers()
        assignment = self.assignment()
        for number, replicas in enumerate(assignment.replicas):
            chosen = replicas[0] if leader_index is None else assignment.workers[leader_index].worker
            self.lead(number, chosen)
        wait_until("it runs", lambda: self.state() in ("running", "leadership-balancing"))


def incarnation_of(worker: WorkerId) -> Incarnation:
    return Incarnation(f"i-{worker}")


@pytest.fixture
def scene(zookeeper: EmbeddedZooKeeper, paths: Paths) -> Iterator[Scene]:
    with ExitStack() as closing:
        yield Scene(zookeeper, paths, closing)
