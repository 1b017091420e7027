"""A leader's followers: which have come, what each holds and gets, from where the log is kept for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.replog.core import effects, messages
from stretto.replog.core.events import PinMoved, Sent
from stretto.replog.core.leading.progress import Progress
from stretto.replog.core.messages import RejectReason
from stretto.replog.core.record import Member, Registration
from stretto.vocabulary.invariants import check
from stretto.vocabulary.types import Millis, Offset, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.leading.leader import Leader


class Followers(dict[WorkerId, Progress]):
    """Progress of each follower that said Hello in this epoch, for the one incarnation of it that counts."""

    def __init__(self, leader: Leader) -> None:
        super().__init__()
        self.leader = leader
        self.replica = leader.replica
        #: All incarnations that said Hello. A Hello may be late: its incarnation may be gone already.
        self._incarnations: dict[Registration, Progress] = {}
        #: When followers are sent the advertised end, unless entries carry it before.
        self.news_at: Millis | None = None
        #: End of what readers at followers wait for and is not shown here yet.
        self.awaited_end: Offset | None = None

    # Coming and going.

    def hello(self, sender: WorkerId, hello: messages.Hello) -> None:
        replica, leader = self.replica, self.leader
        registration = Registration(sender, hello.incarnation)
        known = self._incarnations.get(registration)
        progress = known
        if progress is None or hello.attempt > progress.attempt:
            progress = Progress(sender, hello.incarnation, hello.storage, hello.attempt, replica.now)
            progress.confirmed = replica.guards.confirmed_by_hello(hello.end)
            progress.pinned = known.pinned if known is not None else None
            self[sender] = self._incarnations[registration] = progress
            replica.emit(effects.CheckRegistration(registration=registration))
        lineage = messages.Lineage(
            leader.epoch,
            leader.incarnation,
            to=hello.incarnation,
            attempt=hello.attempt,
            history=replica.history,
            start=replica.log_start,
            end=replica.log_end,
            apply_offset=replica.apply_offset,
            near_lag=self._reach(progress),
            listed=leader.membership.may_list(Member(sender, hello.storage)),
        )
        replica.emit(effects.Send(to=sender, message=lineage))

    def _reach(self, progress: Progress) -> int:
        """How far behind a follower may be: further if our log is kept for it, as after it took our state."""
        near_lag = self.replica.settings.max_near_lag
        if progress.pinned is None:
            return near_lag
        return max(near_lag, self.replica.apply_offset - progress.pinned)

    def forget_strangers(self) -> None:
        """Forget followers that are neither assigned nor members; nothing more is sent or kept for them."""
        for worker in sorted(self.keys() - self.leader.membership.concerned):
            del self[worker]
            self.replica.emit(effects.StopServing(to=worker))
        for registration in [each for each in self._incarnations if each.worker not in self]:
            del self._incarnations[registration]

    def registration_seen(self, registration: Registration, exists: bool) -> bool:
        """Take in a tested registration; False if no follower has come with it."""
        progress = self._incarnations.get(registration)
        if progress is None:
            return False
        progress.in_doubt = False
        if exists:
            return True
        progress.gone = True
        alive = [
            each
            for each in self._incarnations.values()
            if each.worker == registration.worker and not each.gone
        ]
        if alive and self[registration.worker].gone:
            self[registration.worker] = alive[-1]
        if self[registration.worker] is not progress:
            del self._incarnations[registration]
        return True

    def doubt(self, registration: Registration) -> None:
        """Test a registration that made the metastore refuse a change, before it is named again."""
        progress = self._incarnations.get(registration)
        if progress is not None:
            progress.in_doubt = True
            self.replica.emit(effects.CheckRegistration(registration=registration))

    # Entries.

    def confirmed(self, sender: WorkerId, confirm: messages.Confirm) -> Progress | None:
        """Take in a confirmation, and return the progress of its sender; None if it does not count."""
        replica, guards, epoch = self.replica, self.replica.guards, self.leader.epoch
        if not guards.confirm_epoch_is_mine(confirm.epoch, epoch):
            self.leader.reject(sender, RejectReason.STALE_EPOCH)
            return None
        progress = self.get(sender)
        if progress is None or not guards.incarnation_is_known(confirm.incarnation, progress.incarnation):
            self.leader.reject(sender, RejectReason.STALE_INCARNATION)
            return None
        same = confirm.incarnation == progress.incarnation
        if same and confirm.attempt != progress.attempt:
            return None
        check(
            confirm.end <= replica.log_end or confirm.epoch != epoch,
            "follower confirms more than the leader has",
            follower=sender,
            confirmed=confirm.end,
            log_end=replica.log_end,
        )
        progress.on_confirm(confirm, replica.now)
        if progress.pinned is not None:
            in_range = replica.apply_offset - confirm.end <= replica.settings.max_near_lag
            progress.pinned = None if in_range else max(progress.pinned, confirm.end)
        return progress

    def pump(self) -> None:
        """Send each follower what it lacks."""
        for progress in self.values():
            progress.pump(self.leader)

    def sent(self, event: Sent) -> None:
        progress = self.get(event.to)
        if progress is None or progress.incarnation != event.incarnation:
            return
        if progress.attempt == event.attempt:
            progress.sending = False
            progress.next = event.end
            progress.in_flight.append(event.end)
            progress.pump(self.leader)

    def probe_silent(self) -> None:
        """Probe the followers that have been silent for a while and have not confirmed everything."""
        for progress in self.values():
            progress.probe_if_silent(self.leader)

    # News: what is shown.

    def have_news(self) -> None:
        """Plan to send followers the advertised end, if it has moved.

        Entries that are sent soon carry it, unless somebody waits for it.
        """
        if self.awaited_end is not None:
            self.await_news(self.awaited_end)
        elif self.news_at is None and any(progress.lacks_news(self.leader) for progress in self.values()):
            self.news_at = Millis(self.replica.now + self.replica.settings.news_ms)

    def await_news(self, end: Offset | None = None) -> None:
        """Send followers the advertised end as soon as it reaches ``end``, which a reader at one waits for.

        None stands for the present apply offset.
        """
        end = self.replica.apply_offset if end is None else end
        self.awaited_end = None if self.leader.advertised_end >= end else end
        if self.awaited_end is None:
            self.tell_news()

    @property
    def news_are_due(self) -> bool:
        return self.news_at is not None and self.news_at <= self.replica.now

    def tell_news(self) -> None:
        """Send followers the advertised end now, without waiting for entries that carry it.

        Once more a little later, if entries are with the driver that do not carry it.
        """
        self.news_at = self.replica.now
        self.pump()
        is_again = any(progress.sending for progress in self.values())
        self.news_at = Millis(self.replica.now + self.replica.settings.news_ms) if is_again else None

    # The log is kept for them.

    def fetch_state(self, sender: WorkerId, message: messages.FetchState) -> None:
        """Pin the log for a follower that asks for our state, and have the driver serve it."""
        progress = self.get(sender)
        if progress is None or progress.attempt != message.attempt:
            return
        if progress.incarnation == message.incarnation:
            pinned = progress.pinned = self.replica.applied
            self.replica.note("serves_state", to=sender, at=pinned)
            self.replica.emit(
                effects.ServeState(
                    to=sender,
                    epoch=self.leader.epoch,
                    incarnation=message.incarnation,
                    attempt=message.attempt,
                    pinned=pinned,
                )
            )

    def pin_moved(self, event: PinMoved) -> None:
        progress = self.get(event.to)
        if event.epoch != self.leader.epoch or progress is None or progress.incarnation != event.incarnation:
            return
        if progress.pinned is not None and (event.start is None or event.start > progress.pinned):
            progress.pinned = event.start

    def release_pins(self) -> None:
        """Release pins that keep too much of the log; a follower that needs more begins again."""
        replica = self.replica
        for progress in self.values():
            if progress.pinned is None or progress.gone:
                continue
            kept = replica.apply_offset - progress.pinned
            if kept > replica.settings.max_pinned:
                progress.pinned = None
                replica.note(
                    "pin_released",
                    follower=progress.worker,
                    entries=kept,
                    advice="it takes our state too slowly for the log to be kept; raise "
                    "replication.far.horizon.max.pinned.entries, or "
                    "replication.catchup.max.bytes.per.second",
                )
                replica.emit(effects.StopServing(to=progress.worker))

    def needed(self) -> Offset:
        """Lowest offset that a replica within range of our log may still ask for."""
        replica = self.replica
        within_range = Offset(replica.apply_offset - replica.settings.max_near_lag)
        needed = replica.apply_offset
        for worker in self.leader.membership.concerned:
            if worker == replica.worker:
                continue
            lowest = within_range
            progress = self.get(worker)
            if progress is not None:
                if progress.confirmed is not None and progress.confirmed > lowest:
                    lowest = progress.confirmed
                if progress.pinned is not None and progress.pinned < lowest and not progress.gone:
                    lowest = progress.pinned
            needed = min(needed, lowest)
        return max(needed, Offset(0))

    # Time.

    def next_deadline(self, first: Millis) -> Millis:
        """When a follower is due for a probe or for news, or ``first`` if that is earlier."""
        for progress in self.values():
            probe_at = progress.probe_at(self.leader)
            if probe_at is not None and probe_at < first:
                first = probe_at
        if self.news_at is not None and self.news_at < first:
            first = self.news_at
        return first
