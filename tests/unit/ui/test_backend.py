"""What the pages are told while parts of the cluster are gone."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stretto import control
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.status import GroupState, GroupStatus
from stretto.errors import RetriableError
from stretto.telemetry.windows import StoryLine
from stretto.ui.cluster import backend as backends
from stretto.ui.cluster.backend import Backend
from stretto.ui.cluster.views import Health
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId
from stretto.wire import messages as wire
from tests.unit.ui.test_metrics import record
from tests.unit.ui.test_views import module, node, status

SILENCE = "nothing answers"
REMEMBERED = [(WorkerId("gone"), StoryLine(at_ms=1, event="leads", fields={"epoch": 1}))]


class FakeCluster:
    """With switches for what is gone."""

    network: Any = None
    conductor: str | None = "c:1"
    conductor_answers = True
    workers_answer = True

    def find_conductor(self) -> str | None:
        return self.conductor

    def ask(self, call: control.Call[Any]) -> Any:
        if not self.conductor_answers:
            raise RetriableError("the conductor has no connection to ZooKeeper")
        match call:
            case control.Nodes():
                return (node(),)
            case _:
                return (module(),)

    def ask_worker(self, _: str, call: control.Call[Any]) -> Any:
        assert isinstance(call, control.Story)
        return (StoryLine(at_ms=2, event="leads", fields={"epoch": 2}),)

    def metadata(self) -> wire.Metadata:
        if not self.workers_answer:
            raise RetriableError(SILENCE)
        return wire.Metadata(1, {WorkerId("w0"): "a:1"}, (record(),))


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[GroupStatus]:
    found = [status(group=0)]
    monkeypatch.setattr(backends, "group_statuses", lambda *_: found)
    monkeypatch.setattr(backends, "FRESH_SECONDS", 0)
    monkeypatch.setattr(backends, "Client", lambda _: None)
    return found


@pytest.fixture
def backend(cluster: FakeCluster, groups: list[GroupStatus]) -> Backend:
    return Backend(cast(Cluster, cluster), dict, lambda _: list(REMEMBERED))


def test_all_is_well(backend: Backend) -> None:
    view = backend.cluster_view()
    assert (view.health, view.conductor) == (Health.GOOD, "c:1")
    assert view.planned_at_ms == view.at_ms


def test_without_a_conductor_groups_are_judged_and_what_it_told_is_kept(
    backend: Backend, cluster: FakeCluster
) -> None:
    before = backend.cluster_view()
    cluster.conductor = None
    view = backend.cluster_view()
    assert view.health is Health.DEGRADED
    assert view.sentence.startswith("nothing is planned or changed: no conductor is active; start one")
    assert (view.nodes, view.modules) == (before.nodes, before.modules)
    assert view.planned_at_ms == before.planned_at_ms


def test_if_zookeeper_is_lost_what_is_not_served_comes_first(
    backend: Backend, cluster: FakeCluster, groups: list[GroupStatus]
) -> None:
    backend.cluster_view()
    cluster.conductor_answers = cluster.workers_answer = False
    groups[:] = [status(GroupState.NO_LEASE, group=0, why="worker w0: ZooKeeper does not answer it")]
    view = backend.cluster_view()
    assert view.health is Health.BAD
    assert view.sentence.startswith("group 0 of M: no lease: worker w0: ZooKeeper does not answer it")
    assert "no connection to ZooKeeper" in view.problems[1].sentence


def test_if_nobody_ever_answered_nothing_is_known(backend: Backend, cluster: FakeCluster) -> None:
    cluster.conductor = None
    cluster.workers_answer = False
    view = backend.cluster_view()
    assert (view.health, view.sentence, view.planned_at_ms) == (Health.UNKNOWN, SILENCE, None)


def test_without_a_conductor_from_the_beginning_groups_are_known_all_the_same(
    backend: Backend, cluster: FakeCluster, groups: list[GroupStatus]
) -> None:
    cluster.conductor = None
    groups[:] = [status(GroupState.OFFLINE, group=0)]
    assert backend.cluster_view().health is Health.BAD
    assert backend.groups("M")[0].group == GroupKey("M", 1, 0)


def test_the_story_of_a_group_has_what_replicas_told_that_are_gone_and_nothing_twice(
    backend: Backend, groups: list[GroupStatus]
) -> None:
    live = (WorkerId("w0"), StoryLine(at_ms=2, event="leads", fields={"epoch": 2}))
    REMEMBERED.append(live)
    try:
        assert backend.story(groups[0]) == [REMEMBERED[0], live]
    finally:
        REMEMBERED.remove(live)


def test_modules_are_known_while_there_is_no_conductor_as_it_told_last(
    backend: Backend, cluster: FakeCluster
) -> None:
    cluster.conductor_answers = False
    with pytest.raises(RetriableError):
        backend.modules()
    cluster.conductor_answers = True
    before = backend.modules()
    cluster.conductor_answers = False
    assert backend.modules() == before
