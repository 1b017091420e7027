"""Tasks of sealed groups become a replica of another group, with all they held, wherever a crash comes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stretto.replog.frame import Kind
from stretto.specs.assignments import GroupPlan
from stretto.state.applied import AppliedState, Seal
from stretto.state.task import TaskState
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, ProducerId, StorageId, TaskId, WorkerId
from stretto.worker.replica import takeover
from stretto.worker.replica.storage import ReplicaFolder, ReplicaStorage
from tests.support.entries import Log
from tests.unit.state.syncing import folders_synced

WORKERS = (WorkerId("w0"),)
FIRST = GroupPlan(GroupKey("m", 1, 0), (TaskId(0), TaskId(1)), WORKERS)
SECOND = GroupPlan(GroupKey("m", 1, 1), (TaskId(2), TaskId(3)), WORKERS)
MERGED = GroupPlan(GroupKey("m", 2, 0), (TaskId(0), TaskId(1), TaskId(2), TaskId(3)), WORKERS)
SPLIT = GroupPlan(GroupKey("m", 2, 1), (TaskId(1),), WORKERS)


class Stop(Exception):
    """The process ends here."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def path_of(base: Path, plan: GroupPlan) -> Path:
    return base / f"{plan.key.module}-{plan.key.generation}-{plan.key.group}"


def folder(base: Path, plan: GroupPlan, pool: ThreadPoolExecutor) -> ReplicaFolder:
    return ReplicaFolder(path_of(base, plan), plan, cluster="c", pool=pool)


