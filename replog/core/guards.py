"""Every safety rule of the protocol, by name: one function per clause.

The numbers are those of the rules in ``docs/PROTOCOL.md``. Production code has exactly one
table, :data:`GUARDS`. The simulator replaces single entries to make mutants, and must catch each of
them: a clause that nobody misses when it is gone is not a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from stretto.replog.core.lineage import History, divergence
from stretto.replog.core.producers import index_of, is_lasting, round_of, silence_ms_of
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, ProducerId, WorkerId

# Rule 1: persist.


def confirmable_end(durable_end: Offset, log_end: Offset) -> Offset:
    """A follower confirms only what is durable in its replog."""
    return durable_end


def own_end(durable_end: Offset, log_end: Offset) -> Offset:
    """A leader counts itself only after its own write is durable."""
    return durable_end


def failed_write_stops() -> bool:
    """A failed write or fdatasync is never retried: the replica stops."""
    return True


def is_same_log(generation: int, current: int) -> bool:
    """A write that finished does not count for a log that was cut or replaced meanwhile."""
    return generation == current


# Rule 2: apply.


def must_hold(committed: AbstractSet[Member], proposed: AbstractSet[Member]) -> AbstractSet[Member]:
    """The maximal ISR, all of whose members must hold an entry before it is applied.

    It is the committed ISR, plus an expansion not known to have failed, plus a shrink not known to have
    committed.
    """
    return committed | proposed


def held_by_all(ends: Sequence[Offset], min_isr: int) -> Offset:
    """Every member of the maximal ISR holds an entry before it is applied, not just min-ISR of them."""
    return min(ends)


def enough_members(committed: int, min_isr: int) -> bool:
    """Whether the committed ISR has at least min-ISR members."""
    return committed >= min_isr


def counts_as_member(storage: str, member: Member) -> bool:
    """What a wiped worker holds under its new storage id does not count for the old one."""
    return storage == member.storage


def follower_apply_limit(apply_offset: Offset, durable_end: Offset, log_end: Offset) -> Offset:
    """A follower applies only what its leader has advertised and its own disk holds."""
    return min(apply_offset, durable_end)


def acknowledged_end(apply_offset: Offset, log_end: Offset) -> Offset:
    """End of what may be acknowledged: an append is acknowledged once it is committed, and so held by all."""
    return apply_offset


def acknowledged_own_end(applied: Offset, apply_offset: Offset) -> Offset:
    """End of what may be acknowledged to appenders that resume from the applied state: what is applied."""
    return applied


def may_acknowledge_early(unapplied_bytes: int, early_bytes: int) -> bool:
    """Whether appends may be acknowledged before they are applied: only while little is unapplied.

    Otherwise producers would run ahead of what can be read.
    """
    return unapplied_bytes <= early_bytes


def advertised_end(shown_end: Offset, apply_offset: Offset) -> Offset:
    """Followers are sent, and so show, only what a read at the leader shows too.

    A reader that goes from a follower to the leader therefore never goes back.
    """
    return shown_end


def shows_acknowledged(applied: Offset, promised: Offset) -> bool:
    """A leader's read waits until all that was acknowledged before it is applied."""
    return applied >= promised


# Rule 3: stall.


def lag_expired(waited_ms: int, max_time_lag_ms: Millis) -> bool:
    """A member that lags leaves the ISR when the stall timer expires."""
    return waited_ms >= max_time_lag_ms


def may_shrink_to(members: int, min_isr: int) -> bool:
    """Laggards leave the ISR only if at least min-ISR members remain; otherwise the ISR stays as it is."""
    return members >= min_isr


def may_replace() -> bool:
    """A caught-up newcomer may take a dead member's place in one compare-and-set."""
    return True


def stalled_refuses() -> bool:
    """A stalled group refuses appends instead of collecting them."""
    return True


def within_bound(unapplied: int, max_unapplied: int) -> bool:
    """The number of unapplied entries is bounded: appends beyond the bound are refused."""
    return unapplied < max_unapplied


