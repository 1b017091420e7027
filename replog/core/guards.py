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
    """The maximal ISR: committed, plus an expansion not known to have failed, plus a shrink not known
    to have committed."""
    return committed | proposed


def held_by_all(ends: Sequence[Offset], min_isr: int) -> Offset:
    """Every member of the maximal ISR holds an entry before it is applied, not just min-ISR of them."""
    return min(ends)


def enough_members(committed: int, min_isr: int) -> bool:
    """The committed ISR has at least min-ISR members."""
    return committed >= min_isr


def counts_as_member(storage: str, member: Member) -> bool:
    """What a wiped worker holds under its new storage id does not count for the old one."""
    return storage == member.storage


def follower_apply_limit(apply_offset: Offset, durable_end: Offset, log_end: Offset) -> Offset:
    """A follower applies what its leader shows and its own disk holds."""
    return min(apply_offset, durable_end)


def acknowledged_end(apply_offset: Offset, log_end: Offset) -> Offset:
    """An append is acknowledged when it is decided, and so held by all;"""
    return apply_offset


def acknowledged_own_end(applied: Offset, apply_offset: Offset) -> Offset:
    """one whose appender goes on from the applied state, when it is there."""
    return applied


def may_acknowledge_early(unapplied_bytes: int, early_bytes: int) -> bool:
    """Before it is applied, while little is not: else producers would run ahead of what can be read."""
    return unapplied_bytes <= early_bytes


def advertised_end(shown_end: Offset, apply_offset: Offset) -> Offset:
    """Followers hear of, and so show, what a read at the leader shows too: who goes from one of them to the
    leader does not go back."""
    return shown_end


def shows_acknowledged(applied: Offset, promised: Offset) -> bool:
    """A leader's read waits until all that was acknowledged before it is applied."""
    return applied >= promised


# Rule 3: stall.


def lag_expired(waited_ms: int, max_time_lag_ms: Millis) -> bool:
    """Laggards leave the ISR when the stall timer expires."""
    return waited_ms >= max_time_lag_ms


def may_shrink_to(members: int, min_isr: int) -> bool:
    """If dropping them would break min-ISR, nothing moves."""
    return members >= min_isr


def may_replace() -> bool:
    """A caught-up newcomer may take a dead member's place in one compare-and-set."""
    return True


def stalled_refuses() -> bool:
    """A stalled group refuses appends instead of gathering them."""
    return True


def within_bound(unapplied: int, max_unapplied: int) -> bool:
    """Unapplied entries are bounded."""
    return unapplied < max_unapplied


# Rule 4: enter the ISR.


def confirmed_by_hello(claimed_end: Offset) -> Offset | None:
    """Only a confirmation of this epoch counts; a Hello claims what may still diverge."""
    return None


def reached_apply_offset(confirmed: Offset, apply_offset: Offset) -> bool:
    return confirmed >= apply_offset


def reached_epoch_start(confirmed: Offset, epoch_start: Offset) -> bool:
    """The leader's apply offset may lag behind what its predecessor showed; its epoch start does not."""
    return confirmed >= epoch_start


def holds_overdue(confirmed: Offset, overdue_end: Offset) -> bool:
    """An entry that has waited too long is held by newcomers too: who lacks it would have to leave again."""
    return confirmed >= overdue_end


def registrations_to_check(newcomers: tuple[Registration, ...]) -> tuple[Registration, ...]:
    """The change commits only while that very incarnation of the newcomer is registered."""
    return newcomers


def isr_change_version(version: int) -> int | None:
    """An ISR change is conditional on the record's version."""
    return version


# Rule 5: elect.


def may_stand(record: GroupRecord, candidate: Member) -> bool:
    """Only a replica whose own storage id is listed may stand."""
    return candidate in record.isr


def leader_is_gone(tested: bool | None) -> bool:
    """The leader's registration was *tested* after the record changed, and is gone."""
    return tested is False


def election_version(version: int) -> int | None:
    """Candidates race with one compare-and-set."""
    return version


def next_epoch(epoch: Epoch) -> Epoch:
    return Epoch(epoch + 1)


def leads_as(record: GroupRecord, worker: WorkerId, incarnation: Incarnation) -> bool:
    """A new incarnation never continues an epoch."""
    return record.leader == worker and record.leader_incarnation == incarnation


def unclean_is_allowed(option: bool) -> bool:
    """Outside the ISR only if the operator said so,"""
    return option


