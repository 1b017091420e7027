"""The group's record in the metastore: who leads, in which epoch, and who is in sync."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId


class Member(msgspec.Struct, frozen=True, order=True, gc=False, array_like=True):
    """A replica as the ISR knows it: a worker *with that disk*. With a wiped disk it is another member."""

    worker: WorkerId
    storage: StorageId


class GroupRecord(msgspec.Struct, frozen=True):
    """A group's record: epoch, leader and ISR; changed only by compare-and-set on its version."""

    epoch: Epoch
    leader: WorkerId | None
    leader_incarnation: Incarnation | None
    isr: tuple[Member, ...]
    """Members of the ISR, sorted. The leader is always one of them."""
    osr: tuple[WorkerId, ...] = ()
    """The replicas outside the ISR; for people and planners, never for a decision here."""
    unclean_epoch: Epoch = Epoch(0)
    """The latest epoch that began with an unclean election; 0 if there was none."""
    plan: int = 0
    """Number of the assignment that the leaders have followed so far.

    See :mod:`stretto.replog.core.leading.membership`.
    """
    factor: int = 0
    """How many replicas min-ISR is reckoned from; 0 means as many as are assigned."""

    def member(self, worker: WorkerId) -> Member | None:
        """The member on that worker, if the ISR has one."""
        for member in self.isr:
            if member.worker == worker:
                return member
        return None

    def with_isr(self, isr: Iterable[Member], replicas: Iterable[WorkerId]) -> GroupRecord:
        """This record with another ISR; the rest of ``replicas`` becomes the OSR."""
        members = tuple(sorted(isr))
        listed = {member.worker for member in members}
        osr = tuple(worker for worker in replicas if worker not in listed)
        return msgspec.structs.replace(self, isr=members, osr=osr)

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Workers of all replicas that the record knows."""
        return (*(member.worker for member in self.isr), *self.osr)

    def following(self, plan: int, factor: int) -> GroupRecord:
        """This record once its leader follows the assignment numbered ``plan``."""
        return msgspec.structs.replace(self, plan=plan, factor=factor)

    def with_leader(self, leader: WorkerId, incarnation: Incarnation, epoch: Epoch) -> GroupRecord:
        return msgspec.structs.replace(self, leader=leader, leader_incarnation=incarnation, epoch=epoch)


class Registration(msgspec.Struct, frozen=True, gc=False):
    """The ephemeral path of one incarnation of a worker. Once gone, it never returns."""

    worker: WorkerId
    incarnation: Incarnation
