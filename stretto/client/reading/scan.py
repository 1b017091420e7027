"""Reading the applied state in bulk, as of one moment: pins of task groups, and connections that scan them.

:func:`pin_module` pins every group of a module. What it returns can be sent to other processes, each of which
makes a :class:`Scanner` of a pin and reads what it likes, as often as it likes: it is the same every time. A
snapshot on disk is read by the same calls (:class:`Scan`), so code that turns rows into columns need not know
which of the two it has.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol, Self, TypeAlias, TypeVar

import msgspec
import zmq

from stretto import control
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.status import newest_groups
from stretto.errors import PeerError, PinLost, RetriableError, StrettoError, UsageError
from stretto.network.asking import ask
from stretto.network.keys import ClusterKey, require_key
from stretto.network.link import Link
from stretto.pstate.ordered import EVERYTHING
from stretto.pstate.pages import PAGE_BYTES, Page
from stretto.state.depot import DepotBatch
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import WorkerId
from stretto.wire import messages as wire
from stretto.wire import scans
from stretto.wire.scans import OFFSET_END, PinnedGroup, Size, TaskSizes

__all__ = [
    "DepotBatch",
    "Page",
    "PinnedGroup",
    "Scan",
    "Scanner",
    "Size",
    "TaskSizes",
    "pin_module",
    "release",
]

Source: TypeAlias = Literal["follower", "leader"]
"""Which replica of a group is pinned."""

MAX_STALENESS_SECONDS = 10.0
"""How old the state of a follower may be that is pinned, if the caller does not say."""
PIN_SECONDS = 30.0
"""How long it may take to pin one group, over fail-overs."""
FOLLOWERS_SECONDS = 5.0
"""After so long without a follower that can be pinned, the leader is asked."""
_CALL_SECONDS = 20.0
_AGAIN_SECONDS = 0.1
"""Pause before the replicas are asked again: a follower that lags does not report when it has caught up."""
_GROUPS_AT_ONCE = 16

BATCHES_BYTES = 4 * 1024 * 1024
ANSWER_SECONDS = 60.0
CONNECTS = 3
RECONNECT_SECONDS = 0.2
"""Pause before connecting again: a process that is not there (yet) refuses at once, without notice later."""

T = TypeVar("T", bound=scans.FromScans)


class Scan(Protocol):
    """One consistent state that can be read again and again: a pinned group's, or a snapshot's."""

    @property
    def tasks(self) -> tuple[int, ...]: ...

    def rows(
        self, task: int, pstate: str, start: bytes = EVERYTHING[0], end: bytes = EVERYTHING[1]
    ) -> Iterator[Page]:
        """Iterate over pages of rows with keys in ``[start, end)``, ascending; none if there are none."""
        ...

    def splits(
        self,
        task: int,
        pstate: str,
        parts: int,
        start: bytes = EVERYTHING[0],
        end: bytes = EVERYTHING[1],
    ) -> list[bytes]:
        """Return at most ``parts - 1`` keys that cut those rows into about equal parts; no row is read."""
        ...

    def sizes(self) -> dict[int, TaskSizes]:
        """Return the sizes of each task's PStates and depots, by name. This is cheap."""
        ...

    def batches(self, task: int, depot: str, start: int = 0, end: int = OFFSET_END) -> Iterator[DepotBatch]:
        """Iterate over the stored batches with records ``[start, end)``; the outer ones may hold more."""
        ...

    def bounds(self, task: int, depot: str) -> tuple[int, int]:
        """Return the first offset of a depot on a task, and its end, one beyond the last."""
        ...

    def offset_at(self, task: int, depot: str, timestamp_ms: int) -> int:
        """Return the first offset at or after a time; the end of the depot if there is none."""
        ...


# Pins.