# Rule 4: enter the ISR.


def confirmed_by_hello(claimed_end: Offset) -> Offset | None:
    """Only a confirmation of this epoch counts; a Hello claims what may still diverge."""
    return None


def reached_apply_offset(confirmed: Offset, apply_offset: Offset) -> bool:
    """A follower enters the ISR only if it has confirmed everything below the leader's apply offset."""
    return confirmed >= apply_offset


def reached_epoch_start(confirmed: Offset, epoch_start: Offset) -> bool:
    """A follower enters the ISR only if it has confirmed everything below the start of the leader's epoch.

    The leader's apply offset may lag behind what its predecessor showed; its epoch start does not.
    """
    return confirmed >= epoch_start


def holds_overdue(confirmed: Offset, overdue_end: Offset) -> bool:
    """A newcomer must hold an entry that has waited too long: without it, it would have to leave again."""
    return confirmed >= overdue_end


def registrations_to_check(newcomers: tuple[Registration, ...]) -> tuple[Registration, ...]:
    """An ISR change commits only while that very incarnation of each newcomer is registered."""
    return newcomers


def isr_change_version(version: int) -> int | None:
    """An ISR change is conditional on the record's version."""
    return version


# Rule 5: elect.


def may_stand(record: GroupRecord, candidate: Member) -> bool:
    """Only a replica whose own storage id is listed may stand."""
    return candidate in record.isr


def leader_is_gone(tested: bool | None) -> bool:
    """The leader counts as gone only if its registration was *tested* after the record changed."""
    return tested is False


def election_version(version: int) -> int | None:
    """Candidates race with one compare-and-set on the record's version."""
    return version


def next_epoch(epoch: Epoch) -> Epoch:
    """Every new leader begins an epoch of its own, one above the last."""
    return Epoch(epoch + 1)


def leads_as(record: GroupRecord, worker: WorkerId, incarnation: Incarnation) -> bool:
    """A new incarnation never continues an epoch."""
    return record.leader == worker and record.leader_incarnation == incarnation


def unclean_is_allowed(option: bool) -> bool:
    """A replica outside the ISR may stand only if the operator allowed it."""
    return option


def may_stand_unclean(member_alive: bool) -> bool:
    """A replica outside the ISR may stand only if no member of the ISR is alive to stand."""
    return not member_alive


def yields_to(theirs: tuple[Epoch, Offset], ours: tuple[Epoch, Offset]) -> bool:
    """Whether a candidate outside the ISR yields to another: the longest log goes first.

    That is the log of the latest epoch, and among those the one that reaches furthest.
    """
    return theirs > ours


# Rule 6: new epoch.


def truncation_point(parting: Offset, apply_offset: Offset) -> Offset:
    """Cut a follower's log where it parts from the leader's by epoch, never at the apply offset."""
    return parting


def find_divergence(mine: History, my_end: Offset, theirs: History, their_end: Offset) -> Offset | None:
    """Find where two logs part by iterating back to the latest epoch that both have."""
    return divergence(mine, my_end, theirs, their_end)


def lineage_is_current(attempt: int, expected: int, reconciled: bool) -> bool:
    """A lineage is obeyed once: an old copy of it knows less than the follower has confirmed since."""
    return attempt == expected and not reconciled


def may_serve(applied: Offset, epoch_start: Offset) -> bool:
    """A new leader serves nothing before what it inherited is applied."""
    return applied > epoch_start


# Rule 7: fence.


def confirm_epoch_is_mine(theirs: Epoch, mine: Epoch) -> bool:
    """A leader counts only confirmations that carry its own epoch."""
    return theirs == mine


def entries_epoch_is_mine(theirs: Epoch, mine: Epoch) -> bool:
    """A follower takes only entries that carry its own epoch."""
    return theirs == mine


def incarnation_is_known(theirs: Incarnation, known: Incarnation) -> bool:
    """A confirmation counts only from the incarnation that said hello."""
    return theirs == known


