"""The worker, as the drivers of its topologies see it.

Members are read-only, so that the worker fits with whatever it has under these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stretto.control import ModuleDescription
    from stretto.network.keys import ClusterKey
    from stretto.network.loop import Loop
    from stretto.network.transport import Transport
    from stretto.options import OptionSet
    from stretto.vocabulary.groups import GroupKey
    from stretto.vocabulary.types import WorkerId
    from stretto.worker.executors.pool import Executors
    from stretto.worker.replica.applier import Applier
    from stretto.worker.replica.group import Group
    from stretto.worker.topology.waiting import Waiters


class Config(Protocol):
    """The part of a worker's configuration that the drivers of topologies need."""

    @property
    def module(self) -> str: ...

    @property
    def key(self) -> ClusterKey | None: ...


class Hold(Protocol):
    """Whether topologies are held off for a moment."""

    @property
    def is_held(self) -> bool: ...


class Host(Protocol):
    """What the drivers of streams and of microbatches both need of their worker."""

    @property
    def worker(self) -> WorkerId: ...

    @property
    def config(self) -> Config: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def applier(self) -> Applier: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def executors(self) -> Executors: ...

    @property
    def waiters(self) -> Waiters: ...

    @property
    def holding(self) -> Hold: ...

    @property
    def description(self) -> ModuleDescription:
        """The description of the module."""
        ...

    @property
    def artifact(self) -> str:
        """Digest of the module's code that the worker runs."""
        ...

    @property
    def options(self) -> OptionSet: ...

    @property
    def is_paused(self) -> bool: ...