def pin_module(
    cluster: Cluster,
    module: str,
    *,
    source: Source = "follower",
    max_staleness: float = MAX_STALENESS_SECONDS,
    holder: str = "",
    idle_ms: int | None = None,
    hold_ms: int = 0,
) -> tuple[PinnedGroup, ...]:
    """Pin every group of the module, each as of one apply offset.

    Pins are on followers of the ISR, whose state is at most ``max_staleness`` seconds old; the leader serves
    what no follower can, and ``by_leader`` says so. A worker shows ``holder`` to people who list its pins.
    Either all groups are pinned, or none. A pin ends when nobody has read it for ``idle_ms``, and is kept for
    ``hold_ms`` after it was read although all of it was; the cluster's options bound both.
    """
    if source not in ("follower", "leader"):
        raise UsageError(f"groups are read from a follower or the leader, not from {source!r}")
    call = control.PinGroup(
        group=GroupKey(module, 0, 0),
        max_staleness_ms=max(1, int(max_staleness * 1_000)),
        holder=holder or f"process {os.getpid()} on {socket.gethostname()}",
        idle_ms=idle_ms,
        hold_ms=hold_ms,
    )
    pinning = _Pinning(cluster, source, call)
    metadata = cluster.metadata()
    views = newest_groups(metadata, module)
    pinned: list[PinnedGroup] = []
    failures: list[StrettoError] = []
    with ThreadPoolExecutor(min(_GROUPS_AT_ONCE, len(views)), "pin") as pool:
        for future in [pool.submit(pinning.pin, view, metadata) for view in views]:
            try:
                pinned.append(future.result())
            except StrettoError as error:
                failures.append(error)
    if failures:
        release(pinned, cluster.network.key)
        raise failures[0]
    return tuple(pinned)


def release(pinned: Iterable[PinnedGroup], key: ClusterKey | None = None) -> None:
    """Give pins back before their time. One that is lost already is as good as released."""
    for each in pinned:
        try:
            with Scanner(each, key) as scanner:
                scanner.release()
        except PinLost:
            continue


class _Pinning:
    def __init__(self, cluster: Cluster, source: Source, call: control.PinGroup) -> None:
        self._cluster = cluster
        self._source = source
        #: The call to a follower; the group is filled in for each.
        self._call = call

    def pin(self, view: wire.GroupView, metadata: wire.Metadata) -> PinnedGroup:
        began = time.monotonic()
        why = "nobody leads it now"
        while True:
            waited = time.monotonic() - began
            for worker in self._candidates(view, waited):
                address = metadata.addresses.get(worker)
                if address is None:
                    continue
                try:
                    return self._ask(address, view, is_leader=worker == view.leader)
                except UsageError:
                    raise
                except StrettoError as error:
                    why = str(error)
            if waited > PIN_SECONDS:
                raise RetriableError(f"group {view.key} cannot be pinned: {why}")
            time.sleep(_AGAIN_SECONDS)
            metadata = self._cluster.metadata()
            newest = newest_groups(metadata, view.key.module)
            view = next((each for each in newest if each.tasks == view.tasks), view)

    def _candidates(self, view: wire.GroupView, waited: float) -> list[WorkerId]:
        """Return the replicas to ask, in order; groups begin with different followers to spread the work."""
        followers = [worker for worker in view.isr if worker != view.leader]
        leader = [view.leader] if view.leader is not None else []
        if self._source == "leader" or not followers:
            return leader
        turn = view.key.group % len(followers)
        followers = followers[turn:] + followers[:turn]
        return followers if waited < FOLLOWERS_SECONDS else [*leader, *followers]

    def _ask(self, address: str, view: wire.GroupView, *, is_leader: bool) -> PinnedGroup:
        stale_ms = None if is_leader else self._call.max_staleness_ms
        call = msgspec.structs.replace(self._call, group=view.key, max_staleness_ms=stale_ms)
        return ask(self._cluster.network, address, call, timeout=_CALL_SECONDS)


# Scans.


