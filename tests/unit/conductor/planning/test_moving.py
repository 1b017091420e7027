"""Other replicas for groups that run: which processes go, which come, what stays."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from stretto.conductor.planning.assignment import assign
from stretto.conductor.planning.moving import follows, moved, next_name, settled
from stretto.errors import UsageError
from stretto.replog.core.record import GroupRecord, Member
from stretto.specs.assignments import Assignment
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId

NODES = {f"n{number}": 0 for number in range(5)}


def launched(*, threads: int = 8, workers: int = 4, factor: int = 3, nodes: int = 5) -> Assignment:
    processes = dict(list(NODES.items())[:nodes])
    return assign(
        "m", generation=7, tasks=16, threads=threads, workers=workers, factor=factor, processes=processes
    )


def processes(assignment: Assignment) -> dict[str, int]:
    counts = Counter(assignment.nodes.values())
    return {node: counts[node] for node in NODES}


def check_whole(assignment: Assignment, factor: int) -> None:
    """Each group has so many replicas, on different nodes."""
    for group in assignment.groups:
        nodes = [assignment.workers[index].node for index in group]
        assert len(nodes) == len(set(nodes)) == factor


def changed_places(before: Assignment, after: Assignment) -> int:
    pairs = zip(before.replicas, after.replicas, strict=True)
    return sum(len(set(old) - set(new)) for old, new in pairs)


def test_a_drained_node_has_no_replica_and_only_its_own_move() -> None:
    before = launched()
    after = moved("m", before, factor=3, processes=processes(before), leave={"n1"})
    check_whole(after, 3)
    assert all(after.workers[index].node != "n1" for group in after.groups for index in group)
    on_node = {worker for worker, node in before.nodes.items() if node == "n1"}
    assert changed_places(before, after) == sum(len(on_node & set(each)) for each in before.replicas)
    assert after.plan == before.plan + 1


def test_old_processes_run_on_until_the_groups_have_followed() -> None:
    before = launched()
    after = moved("m", before, factor=3, processes=processes(before), leave={"n1"})
    assert after.workers[: len(before.workers)] == before.workers
    assert after.retired == ()
    done = settled(after)
    assert done.replicas == after.replicas
    assert {each.node for each in done.retired} == {"n1"}
    assert set(done.workers) | set(done.retired) == set(after.workers)
    assert done.plan == after.plan


@pytest.mark.parametrize(("before_factor", "after_factor"), [(1, 3), (3, 5), (3, 1), (2, 3), (3, 2)])
def test_another_factor_moves_nothing_else(before_factor: int, after_factor: int) -> None:
    before = launched(factor=before_factor)
    after = moved("m", before, factor=after_factor, processes=processes(before))
    check_whole(after, after_factor)
    assert changed_places(before, after) == max(0, before_factor - after_factor) * len(before.groups)
    for old, new in zip(before.replicas, after.replicas, strict=True):
        assert [worker for worker in new if worker in old] == [worker for worker in old if worker in new]


def test_new_processes_go_where_the_fewest_run() -> None:
    before = launched(workers=2, factor=2, nodes=4)
    after = moved("m", before, factor=3, processes={**processes(before), "n0": 9})
    fresh = after.workers[len(before.workers) :]
    assert len(fresh) == 2
    assert all(each.node != "n0" for each in fresh)


def test_no_process_gets_a_name_that_another_had() -> None:
    before = launched()
    after = settled(moved("m", before, factor=1, processes=processes(before)))
    forgotten = msgspec.structs.replace(after, retired=())
    again = moved("m", forgotten, factor=3, processes=processes(forgotten))
    fresh = {each.worker for each in again.workers[len(forgotten.workers) :]}
    assert len(fresh) == 8
    assert not fresh & {each.worker for each in before.workers}
    assert next_name("m", again) == again.named == 20


@pytest.mark.parametrize(
    ("before_workers", "after_workers"), [(1, 2), (2, 4), (1, 3), (4, 2), (3, 2), (2, 1), (4, 3), (2, 8)]
)
def test_another_number_of_workers_gives_each_slot_its_own_processes(
    before_workers: int, after_workers: int
) -> None:
    before = launched(workers=before_workers)
    after = moved("m", before, factor=3, workers=after_workers, processes=processes(before))
    check_whole(after, 3)
    slots = Counter(frozenset(group) for group in after.groups)
    assert len(slots) == after_workers
    assert max(slots.values()) - min(slots.values()) <= 1
    assert len({index for slot in slots for index in slot}) == 3 * after_workers
    old = {placed.worker: number for number, placed in enumerate(before.workers)}
    for had, has in zip(before.replicas, after.replicas, strict=True):
        assert all(worker in had or worker not in old for worker in has)


def test_a_slot_that_is_split_keeps_its_processes_for_its_first_half() -> None:
    before = launched(workers=1, threads=8)
    after = moved("m", before, factor=3, workers=2, processes=processes(before))
    assert after.replicas[:4] == before.replicas[:4]
    assert all(
        not set(new) & set(old) for old, new in zip(before.replicas[4:], after.replicas[4:], strict=True)
    )


def test_workers_and_replicas_change_together() -> None:
    before = launched(workers=2, factor=2)
    after = moved("m", before, factor=3, workers=4, processes=processes(before))
    check_whole(after, 3)
    assert len({frozenset(group) for group in after.groups}) == 4


def test_more_workers_than_threads_are_refused() -> None:
    before = launched(threads=8)
    with pytest.raises(UsageError, match="8 threads cannot occupy 9 workers"):
        moved("m", before, factor=3, workers=9, processes=processes(before))
    with pytest.raises(UsageError, match="workers cannot be 0"):
        moved("m", before, factor=3, workers=0, processes=processes(before))


def test_a_change_that_changes_nothing_has_no_new_number() -> None:
    before = launched()
    after = moved("m", before, factor=3, processes=processes(before), leave={"elsewhere"})
    assert (after.groups, after.plan) == (before.groups, before.plan)


def test_too_few_nodes_are_refused() -> None:
    before = launched(nodes=3)
    three = dict(list(processes(before).items())[:3])
    with pytest.raises(UsageError, match="needs 3 nodes, and there are 2 others"):
        moved("m", before, factor=3, processes=three, leave={"n1"})
    with pytest.raises(UsageError, match="needs 4 nodes, and there are 3"):
        moved("m", before, factor=4, processes=three)
    with pytest.raises(UsageError, match="cannot be 0"):
        moved("m", before, factor=0, processes=three)


def record(workers: tuple[WorkerId, ...], leader: WorkerId, plan: int) -> GroupRecord:
    return GroupRecord(
        epoch=Epoch(1),
        leader=leader,
        leader_incarnation=Incarnation("i"),
        isr=tuple(sorted(Member(worker, StorageId("s")) for worker in workers)),
        plan=plan,
    )


def test_a_group_has_followed_when_its_members_are_the_assigned_and_one_of_them_leads() -> None:
    before = launched()
    after = moved("m", before, factor=3, processes=processes(before), leave={"n1"})
    old, new = before.replicas[0], after.replicas[0]
    assert follows(record(new, new[0], after.plan), after, 0)
    assert not follows(record(new, new[0], before.plan), after, 0)
    assert not follows(record(new[:2], new[0], after.plan), after, 0)
    assert not follows(record((*new, WorkerId("m-old")), new[0], after.plan), after, 0)
    assert not follows(record(new, WorkerId("m-old"), after.plan), after, 0)
    assert not follows(None, after, 0)
    assert old != new or changed_places(before, after) > 0
