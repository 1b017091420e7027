"""The state that is read: groups pinned on their workers, or a snapshot in a folder.

Both are found in the driver and read anywhere, by the same calls
(:class:`~stretto.client.reading.scan.Scan`). What is found is plain data, so Spark can send it to whoever
reads.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from pyspark_stretto.options import Options
from stretto import control
from stretto.artifact.archive import digest_of
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.modules import find_depot, find_pstate
from stretto.client.operating.status import newest_groups
from stretto.client.reading.scan import PinnedGroup, Scan, Scanner, pin_module, release
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.network.keys import ClusterKey
from stretto.network.routing import Network
from stretto.pstate.types import Type
from stretto.snapshot.finding import folder_of
from stretto.snapshot.manifest import SnapshotDamaged, StoredTask, file_of
from stretto.snapshot.reading import Snapshot, open_snapshot

Where: TypeAlias = PinnedGroup | str
"""Where a task is read: a pin, or the folder of a snapshot."""
HASHED_BYTES_MAX = 1 << 30
"""Total size up to which the files of a snapshot are hashed when the read is planned.

Those of a larger one are hashed in parallel by the processes that read them: each process of Spark hashes a
file once, before it reads from it.
"""
QUERY_IDLE_MS = 60_000
"""How long a pin of one query lasts while it is not read.

Each query pins anew, and one that reads only the first rows does not say that it is done.
"""
#: Identities of the files that this process has hashed and found whole.
_whole: set[tuple[str, int, int, int]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What there was to read when the DataFrame was made."""

    module: str
    version: int
    tasks: int
    type: Type | None
    """The type of the PState; None for a depot."""
    origin: str = ""
    """The origin of the module, or of the depot; offsets mean something within one origin only."""
    folder: str | None = None
    """The folder of the snapshot; None if the state is read from workers."""
    load: str = ""
    """The name of the ``load()`` that this belongs to; see :mod:`pyspark_stretto.moments`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tasks that are read as of one offset."""

    where: Where
    group: str
    tasks: tuple[int, ...]
    offset: int
    epoch: int
    worker: str | None = None
    by_leader: bool = False

    def told(self) -> dict[str, object]:
        """Return the fields that a report shows of this piece."""
        told = asdict(self)
        del told["where"]
        return told


def describe(options: Options) -> Described:
    """Look up what the options name. Raises UsageError, with the nearest name, if it does not exist."""
    # Executors have other working directories than the driver.
    folder = None if options.path is None else str(Path(options.path).absolute())
    if folder is None:
        with reached(options) as cluster:
            if options.at is None:
                module = options.module or ""
                return _described(options, module, _ask(cluster, module))
            folder = folder_of(cluster, options.module or "", options.at)
    with open_snapshot(folder) as snapshot:
        if options.module not in (None, snapshot.module):
            raise UsageError(
                f"{folder} is a snapshot of module {snapshot.module}, not of {options.module}; "
                "take the option module away"
            )
        found = msgspec.structs.replace(snapshot.description, version=snapshot.manifest.version)
        return replace(_described(options, snapshot.module, found), folder=folder)


def _described(options: Options, module: str, found: control.ModuleDescription) -> Described:
    type_, origin = None, found.origin
    if options.pstate is not None:
        type_ = find_pstate(module, found, options.pstate).type
    else:
        origin = found.origin_of(find_depot(module, found, options.depot or "").name)
    return Described(module=module, version=found.version, tasks=found.tasks, type=type_, origin=origin)


def find(options: Options, described: Described) -> list[Piece]:
    """Pin every group, or check the snapshot. Raises UsageError if the module is not what it was."""
    if described.folder is not None:
        return _in_snapshot(described.folder)
    with reached(options) as cluster:
        pinned = pin(cluster, options, described)
    return [
        Piece(
            where=group,
            group=group.group,
            tasks=group.tasks,
            offset=group.offset,
            epoch=group.epoch,
            worker=group.worker,
            by_leader=group.by_leader,
        )
        for group in pinned
    ]


def pin(cluster: Cluster, options: Options, described: Described) -> tuple[PinnedGroup, ...]:
    """Pin all groups as of now. Raises UsageError if the module is not what it was."""
    pinned = pin_module(
        cluster,
        described.module,
        source=options.source,
        holder=f"Spark on {socket.gethostname()}",
        idle_ms=QUERY_IDLE_MS if options.replans and not options.hold_ms else None,
        hold_ms=options.hold_ms,
    )
    try:
        for group in pinned:
            _check_pinned(group, options, described)
    except UsageError:
        release(pinned, options.cluster_key())
        raise
    return pinned


