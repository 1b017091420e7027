"""Bringing a module's groups into being: its assignment first, then each group's record.

A record lists the storage ids of its members, so it is written only when every replica of the group has
registered one. Both steps can be repeated by anybody at any time: what exists is left as it is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from stretto.errors import RetriableError, UsageError
from stretto.replog.core.record import GroupRecord, Member
from stretto.specs.assignments import Assignment, GroupPlan, PlacedWorker, plans_of
from stretto.specs.modules import ModuleSpec
from stretto.vocabulary.types import Epoch, Incarnation, WorkerId
from stretto.zk.sessions.credentials import refusal
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import Record, WorkerRegistration, decode, encode

LOOK_SECONDS = 0.2


def evenly(tasks: int, groups: int, workers: list[WorkerId], factor: int, generation: int = 1) -> Assignment:
    """An assignment for workers started by hand, each its own node, which take turns.

    The turns are those of replicas and of preferred leaders.
    """
    if factor > len(workers):
        raise UsageError(f"{factor} replicas need {factor} workers, and there are {len(workers)}")
    if not 1 <= groups <= tasks:
        raise UsageError(f"{tasks} tasks cannot make {groups} groups")
    return Assignment(
        generation=generation,
        tasks=tasks,
        workers=tuple(PlacedWorker(worker, worker) for worker in workers),
        groups=tuple(
            tuple((group + index) % len(workers) for index in range(factor)) for group in range(groups)
        ),
    )


def next_generation(client: KazooClient, paths: Paths) -> int:
    """A number that no grouping of any module ever had."""
    client.ensure_path(paths.generations)
    return int(client.set(paths.generations, b"").version)


def write_assignment(client: KazooClient, paths: Paths, module: str, assignment: Assignment) -> None:
    """Create the assignment of a module; raises UsageError if it has one."""
    try:
        client.create(paths.assignment(module), encode(assignment), makepath=True)
    except NodeExistsError:
        raise UsageError(f"module {module} has an assignment already") from None


def await_module(
    client: KazooClient, paths: Paths, module: str, stop: threading.Event
) -> tuple[Assignment, ModuleSpec | None] | None:
    """The module's assignment, once there is one, and what was launched: None for one that was made by hand.

    None if ``stop`` is set meanwhile. Tries again for as long as ZooKeeper does not answer. Raises UsageError
    if it wants credentials.
    """
    while not stop.is_set():
        changed = threading.Event()
        try:
            found = _read(client, paths.assignment(module), Assignment, changed)
            if found is not None:
                return found, _read(client, paths.spec(module), ModuleSpec, changed)
        except NoAuthError:
            raise UsageError(refusal(paths.assignment(module))) from None
        except (KazooException, KazooTimeoutError):
            stop.wait(LOOK_SECONDS)
            continue
        while not changed.wait(LOOK_SECONDS) and not stop.is_set():
            pass
    return None


def _read(client: KazooClient, path: str, kind: type[Record], changed: threading.Event) -> Record | None:
    """Read a record; None, and ``changed`` is set when it is created, if it is not there.

    Not from a server that has missed the latest change: what a worker has on its disk may be of that.
    """
    client.sync(path)
    if client.exists(path, watch=lambda _: changed.set()) is None:
        return None
    try:
        return decode(client.get(path)[0], kind, path)
    except NoNodeError:
        changed.set()
        return None


def first_record(plan: GroupPlan, members: Iterable[Member]) -> GroupRecord:
    """The record of a group that has had no leader yet."""
    return GroupRecord(
        epoch=Epoch(0),
        leader=None,
        leader_incarnation=None,
        isr=tuple(sorted(members)),
        plan=plan.number,
        factor=len(plan.replicas),
    )


def create_groups(client: KazooClient, paths: Paths, module: str, timeout: float = 30.0) -> None:
    """Write each group's record as soon as all its replicas have registered their storage ids."""
    path = paths.assignment(module)
    assignment = decode(client.get(path)[0], Assignment, path)
    missing = {plan.key: plan for plan in plans_of(module, assignment)}
    deadline = time.monotonic() + timeout
    client.ensure_path(paths.workers)
    while missing:
        changed = threading.Event()
        registered = _registrations(client, paths, changed)
        for key, plan in list(missing.items()):
            if _create(client, paths, plan, registered):
                del missing[key]
        if missing and not changed.wait(deadline - time.monotonic()):
            absent = sorted(
                {worker for plan in missing.values() for worker in plan.replicas} - registered.keys()
            )
            raise RetriableError(f"workers {', '.join(absent)} have not registered; start them")


def _create(
    client: KazooClient, paths: Paths, plan: GroupPlan, registered: dict[WorkerId, WorkerRegistration]
) -> bool:
    members = []
    for worker in plan.replicas:
        registration = registered.get(worker)
        storage = registration.storage_of(plan.key) if registration is not None else None
        if storage is None:
            return False
        members.append(Member(worker, storage))
    record = first_record(plan, members)
    with contextlib.suppress(NodeExistsError):
        client.create(paths.group(plan.key), encode(record), makepath=True)
    return True


def _registrations(
    client: KazooClient, paths: Paths, changed: threading.Event
) -> dict[WorkerId, WorkerRegistration]:
    """The registrations of all workers; ``changed`` is set when they are no longer all, or not right."""

    def watch(_: object) -> None:
        changed.set()

    found: dict[WorkerId, tuple[int, WorkerRegistration]] = {}
    for worker in client.get_children(paths.workers, watch=watch):
        for incarnation in _children(client, paths.worker(WorkerId(worker)), watch):
            path = paths.registration(WorkerId(worker), Incarnation(incarnation))
            try:
                data, stat = client.get(path, watch=watch)
            except NoNodeError:
                continue
            if worker not in found or found[WorkerId(worker)][0] < stat.czxid:
                found[WorkerId(worker)] = (stat.czxid, decode(data, WorkerRegistration, path))
    return {worker: registration for worker, (_, registration) in found.items()}


def _children(client: KazooClient, path: str, watch: Callable[[object], None]) -> list[Any]:
    try:
        return list(client.get_children(path, watch=watch))
    except NoNodeError:
        return []
