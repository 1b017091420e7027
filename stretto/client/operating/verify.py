"""Whether the replicas of a module hold the same, at the same entry of each group's log.

A marker is appended to each group; every replica computes the digests of its tasks when it applies it, and is
asked for them until it has them or the time is over.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from stretto import control
from stretto.client.asking.question import Question
from stretto.client.operating.status import newest_groups
from stretto.errors import RetriableError, StrettoError
from stretto.network.asking import ask
from stretto.network.routing import Network
from stretto.replog.core.producers import NO_PRODUCER
from stretto.replog.frame import Kind
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Offset, TaskId, WorkerId
from stretto.wire import messages as wire

GROUPS_AT_ONCE = 4
ASK_SECONDS = 2.0
POLL_SECONDS = 0.1
"""Pause between two questions for digests: a replica computes its own when it applies the marker."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one group."""

    group: GroupKey
    offset: Offset | None
    """Offset just above the marker; None if no marker could be appended."""
    digests: dict[TaskId, dict[WorkerId, str]]
    missing: tuple[WorkerId, ...]
    """Replicas that had no digest in time."""
    why: str = ""

    @property
    def different(self) -> tuple[TaskId, ...]:
        """Tasks whose replicas do not all hold the same."""
        return tuple(task for task, found in self.digests.items() if len(set(found.values())) > 1)

    @property
    def is_equal(self) -> bool:
        """Whether all replicas were compared, and hold the same."""
        return self.offset is not None and not self.missing and not self.different


def verify(
    network: Network,
    metadata: wire.Metadata,
    module: str,
    *,
    timeout: float,
    progress: Callable[[Verdict], None] = lambda _: None,
) -> list[Verdict]:
    """Compare the replicas of every group of a module, a few groups at a time.

    Their snapshots cost disk while they are read.
    """
    views = newest_groups(metadata, module)

    def one(view: wire.GroupView) -> Verdict:
        verdict = _verify(network, metadata, view, timeout)
        progress(verdict)
        return verdict

    with ThreadPoolExecutor(GROUPS_AT_ONCE, "verify") as pool:
        return list(pool.map(one, views))


def _verify(network: Network, metadata: wire.Metadata, view: wire.GroupView, timeout: float) -> Verdict:
    marker = secrets.token_hex(8)
    deadline = time.monotonic() + timeout
    try:
        offset = mark(network, view, marker, timeout)
    except StrettoError as error:
        return Verdict(group=view.key, offset=None, digests={}, missing=view.replicas, why=str(error))
    found: dict[WorkerId, control.DigestView] = {}
    while len(found) < len(view.replicas) and time.monotonic() < deadline:
        # A worker that is started again meanwhile may be somewhere else.
        addresses = metadata.addresses | network.view.addresses
        for worker in view.replicas:
            address = addresses.get(worker)
            if worker not in found and address is not None:
                answer = _ask(network, address, view.key, marker)
                # Another offset: a marker whose answer was lost, and which was appended again.
                if answer is not None and answer.offset == offset:
                    found[worker] = answer
        if len(found) < len(view.replicas):
            network.call(network.refresh, _nothing)
            time.sleep(POLL_SECONDS)
    return Verdict(
        group=view.key,
        offset=offset,
        digests={
            task: {worker: each.digests[task] for worker, each in found.items() if task in each.digests}
            for task in view.tasks
        },
        missing=tuple(worker for worker in view.replicas if worker not in found),
    )


def mark(network: Network, view: wire.GroupView, marker: str, timeout: float) -> Offset:
    """Append a marker to a group; return the offset just above it.

    It is repeated over leader moves: one that is there twice does no harm, the last counts.
    """

    def message(number: int, group: GroupKey) -> wire.ToWorker:
        return wire.AppendBatch(number, group, Kind.MARKER, view.tasks[0], NO_PRODUCER, 0, 1)

    question = Question(
        network, view.key.module, view.tasks[0], message, timeout, bodies=(marker.encode("ascii"),)
    )
    reply, _ = question.begin().wait()
    if not isinstance(reply, wire.Appended) or reply.offset is None:
        raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")
    return Offset(reply.offset + 1)


def _ask(network: Network, address: str, group: GroupKey, marker: str) -> control.DigestView | None:
    try:
        return ask(network, address, control.Digests(group=group, marker=marker), timeout=ASK_SECONDS)
    except StrettoError:
        return None


def _nothing() -> None:
    """Do nothing when the network is refreshed: the caller looks for itself after a pause."""


def all_equal(verdicts: Sequence[Verdict]) -> bool:
    return all(verdict.is_equal for verdict in verdicts)