def a_log(plan: GroupPlan, producer: int, entries: int, *, epoch: int, grouping: int = 2) -> Log:
    log = Log(epoch=epoch)
    log.add(Kind.EPOCH)
    log.add(Kind.PRODUCER_OPEN, producer=producer)
    for number in range(entries):
        task = plan.tasks[number % 2]
        log.depot([b"%d" % number], task=task, producer=producer, sequence=number // 2)
    log.add(Kind.SEAL, sequence=grouping)
    return log


def write(storage: ReplicaStorage, log: Log) -> None:
    storage.log.append(log.frames)
    storage.log.sync()
    storage.state.apply(log.frames)
    storage.state.checkpoint()


def sealed(base: Path, pool: ThreadPoolExecutor) -> None:
    """Two replicas on disk, closed, their logs sealed."""
    for plan, log in (
        (FIRST, a_log(FIRST, 7, 9, epoch=1)),
        (SECOND, a_log(SECOND, 8, 4, epoch=3)),
    ):
        path_of(base, plan).mkdir()
        storage = folder(base, plan, pool).open()
        write(storage, log)
        storage.close()


def seals(plan: GroupPlan) -> dict[TaskId, tuple[str, Seal]]:
    """As the logs above have them."""
    first, second = Seal(2, Offset(11), Epoch(1)), Seal(2, Offset(6), Epoch(3))
    return {task: ("m-1-0", first) if task in FIRST.tasks else ("m-1-1", second) for task in plan.tasks}


def prepare(base: Path, plan: GroupPlan) -> StorageId:
    planned = takeover.planned(2, seals(plan))
    return takeover.prepare(path_of(base, plan), planned, cluster="c", group=str(plan.key), boot_id="b")


def test_tasks_of_two_groups_become_one_with_all_that_they_held(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    sealed(tmp_path, pool)
    storage_id = prepare(tmp_path, MERGED)
    storage = folder(tmp_path, MERGED, pool).open()
    assert storage.storage_id == storage_id
    assert (storage.log.start_offset, storage.log.end_offset, storage.state.applied) == (12, 12, 12)
    assert [(each.epoch, each.start) for each in storage.log.history] == [(3, 11)]
    assert {task: storage.state.depot_ends(task) for task in MERGED.tasks} == {
        0: {"events": 5},
        1: {"events": 4},
        2: {"events": 2},
        3: {"events": 2},
    }
    table = storage.state.producers()
    assert table.sealed == 0
    assert {producer: sorted(rows) for producer, rows in table.producers.items()} == {7: [0, 1], 8: [2, 3]}
    assert table.producers[ProducerId(7)][TaskId(0)].next == 5
    assert not (path_of(tmp_path, MERGED) / takeover.TAKEOVER).exists()
    assert not any((tmp_path / "m-1-0" / "state").iterdir())
    storage.close()
    again = folder(tmp_path, MERGED, pool).open()
    assert (again.storage_id, again.state.applied, again.state.producers()) == (storage_id, 12, table)
    again.close()


def test_a_replica_goes_on_from_there_like_any_other(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    sealed(tmp_path, pool)
    prepare(tmp_path, MERGED)
    storage = folder(tmp_path, MERGED, pool).open()
    log = Log(start=12, epoch=4)
    log.add(Kind.EPOCH)
    log.depot([b"new"], task=2, producer=7, sequence=0)
    write(storage, log)
    storage.close()
    again = folder(tmp_path, MERGED, pool).open()
    assert again.state.applied == 14
    assert again.state.depot_ends(TaskId(2)) == {"events": 3}
    # Known to all tasks of the group, though it was admitted by another group than the task was in.
    assert again.state.producers().producers[ProducerId(7)][TaskId(2)].next == 1
    again.close()


def test_one_task_of_a_group_is_taken_alone(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    sealed(tmp_path, pool)
    prepare(tmp_path, SPLIT)
    storage = folder(tmp_path, SPLIT, pool).open()
    assert storage.state.applied == 12
    assert storage.state.depot_ends(TaskId(1)) == {"events": 4}
    assert (tmp_path / "m-1-0" / "state" / "task-0").exists()
    storage.close()


def test_a_replica_that_is_prepared_again_keeps_its_storage_id(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    sealed(tmp_path, pool)
    assert prepare(tmp_path, MERGED) == prepare(tmp_path, MERGED)
    other = takeover.Takeover(grouping=2, start=Offset(99), epoch=Epoch(3), sources={TaskId(0): "m-1-0"})
    path = path_of(tmp_path, MERGED)
    assert takeover.prepare(path, other, cluster="c", group=str(MERGED.key), boot_id="b") != prepare(
        tmp_path, MERGED
    )


def test_a_task_that_is_not_sealed_for_the_grouping_is_not_taken(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """The replica begins anew, and so nobody mistakes it for what was promised."""
    sealed(tmp_path, pool)
    storage = folder(tmp_path, SECOND, pool).open()
    log = Log(start=storage.log.end_offset, epoch=3)
    log.add(Kind.UNSEAL, sequence=2)
    log.depot([b"after"], task=2)
    write(storage, log)
    storage.close()
    storage_id = prepare(tmp_path, MERGED)
    found = folder(tmp_path, MERGED, pool).open()
    assert found.storage_id != storage_id
    assert (found.state.applied, found.log.end_offset) == (0, 0)
    found.close()
    assert any(each.name.endswith(".state") for each in path_of(tmp_path, MERGED).iterdir())


def test_files_that_are_gone_make_a_replica_that_begins_anew(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    sealed(tmp_path, pool)
    storage_id = prepare(tmp_path, MERGED)
    shutil.rmtree(tmp_path / "m-1-1" / "state" / "task-3")
    found = folder(tmp_path, MERGED, pool).open()
    assert found.storage_id != storage_id
    assert found.state.applied == 0
    found.close()


@pytest.mark.parametrize("calls", range(12))
def test_a_crash_while_it_is_opened_is_taken_up_where_it_stopped(
    tmp_path: Path, pool: ThreadPoolExecutor, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many moves of files and changes of tasks."""
    sealed(tmp_path, pool)
    storage_id = prepare(tmp_path, MERGED)
    left = calls

    def counted(function: Callable[..., None]) -> Callable[..., None]:
        def stopping(*args: object) -> None:
            nonlocal left
            if left == 0:
                raise Stop
            left -= 1
            function(*args)

        return stopping

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", counted(os.rename))
        patch.setattr(TaskState, "move", counted(TaskState.move))
        patch.setattr(takeover, "finish", counted(takeover.finish))
        with contextlib.suppress(Stop):
            folder(tmp_path, MERGED, pool).open().close()
    assert left == 0 or calls > 10
    storage = folder(tmp_path, MERGED, pool).open()
    assert (storage.storage_id, storage.state.applied) == (storage_id, 12)
    assert storage.state.seal() is None
    ends = [storage.state.depot_ends(task)["events"] for task in MERGED.tasks]
    assert ends == [5, 4, 2, 2]
    storage.close()


def test_a_state_is_sealed_when_all_its_tasks_are(tmp_path: Path) -> None:
    log = Log()
    log.add(Kind.EPOCH)
    log.add(Kind.SEAL, sequence=4)
    state = AppliedState.open(tmp_path, FIRST.tasks)
    assert state.seal() is None
    state.apply(log.frames)
    assert state.seal() == Seal(4, Offset(1), Epoch(1))
    assert state.producers().sealed == 4
    state.close()
    state = AppliedState.open(tmp_path, FIRST.tasks)
    assert state.seal() == Seal(4, Offset(1), Epoch(1))
    log.add(Kind.UNSEAL, sequence=4)
    state.apply(log.frames)
    assert (state.seal(), state.producers().sealed) == (None, 0)
    state.close()


def test_files_are_durable_where_they_are_before_they_are_gone_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "m-1-0" / "state", tmp_path / "m-2-0" / "state"
    (there / "task-0").mkdir(parents=True)
    here.parent.mkdir()
    plan = takeover.Takeover(grouping=2, start=Offset(9), epoch=Epoch(1), sources={TaskId(0): "m-1-0"})
    synced = folders_synced(monkeypatch)
    takeover.take_files(here.parent, plan)
    assert (here / "task-0").is_dir()
    assert synced.index(here) < synced.index(there)
