"""``replication.fsync`` of one replica, changed while it runs.

What is confirmed unsynced is a promise that a crash of the machine breaks; the replica's identity must say so
before the first such promise is made, and may stop saying so only when all of them are kept:

- to ``interval``: write the identity, then confirm unsynced;
- to ``always``: confirm only what is synced from now on, sync what was confirmed before, then write the
  identity.

A replica is opened with everything synced, and begins with ``always``. One change at a time: whatever is
wanted meanwhile is looked at when it is done. A write of the identity that fails is tried again; until it
succeeds the stricter of the two holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from stretto.replog.identity import Fsync, Identity
from stretto.replog.log import Replog
from stretto.vocabulary.groups import GroupKey

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.replog.commit import GroupCommit
    from stretto.worker.replica.applier import Applier

RETRY_MS = 1_000


class Host(Protocol):
    """The worker, as the change of ``replication.fsync`` sees it."""

    loop: Loop
    commit: GroupCommit
    applier: Applier


class Replica(Protocol):
    """The replica whose ``replication.fsync`` is changed."""

    key: GroupKey
    log: Replog
    closed: bool
    fsync_always: bool


class FsyncSwitch:
    """Changes ``replication.fsync`` of one replica. The loop owns it; the identity is written off the
    loop."""

    def __init__(self, host: Host, replica: Replica, identity: Identity) -> None:
        self._host = host
        self._replica = replica
        self._identity = identity
        self._wanted: Fsync = "always"
        self._is_changing = False
        self._log = structlog.get_logger().bind(group=str(replica.key))

    def want(self, fsync: Fsync) -> None:
        """Set what is wanted, and begin the change to it unless another one is under way."""
        self._wanted = fsync
        self._go_on()

    def _go_on(self) -> None:
        if self._is_changing or self._replica.closed:
            return
        if self._wanted == "interval":
            if self._identity.fsync == "interval":
                self._replica.fsync_always = False
            else:
                self._write("interval")
        else:
            self._replica.fsync_always = True
            if self._identity.fsync != "always":
                self._is_changing = True
                self._sync()

    def _sync(self) -> None:
        if self._replica.closed:
            return
        log = self._replica.log
        self._host.commit.submit(log)
        self._host.commit.when_quiet(log, self._on_synced)

    def _on_synced(self) -> None:
        log = self._replica.log
        if log.durable_end_offset < log.written_end_offset:
            # The sync failed. The replica hears of it next, and stops.
            self._host.loop.call_soon(self._sync)
        elif self._wanted == "always":
            self._write("always")
        else:
            self._is_changing = False
            self._go_on()

    def _write(self, fsync: Fsync) -> None:
        self._is_changing = True
        self._host.applier.read(lambda: self._identity.mark_fsync(fsync), self._on_written)

    def _on_written(self, error: Exception | None) -> None:
        self._is_changing = False
        if error is None:
            self._log.info("fsync_changed", fsync=self._identity.fsync)
            self._go_on()
        else:
            self._log.error("fsync_not_changed", why=str(error), retry_ms=RETRY_MS)
            self._host.loop.call_after(RETRY_MS, self._go_on)
