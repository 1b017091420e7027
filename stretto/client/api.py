"""``connect`` and the clients that it returns, ``Client`` and ``AsyncClient``."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from stretto.client.appending.depot import DepotAppender, check_declared, names_of
from stretto.client.appending.producer import Producer
from stretto.client.appending.rounds import NamedWriter
from stretto.client.operating.modules import describe, find_depot, find_pstate
from stretto.client.reading.depot import Reader, Record, Slice
from stretto.client.reading.pstate import PStateReader
from stretto.client.reading.queries import Asking
from stretto.control import ModuleDescription
from stretto.errors import RetriableError, UsageError
from stretto.module.partition import Partitioner
from stretto.network.keys import ClusterKey
from stretto.network.routing import Network
from stretto.wire.messages import GroupView

if TYPE_CHECKING:
    from stretto.module.module import Depot

RUN = 1_000
"""Items that one visit to a thread takes from an iterator for a coroutine."""
AGAIN_SECONDS = 0.05
"""Pause between two attempts to learn which worker leads which group."""

T = TypeVar("T")
R = TypeVar("R")


class Client:
    """A connection to a cluster, made by :func:`connect`. Close it, or use it in a ``with`` statement."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._producers: list[Producer] = []
        #: Descriptions of the modules whose queries were asked, by name of the module.
        self._described: dict[str, ModuleDescription] = {}

    def producer(self, module: str, depot: str, **options: Any) -> Producer:
        """Return a producer of records that are bytes; :meth:`depot` is for values.

        See :class:`Producer` for the options. A record without ``task=`` is refused where the depot chooses
        its task by what is in it.
        """
        self._look_for(module)
        options.setdefault("declared", lambda: find_depot(module, self.describe(module), depot))
        producer = Producer(self._network, module, depot, **options)
        self._producers.append(producer)
        return producer

    @overload
    def depot(
        self, depot: Depot[R], /, *, module: str | None = None, timeout: float = 30.0, **options: Any
    ) -> DepotAppender[R]: ...
    @overload
    def depot(
        self, module: str, depot: str, /, *, timeout: float = 30.0, **options: Any
    ) -> DepotAppender[Any]: ...
    def depot(
        self,
        named: Depot[Any] | str,
        depot: str | None = None,
        /,
        *,
        module: str | None = None,
        timeout: float = 30.0,
        **options: Any,
    ) -> DepotAppender[Any]:
        """Return an appender of values, each to the task that the depot's ``partition_by`` chooses.

        The depot is given by its class, ``client.depot(Shop.orders)``, or by names, ``client.depot("Shop",
        "orders")``. With the class, type checkers know what it takes, and a function can choose tasks; say
        ``module`` if it was launched under another name. See :class:`Producer` for the other options.
        """
        if not isinstance(named, str):
            names = names_of(named, module)
            description = self.describe(names[0], timeout=timeout)
            spec = check_declared(names[0], named, description)
            partitioner = Partitioner(named, description.tasks)
        elif depot is not None:
            names = named, depot
            description = self.describe(named, timeout=timeout)
            spec = find_depot(named, description, depot)
            partitioner = Partitioner(spec, description.tasks)
        else:
            raise UsageError(f"say which depot of module {named}: client.depot({named!r}, ...)")
        self._await_tasks(names[0], description.tasks, timeout)
        return DepotAppender(self.producer(*names, declared=spec, **options), partitioner)

    def named_writer(
        self, module: str, depot: str, name: str, part: int = 0, *, lasting: bool = True
    ) -> NamedWriter:
        """Return a writer whose rounds of records are stored once, no matter how often they are written."""
        self._look_for(module)
        return NamedWriter(self._network, module, depot, name, part, lasting=lasting)

    def describe(self, module: str, *, timeout: float = 30.0) -> ModuleDescription:
        """Return the number of tasks of a module, and what it declares: depots, PStates, queries."""
        deadline = time.monotonic() + timeout
        self._look_for(module)
        while True:
            try:
                return describe(self._network, module)
            except RetriableError:
                if time.monotonic() > deadline:
                    raise
            # Its workers may have been started again, at other addresses.
            self._refresh_by(deadline)

    def reader(self, module: str, depot: str, **options: Any) -> Reader:
        """Return a reader of a depot's records. See :class:`Reader` for the options."""
        self._look_for(module)
        return Reader(self._network, module, depot, **options)

    def pstate(
        self,
        module: str,
        pstate: str,
        *,
        of: Any = None,
        timeout: float = 30.0,
        max_staleness: float | None = None,
        token: str = "",
    ) -> PStateReader:
        """Return a reader of one PState of a module.

        ``of`` is its type, as the module declares it, if values are to be of the classes in that. With
        ``max_staleness``, in seconds, followers answer too, with what is at most so old. A reader never sees
        less than it has seen before, nor less than the one whose ``token`` it is given.
        """
        description = self.describe(module, timeout=timeout)
        spec = find_pstate(module, description, pstate)
        self._await_tasks(module, description.tasks, timeout)
        return PStateReader(
            self._network,
            module,
            spec,
            description.tasks,
            annotation=of,
            timeout=timeout,
            max_staleness=max_staleness,
            token=token,
        )

    def query(self, module: str, name: str, /, *args: Any, timeout: float = 30.0, **named: Any) -> Any:
        """Ask a query of the module, and return its answer as plain values.

        Raises QueryFailed, with the traceback of its author's code, if that fails.
        """
        return self.asking(module, name, args, named, timeout=timeout).wait()

    def asking(
        self, module: str, name: str, args: Sequence[Any], named: Mapping[str, Any], *, timeout: float
    ) -> Asking:
        """Prepare a query without asking it yet; ``named`` may have names of this method's own parameters."""
        self._look_for(module)
        description = self._described.get(module)
        tasks = self._network.view.task_counts.get(module)
        names = () if description is None else [query.name for query in description.queries]
        if description is None or description.tasks != tasks or name not in names:
            description = self._described[module] = self.describe(module, timeout=timeout)
        self._await_tasks(module, description.tasks, timeout)
        return Asking(self._network, module, description, name, args=args, named=named, timeout=timeout)

    def _await_tasks(self, module: str, tasks: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while len(self._network.view.tasks.get(module, ())) < tasks:
            if time.monotonic() > deadline:
                raise RetriableError(f"not all tasks of module {module} can be found; try again")
            self._refresh_by(deadline)

    def _look_for(self, module: str) -> None:
        """Refresh the view if the module is not in it: it may have been launched since the last refresh."""
        if module not in self._network.view.tasks:
            self.refresh()

    def groups(self) -> list[GroupView]:
        """Return the task groups and their leaders as of the last :meth:`refresh`."""
        return sorted(self._network.view.groups.values(), key=lambda view: view.key)

    def refresh(self, timeout: float = 10.0) -> None:
        """Ask the cluster which worker leads which group.

        Modules launched since the last time are known then. Raises RetriableError if no worker answers in
        time.
        """
        heard = threading.Event()
        self._network.call(self._network.refresh, heard.set)
        if not heard.wait(timeout):
            refusal = self._network.refusal
            reason = f" ({refusal})" if refusal is not None else ""
            raise RetriableError(f"no worker answered{reason}; check the addresses given to connect()")

    def _refresh_by(self, deadline: float) -> None:
        """Refresh after a short pause: workers that have just started know no leaders yet."""
        time.sleep(AGAIN_SECONDS)
        self.refresh(max(AGAIN_SECONDS, deadline - time.monotonic()))

    def close(self) -> None:
        """Close all producers, each after a flush, and then the connection."""
        for producer in self._producers:
            producer.close()
        self._network.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    bootstrap: Sequence[str], *, key: ClusterKey | Path | str | None = None, timeout: float = 10.0
) -> Client:
    """Connect to a cluster through any of these ``host:port`` addresses of its workers."""
    if isinstance(key, str | Path):
        key = ClusterKey.load(Path(key))
    network = Network([bootstrap] if isinstance(bootstrap, str) else bootstrap, key)
    client = Client(network)
    try:
        client.refresh(timeout)
    except RetriableError:
        network.close()
        raise
    return client


