"""Making a snapshot of a module that runs, from outside of it.

1. *Held.* The module's topologies begin nothing new for a moment, and what has begun comes to its end. A
   module without topologies is not held.
2. *Cut.* A marker is appended to the log of every group, and the hold is over. Every replica keeps its state
   as it was at the marker. Whether all cuts lie between the same two microbatches is told by the rows of the
   tasks (:mod:`~stretto.snapshot.cuts`); if not, or if a leader changed meanwhile, it is cut again.
3. *Copied.* Of each group, one follower of the ISR writes its tasks, compact, to the folder; the leader does
   if no follower can. All replicas that get there in time tell their digests, which have to be equal.
4. *Checked.* The files are read again here: they are whole, and hold what the replicas held. Then the
   manifest is written, and the snapshot is there.

Whoever dies on the way leaves nothing waiting: holds and kept states end by themselves.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

from stretto import __version__, control
from stretto.artifact.archive import digest_of
from stretto.client.api import Client
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.status import newest_groups
from stretto.client.operating.verify import mark
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.network.asking import ask, ask_with_body
from stretto.process.private_files import open_private
from stretto.snapshot.checking import check_task
from stretto.snapshot.cuts import why_torn
from stretto.snapshot.manifest import (
    ARTIFACT,
    GroupCut,
    Manifest,
    StoredTask,
    sync_folder,
    write_manifest,
)
from stretto.snapshot.options import options_of
from stretto.snapshot.unfinished import CREATING, MARKER_PREFIX, note_suffix
from stretto.specs.modules import ModuleSpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId
from stretto.wire import messages as wire

TIMEOUT_SECONDS = 120.0
HOLD_SECONDS = 8.0
HELD_SECONDS = 60.0
"""How long topologies may take to come to a halt."""
ASK_SECONDS = 2.0
POLL_SECONDS = 0.05
"""How long to wait before workers are asked again how far they are; asking keeps alive what they hold."""
POLL_SECONDS_MAX = 0.5
"""Longest wait before workers are asked again while copies are made, which may take long."""
PATIENCE_SECONDS = 10.0
"""How long to wait for replicas that can be done without: followers to copy, the last ones to digest."""
ATTEMPTS = 8
THREADS = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Callback with what is done now, how much of it is done, and of how much; None if that is not known."""


def check_name(name: str) -> str:
    """Return the name of a snapshot; raises UsageError if it cannot be one."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a snapshot cannot be called {name!r}: use up to 100 letters, digits, '.', '-' and '_'"
        )
    return name


def default_name() -> str:
    """The present time in UTC, as the name of a snapshot."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def create(
    cluster: Cluster,
    module: str,
    name: str,
    to: Path,
    *,
    timeout: float = TIMEOUT_SECONDS,
    progress: Progress = lambda _what, _done, _of: None,
) -> tuple[Path, Manifest, int]:
    """Make a snapshot of a module that runs.

    Returns its folder, its manifest, and how many snapshots of the module are to be kept, 0 for all.
    ``timeout`` is how long nothing may come forward. What fails leaves nothing behind.
    """
    check_name(name)
    spec = cluster.ask(control.Specification(module=module))
    folder = to.absolute() / module / name
    cluster.ask(control.BeginSnapshot(module=module, name=name, folder=str(folder)))
    token = secrets.token_hex(16) + note_suffix(module, name)
    is_ours = False
    try:
        _make_folder(folder, token)
        is_ours = True
        making = _Making(cluster, module, folder, token=token, timeout=timeout, progress=progress)
        manifest = making.make(name, spec)
        (folder / CREATING).unlink()
        retain = cluster.ask(control.FinishSnapshot(module=module, name=name, size_bytes=manifest.size_bytes))
    except BaseException as error:
        if is_ours:
            shutil.rmtree(folder, ignore_errors=True)
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        with suppress(StrettoError):
            cluster.ask(control.ForgetSnapshot(module=module, name=name, failed=why))
        raise
    return folder, manifest, retain


def _make_folder(folder: Path, token: str) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise UsageError(f"there is something in {folder} already; choose another --name or --to") from None
    with open_private(folder / CREATING, "w", encoding="utf-8") as file:
        file.write(token)
    for each in (folder, folder.parent, folder.parent.parent):
        sync_folder(each)


