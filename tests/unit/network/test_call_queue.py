"""Connections take turns at the threads that answer calls, within bounds."""

from __future__ import annotations

from stretto import control
from stretto.network.call_queue import WAITING_BYTES_MAX, WAITING_MAX, CallQueue, WaitingCall

THREADS = 4


def call(sender: bytes, request: int = 1, body: bytes = b"") -> WaitingCall:
    return WaitingCall(sender, request, control.Nodes(), [memoryview(body)] if body else [])


def taken(queue: CallQueue) -> list[tuple[bytes, int]]:
    """Whatever a thread is free for."""
    found = []
    while (each := queue.take()) is not None:
        found.append((each.sender, each.request))
    return found


def test_connections_take_turns() -> None:
    queue = CallQueue(THREADS)
    for request in range(10):
        assert queue.put(call(b"busy", request)) is None
    assert queue.put(call(b"other", 1)) is None
    assert queue.put(call(b"third", 1)) is None
    assert taken(queue) == [(b"busy", 0), (b"other", 1), (b"third", 1), (b"busy", 1)]
    queue.done(b"other")
    assert taken(queue) == [(b"busy", 2)]


def test_one_connection_never_has_all_threads() -> None:
    queue = CallQueue(THREADS)
    for request in range(10):
        queue.put(call(b"slow", request))
    assert len(taken(queue)) == THREADS - 1
    queue.put(call(b"other"))
    assert taken(queue) == [(b"other", 1)]
    queue.done(b"slow")
    assert taken(queue) == [(b"slow", THREADS - 1)]


def test_calls_of_one_connection_are_bounded_and_others_are_not_refused_for_it() -> None:
    queue = CallQueue(THREADS)
    for request in range(WAITING_MAX):
        assert queue.put(call(b"busy", request)) is None
    assert queue.put(call(b"busy")) == f"{WAITING_MAX} calls of this client wait already"
    assert queue.put(call(b"other")) is None


def test_bodies_are_bounded_and_one_alone_is_always_taken() -> None:
    queue = CallQueue(THREADS)
    assert queue.put(call(b"a", 1, bytes(WAITING_BYTES_MAX + 1))) is None
    assert queue.put(call(b"a", 2, b"x")) is not None
    assert queue.put(call(b"b", 1, bytes(WAITING_BYTES_MAX))) is None
    assert len(taken(queue)) == 2
    assert queue.put(call(b"a", 3, b"x")) is None


def test_calls_of_a_connection_that_is_gone_are_forgotten() -> None:
    queue = CallQueue(THREADS)
    for request in range(10):
        queue.put(call(b"gone", request, b"body"))
    under_way = len(taken(queue))
    queue.forget(b"gone")
    for _ in range(under_way):
        queue.done(b"gone")
    assert taken(queue) == []
    for request in range(WAITING_MAX):
        assert queue.put(call(b"gone", request)) is None


def test_all_connections_together_are_bounded() -> None:
    queue = CallQueue(THREADS)
    answers = [queue.put(call(bytes([each // 100, each % 100]))) for each in range(2_001)]
    assert answers[:2_000] == [None] * 2_000
    assert answers[2_000] == "2000 calls wait already"
