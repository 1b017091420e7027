"""Calls to a daemon over a real socket."""

from __future__ import annotations

import threading

import pytest

from stretto import control
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.network import endpoint
from stretto.network.asking import ask, ask_with_body
from stretto.network.call_queue import WAITING_MAX
from stretto.network.loop import Loop
from stretto.network.routing import Network
from stretto.network.service import THREADS, Service, WithBody
from stretto.specs.operations import Operation
from stretto.vocabulary.invariants import InvariantViolation
from stretto.wire import messages as wire
from tests.support.serving import service, serving
from tests.support.waiting import wait_until
from tests.support.wires import NO_TEXT, Wire


def test_a_call_comes_back_with_its_result() -> None:
    operation = Operation(at_ms=1, what="launch", module="m")

    def handle(call: control.AnyCall, _: list[memoryview]) -> object:
        assert isinstance(call, control.Operations)
        return (operation,) * call.limit

    with serving(handle) as (network, address):
        assert ask(network, address, control.Operations(limit=2)) == (operation, operation)


def test_bodies_travel_beside_call_and_result() -> None:
    def handle(call: control.AnyCall, bodies: list[memoryview]) -> object:
        assert isinstance(call, control.PutArtifact)
        return WithBody(True, (bytes(bodies[0])[::-1],))

    with serving(handle) as (network, address):
        call = control.PutArtifact(digest="d", offset=0, size=3)
        result, bodies = ask_with_body(network, address, call, (b"abc",))
        assert (result, bytes(bodies[0])) == (True, b"cba")


def test_a_refusal_is_raised_as_its_sentence() -> None:
    def handle(_: control.AnyCall, __: list[memoryview]) -> object:
        raise UsageError("there is no module wordcont; did you mean wordcount?")

    with (
        serving(handle) as (network, address),
        pytest.raises(UsageError, match="did you mean wordcount"),
    ):
        ask(network, address, control.Destroy(module="wordcont"))


def test_what_may_pass_is_told_from_what_will_not() -> None:
    errors: list[StrettoError] = [RetriableError("this conductor stands by"), StrettoError("it is running")]

    def handle(_: control.AnyCall, __: list[memoryview]) -> object:
        raise errors[0]

    with serving(handle) as (network, address):
        with pytest.raises(RetriableError, match="stands by"):
            ask(network, address, control.Nodes())
        del errors[0]
        with pytest.raises(StrettoError, match="it is running") as refused:
            ask(network, address, control.Nodes())
        assert not isinstance(refused.value, RetriableError | UsageError)


def test_a_bug_in_a_handler_does_not_leave_the_asker_waiting() -> None:
    def handle(_: control.AnyCall, __: list[memoryview]) -> object:
        raise ZeroDivisionError

    with serving(handle) as (network, address), pytest.raises(StrettoError, match="see its log"):
        ask(network, address, control.Nodes())


def test_a_call_with_text_that_is_no_text_is_refused() -> None:
    def handle(_: control.AnyCall, __: list[memoryview]) -> object:
        return ()

    with serving(handle) as (network, address):
        with Wire(address) as caller:
            answer = caller.ask(wire.Ask(1, NO_TEXT))
            assert isinstance(answer, wire.Failed)
        assert ask(network, address, control.Nodes()) == (), "it goes on"


@pytest.mark.parametrize("kind", control.AnyCall.__args__, ids=lambda kind: kind.__name__)
def test_every_call_says_what_it_returns(kind: type[control.Call[object]]) -> None:
    assert control.result_type(kind) is not None


def test_whoever_was_forgotten_says_hello_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "GREETED_MAX", 1)

    def handle(_: control.AnyCall, __: list[memoryview]) -> object:
        return ()

    with serving(handle) as (first, address):
        assert ask(first, address, control.Nodes()) == ()
        second = Network([address], None)
        try:
            assert ask(second, address, control.Nodes()) == ()
            # Its call may be lost with the refusal; the next one is heard.
            answers = 0
            for _ in range(3):
                try:
                    answers += ask(first, address, control.Nodes(), timeout=2) == ()
                except RetriableError:
                    continue
            assert answers > 0
        finally:
            second.close()


def test_who_floods_is_told_to_try_again_and_others_are_answered() -> None:
    may_go_on = threading.Event()

    def handle(call: control.AnyCall, _: list[memoryview]) -> object:
        if isinstance(call, control.Operations):
            may_go_on.wait(60)
        return ()

    slow = wire.Ask(1, control.encode(control.Operations()))
    with serving(handle) as (network, address), Wire(address) as flooding:
        for _ in range(1_000):
            flooding.send(slow)
        refused = flooding.receive()
        assert isinstance(refused, wire.Failed)
        assert (
            refused.why
            == f"the conductor is busy: {WAITING_MAX} calls of this client wait already; try again"
        )
        assert refused.fault is wire.Fault.PASSING
        assert ask(network, address, control.Nodes()) == ()
        may_go_on.set()


def test_calls_of_a_client_that_left_are_forgotten() -> None:
    may_go_on = threading.Event()

    def handle(_: control.AnyCall, __: list[memoryview]) -> object:
        may_go_on.wait(60)
        return ()

    with service(handle) as served:
        with Wire(served.address) as leaving:
            for _ in range(WAITING_MAX):
                leaving.send(wire.Ask(1, control.encode(control.Nodes())))
            wait_until("they wait", lambda: served.waiting == WAITING_MAX - (THREADS - 1))
        wait_until("they are forgotten", lambda: served.waiting == 0)
        may_go_on.set()


def test_a_broken_invariant_found_by_a_call_ends_the_process() -> None:
    """Its loop, that is, and not only the thread that found it."""
    loop = Loop()

    def handle(_: control.AnyCall, __: list[memoryview]) -> object:
        raise InvariantViolation("two and two are five", {})

    served = Service(loop, address="127.0.0.1:0", cluster="c", name="the conductor", key=None, handle=handle)
    network = Network([served.address], None)
    asking = threading.Thread(target=_ask_in_vain, args=(network, served.address))
    asking.start()
    try:
        with pytest.raises(InvariantViolation, match="two and two"):
            loop.run()
    finally:
        served.close()
        loop.close()
        asking.join()
        network.close()


def _ask_in_vain(network: Network, address: str) -> None:
    with pytest.raises(RetriableError):
        ask(network, address, control.Nodes(), timeout=1)
