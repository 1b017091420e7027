"""Every rule of a placement, over shapes and clusters of all kinds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.conductor.planning.assignment import assign
from stretto.conductor.planning.leadership import LedGroup, plan
from stretto.errors import UsageError
from stretto.specs.assignments import Assignment, plans_of
from stretto.zk.znodes.records import encode


@dataclass(frozen=True, kw_only=True)
class Case:
    tasks: int
    threads: int
    workers: int
    factor: int
    processes: dict[str, int]

    def assign(self) -> Assignment:
        return assign(
            "counts",
            generation=1,
            tasks=self.tasks,
            threads=self.threads,
            workers=self.workers,
            factor=self.factor,
            processes=self.processes,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tasks = 1 << draw(st.integers(0, 6))
    threads = draw(st.integers(1, tasks))
    workers = draw(st.integers(1, min(threads, 8)))
    busy = draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    return Case(
        tasks=tasks,
        threads=threads,
        workers=workers,
        factor=draw(st.integers(1, min(len(busy), 4))),
        processes={f"n{number}": count for number, count in enumerate(busy)},
    )


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


@given(cases())
@settings(deadline=None)
def test_there_are_workers_times_factor_processes_with_ids_of_the_module(case: Case) -> None:
    assignment = case.assign()
    ids = [placed.worker for placed in assignment.workers]
    assert ids == [f"counts-{number}" for number in range(case.workers * case.factor)]
    assert set(assignment.nodes.values()) <= case.processes.keys()


@given(cases())
@settings(deadline=None)
def test_replicas_of_a_group_are_on_different_nodes(case: Case) -> None:
    assignment = case.assign()
    assert len(assignment.groups) == case.threads
    for replicas in assignment.replicas:
        assert len({assignment.nodes[worker] for worker in replicas}) == len(replicas) == case.factor


@given(cases())
@settings(deadline=None)
def test_tasks_go_to_groups_in_equal_contiguous_runs(case: Case) -> None:
    assignment = case.assign()
    runs = [list(assignment.tasks_of(group)) for group in range(case.threads)]
    assert [task for run in runs for task in run] == list(range(case.tasks))
    assert spread([len(run) for run in runs]) <= 1


@given(cases())
@settings(deadline=None)
def test_a_process_hosts_the_groups_of_one_slot_and_slots_are_equal(case: Case) -> None:
    assignment = case.assign()
    sizes = Counter(frozenset(group) for group in assignment.groups)
    assert len(sizes) == case.workers
    assert sorted(index for slot in sizes for index in slot) == list(range(len(assignment.workers)))
    assert spread(list(sizes.values())) <= 1


@given(cases())
@settings(deadline=None)
def test_no_process_could_move_to_a_node_with_two_fewer(case: Case) -> None:
    """A node whose every slot has one of its processes takes no more, however few it runs."""
    assignment = case.assign()
    placed = Counter(assignment.nodes.values())
    running = {node: count + placed[node] for node, count in case.processes.items()}
    fullest = max(running[node] for node in placed)
    open_nodes = [running[node] for node in running if placed[node] < case.workers]
    assert fullest <= min(open_nodes, default=fullest) + 1


def preferred_leaders(assignment: Assignment) -> Counter[str]:
    return Counter(assignment.nodes[replicas[0]] for replicas in assignment.replicas)


@given(cases())
@settings(deadline=None)
def test_preferred_leaders_are_spread_as_evenly_as_the_placement_allows(case: Case) -> None:
    assignment = case.assign()
    groups = [
        LedGroup(key=each.key, leader=each.replicas[0], candidates=each.replicas)
        for each in plans_of("counts", assignment)
    ]
    assert plan(groups, assignment.nodes).switches == ()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.data())
@settings(deadline=None)
def test_preferred_leaders_differ_by_one_at_most_where_slots_and_nodes_are_equal(
    factor: int, rounds: int, groups_per_worker: int, data: st.DataObject
) -> None:
    """Then an equal part of each slot for each of its processes is even, so that whole groups can be, too."""
    nodes = data.draw(st.integers(factor, 8))
    workers = rounds * nodes
    case = Case(
        tasks=256,
        threads=min(workers * groups_per_worker, 256 // workers * workers),
        workers=workers,
        factor=factor,
        processes={f"n{number}": 0 for number in range(nodes)},
    )
    leaders = preferred_leaders(case.assign())
    assert spread([leaders[node] for node in case.processes]) <= 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 4))
@settings(deadline=None)
def test_each_process_of_a_slot_is_preferred_for_its_share(
    factor: int, workers: int, share: int, more_nodes: int
) -> None:
    case = Case(
        tasks=64,
        threads=workers * factor * share,
        workers=workers,
        factor=factor,
        processes={f"n{number}": 0 for number in range(factor + more_nodes)},
    )
    assignment = case.assign()
    processes = Counter(assignment.nodes.values())
    if spread([processes[node] for node in case.processes]) == 0:
        assert set(Counter(group[0] for group in assignment.groups).values()) == {share}


@given(cases())
@settings(deadline=None)
def test_the_same_question_has_the_same_answer_whatever_the_order_of_nodes(case: Case) -> None:
    backwards = dict(reversed(case.processes.items()))
    assert case.assign() == Case(**{**vars(case), "processes": backwards}).assign()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tasks": 0}, "tasks cannot be 0; ask for at least 1"),
        ({"threads": 0}, "threads cannot be 0; ask for at least 1"),
        ({"workers": -1}, "workers cannot be -1; ask for at least 1"),
        ({"factor": 0}, "replication factor cannot be 0; ask for at least 1"),
        ({"tasks": 6}, "6 tasks are not a power of two; ask for 4 or 8"),
        ({"tasks": 1 << 20}, "1,048,576 tasks are beyond the limit of 16,384; ask for fewer"),
        (
            {"tasks": 1 << 12, "threads": 1 << 12, "workers": 1 << 12},
            "4,096 workers of 3 replicas are 12,288 processes; ask for 4,096 at most",
        ),
        ({"threads": 9}, "8 tasks cannot occupy 9 threads; ask for at most 8 threads"),
        ({"workers": 5}, "4 threads cannot occupy 5 workers; ask for at most 4"),
        (
            {"processes": {"n0": 0, "n1": 0}},
            "a replication factor of 3 needs 3 nodes, and there are 2; start more nodes or lower the factor",
        ),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_what_to_do(change: dict[str, object], sentence: str) -> None:
    shape = {"tasks": 8, "threads": 4, "workers": 2, "factor": 3, "processes": {"n0": 0, "n1": 0, "n2": 0}}
    with pytest.raises(UsageError) as refused:
        assign("counts", generation=1, **{**shape, **change})  # type: ignore[arg-type]
    assert str(refused.value) == sentence


def test_nodes_that_run_less_are_taken_first() -> None:
    processes = {"n0": 5, "n1": 0, "n2": 5, "n3": 0}
    case = Case(tasks=4, threads=4, workers=2, factor=2, processes=processes)
    assert Counter(case.assign().nodes.values()) == {"n1": 2, "n3": 2}


def test_an_assignment_of_256_groups_is_a_few_kilobytes() -> None:
    processes = {f"node-{number}": 0 for number in range(3)}
    case = Case(tasks=1024, threads=256, workers=16, factor=3, processes=processes)
    assert len(encode(case.assign())) < 6_000
