"""A whole cluster, as who inspects or changes it sees it: whoever can answer a question is asked.

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
HEDGE_SECONDS = 0.2
CALL_SECONDS = 20.0
LOOK_SECONDS = 6.0
"""What a conductor has in memory it tells at once, or it is in trouble."""
_LOOKS = (control.Modules, control.Nodes, control.Leadership)

T = TypeVar("T")


class Cluster:
    """A connection to one."""

    def __init__(self, network: Network, bootstrap: Sequence[str]) -> None:
        self.network = network
        self.bootstrap = tuple(bootstrap)
        self._conductor: str | None = None
        #: Where workers were when they were last told of.
        self._tellers: tuple[str, ...] = ()

    def find_conductor(self) -> str | None:
        """Address of the active one, by whoever answers first; None if there is none."""
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
        """What ``judge`` first finds in a reply. One that is silent does not keep the next one waiting.

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
        """Address of the active one; raises RetriableError if there is none."""
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
        """Of the active conductor."""
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
        return ask(self.network, address, call, timeout=FIND_SECONDS)

    def metadata(self) -> wire.Metadata:
        """Who leads what and where workers are, by the first that can tell, conductor or not."""
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
