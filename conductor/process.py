"""The conductor: plans, and lets the metastore carry the plans to those who act.

Any number may run; the one whose registration is at ``conductor/leader`` is active, the others stand by.
Only what people ask of a conductor waits for one: task groups elect their leaders and serve without it.

Each turn reads what changed in the metastore and takes whatever steps are due, by compare-and-set. There is
nothing else to remember, so a new active conductor begins with an ordinary turn.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import assert_never

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.handlers.threading import KazooTimeoutError

from stretto import control
from stretto.conductor import answers, view
from stretto.conductor.balancing import Balancing
from stretto.conductor.life import Life
from stretto.conductor.operations import Operations
from stretto.conductor.planning.regrouping import possible_threads
from stretto.conductor.scaling import Scaling
from stretto.conductor.snapshots import SnapshotRegister
from stretto.conductor.view import View, named
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.network.asking import ask
from stretto.network.endpoint import advertised
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.network.routing import Network
from stretto.network.service import Service
from stretto.options import Level, OptionSet
from stretto.process import log_pages
from stretto.process.folder_lock import boot_id
from stretto.process.logs import RECENT
from stretto.vocabulary.types import Incarnation
from stretto.wire import messages as wire
from stretto.zk.sessions.client import await_connection, close, new_client
from stretto.zk.sessions.credentials import Credentials, refusal
from stretto.zk.sessions.outcomes import LOST_ANSWER
from stretto.zk.watches.options import read_all, set_option, unset_option
from stretto.zk.watches.tree import WatchedTree, Znode
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import ConductorRegistration, DrainedNodes, ZnodeDamaged, encode

log = structlog.get_logger()

IDLE_SECONDS = 1.0
"""Longest time between two turns, for what only time brings about."""
RETRY_SECONDS = 0.5
ARTIFACT_SECONDS = 8.0
"""How long a supervisor may take to say whether it has an artifact; a silent one counts as without it.

