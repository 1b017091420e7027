"""A machine: what survives a process. Its disk, its applied state, its identity, its clock.

A process crash keeps what the kernel has; a power loss keeps what was synced. What is there is opened as a
worker does it: the identity first, then the log; what cannot be trusted is set aside, and the storage id is
a fresh one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.errors import StorageCorrupt
from stretto.replog.core.lineage import History
from stretto.replog.core.producers import ProducerTable
from stretto.replog.frame import Header
from stretto.replog.identity import Fsync, Identity, open_identity
from stretto.replog.log import Replog
from stretto.sim.replication.disk import SimFolder
from stretto.sim.virtual.world import Violation
from stretto.vocabulary.types import Epoch, Millis, Offset, StorageId, TaskId, WorkerId

if TYPE_CHECKING:
    from stretto.sim.replication.simulation import Simulation

SEGMENT_BYTES = 1500
QUICK_SYNC_MS = (1, 4)
QUICK_APPLY_MS = (1, 6)


@dataclass
class AppliedState:
    """A stand-in for the LMDB files: their content is a function of the offset, so the offset is enough."""

    applied: Offset = Offset(0)
    producers: ProducerTable = field(default_factory=lambda: ProducerTable({}))
    durable_applied: Offset = Offset(0)
    durable_producers: ProducerTable = field(default_factory=lambda: ProducerTable({}))

    def sync(self) -> None:
        self.durable_applied = self.applied
        self.durable_producers = self.producers.copy()

    def lose_power(self) -> None:
        self.applied = self.durable_applied
        self.producers = self.durable_producers.copy()

    def install(self, end: Offset, producers: ProducerTable) -> None:
        self.applied = end
        self.producers = producers
        self.sync()


@dataclass
class Snapshot:
    """The state that a follower beyond the near horizon receives."""

    epoch: Epoch
    attempt: int
    end: Offset
    history: History
    producers: ProducerTable


class Machine:
    """What survives a process: disk, applied state, identity and clock."""

    def __init__(self, simulation: Simulation, worker: WorkerId) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.worker = worker
        self.folder = SimFolder()
        self.state = AppliedState()
        #: Parts of a leader's state that have arrived and are not installed yet.
        self.incoming: dict[TaskId, bytearray] = {}
        self.storage = StorageId("")
        self._boots = 0
        self.must_renew: str | None = None
        #: Whether what this disk holds is undamaged since it got its storage id.
        self.intact = True
        self.sync_ms = QUICK_SYNC_MS
        self.apply_ms = QUICK_APPLY_MS
        #: How much longer than usual the driver's threads take to report their work, in milliseconds.
        self.hand_back_ms = 0
        self.clock_rate = 1.0
        self._clock_origin = 0
        self._clock_start = self.world.random.randrange(10_000_000)

        self.syncs_later = simulation.plan.fsync_interval
        self._fsync: Fsync = "interval" if self.syncs_later else "always"
        #: The log that the running process has opened, and what of it was not applied then.
        self.log: Replog | None = None
        self.unapplied: tuple[Header, ...] = ()

    # Clock.

    def clock(self) -> Millis:
        """Return the time on this machine's own clock."""
        elapsed = self.world.now - self._clock_origin
        return Millis(self._clock_start + int(elapsed * self.clock_rate))

    def set_clock_rate(self, rate: float) -> None:
        self._clock_start = self.clock()
        self._clock_origin = self.world.now
        self.clock_rate = rate

    def real_delay(self, local_ms: int) -> int:
        """Return how long so many milliseconds of this machine's clock take in true time."""
        return max(1, int(local_ms / self.clock_rate) + 1)

    # Disk.

    def replace_disk(self) -> None:
        """Put an empty folder in place of the disk; the next process finds out by itself that it is new."""
        self.folder = SimFolder()
        self.state = AppliedState()
        self.incoming = {}
        self.intact = False

    def _new_storage_id(self) -> StorageId:
        return StorageId(f"{self.worker}-{self.simulation.next_id()}")

    def open_storage(self) -> None:
        """Open identity and log as a worker does; what cannot be trusted is set aside."""
        guards = self.simulation.guards
        identity = open_identity(
            self.folder,
            cluster="sim",
            group="group",
            fsync=self._fsync,
            boot_id=f"{self.worker} {self._boots}",
            new_storage_id=self._new_storage_id,
        )
        if identity.fresh is not None:
            unclean = self.syncs_later and bool(self.folder.segments())
            self._take_id(
                identity, guards.fresh_id_when_unclean() if unclean else guards.fresh_id_when_wiped()
            )
        if self.must_renew is not None:
            self._renew(identity, self.must_renew, fresh_id=True)
        try:
            self._open_log(identity)
        except StorageCorrupt as corrupt:
            self.simulation.totals["corruptions"] += 1
            self._renew(identity, str(corrupt), fresh_id=guards.fresh_id_when_corrupt())
            self._open_log(identity)
        if self.syncs_later and self.state.applied > self.opened_log().end_offset:
            self._renew(identity, "the state is ahead of the log", fresh_id=True)
            self._open_log(identity)
        log, state = self.opened_log(), self.state
        if not log.start_offset <= state.applied <= log.end_offset:
            raise Violation(
                f"{self.worker} recovered a state applied up to {state.applied} "
                f"and a log of [{log.start_offset}, {log.end_offset})"
            )
        identity.mark_fsync(self._fsync)
        self.simulation.checkers.recovered(self)

    def _renew(self, identity: Identity, why: str, *, fresh_id: bool) -> None:
        self.world.trace(self.worker, "renews", why)
        self.must_renew = None
        identity.renew(why)
        self._take_id(identity, fresh_id)

    def _take_id(self, identity: Identity, fresh_id: bool) -> None:
        """Take the folder's new id, and begin again if its log is gone; a mutant keeps the old id."""
        self.intact = True
        if not self.folder.segments():
            self.state = AppliedState()
        if fresh_id or not self.storage:
            self.storage = identity.storage_id

    def _open_log(self, identity: Identity) -> None:
        log = Replog.open(
            self.folder,
            segment_bytes=SEGMENT_BYTES,
            index_interval_bytes=256,
            create=identity.fresh is not None,
        )
        self.unapplied = self._read_unapplied(log)
        self._scrub(log)
        self.log = log

    def _scrub(self, log: Replog) -> None:
        """Read the whole log after damage; some damage does no harm."""
        if not self.intact:
            at = log.start_offset
            while at < log.end_offset:
                at = log.read(at, log.end_offset, 1 << 20).end
            self.intact = True

    def _read_unapplied(self, log: Replog) -> tuple[Header, ...]:
        applied = self.state.applied
        if not log.start_offset <= applied < log.end_offset:
            return ()
        return tuple(log.headers(applied))

    def lose_power(self) -> None:
        self.folder.lose_power(self.world.random)
        self.state.lose_power()
        for staged in self.incoming.values():
            for at in range(len(staged)):
                if self.world.chance(0.1):
                    staged[at] = 0
        self._boots += 1
        if self.syncs_later:
            self.intact = False

    def opened_log(self) -> Replog:
        if self.log is None:
            raise Violation(f"{self.worker} uses a closed log")
        return self.log

    def write_log(self) -> Offset:
        """Write the log, and return the end of what may be confirmed."""
        log = self.opened_log()
        if not self.syncs_later:
            return log.sync()
        pending = log.take_pending(durable=False)
        if pending is not None:
            log.write(pending)
            log.written(pending)
        return log.written_end_offset
