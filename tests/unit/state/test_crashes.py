"""What a crash leaves, and that recovery makes one state of it.

A process that is killed leaves every committed transaction, but may leave the tasks of a batch apart. A
power loss may also take back the last transaction of any task: its pages are on disk, its meta page is
not. Both are made here, by keeping copies of files and of meta pages, and by killing processes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.replog.folder import OsFolder
from stretto.replog.frame import Kind
from stretto.replog.log import Replog
from stretto.state.applied import AppliedState, LogTooShort
from stretto.vocabulary.types import Offset, TaskId
from tests.support.entries import (
    TASKS,
    Log,
    applied_in_one_go,
    batchings,
    digests,
    logs,
    open_state,
    quick_folder,
)
from tests.unit.state import applying_process

META_BYTES = 2 * 4096


def data_file(folder: Path, task: int) -> Path:
    return folder / f"task-{task}" / "data.mdb"


def check_recovered(state: AppliedState, log: Log, scratch: Path) -> None:
    """That the state is the one as of its applied offset, in every task."""
    assert state.applied == state.furthest
    assert state.producers() == log.producers(state.applied)
    assert digests(state) == applied_in_one_go(scratch, log.below(state.applied))
    shutil.rmtree(scratch)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_tasks_found_at_different_offsets_are_brought_to_the_highest(data: st.DataObject) -> None:
    log = data.draw(logs())
    with quick_folder() as folder:
        replog = log.stored(folder / "replog")
        state = open_state(folder / "state")
        copies = [_copy_files(folder / "state", folder / "copy-0")]
        for number, group in enumerate(data.draw(batchings(log.frames)), 1):
            state.apply(group)
            if data.draw(st.booleans()):
                state.checkpoint()
            copies.append(_copy_files(folder / "state", folder / f"copy-{number}"))
        state.close()
        for task in TASKS:
            chosen = data.draw(st.sampled_from(copies))
            shutil.copy(data_file(chosen, task), data_file(folder / "state", task))
        state = open_state(folder / "state")
        furthest = state.furthest
        assert state.recover(replog) == furthest
        check_recovered(state, log, folder / "scratch")
        # And on from there.
        state.apply([frame for frame in log.frames if frame.header.offset >= furthest])
        check_recovered(state, log, folder / "scratch")
        state.close()
        replog.close()


class SyncedEnvironment:
    """The LMDB environment of a task, with what a power loss may leave of its file.

    A commit syncs its pages, and with them the meta page of the commit before, but not its own. So until the
    environment is synced or commits again, its latest transaction may be taken back.
    """

    def __init__(self, environment: Any, file: Path) -> None:
        assert environment.flags()["sync"], "a commit has to sync its pages"
        self._environment = environment
        self._file = file
        self.before_unsynced: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def begin(self, *args: Any, write: bool = False, **options: Any) -> Any:
        if write:
            self.before_unsynced = self._file.read_bytes()[:META_BYTES]
        return self._environment.begin(*args, write=write, **options)

    def sync(self, force: bool = False) -> None:
        self._environment.sync(force)
        if force:
            self.before_unsynced = None


def watch_syncs(state: AppliedState, folder: Path) -> dict[TaskId, SyncedEnvironment]:
    watched = {}
    for task in TASKS:
        environment = state._tasks[task].environment
        watched[task] = SyncedEnvironment(environment._env, data_file(folder, task))
        environment._env = cast(Any, watched[task])
    return watched


@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_takes_back_one_transaction_of_any_task_and_never_a_checkpoint(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    log = applying_process.make_log(chance, frames=120)
    replog = log.stored(tmp_path / "replog")
    with quick_folder() as folder:
        state = open_state(folder / "state")
        watched = watch_syncs(state, folder / "state")
        durable = Offset(0)

        def lose_power() -> None:
            lost = _copy_files(folder / "state", folder / "lost")
            for task, environment in watched.items():
                if environment.before_unsynced is not None and chance.random() < 0.6:
                    _overwrite_start(data_file(lost, task), environment.before_unsynced)
            _check_after_power_loss(lost, log, replog, durable, folder / "scratch")
            shutil.rmtree(lost)

        at = 0
        while at < len(log.frames):
            group = log.frames[at : at + chance.randint(1, 5)]
            at += len(group)
            state.apply(group)
            lose_power()
            if chance.random() < 0.2:
                durable = state.checkpoint()
                lose_power()
        state.close()
    replog.close()


def test_a_checkpoint_syncs_every_task_that_changed_since_the_last_one(tmp_path: Path) -> None:
    log = Log()
    log.depot([b"a"], task=0)
    log.depot([b"b"], task=1)
    state = open_state(tmp_path / "state")
    watched = watch_syncs(state, tmp_path / "state")
    state.apply(log.frames)
    assert [watched[task].before_unsynced is None for task in TASKS] == [False, False, True]
    assert state.checkpoint() == log.end
    assert [watched[task].before_unsynced is None for task in TASKS] == [True, True, True]
    state.close()


def _check_after_power_loss(folder: Path, log: Log, replog: Replog, durable: Offset, scratch: Path) -> None:
    state = open_state(folder)
    assert state.applied >= durable
    state.recover(replog)
    check_recovered(state, log, scratch)
    state.close()


def test_a_state_that_the_log_does_not_cover_is_told_and_left_alone(tmp_path: Path) -> None:
    log = Log()
    for number in range(6):
        log.depot([b"%d" % number], task=number % 3)
    state = open_state(tmp_path / "state")
    state.apply(log.frames)
    log.frames = log.frames[:5]
    shorter = log.stored(tmp_path / "shorter")
    with pytest.raises(LogTooShort, match=r"is at \[6, 6\], but the replog holds \[0, 5\)"):
        state.recover(shorter)
    shorter.close()
    state.close()

    (tmp_path / "later").mkdir()
    later = Replog.open(OsFolder(tmp_path / "later"))
    later.reset(Offset(6), ())
    shutil.rmtree(tmp_path / "state" / "task-1")
    state = open_state(tmp_path / "state")
    with pytest.raises(LogTooShort, match=r"is at \[0, 6\], but the replog holds \[6, 6\)"):
        state.recover(later)
    state.close()
    later.close()


def test_a_lost_file_is_made_again_from_a_log_that_still_has_everything(tmp_path: Path) -> None:
    log = Log()
    log.add(Kind.PRODUCER_OPEN, producer=1)
    for number in range(6):
        log.depot([b"%d" % number], task=number % 3, producer=1, sequence=number // 3)
    state = open_state(tmp_path / "state")
    state.apply(log.frames)
    state.checkpoint()
    state.close()
    shutil.rmtree(tmp_path / "state" / "task-1")
    state = open_state(tmp_path / "state")
    replog = log.stored(tmp_path / "replog")
    assert state.recover(replog) == log.end
    check_recovered(state, log, tmp_path / "scratch")
    state.close()
    replog.close()


def test_a_process_killed_under_load_leaves_a_state_that_recovers(tmp_path: Path) -> None:
    seed = 7
    # Where a kill hits is up to the scheduler; only the log is the same each time.
    chance = random.Random()
    log = applying_process.make_log(random.Random(seed), frames=3000)
    replog = log.stored(tmp_path / "replog")
    reached = Offset(0)
    for life in range(8):
        reached = _run_and_kill(tmp_path, seed, steps=chance.randint(1, 40), reached=reached)
        state = open_state(tmp_path / "state")
        # A kill takes back nothing that was committed.
        assert state.recover(replog) >= reached, f"life {life}"
        reached = state.applied
        if life % 2:
            check_recovered(state, log, tmp_path / "scratch")
        state.close()
    replog.close()


def _run_and_kill(tmp_path: Path, seed: int, *, steps: int, reached: Offset) -> Offset:
    """Let a process apply for some steps and kill it, wherever it is by then. Returns what it told."""
    script = Path(applying_process.__file__)
    with subprocess.Popen(
        [sys.executable, script, tmp_path, str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(script.parents[3])},
    ) as process:
        assert process.stdout is not None
        for _ in range(steps):
            line = process.stdout.readline()
            if not line:
                break
            reached = Offset(int(line))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
    assert process.returncode == -signal.SIGKILL, process.returncode
    # Only whole lines count: the last one may be cut.
    return max([reached, *(Offset(int(line)) for line in rest[:-1])])


def _copy_files(folder: Path, copy: Path) -> Path:
    """The files as they are; no transaction is running."""
    for task in TASKS:
        data_file(copy, task).parent.mkdir(parents=True)
        shutil.copy(data_file(folder, task), data_file(copy, task))
    return copy


def _overwrite_start(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
