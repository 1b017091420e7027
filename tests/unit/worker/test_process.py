"""What a worker says of itself in the metastore."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from stretto.types import Incarnation, StorageId, WorkerId
from stretto.worker.process import Worker
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
        _storages=storages,
    )
    registration = Worker._registration(cast(Any, worker), Incarnation("i"))
    assert list(registration.members) == ["m/1/0", "m/1/1"]
