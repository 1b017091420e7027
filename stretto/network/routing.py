"""What a client knows of the cluster: who leads what, and how it learns that somebody else does.

Any worker is asked for the first view, several if the first is slow. From then on news are waited for where
they arise: who cannot get through to a group's leader asks its replicas to answer as soon as the group has a
newer epoch, and tries the leader it knows again meanwhile, at growing intervals. A refusal that names the
new leader is as good as an answer.

Everything here runs on the client's own thread, except what says otherwise.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from stretto.errors import UsageError
from stretto.network.connections import Connections, OnReply
from stretto.network.direct_channel import DirectChannel
from stretto.network.keys import ClusterKey, require_key
from stretto.network.loop import Loop
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Buffer, Epoch, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.wire.messages import GroupView

METADATA_TIMEOUT_MS = 1_000
HEDGE = Backoff(first_ms=50, most_ms=1_000)
NEWS_MS = 2_000
"""How long a worker may hold back its answer while there are no news."""
NEWS_AGAIN_MS = 50
PATIENCE = Backoff(first_ms=5, most_ms=200)
EAGER_ATTEMPTS = 8


def patience_ms(attempt: int) -> int:
    """How long to wait before the same leader is tried again; little at first: a new one is soon ready."""
    return PATIENCE.after(max(0, attempt - EAGER_ATTEMPTS))


@dataclass
class ClusterView:
    """Who leads what, as last heard.

    The newest grouping of a module is the one that counts, and no two have the same generation, not even
    those of a module that was destroyed and launched again. So epochs are compared within a grouping only.
    """

    addresses: dict[WorkerId, str] = field(default_factory=dict)
    #: The groups that a task is in.
    groups: dict[GroupKey, GroupView] = field(default_factory=dict)
    of_task: dict[tuple[str, TaskId], GroupKey] = field(default_factory=dict)
    #: The tasks of each module whose group is known.
    tasks: dict[str, list[TaskId]] = field(default_factory=dict)
    #: How many tasks each module has, by its newest grouping.
    task_counts: dict[str, int] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)

    def take(self, metadata: wire.Metadata) -> list[GroupKey]:
        """Take in what a worker reported; returns the groups that have a newer epoch."""
        self.addresses.update(metadata.addresses)
        unknown = {view.key.module for view in metadata.groups if view.key not in self.groups}
        led_anew = [view.key for view in metadata.groups if self._take(view)]
        for module in unknown:
            self.tasks[module] = sorted(task for name, task in self.of_task if name == module)
        return led_anew

    def _take(self, view: GroupView) -> bool:
        known = self.groups.get(view.key)
        if known is None:
            self._place(view)
            return False
        if known.epoch <= view.epoch:
            self.groups[view.key] = view
        return known.epoch < view.epoch

    def _place(self, view: GroupView) -> None:
        """A task stays in the group it was in until its new one is heard of, unless it is gone."""
        key, module = view.key, view.key.module
        left: set[GroupKey] = set()
        if key.generation > self._newest.get(module, 0):
            self._newest[module] = key.generation
            self.task_counts[module] = view.module_tasks
            for place in [
                each for each in self.of_task if each[0] == module and each[1] >= view.module_tasks
            ]:
                left.add(self.of_task.pop(place))
        taken = [task for task in view.tasks if self._belongs(task, key)]
        left.update(self.of_task[module, task] for task in taken if (module, task) in self.of_task)
        self.of_task.update({(module, task): key for task in taken})
        if taken:
            self.groups[key] = view
        for group in left:
            if all(self.of_task.get((module, task)) != group for task in self.groups[group].tasks):
                del self.groups[group]

    def _belongs(self, task: TaskId, key: GroupKey) -> bool:
        """Whether a task belongs to a group, as far as is known: not to a newer one, nor to none any more."""
        now = self.of_task.get((key.module, task))
        is_newer = now is None or now.generation <= key.generation
        return is_newer and task < self.task_counts[key.module]

    def check_tasks(self, module: str, tasks: int) -> None:
        """Raise UsageError if a module no longer has this number of tasks.

        What was made when it had so many must not go on: a key is at home on another task then.
        """
        now = self.task_counts.get(module, tasks)
        if now != tasks:
            raise UsageError(
                f"{module} was launched anew with {now} tasks, where it had {tasks}; "
                "begin anew with another producer or reader"
            )

    def learn(self, group: GroupKey, refused: wire.Refused) -> bool:
        """Take in the leader that a refusal names; True if that is news."""
        known = self.groups.get(group)
        if known is None or known.epoch >= refused.epoch or refused.leader is None:
            return False
        self.groups[group] = msgspec.structs.replace(known, leader=refused.leader, epoch=refused.epoch)
        return True

    def leader_address(self, group: GroupKey) -> str | None:
        view = self.groups.get(group)
        return self.addresses.get(view.leader) if view is not None and view.leader else None

    def epoch(self, group: GroupKey) -> Epoch:
        view = self.groups.get(group)
        return view.epoch if view is not None else Epoch(0)


class _Once:
    """A function that runs one time, however often it is called."""

    __slots__ = ("_function", "is_done")

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self.is_done = False

    def __call__(self) -> None:
        if not self.is_done:
            self.is_done = True
            self._function()


@dataclass
class _Awaited:
    """The calls that wait for a group to be led anew, and the addresses that were asked about it."""

    waiting: list[_Once] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        self.waiting = [each for each in self.waiting if not each.is_done]
        return not self.waiting


class Network:
    """A client's way to the cluster: its thread runs :attr:`loop`, and :meth:`call` is the way in."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        key: ClusterKey | None,
        *,
        loop: Loop | None = None,
        worker: WorkerId = WorkerId(""),
    ) -> None:
        """With a ``loop`` it has no thread of its own: it runs on the loop of a ``worker``."""
        if not bootstrap:
            raise UsageError("connect() needs the address of at least one worker, as host:port")
        for address in bootstrap:
            require_key(address, key)
        self._bootstrap = list(bootstrap)
        #: The cluster key, for connections that others make to the same cluster.
        self.key = key
        self.loop = Loop() if loop is None else loop
        self.view = ClusterView()
        self._connections = Connections(self.loop, key, self.suspect, worker)
        self.direct = DirectChannel(
            key,
            self._connections.context,
            leader_address=self.view.leader_address,
            on_lost=lambda group: self.call(self.suspect, group),
        )
        self.request = self._connections.request
        self.cancel = self._connections.cancel
        self._numbers = itertools.count(1)
        self._turns = itertools.count()
        self._refreshing: list[Callable[[], None]] = []
        self._refreshes = 0
        self._awaited: dict[GroupKey, _Awaited] = {}
        self._closed = False
        self._thread: threading.Thread | None = None
        if loop is None:
            self._thread = threading.Thread(target=self._run, name="stretto-client", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self.loop.run()
        self._connections.close()
        self.loop.close()

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Run a function on the network's loop, from any thread."""
        self.loop.call_soon(function, *args)

    def know(self, address: str) -> None:
        """Add an address that may be asked who leads what, from any thread."""
        self.call(self._bootstrap.append, address)

    def close(self) -> None:
        """Close all connections, from any thread; on a loop that was given, only from the loop's thread."""
        if self._closed:
            return
        self._closed = True
        self.direct.close()
        if self._thread is None:
            self._connections.close()
        else:
            self.call(self.loop.stop)
            self._thread.join()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs on the thread of this network, and so must not wait for an answer."""
        return self._thread is not None and threading.current_thread() is self._thread

    @property
    def refusal(self) -> str | None:
        """Why a worker refused this client, or could not be connected to; the latest reason."""
        return self._connections.refusal

    # Requests.

    def next_request(self) -> int:
        return next(self._numbers)

    def to_leader(
        self,
        group: GroupKey,
        number: int,
        message: wire.ToWorker,
        bodies: Sequence[Buffer],
        on_reply: OnReply,
        *,
        timeout_ms: int,
        wait_ms: int = 0,
    ) -> bool:
        """Send a request to a group's leader; False, and nothing is sent, if none can be reached."""
        address = self.view.leader_address(group)
        if address is None or self._connections.is_down(address):
            return False

        heard = self._learning(group, on_reply)
        self.request(
            address, number, message, bodies, heard, timeout_ms=timeout_ms, group=group, wait_ms=wait_ms
        )
        return True

    def to_replica(
        self,
        address: str,
        group: GroupKey,
        number: int,
        message: wire.ToWorker,
        on_reply: OnReply,
        *,
        timeout_ms: int,
    ) -> None:
        """Send a request to a replica of a group, which may answer without leading."""
        self.request(address, number, message, (), self._learning(group, on_reply), timeout_ms=timeout_ms)

    def _learning(self, group: GroupKey, on_reply: OnReply) -> OnReply:
        def replied(reply: wire.ToClient | None, bodies: list[memoryview]) -> None:
            self.learn(group, reply)
            on_reply(reply, bodies)

        return replied

    def learn(self, group: GroupKey, reply: wire.ToClient | None) -> None:
        """Take in who leads a group, if a reply tells."""
        if isinstance(reply, wire.Refused) and self.view.learn(group, reply):
            self._led_anew(group)

    # The first view.

    def refresh(self, then: Callable[[], None]) -> None:
        """Ask who leads what; ``then`` runs when a worker has answered, however long that takes."""
        self._refreshing.append(then)
        if len(self._refreshing) == 1:
            self._ask_until_answered(self._refreshes, HEDGE)

    def _ask_until_answered(self, refresh: int, hedge: Backoff) -> None:
        """Ask one more worker whenever those asked so far are slow to answer."""
        if refresh == self._refreshes:
            self._ask(refresh, len(self._addresses()))
            self.loop.call_after(hedge.delay_ms, self._ask_until_answered, refresh, hedge.next())

    def _ask(self, refresh: int, tries: int) -> None:
        addresses = self._addresses()
        address = addresses[next(self._turns) % len(addresses)]

        def heard(reply: wire.ToClient | None, _: list[memoryview]) -> None:
            if isinstance(reply, wire.Metadata):
                self._take(reply)
                self._refreshed(refresh)
            elif refresh == self._refreshes and tries > 1:
                self._ask(refresh, tries - 1)

        number = self.next_request()
        self.request(address, number, wire.GetMetadata(number), (), heard, timeout_ms=METADATA_TIMEOUT_MS)

    def _addresses(self) -> list[str]:
        known = list(dict.fromkeys([*self.view.addresses.values(), *self._bootstrap]))
        return [address for address in known if not self._connections.is_down(address)] or known

    def _refreshed(self, refresh: int) -> None:
        if refresh == self._refreshes:
            self._refreshes += 1
            waiting, self._refreshing = self._refreshing, []
            for then in waiting:
                then()

    # News.

    def when_led_anew(
        self, group: GroupKey, then: Callable[[], None], *, above: Epoch, within_ms: int
    ) -> None:
        """Run ``then`` once the group has an epoch above ``above``, and after ``within_ms`` in any case."""
        once = _Once(then)
        if self.view.epoch(group) > above:
            self.loop.call_soon(once)
            return
        self.loop.call_after(within_ms, once)
        awaited = self._awaited.setdefault(group, _Awaited())
        awaited.waiting.append(once)
        address = self.view.leader_address(group)
        if (address is None or self._connections.is_down(address)) and not self._refreshing:
            # Perhaps all its replicas have moved: then none of those we know can tell.
            self.refresh(lambda: None)
        self._ask_for_news(group)

    def suspect(self, group: GroupKey) -> None:
        """Ask whether another worker leads a group by now, since its leader does not answer."""
        self.when_led_anew(group, lambda: None, above=self.view.epoch(group), within_ms=NEWS_MS)

    def _ask_for_news(self, group: GroupKey) -> None:
        awaited = self._awaited.get(group)
        if awaited is None:
            return
        if awaited.is_over:
            del self._awaited[group]
            return
        for address in self._tellers(group):
            if address not in awaited.asked:
                awaited.asked.add(address)
                self._ask_one_for_news(group, awaited, address)

    def _tellers(self, group: GroupKey) -> list[str]:
        """Addresses of a group's replicas: only these workers hear of its leader by themselves."""
        view = self.view.groups.get(group)
        replicas = view.replicas if view is not None else ()
        return [self.view.addresses[each] for each in replicas if each in self.view.addresses]

    def _ask_one_for_news(self, group: GroupKey, awaited: _Awaited, address: str) -> None:
        asked_at = self.loop.now

        def heard(reply: wire.ToClient | None, _: list[memoryview]) -> None:
            if isinstance(reply, wire.Metadata):
                self._take(reply)
                if not reply.groups and not self._refreshing:
                    # It holds the group no more. Who does, any worker can find out.
                    self.refresh(lambda: None)
            pause_ms = max(0, NEWS_AGAIN_MS - (self.loop.now - asked_at))
            self.loop.call_after(pause_ms, again)

        def again() -> None:
            awaited.asked.discard(address)
            self._ask_for_news(group)

        number = self.next_request()
        message = wire.GetMetadata(number, awaited=group, above=self.view.epoch(group), wait_ms=NEWS_MS)
        timeout_ms = METADATA_TIMEOUT_MS
        self.request(address, number, message, (), heard, timeout_ms=timeout_ms, wait_ms=NEWS_MS)

    def _take(self, metadata: wire.Metadata) -> None:
        for group in self.view.take(metadata):
            self._led_anew(group)

    def _led_anew(self, group: GroupKey) -> None:
        self._connections.give_up(group, self.view.leader_address(group))
        awaited = self._awaited.get(group)
        for once in list(awaited.waiting) if awaited is not None else ():
            once()
