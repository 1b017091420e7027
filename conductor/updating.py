"""New code for a module that runs, in two steps, each by one compare-and-set on its spec.

1. *Tried.* The spec says what is to come, and everything goes on as before. The supervisor of every node that
   runs the module fetches the code and imports it in a process of its own, then writes how that went. One
   failure, or silence for too long, and the spec is what it was, with the reason in it.
2. *Switched.* The spec is the new one. Workers take it up where they are, without a restart, and put its
   digest into their registrations; a worker that comes reads it before it registers. There is no way back:
   when all that are registered go by it, the module is what it was before, running or paused.

Objects that go are noted in the spec only then: nobody adds to them any more, so whatever of them is found is
what was there (:mod:`stretto.worker.drops`). Nothing is kept in memory: any conductor goes on.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError

from stretto.conductor.operations import Operations
from stretto.conductor.planning.compatibility import check_update, depots_of, objects, writers_of
from stretto.conductor.view import GroupState, Module, View
from stretto.control import ModuleManifest
from stretto.errors import RetriableError, UsageError
from stretto.options import Level
from stretto.specs.modules import FailedUpdate, ModuleSpec, ModuleState, Update
from stretto.zk.watches.options import forget_level
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import encode

TRIAL_SECONDS = 120.0
"""Time from the beginning of an update until every node has to have tried the code."""

FROM = (ModuleState.RUNNING, ModuleState.LEADERSHIP_BALANCING, ModuleState.PAUSED)


@dataclass(frozen=True, slots=True)
class Trials:
    """What the nodes have said of the code so far."""

    failed: FailedUpdate | None
    waiting: tuple[str, ...]


def trials(view: View, module: Module, update: Update, now_ms: int) -> Trials:
    """What the nodes have said of the code of an update: whether it failed, and which have not said anything.

    Nodes that are away with all their workers are not asked: what they start later, they fetch first.
    """
    nodes = module.assignment.nodes
    concerned = {node for node in nodes.values() if node in view.nodes}
    concerned |= {node for worker, node in nodes.items() if worker in view.workers}
    waiting = []
    for node in sorted(concerned):
        trial = module.trials.get(node)
        if trial is None or trial.id != update.id:
            waiting.append(node)
        elif trial.why:
            return Trials(
                FailedUpdate(
                    version=update.next.version, node=node, why=trial.why, traceback=trial.traceback
                ),
                (),
            )
    if waiting and now_ms - update.began_ms > TRIAL_SECONDS * 1_000:
        why = f"it was not tried there within {TRIAL_SECONDS:.0f} s; see its supervisor's log, or start that"
        return Trials(FailedUpdate(version=update.next.version, node=waiting[0], why=why), ())
    return Trials(None, tuple(waiting))


def going_by_other_code(view: View, module: Module) -> tuple[str, ...]:
    """Registered workers that have not taken up the code of the spec."""
    registered = (view.workers.get(worker) for worker in module.assignment.nodes)
    return tuple(
        each.worker for each in registered if each is not None and each.artifact != module.spec.artifact
    )


def carried_out(view: View, module: Module) -> set[str]:
    """Objects whose deletion is committed in every group: some replica of it has carried it out.

    A worker that is assigned to a group reports nothing of it before it has registered a replica: what it
    says is of those that it had until then.
    """

    def done_in(group: GroupState) -> int:
        registered = (view.workers.get(worker) for worker in group.plan.replicas)
        holding = [each for each in registered if each is not None and each.storage_of(group.plan.key)]
        return max((each.dropped for each in holding), default=0)

    done = min(map(done_in, module.groups), default=0)
    return {name for name, version in module.spec.deleted.items() if version <= done}


class Updating:
    """Takes modules that run to new code, for the active conductor."""

    def __init__(self, client: KazooClient, paths: Paths, operations: Operations) -> None:
        self._client = client
        self._paths = paths
        self._operations = operations

    def begin(
        self, module: Module, *, artifact: str, manifest: ModuleManifest, delete: tuple[str, ...]
    ) -> None:
        """Begin an update; it is refused if the new code cannot go on with what is stored."""
        spec = module.spec
        if spec.state not in FROM:
            raise RetriableError(f"module {module.name} is {spec.state}; wait until it is running")
        if artifact == spec.artifact:
            raise UsageError(f"module {module.name} runs this very code already; change something first")
        check_update(spec, manifest, delete)
        going = spec.deleted.keys() & objects(manifest).keys()
        if going:
            raise RetriableError(
                f"the old data of {', '.join(sorted(going))} is still being deleted; try again in a moment"
            )
        self._client.ensure_path(self._paths.trials(module.name))
        back_to = ModuleState.PAUSED if spec.is_paused else ModuleState.RUNNING
        version = spec.version + 1
        update = Update(
            id=secrets.token_hex(8),
            next=msgspec.structs.replace(
                spec,
                state=back_to,
                version=version,
                failed_update=None,
                artifact=artifact,
                entry=manifest.entry,
                depots=depots_of(spec, manifest, version),
                pstates=manifest.pstates,
                topologies=manifest.topologies,
                queries=manifest.queries,
                writers=writers_of(manifest, writers_of(spec, spec.writers)),
            ),
            delete=delete,
            began_ms=_now_ms(),
        )
        updating = msgspec.structs.replace(
            spec, state=ModuleState.UPDATING, update=update, failed_update=None
        )
        if not self._set(module, updating):
            raise RetriableError(f"module {module.name} changed meanwhile; try again")
        gone = f", deleting {', '.join(delete)}" if delete else ""
        self._operations.note(f"update to version {version}{gone}", module.name)

    def forget_deleted(self, view: View, module: Module) -> None:
        """Drop deleted objects from the spec of a module once they are gone everywhere."""
        gone = carried_out(view, module)
        if gone:
            left = {name: version for name, version in module.spec.deleted.items() if name not in gone}
            self._set(module, msgspec.structs.replace(module.spec, deleted=left))

    def advance(self, view: View, module: Module) -> None:
        """Take the next step of an update: switch to the new code, roll back, or finish."""
        spec, update = module.spec, module.spec.update
        if update is None:
            self._set(module, msgspec.structs.replace(spec, state=ModuleState.RUNNING))
        elif not update.is_switched:
            found = trials(view, module, update, _now_ms())
            if found.failed is not None:
                self._roll_back(module, update, found.failed)
            elif not found.waiting:
                switched = msgspec.structs.replace(update, is_switched=True)
                self._set(
                    module,
                    msgspec.structs.replace(update.next, state=ModuleState.UPDATING, update=switched),
                )
        elif not going_by_other_code(view, module):
            self._finish(module, update)

    def _roll_back(self, module: Module, update: Update, failed: FailedUpdate) -> None:
        before = msgspec.structs.replace(
            module.spec, state=update.next.state, update=None, failed_update=failed
        )
        if self._set(module, before):
            what = f"update to version {failed.version} rolled back"
            self._operations.note(what, module.name, f"node {failed.node}: {failed.why}")
            self._forget_trials(module)

    def _finish(self, module: Module, update: Update) -> None:
        version = module.spec.version
        deleted = module.spec.deleted | dict.fromkeys(update.delete, version)
        for name in update.delete:
            for level in (
                Level.of(module.name, depot=name),
                Level.of(module.name, pstate=name),
                Level.of(module.name, topology=name),
            ):
                forget_level(self._client, self._paths, level)
        finished = msgspec.structs.replace(module.spec, state=update.next.state, update=None, deleted=deleted)
        if self._set(module, finished):
            self._operations.note(f"updated to version {version}", module.name)
            self._forget_trials(module)

    def _forget_trials(self, module: Module) -> None:
        for node in module.trials:
            with contextlib.suppress(NoNodeError):
                self._client.delete(self._paths.trial(module.name, node))

    def _set(self, module: Module, spec: ModuleSpec) -> bool:
        """Write the spec of a module; False if somebody else changed it meanwhile."""
        try:
            self._client.set(self._paths.spec(module.name), encode(spec), module.spec_version)
        except (BadVersionError, NoNodeError):
            return False
        return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
