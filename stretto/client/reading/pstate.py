"""Reading PStates: one key, many keys, or ranges of keys in their order over all tasks.

What is under a key lies on one task, whose leader is asked. A question without a key goes to the leaders of
all tasks at once, and what they answer is merged by key. Workers answer with rows; they become values here,
by the type that the module declares.

Each answer is the state of one task as of one moment. What takes several (all tasks, or more than an answer
holds) may see changes made in between.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from stretto.client.asking.followers import Followers, Seen
from stretto.client.asking.question import Question
from stretto.client.reading.point_reads import PointReads
from stretto.errors import RetriableError, UsageError
from stretto.module.partition import owner_of, owners_of
from stretto.network.routing import Network
from stretto.pstate import ordered
from stretto.pstate.edit import ReadByMethods, key_range
from stretto.pstate.ordered import shown, subtree
from stretto.pstate.tree import (
    ABSENT,
    Elements,
    Entries,
    Leaf,
    Node,
    Place,
    Row,
    build,
    compile_type,
    encode_index,
    items_of,
    joined,
    locate,
    paths_of,
    row_of,
)
from stretto.pstate.types import describe, incompatible
from stretto.specs.modules import PStateSpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire

PAGE_ROWS = 1_000
"""How many rows or keys an answer has at most."""
COUNT_KEYS = 50_000
"""How many keys a worker counts per request at most."""
SCANS_AT_ONCE = 64
"""How many scans one call has under way: a page of rows is kept for each until its turn."""

T = TypeVar("T")
_Message: TypeAlias = Callable[[int, GroupKey], wire.ToWorker]


class PStateReader(ReadByMethods):
    """Reads one PState of a module. Each call waits for its answers, over leader moves, until its deadline.

    A path is the keys that lead to something: ``get("ann", day)``. Without a type of the caller's own, values
    of the author's classes have the same fields and are of a class made up for them.
    """

    def __init__(
        self,
        network: Network,
        module: str,
        pstate: PStateSpec,
        tasks: int,
        *,
        annotation: Any = None,
        timeout: float = 30.0,
        max_staleness: float | None = None,
        token: str = "",
    ) -> None:
        self._network = network
        self._module = module
        self._name = self._called = pstate.name
        self._tasks = tasks
        self._timeout = timeout
        if annotation is not None:
            why = incompatible(pstate.type, describe(annotation))
            if why is not None:
                raise UsageError(f"PState {pstate.name} of {module} is {pstate.type}: {why}")
        self.type = pstate.type
        self._root = compile_type(pstate.type, annotation)
        #: The root if it is a dict of plain values, as most are: one row for each key.
        self._values: Entries | None = None
        if isinstance(self._root, Entries) and isinstance(self._root.child, Leaf):
            self._values = self._root
            self._decode = self._root.child.decode
        self._seen = Seen(token)
        self._followers = None if max_staleness is None else Followers(network, max_staleness, self._seen)
        self._points = PointReads(
            network, module, pstate.name, timeout, seen=self._seen, followers=self._followers
        )

    def __bool__(self) -> bool:
        """A reader is always true, also of an empty PState, as ``reader or client.pstate(...)`` expects."""
        return True

    @property
    def token(self) -> str:
        """What this reader has seen so far, as text; another reader that is given it sees as much."""
        return str(self._seen)

    def get(self, *path: Any, default: Any = None) -> Any:
        """Return the value, dict, set or list under these keys, or ``default`` if there is nothing.

        A list's elements have their positions as keys.
        """
        if self._values is not None and len(path) == 1:
            value = self._points.get(self._owner(path), row_of(self._values, path[0]))
            return default if value is None else self._decode(value)
        place = self._inside(path)
        if place.node is None:
            raise UsageError(f"{shown(path[-1])} is a member of a set; ask whether it is there")
        if isinstance(place.node, Leaf):
            value = self._points.get(self._owner(path), place.path)
            return default if value is None else place.node.decode(value)
        rows = list(self._scan(self._owner(path), *subtree(place.path)))
        found = build(place.node, rows, len(place.path))
        return default if found is ABSENT else found

    async def get_awaited(self, *path: Any, default: Any = None) -> Any:
        """Return what :meth:`get` does, for a coroutine; more than one row takes a thread."""
        if self._values is not None and len(path) == 1:
            value = await self._points.begin(self._owner(path), row_of(self._values, path[0]))
            return default if value is None else self._decode(value)
        place = self._inside(path)
        if not isinstance(place.node, Leaf):
            return await asyncio.to_thread(self.get, *path, default=default)
        value = await self._points.begin(self._owner(path), place.path)
        return default if value is None else place.node.decode(value)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return what is under each of these keys of the PState; keys that it does not have are left out."""
        if not isinstance(self._root, Entries):
            raise UsageError(f"PState {self._name} is a set, which has no values; ask whether a key is there")
        wanted = dict.fromkeys(keys)
        if not isinstance(self._root.child, Leaf):
            places = [(key, locate(self._root, [key])) for key in wanted]
            return dict(self._collections(self._root.child, places))
        self._network.view.check_tasks(self._module, self._tasks)
        keys_of: dict[TaskId, list[Any]] = {}
        rows: dict[TaskId, list[bytes]] = {}
        for key, row, task in zip(
            wanted, paths_of(self._root, wanted), owners_of(wanted, self._tasks), strict=True
        ):
            if task not in rows:
                keys_of[task], rows[task] = [], []
            keys_of[task].append(key)
            rows[task].append(row)
        for task, values in self._points.get_many(rows).items():
            wanted.update(zip(keys_of[task], values, strict=True))
        there = {key: value for key, value in wanted.items() if value is not None}
        return dict(zip(there, self._root.child.decode_all(there.values()), strict=True))

    def _collections(self, node: Node, wanted: Iterable[tuple[Any, Place]]) -> Iterator[tuple[Any, Any]]:
        """Scan what is under each key; :data:`SCANS_AT_ONCE` are under way, however many keys there are."""
        asked: deque[tuple[Any, Place, Iterator[Row]]] = deque()

        def first() -> Iterator[tuple[Any, Any]]:
            key, place, rows = asked.popleft()
            found = build(node, list(rows), len(place.path))
            if found is not ABSENT:
                yield key, found

        for key, place in wanted:
            if len(asked) == SCANS_AT_ONCE:
                yield from first()
            asked.append((key, place, self._scan(self._owner([key]), *subtree(place.path))))
        while asked:
            yield from first()

    def contains(self, *path: Any) -> bool:
        """Whether there is anything under these keys, or this member in that set."""
        place = self._inside(path)
        if place.node is None or isinstance(place.node, Leaf):
            return self._points.get(self._owner(path), place.path) is not None
        return next(self._scan(self._owner(path), *subtree(place.path), rows_max=1), None) is not None

    def keys(
        self,
        *path: Any,
        prefix: Any = None,
        start: Any = None,
        end: Any = None,
        after: Any = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """Iterate over the keys of a dict, or the members of a set, under this path, ascending.

        Only keys that begin with ``prefix``; from ``start`` on, or behind ``after``; below ``end``; and at
        most ``limit`` of them.
        """
        place = locate(self._root, path)
        low, high = key_range(place, prefix=prefix, start=start, end=end, after=after)
        keys_max = min(limit or PAGE_ROWS, PAGE_ROWS)
        scans = [
            _pages(self._ask, self._keys_message(task, low, high, len(place.path), keys_max, tell=True))
            for task in self._concerned(path)
        ]
        merged = heapq.merge(*((key for page in pages for key in page.keys) for pages in scans))
        return _first(limit, (ordered.decode_at(key, len(place.path))[0] for key in merged))

    def items(
        self,
        *path: Any,
        prefix: Any = None,
        start: Any = None,
        end: Any = None,
        after: Any = None,
        limit: int | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over entries of a dict: the keys that :meth:`keys` returns, each with what is under it.

        To go on later, give the last key as ``after``.
        """
        place = locate(self._root, path)
        if not isinstance(place.node, Entries):
            raise UsageError("only a dict has items; a set has keys, and a list is read whole or in slices")
        low, high = key_range(place, prefix=prefix, start=start, end=end, after=after)
        flat = isinstance(place.node.child, Leaf)
        rows_max = min(limit, PAGE_ROWS) if flat and limit else PAGE_ROWS
        scans = [self._scan(task, low, high, rows_max=rows_max) for task in self._concerned(path)]
        return _first(limit, items_of(place.node, heapq.merge(*scans), len(place.path)))

    def count(
        self, *path: Any, prefix: Any = None, start: Any = None, end: Any = None, after: Any = None
    ) -> int:
        """Count the entries, members or elements under this path; of a dict or a set, also in a key range."""
        place = locate(self._root, path)
        if isinstance(place.node, Elements) and prefix is start is end is after is None:
            return self._length(path, place)
        low, high = key_range(place, prefix=prefix, start=start, end=end, after=after)
        scans = [
            _pages(self._ask, self._keys_message(task, low, high, len(place.path), COUNT_KEYS, tell=False))
            for task in self._concerned(path)
        ]
        return sum(page.count for pages in scans for page in pages)

    def slice(self, *path: Any, start: int = 0, stop: int | None = None) -> list[Any]:
        """Return the elements of a list from position ``start`` on and below ``stop``."""
        place = locate(self._root, path)
        if not isinstance(place.node, Elements):
            raise UsageError("only a list has slices; the path ends elsewhere")
        low = joined(place.path, encode_index(start))
        high = subtree(place.path)[1] if stop is None else joined(place.path, encode_index(stop))
        if high <= low:
            return []
        return [place.node.item.decode(value) for _, value in self._scan(self._owner(path), low, high)]

    # Asking.

    def _inside(self, path: Sequence[Any]) -> Place:
        if not path:
            raise UsageError(f"give a key of PState {self._name}; items() and keys() go over all of them")
        return locate(self._root, path)

    def _owner(self, path: Sequence[Any]) -> TaskId:
        self._network.view.check_tasks(self._module, self._tasks)
        return owner_of(path[0], self._tasks)

    def _concerned(self, path: Sequence[Any]) -> list[TaskId]:
        self._network.view.check_tasks(self._module, self._tasks)
        return [self._owner(path)] if path else [TaskId(task) for task in range(self._tasks)]

    def _length(self, path: Sequence[Any], place: Place) -> int:
        task = self._owner(path)
        low, high = subtree(place.path)
        last = _page(
            self._ask(
                task,
                lambda number, group: wire.ScanRows(
                    number, group, task, self._name, low, high, 1, True, self._stale(group)
                ),
            )
        )
        return int(ordered.decode_at(last.keys[0], len(place.path))[0]) + 1 if last.keys else 0

    def _scan(self, task: TaskId, start: bytes, end: bytes, *, rows_max: int = PAGE_ROWS) -> Iterator[Row]:
        """Iterate over the rows of a task in ``[start, end)``; the first page is asked for at once."""

        def message(at: bytes | None) -> tuple[TaskId, _Message]:
            low = start if at is None else at
            return task, lambda number, group: wire.ScanRows(
                number, group, task, self._name, low, end, rows_max, False, self._stale(group)
            )

        pages = _pages(self._ask, message)
        return (row for page in pages for row in zip(page.keys, page.values, strict=True))

    def _keys_message(
        self, task: TaskId, start: bytes, end: bytes, depth: int, keys_max: int, *, tell: bool
    ) -> Callable[[bytes | None], tuple[TaskId, _Message]]:
        def message(at: bytes | None) -> tuple[TaskId, _Message]:
            low = start if at is None else at
            return task, lambda number, group: wire.ScanKeys(
                number, group, task, self._name, low, end, depth, keys_max, tell, self._stale(group)
            )

        return message

    def _ask(self, task: TaskId, message: _Message) -> Question:
        if (self._module, task) not in self._network.view.of_task:
            raise RetriableError(f"task {task} of {self._module} cannot be found now; try again")
        asked: list[GroupKey] = []

        def noting(number: int, group: GroupKey) -> wire.ToWorker:
            asked.append(group)
            return message(number, group)

        def saw(question: Question) -> None:
            reply = question.reply
            if isinstance(reply, wire.RowPage):
                self._seen.saw(asked[-1], reply.epoch, reply.offset)

        return Question(
            self._network,
            self._module,
            task,
            noting,
            self._timeout,
            then=saw,
            followers=self._followers,
        ).begin()

    def _stale(self, group: GroupKey) -> wire.Stale | None:
        return self._followers.stale(group) if self._followers is not None else None


def _pages(
    ask: Callable[[TaskId, _Message], Question], message: Callable[[bytes | None], tuple[TaskId, _Message]]
) -> Iterator[wire.RowPage]:
    """Iterate over pages; the first is asked for now, each other one when it is needed."""
    first = ask(*message(None))

    def pages() -> Iterator[wire.RowPage]:
        page = _page(first)
        yield page
        while page.next is not None:
            page = _page(ask(*message(page.next)))
            yield page

    return pages()


def _page(question: Question) -> wire.RowPage:
    reply, _ = question.wait()
    if not isinstance(reply, wire.RowPage):
        raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")
    return reply


def _first(limit: int | None, found: Iterator[T]) -> Iterator[T]:
    if limit is None:
        yield from found
        return
    for _ in range(limit):
        try:
            yield next(found)
        except StopIteration:
            return
