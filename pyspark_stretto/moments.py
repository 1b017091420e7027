"""The moment of a query: all its tasks read under the same pins, and each query reads the present.

Spark calls a source once for each ``load()``, keeps what it planned, and runs every later query over these
parts; of a later query only its tasks call the source. So the tasks of a query agree on its pins among
themselves. What they have in common is the number of the query (``spark.sql.execution.root.id``), and the
cluster keeps what was decided for it (:mod:`stretto.worker.scans.moments`): the first offer stands, also over
the death of workers. A task whose pin is lost after that fails, and with it the query; none ever reads at
another moment than the others.

**The task of the first part decides.** The others wait for it, and it tells them as soon as it has begun, for
to pin all groups may take long. Spark starts the parts of a read in their
order, so the first one is always among those that a query reads, unless its rows are in a cache: a query over
a DataFrame that was cached in part reads only what is missing. What is cached is of the moment of an earlier
query. If the plan has had one moment only, and its pins are there, the query reads at that one; else it
fails, because nobody knows which moment the cached rows are of. If the first part is read after all, the
others were mistaken, and the query fails too: it would not read the present.

What is no SQL query (``df.rdd``, ``df.foreach``) has no number, and reads under the pins of the plan, as do
reads with ``moment=load``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pyspark import TaskContext

from pyspark_stretto import states
from pyspark_stretto.options import Options
from pyspark_stretto.renewing import Pins
from pyspark_stretto.states import Described
from stretto import control
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.status import newest_groups
from stretto.client.reading.scan import PinnedGroup, release
from stretto.errors import RetriableError, StrettoError, UsageError

FRESH_MS = 5_000
"""Age up to which the plan's own pins count as the present: usually a query reads at once what it planned."""
LOOK_SECONDS = 0.1
SOON_SECONDS = 0.02
"""How soon a waiting task looks again; the first part usually decides within a few of these."""
FIRST_PART_SECONDS = 10.0
"""How long the task of the first part may take to begin before another one looks for why it does not."""
DECIDE_SECONDS = 60.0
"""How long the task of the first part is waited for once it has begun."""
GIVE_UP_SECONDS = 20.0
ASK_AGAIN_SECONDS = 10.0
KNOWN_MAX = 16

#: Moments of the queries that this process has read for, by plan and query.
_known: OrderedDict[tuple[str, int], control.ReadMoment] = OrderedDict()

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan that a part is of. It is sent with each part, and only the first one has all pins."""

    name: str
    """The name of the ``load()``.

    Spark plans it twice if two sides of its first query are planned at once.
    """
    planned_ms: int
    is_first: bool = False
    """Whether this is sent with the first part."""
    pinned: tuple[PinnedGroup, ...] = ()
    """The plan's own pins, in the first part only; empty unless they cover all groups."""

    @classmethod
    def of(cls, name: str, pinned: tuple[PinnedGroup, ...]) -> Plan:
        """Return what is sent with the first part."""
        return cls(name=name, planned_ms=_now_ms(), is_first=True, pinned=pinned)

    @property
    def of_others(self) -> Plan:
        """The plan as it is sent with the other parts."""
        return replace(self, is_first=False, pinned=())


def new_name() -> str:
    """Make a name for a ``load()``; it begins with the time, by which the cluster forgets it."""
    return f"{_now_ms():012x}{secrets.token_hex(8)}"


def name_of(options: Mapping[str, str]) -> str:
    """Return the name of a ``load()`` that was given a schema, whose source Spark makes only when it plans.

    Two sides of a join may be planned at once, by two processes that have to find the same name. So all loads
    with the same options have it, in one application: these processes have the same parent.
    """
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    told = repr((socket.gethostname(), parent, started, sorted(options.items())))
    return f"{0:012x}{hashlib.sha256(told.encode()).hexdigest()[:24]}"


