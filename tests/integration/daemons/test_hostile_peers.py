"""What web pages, old protocols, floods and forged names do to whoever listens: nothing."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from stretto import control
from stretto.network.keys import ClusterKey
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.wire import messages as wire
from tests.support.hostile import Raw, frames, greeting, head, old_frames
from tests.support.serving import serving
from tests.support.victim import Victim, victim
from tests.support.wires import Wire

CHROMIUM = shutil.which("chromium")
MEBIBYTE = 1 << 20
HELLO = wire.encode(wire.Hello(wire.PROTOCOL_VERSION, "", WorkerId(""), Incarnation("")))
DESTROY = wire.encode(wire.Ask(1, control.encode(control.Destroy(module="Shop"))))
SLED_BYTES = 300
"""Empty frames of ZMTP/1.0, two bytes each: wherever the header of a request ends, parsing goes on."""

PACE_SECONDS = 0.002
"""Behind each megabyte of a flood: a busy machine has to run whoever is to notice, too."""
ATTEMPTS = 16
"""How often a page tries: where frames begin in a header depends on what the browser writes there."""


def posted(sled_bytes: int) -> bytes:
    """The body of a request that says hello and destroys a module, to whoever takes it for ZMTP/1.0."""
    return b"\x01" * sled_bytes + b"\x01\x00" + old_frames([HELLO]) + old_frames([DESTROY])


def request(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


FOREIGN = {
    "http": request(posted(SLED_BYTES)),
    "http, one byte later": request(posted(SLED_BYTES + 1)),
    "ZMTP/1.0": b"\x01\x00" + old_frames([HELLO]) + old_frames([DESTROY]),
    "ZMTP/2.0": greeting(b"")[:10] + b"\x01\x05" + b"\x00\x00" + frames([HELLO]) + frames([DESTROY]),
    "PLAIN": greeting(b"PLAIN") + frames([HELLO]) + frames([DESTROY]),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + posted(SLED_BYTES),
    "junk": bytes(range(256)) * 8,
}


@pytest.fixture
def called() -> list[control.AnyCall]:
    """The calls that were heard."""
    return []


@pytest.fixture
def address(called: list[control.AnyCall]) -> Iterator[str]:
    """Give the address of a daemon without a key."""

    def handle(call: control.AnyCall, _: list[memoryview]) -> object:
        called.append(call)
        return ()

    with serving(handle) as (_, address):
        yield address


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_bytes_of_no_stretto_peer_are_hung_up_on(
    data: bytes, address: str, called: list[control.AnyCall]
) -> None:
    with Raw(address) as peer:
        peer.send(data)
        peer.read_all()
    with Wire(address) as ordinary:
        assert isinstance(ordinary.ask(wire.Ask(1, control.encode(control.Nodes()))), wire.Answer)
    assert called == [control.Nodes()]


@pytest.mark.skipif(CHROMIUM is None, reason="no browser: install the distribution's package chromium")
def test_a_page_in_a_browser_destroys_no_module(address: str, called: list[control.AnyCall]) -> None:
    bodies = [list(posted(SLED_BYTES + more)) for more in range(ATTEMPTS)]
    # Each to a path of its own: the beginning of the header becomes the name of the connection.
    post = """([url, bodies]) => Promise.all(bodies.map(async (body, index) => {
        try {
            const path = "x".repeat(index);
            await fetch(url + path, {method: "POST", mode: "no-cors", body: new Uint8Array(body)});
            return "answered";
        } catch (error) {
            return "hung up on";
        }
    }))"""
    with web_page() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(url)
        assert page.evaluate(post, [f"http://{address}/", bodies]) == ["hung up on"] * ATTEMPTS
        browser.close()
    with Wire(address) as ordinary:
        assert isinstance(ordinary.ask(wire.Ask(1, control.encode(control.Nodes()))), wire.Answer)
    assert called == [control.Nodes()]


@contextlib.contextmanager
def web_page() -> Iterator[str]:
    """An empty page of somebody else."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


# Names.


def first_routing_id_of_an_unseeded_process() -> int:
    """What libzmq makes of the first two values of glibc's ``rand()``."""
    return 1_804_289_383


def test_claimed_routing_ids_abort_nobody() -> None:
    claims = 300
    with victim() as target, contextlib.ExitStack() as open_until_the_end:
        for number in range(claims):
            peer = open_until_the_end.enter_context(Raw(target.address))
            value = first_routing_id_of_an_unseeded_process() + number
            with contextlib.suppress(ConnectionError):
                peer.greet(b"\0" + value.to_bytes(4, "big"))
        for _ in range(10):
            answers(target)


def test_who_brings_a_routing_id_is_not_heard(address: str, called: list[control.AnyCall]) -> None:
    with Raw(address) as named:
        named.greet(b"a name of my own")
        named.send(frames([HELLO]) + frames([DESTROY]))
        named.read_all()
    with Wire(address) as ordinary:
        assert isinstance(ordinary.ask(wire.Ask(1, control.encode(control.Nodes()))), wire.Answer)
    assert called == [control.Nodes()]


# Floods.


def answers(target: Victim, key: ClusterKey | None = None) -> None:
    assert target.is_running, f"it ended with {target.process.returncode}"
    with Wire(target.address, key=key) as ordinary:
        assert isinstance(ordinary.ask(wire.Ask(1, control.encode(control.Nodes()))), wire.Answer)


def test_bytes_before_authentication_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "key"
    ClusterKey.generate().save(path)

    def flood(address: str) -> None:
        with Raw(address) as peer:
            peer.send(greeting(b"CURVE"))
            is_up = peer.send(head(79 * MEBIBYTE, command=True))
            for _ in range(70):
                is_up = is_up and peer.send(bytes(MEBIBYTE))
                time.sleep(PACE_SECONDS)
            # Whoever still listens would hold all of it.
            peer.read_all()

    with victim(path) as target:
        before_mb = target.memory_mb()
        in_parallel(16, lambda: flood(target.address))
        answers(target, ClusterKey.load(path))
        assert target.memory_mb("VmHWM") < before_mb + 400


def test_a_message_without_end_is_cut_off() -> None:
    with victim() as target:
        before_mb = target.memory_mb()
        with Raw(target.address) as peer:
            peer.greet()
            peer.send(frames([HELLO]))
            frame = head(MEBIBYTE, more=True) + bytes(MEBIBYTE)
            sent = 0
            while sent < 1_500 and peer.send(frame):
                sent += 1
                time.sleep(PACE_SECONDS)
        answers(target)
        assert sent < 1_500
        assert target.memory_mb("VmHWM") < before_mb + 800


def test_a_large_message_in_many_pieces_is_heard_whole(address: str) -> None:
    """A peer that is slow is no attack."""
    body = bytes(64 * MEBIBYTE)
    message = frames([wire.encode(wire.Ask(1, control.encode(control.Nodes()))), body])
    with Raw(address) as peer:
        peer.greet()
        peer.send(frames([HELLO]))
        welcome = peer.read(1)
        for start in range(0, len(message), MEBIBYTE):
            assert peer.send(message[start : start + MEBIBYTE])
        assert welcome
        assert b"answer" in peer.read_until(b"answer")


def test_connections_that_say_nothing_do_not_keep_others_out(address: str) -> None:
    with contextlib.ExitStack() as open_until_the_end:
        for _ in range(200):
            open_until_the_end.enter_context(Raw(address))
        with Wire(address) as ordinary:
            assert isinstance(ordinary.ask(wire.Ask(1, control.encode(control.Nodes()))), wire.Answer)


def in_parallel(times: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