# Async: the same client, whose waiting is done by asyncio.


class AsyncReader:
    """Reads one depot of a module: the calls of :class:`Reader`, awaited."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def read(self, task: int, offset: int, *, committed: bool = True) -> Slice:
        return await asyncio.to_thread(self._reader.read, task, offset, committed=committed)

    async def tail(
        self, *, start: dict[int, int] | None = None, committed: bool = True
    ) -> AsyncIterator[Record]:
        records = self._reader.tail(start=start, committed=committed)
        while True:
            yield await asyncio.to_thread(next, records)


class AsyncPStateReader:
    """Reads one PState of a module: the calls of :class:`PStateReader`, awaited."""

    def __init__(self, reader: PStateReader) -> None:
        self._reader = reader

    def get(self, *path: Any, default: Any = None) -> Coroutine[Any, Any, Any]:
        return self._reader.get_awaited(*path, default=default)

    async def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        return await asyncio.to_thread(self._reader.get_many, list(keys))

    async def contains(self, *path: Any) -> bool:
        return await asyncio.to_thread(self._reader.contains, *path)

    async def count(self, *path: Any, **range_: Any) -> int:
        return await asyncio.to_thread(self._reader.count, *path, **range_)

    async def slice(self, *path: Any, start: int = 0, stop: int | None = None) -> list[Any]:
        return await asyncio.to_thread(self._reader.slice, *path, start=start, stop=stop)

    def keys(self, *path: Any, **range_: Any) -> AsyncIterator[Any]:
        return _awaited(lambda: self._reader.keys(*path, **range_))

    def items(self, *path: Any, **range_: Any) -> AsyncIterator[tuple[Any, Any]]:
        return _awaited(lambda: self._reader.items(*path, **range_))


async def _awaited(begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Iterate in threads, taking up to :data:`RUN` items per visit: only pages are worth a thread."""
    found = await asyncio.to_thread(begin)
    while run := await asyncio.to_thread(lambda: list(itertools.islice(found, RUN))):
        for each in run:
            yield each


