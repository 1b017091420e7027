"""Asking daemons: a call goes to an address, its result comes back, and the asker waits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TimedOut

from stretto import admin, wire
from stretto.client.network import Network
from stretto.errors import RetriableError
from stretto.replog.frame import Buffer

TIMEOUT_SECONDS = 10.0


def ask(
    network: Network,
    address: str,
    call: admin.Call[admin.Result],
    bodies: Sequence[Buffer] = (),
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> admin.Result:
    """The result of ``call`` at ``address``; a refusal is raised as the sentence that came back."""
    return ask_with_body(network, address, call, bodies, timeout=timeout)[0]


def ask_with_body(
    network: Network,
    address: str,
    call: admin.Call[admin.Result],
    bodies: Sequence[Buffer] = (),
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> tuple[admin.Result, list[memoryview]]:
    """The same, with the bodies that came beside the result."""
    answered: Future[tuple[wire.ToClient | None, list[memoryview]]] = Future()

    def heard(reply: wire.ToClient | None, beside: list[memoryview]) -> None:
        answered.set_result((reply, beside))

    def send() -> None:
        number = network.next_request()
        message = wire.Ask(number, admin.encode(call))
        network.request(address, number, message, bodies, heard, timeout_ms=int(timeout * 1_000))

    network.call(send)
    try:
        reply, beside = answered.result(timeout + 1)
    except TimedOut:
        reply, beside = None, []
    match reply:
        case wire.Answer(result=result):
            return admin.decode_result(call, result), beside
        case wire.Failed(why=why, fault=fault):
            raise fault.error(why)
        case _:
            raise RetriableError(f"nothing answers at {address}; check that it runs, then try again")
