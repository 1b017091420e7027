"""Where a daemon says that it can be reached, and what it makes of messages that raise."""

from __future__ import annotations

import threading
from typing import Self

import pytest

from stretto.errors import PeerError, UsageError
from stretto.network.endpoint import Endpoint, advertised
from stretto.network.keys import require_key
from stretto.network.loop import Loop
from stretto.vocabulary.invariants import InvariantViolation
from stretto.wire import messages as wire
from tests.support.wires import Wire


@pytest.mark.parametrize(
    ("listening", "advertise", "found"),
    [
        ("10.0.0.5:7400", None, "10.0.0.5:7400"),
        ("0.0.0.0:7400", "10.0.0.5", "10.0.0.5:7400"),
        ("0.0.0.0:7400", "10.0.0.5:0", "10.0.0.5:7400"),
        ("0.0.0.0:7400", "outside.example:17400", "outside.example:17400"),
        ("127.0.0.1:0", None, "127.0.0.1:0"),
    ],
)
def test_others_are_told_an_address_that_they_can_use(
    listening: str, advertise: str | None, found: str
) -> None:
    assert advertised(listening, advertise) == found


@pytest.mark.parametrize(
    ("listening", "advertise"),
    [("0.0.0.0:7400", None), ("[::]:7400", None), ("*:7400", None), ("10.0.0.5:7400", "0.0.0.0")],
)
def test_an_address_of_nobody_is_refused(listening: str, advertise: str | None) -> None:
    with pytest.raises(UsageError, match="--advertise HOST"):
        advertised(listening, advertise)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", ":7400", "127.0.0.1:port", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="write HOST:PORT"):
        require_key(address, None)


class Listening:
    """An endpoint on a thread; what it hears raises the error that is set."""

    def __init__(self) -> None:
        self.error: BaseException = UsageError("there is no such thing; ask for another")
        self.ended_with: InvariantViolation | None = None
        self._loop = Loop()
        self._endpoint = Endpoint(
            self._loop, address="127.0.0.1:0", cluster="c", name="it", key=None, on_message=self._heard
        )
        self.address = self._endpoint.address
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon(self._loop.stop)
        self._thread.join()
        self._endpoint.close()
        self._loop.close()

    def join(self) -> None:
        self._thread.join(20)

    def _run(self) -> None:
        try:
            self._loop.run()
        except InvariantViolation as error:
            self.ended_with = error

    def _heard(self, *_: object) -> None:
        raise self.error


def test_whatever_a_message_raises_is_answered_and_the_next_one_is_heard() -> None:
    with Listening() as listening, Wire(listening.address) as peer:
        refused = peer.ask(wire.GetMetadata(7, "a/b"))
        assert refused == wire.Failed(7, "there is no such thing; ask for another", wire.Fault.USAGE)
        listening.error = ZeroDivisionError()
        assert peer.ask(wire.GetMetadata(8)) == wire.Failed(8, "it failed at this; see its log")
        listening.error = PeerError("no correct peer says so")
        peer.send(wire.GetMetadata(9))
        assert peer.ask(wire.GetMetadata(10)) == wire.HelloRefused("say hello first")


def test_a_broken_invariant_ends_the_loop() -> None:
    with Listening() as listening, Wire(listening.address) as peer:
        listening.error = InvariantViolation("two and two are five", {})
        peer.send(wire.GetMetadata(1))
        listening.join()
        assert listening.ended_with is listening.error
