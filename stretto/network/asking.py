"""Asking daemons: a call goes to an address, its result comes back, and the asker waits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TimedOut

from stretto import control
from stretto.errors import RetriableError
from stretto.network.routing import Network
from stretto.vocabulary.types import Buffer
from stretto.wire import messages as wire

TIMEOUT_SECONDS = 10.0


def ask(
    network: Network,
    address: str,
    call: control.Call[control.Result],
    bodies: Sequence[Buffer] = (),
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> control.Result:
    """The result of ``call`` at ``address``; a refusal is raised as the sentence that came back."""
    return ask_with_body(network, address, call, bodies, timeout=timeout)[0]


def ask_with_body(
    network: Network,
    address: str,
    call: control.Call[control.Result],
    bodies: Sequence[Buffer] = (),
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> tuple[control.Result, list[memoryview]]:
    """The result of ``call`` at ``address``, as by :func:`ask`, and the bodies that came beside it."""
    message = wire.Ask(network.next_request(), control.encode(call))
    answered = begin(network, address, message, bodies, timeout=timeout)
    try:
        reply, beside = answered.result(timeout + 1)
    except TimedOut:
        reply, beside = None, []
    return result_of(call, address, reply), beside


def begin(
    network: Network,
    address: str,
    message: wire.Ask | wire.GetMetadata,
    bodies: Sequence[Buffer] = (),
    *,
    timeout: float,
) -> Future[tuple[wire.ToClient | None, list[memoryview]]]:
    """Send a message; the future gets its reply and the bodies beside it, or None if no reply comes."""
    answered: Future[tuple[wire.ToClient | None, list[memoryview]]] = Future()

    def heard(reply: wire.ToClient | None, beside: list[memoryview]) -> None:
        answered.set_result((reply, beside))

    def send() -> None:
        network.request(address, message.request, message, bodies, heard, timeout_ms=int(timeout * 1_000))

    network.call(send)
    return answered


def result_of(
    call: control.Call[control.Result], address: str, reply: wire.ToClient | None
) -> control.Result:
    """The result that a reply carries; raises an error for a refusal, and if there is no reply."""
    match reply:
        case wire.Answer(result=result):
            return control.decode_result(call, result)
        case wire.Failed(why=why, fault=fault):
            raise fault.error(why)
        case _:
            raise RetriableError(f"nothing answers at {address}; check that it runs, then try again")
