"""A small snapshot, made as workers make one: of the files of a state, at one entry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stretto.artifact.archive import Entry, pack
from stretto.pstate.changes import Changes
from stretto.pstate.ordered import encode
from stretto.replog.frame import Kind
from stretto.snapshot.manifest import ARTIFACT, GroupCut, Manifest, StoredTask, file_of, write_manifest
from stretto.specs.modules import DepotSpec
from stretto.state.applied import AppliedState
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId
from tests.support.entries import Log

TASKS = (TaskId(0), TaskId(1))


def a_log(rows: int = 200) -> Log:
    """Records, rows and a producer on two tasks."""
    log = Log()
    log.add(Kind.EPOCH)
    log.add(Kind.PRODUCER_OPEN, producer=7)
    for number in range(rows):
        task = number % 2
        log.depot(
            [b"%d" % number, b"x" * 50], task=task, producer=7, sequence=number, timestamp_ms=number * 10
        )
        log.state(Changes(puts=((encode(f"key-{number:05}"), b"\xcd%c%c" % divmod(number, 256)),)), task=task)
    return log


def copied(state: AppliedState, folder: Path, *, name: str = "one", epoch: int = 1) -> Manifest:
    """A whole snapshot of a state, as it is now."""
    held = state.hold()
    stored = []
    for task in held.tasks:
        file = file_of(folder, task)
        file.parent.mkdir(parents=True)
        copy = held.copy(task, file, 0)
        stored.append(
            StoredTask(
                task=task,
                offset=state.applied,
                digest=held.digest(task),
                size_bytes=copy.size_bytes,
                sha256=copy.sha256,
            )
        )
    held.release()
    packed = pack([Entry(name="module.py", content=b"pass")], folder)
    packed.path.rename(folder / ARTIFACT)
    return write_manifest(folder, a_manifest(stored, packed.digest, name=name, epoch=epoch))


def a_manifest(stored: Sequence[StoredTask], artifact: str, *, name: str = "one", epoch: int = 1) -> Manifest:
    return Manifest(
        release="0",
        name=name,
        module="bank",
        cluster="c",
        at_ms=1,
        version=3,
        artifact=artifact,
        entry="module:Bank",
        tasks=tuple(stored),
        groups=(
            GroupCut(
                group=0,
                offset=max((each.offset for each in stored), default=Offset(0)),
                epoch=Epoch(epoch),
                tasks=tuple(each.task for each in stored),
                copied_by=WorkerId("a"),
                replicas=(WorkerId("a"), WorkerId("b")),
            ),
        ),
        depots=(DepotSpec(name="events"),),
        pstates=(),
        topologies=(),
        queries=(),
        workers=1,
        replication_factor=1,
    )


def made(folder: Path, scratch: Path, log: Log | None = None) -> Manifest:
    """A snapshot of :func:`a_log`, or of another one."""
    log = log or a_log()
    state = AppliedState.open(scratch, TASKS)
    try:
        state.apply(log.frames)
        return copied(state, folder)
    finally:
        state.close()