class Scanner:
    """A :class:`Scan` of a pinned group, over a connection of its own. For one thread; close it.

    The next page is asked for before the caller has the one before it, so that the worker reads while the
    caller decodes. A connection that breaks is made again. Raises PinLost when the pin is gone.
    """

    def __init__(
        self, pinned: PinnedGroup, key: ClusterKey | None = None, *, timeout: float = ANSWER_SECONDS
    ) -> None:
        self.pinned = pinned
        self.tasks = pinned.tasks
        self._connection = _Connection(pinned, key, timeout)

    def rows(
        self, task: int, pstate: str, start: bytes = EVERYTHING[0], end: bytes = EVERYTHING[1]
    ) -> Iterator[Page]:
        connection, pin = self._connection, self.pinned.pin
        number = connection.ask(
            scans.ReadPage(connection.next_number(), pin, task, pstate, start, end, False, PAGE_BYTES)
        )
        try:
            more = True
            while more:
                reply, bodies = connection.answer(number, scans.PageRead)
                more = reply.more
                if not reply.count:
                    return
                page = Page(reply.count, *bodies)
                if more:
                    number = connection.ask(
                        scans.ReadPage(
                            connection.next_number(), pin, task, pstate, page.last_key, end, True, PAGE_BYTES
                        )
                    )
                yield page
        finally:
            connection.forget(number)

    def splits(
        self,
        task: int,
        pstate: str,
        parts: int,
        start: bytes = EVERYTHING[0],
        end: bytes = EVERYTHING[1],
    ) -> list[bytes]:
        number = self._connection.next_number()
        message = scans.FindSplits(number, self.pinned.pin, task, pstate, parts, start, end)
        return list(self._connection.call(message, scans.SplitsFound).keys)

    def sizes(self) -> dict[int, TaskSizes]:
        message = scans.FindSizes(self._connection.next_number(), self.pinned.pin)
        return self._connection.call(message, scans.SizesFound).tasks

    def batches(self, task: int, depot: str, start: int = 0, end: int = OFFSET_END) -> Iterator[DepotBatch]:
        connection, pin = self._connection, self.pinned.pin
        number = 0
        at: int | None = start
        try:
            while at is not None:
                number = number or connection.ask(
                    scans.ReadBatches(connection.next_number(), pin, task, depot, at, end, BATCHES_BYTES)
                )
                reply, bodies = connection.answer(number, scans.BatchesRead)
                at, number = reply.next, 0
                if at is not None:
                    number = connection.ask(
                        scans.ReadBatches(connection.next_number(), pin, task, depot, at, end, BATCHES_BYTES)
                    )
                for base, timestamp_ms, payload in zip(reply.bases, reply.timestamps_ms, bodies, strict=True):
                    yield DepotBatch(DepotOffset(base), timestamp_ms, payload)
        finally:
            connection.forget(number)

    def bounds(self, task: int, depot: str) -> tuple[int, int]:
        found = self._bounds(task, depot, None)
        return found.start, found.end

    def offset_at(self, task: int, depot: str, timestamp_ms: int) -> int:
        found = self._bounds(task, depot, timestamp_ms)
        return found.end if found.found is None else found.found

    def _bounds(self, task: int, depot: str, timestamp_ms: int | None) -> scans.BoundsFound:
        number = self._connection.next_number()
        message = scans.FindBounds(number, self.pinned.pin, task, depot, timestamp_ms)
        return self._connection.call(message, scans.BoundsFound)

    def part_read(self, part: int, parts: int) -> None:
        """Report that part ``part`` of ``parts`` was read to its end.

        Once all parts are, the pin does not wait for its time-out: it is kept for about as long as it was
        read, for parts that are read again.
        """
        number = self._connection.next_number()
        self._connection.call(scans.PartRead(number, self.pinned.pin, part, parts), scans.Released)

    def renew(self, pins: tuple[str, ...]) -> tuple[str, ...]:
        """Keep these pins of the same worker, although nobody reads them now; returns those that are gone."""
        return self._connection.call(scans.Renew(self._connection.next_number(), pins), scans.Released).gone

    def release(self) -> None:
        """Release the pin, which no process reads any more."""
        self._connection.call(scans.Release(self._connection.next_number(), self.pinned.pin), scans.Released)

    def close(self) -> None:
        """Close the connection; the pin stays."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Connection:
    """A connection to the scan process of a worker, for one thread.

    Requests go out at once; each is answered when it is waited for. What was asked on a connection that broke
    is asked again on the next one.

    It is no Dealer, since its caller blocks and has no loop, and a scan process is sent no hello.
    """

    def __init__(self, pinned: PinnedGroup, key: ClusterKey | None, timeout: float) -> None:
        require_key(pinned.address, key)
        self._pinned = pinned
        self._key = key
        self._timeout = timeout
        self._numbers = itertools.count(1)
        #: Requests that are not answered yet, by number.
        self._asked: dict[int, scans.ToScans] = {}
        #: Answers that were not waited for yet, by number of the request.
        self._answers: dict[int, tuple[scans.FromScans, list[bytes]]] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connects = 0
        self._link = Link(self._context)
        self._connect()

    def next_number(self) -> int:
        return next(self._numbers)

    def ask(self, message: scans.ToScans) -> int:
        self._asked[message.request] = message
        self._send(message)
        return message.request

    def call(self, message: scans.ToScans, kind: type[T]) -> T:
        return self.answer(self.ask(message), kind)[0]

    def answer(self, number: int, kind: type[T]) -> tuple[T, list[bytes]]:
        deadline = time.monotonic() + self._timeout
        while number not in self._answers:
            self._receive(deadline)
        reply, bodies = self._answers.pop(number)
        match reply:
            case scans.Lost(why=why):
                raise self._lost(why)
            case scans.Refused(why=why):
                raise StrettoError(why)
            case _ if isinstance(reply, kind):
                return reply, bodies
            case _:
                raise PeerError(f"worker {self._pinned.worker} answers with {type(reply).__name__}")

    def forget(self, number: int) -> None:
        """Drop a request and its answer, which no caller waits for."""
        self._asked.pop(number, None)
        self._answers.pop(number, None)

    def close(self) -> None:
        if not self._context.closed:
            self._link.close()
            self._context.destroy(0)

    def _lost(self, why: str) -> PinLost:
        pinned = self._pinned
        return PinLost(pinned.pin, pinned.group, pinned.worker, why)

    def _connect(self) -> None:
        monitor = self._link.connect(self._pinned.address, self._key)
        self._poller = zmq.Poller()
        self._poller.register(self._link.socket, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        for message in self._asked.values():
            self._send(message)

    def _send(self, message: scans.ToScans) -> None:
        try:
            self._link.socket.send(scans.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            # The connection is lost, which its monitor reports when an answer is waited for.
            return

    def _receive(self, deadline: float) -> None:
        left_ms = int((deadline - time.monotonic()) * 1_000)
        ready = dict(self._poller.poll(left_ms)) if left_ms > 0 else {}
        if not ready:
            raise self._lost(f"nothing was answered for {self._timeout:g} s")
        if self._link.socket in ready:
            header, *bodies = self._link.socket.recv_multipart()
            reply = scans.decode_from_scans(header)
            self._connects = 0
            if self._asked.pop(reply.request, None) is not None:
                self._answers[reply.request] = (reply, bodies)
        elif self._link.observe() and self._link.is_lost:
            self._reconnect()

    def _reconnect(self) -> None:
        self._connects += 1
        if self._connects == CONNECTS:
            raise self._lost(
                f"nobody answers at {self._pinned.address}; its process has ended, or has another cluster key"
            )
        self._link.close()
        time.sleep(RECONNECT_SECONDS)
        self._link = Link(self._context)
        self._connect()
