"""A worker's part in snapshots: it keeps the state at their markers, digests it, and copies it if asked to.

A marker of a snapshot is an entry of a group's log, named ``snapshot/<token>``. When it is applied, the
applying thread opens a transaction for each task, and goes on; all replicas do so at the same entry. What is
kept goes when nobody has asked for it in a while. Digests and copies are made on threads of their own, and
copies no faster than ``snapshot.max.bytes.per.second``.

The folder is that of who makes the snapshot, who has put a file ``creating`` into it with a word of its own:
a worker writes only where it finds that word, so it never fills a folder that merely has the same name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from stretto import control
from stretto.errors import StorageError, StrettoError, UsageError
from stretto.replog.frame import payload
from stretto.snapshot.cuts import microbatch_at
from stretto.snapshot.manifest import file_of, sync_folder
from stretto.snapshot.unfinished import CREATING, MARKER_PREFIX
from stretto.state.held import CopiedFile, HeldState
from stretto.state.microbatch_entries import DATABASE
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.replog.frame import Frame
    from stretto.worker.replica.group import Group

log = structlog.get_logger()

IDLE_MS = 30_000
"""How long a state is kept that nobody has asked for."""
HELD_MAX = 2
"""How many states are kept for one group; older ones are let go."""


def is_snapshot(frame: Frame) -> bool:
    """Whether a marker is one of a snapshot."""
    return bytes(payload(frame)).startswith(MARKER_PREFIX)


@dataclass(eq=False)
class _Kept:
    """The state of a group at one marker."""

    group: GroupKey
    marker: str
    offset: Offset
    epoch: Epoch
    held: HeldState
    microbatches: dict[TaskId, dict[str, control.MicrobatchCut]]
    asked_at: int
    digests: dict[TaskId, str] = field(default_factory=dict)
    copied: dict[TaskId, CopiedFile] = field(default_factory=dict)
    copied_bytes: int = 0
    is_copying: bool = False
    problem: str = ""

    def view(self, cluster: str) -> control.CutView:
        """Describe what is kept to the maker of the snapshot."""
        tasks = {}
        for task in self.held.tasks:
            copied = self.copied.get(task)
            tasks[task] = control.CutTask(
                microbatches=self.microbatches[task],
                digest=self.digests.get(task),
                size_bytes=None if copied is None else copied.size_bytes,
                sha256="" if copied is None else copied.sha256,
            )
        return control.CutView(
            offset=self.offset,
            epoch=self.epoch,
            cluster=cluster,
            tasks=tasks,
            copied_bytes=self.copied_bytes,
            problem=self.problem,
        )


class Config(Protocol):
    """What snapshots need of a worker's configuration."""

    @property
    def cluster(self) -> str: ...

    @property
    def node(self) -> str: ...


class Host(Protocol):
    """The worker, as its snapshots see it."""

    @property
    def config(self) -> Config: ...

    @property
    def description(self) -> control.ModuleDescription: ...

    @property
    def loop(self) -> Loop: ...

    def option(self, name: str) -> Any: ...


