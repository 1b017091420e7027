"""What can be tuned while a group runs, as the core sees it, and what is fixed for its life."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stretto.vocabulary.types import Incarnation, Millis, StorageId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be tuned of a running group; replaced as a whole by an ``OptionsChanged`` event."""

    min_isr: int | None = None
    """``replication.min.isr``; unset means one less than the factor."""
    max_time_lag_ms: Millis = Millis(10_000)
    """``replication.max.time.lag.millis``: how long an entry waits for a member of the ISR."""
    max_near_lag: int = 100_000
    """``replication.max.near.sync.message.lag``: further behind than this is far horizon."""
    append_timeout_ms: Millis = Millis(20_000)
    """``replication.append.timeout.millis``: after that, an append's outcome is reported as unknown."""
    unclean_election: bool = False
    """``replication.unclean.election``: let a replica outside the ISR lead when no member is left."""
    max_unapplied: int = 200_000
    """Most unapplied entries; appends beyond them are refused."""
    early_bytes: int = 256 * 1024
    """Unapplied bytes up to which an append is acknowledged before it is applied."""
    producer_expiry_ms: Millis = Millis(7 * 24 * 3600 * 1000)
    """Silence after which a producer is forgotten."""
    lease_ms: Millis = Millis(8_000)
    """Length of a lease: the negotiated session time-out, less a tick, less the margin for clocks."""
    retry_ms: Millis = Millis(500)
    """How long an unanswered message waits before it is sent again."""
    news_ms: Millis = Millis(50)
    """How long followers may not know the advertised end, if no entries come that carry it."""
    news_entries: int = 100
    """Number of entries by which the advertised end may move before it is sent by itself.

    What takes long to apply is best done while nothing else is to do.
    """
    follower_read_wait_ms: Millis = Millis(100)
    """How long a read at a follower waits for the leader's assurance, or for entries that it must see."""
    resign_timeout_ms: Millis = Millis(10_000)
    state_timeout_ms: Millis = Millis(60_000)
    """How long a follower waits for the leader's state before it asks again."""
    max_pinned: int = 10_000_000
    """``replication.far.horizon.max.pinned.entries``: how much of the log is kept for a transfer."""
    paused: bool = False
    """Whether the module is paused, so that no new producers or records are taken; not an option."""
    max_batch_bytes: int = 1 << 20
    max_in_flight_messages: int = 8

    def min_isr_of(self, factor: int) -> int:
        """The min-ISR of a group with that factor: at least 1, at most the factor."""
        wanted = factor - 1 if self.min_isr is None else self.min_isr
        return max(1, min(wanted, factor))

    def with_lease(self, lease_ms: Millis) -> Settings:
        return replace(self, lease_ms=lease_ms)

    def with_paused(self, paused: bool) -> Settings:
        return replace(self, paused=paused)

    def with_unclean_election(self) -> Settings:
        return replace(self, unclean_election=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of this replica. The incarnation is of the process and session it starts with."""

    worker: WorkerId
    storage: StorageId
    incarnation: Incarnation
    replicas: tuple[WorkerId, ...]
    """Workers of the assignment, preferred leader first."""
    plan: int = 0
    """Number of the assignment that ``replicas`` is from."""
