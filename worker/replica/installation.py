"""A leader's state takes the place of a replica's own: what the replica's files and its driver do for it.

When, and of which state, is decided by :mod:`stretto.catchup.receiving`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stretto.vocabulary.invariants import present

if TYPE_CHECKING:
    from stretto.catchup.install import Install
    from stretto.replog.identity import Identity
    from stretto.replog.storage import EpochStart
    from stretto.worker.replica.group import Group
    from stretto.worker.replica.storage import ReplicaFolder, ReplicaStorage


class Installation:
    """The installation of one state. The group waits: nothing of it is applied or written until this has
    ended."""

    def __init__(
        self,
        group: Group,
        folder: ReplicaFolder,
        identity: Identity,
        on_replaced: Callable[[Group, ReplicaStorage], None],
    ) -> None:
        """Prepare; ``on_replaced`` is called with the storage before the group takes it over."""
        self._group = group
        self._folder = folder
        self._identity = identity
        self._on_replaced = on_replaced
        self._storage: ReplicaStorage | None = None

    def carry_out(self, install: Install) -> None:
        """Close the replica's files, replace them by what is staged, and open these. Runs on a thread for the
        disk."""
        self._group.state.close()
        self._group.log.close()
        self._storage = self._folder.install(install, self._identity)

    def finish(self, history: tuple[EpochStart, ...]) -> None:
        """Let the group go on with what was installed. Runs on the loop."""
        storage = present(self._storage, "installed storage")
        self._on_replaced(self._group, storage)
        self._group.installed(storage, history)

    def fail(self, why: str) -> None:
        """Stop the replica, whose folder is opened again later. Runs on the loop."""
        self._group.host.replicas.stop(self._group, why, renew=False)
