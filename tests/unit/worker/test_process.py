"""What a worker says of itself in the metastore, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

from stretto.replog.core import events
from stretto.types import Incarnation, StorageId, WorkerId
from stretto.worker.process import Worker
from stretto.worker.replicas import Replicas
from stretto.zk.paths import GroupKey


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
