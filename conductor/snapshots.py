"""The register of snapshots: which there are of which module, and where. What they hold is never here.

Who makes a snapshot notes it first, so that no other takes its name, and again when it is whole. One whose
maker died stays noted as being created until somebody deletes it.
"""

from __future__ import annotations

import time

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from stretto.conductor.operations import Operations
from stretto.conductor.view import Module, named
from stretto.control import SnapshotView
from stretto.errors import RetriableError, UsageError
from stretto.specs.modules import ModuleState
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import SnapshotRecord, decode, encode

FROM = (ModuleState.RUNNING, ModuleState.LEADERSHIP_BALANCING, ModuleState.PAUSED, ModuleState.SCALING)


class SnapshotRegister:
    """The register of snapshots in the metastore, kept by the active conductor."""

    def __init__(self, client: KazooClient, paths: Paths, operations: Operations) -> None:
        self._client = client
        self._paths = paths
        self._operations = operations

    def all_of(self, module: str | None) -> tuple[SnapshotView, ...]:
        """The snapshots of a module, or of all modules for None, oldest first."""
        modules = self._children(self._paths.snapshots) if module is None else [module]
        found = []
        for each in modules:
            for name in self._children(self._paths.snapshots_of(each)):
                record = self._read(each, name)
                if record is not None:
                    found.append(_view(each, name, record[0]))
        return tuple(sorted(found, key=lambda view: (view.at_ms, view.module, view.name)))

    def begin(self, module: Module, name: str, folder: str) -> None:
        """Note a snapshot as being created; raises UsageError if there is one of that name."""
        if module.spec.state not in FROM:
            raise RetriableError(f"module {module.name} is {module.spec.state}; wait until it is running")
        record = SnapshotRecord(
            folder=folder, state="creating", at_ms=time.time_ns() // 1_000_000, tasks=module.spec.tasks
        )
        path = self._paths.snapshot(module.name, name)
        try:
            self._client.create(path, encode(record), makepath=True)
        except NodeExistsError:
            raise UsageError(
                f"there is a snapshot {name} of {module.name} already; choose another --name, or delete that "
                f"one with 'stretto snapshot delete {module.name} {name}'"
            ) from None

    def finish(self, module: str, name: str, size_bytes: int) -> None:
        """Note that a snapshot is complete."""
        found = self._read(module, name)
        if found is None:
            raise RetriableError(f"somebody has deleted snapshot {name} of {module} while it was made")
        record, version = found
        whole = msgspec.structs.replace(record, state="complete", size_bytes=size_bytes)
        try:
            self._client.set(self._paths.snapshot(module, name), encode(whole), version)
        except (BadVersionError, NoNodeError):
            raise RetriableError(f"snapshot {name} of {module} changed meanwhile; try again") from None
        self._operations.note(_creation(name, record), module)

    def forget(self, module: str, name: str, failed: str = "") -> None:
        """Strike a snapshot off the list: it was deleted, or ``failed`` says why it could not be made."""
        known = self._children(self._paths.snapshots_of(module))
        named(f"snapshot of {module}", name, known)
        found = self._read(module, name) if failed else None
        try:
            self._client.delete(self._paths.snapshot(module, name))
        except NoNodeError:
            return
        if found is not None:
            self._operations.note(_creation(name, found[0]), module, f"failed: {failed}")
        else:
            self._operations.note(f"snapshot delete {name}", module)

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self._client.get_children(path))
        except NoNodeError:
            return []

    def _read(self, module: str, name: str) -> tuple[SnapshotRecord, int] | None:
        path = self._paths.snapshot(module, name)
        try:
            data, stat = self._client.get(path)
        except NoNodeError:
            return None
        return decode(data, SnapshotRecord, path), stat.version


def _creation(name: str, record: SnapshotRecord) -> str:
    return f"snapshot create {name} in {record.folder}"


def _view(module: str, name: str, record: SnapshotRecord) -> SnapshotView:
    return SnapshotView(
        module=module,
        name=name,
        folder=record.folder,
        state=record.state,
        at_ms=record.at_ms,
        tasks=record.tasks,
        size_bytes=record.size_bytes,
    )
