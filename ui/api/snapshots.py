"""Snapshots: what ``stretto snapshot`` does, with the folders as this machine sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from litestar.exceptions import NotFoundException

from stretto import control
from stretto.errors import StrettoError, UsageError
from stretto.snapshot.checking import Verdict, check
from stretto.snapshot.creating import create, default_name
from stretto.snapshot.keeping import delete_files, too_many
from stretto.ui.api.common import delete, get, module_named, post
from stretto.ui.cluster.backend import Backend
from stretto.vocabulary.suggest import did_you_mean


class Creation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Annotated[str, msgspec.Meta(min_length=1)]
    """A folder that all nodes and the machine of the UI share; it is made in ``to/<module>/<name>``."""
    name: str | None = None
    """The time, if none is given."""


class Created(msgspec.Struct, frozen=True):
    folder: str
    tasks: int
    size_bytes: int
    deleted: list[str]
    """Of the module's snapshots, those that were too many."""


@get("/snapshots", summary="The snapshots that the cluster knows of, oldest first")
def list_snapshots(backend: Backend, module: str | None = None) -> tuple[control.SnapshotView, ...]:
    return backend.cluster.ask(control.Snapshots(module=module))


@post("/modules/{module:str}/snapshots", summary="Make a snapshot; answered when it is complete")
def create_snapshot(backend: Backend, module: str, data: Creation) -> Created:
    module_named(backend, module)
    return _create(backend, module, data)


@post(
    "/modules/{module:str}/snapshots/{name:str}/verify",
    status_code=200,
    summary="Read a snapshot again, and tell what is not as it was",
)
def verify_snapshot(backend: Backend, module: str, name: str) -> Verdict:
    return _verify(backend, module, name)


@delete(
    "/modules/{module:str}/snapshots/{name:str}", summary="Delete a snapshot with its files, or forget it"
)
def delete_snapshot(backend: Backend, module: str, name: str, *, forget: bool = False) -> None:
    _delete(backend, _named_snapshot(backend, module, name), forget=forget)


def _create(backend: Backend, module: str, data: Creation) -> Created:
    to = Path(data.to)
    if not to.is_absolute():
        raise UsageError(f"{data.to!r} is relative, and nobody knows to what; name the folder from its root")
    folder, manifest, keep = create(backend.cluster, module, data.name or default_name(), to)
    known = backend.cluster.ask(control.Snapshots(module=module))
    deleted = []
    for each in too_many(known, keep):
        try:
            _delete(backend, each, forget=False)
        except StrettoError:
            # What cannot be deleted from here stays on the list.
            continue
        deleted.append(each.folder)
    return Created(str(folder), len(manifest.tasks), manifest.size_bytes, deleted)


def _verify(backend: Backend, module: str, name: str) -> Verdict:
    return check(Path(_named_snapshot(backend, module, name).folder))


def _delete(backend: Backend, snapshot: control.SnapshotView, *, forget: bool) -> None:
    if not forget:
        delete_files(snapshot)
    backend.act(control.ForgetSnapshot(module=snapshot.module, name=snapshot.name))


def _named_snapshot(backend: Backend, module: str, name: str) -> control.SnapshotView:
    """Also of a module that is gone."""
    known = {each.name: each for each in backend.cluster.ask(control.Snapshots(module=module))}
    if name not in known:
        raise NotFoundException(
            detail=f"there is no snapshot {name} of {module}; {did_you_mean(name, known)}"
        )
    return known[name]


HANDLERS = (
    list_snapshots,
    create_snapshot,
    verify_snapshot,
    delete_snapshot,
)
