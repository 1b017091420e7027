"""A real cluster on this machine for tests of modules, and what can happen to it, on demand.

ZooKeeper, a conductor and a supervisor for each node run as they do under ``stretto up``
(:mod:`stretto.local.cluster`), in a folder that goes away at the end. Workers are real processes and so is
what befalls them: they are killed, frozen by a signal, or cut off from each other
(:mod:`stretto.testing.network_faults`). Whatever was done, :meth:`ClusterUnderTest.heal` undoes it and waits
until every task group has all its replicas in sync.
"""

from __future__ import annotations

import inspect
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from stretto import artifact, control
from stretto.client.api import Client
from stretto.client.appending.depot import DepotAppender
from stretto.client.appending.producer import AckLevel
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.failures import find_failures
from stretto.client.operating.status import GroupState, GroupStatus, group_statuses, newest_groups
from stretto.client.operating.upload import upload
from stretto.client.operating.verify import all_equal, verify
from stretto.client.reading.pstate import PStateReader
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.local.cluster import LocalCluster, NodePlace, Ports
from stretto.module.module import Depot, Module, declarations
from stretto.module.partition import owner_of
from stretto.network.routing import Network
from stretto.specs.modules import ModuleState
from stretto.supervisor.children import RunFile, read_run_files, signal_process
from stretto.testing.network_faults import NetworkFaults
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import TaskId, WorkerId
from stretto.worker.microbatch.machines.coordinator import Phase

T = TypeVar("T")

READY_SECONDS = 120.0
"""How long a cluster or a module may take to start or to be in sync."""
SETTLE_SECONDS = 120.0
"""How long topologies may take to catch up, and replicas to be compared."""
LOOK_SECONDS = 0.1
"""Pause between two looks at a condition that is waited for."""
SESSION_TIMEOUT_SECONDS = 4.0
"""How long a worker that is frozen or cut off stays a member, if the test does not say."""


@contextmanager
def cluster(
    *,
    replication_factor: int = 3,
    nodes: int | None = None,
    session_timeout: float = SESSION_TIMEOUT_SECONDS,
    folder: Path | None = None,
) -> Iterator[ClusterUnderTest]:
    """Start a cluster on this machine, with nothing on it, and stop it at the end.

    It has as many nodes as a module has replicas, or ``nodes``. ``session_timeout`` is how many seconds a
    worker that is frozen or cut off stays a member; one that is killed is noticed at once. Its files are in
    ``folder``, which is kept, or in one that goes away.
    """
    count = replication_factor if nodes is None else nodes
    if replication_factor < 1 or count < replication_factor:
        raise UsageError(
            f"{replication_factor} replicas need as many nodes at least, and one at least; "
            f"there would be {count}"
        )
    kept = folder
    place = Path(tempfile.mkdtemp(prefix="stretto-test-")) if kept is None else kept
    try:
        with ExitStack() as closing:
            made = ClusterUnderTest(
                place, count, replication_factor=replication_factor, session_timeout=session_timeout
            )
            closing.callback(made.close)
            made.start()
            yield made
    finally:
        if kept is None:
            shutil.rmtree(place, ignore_errors=True)


