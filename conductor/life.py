"""A module's life in the metastore: launched, running, paused, updated, destroyed.

Every step is either one transaction or can be repeated: a conductor that dies half-way leaves what the next
one finds and carries on from.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from stretto.conductor.operations import Operations
from stretto.conductor.planning.assignment import assign
from stretto.conductor.planning.compatibility import writers_of
from stretto.conductor.updating import Updating
from stretto.conductor.view import Module, View
from stretto.control import ModuleManifest, OptionsAt
from stretto.errors import RetriableError, UsageError
from stretto.options import Level, parse
from stretto.replog.core.record import GroupRecord, Member
from stretto.specs.modules import ModuleSpec, ModuleState, RestoredFrom
from stretto.vocabulary.groups import GroupKey
from stretto.zk.creation import first_record, next_generation
from stretto.zk.watches.options import begin_module, forget_module
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import DestroyedModules, decode, encode

DESTROYED_MAX = 1_000
"""Number of destroyed modules that are remembered for nodes that were away: some 50 KB."""
SETTLED = (ModuleState.RUNNING, ModuleState.LEADERSHIP_BALANCING)
"""States from which a module can be paused."""


class Life:
    """Takes modules through their states, for the active conductor."""

    def __init__(self, client: KazooClient, paths: Paths, operations: Operations) -> None:
        self._client = client
        self._paths = paths
        self._operations = operations
        self._updating = Updating(client, paths, operations)

    def update(
        self, module: Module, *, artifact: str, manifest: ModuleManifest, delete: tuple[str, ...]
    ) -> None:
        """Begin the update of a module to new code."""
        self._updating.begin(module, artifact=artifact, manifest=manifest, delete=delete)

    def launch(
        self,
        view: View,
        module: str,
        *,
        artifact: str,
        manifest: ModuleManifest,
        tasks: int,
        threads: int,
        workers: int,
        factor: int,
        options: Mapping[str, Any],
        object_options: Sequence[OptionsAt] = (),
        restored: RestoredFrom | None = None,
        version: int = 1,
        deleted: Mapping[str, int] | None = None,
        writers: Mapping[str, str] | None = None,
        origin: str = "",
    ) -> None:
        """Create a module in the metastore: from here on supervisors start its workers."""
        if module in view.modules:
            raise UsageError(
                f"there is a module {module} already; choose another name, or destroy that one first"
            )
        levels = {Level.of(module): options}
        levels |= {each.level_of(module): each.values for each in object_options}
        for level, values in levels.items():
            for name, value in values.items():
                parse(name, value, level)
        # Before the number is drawn: who destroys a namesake meanwhile makes this launch fail.
        destroyed, destroyed_version = self._destroyed()
        generation = next_generation(self._client, self._paths)
        if destroyed.has(module, generation):
            raise RetriableError(f"module {module} was destroyed just now; try again")
        assignment = assign(
            module,
            generation=generation,
            tasks=tasks,
            threads=threads,
            workers=workers,
            factor=factor,
            processes=view.processes(),
        )
        spec = ModuleSpec(
            artifact=artifact,
            tasks=tasks,
            threads=threads,
            workers=workers,
            replication_factor=factor,
            state=ModuleState.LAUNCHING,
            entry=manifest.entry,
            depots=manifest.depots,
            pstates=manifest.pstates,
            topologies=manifest.topologies,
            queries=manifest.queries,
            origin=origin or secrets.token_hex(8),
            version=version,
            deleted=dict(deleted or {}),
            writers=writers_of(manifest, writers or {}),
            restored=restored,
        )
        groups = self._paths.groups(module, assignment.generation)
        change = self._client.transaction()
        change.create(self._paths.module(module))
        change.create(self._paths.spec(module), encode(spec))
        change.create(groups.rpartition("/")[0])
        change.create(groups)
        change.create(self._paths.assignment(module), encode(assignment))
        change.create(self._paths.remains(module))
        for worker in assignment.nodes:
            change.create(self._paths.remains_of(module, worker))
        begin_module(change, self._client, self._paths, module, levels)
        change.check(self._paths.destroyed, destroyed_version)
        results = change.commit()
        if isinstance(results[0], NodeExistsError):
            raise UsageError(f"there is a module {module} already; choose another name")
        for result in results:
            if isinstance(result, Exception):
                raise RetriableError(f"module {module} could not be launched ({result!r}); try again")
        begun = "launch" if restored is None else f"restore from {restored.folder}"
        self._operations.note(
            f"{begun} with {tasks} tasks, {threads} threads, {workers} workers, replication factor {factor}",
            module,
        )

    def advance(self, view: View, module: Module) -> None:
        """Take the next step of a module's life, if it is time for one."""
        match module.spec.state:
            case ModuleState.DESTROYING:
                self._finish_destruction(view, module)
            case ModuleState.LAUNCHING:
                self._create_records(view, module)
                if all(view.is_led(group) for group in module.groups) and self.enter(
                    module, ModuleState.RUNNING
                ):
                    self._operations.note("launched: every task group has its leader", module.name)
            case ModuleState.UPDATING:
                self._updating.advance(view, module)
            case ModuleState.RUNNING | ModuleState.PAUSED:
                self._updating.forget_deleted(view, module)
            case _:
                return

    def enter(self, module: Module, state: ModuleState) -> bool:
        """Set the state of a module; False if somebody else changed it meanwhile.

        What it was restored from matters no more: every replica of the first hour has it, and a later one
        takes what the leader has.
        """
        spec = msgspec.structs.replace(module.spec, state=state, restored=None)
        try:
            self._client.set(self._paths.spec(module.name), encode(spec), module.spec_version)
        except (BadVersionError, NoNodeError):
            return False
        return True

    def pause(self, module: Module) -> None:
        """Pause a module. Workers see it by their watch, or before they register; each reports it."""
        if module.spec.is_paused:
            return
        if module.spec.state not in SETTLED:
            raise RetriableError(f"module {module.name} is {module.spec.state}; wait until it is running")
        self._must_enter(module, ModuleState.PAUSED)
        self._operations.note("pause", module.name)

    def resume(self, module: Module) -> None:
        if module.spec.state in SETTLED:
            return
        if module.spec.state is not ModuleState.PAUSED:
            raise RetriableError(f"module {module.name} is {module.spec.state}; wait until that is done")
        self._must_enter(module, ModuleState.RUNNING)
        self._operations.note("resume", module.name)

    def _must_enter(self, module: Module, state: ModuleState) -> None:
        if not self.enter(module, state):
            raise RetriableError(f"module {module.name} changed meanwhile; try again")

    def _create_records(self, view: View, module: Module) -> None:
        """Create the record of each group whose replicas have all registered their storage ids.

        Only while a module is launched: then replicas are empty, and equal. A record that is missing later
        was lost, and nobody but its members can know which of them had what.
        """
        wanted: dict[GroupKey, GroupRecord] = {}
        for group in module.groups:
            if group.record is not None:
                continue
            members = []
            for worker in group.plan.replicas:
                registration = view.workers.get(worker)
                storage = registration.storage_of(group.plan.key) if registration is not None else None
                if storage is not None:
                    members.append(Member(worker, storage))
            if len(members) == len(group.plan.replicas):
                wanted[group.plan.key] = first_record(group.plan, members)
        created = [
            self._client.create_async(self._paths.group(key), encode(record))
            for key, record in wanted.items()
        ]
        for answer in created:
            with contextlib.suppress(NodeExistsError, NoNodeError):
                answer.get()

    def destroy(self, module: Module) -> None:
        """Begin to destroy a module: supervisors stop its workers and delete their data."""
        if module.spec.state is not ModuleState.DESTROYING:
            self._must_enter(module, ModuleState.DESTROYING)
        self._operations.note("destroy", module.name)

    def _finish_destruction(self, view: View, module: Module) -> None:
        """Delete a module from the metastore once no node that is there has a worker or data of it.

        A node that is away deletes its files when it returns: it reads that they are to go.
        """
        nodes = module.assignment.homes
        here = {worker for worker in module.remains if nodes.get(worker) in view.nodes}
        if here or any(worker in view.workers for worker in nodes):
            return
        for worker in nodes:
            try:
                self._client.delete(self._paths.worker(worker))
            except NoNodeError:
                continue
            except NotEmptyError:
                # It has registered again meanwhile, and nobody has proven it dead.
                return
        away = sorted({nodes[worker] for worker in module.remains if worker in nodes})
        # Before what tells who was away goes: whoever goes on from here need not know.
        if away and not self._remember(module):
            return
        forget_module(self._client, self._paths, module.name)
        for below in (
            f"{self._paths.module(module.name)}/groups",
            self._paths.remains(module.name),
            self._paths.trials(module.name),
            self._paths.reads_of(module.name),
        ):
            with contextlib.suppress(NoNodeError):
                self._client.delete(below, recursive=True)
        # Together, and last: they are what says that the rest is to go.
        change = self._client.transaction()
        change.delete(self._paths.spec(module.name))
        change.delete(self._paths.assignment(module.name))
        change.delete(self._paths.module(module.name))
        if any(isinstance(result, Exception) for result in change.commit()):
            return
        left = f"nodes {', '.join(away)} were away and delete its files when they return"
        self._operations.note("destroyed", module.name, f"done; {left}" if away else "done")

    def _remember(self, module: Module) -> bool:
        """Note a destroyed module, so that nodes which were away know what they may delete.

        False if it is to be tried again.
        """
        destroyed, version = self._destroyed()
        following = module.assignment.next
        last = max(module.assignment.generation, following.generation if following is not None else 0)
        after = destroyed.adding(module.name, last, DESTROYED_MAX)
        try:
            self._client.set(self._paths.destroyed, encode(after), version)
        except BadVersionError:
            return False
        return True

    def _destroyed(self) -> tuple[DestroyedModules, int]:
        """The destroyed modules that are remembered, with the version of their znode."""
        path = self._paths.destroyed
        self._client.ensure_path(path)
        data, stat = self._client.get(path)
        return (decode(data, DestroyedModules, path) if data else DestroyedModules()), stat.version
