"""How a command reaches a cluster: through any address of it, to the daemon that can answer.

The options here are shared by all such commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stretto import admin, wire
from stretto.client.calls import ask
from stretto.client.network import Network
from stretto.errors import RetriableError, StrettoError
from stretto.keys import ClusterKey

DEFAULT_BOOTSTRAP = "127.0.0.1:7400"
FIND_SECONDS = 2.0
CALL_SECONDS = 30.0

Bootstrap: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        envvar="STRETTO_BOOTSTRAP",
        help="Any conductor, supervisor or worker of the cluster.",
    ),
]
Key: TypeAlias = Annotated[
    Path | None,
    typer.Option("--key", envvar="STRETTO_KEY", help="The cluster key, if it has one.", show_default=False),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="For programs.")]
Watch: TypeAlias = Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")]
ModuleName: TypeAlias = Annotated[str, typer.Argument(metavar="M", help="The module.", show_default=False)]


class Cluster:
    """A connection to one; made by :func:`reach`."""

    def __init__(self, network: Network, bootstrap: Sequence[str]) -> None:
        self.network = network
        self.bootstrap = tuple(bootstrap)
        self._conductor: str | None = None
        #: Where workers were when they were last told of.
        self._tellers: tuple[str, ...] = ()

    def find_conductor(self) -> str | None:
        """Address of the active one, by whoever answers first; None if there is none."""
        refusal: str | None = None
        heard = False
        for address in self.bootstrap:
            try:
                found = ask(self.network, address, admin.FindConductor(), timeout=FIND_SECONDS)
            except RetriableError:
                continue
            except StrettoError as refused:
                refusal = str(refused)
                continue
            heard = True
            if found is not None:
                return found
        if not heard:
            raise RetriableError(refusal or self._silence())
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

    def ask(self, call: admin.Call[admin.Result], *, timeout: float = CALL_SECONDS) -> admin.Result:
        """Of the active conductor."""
        if self._conductor is None:
            self._conductor = self.conductor()
        try:
            return ask(self.network, self._conductor, call, timeout=timeout)
        except RetriableError:
            # It may have changed. A call whose answer was lost is not repeated: it may have been carried out.
            self._conductor = None
            raise

    def ask_worker(self, address: str, call: admin.Call[admin.Result]) -> admin.Result:
        return ask(self.network, address, call, timeout=FIND_SECONDS)

    def metadata(self) -> wire.Metadata:
        """Who leads what and where workers are, by the first that can tell, conductor or not."""
        asked: set[str] = set()
        waiting = deque((*self.bootstrap, *self._tellers))
        while waiting:
            address = waiting.popleft()
            if address in asked:
                continue
            asked.add(address)
            told = self._metadata_of(address)
            if isinstance(told, wire.Metadata):
                self._tellers = tuple(told.addresses.values())
                return told
            if told is not None:
                waiting += self._workers_at(address)
        raise RetriableError(self._silence())

    def _workers_at(self, supervisor: str) -> list[str]:
        try:
            workers = ask(self.network, supervisor, admin.LocalWorkers(), timeout=FIND_SECONDS)
        except StrettoError:
            return []
        return [worker.address for worker in workers if worker.address is not None]

    def _metadata_of(self, address: str) -> wire.ToClient | None:
        answered: Future[wire.ToClient | None] = Future()

        def send() -> None:
            number = self.network.next_request()
            self.network.request(
                address,
                number,
                wire.GetMetadata(number),
                (),
                lambda reply, _: answered.set_result(reply),
                timeout_ms=int(FIND_SECONDS * 1_000),
            )

        self.network.call(send)
        return answered.result()


@contextmanager
def reach(bootstrap: str, key: Path | None) -> Iterator[Cluster]:
    addresses = [each.strip() for each in bootstrap.split(",") if each.strip()]
    network = Network(addresses, ClusterKey.load(key) if key is not None else None)
    try:
        yield Cluster(network, addresses)
    finally:
        network.close()