@dataclass(eq=False)
class _Group:
    """A group on its way into the snapshot."""

    view: wire.GroupView
    offset: Offset
    epoch: Epoch
    #: What replicas keep of its marker, as they last reported.
    told: dict[WorkerId, control.CutView] = field(default_factory=dict)
    copier: WorkerId | None = None
    asked_at: float = 0.0
    heard_at: float = 0.0
    copied_at: float | None = None
    failed: dict[WorkerId, str] = field(default_factory=dict)

    @property
    def copy(self) -> control.CutView | None:
        """What the copying replica reports, once its copy is whole; None before."""
        view = None if self.copier is None else self.told.get(self.copier)
        if view is None or any(task.size_bytes is None for task in view.tasks.values()):
            return None
        return view

    @property
    def digested(self) -> dict[WorkerId, control.CutView]:
        return {
            worker: view
            for worker, view in self.told.items()
            if all(task.digest is not None for task in view.tasks.values())
        }


class _Making:
    def __init__(
        self,
        cluster: Cluster,
        module: str,
        folder: Path,
        *,
        token: str,
        timeout: float,
        progress: Progress,
    ) -> None:
        self._cluster = cluster
        self._network = cluster.network
        self._module = module
        self._folder = folder
        self._token = token
        self._timeout = timeout
        self._progress = progress
        self._pool: ThreadPoolExecutor
        self._addresses: dict[WorkerId, str] = {}

    def make(self, name: str, spec: ModuleSpec) -> Manifest:
        self._fetch_code(spec)
        fetched = spec.artifact
        with ThreadPoolExecutor(THREADS, "snapshot") as self._pool:
            spec, marker, groups, microbatches = self._cut(spec)
            options = options_of(self._cluster, self._module, spec)
            try:
                self._copy(groups, marker)
            finally:
                self._drop(groups, marker)
        if spec.artifact != fetched:
            self._fetch_code(spec)
        manifest = Manifest(
            release=__version__,
            name=name,
            module=self._module,
            cluster=next(iter(groups[0].told.values())).cluster,
            at_ms=time.time_ns() // 1_000_000,
            origin=spec.origin or msgspec.UNSET,
            version=spec.version,
            artifact=spec.artifact,
            entry=spec.entry,
            tasks=tuple(sorted(self._stored(groups), key=lambda stored: stored.task)),
            groups=tuple(_group_cut(group) for group in groups),
            depots=spec.depots,
            pstates=spec.pstates,
            topologies=spec.topologies,
            queries=spec.queries,
            deleted=spec.deleted,
            writers=spec.writers,
            workers=spec.workers,
            replication_factor=spec.replication_factor,
            options=options,
            microbatches=microbatches,
        )
        self._check(manifest)
        return write_manifest(self._folder, manifest)

    # Cutting.

    def _cut(self, spec: ModuleSpec) -> tuple[ModuleSpec, str, list[_Group], dict[str, int]]:
        why = ""
        for _ in range(ATTEMPTS):
            self._progress("cutting", 0, None)
            marker = secrets.token_hex(8)
            metadata = self._cluster.metadata()
            self._addresses = metadata.addresses
            Client(self._network).refresh()
            views = newest_groups(metadata, self._module)
            try:
                groups = self._cut_all(spec, views, marker)
                microbatches = _between_batches(groups)
                now = self._cluster.ask(control.Specification(module=self._module))
                if (now.version, now.artifact) == (spec.version, spec.artifact):
                    return now, marker, groups, microbatches
                spec, why = now, "the module's code changed meanwhile"
            except RetriableError as error:
                why = str(error)
            self._drop_everywhere(views, marker)
        raise RetriableError(f"{self._module} could not be cut between two moments of its work: {why}")

    def _cut_all(self, spec: ModuleSpec, views: Sequence[wire.GroupView], marker: str) -> list[_Group]:
        if not spec.topologies:
            return self._mark_all(views, marker)
        with self._held(views, marker) as (epochs, until):
            groups = self._mark_all(views, marker)
            if time.monotonic() > until:
                raise RetriableError("its groups took too long to take a marker; see 'stretto failures'")
        for group in groups:
            if group.epoch != epochs[group.view.key]:
                raise RetriableError(f"another worker leads group {group.view.key.group} since")
        return groups

    @contextmanager
    def _held(
        self, views: Sequence[wire.GroupView], token: str
    ) -> Iterator[tuple[dict[GroupKey, Epoch], float]]:
        """Hold topologies off; the block gets the epoch of each group, and until when the hold is sure."""
        workers = {worker for view in views for worker in view.replicas}
        hold = control.HoldTopologies(token=token, hold_ms=int(HOLD_SECONDS * 1_000))
        deadline = time.monotonic() + HELD_SECONDS
        try:
            while True:
                sent = time.monotonic()
                answers = self._ask_workers(workers, hold).values()
                # A worker counts once its hold was in force when it was asked, whichever time that is: it may
                # have missed the first, or its hold may have ended meanwhile.
                epochs = {key: epoch for answer in answers if answer.was_held for key, epoch in answer.led}
                missing = [view for view in views if view.key not in epochs]
                waits = next((answer.waits for answer in answers if answer.waits), "")
                if not missing and not waits:
                    break
                if sent > deadline:
                    why = waits or f"group {missing[0].key.group} has no leader that answers"
                    raise StrettoError(
                        f"the topologies of {self._module} did not come to a halt in {HELD_SECONDS:.0f} s: "
                        f"{why}; mend that, or try again"
                    )
                time.sleep(POLL_SECONDS)
            yield epochs, sent + HOLD_SECONDS
        finally:
            self._ask_workers(workers, control.HoldTopologies(token=token, hold_ms=0))

    def _mark_all(self, views: Sequence[wire.GroupView], marker: str) -> list[_Group]:
        return list(self._pool.map(lambda view: self._mark(view, marker), views))

    def _mark(self, view: wire.GroupView, marker: str) -> _Group:
        offset = mark(self._network, view, MARKER_PREFIX.decode() + marker, HOLD_SECONDS)
        # Whoever answered has applied it; it may be another worker than the view says.
        deadline = time.monotonic() + ASK_SECONDS
        while time.monotonic() < deadline:
            for worker in sorted(view.replicas, key=lambda worker: worker != view.leader):
                told = self._ask_one(worker, control.Cut(group=view.key, marker=marker))
                if told is not None and told.offset == offset:
                    return _Group(view, offset, told.epoch, {worker: told})
            time.sleep(POLL_SECONDS)
        raise RetriableError(f"no replica of group {view.key.group} keeps its state at the marker")

    def _told(self, view: wire.GroupView, marker: str, offset: Offset) -> dict[WorkerId, control.CutView]:
        call = control.Cut(group=view.key, marker=marker)
        answers = {worker: self._ask_one(worker, call) for worker in view.replicas}
        return {
            worker: answer
            for worker, answer in answers.items()
            if answer is not None and answer.offset == offset
        }

    # Copying.

    def _copy(self, groups: Sequence[_Group], marker: str) -> None:
        began = time.monotonic()
        forward, done = began, -1
        for group in groups:
            group.asked_at = group.heard_at = began
        loads: Counter[WorkerId] = Counter()
        pause = POLL_SECONDS
        while True:
            list(self._pool.map(lambda group: self._look_at(group, marker), groups))
            now = time.monotonic()
            for group in groups:
                self._go_on(group, marker, loads, now)
            told = sum(self._copied_bytes(group) for group in groups) + sum(
                len(group.digested) for group in groups
            )
            if told != done:
                forward, done = now, told
            whole = sum(group.copy is not None for group in groups)
            self._progress("copying", whole, len(groups))
            if all(self._is_finished(group, now) for group in groups):
                return
            if now - forward > self._timeout:
                raise StrettoError(f"nothing came forward for {self._timeout:.0f} s; see the workers' logs")
            time.sleep(pause)
            pause = min(pause * 1.3, POLL_SECONDS_MAX)

    def _copied_bytes(self, group: _Group) -> int:
        view = None if group.copier is None else group.told.get(group.copier)
        return 0 if view is None else view.copied_bytes

    def _look_at(self, group: _Group, marker: str) -> None:
        told = self._told(group.view, marker, group.offset)
        group.told |= told
        if group.copier is None or group.copier in told:
            group.heard_at = time.monotonic()

    def _go_on(self, group: _Group, marker: str, loads: Counter[WorkerId], now: float) -> None:
        if group.copy is not None:
            group.copied_at = group.copied_at or now
            return
        if group.copier is not None:
            view = group.told.get(group.copier)
            if view is not None and view.problem:
                group.failed[group.copier] = view.problem
            elif now - group.heard_at > PATIENCE_SECONDS:
                group.failed[group.copier] = f"worker {group.copier} does not answer any more"
            else:
                return
            group.told.pop(group.copier, None)
            group.copier, group.asked_at = None, now
        group.copier = self._choose(group, loads, now)
        if group.copier is None:
            return
        loads[group.copier] += 1
        group.heard_at = now
        call = control.CopyCut(
            group=group.view.key, marker=marker, folder=str(self._folder), token=self._token
        )
        if not self._ask_one(group.copier, call):
            group.failed[group.copier] = f"worker {group.copier} does not answer"
            group.copier = None

    def _choose(self, group: _Group, loads: Counter[WorkerId], now: float) -> WorkerId | None:
        """The worker that is to copy: the follower of the ISR with the least to do, or else the leader.

        None if it is too early to tell.
        """
        able = [worker for worker in group.told if worker not in group.failed]
        followers = [worker for worker in able if worker in group.view.isr and worker != group.view.leader]
        if followers:
            return min(followers, key=lambda worker: (loads[worker], worker))
        may_come = set(group.view.isr) - {group.view.leader, *able, *group.failed}
        if may_come and now - group.asked_at < PATIENCE_SECONDS:
            return None
        if not able and group.failed:
            why = next(reversed(group.failed.values()))
            raise StrettoError(f"no replica could copy group {group.view.key.group}: {why}")
        return min(able, default=None)

    def _is_finished(self, group: _Group, now: float) -> bool:
        """Whether a group is copied, and compared with all members of the ISR that get there in time."""
        if group.copy is None or group.copied_at is None or group.copier not in group.digested:
            return False
        is_late = now - group.copied_at > PATIENCE_SECONDS
        return is_late or set(group.view.isr) <= group.digested.keys()

    def _stored(self, groups: Iterable[_Group]) -> Iterator[StoredTask]:
        for group in groups:
            copy = group.copy
            if copy is None:
                raise StrettoError(f"group {group.view.key.group} was not copied")
            for task, stored in copy.tasks.items():
                digests = {view.tasks[task].digest for view in group.digested.values()}
                if len(digests) > 1 or stored.digest is None or stored.size_bytes is None:
                    raise StrettoError(
                        f"replicas of task {task} hold different things at entry {group.offset}; "
                        f"keep all of them, and report what 'stretto verify {self._module}' says"
                    )
                yield StoredTask(
                    task=TaskId(task),
                    offset=group.offset,
                    digest=stored.digest,
                    size_bytes=stored.size_bytes,
                    sha256=stored.sha256,
                )

    def _check(self, manifest: Manifest) -> None:
        done = 0
        for stored in manifest.tasks:
            self._progress("checking", done, manifest.size_bytes)
            verdict = check_task(self._folder, stored)
            if verdict.why:
                raise StrettoError(
                    f"the copy of task {stored.task} is not as it was written: {verdict.why}; "
                    f"check that {self._folder} is the same folder on all nodes"
                )
            done += stored.size_bytes

    def _fetch_code(self, spec: ModuleSpec) -> None:
        """Copy the code of the module into the snapshot, from any node that has it."""
        path = self._folder / ARTIFACT
        why = "no node answers"
        for node in self._cluster.ask(control.Nodes()):
            if node.address is None:
                continue
            try:
                with open_private(path, "wb") as file:
                    size = 1
                    while file.tell() < size:
                        call = control.GetArtifact(digest=spec.artifact, offset=file.tell())
                        size, bodies = ask_with_body(self._network, node.address, call)
                        file.write(bodies[0])
                    file.flush()
                    os.fsync(file.fileno())
                if digest_of(path) == spec.artifact:
                    return
                why = f"node {node.node} sent something else"
            except StrettoError as error:
                why = str(error)
        raise StrettoError(f"the code of {self._module} could not be fetched: {why}")

    # Letting go, asking.

    def _drop(self, groups: Sequence[_Group], marker: str) -> None:
        self._drop_everywhere([group.view for group in groups], marker)

    def _drop_everywhere(self, views: Sequence[wire.GroupView], marker: str) -> None:
        def drop(view: wire.GroupView) -> None:
            for worker in view.replicas:
                self._ask_one(worker, control.DropCut(group=view.key, marker=marker))

        list(self._pool.map(drop, views))

    def _ask_workers(
        self, workers: Iterable[WorkerId], call: control.Call[control.Result]
    ) -> dict[WorkerId, control.Result]:
        named = list(workers)
        answers = self._pool.map(lambda worker: self._ask_one(worker, call), named)
        return {worker: answer for worker, answer in zip(named, answers, strict=True) if answer is not None}

    def _ask_one(self, worker: WorkerId, call: control.Call[control.Result]) -> control.Result | None:
        """Ask one worker; None if it does not answer, or refuses."""
        address = self._addresses.get(worker)
        if address is None:
            return None
        try:
            return ask(self._network, address, call, timeout=ASK_SECONDS)
        except StrettoError:
            return None


def _between_batches(groups: Sequence[_Group]) -> dict[str, int]:
    """The latest microbatch of each topology. Raises RetriableError if the cuts are not between two."""
    cuts: dict[str, dict[TaskId, control.MicrobatchCut]] = {}
    for group in groups:
        view = next(iter(group.told.values()))
        for task, told in view.tasks.items():
            for topology, cut in told.microbatches.items():
                cuts.setdefault(topology, {})[task] = cut
    for topology, by_task in cuts.items():
        why = why_torn(topology, by_task)
        if why:
            raise RetriableError(why)
    return {topology: by_task[TaskId(0)].id for topology, by_task in cuts.items()}


def _group_cut(group: _Group) -> GroupCut:
    return GroupCut(
        group=group.view.key.group,
        offset=group.offset,
        epoch=group.epoch,
        tasks=group.view.tasks,
        copied_by=group.copier or WorkerId(""),
        replicas=tuple(sorted(group.digested)),
    )