# Rule 8: lease.


def lease_holds(now: Millis, lease_end: Millis) -> bool:
    """A leader answers reads only before the end of its lease."""
    return now < lease_end


def lease_checked_after_sampling() -> bool:
    """The lease is checked after the state is sampled and before the reply is sent.

    A check before the sampling may be from before a pause.
    """
    return True


def lease_end(sent_at: Millis, acknowledged_at: Millis, lease_ms: Millis) -> Millis:
    """A lease is timed from the sending of the write that renewed it, not from its acknowledgement."""
    return Millis(sent_at + lease_ms)


def lease_duration(session_timeout_ms: Millis, tick_ms: Millis, margin_ms: Millis) -> Millis:
    """A lease is shorter than the session by a tick and a margin for clocks that drift."""
    return Millis(session_timeout_ms - tick_ms - margin_ms)


def renews_lease(is_write: bool) -> bool:
    """Only an acknowledged write renews a lease: a server that answers a ping may itself be cut off."""
    return is_write


# Reads at followers.


def may_assure(has_lease: bool) -> bool:
    """Only a leader whose lease holds may assure followers of what is visible."""
    return has_lease


def assurance_awaits_clock() -> bool:
    """Before a leader assures a follower, it checks its lease by a clock read after the inquiry came."""
    return True


def assured_since(asked_at: Millis, heard_at: Millis) -> Millis:
    """An assurance counts from the sending of the inquiry: how long the answer took is not known."""
    return asked_at


def covers(applied: Offset, apply_offset: Offset) -> bool:
    """A follower shows what was visible elsewhere once it has applied all of it."""
    return applied >= apply_offset


def is_recent(age_ms: int, max_staleness_ms: Millis) -> bool:
    """Whether an age is within the staleness bound, even by a clock that runs a seventh slow."""
    return 7 * (age_ms + 1) <= 6 * max_staleness_ms


def staleness_checked_after_sampling() -> bool:
    """The staleness bound is checked after the state is sampled and before the reply, as a lease is."""
    return True


def reached_token(applied: Offset, after: Offset) -> bool:
    """A follower answers a caller only after it has applied all that the caller has seen before."""
    return applied >= after


# Rule 9: resign.


def resign_is_meant(request: Epoch, mine: Epoch) -> bool:
    """A request to resign is obeyed only by the leader of the epoch that it names."""
    return request == mine


def appends_while_resigning(is_finishing: bool) -> bool:
    """A resigning leader takes appends only while its driver finishes work, not during the hand-over."""
    return is_finishing


def may_hand_over(target_end: Offset, applied: Offset, log_end: Offset) -> bool:
    """A leader hands over only once the target holds the whole log and all of it is applied here.

    So no accepted append is left in doubt.
    """
    return target_end >= log_end and applied >= log_end


def hand_over_version(version: int) -> int | None:
    """The hand-over is conditional on the record's version."""
    return version


def reads_while_handing_over() -> bool:
    """A leader stops answering reads before it sends the compare-and-set of a hand-over."""
    return False


def resign_gave_up(now: Millis, deadline: Millis) -> bool:
    """A resignation is bounded in time: after its deadline the leader resumes."""
    return now >= deadline


def resumes_unsettled() -> bool:
    """Once a compare-and-set was sent, only its settled failure lets the leader resume."""
    return False


# Rule 10: metastore replies.


def unknown_is_settled() -> bool:
    """A lost reply leaves the change possible until a read settles it."""
    return False


def settles_with_sync() -> bool:
    """The read that settles a lost reply comes after ``sync``."""
    return True


def epoch_has_moved(seen: Epoch, mine: Epoch) -> bool:
    """A leader steps down once it has seen a newer epoch than its own."""
    return seen > mine


# Rule 11: transport.


def continues_log(first: Offset, log_end: Offset) -> bool:
    """A follower takes frames only if they leave no gap after the end of its log."""
    return first <= log_end


