"""The steps to another shape of a module: each one possible, and none too many."""

from __future__ import annotations

import itertools

import pytest

from stretto.cli.deploying.scaling import Move, Regroup, Shape, Step, command, plan
from stretto.conductor.planning.assignment import assign
from stretto.conductor.planning.moving import moved, settled
from stretto.conductor.planning.regrouping import possible_threads, regrouped
from stretto.errors import UsageError
from stretto.specs.assignments import Assignment

NODES = {f"n{number}": 0 for number in range(3)}


def shape(threads: int, workers: int, factor: int = 1) -> Shape:
    return Shape(threads=threads, workers=workers, factor=factor)


def launched(tasks: int, at: Shape) -> Assignment:
    return assign(
        "m",
        generation=1,
        tasks=tasks,
        threads=at.threads,
        workers=at.workers,
        factor=at.factor,
        processes=NODES,
    )


def taken(assignment: Assignment, step: Step) -> Assignment:
    """As the conductor does it; raises UsageError if it refuses."""
    if isinstance(step, Move):
        after = moved(
            "m", assignment, factor=step.factor, workers=step.workers, processes=dict.fromkeys(NODES, 0)
        )
        return settled(after)
    next_ = regrouped(assignment, threads=step.threads, generation=assignment.generation + 1, now_ms=0)
    return Assignment(
        generation=next_.generation,
        tasks=assignment.tasks,
        workers=assignment.workers,
        groups=next_.groups,
        plan=assignment.plan,
        named=assignment.named,
    )


def shape_of(assignment: Assignment) -> Shape:
    workers = len({frozenset(replicas) for replicas in assignment.groups})
    return shape(len(assignment.groups), workers, len(assignment.groups[0]))


def test_every_shape_is_reached_from_every_other_in_three_steps_at_most() -> None:
    tasks = 8
    shapes = [shape(threads, workers) for threads in range(1, 9) for workers in range(1, threads + 1)]
    for now, wanted in itertools.permutations(shapes, 2):
        assignment = launched(tasks, now)
        steps = plan(tasks, now, wanted, possible_threads(assignment))
        for step in steps:
            assignment = taken(assignment, step)
            assert shape_of(assignment).workers <= shape_of(assignment).threads
        assert shape_of(assignment) == wanted, (now, steps)
        assert len(steps) <= 1 + (now.threads != wanted.threads) * 2


def test_a_chain_of_shapes_is_reached_whatever_the_way_there_has_left() -> None:
    now, assignment = shape(8, 3), launched(8, shape(8, 3))
    for wanted in (shape(6, 3), shape(4, 4), shape(5, 2, 3), shape(8, 8, 2), shape(2, 1), shape(7, 3, 3)):
        for step in plan(8, now, wanted, possible_threads(assignment)):
            assignment = taken(assignment, step)
        assert shape_of(assignment) == wanted
        now = wanted


@pytest.mark.parametrize(
    ("now", "wanted", "steps"),
    [
        (shape(4, 2), shape(8, 2), [Regroup(threads=8)]),
        (shape(4, 2), shape(4, 4, 3), [Move(workers=4, factor=3)]),
        (shape(2, 2), shape(8, 8), [Regroup(threads=8), Move(workers=8, factor=1)]),
        (shape(8, 8), shape(2, 2), [Move(workers=2, factor=1), Regroup(threads=2)]),
        (
            shape(4, 2, 2),
            shape(3, 2, 3),
            [Move(workers=1, factor=2), Regroup(threads=3), Move(workers=2, factor=3)],
        ),
    ],
)
def test_what_fits_is_done_at_once_and_the_rest_by_way_of_one_worker(
    now: Shape, wanted: Shape, steps: list[Step]
) -> None:
    assert plan(8, now, wanted, possible_threads(launched(8, now))) == steps


def test_shapes_that_no_module_can_have_are_refused_before_anything_is_done() -> None:
    with pytest.raises(UsageError, match="2 threads cannot occupy 4 workers; ask for --workers 1 to 2"):
        plan(8, shape(4, 4), shape(2, 4), (4, 8))
    with pytest.raises(UsageError, match="it has 4 threads, 1 worker and replication factor 3 already"):
        plan(8, shape(4, 1, 3), shape(4, 1, 3), ())
    # What it says of these the conductor knows best.
    assert plan(8, shape(4, 1), shape(9, 1), ()) == [Regroup(threads=9)]
    assert plan(8, shape(4, 1), shape(4, 5), ()) == [Move(workers=5, factor=1)]


def test_the_command_says_the_whole_shape() -> None:
    said = command("m", shape(8, 4, 3))
    assert said == "stretto deploy scale-executors m --threads 8 --workers 4 --replication-factor 3"
