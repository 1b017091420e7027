"""What catching up asks of the worker that it runs in, and of the worker's replicas.

The drivers know these protocols and nothing else of a worker, so that this room can be read, typed and tested
without it. A worker is a :class:`Host`, what it keeps for each group is a :class:`HostedReplica`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stretto.catchup.install import Install
    from stretto.errors import StorageCorrupt, StorageError
    from stretto.network.loop import Loop
    from stretto.network.transport import Transport
    from stretto.replog.core.events import Event
    from stretto.replog.core.replica import Replica
    from stretto.replog.log import Replog
    from stretto.replog.storage import EpochStart
    from stretto.specs.assignments import GroupPlan
    from stretto.state.applied import AppliedState
    from stretto.vocabulary.groups import GroupKey
    from stretto.vocabulary.types import WorkerId


class Meter(Protocol):
    """Counter of what happens to a replica."""

    def counted(self, event: str, times: int = 1) -> None: ...


class HostedReplica(Protocol):
    """The driver of one replica, which leads and serves its state, or follows and receives one."""

    @property
    def key(self) -> GroupKey: ...

    @property
    def plan(self) -> GroupPlan: ...

    @property
    def replica(self) -> Replica:
        """The core of the replica. Only :meth:`step` changes it."""
        ...

    @property
    def log(self) -> Replog: ...

    @property
    def state(self) -> AppliedState: ...

    @property
    def meter(self) -> Meter: ...

    @property
    def closed(self) -> bool: ...

    def step(self, event: Event) -> None: ...

    def storage_failed(self, error: StorageError | StorageCorrupt) -> None:
        """Stop the replica, whose log cannot be read."""
        ...

    def install_failed(self) -> None:
        """Let the replica, which asked for an installation, go on with the state that it has."""
        ...


class Installation(Protocol):
    """Replacement of a replica's own state by a leader's; meanwhile the replica waits."""

    def carry_out(self, install: Install) -> None:
        """Close the replica's files, replace them by what is staged, and open these; runs on a thread.

        Raises OSError or StrettoError.
        """
        ...

    def finish(self, history: tuple[EpochStart, ...]) -> None:
        """Let the replica go on with what was installed; runs on the loop."""
        ...

    def fail(self, why: str) -> None:
        """Stop the replica, and have its folder opened again; runs on the loop."""
        ...


class Replicas(Protocol):
    """The folders of a worker's replicas."""

    def path(self, plan: GroupPlan) -> Path: ...

    def installation(self, key: GroupKey) -> Installation: ...


class Applier(Protocol):
    """The part of the worker that writes the applied states."""

    def after_applied(self, function: Callable[[], None]) -> None:
        """Run a function on the loop once everything that waits to be applied is."""
        ...


class Host(Protocol):
    """The worker, as its transfers of state see it."""

    @property
    def loop(self) -> Loop: ...

    @property
    def worker(self) -> WorkerId: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def groups(self) -> Mapping[GroupKey, HostedReplica]:
        """The worker's replicas that run, by group."""
        ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def applier(self) -> Applier: ...

    def option(self, name: str) -> Any:
        """Value of an option in force for the worker's module."""
        ...
