"""Who a listener lets in, and what it shuts down, at times that the test chooses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from stretto.network import listener as listeners
from stretto.network.keys import ClusterKey
from stretto.network.listener import (
    LOOK_AGAIN_MS,
    LOOK_MS,
    PATIENCE_MS,
    SMALL_BYTES,
    UNHEARD_BYTES_MAX,
    UNHEARD_MS_MAX,
    Listener,
)
from tests.support.hostile import Raw, frames, greeting, head
from tests.support.waiting import wait_until

START = 1_000_000


class Scene:
    """A listener whose loop is the test."""

    def __init__(self, key: ClusterKey | None = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gone: list[bytes] = []
        self.listener = Listener(self.context, "127.0.0.1:0", key, START, self.gone.append)
        self.now = START

    def close(self) -> None:
        self.listener.close()
        self.context.destroy(0)

    def peer(self) -> Raw:
        """Somebody who was heard once."""
        peer = Raw(self.listener.address)
        peer.socket.sendall(greeting(b"NULL"))
        self.let_in()
        peer.greet_again()
        peer.send(frames([b"hello"]))
        self.hear()
        return peer

    def let_in(self) -> None:
        wait_until("somebody wants to enter", lambda: self.listener.zap.poll(10))
        while self.listener.admit():
            pass

    def hear(self) -> bytes:
        """The next message, and from whom."""
        wait_until("somebody is heard", lambda: self.listener.router.poll(10))
        sender, frame = self.listener.router.recv_multipart(copy=False)
        assert self.listener.is_peer(sender.bytes, frame)
        self.listener.heard.add(sender.bytes)
        return bytes(sender.bytes)

    def look(self, after_ms: int = LOOK_MS) -> int | None:
        self.now += after_ms
        return self.listener.look(self.now)

    def watch(self, duration_ms: int) -> None:
        """Look as often as a loop does, until so much time has passed."""
        for _ in range(duration_ms // LOOK_MS):
            self.look(LOOK_MS)

    def look_until_shut(self, count: int) -> None:
        """Looks follow each other without much time passing."""

        def is_shut() -> bool:
            self.look(1)
            return self.listener.shut == count

        wait_until("it is shut down", is_shut)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def test_nobody_is_let_in_when_nobody_answers(scene: Scene) -> None:
    with Raw(scene.listener.address) as peer:
        peer.socket.sendall(greeting(b"NULL"))
        wait_until("it asks to enter", lambda: scene.listener.zap.poll(10))
        peer.read(64)
        peer.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.read(1)
        assert scene.listener.router.poll(0) == 0


def test_only_the_cluster_key_is_let_in() -> None:
    right, wrong = ClusterKey.generate(), ClusterKey.generate()
    scene = Scene(right)
    sockets = []
    try:
        for key, says in ((wrong, b"wrong"), (right, b"right")):
            socket = scene.context.socket(zmq.DEALER)
            sockets.append(socket)
            socket.linger = 0
            socket.curve_publickey, socket.curve_secretkey = key.public, key.secret
            socket.curve_serverkey = right.public
            socket.connect(f"tcp://{scene.listener.address}")
            socket.send(says)
            scene.let_in()
        wait_until("one is heard", lambda: scene.listener.router.poll(10))
        assert scene.listener.router.recv_multipart()[1] == b"right"
        assert scene.listener.router.poll(0) == 0
    finally:
        for socket in sockets:
            socket.close(0)
        scene.close()


def test_routing_ids_begin_elsewhere_in_every_process() -> None:
    seen = set()
    for _ in range(4):
        scene = Scene()
        with scene.peer():
            scene.look()
            seen.add(next(iter(scene.listener._by_sender)))
        scene.close()
    assert len(seen) == 4


def test_who_says_nothing_is_shut_down_in_the_end(scene: Scene) -> None:
    with Raw(scene.listener.address) as silent:
        wait_until("it is accepted", lambda: scene.look(0) == LOOK_AGAIN_MS)
        scene.watch(UNHEARD_MS_MAX)
        assert scene.listener.shut == 0
        scene.look(1)
        scene.look(1)
        assert scene.listener.shut == 1
        silent.read_all()


@pytest.mark.parametrize("how", ["told", "found"])
def test_who_comes_after_a_time_without_connections_has_all_its_time(scene: Scene, how: str) -> None:
    assert scene.look() is None
    scene.now += 3 * UNHEARD_MS_MAX
    with Raw(scene.listener.address) as silent:
        if how == "told":
            wait_until("its coming is told", scene.listener.accepted)
        wait_until("it is accepted", lambda: scene.look(0) == LOOK_AGAIN_MS)
        scene.watch(UNHEARD_MS_MAX)
        assert scene.listener.shut == 0
        scene.look(1)
        scene.look(1)
        assert scene.listener.shut == 1
        silent.read_all()


def test_a_time_in_which_nobody_could_listen_is_not_held_against_who_waited(scene: Scene) -> None:
    with Raw(scene.listener.address) as silent:
        wait_until("it is accepted", lambda: scene.look(0) == LOOK_AGAIN_MS)
        for _ in range(3):
            scene.look(10 * UNHEARD_MS_MAX)
        assert scene.listener.shut == 0
        scene.watch(UNHEARD_MS_MAX)
        assert scene.listener.shut == 1
        silent.read_all()


def test_who_sends_much_before_it_is_heard_is_shut_down(scene: Scene) -> None:
    with Raw(scene.listener.address) as peer:
        peer.send(
            greeting(b"NULL") + head(UNHEARD_BYTES_MAX * 4, command=True) + bytes(UNHEARD_BYTES_MAX * 2)
        )
        scene.look_until_shut(1)
        peer.read_all()


def test_who_was_heard_may_be_silent_for_ever(scene: Scene) -> None:
    with scene.peer():
        for _ in range(10):
            assert scene.look(100 * UNHEARD_MS_MAX) == LOOK_MS
        assert scene.listener.shut == 0


def test_what_is_under_way_is_bounded_and_the_oldest_goes_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "UNDER_WAY_BYTES_MAX", 6 * SMALL_BYTES)
    part = head(8 * SMALL_BYTES) + bytes(4 * SMALL_BYTES)
    with scene.peer() as first, scene.peer() as second, scene.peer() as idle:
        scene.look()
        first.send(part)
        wait_until("it is seen", lambda: scene.look(1) == LOOK_AGAIN_MS)
        scene.look(PATIENCE_MS)
        assert scene.listener.shut == 0
        second.send(part)
        scene.look_until_shut(1)
        first.read_all()
        for peer in (second, idle):
            assert peer.send(b"")
        wait_until("its end is told", lambda: scene.look(1) is not None and len(scene.gone) == 1)


def test_heartbeats_are_no_message_that_grows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "MESSAGE_BYTES_MAX", 0)
    monkeypatch.setattr(listeners, "SMALL_BYTES", 1_000)
    ping = b"\x04\x07\x04PING\x00\x00"
    with scene.peer() as peer:
        scene.look()
        for _ in range(5 * listeners.SMALL_BYTES // len(ping)):
            peer.send(ping)
            scene.look(10_000)
        assert scene.listener.shut == 0


@contextlib.contextmanager
def after_one_that_hung_up(scene: Scene) -> Iterator[Raw]:
    """Somebody says hello and hangs up before it is heard; the next one is connected by its descriptor."""
    with Raw(scene.listener.address) as peer:
        peer.socket.sendall(greeting(b"NULL"))
        scene.let_in()
        peer.greet_again()
        peer.send(frames([b"hello"]))
        wait_until("its message is there", lambda: scene.listener.router.poll(10))
        wait_until("it is accepted", lambda: scene.listener.accepted() or scene.listener._accepted)
    gone = next(iter(scene.listener._accepted.values()))
    wait_until("its descriptor is closed", lambda: not is_there(gone))
    taken = [os.dup(0)]
    try:
        while taken[-1] < gone.descriptor:
            taken.append(os.dup(0))
        # One for the peer, which is in this process too, and one for who accepts it.
        for _ in range(2):
            os.close(taken.pop())
        with Raw(scene.listener.address) as peer:
            yield peer
    finally:
        for each in taken:
            os.close(each)


def is_there(accepted: listeners._Accepted) -> bool:
    try:
        listeners._received_bytes(accepted)
    except OSError:
        return False
    return True


def test_a_message_of_who_has_hung_up_is_not_taken_for_one_of_who_came_after(scene: Scene) -> None:
    with after_one_that_hung_up(scene) as silent:
        wait_until("it is accepted", scene.listener.accepted)
        (there,) = scene.listener._accepted.values()
        scene.hear()
        assert there.sender is None, "it has said nothing yet"
        assert scene.listener._by_sender == {}
        silent.send(b"")


def test_all_who_hung_up_unheard_are_forgotten(scene: Scene) -> None:
    with after_one_that_hung_up(scene) as second:
        second.socket.sendall(greeting(b"NULL"))
        scene.let_in()
        second.greet_again()
        second.send(frames([b"hello too"]))
        heard = [scene.hear() for _ in range(2)]
        (there,) = scene.listener._accepted.values()
        assert there.sender == max(heard, key=scene.listener._number)
        assert list(scene.listener._by_sender) == [there.sender]
    wait_until("both are gone", lambda: scene.look() is None)
    assert scene.listener._by_sender == {}
    assert there.sender in scene.gone


def test_a_kernel_that_does_not_tell_what_it_received_bounds_nothing_but_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_BYTES_RECEIVED_AT", 900)
    with scene.peer(), Raw(scene.listener.address) as silent:
        wait_until("it is accepted", lambda: scene.look(0) == LOOK_AGAIN_MS)
        scene.watch(UNHEARD_MS_MAX)
        assert scene.listener.shut == 0
        scene.look(1)
        scene.look(1)
        assert scene.listener.shut == 1
        silent.read_all()


def test_only_who_needs_it_is_looked_at_often_and_everybody_in_turn(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def received_bytes(accepted: listeners._Accepted, of: Any = listeners._received_bytes) -> Any:
        looked.append(accepted.descriptor)
        return of(accepted)

    monkeypatch.setattr(listeners, "OTHERS_AT_ONCE", 4)
    with contextlib.ExitStack() as closing:
        peers = [closing.enter_context(scene.peer()) for _ in range(20)]
        scene.look()
        closing.enter_context(Raw(scene.listener.address))
        wait_until("one who says nothing is accepted", lambda: scene.look(0) == LOOK_AGAIN_MS)
        monkeypatch.setattr(listeners, "_received_bytes", received_bytes)
        for _ in range(LOOK_MS // LOOK_AGAIN_MS):
            assert scene.look(LOOK_AGAIN_MS) == LOOK_AGAIN_MS
        assert len(looked) <= LOOK_MS // LOOK_AGAIN_MS + 21 // listeners.OTHERS_LOOKS_MAX + 1
        looked.clear()
        for _ in range(2 * listeners.OTHERS_LOOKS_MAX):
            scene.look()
        assert set(looked) == set(scene.listener._accepted)
        peers[0].close()
        wait_until("its end is told", lambda: scene.look() is not None and scene.gone)
        assert scene.listener.shut == 0


def test_what_was_heard_is_under_way_no_longer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "UNDER_WAY_BYTES_MAX", 3 * SMALL_BYTES)
    half = bytes(2 * SMALL_BYTES)
    with scene.peer() as first, scene.peer() as second:
        scene.look()
        for peer in (first, second):
            peer.send(head(2 * len(half)) + half)
            wait_until("it is seen", lambda: scene.look() == LOOK_AGAIN_MS)
            peer.send(half)
            scene.hear()
            assert scene.look() == LOOK_MS
        scene.watch(2 * PATIENCE_MS)
        assert (scene.listener.shut, scene.listener._under_way) == (0, 0)


def test_too_many_who_say_nothing_make_room(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "UNHEARD_MAX", 5)
    with scene.peer() as heard, contextlib.ExitStack() as closing:
        silent = [closing.enter_context(Raw(scene.listener.address)) for _ in range(8)]
        scene.look_until_shut(3)
        for each in silent[:3]:
            each.read_all()
        assert heard.send(b"")
