"""Where handlers ask: the cluster, with answers shared for a moment, and the history of its measures.

Many pages ask the same again and again. What was looked up less than a second ago is told again, and who asks
while it is being looked up waits for that answer, so that pages cost the cluster the same however many there
are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from stretto import admin
from stretto.client.api import Client
from stretto.client.calls import ask
from stretto.client.cluster import Cluster
from stretto.client.status import GroupStatus, group_statuses
from stretto.errors import RetriableError, StrettoError
from stretto.types import WorkerId
from stretto.ui.charts import Charts, charts_of
from stretto.ui.store import Store, tier_for
from stretto.ui.views import ClusterView, Health, problems_of, sentence_of

FRESH_SECONDS = 0.8
SUPERVISOR_SECONDS = 5.0

T = TypeVar("T")


class Desk:
    """May be used from many threads."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self.cluster = cluster
        self.client = Client(cluster.network)
        self._store = store
        self._answers: dict[Any, tuple[float, Future[Any]]] = {}
        self._lock = threading.Lock()

    def shared(self, key: Any, look: Callable[[], T]) -> T:
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

    def ask(self, call: admin.Call[admin.Result]) -> admin.Result:
        """Of the conductor, to look at something."""
        return self.shared(call, lambda: self.cluster.ask(call))

    def act(self, call: admin.Call[admin.Result]) -> admin.Result:
        """Of the conductor, to change something: what was looked up before is old then."""
        try:
            return self.cluster.ask(call)
        finally:
            with self._lock:
                self._answers = {key: told for key, told in self._answers.items() if not told[1].done()}

    def ask_supervisor(self, node: admin.NodeView, call: admin.Call[admin.Result]) -> admin.Result:
        if node.address is None:
            raise RetriableError(f"the supervisor of node {node.node} is down; start it, or go there to look")
        return ask(self.cluster.network, node.address, call, timeout=SUPERVISOR_SECONDS)

    def groups(self, module: str) -> list[GroupStatus]:
        def look() -> list[GroupStatus]:
            found = group_statuses(self.cluster.network, self.cluster.metadata(), module)
            try:
                [view] = self.ask(admin.Modules(module=module))
            except StrettoError:
                return found
            nodes = {process.worker: process.node for process in view.processes}
            return [status.placed_on(nodes) for status in found]

        return self.shared(("groups", module), look)

    def cluster_view(self) -> ClusterView:
        return self.shared("cluster", self._look_at_all)

    def _look_at_all(self) -> ClusterView:
        at_ms = time.time_ns() // 1_000_000
        try:
            conductor = self.cluster.find_conductor()
            nodes = self.ask(admin.Nodes())
            modules = self.ask(admin.Modules())
        except RetriableError as error:
            return ClusterView(
                health=Health.UNKNOWN,
                sentence=str(error),
                problems=(),
                conductor=None,
                nodes=(),
                modules=(),
                at_ms=at_ms,
            )
        groups = [status for view in modules for status in self._groups_if_any(view)]
        problems = problems_of(nodes, groups, modules)
        health, sentence = sentence_of(problems, nodes, modules)
        return ClusterView(
            health=health,
            sentence=sentence,
            problems=problems,
            conductor=conductor,
            nodes=nodes,
            modules=modules,
            at_ms=at_ms,
        )

    def _groups_if_any(self, view: admin.ModuleView) -> list[GroupStatus]:
        try:
            return self.groups(view.module)
        except StrettoError:
            # A module that is being made or destroyed has none; its own problems say so.
            return []

    def worker_address(self, worker: str) -> str | None:
        return self.shared("metadata", self.cluster.metadata).addresses.get(WorkerId(worker))

    def story(self, module: str, group: int) -> list[tuple[str, admin.StoryLine]]:
        """Of all replicas of a group, by time."""
        [status] = [each for each in self.groups(module) if each.group.group == group]
        lines = []
        for replica in status.replicas:
            address = self.worker_address(replica.worker)
            if address is not None:
                try:
                    told = self.cluster.ask_worker(address, admin.Story(group=status.group))
                except StrettoError:
                    continue
                lines += [(replica.worker, line) for line in told]
        return sorted(lines, key=lambda each: each[1].at_ms)

    def charts(self, *, minutes: int, module: str | None, worker: str | None, group: int | None) -> Charts:
        span_ms = minutes * 60_000
        tier = tier_for(span_ms)
        now_ms = time.time_ns() // 1_000_000
        windows = self._store.between(now_ms - span_ms, now_ms + tier.step_ms, tier.step_ms)
        return charts_of(
            windows,
            lambda window, each: (
                worker in (None, window.worker)
                and module in (None, each.group.module)
                and group in (None, each.group.group)
            ),
            tier.step_ms,
        )
