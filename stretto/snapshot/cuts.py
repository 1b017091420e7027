"""Whether the cuts of all tasks lie between the same two microbatches.

Groups are cut one after the other, by markers in their logs. What each task says of its microbatches at its
own marker decides, not what anybody believes to have held off: the latest microbatch is committed, every task
that has a part in it has let it take effect, and none has let a later one. Then the PStates of all tasks are
those after that microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.control import MicrobatchCut
from stretto.state import microbatch_entries
from stretto.vocabulary.types import TaskId

COORDINATOR = TaskId(0)


def microbatch_at(topology: str, get: Callable[[bytes], bytes | None]) -> MicrobatchCut:
    """Read from the rows of a task how far the microbatches of one topology are."""
    batch = microbatch_entries.batch_of(topology, get)
    return MicrobatchCut(
        id=0 if batch is None else batch.version.id,
        tasks=None if batch is None else batch.tasks,
        rolled=microbatch_entries.rolled_of(topology, get),
    )


def why_torn(topology: str, cuts: Mapping[TaskId, MicrobatchCut]) -> str:
    """Why the cuts are not all between the same two microbatches; empty if they are."""
    latest = cuts[COORDINATOR]
    if latest.id and latest.tasks is None:
        return f"microbatch {latest.id} of {topology} was under way"
    for task, cut in cuts.items():
        if cut.rolled > latest.id:
            return f"task {task} was cut after microbatch {cut.rolled} of {topology}, task 0 before it"
        if task in (latest.tasks or ()) and cut.rolled < latest.id:
            return f"task {task} was cut before microbatch {latest.id} of {topology} took effect there"
    return ""
