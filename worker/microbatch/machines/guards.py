"""The safety rules of microbatches: one function per clause, one table.

It adds to the table of :mod:`~stretto.state.microbatch_entries`, whose rules hold when an entry is applied.
Only the simulator replaces an entry, to show that without it something goes wrong. Clauses that follow from
these and from the order of a log have no guard: a version is committed, and takes effect, only as long as it
is the one that is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from stretto.state.microbatch_entries import Batch, EntryGuards, Version
from stretto.vocabulary.types import TaskId
from stretto.worker.microbatch.machines.messages import Speaker


def begins_anew(primed_here: bool) -> bool:
    """Whether a version is begun anew: a coordinator continues none that another one primed, since the
    reports on it went to that one."""
    return not primed_here


def same_speaker(known: Speaker | None, speaker: Speaker) -> bool:
    """Whether a message on a version is from the participant that speaks for its task: another one has
    another run, or none."""
    return known is None or known == speaker


def holds_all(
    expected: Mapping[tuple[TaskId, Speaker], int], held: Mapping[tuple[TaskId, Speaker], int]
) -> bool:
    """Whether calls may be run: all that were sent are here, from the leaders whose runs count."""
    return all(held.get(sender) == count for sender, count in expected.items())


def calls_to_run(
    expected: Collection[tuple[TaskId, Speaker]], held: Collection[tuple[TaskId, Speaker]]
) -> list[tuple[TaskId, Speaker]]:
    """The senders whose calls are run, those whose runs count, in an order that does not depend on the
    network."""
    return sorted(expected)


def runs_again(ran: bool) -> bool:
    """Whether a round is to be run: one that was run is reported again, not run again."""
    return not ran


def all_staged(missing: Collection[TaskId]) -> bool:
    """Whether the commit may be replicated: every task that ran anything has staged, also if it changed
    nothing. Others acted on what it read, and only a leader that still leads has read the truth."""
    return not missing


def is_staged(applied: bool) -> bool:
    """Whether a version counts as staged on a task: replicated and applied, not just sent."""
    return applied


def is_committed(stored: Batch | None, version: Version) -> bool:
    """Whether tasks may be asked to roll: when the commit is applied, not before."""
    return stored is not None and stored.version == version and stored.committed


def all_rolled(missing: Collection[TaskId]) -> bool:
    """Whether the next id may be primed, hence read: when this one took effect everywhere."""
    return not missing


def is_everywhere(id_: int, everywhere: int) -> bool:
    """Whether an appender that waits is answered: when a microbatch has taken effect on all its tasks, not on
    one."""
    return id_ <= everywhere


def returned_then(returned: int, rolled: int) -> bool:
    """Whether what an earlier leader's run returned may be reported: its id is the one that took effect last.
    A later one may be staged by then."""
    return returned == rolled


def results_count(staged: bool) -> bool:
    """Whether what a run returned may be reported: it is the run that was staged here. Another one of the
    same version, for messages that came late, has no effect."""
    return staged


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards(EntryGuards):
    """The table of the rules; only the simulator replaces an entry."""

    begins_anew: Callable[[bool], bool] = begins_anew
    same_speaker: Callable[[Speaker | None, Speaker], bool] = same_speaker
    holds_all: Callable[
        [Mapping[tuple[TaskId, Speaker], int], Mapping[tuple[TaskId, Speaker], int]], bool
    ] = holds_all
    calls_to_run: Callable[
        [Collection[tuple[TaskId, Speaker]], Collection[tuple[TaskId, Speaker]]], list[tuple[TaskId, Speaker]]
    ] = calls_to_run
    runs_again: Callable[[bool], bool] = runs_again
    all_staged: Callable[[Collection[TaskId]], bool] = all_staged
    is_staged: Callable[[bool], bool] = is_staged
    is_committed: Callable[[Batch | None, Version], bool] = is_committed
    all_rolled: Callable[[Collection[TaskId]], bool] = all_rolled
    is_everywhere: Callable[[int, int], bool] = is_everywhere
    results_count: Callable[[bool], bool] = results_count
    returned_then: Callable[[int, int], bool] = returned_then


GUARDS = Guards()
