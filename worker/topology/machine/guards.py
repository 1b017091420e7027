"""The safety rules of streams that hop: one function per clause, one table.

A hop is run exactly once, whoever leads at either end. Its sender keeps it in an *outbox* and its receiver
notes in an *inbox* that it has run; both are rows that change in the entries that they belong to. Only the
simulator replaces an entry of the table, to show that without it something goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def has_run(number: int, latest: int) -> bool:
    """Whether a hop has been taken, and is not run again: its number is not above the latest from its
    sender."""
    return number <= latest


def may_follow(after: int, latest: int) -> bool:
    """Whether a hop may be taken: only behind the one that its sender made before it, or that one would pass
    for run."""
    return after <= latest


def may_ask(number: int, settled: int, epoch: int, settled_in: int) -> bool:
    """Whether a sender may ask for a hop. One that is settled is not answered to a sender that led before, or
    leads no more: how it failed may be forgotten. A later leader asks for it only if its log is another one,
    and has a right to go on."""
    return number >= settled or epoch > settled_in


def may_send(is_applied: bool) -> bool:
    """Whether a hop may be sent: once the entry that made it is applied, so that no other run may ever use
    its number."""
    return is_applied


def may_answer(is_applied: bool, hops: int) -> bool:
    """Whether a hop may be answered: what it did is applied, and all that it led to elsewhere is answered."""
    return is_applied and hops == 0


def may_clear(is_answered: bool) -> bool:
    """Whether a hop may leave the outbox: once it is answered."""
    return is_answered


def is_settled(is_cleared: bool) -> bool:
    """Whether a receiver may forget how a hop failed: when the sender's outbox is known to be without it."""
    return is_cleared


def notes_run() -> bool:
    """Whether the entry of what a hop did also notes that it has run."""
    return True


def passes_records() -> bool:
    """Whether the progress passes records in the entry of what they did, with the hops that they made."""
    return True


def remembers_failure() -> bool:
    """Whether the entry that notes that a hop has run also has how it failed, for a sender that has to ask
    again."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The table of the rules; only the simulator replaces an entry."""

    has_run: Callable[[int, int], bool] = has_run
    may_follow: Callable[[int, int], bool] = may_follow
    may_ask: Callable[[int, int, int, int], bool] = may_ask
    may_send: Callable[[bool], bool] = may_send
    may_answer: Callable[[bool, int], bool] = may_answer
    may_clear: Callable[[bool], bool] = may_clear
    is_settled: Callable[[bool], bool] = is_settled
    notes_run: Callable[[], bool] = notes_run
    passes_records: Callable[[], bool] = passes_records
    remembers_failure: Callable[[], bool] = remembers_failure


GUARDS = Guards()