class Snapshots:
    """The states that a worker keeps for snapshots. Its calls are for the loop; :meth:`marked` is for the
    applying thread."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        #: The states that are kept, oldest first.
        self._kept: dict[tuple[GroupKey, str], _Kept] = {}
        self._pool = ThreadPoolExecutor(1, "snapshot")

    def marked(self, group: Group, frame: Frame) -> None:
        """Keep the state at a marker. Called by the applying thread when the marker was the last entry that
        was applied."""
        if time.time_ns() // 1_000_000 - frame.header.timestamp_ms > IDLE_MS:
            return
        marker = bytes(payload(frame))[len(MARKER_PREFIX) :].decode("ascii", "replace")
        held = group.state.hold()
        topologies = [each.name for each in self._worker.description.topologies if each.kind == "microbatch"]
        kept = _Kept(
            group.key,
            marker,
            frame.end_offset,
            frame.header.epoch,
            held,
            {
                task: {name: microbatch_at(name, partial(held.row, task, DATABASE)) for name in topologies}
                for task in held.tasks
            },
            _now_ms(),
        )
        with self._lock:
            older = [each for each in self._kept.values() if each.group == group.key]
            # One that is there twice was appended again because its answer was lost: the last counts.
            same = self._kept.pop((group.key, marker), None)
            gone = [same] if same is not None else older[: max(0, len(older) + 1 - HELD_MAX)]
            for each in gone:
                self._kept.pop((each.group, each.marker), None)
            self._kept[group.key, marker] = kept
        for each in gone:
            self._pool.submit(each.held.release)
        self._on_thread(kept, lambda: self._digest(kept))
        self._worker.loop.call_soon(self._watch, kept)

    # Calls.

    def cut(self, call: control.Cut) -> control.CutView | None:
        """Describe the state at a marker, and keep it for longer; None if it is not here."""
        kept = self._find(call.group, call.marker)
        return None if kept is None else kept.view(self._worker.config.cluster)

    def copy(self, call: control.CopyCut) -> bool:
        """Begin to copy the state at a marker into the snapshot's folder; False if it is not here."""
        kept = self._find(call.group, call.marker)
        if kept is None:
            return False
        if not kept.is_copying:
            kept.is_copying = True
            rate = int(self._worker.option("snapshot.max.bytes.per.second"))
            self._on_thread(kept, lambda: self._copy(kept, Path(call.folder), call.token, rate))
        return True

    def drop(self, call: control.DropCut) -> None:
        """Let go of the state at a marker."""
        with self._lock:
            kept = self._kept.pop((call.group, call.marker), None)
        if kept is not None:
            self._let_go(kept)

    def _find(self, group: GroupKey, marker: str) -> _Kept | None:
        with self._lock:
            kept = self._kept.get((group, marker))
        if kept is not None:
            kept.asked_at = _now_ms()
        return kept

    def _watch(self, kept: _Kept) -> None:
        with self._lock:
            is_kept = self._kept.get((kept.group, kept.marker)) is kept
        left_ms = kept.asked_at + IDLE_MS - _now_ms()
        if is_kept and left_ms <= 0:
            log.warning("snapshot_forgotten", group=str(kept.group), marker=kept.marker)
            self.drop(control.DropCut(group=kept.group, marker=kept.marker))
        elif is_kept:
            self._worker.loop.call_after(left_ms + 1, self._watch, kept)

    def _let_go(self, kept: _Kept) -> None:
        """Release what is kept, never on the loop: a release waits for what is being digested."""
        threading.Thread(target=kept.held.release, name="snapshot-release", daemon=True).start()

    # What takes long.

    def _on_thread(self, kept: _Kept, work: Callable[[], None]) -> None:
        def then(error: Exception | None) -> None:
            if error is not None:
                # Whoever waits for it would wait for ever.
                log.error("snapshot_failed", group=str(kept.group), marker=kept.marker, exc_info=error)
                kept.problem = kept.problem or f"the snapshot failed on its worker ({error!r})"

        self._pool.submit(self._worker.loop.hand_back, work, then)

    def _digest(self, kept: _Kept) -> None:
        try:
            for task in kept.held.tasks:
                kept.digests[task] = kept.held.digest(task)
        except StorageError as error:
            kept.problem = str(error)
        else:
            log.info("snapshot_digested", group=str(kept.group), marker=kept.marker, offset=kept.offset)

    def _copy(self, kept: _Kept, folder: Path, token: str, rate: int) -> None:
        def copied(count: int) -> None:
            kept.copied_bytes += count

        try:
            _require_same(folder, token, self._worker.config.node)
            for task in kept.held.tasks:
                file = file_of(folder, task)
                file.parent.mkdir(mode=0o700, exist_ok=True)
                kept.copied[task] = kept.held.copy(task, file, rate, copied)
                sync_folder(file.parent)
            sync_folder(folder)
        except StrettoError as error:
            kept.problem = str(error)
        except OSError as error:
            kept.problem = f"node {self._worker.config.node} cannot write to {folder} ({error.strerror})"
        else:
            log.info("snapshot_copied", group=str(kept.group), marker=kept.marker, bytes=kept.copied_bytes)
        if kept.problem:
            log.error("snapshot_not_copied", group=str(kept.group), marker=kept.marker, why=kept.problem)

    def close(self) -> None:
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        for each in kept:
            each.held.release()
        self._pool.shutdown(cancel_futures=True)


def _require_same(folder: Path, token: str, node: str) -> None:
    try:
        found = (folder / CREATING).read_text("utf-8")
    except OSError:
        found = None
    if found != token:
        raise UsageError(
            f"node {node} does not see the folder {folder} of this command; "
            "choose one that all nodes and this machine share"
        )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
