"""What a worker says of itself in the metastore, and when."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from stretto.replog.core import events
from stretto.specs.assignments import GroupPlan
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, TaskId, WorkerId
from stretto.worker.hosting.replicas import REOPEN_MS, Replicas
from stretto.worker.process import Worker


def test_a_registration_is_written_while_replicas_come_and_go() -> None:
    """The metastore's threads ask for it when they like; the loop opens and closes replicas meanwhile."""
    storages: dict[GroupKey, Any] = {}

    class Storage:
        @property
        def storage_id(self) -> StorageId:
            storages[GroupKey("m", 1, len(storages))] = Storage()
            return StorageId("disk")

    storages[GroupKey("m", 1, 0)] = Storage()
    storages[GroupKey("m", 1, 1)] = Storage()
    worker = SimpleNamespace(
        worker=WorkerId("w0"),
        config=SimpleNamespace(node="n0", advertise=None, launch=""),
        transport=SimpleNamespace(address="127.0.0.1:1"),
        regrouping=SimpleNamespace(prepared={}, closed=0),
        retention=SimpleNamespace(dropped=0),
        is_paused=False,
        _artifact="",
        loop=SimpleNamespace(now=0),
    )
    worker.config.plans = ()
    worker.replicas = Replicas(cast(Any, worker))
    worker.replicas._storages = storages
    registration = Worker._registration(cast(Any, worker), Incarnation("i"))
    assert list(registration.members) == ["m/1/0", "m/1/1"]


def test_a_replica_that_stops_ends_the_leases_of_its_neighbours_before_others_may_lead() -> None:
    stopped, neighbour = MagicMock(), MagicMock()
    stopped.key, neighbour.key = GroupKey("m", 1, 0), GroupKey("m", 1, 1)
    worker = MagicMock()
    worker.groups = {stopped.key: stopped, neighbour.key: neighbour}
    worker.config.plans = ()
    worker.incarnation = Incarnation("i")
    worker.lose_session = lambda: Worker.lose_session(worker)
    replicas = Replicas(worker)
    replicas._storages = {stopped.key: MagicMock(), neighbour.key: MagicMock()}
    replicas._fsync = {stopped.key: MagicMock(), neighbour.key: MagicMock()}
    expired: list[list[Any]] = []
    worker.metastore.reincarnate.side_effect = lambda: expired.append(
        [call.args[0] for call in neighbour.step.call_args_list]
    )
    replicas.stop(stopped, "its disk is broken", renew=False)
    assert expired == [[events.SessionExpired()]]
    assert replicas._barred == {stopped.key: Incarnation("i")}

    worker.lose_session()
    assert len(neighbour.step.call_args_list) == 1, "what the metastore tells of it later is not news"


def test_a_replica_that_stops_is_closed_and_opened_again_beside_the_loop(tmp_path: Path) -> None:
    """Both wait for the disk, again and again while that is full, and a closing for whoever still reads."""
    worker = MagicMock()
    worker.config.plans = ()
    worker.config.data_dir = tmp_path
    worker.config.cluster = "c"
    worker.restored = None
    worker.incarnation = None
    worker.is_stopping = False
    plan = GroupPlan(GroupKey("m", 1, 0), (TaskId(0),), (WorkerId("w0"),))
    worker.hosting.plans = {plan.key: plan}
    worker.commit.when_quiet.side_effect = lambda _, action: action()
    replicas = Replicas(worker)
    group = MagicMock(key=plan.key, plan=plan)
    worker.groups = {plan.key: group}
    replicas._storages = {plan.key: MagicMock()}
    replicas._fsync = {plan.key: MagicMock()}

    replicas.stop(group, "its disk is full", renew=False)
    group.close.assert_not_called()
    assert worker.applier.mock_calls == [], "who reads other groups does not wait for it"
    (work, then), _ = worker.disk.run.call_args
    then(work())
    group.close.assert_called_once_with()
    assert list(tmp_path.iterdir()) == [], "nor does the loop"
    assert replicas.is_busy(plan.key)

    (work, then), _ = worker.disk.run.call_args
    then(OSError(errno.ENOSPC, "it is still full"))
    assert "still full" in replicas.stopped[plan.key].why
    assert not replicas.is_busy(plan.key)
    [(delay_ms, again)] = [call.args for call in worker.loop.call_after.call_args_list]
    assert delay_ms == REOPEN_MS
    again()
    (work, then), _ = worker.disk.run.call_args
    replicas.path(plan).mkdir(parents=True)
    storage = work()
    assert not replicas.has_storage(plan.key)
    then(storage)
    assert replicas.has_storage(plan.key)
    assert not replicas.is_busy(plan.key)
    storage.close()


def test_a_replica_that_stopped_is_not_opened_by_a_worker_that_goes() -> None:
    worker = MagicMock(is_stopping=True)
    worker.config.plans = ()
    plan = GroupPlan(GroupKey("m", 1, 0), (TaskId(0),), (WorkerId("w0"),))
    Replicas(worker)._reopen(plan, "its disk is full", renew=False)
    worker.disk.run.assert_not_called()


@pytest.mark.parametrize("somebody_takes_over", [True, False])
def test_a_leader_that_goes_chooses_whom_it_hands_over_to(somebody_takes_over: bool) -> None:
    leader = SimpleNamespace(epoch=Epoch(3), handover=None)
    stepped: list[Any] = []

    def step(event: Any) -> None:
        stepped.append(event)
        leader.handover = object() if somebody_takes_over else None

    group = SimpleNamespace(leader=leader, step=step)
    assert Worker._resign(cast(Any, None), cast(Any, group)) is somebody_takes_over
    assert stepped == [events.Resign(epoch=Epoch(3), target=None)]


def test_a_hand_over_is_waited_for_and_who_leads_nothing_hands_nothing_over() -> None:
    stepped: list[Any] = []
    worker = cast(Any, SimpleNamespace(worker=WorkerId("w0")))
    under_way = SimpleNamespace(leader=SimpleNamespace(handover=object()), step=stepped.append)
    assert Worker._resign(worker, cast(Any, under_way))
    assert not Worker._resign(worker, cast(Any, SimpleNamespace(leader=None, step=stepped.append)))
    assert stepped == []
