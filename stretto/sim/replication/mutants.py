"""The core with one clause of one rule missing. Each must be caught by a checker.

A mutant that survives means that the simulator is too weak, or that the clause is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stretto.replog.core.guards import GUARDS, Guards
from stretto.replog.core.lineage import History
from stretto.replog.core.producers import round_of
from stretto.vocabulary.types import Offset


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _by_last_epoch_only(mine: History, my_end: Offset, theirs: History, their_end: Offset) -> Offset | None:
    """Compare by the last epoch only, and look no further back: the fault that KIP-279 mended."""
    if not mine:
        return Offset(0)
    end = Offset(0)
    for index, each in enumerate(theirs):
        if each.epoch <= mine[-1].epoch:
            end = theirs[index + 1].start if index + 1 < len(theirs) else their_end
    return min(my_end, end)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """The guards with one clause missing."""

    name: str
    rule: str
    without: str
    """The clause that is missing, as what it demands."""
    changes: dict[str, Callable[..., Any]]

    @property
    def guards(self) -> Guards:
        return replace(GUARDS, **self.changes)


def _mutant(rule: str, guard: str, without: str, instead: Callable[..., Any], name: str = "") -> Mutant:
    return Mutant(name=name or guard, rule=rule, without=without, changes={guard: instead})


MUTANTS: tuple[Mutant, ...] = (
    _mutant("1", "confirmable_end", "a follower confirms only what is durable", lambda durable, end: end),
    _mutant("1", "own_end", "the leader counts itself only when durable", lambda durable, end: end),
    _mutant("1", "failed_write_stops", "a failed write stops the replica", _always(False)),
    _mutant("1", "is_same_log", "a write counts only for the log it was made to", _always(True)),
    _mutant(
        "2",
        "must_hold",
        "a pending expansion counts",
        lambda committed, proposed: committed,
        "ignores_pending_expansion",
    ),
    _mutant(
        "2, 3",
        "must_hold",
        "laggards leave before the entry is applied",
        lambda committed, proposed: proposed,
        "ignores_pending_shrink",
    ),
    _mutant(
        "2",
        "held_by_all",
        "every member holds an entry, not just min-ISR",
        lambda ends, min_isr: sorted(ends, reverse=True)[min(min_isr, len(ends)) - 1],
    ),
    _mutant("2", "enough_members", "the committed ISR has min-ISR members", _always(True)),
    _mutant("2", "acknowledged_end", "only what is decided is acknowledged", lambda decided, end: end),
    _mutant(
        "2",
        "acknowledged_own_end",
        "who goes on from what is applied is answered then",
        lambda applied, decided: decided,
    ),
    _mutant("2", "may_acknowledge_early", "producers do not run ahead of the state", _always(True)),
    _mutant(
        "2",
        "advertised_end",
        "followers show nothing that the leader does not",
        lambda shown, decided: decided,
    ),
    _mutant("2", "shows_acknowledged", "a read waits for what was acknowledged before it", _always(True)),
    _mutant("2, 5", "counts_as_member", "a new disk does not count for the old one", _always(True)),
    _mutant(
        "2",
        "follower_apply_limit",
        "a follower applies only what its disk holds",
        lambda apply_offset, durable, end: min(apply_offset, end),
    ),
    _mutant("3", "lag_expired", "laggards leave when the stall timer expires", _always(False)),
    _mutant("3", "may_shrink_to", "min-ISR is never broken by a shrink", _always(True)),
    _mutant("3", "may_replace", "a newcomer may replace a dead member", _always(False)),
    _mutant("3", "stalled_refuses", "a stalled group refuses appends", _always(False)),
    _mutant("3", "within_bound", "unapplied entries are bounded", _always(True)),
    _mutant("4", "confirmed_by_hello", "entry is by a confirmation of this epoch", lambda claimed: claimed),
    _mutant("4", "reached_apply_offset", "a newcomer has reached the apply offset", _always(True)),
    _mutant("4", "reached_epoch_start", "a newcomer has reached the epoch's start", _always(True)),
    _mutant("4", "holds_overdue", "a newcomer holds what has waited too long", _always(True)),
    _mutant("4", "registrations_to_check", "the newcomer's incarnation is registered", _always(())),
    _mutant("4, 10", "isr_change_version", "ISR changes are conditional on the version", _always(None)),
    _mutant("5", "may_stand", "only a listed storage id may stand", _always(True), "anybody_may_stand"),
    _mutant(
        "5",
        "may_stand",
        "the storage id counts, not the worker",
        lambda record, me: record.member(me.worker) is not None,
        "worker_instead_of_storage_id",
    ),
    _mutant(
        "5",
        "leader_is_gone",
        "the leader's registration is tested",
        lambda tested: tested is not True,
    ),
    _mutant("5", "election_version", "elections are conditional on the version", _always(None)),
    _mutant("5", "next_epoch", "each leader has an epoch of its own", lambda epoch: epoch),
    _mutant(
        "5",
        "leads_as",
        "a new incarnation never continues an epoch",
        lambda record, worker, incarnation: record.leader == worker,
    ),
    _mutant(
        "5",
        "may_stand_unclean",
        "an unclean election needs that no member is alive",
        _always(True),
    ),
    _mutant("5", "unclean_is_allowed", "an unclean election needs the option", _always(True)),
    _mutant("5", "yields_to", "the longest log goes first in an unclean election", _always(False)),
    _mutant("5", "fresh_id_when_wiped", "a wiped disk gets a fresh id", _always(False)),
    _mutant("5", "fresh_id_when_unclean", "an unclean disk gets a fresh id", _always(False)),
    _mutant(
        "6",
        "truncation_point",
        "logs part by epoch, not by apply offset",
        lambda parting, apply_offset: min(parting, apply_offset),
    ),
    _mutant("6", "find_divergence", "the search for the parting goes back", _by_last_epoch_only),
    _mutant("6", "lineage_is_current", "a lineage is obeyed once", _always(True)),
    _mutant("6", "may_serve", "a leader serves after what it inherited is applied", _always(True)),
    _mutant("7", "confirm_epoch_is_mine", "a leader refuses confirmations of other epochs", _always(True)),
    _mutant("7", "entries_epoch_is_mine", "a follower refuses entries of other epochs", _always(True)),
    _mutant("7", "incarnation_is_known", "a leader refuses other incarnations", _always(True)),
    _mutant("8", "lease_holds", "reads need a lease", _always(True)),
    _mutant("8", "lease_checked_after_sampling", "the lease is checked after sampling", _always(False)),
    _mutant(
        "8",
        "lease_end",
        "the lease is timed from the sending",
        lambda sent_at, acknowledged_at, lease_ms: acknowledged_at + lease_ms,
    ),
    _mutant(
        "8", "lease_duration", "the lease is shorter than the session", lambda session, tick, margin: session
    ),
    _mutant("8", "renews_lease", "only a write renews the lease", _always(True)),
    _mutant("reads", "may_assure", "a leader's word needs its lease", _always(True)),
    _mutant("reads", "assurance_awaits_clock", "by a clock read after it was asked", _always(False)),
    _mutant(
        "reads",
        "assured_since",
        "it counts from the sending of the question",
        lambda asked_at, heard_at: heard_at,
    ),
    _mutant("reads", "covers", "a follower has applied what was visible", _always(True)),
    _mutant(
        "reads",
        "is_recent",
        "a bound has a margin for clocks",
        lambda age_ms, max_staleness_ms: age_ms <= max_staleness_ms,
    ),
    _mutant(
        "reads",
        "staleness_checked_after_sampling",
        "staleness is checked after sampling",
        _always(False),
    ),
    _mutant("reads", "reached_token", "a caller's reads never go back", _always(True)),
    _mutant("9", "resign_is_meant", "a resign request is for one epoch", _always(True)),
    _mutant("9", "appends_while_resigning", "a resigning leader takes no appends", _always(True)),
    _mutant("9", "may_hand_over", "the target has everything first", _always(True)),
    _mutant("9", "hand_over_version", "the hand-over is conditional on the version", _always(None)),
    _mutant("9", "reads_while_handing_over", "reads stop before the hand-over", _always(True)),
    _mutant("9", "resign_gave_up", "resigning is bounded in time", _always(False)),
    _mutant("9, 10", "resumes_unsettled", "a sent hand-over is settled first", _always(True)),
    _mutant("10", "unknown_is_settled", "a lost reply leaves the change possible", _always(True)),
    _mutant("10", "settles_with_sync", "it is settled by a read after sync", _always(False)),
    _mutant("10", "epoch_has_moved", "a leader steps down when the epoch moved", _always(False)),
    _mutant("11", "continues_log", "entries continue the log", _always(True)),
    _mutant("11", "already_held", "entries it has are skipped", _always(False)),
    _mutant("12", "fresh_id_when_corrupt", "corruption is not healed by deleting", _always(False)),
    _mutant("assignment", "plan_is_current", "a leader behind the record takes nobody in", _always(True)),
    _mutant("assignment", "may_let_go", "members go when all who are assigned are in", _always(True)),
    _mutant("assignment", "may_leave_isr", "a leader hands over before it goes", _always(True)),
    _mutant(
        "assignment",
        "factor_in_force",
        "min-ISR is reckoned from the record",
        lambda recorded, assigned: assigned,
    ),
    _mutant(
        "assignment",
        "may_delete",
        "a member keeps its data",
        lambda record, worker, plan: record.plan >= plan,
        "deletes_what_is_listed",
    ),
    _mutant(
        "assignment",
        "may_delete",
        "data is kept until the record follows the assignment",
        lambda record, worker, plan: record.member(worker) is None,
        "deletes_before_the_record_follows",
    ),
    _mutant(
        "regrouping",
        "takes_appends",
        "the seal is an entry, not what a leader has heard",
        lambda sealed, heard: heard == 0,
    ),
    _mutant(
        "regrouping",
        "may_unseal",
        "a grouping that is not mentioned is not abandoned",
        _always(True),
        "unseals_what_is_not_mentioned",
    ),
    _mutant(
        "regrouping",
        "may_unseal",
        "a grouping that took place was not abandoned",
        lambda number, present, abandoned: number <= abandoned,
        "unseals_what_took_place",
    ),
    _mutant("regrouping", "reads_while_closing", "no reads when another grouping may serve", _always(True)),
    _mutant("producers", "recognizes_duplicates", "duplicates are recognized", _always(False)),
    _mutant("producers", "duplicate_waits", "a duplicate waits for the original", _always(False)),
    _mutant("producers", "refuses_gaps", "gaps in the sequence are refused", _always(False)),
    _mutant("producers", "is_young", "an id is never admitted twice", _always(True)),
    _mutant("producers", "refuses_unknown_producers", "unknown producers are refused", _always(False)),
    _mutant(
        "producers", "truncation_takes_back_sequences", "truncation takes sequences back", _always(False)
    ),
    _mutant(
        "producers",
        "begins_round",
        "a round begins with its first record",
        lambda sequence, expected: sequence > expected,
    ),
    _mutant(
        "producers",
        "may_claim",
        "a round is claimed for one content",
        lambda claimed, sequence: round_of(sequence) >= round_of(claimed),
        "claims_a_round_twice",
    ),
    _mutant(
        "producers",
        "may_claim",
        "a round that is over is not claimed",
        lambda claimed, sequence: round_of(sequence) != round_of(claimed),
        "claims_an_earlier_round",
    ),
    _mutant(
        "producers",
        "may_forget",
        "a lasting producer is not forgotten",
        lambda producer, silent_ms, expiry_ms: silent_ms >= expiry_ms,
    ),
    _mutant(
        "retention",
        "cut_limit",
        "only what is durably applied is cut",
        lambda durably_applied, needed: needed,
    ),
    _mutant("far", "pin_start", "the log is kept from the lowest image on", max),
    _mutant(
        "far",
        "first_entry",
        "images are brought together from the lowest on",
        lambda lowest, highest: highest,
    ),
    _mutant("far", "is_block_of", "damaged blocks are refused", _always(True)),
    _mutant("far", "may_install", "an installed state takes nothing back", _always(True)),
)
