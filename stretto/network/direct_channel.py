"""The short way of a caller that waits for one answer: it sends and receives on connections of its own.

To wake another thread and to be woken by it takes longer than all that a client does for a point read, or for
a record that is appended by itself. So the first caller that comes has the channel to itself, with
connections that no other thread touches, and makes the turns of its loop until the answer is there. Callers
that come meanwhile take the client's thread, where requests travel together. What does not end with an answer
of the leader is asked again there too: only that thread knows what to do about leaders that move.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import zmq

from stretto.network.connections import Connections
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Buffer
from stretto.wire import messages as wire

TIMEOUT_MS = 3_000


class DirectChannel:
    """Connections on which one caller at a time asks a leader, on the caller's own thread."""

    def __init__(
        self,
        key: ClusterKey | None,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        leader_address: Callable[[GroupKey], str | None],
        on_lost: Callable[[GroupKey], None],
    ) -> None:
        """``on_lost`` is called on the caller's thread with a group whose leader is slow to answer."""
        self._key = key
        self._context = context
        self._leader_address = leader_address
        self._on_lost = on_lost
        self._taken = threading.Lock()
        self._closed = False
        self._loop: Loop | None = None
        self._connections: Connections

    def ask(
        self, group: GroupKey, message: wire.ReadRows | wire.AppendBatch, bodies: Sequence[Buffer] = ()
    ) -> wire.ToClient | None:
        """Ask a group's leader, and wait for its answer, which is Unknown if none came.

        None if nothing was sent: then the client's thread is to be asked instead.
        """
        address = self._leader_address(group)
        is_mine = False
        try:
            is_mine = self._taken.acquire(blocking=False)
            if address is None or not is_mine or self._closed:
                return None
            return self._ask(address, group, message, bodies)
        except BaseException:
            # Interrupted anywhere: what is left of the turn is not to be relied on.
            if is_mine:
                self._end()
            raise
        finally:
            if is_mine:
                self._taken.release()

    def _ask(
        self,
        address: str,
        group: GroupKey,
        message: wire.ReadRows | wire.AppendBatch,
        bodies: Sequence[Buffer],
    ) -> wire.ToClient:
        loop = self._loop or self._begin()
        answers: list[wire.ToClient | None] = []
        loop.look_at_clock()
        self._connections.request(
            address,
            message.request,
            message,
            bodies,
            lambda reply, _: answers.append(reply),
            timeout_ms=TIMEOUT_MS,
            group=group,
        )
        while not answers:
            loop.turn()
            if not answers and self._leader_address(group) != address:
                break
        return (answers[0] if answers else None) or wire.Unknown(message.request)

    def _begin(self) -> Loop:
        # One answer is waited for. Whether there is more is asked before the next wait.
        loop = Loop(receives_max=1)
        self._connections = Connections(loop, self._key, self._on_lost, context=self._context)
        self._loop = loop
        return loop

    def _end(self) -> None:
        if self._loop is not None:
            self._connections.close()
            self._loop.close()
            self._loop = None

    def close(self) -> None:
        """Close the connections once the caller on them has its answer, or after twice the time-out."""
        self._closed = True
        is_mine = self._taken.acquire(timeout=2 * TIMEOUT_MS / 1_000)
        self._end()
        if is_mine:
            self._taken.release()
