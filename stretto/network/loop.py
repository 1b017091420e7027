"""The event loop of a worker, and of a client: one thread that owns sockets, logs and replicas.

Each turn reads the clock once, takes what other threads handed over, then what came in over the network, then
what is due, and then does what was left for its end. Nothing on it waits for a disk, a lock or a peer: those
wait on threads of their own and hand back what they found with :meth:`Loop.call_soon`.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from stretto.vocabulary.clock import boot_time_ms

RECEIVES_MAX = 256

# Plain numbers: pyzmq's enums take longer to look at than a socket.
_EVENTS = int(zmq.EVENTS)
_IN = int(zmq.POLLIN)

T = TypeVar("T")


class Loop:
    """An event loop on one thread: sockets, timers, and calls that other threads hand over."""

    def __init__(self, receives_max: int = RECEIVES_MAX) -> None:
        """``receives_max`` bounds the messages taken from one socket in a turn: none starves the others."""
        self._receives_max = receives_max
        self.now = boot_time_ms()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = False
        #: A late caller must not write to a descriptor that is closed, or somebody else's by now.
        self._waking = threading.Lock()
        self._closed = False
        self._timers: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._timer_count = 0
        #: A ZeroMQ socket is waited for by its descriptor, which tells that *something* has happened to the
        #: socket since it was last used. So a socket that was used must be looked at before the next wait.
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._sockets: dict[Any, Callable[[], bool]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._of_descriptor: dict[int, Any] = {}
        self._used: set[Any] = set()
        self._running = False
        self._at_turn_end: list[Callable[[], None]] = []
        #: How many turns there were, with the one under way.
        self.turns = 0

    # From any thread.

    def call_soon(self, function: Callable[..., None], *args: Any) -> None:
        """Run a function on the loop in its next turn, which begins at once; from any thread."""
        self._calls.append((function, args))
        self.wake()

    def call_in_passing(self, function: Callable[..., None], *args: Any) -> None:
        """Run a function on the loop in its next turn, without waking it: for what nobody waits for."""
        self._calls.append((function, args))

    def hand_back(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """Do ``work`` here, and ``then`` on the loop, with its result or its exception.

        A broken invariant is raised on the loop: the process must not go on, and nobody would miss the
        thread that it was found on.
        """
        try:
            result: T | Exception = work()
        except Exception as error:  # noqa: BLE001 - told on the loop, which knows what to do about it
            result = error
        except BaseException as error:  # noqa: BLE001 - the loop's thread ends the process with it
            self.end_with(error)
            return
        self.call_soon(then, result)

    def end_with(self, error: BaseException) -> None:
        """Raise an error on the loop's thread, from any thread."""
        self.call_soon(_raise, error)

    def wake(self) -> None:
        """Make the loop begin its next turn, from any thread."""
        if not self._woken:
            self._woken = True
            with self._waking:
                if not self._closed:
                    os.eventfd_write(self._wake, 1)

    # From the loop's own thread.

    def call_at(self, when: int, function: Callable[..., None], *args: Any) -> None:
        """Run a function on the loop at a time of its clock, :func:`boot_time_ms`."""
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, function, args))

    def call_after(self, delay_ms: int, function: Callable[..., None], *args: Any) -> None:
        self.call_at(self.now + delay_ms, function, *args)

    def at_turn_end(self, function: Callable[[], None]) -> None:
        """Run a function once, at the end of the turn: for what is cheaper done for many at once."""
        self._at_turn_end.append(function)

    def register(self, socket: zmq.Socket[bytes] | int, receive_one: Callable[[], bool]) -> None:
        """Wait for messages on a socket, or on a descriptor, which is an int.

        ``receive_one`` takes one message; it returns False when there is none.
        """
        self._sockets[socket] = receive_one
        self._of_descriptor[_descriptor(socket)] = socket
        self._epoll.register(_descriptor(socket), select.EPOLLIN)
        if not isinstance(socket, int):
            self.used(socket)

    def unregister(self, socket: zmq.Socket[bytes] | int) -> None:
        if self._sockets.pop(socket, None) is not None:
            descriptor = _descriptor(socket)
            # Whoever registered it may have been interrupted at that.
            with contextlib.suppress(FileNotFoundError):
                self._epoll.unregister(descriptor)
            self._of_descriptor.pop(descriptor, None)
            self._writers.pop(descriptor, None)

    def used(self, socket: zmq.Socket[bytes]) -> None:
        """Look at a socket before the next wait; to be called after everything that is sent on it."""
        self._used.add(socket)

    def when_writable(self, descriptor: int, function: Callable[[], None]) -> None:
        """Run a function once, when a registered descriptor has room again."""
        self._writers[descriptor] = function
        self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT)

    def _write(self, descriptor: int) -> None:
        function = self._writers.pop(descriptor, None)
        if function is not None:
            self._epoll.modify(descriptor, select.EPOLLIN)
            function()

    def run(self) -> None:
        """Make turns until :meth:`stop` is called."""
        self._running = True
        while self._running:
            self.turn()

    def turn(self) -> None:
        """Wait until there is something to do, and do it: one turn, also for a caller on its own thread."""
        ready = self._wait()
        self.turns += 1
        self.now = boot_time_ms()
        self._woken = False
        if self._calls:
            self._run_calls()
        for socket in ready:
            self._receive(socket)
        if self._timers and self._timers[0][0] <= self.now:
            self._run_timers()
        if self._at_turn_end:
            self._end_turn()

    def look_at_clock(self) -> None:
        """Read the clock again, after something that took time."""
        self.now = boot_time_ms()

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        with self._waking:
            self._closed = True
            self._epoll.close()
            os.close(self._wake)

    def _wait(self) -> list[Any]:
        """Wait until a socket may have a message, a call comes or a timer is due; returns such sockets."""
        ready = [socket for socket in self._used if socket in self._sockets and _may_have_more(socket)]
        self._used.clear()
        for descriptor, events in self._epoll.poll(0 if ready else self._patience_ms() / 1_000):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
                continue
            if events & select.EPOLLOUT:
                self._calls.append((self._write, (descriptor,)))
            if events != select.EPOLLOUT:
                ready.append(self._of_descriptor[descriptor])
        return ready

    def _patience_ms(self) -> int:
        if self._calls:
            return 0
        if not self._timers:
            return 1_000
        return max(0, min(1_000, self._timers[0][0] - boot_time_ms()))

    def _run_calls(self) -> None:
        for _ in range(len(self._calls)):
            function, args = self._calls.popleft()
            function(*args)

    def _receive(self, socket: zmq.Socket[bytes] | int) -> None:
        for left in reversed(range(self._receives_max)):
            receive_one = self._sockets.get(socket)
            if receive_one is None or not receive_one():
                return
            if left and socket in self._sockets and not _may_have_more(socket):
                # As of now: what was sent before this look need not make us look again.
                self._used.discard(socket)
                return
        if not isinstance(socket, int):
            self.used(socket)

    def _end_turn(self) -> None:
        while self._at_turn_end:
            functions, self._at_turn_end = self._at_turn_end, []
            for function in functions:
                function()

    def _run_timers(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            _, _, function, args = heapq.heappop(timers)
            function(*args)


def _raise(error: BaseException) -> None:
    raise error


def _descriptor(socket: zmq.Socket[bytes] | int) -> int:
    return socket if isinstance(socket, int) else int(socket.getsockopt(zmq.FD))


def _may_have_more(socket: zmq.Socket[bytes] | int) -> bool:
    """Whether a socket may have a message: to ask costs less than the exception of a receive in vain."""
    return isinstance(socket, int) or bool(int(socket.getsockopt(_EVENTS)) & _IN)
