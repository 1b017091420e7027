"""Calls to a daemon over a real socket."""

from __future__ import annotations

import pytest

from stretto import admin, endpoint, wire
from stretto.client.calls import ask, ask_with_body
from stretto.client.network import Network
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.service import WithBody
from stretto.zk.records import Operation
from tests.integration.wires import NO_TEXT, Wire
from tests.unit.serving import serving


def test_a_call_comes_back_with_its_result() -> None:
    operation = Operation(at_ms=1, what="launch", module="m")

    def handle(call: admin.AnyCall, _: list[memoryview]) -> object:
        assert isinstance(call, admin.Operations)
        return (operation,) * call.limit

    with serving(handle) as (network, address):
        assert ask(network, address, admin.Operations(limit=2)) == (operation, operation)


def test_bodies_travel_beside_call_and_result() -> None:
    def handle(call: admin.AnyCall, bodies: list[memoryview]) -> object:
        assert isinstance(call, admin.PutArtifact)
        return WithBody(True, (bytes(bodies[0])[::-1],))

    with serving(handle) as (network, address):
        call = admin.PutArtifact(digest="d", offset=0, size=3)
        result, bodies = ask_with_body(network, address, call, (b"abc",))
        assert (result, bytes(bodies[0])) == (True, b"cba")


def test_a_refusal_is_raised_as_its_sentence() -> None:
    def handle(_: admin.AnyCall, __: list[memoryview]) -> object:
        raise UsageError("there is no module wordcont; did you mean wordcount?")

    with (
        serving(handle) as (network, address),
        pytest.raises(UsageError, match="did you mean wordcount"),
    ):
        ask(network, address, admin.Destroy(module="wordcont"))


def test_what_may_pass_is_told_from_what_will_not() -> None:
    errors: list[StrettoError] = [RetriableError("this conductor stands by"), StrettoError("it is running")]

    def handle(_: admin.AnyCall, __: list[memoryview]) -> object:
        raise errors[0]

    with serving(handle) as (network, address):
        with pytest.raises(RetriableError, match="stands by"):
            ask(network, address, admin.Nodes())
        del errors[0]
        with pytest.raises(StrettoError, match="it is running") as refused:
            ask(network, address, admin.Nodes())
        assert not isinstance(refused.value, RetriableError | UsageError)


def test_a_bug_in_a_handler_does_not_leave_the_asker_waiting() -> None:
    def handle(_: admin.AnyCall, __: list[memoryview]) -> object:
        raise ZeroDivisionError

    with serving(handle) as (network, address), pytest.raises(StrettoError, match="see its log"):
        ask(network, address, admin.Nodes())


def test_a_call_with_text_that_is_no_text_is_refused() -> None:
    def handle(_: admin.AnyCall, __: list[memoryview]) -> object:
        return ()

    with serving(handle) as (network, address):
        with Wire(address) as caller:
            answer = caller.ask(wire.Ask(1, NO_TEXT))
            assert isinstance(answer, wire.Failed)
        assert ask(network, address, admin.Nodes()) == (), "it goes on"


@pytest.mark.parametrize("kind", admin.AnyCall.__args__, ids=lambda kind: kind.__name__)
def test_every_call_says_what_it_returns(kind: type[admin.Call[object]]) -> None:
    assert admin.result_type(kind) is not None


def test_whoever_was_forgotten_says_hello_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "GREETED_MAX", 1)

    def handle(_: admin.AnyCall, __: list[memoryview]) -> object:
        return ()

    with serving(handle) as (first, address):
        assert ask(first, address, admin.Nodes()) == ()
        second = Network([address], None)
        try:
            assert ask(second, address, admin.Nodes()) == ()
            # Its call may be lost with the refusal; the next one is heard.
            answers = 0
            for _ in range(3):
                try:
                    answers += ask(first, address, admin.Nodes(), timeout=2) == ()
                except RetriableError:
                    continue
            assert answers > 0
        finally:
            second.close()
