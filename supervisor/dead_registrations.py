"""The registrations of workers that are proven dead, deleted: exactly those that carry the dead launch.

The others learn of a death by the end of a registration, so every millisecond until then is a gap for
clients. Hence the registrations of this node's workers are known beforehand, by a watch, and a death costs
one request, sent at once. One that turns up later, because it was on its way when its process died, is
deleted as soon as it is seen. What cannot be deleted for want of a connection is deleted when there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from stretto.network.loop import Loop
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.watches.daemon_session import DaemonSession, WatchedPath
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import WorkerRegistration, ZnodeDamaged, decode

log = structlog.get_logger()

DEAD_MAX = 64


@dataclass(slots=True, eq=False)
class _Registered:
    """One registration of a worker of ours."""

    followed: WatchedPath | None = None
    launch: str | None = None
    """Launch that the registration carries; None until it is read."""
    is_deleting: bool = False


@dataclass(slots=True, eq=False)
class _Watched:
    worker: WorkerId
    followed: WatchedPath | None = None
    registered: dict[str, _Registered] = field(default_factory=dict)
    """Registrations that are there, by path."""
    dead: dict[str, int] = field(default_factory=dict)
    """Dead launches, each with the number of the listing that can show that none is left; 0 once one has.

    A launch is remembered beyond that, for registrations that come late.
    """
    listed: int = 0
    """How often the registrations were listed."""

    @property
    def is_done(self) -> bool:
        return not any(self.dead.values())


class Burials:
    """Deletes the registrations of workers that are proven dead; all methods run on the loop's thread."""

    def __init__(
        self, loop: Loop, view: DaemonSession, paths: Paths, buried: Callable[[WorkerId, str], None]
    ) -> None:
        """Call ``buried`` when no registration of a dead launch is left."""
        self._loop = loop
        self._view = view
        self._paths = paths
        self._buried = buried
        self._watched: dict[WorkerId, _Watched] = {}
        #: Address at which each worker registered last. Replaced, never changed: other threads read it.
        self.addresses: dict[WorkerId, str] = {}

    @property
    def is_done(self) -> bool:
        """Whether no registration of any dead launch is left."""
        return all(watched.is_done for watched in self._watched.values())

    def watch(self, worker: WorkerId) -> None:
        """Follow the registrations of a worker, from now on."""
        if worker not in self._watched:
            watched = self._watched[worker] = _Watched(worker)

            def told(names: list[str] | None) -> None:
                self._loop.call_soon(self._listed, watched, names or [])

            watched.followed = self._view.follow_children(self._paths.worker(worker), told)

    def unwatch(self, worker: WorkerId) -> None:
        """Stop following the registrations of a worker, but not before all its launches are buried."""
        watched = self._watched.get(worker)
        if watched is not None and watched.is_done:
            del self._watched[worker]
            self.addresses = {each: at for each, at in self.addresses.items() if each != worker}
            for followed in (watched.followed, *(each.followed for each in watched.registered.values())):
                if followed is not None:
                    followed.stop()

    def died(self, worker: WorkerId, launch: str) -> None:
        """Delete the registrations of a launch that is proven dead."""
        self.watch(worker)
        watched = self._watched[worker]
        watched.dead[launch] = watched.listed + 1
        self._delete_dead(watched)
        if len(watched.dead) > DEAD_MAX:
            del watched.dead[next(iter(watched.dead))]
        if watched.followed is not None:
            # One that was created a moment before the end, and not told yet.
            watched.followed.again()

    def _listed(self, watched: _Watched, names: list[str]) -> None:
        if self._watched.get(watched.worker) is not watched:
            return
        watched.listed += 1
        now = {self._paths.registration(watched.worker, Incarnation(name)) for name in names}
        for path in watched.registered.keys() - now:
            followed = watched.registered.pop(path).followed
            if followed is not None:
                followed.stop()
        for path in sorted(now - watched.registered.keys()):
            self._follow(watched, path)
        self._conclude(watched)

    def _follow(self, watched: _Watched, path: str) -> None:
        registered = watched.registered[path] = _Registered()

        def told(data: bytes | None) -> None:
            self._loop.call_soon(self._read, watched, path, registered, data)

        registered.followed = self._view.follow_data(path, told)

    def _read(self, watched: _Watched, path: str, registered: _Registered, data: bytes | None) -> None:
        if watched.registered.get(path) is not registered:
            return
        if data is None:
            self._gone(watched, path)
            return
        try:
            registration = decode(data, WorkerRegistration, path)
            registered.launch = registration.launch
            self.addresses = {**self.addresses, watched.worker: registration.address}
        except ZnodeDamaged as damage:
            log.error("znode_damaged", path=damage.path, problem=damage.problem)
            registered.launch = ""
        self._delete_dead(watched)
        self._conclude(watched)

    def _delete_dead(self, watched: _Watched) -> None:
        for path, registered in watched.registered.items():
            if registered.launch in watched.dead and not registered.is_deleting:
                registered.is_deleting = True
                self._delete(watched, path, registered.launch)

    def _delete(self, watched: _Watched, path: str, launch: str | None) -> None:
        def gone() -> None:
            self._loop.call_soon(self._gone, watched, path)

        self._view.delete(path, gone)
        log.info("registration_deleted_for_the_dead", worker=watched.worker, path=path, launch=launch)

    def _gone(self, watched: _Watched, path: str) -> None:
        registered = watched.registered.pop(path, None)
        if registered is not None and registered.followed is not None:
            registered.followed.stop()
        self._conclude(watched)

    def _conclude(self, watched: _Watched) -> None:
        """A dead launch is buried when all registrations are known and none is of it."""
        launches = {registered.launch for registered in watched.registered.values()}
        if None in launches:
            return
        for launch, telling in list(watched.dead.items()):
            if 0 < telling <= watched.listed and launch not in launches:
                watched.dead[launch] = 0
                self._buried(watched.worker, launch)