def already_held(end: Offset, log_end: Offset) -> bool:
    """A follower skips frames that its log already holds."""
    return end <= log_end


# Rule 12: corruption. And rule 5: what makes a storage id fresh.


def fresh_id_when_corrupt() -> bool:
    """A replica with a corrupt log takes a fresh storage id: corruption is never healed by deleting."""
    return True


def fresh_id_when_wiped() -> bool:
    """A replica that lost its log takes a fresh storage id."""
    return True


def fresh_id_when_unclean() -> bool:
    """A replica takes a fresh storage id after a machine crash under ``replication.fsync=interval``.

    The crash may have taken what was confirmed.
    """
    return True


# The assignment.


def plan_is_current(recorded: int, known: int) -> bool:
    """A leader admits nobody to the ISR if the record follows a later assignment than the leader knows."""
    return known >= recorded


def may_let_go(assigned_in: int, assigned: int) -> bool:
    """A member that is no longer assigned leaves only when all assigned replicas are in the ISR."""
    return assigned_in == assigned


def may_leave_isr(worker: WorkerId, leader: WorkerId) -> bool:
    """A leader never drops itself: it hands over first."""
    return worker != leader


def factor_in_force(recorded: int, assigned: int) -> int:
    """min-ISR is reckoned from what the record says, whatever the leader knows of the assignment."""
    return recorded or assigned


def may_delete(record: GroupRecord, worker: WorkerId, plan: int) -> bool:
    """A replica that ``plan`` leaves out may be deleted once the record follows that plan without it.

    A record that follows a later plan will do as well.
    """
    return record.plan >= plan and record.member(worker) is None


# Regrouping.


def takes_appends(sealed: int, heard: int) -> bool:
    """A sealed log takes no more appends, whatever its leader has heard of the grouping to follow."""
    return sealed == 0


def may_unseal(number: int, present: int, abandoned: int) -> bool:
    """A log is unsealed only if the assignment says that the grouping it was sealed for was abandoned.

    An assignment that does not mention that grouping says nothing; and one that names a later abandoned
    grouping says nothing of one that took place.
    """
    return present < number <= abandoned


def reads_while_closing() -> bool:
    """A leader whose group is about to be replaced by another grouping answers no reads.

    The groups to follow may serve at any moment.
    """
    return False


# Producers.


def recognizes_duplicates() -> bool:
    """A batch that is sent twice is stored once."""
    return True


def duplicate_waits() -> bool:
    """A duplicate of a batch that is not acknowledged yet is acknowledged only with the original."""
    return True


def refuses_gaps() -> bool:
    """A batch whose sequence leaves a gap is refused."""
    return True


def refuses_unknown_producers() -> bool:
    """An append from a producer that is not admitted, or was forgotten, is refused."""
    return True


def truncation_takes_back_sequences() -> bool:
    """Truncating the log also takes back the sequences of the entries that it drops."""
    return True


def is_young(age_ms: int, producer_expiry_ms: Millis) -> bool:
    """A producer's id is admitted only while nobody can have forgotten it: half the expiry, either way."""
    return -producer_expiry_ms < 2 * age_ms < producer_expiry_ms


def begins_round(sequence: int, expected: int) -> bool:
    """A named producer may leave a round unfinished and begin a later one, but only at its first record."""
    return sequence > expected and index_of(sequence) == 0


def may_claim(claimed: int, sequence: int) -> bool:
    """A round is claimed for one content only, and once it is claimed no earlier round can be."""
    return round_of(sequence) > round_of(claimed)


def may_forget(producer: ProducerId, silent_ms: int, expiry_ms: Millis) -> bool:
    """Whether a producer that has been silent for so long may be forgotten.

    A lasting producer never is: it may come back at any time and repeat what it wrote last. Another named
    producer is remembered for as long as its users were promised.
    """
    return not is_lasting(producer) and silent_ms >= silence_ms_of(producer, expiry_ms)


# Retention and far horizon.