def query_of_task() -> int | None:
    """Return the number of this task's query, unique in its application; None if it belongs to no query."""
    context = TaskContext.get()
    if context is None:
        return None
    number = context.getLocalProperty("spark.sql.execution.root.id")
    return int(number) if number is not None and number.isdecimal() else None


def moment_of(options: Options, described: Described, plan: Plan, query: int) -> control.ReadMoment:
    """Return the moment at which all tasks of the query read. Raises StrettoError if they cannot agree."""
    key = (plan.name, query)
    if key not in _known:
        with states.reached(options) as cluster:
            _known[key] = _Agreeing(cluster, options, described, plan, query).agree()
        while len(_known) > KNOWN_MAX:
            _known.popitem(last=False)
    moment = _known[key]
    if plan.is_first and moment.is_earlier:
        raise StrettoError(
            f"the first part of {options.object} began so late that the other tasks of this query took it "
            "for cached, and read at the moment of an earlier query; run the query again, or, if it takes "
            "rows from the end as tail() does, make the DataFrame anew before it"
        )
    return moment


class _Agreeing:
    """How a task finds the moment of its query: the task of the first part decides, the others wait."""

    def __init__(
        self, cluster: Cluster, options: Options, described: Described, plan: Plan, query: int
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._described = described
        self._plan = plan
        self._query = query
        #: Addresses of the module's workers when they were last looked up.
        self._addresses: list[str] = []

    def agree(self) -> control.ReadMoment:
        """Return the moment of the query, as decided by its first part or found by waiting for that."""
        found = self._find()
        if not self._plan.is_first:
            return found.moment or self._await(is_begun=found.is_begun)
        if found.moment is None and found.latest is not None:
            # Only what was read before can be taken for cached.
            found = self._announce()
        return found.moment or self._decide(found.latest)

    # The first part.

    def _decide(self, latest: control.ReadMoment | None) -> control.ReadMoment:
        known = self._still_present(latest)
        if known is not None:
            return self._settle(known)
        if latest is not None and self._options.hold_ms:
            self._tell()
        return self._settle_anew()

    def _still_present(self, latest: control.ReadMoment | None) -> tuple[int, tuple[PinnedGroup, ...]] | None:
        """Return pins that still exist and count as the present, with the time of their plan, or None.

        For the first query these are the pins of the plan, and later, as long as they are to be held, those
        of the query before.
        """
        age_max_ms = self._options.hold_ms or FRESH_MS
        if latest is None and not self._plan.pinned:
            return None
        if latest is None:
            offered = (self._plan.planned_ms, self._plan.pinned)
        elif self._options.hold_ms:
            offered = (latest.planned_ms, latest.pinned)
        else:
            return None
        planned_ms, pinned = offered
        is_young = _now_ms() - planned_ms < age_max_ms
        return offered if is_young and self._are_there(pinned) else None

    def _tell(self) -> None:
        sys.stderr.write(
            f"stretto: the moment at which {self._options.object} of {self._described.module} was read is "
            f"over (hold.seconds is {self._options.hold_ms // 1_000}, or a pin was lost); queries read as of "
            "now from here on\n"
        )

    # The others.

    def _await(self, *, is_begun: bool) -> control.ReadMoment:
        began = time.monotonic()
        looked = False
        while True:
            waited = time.monotonic() - began
            if waited > FIRST_PART_SECONDS and not looked and not is_begun:
                looked = True
                moment = self._without_first_part()
                if moment is not None:
                    return moment
            if is_begun and waited > FIRST_PART_SECONDS + DECIDE_SECONDS:
                raise RetriableError(
                    f"the first part of {self._options.object} has begun, and its groups could not be pinned "
                    f"within {DECIDE_SECONDS:g} s; look at the error of its task, and run the query again"
                )
            if waited > GIVE_UP_SECONDS and not is_begun:
                raise UsageError(
                    f"this query does not read the beginning of {self._options.object}: it takes rows of an "
                    "earlier moment from a cache, and to read on would mix two moments. Unpersist it, and "
                    "count() it when it is cached again, or load it with the option hold.seconds, or "
                    "moment=load"
                )
            time.sleep(min(LOOK_SECONDS, SOON_SECONDS + waited / 10))
            found = self._find()
            if found.moment is not None:
                return found.moment
            is_begun = found.is_begun

    def _without_first_part(self) -> control.ReadMoment | None:
        """Return the moment of a query that takes its beginning from a cache; None if it is not known."""
        moments = self._ask(lambda: self._call(self._moments()))
        found = self._find()
        if found.moment is not None or found.is_begun:
            return found.moment
        if not moments:
            # Nothing was ever read, so nothing can be cached.
            return self._settle_anew()
        first = moments[0]
        if len({moment.generation for moment in moments}) > 1 or not self._are_there(first.pinned):
            return None
        is_held = _now_ms() - first.planned_ms < self._options.hold_ms
        return self._settle((first.planned_ms, first.pinned), is_earlier=not is_held)

    # The cluster.

    def _settle_anew(self) -> control.ReadMoment:
        planned_ms = _now_ms()
        pinned = states.pin(self._cluster, self._options, self._described)
        stands = self._settle((planned_ms, pinned))
        if stands.pinned != pinned:
            release(pinned, self._options.cluster_key())
        return stands

    def _settle(
        self, offered: tuple[int, tuple[PinnedGroup, ...]], *, is_earlier: bool = False
    ) -> control.ReadMoment:
        planned_ms, pinned = offered
        offer = control.ReadMoment(
            query=self._query, planned_ms=planned_ms, pinned=pinned, is_earlier=is_earlier
        )
        call = control.DecideMoment(module=self._described.module, plan=self._plan.name, offer=offer)
        return self._ask(lambda: self._call(call))

    def _are_there(self, pinned: tuple[PinnedGroup, ...]) -> bool:
        return Pins.of(pinned).renew(self._options.cluster_key())

    def _find(self) -> control.MomentFound:
        call = control.FindMoment(module=self._described.module, plan=self._plan.name, query=self._query)
        return self._ask(lambda: self._call(call))

    def _announce(self) -> control.MomentFound:
        call = control.AnnounceMoment(module=self._described.module, plan=self._plan.name, query=self._query)
        return self._ask(lambda: self._call(call))

    def _moments(self) -> control.FindMoments:
        return control.FindMoments(module=self._described.module, plan=self._plan.name)

    def _ask(self, ask: Callable[[], T]) -> T:
        """Repeat a call for a while if no worker can answer it.

        Repeating is harmless: finding changes nothing, and a moment that was decided stands.
        """
        deadline = time.monotonic() + ASK_AGAIN_SECONDS
        while True:
            try:
                return ask()
            except RetriableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_SECONDS)

    def _call(self, call: control.Call[control.Result]) -> control.Result:
        """Send a call to the module's workers in turn, and return the first answer."""
        module = self._described.module
        if not self._addresses:
            metadata = self._cluster.metadata()
            views = newest_groups(metadata, module)
            workers = dict.fromkeys(worker for view in views for worker in view.replicas)
            self._addresses = [metadata.addresses[each] for each in workers if each in metadata.addresses]
        why: StrettoError | None = None
        for address in self._addresses:
            try:
                return self._cluster.ask_worker(address, call)
            except RetriableError as error:
                why = error
        self._addresses = []
        raise RetriableError(f"no worker of module {module} could agree on what this query reads: {why}")


def pinned_of(moment: control.ReadMoment, task: int) -> PinnedGroup:
    """Return the pin of the group that a task is in."""
    for pinned in moment.pinned:
        if task in pinned.tasks:
            return pinned
    raise UsageError(f"module {moment.pinned[0].module} has no task {task} any more; make the DataFrame anew")


def _now_ms() -> int:
    return int(time.time() * 1_000)
