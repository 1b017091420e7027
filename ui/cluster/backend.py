"""Where handlers ask: the cluster, with answers shared for a moment, and the history of its measures.

Many pages ask the same again and again. What was looked up less than a second ago is told again, and who asks
while it is being looked up waits for that answer, so that pages cost the cluster the same however many there
are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from stretto import control
from stretto.client.api import Client
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.status import GroupStatus, group_statuses
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.network.asking import ask
from stretto.telemetry.windows import StoryLine
from stretto.ui.cluster.views import (
    PROBLEMS_MAX,
    ClusterView,
    Health,
    Problem,
    problems_of,
    sentence_of,
    serving_of,
    serving_unknown,
)
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId
from stretto.wire import messages as wire

FRESH_SECONDS = 0.8
SUPERVISOR_SECONDS = 5.0

T = TypeVar("T")
Story: TypeAlias = list[tuple[WorkerId, StoryLine]]


class _Plan(NamedTuple):
    """What a conductor answered last."""

    nodes: tuple[control.NodeView, ...] = ()
    modules: tuple[control.ModuleView, ...] = ()
    at_ms: int | None = None


class Backend:
    """The cluster as handlers ask it; may be used from many threads."""

    def __init__(
        self,
        cluster: Cluster,
        parked: Callable[[], Mapping[tuple[str, str], int]],
        remembered: Callable[[GroupKey], Story],
    ) -> None:
        """Ask a cluster, and what this process keeps of it.

        ``parked`` returns how many records are parked, by module and topology; ``remembered`` what replicas
        of a group reported of themselves, also those that are gone.
        """
        self.cluster = cluster
        self.client = Client(cluster.network)
        self._parked = parked
        self._remembered = remembered
        self._answers: dict[Any, tuple[float, Future[Any]]] = {}
        self._lock = threading.Lock()
        self._plan = _Plan()
        self._modules: tuple[control.ModuleView, ...] | None = None
        self._nodes: dict[WorkerId, str] = {}
        #: Where workers were when somebody last answered: they are asked also if ZooKeeper is lost.
        self._metadata: wire.Metadata | None = None

    def shared(self, key: Any, look: Callable[[], T]) -> T:
        """Return what ``look`` finds; all callers with the same ``key`` share it, for FRESH_SECONDS."""
        with self._lock:
            found = self._answers.get(key)
            is_mine = found is None or found[0] < time.monotonic()
            if is_mine:
                future: Future[T] = Future()
                self._answers[key] = (float("inf"), future)
            else:
                future = found[1] if found is not None else Future()
        if is_mine:
            try:
                future.set_result(look())
            except BaseException as error:  # noqa: BLE001 - for all who wait for it
                future.set_exception(error)
            with self._lock:
                fresh = {each: told for each, told in self._answers.items() if told[0] >= time.monotonic()}
                self._answers = {**fresh, key: (time.monotonic() + FRESH_SECONDS, future)}
        return future.result()

    def ask(self, call: control.Call[control.Result]) -> control.Result:
        """Ask the conductor something that changes nothing; the answer is shared."""
        return self.shared(call, lambda: self.cluster.ask(call))

    def modules(self) -> tuple[control.ModuleView, ...]:
        """The modules as a conductor reports them, or reported last: groups serve without one."""
        try:
            self._modules = self.ask(control.Modules())
        except RetriableError:
            if self._modules is None:
                raise
        return self._modules

    def act(self, call: control.Call[control.Result]) -> control.Result:
        """Ask the conductor to change something: what was looked up before is old then."""
        try:
            return self.cluster.ask(call)
        finally:
            with self._lock:
                self._answers = {key: told for key, told in self._answers.items() if not told[1].done()}

    def ask_supervisor(self, node: control.NodeView, call: control.Call[control.Result]) -> control.Result:
        """Ask the supervisor of a node; raises RetriableError if it is down."""
        if node.address is None:
            raise RetriableError(f"the supervisor of node {node.node} is down; start it, or go there to look")
        return ask(self.cluster.network, node.address, call, timeout=SUPERVISOR_SECONDS)

    def metadata(self) -> wire.Metadata:
        """The task groups and the addresses of workers, as they were last known if nobody answers."""

        def look() -> wire.Metadata:
            try:
                self._metadata = self.cluster.metadata()
            except RetriableError:
                if self._metadata is None:
                    raise
            return self._metadata

        return self.shared("metadata", look)

    def groups(self, module: str) -> list[GroupStatus]:
        """The state of a module's groups as their replicas report it; no conductor is needed."""

        def look() -> list[GroupStatus]:
            found = group_statuses(self.cluster.network, self.metadata(), module)
            nodes = self._places(found)
            return [status.placed_on(nodes) for status in found]

        return self.shared(("groups", module), look)

    def _places(self, statuses: list[GroupStatus]) -> Mapping[WorkerId, str]:
        """The nodes of workers. A worker has the same one for life, so it is asked for once."""
        if not all(each.worker in self._nodes for status in statuses for each in status.replicas):
            with suppress(StrettoError):
                self._remember(self.ask(control.Modules()))
        return self._nodes

    def _remember(self, modules: tuple[control.ModuleView, ...]) -> None:
        self._nodes = self._nodes | {each.worker: each.node for view in modules for each in view.processes}

    def cluster_view(self) -> ClusterView:
        """Health, problems, nodes and modules of the cluster."""
        return self.shared("cluster", self._look_at_all)

    def _look_at_all(self) -> ClusterView:
        at_ms = time.time_ns() // 1_000_000
        conductor, trouble = None, ""
        problems: tuple[Problem, ...] = ()
        try:
            conductor = self.cluster.find_conductor()
            if conductor is None:
                trouble = "no conductor is active; start one with 'stretto conductor', or wait a moment"
            else:
                self._plan = _Plan(self.ask(control.Nodes()), self.ask(control.Modules()), at_ms)
                self._modules = self._plan.modules
                self._remember(self._plan.modules)
        except StrettoError as error:
            trouble = str(error)
        plan = self._plan
        try:
            groups = self._all_groups(plan)
        except RetriableError as error:
            health, sentence = Health.UNKNOWN, str(error)
            serving = serving_unknown(plan.modules)
        else:
            # What a conductor told of nodes and modules earlier is shown, and judged no more.
            nodes, modules = ((), ()) if trouble else (plan.nodes, plan.modules)
            problems = problems_of(nodes, groups, modules, self._parked())
            if trouble:
                problems = _with_trouble(problems, trouble)
            health, sentence = sentence_of(problems, plan.nodes, plan.modules)
            serving = serving_of(plan.modules, groups)
        return ClusterView(
            health=health,
            sentence=sentence,
            problems=problems[:PROBLEMS_MAX],
            conductor=conductor,
            nodes=plan.nodes,
            modules=plan.modules,
            serving=tuple(serving),
            planned_at_ms=plan.at_ms,
            at_ms=at_ms,
        )

    def _all_groups(self, plan: _Plan) -> list[GroupStatus]:
        """The groups of all known modules. A module that is being made or destroyed may have none."""
        planned = {view.module for view in plan.modules}
        known = (
            {view.key.module for view in self.metadata().groups} if planned or plan.at_ms is None else set()
        )
        found = []
        for module in sorted(known & planned if plan.at_ms is not None else known):
            try:
                found += self.groups(module)
            except UsageError:
                continue
        return found

    def story(self, status: GroupStatus) -> Story:
        """The story of a group's replicas, by time: what is remembered here, and what they report now."""
        told = self._of_replicas(status, control.Story(group=status.group))
        lines = [(worker, line) for worker, story in told.items() for line in story]
        known = {(worker, msgspec.json.encode(line)): line for worker, line in lines}
        for worker, line in self._remembered(status.group):
            known.setdefault((worker, msgspec.json.encode(line)), line)
        found = [(worker, line) for (worker, _), line in known.items()]
        return sorted(found, key=lambda each: each[1].at_ms)

    def epochs(self, status: GroupStatus) -> tuple[control.EpochView, ...]:
        """The epochs in the log of a group's leader; without a leader, in the log that goes furthest."""
        told = self._of_replicas(status, control.Epochs(group=status.group))
        if status.leader in told:
            return told[status.leader]
        return max(told.values(), key=lambda each: each[-1].epoch if each else 0, default=())

    def _of_replicas(
        self, status: GroupStatus, call: control.Call[control.Result]
    ) -> dict[WorkerId, control.Result]:
        """The answers of a group's replicas to a call, by worker, of those that answer."""
        addresses = self.metadata().addresses
        found = {}
        for replica in status.replicas:
            if replica.worker in addresses:
                with suppress(StrettoError):
                    found[replica.worker] = self.cluster.ask_worker(addresses[replica.worker], call)
        return found


def _with_trouble(problems: tuple[Problem, ...], trouble: str) -> tuple[Problem, ...]:
    """The problems and, after what is not served, that there is no conductor: groups serve without one."""
    mine = Problem(health=Health.DEGRADED, sentence=f"nothing is planned or changed: {trouble}")
    worse = [each for each in problems if each.health is not Health.DEGRADED]
    return (*worse, mine, *problems[len(worse) :])
