"""A whole cluster, as people inspect or change it: each question goes to a process that can answer it.

It is reached through any address of it. The conductor is found by asking around, and found again when it has
moved; what every worker knows is asked of the first one that answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TypeVar

from stretto import control
from stretto.errors import RetriableError, StrettoError
from stretto.network.asking import ask, begin, result_of
from stretto.network.routing import Network
from stretto.wire import messages as wire

FIND_SECONDS = 2.0
"""How long a process may take to answer what it knows itself."""
HEDGE_SECONDS = 0.2
"""After so long without an answer, the next address is asked as well."""
CALL_SECONDS = 20.0
"""How long the conductor may take to carry out a call."""
LOOK_SECONDS = 6.0
"""How long a conductor may take to answer from memory: it does so at once, or is in trouble."""
_LOOKS = (control.Modules, control.Nodes, control.Leadership)

T = TypeVar("T")


class Cluster:
    """A connection to a cluster, for inspecting and changing it."""

    def __init__(self, network: Network, bootstrap: Sequence[str]) -> None:
        self.network = network
        self.bootstrap = tuple(bootstrap)
        self._conductor: str | None = None
        #: Addresses of the workers, as last reported.
        self._tellers: tuple[str, ...] = ()

    def find_conductor(self) -> str | None:
        """Return the address of the active conductor, by the first answer that has one, or None."""
        call = control.FindConductor()
        refusal: str | None = None
        heard = False

        def judge(address: str, reply: wire.ToClient | None) -> str | None:
            nonlocal refusal, heard
            try:
                found = result_of(call, address, reply)
            except RetriableError:
                return None
            except StrettoError as refused:
                refusal = str(refused)
                return None
            heard = True
            return found

        message = partial(wire.Ask, call=control.encode(call))
        found = self._first(deque(self.bootstrap), message, judge)
        if found is None and not heard:
            raise RetriableError(refusal or self._silence())
        return found

    def _first(
        self,
        addresses: deque[str],
        message: Callable[[int], wire.Ask | wire.GetMetadata],
        judge: Callable[[str, wire.ToClient | None], T | None],
    ) -> T | None:
        """Return what ``judge`` first finds in a reply. A silent address does not keep the next one waiting.

        ``judge`` may add to the addresses.
        """
        asked: dict[Future[tuple[wire.ToClient | None, list[memoryview]]], str] = {}
        while addresses or asked:
            if addresses:
                address = addresses.popleft()
                number = self.network.next_request()
                asked[begin(self.network, address, message(number), timeout=FIND_SECONDS)] = address
            answered, _ = wait(asked, HEDGE_SECONDS if addresses else None, return_when=FIRST_COMPLETED)
            for each in answered:
                found = judge(asked.pop(each), each.result()[0])
                if found is not None:
                    return found
        return None

    def conductor(self) -> str:
        """Return the address of the active conductor; raises RetriableError if there is none."""
        found = self.find_conductor()
        if found is None:
            raise RetriableError(
                "no conductor is active; start one with 'stretto conductor', or wait a moment"
            )
        return found

    def _silence(self) -> str:
        return self.network.refusal or (
            f"nothing answers at {', '.join(self.bootstrap)}; start a cluster with 'stretto up', "
            "or name one of its addresses with --bootstrap"
        )

    def ask(self, call: control.Call[control.Result], *, timeout: float | None = None) -> control.Result:
        """Call the active conductor, and return its answer."""
        if timeout is None:
            timeout = LOOK_SECONDS if isinstance(call, _LOOKS) else CALL_SECONDS
        if self._conductor is None:
            self._conductor = self.conductor()
        try:
            return ask(self.network, self._conductor, call, timeout=timeout)
        except RetriableError:
            # It may have changed. A call whose answer was lost is not repeated: it may have been carried out.
            self._conductor = None
            raise

    def ask_worker(self, address: str, call: control.Call[control.Result]) -> control.Result:
        """Call the worker at an address, and return its answer."""
        return ask(self.network, address, call, timeout=FIND_SECONDS)

    def metadata(self) -> wire.Metadata:
        """Return the leaders of groups and addresses of workers, from the first process that knows them."""
        addresses = deque(dict.fromkeys((*self.bootstrap, *self._tellers)))

        def judge(address: str, reply: wire.ToClient | None) -> wire.Metadata | None:
            if isinstance(reply, wire.Metadata):
                return reply
            if reply is not None and address in self.bootstrap:
                addresses.extend(self._workers_at(address))
            return None

        told = self._first(addresses, wire.GetMetadata, judge)
        if told is None:
            raise RetriableError(self._silence())
        self._tellers = tuple(told.addresses.values())
        return told

    def _workers_at(self, supervisor: str) -> list[str]:
        try:
            workers = ask(self.network, supervisor, control.LocalWorkers(), timeout=FIND_SECONDS)
        except StrettoError:
            return []
        return [worker.address for worker in workers if worker.address is not None]
