"""The moments that queries of bulk readers read at, agreed on in ZooKeeper.

A query runs as many tasks in many processes that know nothing of each other, and all of them have to read
under the same pins. So the pins of a query are a znode, ``reads/MODULE/PLAN/QUERY``: whoever creates it has
decided, and everybody else reads what is there. It outlives every worker, so that a task which comes after a
fail-over finds what was decided, although the pins may be lost: then it fails, and never reads at another
moment than the tasks before it.

Whoever is going to decide says so first, in ``reads/MODULE/PLAN/QUERY.begun``, so that nobody takes a task
that is slow to decide for one that does not come.

The znodes of a plan are few: the oldest are deleted when there are more than :data:`QUERIES_MAX`, and a query
older than those is refused, since what was decided for it may have been deleted. Plans that had no query for
:data:`FORGET_MS` are deleted by whoever begins another one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import structlog
from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError

from stretto import control
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.zk.znodes.paths import named
from stretto.zk.znodes.records import decode, encode

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.vocabulary.types import WorkerId
    from stretto.zk.metastore import Metastore

QUERIES_MAX = 64
"""How many queries of one plan have their znodes kept."""
FORGET_MS = 8 * 24 * 3_600_000
"""How long the znodes of a plan are kept after its last query: longer than any pin lasts."""
FORGOTTEN_AT_ONCE = 8
ANSWER_SECONDS = 5.0

log = structlog.get_logger()

MomentCall: TypeAlias = (
    control.AnnounceMoment | control.FindMoment | control.FindMoments | control.DecideMoment
)
Found: TypeAlias = control.MomentFound | tuple[control.ReadMoment, ...] | control.ReadMoment


class Config(Protocol):
    """What moments need of a worker's configuration."""

    @property
    def module(self) -> str: ...


class Host(Protocol):
    """The worker, as moments see it."""

    @property
    def config(self) -> Config: ...

    @property
    def worker(self) -> WorkerId: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def metastore(self) -> Metastore: ...