def cut_limit(durably_applied: Offset, needed_by_others: Offset) -> Offset:
    """The log is cut only below what is durably applied here and no replica within range still needs."""
    return min(durably_applied, needed_by_others)


def pin_start(images: Sequence[Offset]) -> Offset:
    """A transfer needs the leader's log from the lowest of its images on."""
    return min(images)


def first_entry(lowest: Offset, highest: Offset) -> Offset:
    """The images of a transfer are brought to one offset by the entries from the lowest of them on."""
    return lowest


def is_block_of(hashed: bytes, listed: bytes) -> bool:
    """A block is taken only if its hash is the one that the image lists."""
    return hashed == listed


def may_install(state_end: Offset, log_end: Offset) -> bool:
    """A state is installed only if it reaches at least as far as this log does."""
    return state_end >= log_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The table of guards, one per clause; each default is the function of that name above."""

    confirmable_end: Callable[[Offset, Offset], Offset] = confirmable_end
    own_end: Callable[[Offset, Offset], Offset] = own_end
    failed_write_stops: Callable[[], bool] = failed_write_stops
    is_same_log: Callable[[int, int], bool] = is_same_log
    must_hold: Callable[[AbstractSet[Member], AbstractSet[Member]], AbstractSet[Member]] = must_hold
    held_by_all: Callable[[Sequence[Offset], int], Offset] = held_by_all
    enough_members: Callable[[int, int], bool] = enough_members
    counts_as_member: Callable[[str, Member], bool] = counts_as_member
    follower_apply_limit: Callable[[Offset, Offset, Offset], Offset] = follower_apply_limit
    acknowledged_end: Callable[[Offset, Offset], Offset] = acknowledged_end
    acknowledged_own_end: Callable[[Offset, Offset], Offset] = acknowledged_own_end
    may_acknowledge_early: Callable[[int, int], bool] = may_acknowledge_early
    advertised_end: Callable[[Offset, Offset], Offset] = advertised_end
    shows_acknowledged: Callable[[Offset, Offset], bool] = shows_acknowledged
    lag_expired: Callable[[int, Millis], bool] = lag_expired
    may_shrink_to: Callable[[int, int], bool] = may_shrink_to
    may_replace: Callable[[], bool] = may_replace
    stalled_refuses: Callable[[], bool] = stalled_refuses
    within_bound: Callable[[int, int], bool] = within_bound
    confirmed_by_hello: Callable[[Offset], Offset | None] = confirmed_by_hello
    reached_apply_offset: Callable[[Offset, Offset], bool] = reached_apply_offset
    reached_epoch_start: Callable[[Offset, Offset], bool] = reached_epoch_start
    holds_overdue: Callable[[Offset, Offset], bool] = holds_overdue
    registrations_to_check: Callable[[tuple[Registration, ...]], tuple[Registration, ...]] = (
        registrations_to_check
    )
    isr_change_version: Callable[[int], int | None] = isr_change_version
    may_stand: Callable[[GroupRecord, Member], bool] = may_stand
    leader_is_gone: Callable[[bool | None], bool] = leader_is_gone
    election_version: Callable[[int], int | None] = election_version
    next_epoch: Callable[[Epoch], Epoch] = next_epoch
    leads_as: Callable[[GroupRecord, WorkerId, Incarnation], bool] = leads_as
    unclean_is_allowed: Callable[[bool], bool] = unclean_is_allowed
    may_stand_unclean: Callable[[bool], bool] = may_stand_unclean
    yields_to: Callable[[tuple[Epoch, Offset], tuple[Epoch, Offset]], bool] = yields_to
    truncation_point: Callable[[Offset, Offset], Offset] = truncation_point
    find_divergence: Callable[[History, Offset, History, Offset], Offset | None] = find_divergence
    lineage_is_current: Callable[[int, int, bool], bool] = lineage_is_current
    may_serve: Callable[[Offset, Offset], bool] = may_serve
    confirm_epoch_is_mine: Callable[[Epoch, Epoch], bool] = confirm_epoch_is_mine
    entries_epoch_is_mine: Callable[[Epoch, Epoch], bool] = entries_epoch_is_mine
    incarnation_is_known: Callable[[Incarnation, Incarnation], bool] = incarnation_is_known
    lease_holds: Callable[[Millis, Millis], bool] = lease_holds
    lease_checked_after_sampling: Callable[[], bool] = lease_checked_after_sampling
    lease_end: Callable[[Millis, Millis, Millis], Millis] = lease_end
    lease_duration: Callable[[Millis, Millis, Millis], Millis] = lease_duration
    renews_lease: Callable[[bool], bool] = renews_lease
    may_assure: Callable[[bool], bool] = may_assure
    assurance_awaits_clock: Callable[[], bool] = assurance_awaits_clock
    assured_since: Callable[[Millis, Millis], Millis] = assured_since
    covers: Callable[[Offset, Offset], bool] = covers
    is_recent: Callable[[int, Millis], bool] = is_recent
    staleness_checked_after_sampling: Callable[[], bool] = staleness_checked_after_sampling
    reached_token: Callable[[Offset, Offset], bool] = reached_token
    resign_is_meant: Callable[[Epoch, Epoch], bool] = resign_is_meant
    appends_while_resigning: Callable[[bool], bool] = appends_while_resigning
    may_hand_over: Callable[[Offset, Offset, Offset], bool] = may_hand_over
    hand_over_version: Callable[[int], int | None] = hand_over_version
    reads_while_handing_over: Callable[[], bool] = reads_while_handing_over
    resign_gave_up: Callable[[Millis, Millis], bool] = resign_gave_up
    resumes_unsettled: Callable[[], bool] = resumes_unsettled
    unknown_is_settled: Callable[[], bool] = unknown_is_settled
    settles_with_sync: Callable[[], bool] = settles_with_sync
    epoch_has_moved: Callable[[Epoch, Epoch], bool] = epoch_has_moved
    continues_log: Callable[[Offset, Offset], bool] = continues_log
    already_held: Callable[[Offset, Offset], bool] = already_held
    fresh_id_when_corrupt: Callable[[], bool] = fresh_id_when_corrupt
    fresh_id_when_wiped: Callable[[], bool] = fresh_id_when_wiped
    fresh_id_when_unclean: Callable[[], bool] = fresh_id_when_unclean
    plan_is_current: Callable[[int, int], bool] = plan_is_current
    may_let_go: Callable[[int, int], bool] = may_let_go
    may_leave_isr: Callable[[WorkerId, WorkerId], bool] = may_leave_isr
    factor_in_force: Callable[[int, int], int] = factor_in_force
    may_delete: Callable[[GroupRecord, WorkerId, int], bool] = may_delete
    takes_appends: Callable[[int, int], bool] = takes_appends
    may_unseal: Callable[[int, int, int], bool] = may_unseal
    reads_while_closing: Callable[[], bool] = reads_while_closing
    recognizes_duplicates: Callable[[], bool] = recognizes_duplicates
    duplicate_waits: Callable[[], bool] = duplicate_waits
    refuses_gaps: Callable[[], bool] = refuses_gaps
    refuses_unknown_producers: Callable[[], bool] = refuses_unknown_producers
    truncation_takes_back_sequences: Callable[[], bool] = truncation_takes_back_sequences
    is_young: Callable[[int, Millis], bool] = is_young
    begins_round: Callable[[int, int], bool] = begins_round
    may_claim: Callable[[int, int], bool] = may_claim
    may_forget: Callable[[ProducerId, int, Millis], bool] = may_forget
    cut_limit: Callable[[Offset, Offset], Offset] = cut_limit
    pin_start: Callable[[Sequence[Offset]], Offset] = pin_start
    first_entry: Callable[[Offset, Offset], Offset] = first_entry
    is_block_of: Callable[[bytes, bytes], bool] = is_block_of
    may_install: Callable[[Offset, Offset], bool] = may_install


GUARDS = Guards()