def may_stand_unclean(member_alive: bool) -> bool:
    """and only if no member is there to stand;"""
    return not member_alive


def yields_to(theirs: tuple[Epoch, Offset], ours: tuple[Epoch, Offset]) -> bool:
    """the longest log goes first: that of the latest epoch, then that which reaches furthest."""
    return theirs > ours


# Rule 6: new epoch.


def truncation_point(parting: Offset, apply_offset: Offset) -> Offset:
    """Logs part by epoch, never by apply offset."""
    return parting


def find_divergence(mine: History, my_end: Offset, theirs: History, their_end: Offset) -> Offset | None:
    """Iterate back to the latest epoch both logs have."""
    return divergence(mine, my_end, theirs, their_end)


def lineage_is_current(attempt: int, expected: int, reconciled: bool) -> bool:
    """A lineage is obeyed once: an old copy of it knows less than the follower has confirmed since."""
    return attempt == expected and not reconciled


def may_serve(applied: Offset, epoch_start: Offset) -> bool:
    """A new leader serves nothing before what it inherited is applied."""
    return applied > epoch_start


# Rule 7: fence.


def confirm_epoch_is_mine(theirs: Epoch, mine: Epoch) -> bool:
    return theirs == mine


def entries_epoch_is_mine(theirs: Epoch, mine: Epoch) -> bool:
    return theirs == mine


def incarnation_is_known(theirs: Incarnation, known: Incarnation) -> bool:
    """A confirmation counts only from the incarnation that said hello."""
    return theirs == known


# Rule 8: lease.


def lease_holds(now: Millis, lease_end: Millis) -> bool:
    return now < lease_end


def lease_checked_after_sampling() -> bool:
    """After sampling the state and before replying; a check before it may be from before a pause."""
    return True


def lease_end(sent_at: Millis, acknowledged_at: Millis, lease_ms: Millis) -> Millis:
    """Timed from the sending of the write that renewed it."""
    return Millis(sent_at + lease_ms)


def lease_duration(session_timeout_ms: Millis, tick_ms: Millis, margin_ms: Millis) -> Millis:
    """Shorter than the session by a tick and a margin for clocks that drift."""
    return Millis(session_timeout_ms - tick_ms - margin_ms)


def renews_lease(is_write: bool) -> bool:
    """Only an acknowledged write: a ping is answered by a server that may itself be cut off."""
    return is_write


# Reads at followers.


def may_assure(has_lease: bool) -> bool:
    """Only a leader that could serve a read says what is visible."""
    return has_lease


def assurance_awaits_clock() -> bool:
    """Its lease is checked by a clock that was read after the inquiry came."""
    return True


def assured_since(asked_at: Millis, heard_at: Millis) -> Millis:
    """An assurance counts from the sending of the inquiry: how long the answer took is not known."""
    return asked_at


def covers(applied: Offset, apply_offset: Offset) -> bool:
    """A follower shows what was visible elsewhere once it has applied all of it."""
    return applied >= apply_offset


def is_recent(age_ms: int, max_staleness_ms: Millis) -> bool:
    """Within the bound, also by a clock that runs slow."""
    return 7 * (age_ms + 1) <= 6 * max_staleness_ms


def staleness_checked_after_sampling() -> bool:
    """After sampling the state and before replying, like a lease."""
    return True


def reached_token(applied: Offset, after: Offset) -> bool:
    """A caller's reads never go back."""
    return applied >= after


# Rule 9: resign.


def resign_is_meant(request: Epoch, mine: Epoch) -> bool:
    return request == mine


def appends_while_resigning(is_finishing: bool) -> bool:
    """Only while something is finished that takes appends; never while the log is handed over."""
    return is_finishing


def may_hand_over(target_end: Offset, applied: Offset, log_end: Offset) -> bool:
    """The target has everything and everything is applied: no accepted append is left in doubt."""
    return target_end >= log_end and applied >= log_end


def hand_over_version(version: int) -> int | None:
    """The hand-over is conditional on the version."""
    return version


def reads_while_handing_over() -> bool:
    """Reads stop before the compare-and-set is sent."""
    return False


def resign_gave_up(now: Millis, deadline: Millis) -> bool:
    """Bounded in time."""
    return now >= deadline


def resumes_unsettled() -> bool:
    """Once a compare-and-set was sent, only its settled failure lets the leader resume."""
    return False


# Rule 10: metastore replies.


