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
    """A coordinator continues no version that another one primed: its reports went to that one."""
    return not primed_here


def same_speaker(known: Speaker | None, speaker: Speaker) -> bool:
    """In one version a task is spoken for by one participant: another one has another run, or none."""
    return known is None or known == speaker


def holds_all(
    expected: Mapping[tuple[TaskId, Speaker], int], held: Mapping[tuple[TaskId, Speaker], int]
) -> bool:
    """Calls are run when all that were sent are here, by the leaders whose runs count."""
    return all(held.get(sender) == count for sender, count in expected.items())


def calls_to_run(
    expected: Collection[tuple[TaskId, Speaker]], held: Collection[tuple[TaskId, Speaker]]
) -> list[tuple[TaskId, Speaker]]:
    """Those of the leaders whose runs count, in an order that does not depend on the network."""
    return sorted(expected)


def runs_again(ran: bool) -> bool:
    """What was run is told again, not run again."""
    return not ran


def all_staged(missing: Collection[TaskId]) -> bool:
    """The commit is replicated only when every task that ran anything has staged, also if it changed nothing:
    others acted on what it read, and only a leader that still leads has read the truth."""
    return not missing


def is_staged(applied: bool) -> bool:
    """Staged means replicated and applied, not sent."""
    return applied


def is_committed(stored: Batch | None, version: Version) -> bool:
    """Tasks are told to roll when the commit is applied, not before."""
    return stored is not None and stored.version == version and stored.committed


def all_rolled(missing: Collection[TaskId]) -> bool:
    """The next id is primed, hence reads, when this one took effect everywhere."""
    return not missing


def is_everywhere(id_: int, everywhere: int) -> bool:
    """An appender that waits is told when a microbatch has taken effect on all its tasks, not on one."""
    return id_ <= everywhere


def returned_then(returned: int, rolled: int) -> bool:
    """What an earlier leader's run returned is told if its id is the one that took effect last: a later one
    may be staged by then."""
    return returned == rolled


def results_count(staged: bool) -> bool:
    """What a run returned is told if it is the one that was staged here. Another one of the same version, for
    messages that came late, has no effect."""
    return staged


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards(EntryGuards):
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