def _check_pinned(group: PinnedGroup, options: Options, described: Described) -> None:
    if group.version != described.version:
        raise UsageError(
            f"module {described.module} was updated from version {described.version} to {group.version} "
            "after this DataFrame was made; make it anew with spark.read"
        )
    if options.hold_ms > group.max_age_ms:
        raise UsageError(
            f"option hold.seconds is {options.hold_ms // 1_000}, and a pin lasts at most "
            f"{group.max_age_ms // 1_000} s here: ask for less, or raise pin.max.age.millis"
        )


def _in_snapshot(folder: str) -> list[Piece]:
    with open_snapshot(folder) as snapshot:
        manifest = snapshot.manifest
    for stored in manifest.tasks:
        _check_file(Path(folder), stored, hashed=manifest.size_bytes <= HASHED_BYTES_MAX)
    return [
        Piece(
            where=folder,
            group=f"{manifest.module}/{cut.group}",
            tasks=tuple(map(int, cut.tasks)),
            offset=int(cut.offset),
            epoch=int(cut.epoch),
        )
        for cut in manifest.groups
    ]


def _check_file(folder: Path, stored: StoredTask, *, hashed: bool) -> None:
    path = file_of(folder, stored.task)
    try:
        stat = path.stat()
        is_whole = stat.st_size == stored.size_bytes
        known = (stored.sha256, stat.st_dev, stat.st_ino, stat.st_mtime_ns)
        if is_whole and hashed and known not in _whole:
            is_whole = digest_of(path) == stored.sha256
            if is_whole:
                _whole.add(known)
    except OSError as error:
        raise SnapshotDamaged(f"{path} cannot be read ({error.strerror}); use another snapshot") from None
    if not is_whole:
        raise SnapshotDamaged(
            f"{path} is damaged: it is not the file that the manifest tells of; use another snapshot"
        )


def check_task(scan: Scan, task: int) -> None:
    """Hash a task's file before it is read, if the snapshot was too large to hash when it was planned."""
    if isinstance(scan, Snapshot) and scan.manifest.size_bytes > HASHED_BYTES_MAX:
        _check_file(scan.folder, scan.stored(task), hashed=True)


@contextmanager
def opened(where: Where, key: ClusterKey | None) -> Iterator[Scan]:
    """Open a pin or a snapshot for reading."""
    if isinstance(where, str):
        with open_snapshot(where) as snapshot:
            yield snapshot
    else:
        with Scanner(where, key) as scanner:
            yield scanner


def part_read(scan: Scan, part: int, parts: int) -> None:
    """Report a part as read, so that its pin need not be kept until it times out."""
    if isinstance(scan, Scanner):
        scan.part_read(part, parts)


def let_go(scan: Scan) -> None:
    """Release a pin of which nothing is read."""
    if isinstance(scan, Scanner):
        scan.release()


@contextmanager
def reached(options: Options) -> Iterator[Cluster]:
    """Connect to the cluster. Raises RetriableError if nothing answers."""
    network = Network(options.bootstrap, options.cluster_key())
    try:
        cluster = Cluster(network, options.bootstrap)
        try:
            cluster.metadata()
        except RetriableError as error:
            tried = ", ".join(options.bootstrap)
            why = network.refusal
            raise RetriableError(
                f"no cluster answers at {tried}{f' ({why})' if why else ''}; check the option bootstrap"
            ) from error
        yield cluster
    finally:
        network.close()


def _ask(cluster: Cluster, module: str) -> control.ModuleDescription:
    """Return the description of a module from the first of its workers that answers."""
    metadata = cluster.metadata()
    views = newest_groups(metadata, module)
    why = "none of its workers can be found"
    for worker in dict.fromkeys(worker for view in views for worker in view.replicas):
        address = metadata.addresses.get(worker)
        if address is None:
            continue
        try:
            return cluster.ask_worker(address, control.Describe(module=module))
        except StrettoError as error:
            why = str(error)
    raise RetriableError(f"module {module} cannot be read now: {why}; see 'stretto module-status {module}'")
