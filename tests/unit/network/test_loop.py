"""The loop waits for descriptors, and ZeroMQ's tell less than they seem to."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import TypeAlias

import pytest
import zmq

from stretto.network.endpoint import COPIED_BYTES, receive, send
from stretto.network.loop import RECEIVES_MAX, Loop

DEADLINE_SECONDS = 30.0

Pair: TypeAlias = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def sockets() -> Iterator[Pair]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as ours, context.socket(zmq.DEALER) as theirs:
        for each in (ours, theirs):
            each.sndhwm = each.rcvhwm = 0
            each.linger = 0
        port = ours.bind_to_random_port("tcp://127.0.0.1")
        theirs.connect(f"tcp://127.0.0.1:{port}")
        yield ours, theirs


def test_who_looks_at_the_clock_goes_by_what_it_shows(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    later = loop.now + 5_000
    monkeypatch.setattr("stretto.network.loop.boot_time_ms", lambda: later)
    loop.look_at_clock()
    assert loop.now == later


def gather(loop: Loop, source: zmq.Socket[bytes], count: int) -> list[bytes]:
    """Register a socket that collects, and stops the loop once it has so many messages."""
    found: list[bytes] = []

    def receive_one() -> bool:
        try:
            found.append(source.recv(zmq.NOBLOCK))
        except zmq.Again:
            return False
        if len(found) == count:
            loop.stop()
        return True

    loop.register(source, receive_one)
    loop.call_after(int(DEADLINE_SECONDS * 1_000), loop.stop)
    return found


def wait_for_message(source: zmq.Socket[bytes]) -> None:
    """Asking for events takes back what the descriptor had to tell."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not int(source.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
        assert time.monotonic() < deadline


def test_message_that_the_descriptor_no_longer_tells_of_is_received(loop: Loop, sockets: Pair) -> None:
    ours, theirs = sockets
    found = gather(loop, ours, 2)
    theirs.send(b"first")

    def use() -> None:
        theirs.send(b"second")
        wait_for_message(ours)
        loop.used(ours)

    loop.call_soon(use)
    loop.run()
    assert found == [b"first", b"second"]


def test_socket_that_had_a_message_before_it_was_registered_is_received_from(
    loop: Loop, sockets: Pair
) -> None:
    ours, theirs = sockets
    theirs.send(b"early")
    wait_for_message(ours)
    found = gather(loop, ours, 1)
    loop.run()
    assert found == [b"early"]


def test_what_one_turn_leaves_in_a_socket_is_taken_in_the_next(loop: Loop, sockets: Pair) -> None:
    ours, theirs = sockets
    messages = [str(number).encode() for number in range(3 * RECEIVES_MAX)]
    for message in messages:
        theirs.send(message)
    found = gather(loop, ours, len(messages))
    loop.run()
    assert found == messages


def test_calls_of_a_turn_come_before_its_messages_and_their_end_after_them(loop: Loop) -> None:
    story: list[str] = []
    reading, writing = os.pipe()

    def receive_one() -> bool:
        os.read(reading, 1)
        story.append("message")
        loop.unregister(reading)
        loop.stop()
        return True

    def call() -> None:
        story.append("call")
        loop.at_turn_end(lambda: story.append("end"))

    loop.register(reading, receive_one)
    os.write(writing, b"x")
    loop.call_soon(call)
    loop.run()
    assert story == ["call", "message", "end"]
    os.close(reading)
    os.close(writing)


def test_room_to_write_is_told_once(loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        while True:
            try:
                ours.send(bytes(65536))
            except BlockingIOError:
                break
        story: list[str] = []

        def make_room() -> None:
            story.append("no room")
            theirs.recv(1 << 24)

        def write() -> None:
            story.append("room")
            loop.call_soon(loop.stop)

        loop.register(ours.fileno(), lambda: False)
        loop.when_writable(ours.fileno(), write)
        loop.call_soon(make_room)
        loop.run()
        loop.unregister(ours.fileno())
    assert story == ["no room", "room"]


def test_call_in_passing_wakes_nobody_and_comes_with_the_next_turn(loop: Loop) -> None:
    story: list[str] = []
    called = threading.Event()

    def call() -> None:
        loop.call_in_passing(story.append, "in passing")
        called.set()

    def look() -> None:
        story.append("woken")
        loop.stop()

    def wake_later() -> None:
        assert called.wait(DEADLINE_SECONDS)
        loop.call_soon(look)

    threads = [threading.Thread(target=each) for each in (call, wake_later)]
    for thread in threads:
        thread.start()
    loop.run()
    for thread in threads:
        thread.join()
    assert story == ["in passing", "woken"]


def test_small_bodies_do_not_keep_the_buffer_they_came_in(sockets: Pair) -> None:
    ours, theirs = sockets
    small, large = b"s" * 100, b"l" * COPIED_BYTES
    send(theirs, (b"header", small, large))
    wait_for_message(ours)
    parts = receive(ours)
    assert parts == [b"header", small, large]
    assert isinstance(parts[1], bytes)
    assert isinstance(parts[2], memoryview)