class ClusterUnderTest:
    """A cluster on this machine to launch modules on, and to break.

    Faults are done to workers (``kill``, ``pause``) and to nodes (``kill_node``, ``partition``).
    """

    def __init__(self, folder: Path, nodes: int, *, replication_factor: int, session_timeout: float) -> None:
        self.folder = folder
        self.replication_factor = replication_factor
        self.nodes = tuple(f"node-{number}" for number in range(1, nodes + 1))
        self._network_faults = NetworkFaults(self.nodes, self._pids)
        try:
            self._local = LocalCluster(
                folder, nodes, port=0, place=self._place, session_timeout_ms=int(session_timeout * 1_000)
            )
        except BaseException:
            self._network_faults.close()
            raise
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="cluster-under-test", daemon=True)
        self._network = Network(self._local.bootstrap, None)
        self._asked = Cluster(self._network, self._local.bootstrap)
        self._clients: list[Client] = []
        self._modules: dict[str, LaunchedModule] = {}
        self._paused: set[str] = set()
        self._down: set[str] = set()

    def _place(self, node: str, ports: Ports) -> NodePlace:
        return NodePlace(
            host=self._network_faults.hosts[node],
            advertised=self._network_faults.advertised[node],
            zookeeper=self._network_faults.zookeeper(node, ports.zookeeper),
        )

    # Life.

    @property
    def bootstrap(self) -> list[str]:
        """Addresses of the cluster, for :func:`stretto.connect`, ``--bootstrap`` and Spark."""
        return list(self._local.bootstrap)

    def start(self) -> None:
        """Start the cluster, and return when all nodes are registered."""
        self._thread.start()
        try:
            self._local.await_ready(self._network, threading.Event(), READY_SECONDS)
        except StrettoError:
            if self._failure is not None:
                raise self._failure from None
            raise

    def _run(self) -> None:
        try:
            self._local.run()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error

    def close(self) -> None:
        """Stop the cluster by force; nothing is left but the folder."""
        for client in self._clients:
            # Not by its own close(), which waits for what it has under way.
            client._network.close()  # noqa: SLF001
        self._network.close()
        if self._thread.ident is not None:
            workers = list(self._workers().values())
            self._local.stop(hurry=True)
            self._thread.join()
            for worker in workers:
                signal_process(worker, signal.SIGKILL)
            eventually(lambda: not any(signal_process(each, 0) for each in workers), what="workers are dead")
        self._network_faults.close()

    def connect(self) -> Client:
        """Return a new client, as :func:`stretto.connect` does, closed with the cluster at the latest."""
        client = Client(Network(self._local.bootstrap, None))
        self._clients.append(client)
        client.refresh(READY_SECONDS)
        return client

    def launch(
        self,
        of: type[Module],
        *,
        tasks: int = 4,
        threads: int = 2,
        workers: int = 1,
        replication_factor: int | None = None,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> LaunchedModule:
        """Launch a module, and return when every task group is led and all replicas are in sync.

        The module's file, or the whole package that it is in, goes to the nodes, as with ``stretto deploy
        launch``. Options are those of the module, by name.
        """
        called = name or declarations(of).name
        source = inspect.getsourcefile(of)
        if source is None:
            raise UsageError(f"{called} has no file that could be sent to nodes; define it in one")
        factor = self.replication_factor if replication_factor is None else replication_factor
        with tempfile.TemporaryDirectory(prefix="stretto-") as folder:
            packed, manifest = artifact.load(f"{source}:{of.__name__}", Path(folder))
            supervisors = [
                node.address for node in self._asked.ask(control.Nodes()) if node.address is not None
            ]
            # The conductor, which no fault cuts off, says where they are.
            self._network_faults.follow()
            upload(self._network, supervisors, packed, copies=factor)
        self._asked.ask(
            control.Launch(
                module=called,
                artifact=packed.digest,
                manifest=manifest,
                tasks=tasks,
                threads=threads,
                workers=workers,
                replication_factor=factor,
                options=dict(options or {}),
            )
        )
        launched = LaunchedModule(self, of, called, tasks)
        self._modules[called] = launched
        launched.wait_in_sync()
        launched.client.refresh(READY_SECONDS)
        return launched

    def destroy(self, module: str) -> None:
        """Destroy a module with all its data, and return when it is gone."""
        self._modules.pop(module, None)
        self._asked.ask(control.Destroy(module=module))
        eventually(
            lambda: module not in {each.module for each in self._asked.ask(control.Modules())},
            what=f"{module} is gone",
        )

    # Faults.

    def kill(self, worker: str) -> None:
        """Kill a worker with SIGKILL.

        Its supervisor starts it again at once; :meth:`kill_node` keeps it down.
        """
        signal_process(self._process(worker), signal.SIGKILL)
        self._paused.discard(worker)

    def restart(self, worker: str) -> None:
        """Restart a worker with SIGTERM, so that its leaders hand over first.

        Returns when another process has its place.
        """
        before = self._process(worker)
        signal_process(before, signal.SIGTERM)
        eventually(lambda: self._has_followed(worker, before), what=f"{worker} is started again")

    def _has_followed(self, worker: str, before: RunFile) -> bool:
        now = self._workers().get(WorkerId(worker))
        return now is not None and now.pid not in (0, before.pid)

    def pause(self, worker: str) -> None:
        """Freeze a worker with SIGSTOP: it lives, and does nothing until :meth:`resume`."""
        signal_process(self._process(worker), signal.SIGSTOP)
        self._paused.add(worker)

    def resume(self, worker: str) -> None:
        """Let a worker go on that :meth:`pause` froze."""
        signal_process(self._process(worker), signal.SIGCONT)
        self._paused.discard(worker)

    def partition(self, node: str, *others: str) -> None:
        """Cut a node off from others: nothing passes in either direction, and neither end is told.

        Without ``others`` it is alone: cut off from all nodes, from ZooKeeper and from clients.
        """
        for each in (node, *others):
            self._check_node(each)
        if not others:
            self._network_faults.isolate(node)
        for other in others:
            self._network_faults.separate(node, other)

    def kill_node(self, node: str) -> None:
        """Kill a node's supervisor and workers, as if it had lost power; it stays down until :meth:`heal`."""
        self._check_node(node)
        self._local.hold(node)
        self._down.add(node)
        # The supervisor first: it would start the workers again.
        supervisor = read_run_files(self.folder / "run").get(WorkerId(node))
        if supervisor is not None:
            signal_process(supervisor, signal.SIGKILL)
            eventually(lambda: not signal_process(supervisor, 0), what=f"the supervisor of {node} is dead")
        for worker in read_run_files(self.folder / node / "run").values():
            signal_process(worker, signal.SIGKILL)

    def heal(self) -> None:
        """Undo all faults, and wait until every group is led and has all its replicas in sync."""
        self._network_faults.heal()
        for worker in list(self._paused):
            self.resume(worker)
        for node in list(self._down):
            self._down.discard(node)
            self._local.release(node)
        for module in self._modules.values():
            module.wait_in_sync()

    def reset(self) -> None:
        """Heal the cluster, and destroy all modules that were launched."""
        self.heal()
        for module in list(self._modules):
            self.destroy(module)

    # Looking.

    @property
    def workers(self) -> dict[str, str]:
        """All workers, each with its node."""
        return {
            str(worker): node for node in self.nodes for worker in read_run_files(self.folder / node / "run")
        }

    def log_of(self, worker_or_node: str) -> Path:
        """Return the log file of a worker, or of a node's supervisor."""
        node = self.workers.get(worker_or_node)
        if node is not None:
            return self.folder / node / "logs" / f"{worker_or_node}.log"
        self._check_node(worker_or_node)
        return self._local.log_of(worker_or_node)

    def _workers(self) -> dict[WorkerId, RunFile]:
        found: dict[WorkerId, RunFile] = {}
        for node in self.nodes:
            found |= read_run_files(self.folder / node / "run")
        return found

    def _process(self, worker: str) -> RunFile:
        workers = self._workers()
        if worker not in workers:
            raise UsageError(f"there is no worker {worker}; {did_you_mean(worker, workers)}")
        return workers[WorkerId(worker)]

    def _check_node(self, node: str) -> None:
        if node not in self.nodes:
            raise UsageError(f"there is no node {node}; {did_you_mean(node, self.nodes)}")

    def _pids(self) -> dict[str, set[int]]:
        """Return the process ids of supervisors and workers, by node."""
        supervisors = read_run_files(self.folder / "run")
        return {
            node: {
                file.pid
                for name, file in (supervisors | read_run_files(self.folder / node / "run")).items()
                if file.pid and (name == node or name not in supervisors)
            }
            for node in self.nodes
        }

    def _groups(self, module: str) -> list[GroupStatus]:
        return group_statuses(self._network, self._asked.metadata(), module)


class LaunchedModule:
    """A module that runs on a cluster under test.

    Its PStates are attributes, as in :class:`stretto.testing.ModuleUnderTest`.
    """

    def __init__(self, on: ClusterUnderTest, of: type[Module], name: str, tasks: int) -> None:
        self.cluster = on
        self.name = name
        self.client = on.connect()
        self._declared = declarations(of)
        self._tasks = tasks
        self._appenders: dict[tuple[str, AckLevel], DepotAppender[Any]] = {}
        self._readers: dict[str, PStateReader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Destroy the module with all its data."""
        self.cluster.destroy(self.name)

    # What a client does.

    def append(
        self,
        depot: str | Depot[Any],
        *values: Any,
        task: int | None = None,
        ack: AckLevel = "all",
        timeout: float = 60.0,
    ) -> list[dict[str, Any]]:
        """Append values, and wait until every topology has taken them, microbatches included.

        Returns, for each value, what topologies returned for it, by their names; raises what failed.

        Each goes to the task that its depot's partitioning chooses, or to ``task``. A value is what JSON can
        say, or a dataclass or struct; ``bytes`` are a record as it is. With another ``ack`` less is waited
        for, as with :class:`~stretto.client.Producer`.
        """
        name = depot.name if isinstance(depot, Depot) else depot
        if name not in self._declared.depots:
            raise UsageError(f"{self.name} has no depot {name}; {did_you_mean(name, self._declared.depots)}")
        appender = self._appenders.get((name, ack))
        if appender is None:
            declared = self._declared.depots[name]
            appender = self.client.depot(declared, module=self.name, ack=ack)
            self._appenders[name, ack] = appender
        acks = [appender.append(value, task=task) for value in values]
        deadline = time.monotonic() + timeout
        appender.flush(timeout)
        return [each.result(max(0.0, deadline - time.monotonic())) for each in acks]

    def pstate(self, name: str) -> PStateReader:
        """Return a reader of a PState of the module."""
        if name not in self._declared.pstates:
            raise UsageError(
                f"{self.name} has no PState {name}; {did_you_mean(name, self._declared.pstates)}"
            )
        reader = self._readers.get(name)
        if reader is None:
            annotation = self._declared.pstates[name].annotation
            reader = self._readers[name] = self.client.pstate(self.name, name, of=annotation)
        return reader

    def __getattr__(self, name: str) -> PStateReader:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.pstate(name)
        except UsageError as error:
            raise AttributeError(str(error)) from None

    def query(self, name: str, /, *args: Any, **named: Any) -> Any:
        """Ask a query of the module, and return its answer as plain values."""
        return self.client.query(self.name, name, *args, **named)

    # Waiting.

    def settle(self, timeout: float = SETTLE_SECONDS) -> None:
        """Wait until every topology has taken every record that is visible now."""
        # To be asked for them, a leader has to have applied all that was acknowledged.
        visible = {name: self.client.reader(self.name, name).all_bounds() for name in self._declared.depots}
        ends = {name: {task: end for task, (_, end) in its.items()} for name, its in visible.items()}
        eventually(
            lambda: self._is_settled(ends), timeout=timeout, what=f"all topologies of {self.name} are done"
        )

    def _is_settled(self, ends: Mapping[str, Mapping[int, int]]) -> bool:
        asked = self.cluster._asked  # noqa: SLF001 - it is a part of it
        streams = find_failures(asked, self.name, lambda _: False).streams
        kinds = [each.declared.kind for each in self._declared.functions.topologies.values()]
        if len(streams) < kinds.count("stream") * self._tasks or any(each.lag for each in streams):
            return False
        if "microbatch" not in kinds:
            return True
        metadata = asked.metadata()
        first = next(each for each in newest_groups(metadata, self.name) if TaskId(0) in each.tasks)
        address = metadata.addresses.get(first.leader) if first.leader is not None else None
        if address is None:
            return False
        told = asked.ask_worker(address, control.Microbatches(module=self.name))
        return len(told) == kinds.count("microbatch") and all(_has_taken(each, ends) for each in told)

    def wait_in_sync(self, timeout: float = READY_SECONDS) -> None:
        """Wait until every group is led and all its replicas are there and in its ISR."""
        eventually(self._is_in_sync, timeout=timeout, what=f"all replicas of {self.name} are in sync")

    def _is_in_sync(self) -> bool:
        [view] = self.cluster._asked.ask(control.Modules(module=self.name))  # noqa: SLF001
        groups = self.groups()
        return view.state == ModuleState.RUNNING and all(
            each.state is GroupState.RUNNING and each.is_whole for each in groups
        )

    # Looking.

    def groups(self) -> list[GroupStatus]:
        """Return the status of all task groups, as their replicas report it."""
        return self.cluster._groups(self.name)  # noqa: SLF001

    def group_of(self, key: Any) -> int:
        """Return the task group that has this key of a PState, or the records that name it."""
        task = owner_of(key, self._tasks)
        return next(each.group.group for each in self.groups() if task in each.tasks)

    def leader(self, group: int = 0) -> str:
        """Return the worker that leads a group, once there is one."""
        return eventually(lambda: self._leader(group), what=f"group {group} of {self.name} is led")

    def _leader(self, group: int) -> str | None:
        status = self._group(group)
        return status.leader if status.state in _SERVING else None

    def followers(self, group: int = 0) -> list[str]:
        """Return the workers with replicas of a group that do not lead it."""
        status = self._group(group)
        return [each.worker for each in status.replicas if each.worker != status.leader]

    def _group(self, group: int) -> GroupStatus:
        groups = self.groups()
        if not 0 <= group < len(groups):
            raise UsageError(f"{self.name} has no group {group}; its groups are 0 to {len(groups) - 1}")
        return groups[group]

    def kill_leader(self, group: int = 0) -> str:
        """Kill the worker that leads a group, and return which it was."""
        worker = self.leader(group)
        self.cluster.kill(worker)
        return worker

    def hand_over(self, group: int = 0, to: str | None = None) -> str:
        """Make the leader of a group hand over to another worker, or to the next one in the ISR.

        Returns the worker that leads then.
        """
        status = self._group(group)
        epoch, target = status.epoch, to

        def asked() -> bool:
            nonlocal epoch, target
            status = self._group(group)
            others = [worker for worker in status.isr if worker != status.leader]
            target = to or next(iter(others), None)
            if target is None:
                return False
            ask = control.ResignLeader(module=self.name, group=group, to=WorkerId(target))
            try:
                epoch = self.cluster._asked.ask(ask)  # noqa: SLF001
            except UsageError:
                if to is not None:
                    raise
                # The conductor knows of another leader, or ISR, by now.
                return False
            return True

        eventually(asked, what=f"somebody can take over group {group} of {self.name}")
        eventually(
            lambda: self._group(group).epoch > epoch and self._leader(group),
            what=f"group {group} of {self.name} is handed over to {target}",
        )
        return self.leader(group)

    def check_replicas_agree(self, timeout: float = SETTLE_SECONDS) -> None:
        """Raise AssertionError unless all replicas of every task hold the same."""
        metadata = self.cluster._asked.metadata()  # noqa: SLF001
        self.client.refresh()
        verdicts = verify(self.client._network, metadata, self.name, timeout=timeout)  # noqa: SLF001
        if not all_equal(verdicts):
            raise AssertionError(f"replicas of {self.name} differ, or are missing: {verdicts}")


_SERVING = (GroupState.RUNNING, GroupState.CATCHING_UP, GroupState.PAUSED)


def eventually(condition: Callable[[], T | None], *, timeout: float = 60.0, what: str = "the condition") -> T:
    """Wait for the first true value of ``condition``, and return it; a RetriableError counts as false."""
    deadline = time.monotonic() + timeout
    while True:
        trouble = ""
        try:
            value = condition()
            if value:
                return value
        except RetriableError as error:
            trouble = f" ({error})"
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s: {what}{trouble}")
        time.sleep(LOOK_SECONDS)


def _has_taken(view: control.MicrobatchView, ends: Mapping[str, Mapping[int, int]]) -> bool:
    """Whether a microbatch topology has taken all records below these ends, visibly on all tasks.

    Records that its coordinator has not heard of are not taken.
    """
    heard = all(
        known.get(TaskId(task), 0) >= end
        for depot, known in view.ends.items()
        for task, end in ends[depot].items()
    )
    return heard and view.lag == 0 and view.phase == Phase.IDLE