As soon as enough have it, no other is waited for.
"""
ARTIFACT_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorConfig:
    """Everything that a conductor is started with."""

    cluster: str
    zookeeper: str
    address: str = "127.0.0.1:0"
    advertise: str | None = None
    """Address at which others reach the conductor, if that is not where it listens."""
    root: str = "/stretto"
    key: ClusterKey | None = None
    session_timeout_ms: int = 6_000
    credentials: Credentials | None = None
    """Credentials for the metastore."""


class Conductor:
    """The process of a conductor: it takes turns, and answers calls.

    :meth:`run` is the thread that takes turns. Calls come on others; one lock keeps them apart.
    """

    def __init__(self, config: ConductorConfig) -> None:
        self._config = config
        self._paths = Paths(config.root)
        self._client: KazooClient = new_client(
            config.zookeeper, config.session_timeout_ms, config.credentials
        )
        self._loop = Loop()
        self._service = Service(
            self._loop,
            address=config.address,
            cluster=config.cluster,
            name="the conductor",
            key=config.key,
            handle=self._handle,
            metadata=self._metadata,
        )
        self.address = advertised(self._service.address, config.advertise)
        self._network = Network([self.address], config.key)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._failure: BaseException | None = None
        self._acting = threading.Lock()
        self._mirror: WatchedTree | None = None
        self._view = View()
        #: Whether the tree was read at least once.
        self._has_looked = False
        self._is_first_turn = True
        self._was_active = False
        self._known_options = OptionSet()
        self._options_version: int | None = None
        self._operations = Operations(self._client, self._paths)
        self._snapshots = SnapshotRegister(self._client, self._paths, self._operations)
        self._life = Life(self._client, self._paths, self._operations)
        self._scaling = Scaling(self._client, self._paths, self._operations)
        self._balancing = Balancing(self._client, self._paths, self._operations, self._life)

    def handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())

    def stop(self) -> None:
        """Let :meth:`run` come to its end; may be called from any thread."""
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Take turns until :meth:`stop`."""
        serving = threading.Thread(target=self._serve, name="conductor-loop", daemon=True)
        serving.start()
        log.info("conductor_started", address=self.address, zookeeper=self._config.zookeeper)
        try:
            if await_connection(self._client, self._config.zookeeper, self._stop):
                self._client.add_listener(self._state_changed)
                self._take_turns()
        finally:
            close(self._client)
            self._loop.call_soon(self._loop.stop)
            serving.join()
            self._service.close()
            self._network.close()
            self._loop.close()
            log.info("conductor_stopped", address=self.address)
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        """Run the loop that answers calls; if it fails the conductor ends, for a silent one must not lead."""
        try:
            self._loop.run()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that ends the process
            self._failure = error
            self.stop()

    def _state_changed(self, _: str) -> None:
        self._wake.set()

    def _take_turns(self) -> None:
        problem = ""
        while not self._stop.is_set():
            self._wake.clear()
            try:
                with self._acting:
                    self._turn()
                problem = ""
                self._wake.wait(IDLE_SECONDS)
            except (KazooException, KazooTimeoutError) as error:
                if isinstance(error, NoAuthError) and not self._has_looked:
                    raise UsageError(refusal(self._config.root)) from None
                if problem != repr(error):
                    problem = repr(error)
                    log.warning("metastore_refused", error=problem, advice="we keep trying")
                self._stop.wait(RETRY_SECONDS)

    # Turns. All of this holds the lock.

    def _turn(self) -> None:
        self._look()
        if self._is_first_turn:
            self._is_first_turn = False
            self._replace_predecessor()
        if self._view.conductor is None:
            self._stand()
        if not self._is_active():
            self._was_active = False
            return
        if not self._was_active:
            self._was_active = True
            log.info("conductor_active", address=self.address)
        for module in self._view.modules.values():
            self._life.advance(self._view, module)
            self._scaling.advance(self._view, module)
        self._balancing.advance(self._view, self._options(), time.monotonic())

    def _look(self) -> None:
        if not self._client.connected:
            # What was seen last may be old by now, and nobody would tell.
            raise ConnectionLoss
        if self._mirror is None:
            for path in (*self._paths.mirrored, self._paths.options):
                self._client.ensure_path(path)
            self._mirror = WatchedTree(self._client, self._paths, self._wake.set)
        if self._mirror.refresh():
            self._view = view.read(self._mirror, self._paths)
            for problem in self._view.problems:
                log.error("znode_damaged", problem=problem)
        self._has_looked = True

    def _replace_predecessor(self) -> None:
        """Delete the registration of a dead conductor at this address, so that it need not be awaited.

        Where we listen nobody else does: the process that registered this address is dead.
        """
        active, znode = self._view.conductor, self._znode(self._paths.conductor_leader)
        if (
            active is not None
            and znode is not None
            and (active.host, active.address) == (_host(), self.address)
        ):
            with contextlib.suppress(NoNodeError, BadVersionError):
                self._client.delete(self._paths.conductor_leader, znode.version)
            self._look()

    def _znode(self, path: str) -> Znode | None:
        return self._mirror.data.get(path) if self._mirror is not None else None

    def _stand(self) -> None:
        incarnation = Incarnation(secrets.token_hex(8))
        registration = ConductorRegistration(incarnation=incarnation, address=self.address, host=_host())
        with contextlib.suppress(NodeExistsError):
            self._client.create(self._paths.conductor_leader, encode(registration), ephemeral=True)
        self._look()

    def _is_active(self) -> bool:
        """Whether the registration of the active conductor is our session's.

        It is compared by session: kazoo may have sent it under a later one than we meant.
        """
        znode, session = self._znode(self._paths.conductor_leader), self._client.client_id
        return znode is not None and session is not None and znode.owner == session[0]

    def _options(self) -> OptionSet:
        """The options, read again if they changed: every change is a write to the znode above them all."""
        above = self._znode(self._paths.options)
        version = above.version if above is not None else -1
        if self._options_version != version:
            self._options_version = version
            try:
                self._known_options = read_all(self._client, self._paths)
            except ZnodeDamaged as damage:
                log.error("options_not_read", problem=str(damage), advice="what was known before holds")
        return self._known_options

    # Calls.

    def _metadata(self, request: int, module: str | None) -> wire.ToClient:
        if not self._has_looked:
            why = "this conductor has not reached ZooKeeper yet; try again"
            return wire.Failed(request, why, wire.Fault.PASSING)
        return answers.metadata(self._view, request, module)

    def _handle(self, call: control.AnyCall, _: list[memoryview]) -> object:
        if not isinstance(call, control.ConductorCall):
            raise StrettoError("a conductor does not answer this; ask a supervisor or a worker")
        if isinstance(call, control.FindConductor):
            active = self._view.conductor
            return active.address if active is not None else None
        if isinstance(call, control.Log):
            return log_pages.of_memory(RECENT, call)
        with self._acting:
            has_begun = False
            try:
                self._look()
                if not self._is_active():
                    raise RetriableError("this conductor stands by for another; ask that one")
                has_begun = True
                return self._answer(call)
            except (KazooException, KazooTimeoutError) as error:
                if has_begun and isinstance(error, (*LOST_ANSWER, KazooTimeoutError)):
                    raise RetriableError(
                        f"ZooKeeper's answer was lost ({error!r}): what was asked for may be done or not; "
                        "look before you ask again"
                    ) from error
                if not self._client.connected:
                    raise RetriableError(
                        f"the conductor cannot reach ZooKeeper at {self._config.zookeeper}; "
                        "start it, or wait a moment and try again"
                    ) from error
                raise RetriableError(f"ZooKeeper did not carry it through ({error!r}); try again") from error
            finally:
                self._wake.set()

    def _answer(self, call: control.ConductorQuestion | control.ConductorOrder) -> object:
        now = self._view
        match call:
            case control.Modules(module=module):
                chosen = now.modules.values() if module is None else [now.module(module)]
                return tuple(answers.module(now, each) for each in chosen)
            case control.Nodes():
                return answers.nodes(now)
            case control.Leadership(module=module):
                return self._balancing.show(now, now.module(module), self._options())
            case control.Balance(module=module):
                return self._balancing.ask_for(now, now.module(module), self._options())
            case control.Reassign(module=module, node=node, force=force):
                if force:
                    self._require_code(module, now.node(node))
                return self._scaling.reassign(now, now.module(module), now.node(node), force=force)
            case control.ScaleThreads(module=module, threads=threads):
                return self._scaling.regroup(now, now.module(module), threads)
            case control.PossibleThreads(module=module):
                return possible_threads(now.module(module).assignment)
            case control.AbandonScaling(module=module):
                return self._scaling.abandon(now.module(module))
            case control.Scale(module=module, workers=workers, replication_factor=factor):
                return self._scaling.scale(now, now.module(module), workers=workers, factor=factor)
            case control.ResignLeader(module=module, group=group, to=to):
                return self._balancing.resign(now, now.module(module), group, to)
            case control.Options(level=level):
                return answers.options(read_all(self._client, self._paths), self._level(level))
            case control.Operations(module=module, limit=limit, before_ms=before_ms):
                return self._operations.newest(limit, module, before_ms)
            case control.Specification(module=module):
                return now.module(module).spec
            case control.Snapshots(module=module):
                return self._snapshots.all_of(module)
            case control.FinishSnapshot(module=module, name=name, size_bytes=size_bytes):
                self._snapshots.finish(module, name, size_bytes)
                return int(self._options().value("snapshot.retain", Level.of(module)))
            case _:
                self._do(call)
                return None

    def _do(self, call: control.ConductorOrder) -> None:
        now = self._view
        match call:
            case control.Launch():
                self._launch(call)
            case control.Destroy(module=module):
                self._life.destroy(now.module(module))
            case control.Update(module=module):
                found = now.module(module)
                self._require_artifact(module, call.artifact, found.spec.replication_factor)
                self._life.update(found, artifact=call.artifact, manifest=call.manifest, delete=call.delete)
            case control.BeginSnapshot(module=module, name=name, folder=folder):
                self._snapshots.begin(now.module(module), name, folder)
            case control.ForgetSnapshot(module=module, name=name, failed=failed):
                self._snapshots.forget(module, name, failed)
            case control.Pause(module=module):
                self._life.pause(now.module(module))
            case control.Resume(module=module):
                self._life.resume(now.module(module))
            case control.AllowLeadership(node=node):
                self._drain(now.drained - {now.node(node)}, f"leadership allow {node}")
            case control.DisallowLeadership(node=node):
                self._drain(now.drained | {now.node(node)}, f"leadership disallow {node}")
            case control.SetOption(level=level, name=name, value=value):
                at = self._level(level)
                set_option(self._client, self._paths, at, name, value)
                self._operations.note(f"options set {name} = {value} for {at}", level.module)
            case control.UnsetOption(level=level, name=name):
                at = self._level(level)
                unset_option(self._client, self._paths, at, name)
                self._operations.note(f"options unset {name} for {at}", level.module)
            case _:
                assert_never(call)

    def _launch(self, call: control.Launch) -> None:
        if call.replication_factor <= len(self._view.nodes):
            self._require_artifact(call.module, call.artifact, call.replication_factor)
        self._life.launch(
            self._view,
            call.module,
            artifact=call.artifact,
            manifest=call.manifest,
            tasks=call.tasks,
            threads=call.threads,
            workers=call.workers,
            factor=call.replication_factor,
            options=call.options,
            object_options=call.object_options,
            restored=call.restored,
            version=call.version,
            deleted=call.deleted,
            writers=call.writers,
            origin=call.origin,
        )

    def _require_artifact(self, module: str, artifact: str, wanted: int) -> None:
        """Refuse code that is on too few nodes: it must outlive the loss of as many as the data does."""
        held, silent = self._held(artifact, wanted)
        if held < wanted:
            advice = f"{silent} did not answer; try again" if silent else "upload it again"
            raise StrettoError(
                f"the code of {module} is on {held} nodes, of {wanted} that must keep it; {advice}"
            )

    def _require_code(self, module: str, leaving: str) -> None:
        """Refuse to leave a node if no node that runs has the code of the module.

        A node that is dead may have been the only one that kept it; from one that lives, others get it.
        """
        artifact = self._view.module(module).spec.artifact
        if artifact and not self._held(artifact, 1)[0]:
            raise StrettoError(
                f"no node that runs has the code of {module}, so its workers could not start elsewhere; "
                f"upload it with 'stretto deploy update {module} --module ...', or bring node {leaving} back"
            )

    def _held(self, artifact: str, wanted: int) -> tuple[int, int]:
        """On how many nodes an artifact is, counted up to ``wanted``; and how many nodes did not say."""
        held = silent = 0
        pool = ThreadPoolExecutor(ARTIFACT_THREADS, "artifact")
        asked = [pool.submit(self._has, node.address, artifact) for node in self._view.nodes.values()]
        for answered in as_completed(asked):
            has = answered.result()
            held += has is True
            silent += has is None
            if held >= wanted:
                break
        pool.shutdown(wait=False, cancel_futures=True)
        return held, silent

    def _has(self, address: str, digest: str) -> bool | None:
        """Whether a supervisor has an artifact; None if it does not say."""
        try:
            return ask(self._network, address, control.HasArtifact(digest=digest), timeout=ARTIFACT_SECONDS)
        except StrettoError as error:
            log.warning("artifact_not_confirmed", supervisor=address, why=str(error))
            return None

    def _drain(self, nodes: frozenset[str], what: str) -> None:
        data = encode(DrainedNodes(nodes=tuple(sorted(nodes))))
        znode = self._znode(self._paths.drained)
        try:
            if znode is None:
                self._client.create(self._paths.drained, data)
            else:
                self._client.set(self._paths.drained, data, znode.version)
        except (NodeExistsError, BadVersionError, NoNodeError):
            raise RetriableError("the nodes that may lead changed meanwhile; try again") from None
        self._balancing.hurry()
        self._operations.note(what)

    def _level(self, level: control.OptionLevel) -> Level:
        """The level that a call names, once it is sure that its module and object exist."""
        if level.module is not None:
            spec = self._view.module(level.module).spec
            if level.depot is not None:
                named("depot", level.depot, [depot.name for depot in spec.depots])
            if level.topology is not None:
                named("topology", level.topology, [each.name for each in spec.topologies])
            if level.pstate is not None:
                named("PState", level.pstate, [pstate.name for pstate in spec.pstates])
        return Level.of(level.module, depot=level.depot, topology=level.topology, pstate=level.pstate)


def _host() -> str:
    """Name of the network where an address is one process's at most, for as long as this machine is up."""
    return f"{boot_id()}/{os.readlink('/proc/self/ns/net')}"