class MomentCalls:
    """Answers calls about moments, on a thread of its own. The loop owns it."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._pool: ThreadPoolExecutor | None = None
        self._is_closing = False

    def asked(self, call: MomentCall, then: Callable[[Found | StrettoError], None]) -> None:
        """Answer a call; ``then`` is called on the loop."""
        if call.module != self._worker.config.module:
            then(UsageError(f"worker {self._worker.worker} serves no module {call.module}"))
            return
        if self._is_closing:
            then(RetriableError(f"worker {self._worker.worker} is stopping; ask another one"))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "moments")
        metastore = self._worker.metastore

        def told(result: Found | Exception) -> None:
            if isinstance(result, Exception) and not isinstance(result, StrettoError):
                log.error("moment_failed", plan=call.plan, exc_info=result)
                result = RetriableError(f"ZooKeeper could not be asked for the moment of a read: {result}")
            then(result)

        self._pool.submit(
            self._worker.loop.hand_back, lambda: Moments(metastore, call.module, call.plan).answer(call), told
        )

    def close(self) -> None:
        self._is_closing = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class Moments:
    """The moments of one plan. Its methods wait for ZooKeeper; they raise StrettoError or kazoo's errors."""

    def __init__(self, metastore: Metastore, module: str, plan: str) -> None:
        self._metastore = metastore
        self._module = module
        self._plan = plan
        self._path = metastore.paths.reads_of_plan(module, plan)

    def answer(self, call: MomentCall) -> Found:
        """Carry out a call."""
        match call:
            case control.AnnounceMoment(query=query):
                return self.announce(query)
            case control.FindMoment(query=query):
                return self.find(query)
            case control.FindMoments():
                return self.all()
            case control.DecideMoment(offer=offer):
                return self.decide(offer)

    def announce(self, query: int) -> control.MomentFound:
        """Announce that the moment of a query is about to be decided, so that :meth:`find` says so."""
        path = self._metastore.paths.announced_moment(self._module, self._plan, query)
        with contextlib.suppress(NodeExistsError):
            self._wait(lambda client: client.create_async(path, b"", makepath=True))
        return self.find(query)

    def find(self, query: int) -> control.MomentFound:
        """Find what was decided for a query. Raises StrettoError if that may have been deleted."""
        children = self._children(self._path)
        known = _queries_of(children)
        if query in known:
            return control.MomentFound(moment=self._read(query))
        _check_kept(query, known)
        latest = self._read(known[-1]) if known else None
        return control.MomentFound(latest=latest, is_begun=self._announced(query) in children)

    def all(self) -> tuple[control.ReadMoment, ...]:
        """Return all moments that are kept, oldest first, also every one that was decided before this was
        called."""
        known = _queries_of(self._children(self._path, synced=True))
        found = (self._read(query) for query in known)
        return tuple(moment for moment in found if moment is not None)

    def decide(self, offer: control.ReadMoment) -> control.ReadMoment:
        """Decide the moment of a query, and return what counts: the offer, or what was there before it."""
        if not offer.pinned or offer.query < 0:
            raise UsageError("a moment is of a query, and a pin for each group; this is none")
        children = self._children(self._path)
        known = _queries_of(children)
        _check_kept(offer.query, known)
        path = self._metastore.paths.read_moment(self._module, self._plan, offer.query)
        data = encode(offer)
        try:
            self._wait(lambda client: client.create_async(path, data, makepath=True))
        except NodeExistsError:
            stands = self._read(offer.query, synced=True)
            if stands is None:
                raise RetriableError(f"the moment of query {offer.query} is being deleted") from None
            return stands
        self._sweep(children, offer.query)
        return offer

    def _announced(self, query: int) -> str:
        """Return the name of the znode that says that a query's moment is about to be decided."""
        return self._metastore.paths.announced_moment(self._module, self._plan, query).rpartition("/")[2]

    def _sweep(self, children: list[str], decided: int) -> None:
        known = _queries_of(children)
        swept = known[: max(0, len(known) + 1 - QUERIES_MAX)]
        for query in swept:
            self._delete(self._metastore.paths.read_moment(self._module, self._plan, query))
        for query in (*swept, decided):
            if self._announced(query) in children:
                self._delete(self._metastore.paths.announced_moment(self._module, self._plan, query))
        if not known:
            self._forget_plans()

    def _forget_plans(self) -> None:
        """Delete plans that had no query for long. Their names begin with when they were made."""
        parent = self._metastore.paths.reads_of(self._module)
        before_ms = int(time.time() * 1_000) - FORGET_MS
        old = sorted(plan for plan in self._children(parent) if _made_ms(plan) < before_ms)
        for plan in old[:FORGOTTEN_AT_ONCE]:
            path = self._metastore.paths.reads_of_plan(self._module, plan)
            children = self._children(path)
            queries = _queries_of(children)
            if queries and self._made_ms(f"{path}/{queries[-1]}") > before_ms:
                continue
            for child in children:
                self._delete(f"{path}/{child}")
            self._delete(path)

    def _children(self, path: str, *, synced: bool = False) -> list[str]:
        try:
            return named(self._wait(lambda client: client.get_children_async(path), synced=synced))
        except NoNodeError:
            return []

    def _read(self, query: int, *, synced: bool = False) -> control.ReadMoment | None:
        path = self._metastore.paths.read_moment(self._module, self._plan, query)
        try:
            data, _ = self._wait(lambda client: client.get_async(path), synced=synced)
        except NoNodeError:
            return None
        return decode(data, control.ReadMoment, path)

    def _made_ms(self, path: str) -> int:
        """Return when a znode was made, by ZooKeeper's clock; 0 if it is gone."""
        stat = self._wait(lambda client: client.exists_async(path))
        return 0 if stat is None else int(stat.ctime)

    def _delete(self, path: str) -> None:
        try:
            self._wait(lambda client: client.delete_async(path))
        except (NoNodeError, NotEmptyError):
            return

    def _wait(self, send: Callable[[Any], Any], *, synced: bool = False) -> Any:
        try:
            return self._metastore.request(send, synced=synced).result(ANSWER_SECONDS)
        except TimeoutError:
            raise RetriableError(f"ZooKeeper did not answer for {ANSWER_SECONDS:g} s; try again") from None


def _queries_of(children: list[str]) -> list[int]:
    """Return the queries whose moment is among the znodes of a plan, oldest first."""
    return sorted(int(name) for name in children if name.isdecimal())


def _check_kept(query: int, known: list[int]) -> None:
    """Raise StrettoError if what was decided for a query may have been deleted."""
    if len(known) >= QUERIES_MAX and query < known[0]:
        raise StrettoError(
            f"more than {QUERIES_MAX} queries of this read were begun since; run the query again"
        )


def _made_ms(plan: str) -> int:
    """Return when a plan was made, by its name; 0 for one that is named otherwise."""
    try:
        return int(plan[:12], 16)
    except ValueError:
        return 0