class AsyncClient:
    """A connection to a cluster for asyncio: the calls of :class:`Client`, awaited.

    ``await depot.append(value)`` waits for that value; use ``asyncio.gather`` for many of them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def producer(self, module: str, depot: str, **options: Any) -> Producer:
        """Return a producer, as :meth:`Client.producer` does.

        How the depot is declared is asked here, so that no append has to.
        """
        producer = await asyncio.to_thread(self._client.producer, module, depot, **options)
        await asyncio.to_thread(producer.learn_declaration)
        return producer

    @overload
    async def depot(
        self,
        depot: Depot[R],
        /,
        *,
        module: str | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109 - of the answer, not of the call
        **options: Any,
    ) -> DepotAppender[R]: ...
    @overload
    async def depot(
        self,
        module: str,
        depot: str,
        /,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109
        **options: Any,
    ) -> DepotAppender[Any]: ...
    async def depot(self, named: Any, depot: Any = None, /, **options: Any) -> DepotAppender[Any]:
        """Return an appender, as :meth:`Client.depot` does.

        ``await depot.append(value)`` waits for that value.
        """
        found: DepotAppender[Any] = await asyncio.to_thread(self._client.depot, named, depot, **options)
        return found

    def reader(self, module: str, depot: str, **options: Any) -> AsyncReader:
        """Return a reader of a depot's records. See :class:`Reader` for the options."""
        return AsyncReader(Reader(self._client._network, module, depot, **options))  # noqa: SLF001

    async def pstate(self, module: str, pstate: str, **options: Any) -> AsyncPStateReader:
        """Return a reader of one PState. See :meth:`Client.pstate` for the options."""
        return AsyncPStateReader(await asyncio.to_thread(self._client.pstate, module, pstate, **options))

    async def query(
        self,
        module: str,
        name: str,
        /,
        *args: Any,
        timeout: float = 30.0,  # noqa: ASYNC109 - of the answer, not of the call
        **named: Any,
    ) -> Any:
        """Ask a query of the module, and return its answer as plain values, as :meth:`Client.query` does."""
        asking = await asyncio.to_thread(self._client.asking, module, name, args, named, timeout=timeout)
        return await asking.awaited()

    def groups(self) -> list[GroupView]:
        """Return the task groups and their leaders as of the last :meth:`refresh`."""
        return self._client.groups()

    async def refresh(self, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - of the answer, not of the call
        """Ask the cluster which worker leads which group; modules launched meanwhile are known then."""
        await asyncio.to_thread(self._client.refresh, timeout)

    async def close(self) -> None:
        """Close all producers, each after a flush, and then the connection."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect_async(
    bootstrap: Sequence[str], *, key: ClusterKey | Path | str | None = None
) -> AsyncClient:
    """Connect to a cluster as :func:`connect` does, for use with asyncio."""
    return AsyncClient(await asyncio.to_thread(connect, bootstrap, key=key))
