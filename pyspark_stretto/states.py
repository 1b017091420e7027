"""The state that is read: groups pinned on their workers, or a snapshot in a folder.

Both are found in the driver and read anywhere, by the same calls (:class:`~stretto.client.scan.Scan`). What
is found is plain data, so Spark can send it to whoever reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from pyspark_stretto.options import Options
from stretto import admin
from stretto.client.cluster import Cluster
from stretto.client.modules import find_depot, find_pstate
from stretto.client.network import Network
from stretto.client.scan import PinnedGroup, Scan, Scanner, pin_module
from stretto.client.status import newest_groups
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.keys import ClusterKey
from stretto.pstate.types import Type

Where: TypeAlias = PinnedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What there was to read when the DataFrame was made."""

    module: str
    version: int
    tasks: int
    type: Type | None
    """Of the PState."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tasks that are read as of one offset."""

    where: Where
    offset: int
    tasks: tuple[int, ...]

    def told(self) -> dict[str, object]:
        """For a report."""
        group = self.where
        return {
            "group": group.group,
            "tasks": self.tasks,
            "offset": self.offset,
            "epoch": group.epoch,
            "worker": group.worker,
            "by_leader": group.by_leader,
        }


def describe(options: Options) -> Described:
    """Raises UsageError for what is not there, with the nearest name."""
    with _reached(options) as cluster:
        module = options.module or ""
        return _described(options, module, _ask(cluster, module))


def _described(options: Options, module: str, found: admin.ModuleDescription) -> Described:
    type_ = None
    if options.pstate is not None:
        type_ = find_pstate(module, found, options.pstate).type
    else:
        find_depot(module, found, options.depot or "")
    return Described(module=module, version=found.version, tasks=found.tasks, type=type_)


def find(options: Options, described: Described) -> list[Piece]:
    """Pins every group. Raises UsageError if the module is not what it was."""
    with _reached(options) as cluster:
        pinned = pin_module(cluster, described.module, source=options.source, holder="Spark")
    for group in pinned:
        if group.version != described.version:
            raise UsageError(
                f"module {described.module} was updated from version {described.version} to {group.version} "
                "after this DataFrame was made; make it anew with spark.read"
            )
    return [Piece(where=group, offset=group.offset, tasks=group.tasks) for group in pinned]


@contextmanager
def opened(where: Where, key: ClusterKey | None) -> Iterator[Scan]:
    with Scanner(where, key) as scanner:
        yield scanner


def part_read(scan: Scan, part: int, parts: int) -> None:
    """So that a pin need not be kept until it times out."""
    if isinstance(scan, Scanner):
        scan.part_read(part, parts)


def let_go(scan: Scan) -> None:
    """Nothing of it is read."""
    if isinstance(scan, Scanner):
        scan.release()


@contextmanager
def _reached(options: Options) -> Iterator[Cluster]:
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


def _ask(cluster: Cluster, module: str) -> admin.ModuleDescription:
    """By the first worker of the module that answers."""
    metadata = cluster.metadata()
    views = newest_groups(metadata, module)
    why = "none of its workers can be found"
    for worker in dict.fromkeys(worker for view in views for worker in view.replicas):
        address = metadata.addresses.get(worker)
        if address is None:
            continue
        try:
            return cluster.ask_worker(address, admin.Describe(module=module))
        except StrettoError as error:
            why = str(error)
    raise RetriableError(f"module {module} cannot be read now: {why}; see 'stretto module-status {module}'")