def unknown_is_settled() -> bool:
    """A lost reply leaves the change possible until a read settles it."""
    return False


def settles_with_sync() -> bool:
    """That read comes after ``sync``."""
    return True


def epoch_has_moved(seen: Epoch, mine: Epoch) -> bool:
    """Step down if it has."""
    return seen > mine


# Rule 11: transport.


def continues_log(first: Offset, log_end: Offset) -> bool:
    return first <= log_end


def already_held(end: Offset, log_end: Offset) -> bool:
    return end <= log_end


# Rule 12: corruption. And rule 5: what makes a storage id fresh.


def fresh_id_when_corrupt() -> bool:
    """Corruption is never healed by deleting."""
    return True


def fresh_id_when_wiped() -> bool:
    return True


def fresh_id_when_unclean() -> bool:
    """Under ``replication.fsync=interval``, a machine crash may have taken what was confirmed."""
    return True


# The assignment.


def plan_is_current(recorded: int, known: int) -> bool:
    """A leader that knows only an earlier assignment than the record follows takes nobody in."""
    return known >= recorded


def may_let_go(assigned_in: int, assigned: int) -> bool:
    """A member that is no longer assigned goes when all who are assigned are in."""
    return assigned_in == assigned


def may_leave_isr(worker: WorkerId, leader: WorkerId) -> bool:
    """A leader never drops itself: it hands over first."""
    return worker != leader


def factor_in_force(recorded: int, assigned: int) -> int:
    """min-ISR is reckoned from what the record says, whatever the leader knows of the assignment."""
    return recorded or assigned


def may_delete(record: GroupRecord, worker: WorkerId, plan: int) -> bool:
    """A replica that ``plan`` leaves out is deleted when the record follows that plan, or a later one, and
    does not list it."""
    return record.plan >= plan and record.member(worker) is None


# Regrouping.


def takes_appends(sealed: int, heard: int) -> bool:
    """A log that is sealed takes nothing more, whatever its leader has heard of the grouping to follow."""
    return sealed == 0


def may_unseal(number: int, present: int, abandoned: int) -> bool:
    """The assignment says that the grouping was given up. That it does not mention it says nothing; and a
    later one that was given up says nothing of one that took place."""
    return present < number <= abandoned


def reads_while_closing() -> bool:
    """The groups to follow may serve at any moment: who leads the old ones shows nothing more."""
    return False


# Producers.


def recognizes_duplicates() -> bool:
    return True


def duplicate_waits() -> bool:
    """A duplicate of a batch that is not acknowledged yet is acknowledged only with the original."""
    return True


def refuses_gaps() -> bool:
    return True


def refuses_unknown_producers() -> bool:
    return True


def truncation_takes_back_sequences() -> bool:
    return True


def is_young(age_ms: int, producer_expiry_ms: Millis) -> bool:
    """An id is admitted only while nobody can have forgotten it: half of the expiry, either way."""
    return -producer_expiry_ms < 2 * age_ms < producer_expiry_ms


def begins_round(sequence: int, expected: int) -> bool:
    """A named producer leaves a round where it is, and begins a later one: at its first record."""
    return sequence > expected and index_of(sequence) == 0


def may_claim(claimed: int, sequence: int) -> bool:
    """A round is claimed for one content, and none before it any more."""
    return round_of(sequence) > round_of(claimed)


def may_forget(producer: ProducerId, silent_ms: int, expiry_ms: Millis) -> bool:
    """A lasting one comes back, whenever that is, and may repeat what it wrote last; another with a name, for
    as long as its users were promised."""
    return not is_lasting(producer) and silent_ms >= silence_ms_of(producer, expiry_ms)


# Retention and far horizon.


def cut_limit(durably_applied: Offset, needed_by_others: Offset) -> Offset:
    """Cut below what is durably applied here and no replica within range still needs."""
    return min(durably_applied, needed_by_others)


def pin_start(images: Sequence[Offset]) -> Offset:
    """A transfer needs the log from the lowest of its images on."""
    return min(images)


def first_entry(lowest: Offset, highest: Offset) -> Offset:
    """Images are brought together by the entries from the lowest of them on."""
    return lowest


def is_block_of(hashed: bytes, listed: bytes) -> bool:
    """A block is taken only if it is the one that the image lists."""
    return hashed == listed


def may_install(state_end: Offset, log_end: Offset) -> bool:
    """An installed state never takes back what this log holds."""
    return state_end >= log_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The table. Each default is the function of that name above."""

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
