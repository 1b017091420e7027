"""The group's record in the metastore: who leads, in which epoch, and who is in sync."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId


class Member(msgspec.Struct, frozen=True, order=True, gc=False, array_like=True):
    """A replica as the ISR knows it: a worker *with that disk*. Wiped, it is somebody else."""

    worker: WorkerId
    storage: StorageId


class GroupRecord(msgspec.Struct, frozen=True):
    """Changed only by compare-and-set on its version."""

    epoch: Epoch
    leader: WorkerId | None
    leader_incarnation: Incarnation | None
    isr: tuple[Member, ...]
    """Sorted. The leader is always in it."""
    osr: tuple[WorkerId, ...] = ()
    """The other replicas; for people and planners, never for a decision here."""
    unclean_epoch: Epoch = Epoch(0)
    """The latest epoch that began with an unclean election; 0 if there was none."""
    plan: int = 0
    """Which assignment its leaders have followed so far; see
    :mod:`stretto.replog.core.leading.membership`."""
    factor: int = 0
    """How many replicas min-ISR is reckoned from; 0: as many as are assigned."""

    def member(self, worker: WorkerId) -> Member | None:
        for member in self.isr:
            if member.worker == worker:
                return member
        return None

    def with_isr(self, isr: Iterable[Member], replicas: Iterable[WorkerId]) -> GroupRecord:
        members = tuple(sorted(isr))
        listed = {member.worker for member in members}
        osr = tuple(worker for worker in replicas if worker not in listed)
        return msgspec.structs.replace(self, isr=members, osr=osr)

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Of all replicas that it knows."""
        return (*(member.worker for member in self.isr), *self.osr)

    def following(self, plan: int, factor: int) -> GroupRecord:
        return msgspec.structs.replace(self, plan=plan, factor=factor)

    def with_leader(self, leader: WorkerId, incarnation: Incarnation, epoch: Epoch) -> GroupRecord:
        return msgspec.structs.replace(self, leader=leader, leader_incarnation=incarnation, epoch=epoch)


class Registration(msgspec.Struct, frozen=True, gc=False):
    """The ephemeral path of one incarnation of a worker. Once gone it never returns."""

    worker: WorkerId
    incarnation: Incarnation
