"""A copy of the metastore's tree, kept by watches, for those who plan over all of it.

A watch that fires marks its znode; :meth:`WatchedTree.refresh` reads what is marked, and watches it again by
the same call, so that no change falls between reading and watching. Nothing is read that did not change, and
storms of changes become one reading. What its own client has written is in it with the next refresh; what
others have written may be missing. Who decides by the copy must expect it to be old, and change things only
by compare-and-set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import Callback, EventType, KazooState, WatchedEvent

from stretto.zk.znodes.paths import Paths

log = structlog.get_logger()

BATCH = 256
"""Reads sent before the first answer is awaited."""
HEARD_SECONDS = 5.0
"""How long to wait for watches that have fired. They are only slow if the machine is."""


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode as it was last read."""

    data: bytes
    version: int
    created: int
    """Zxid of its creation: says which znode came first."""
    owner: int
    """The session that the znode lives as long as; 0 if it outlives all."""


class WatchedTree:
    """A copy of the tree, owned by one thread at a time; only the watches come from others."""

    def __init__(self, client: KazooClient, paths: Paths, changed: Callable[[], None]) -> None:
        """``changed`` is called, on kazoo's threads, when there may be something to refresh."""
        self._client = client
        self._paths = paths
        self._changed = changed
        self._lock = threading.Lock()
        #: Paths that must be read, each with whether its children are meant.
        self._marked: set[tuple[str, bool]] = set()
        #: Whether no watch is left: kazoo forgets them with the connection, though the session may live on.
        self._is_blind = True
        #: Whether anything was different since a refresh last came to its end.
        self._is_different = False
        self.data: dict[str, Znode] = {}
        self.children: dict[str, tuple[str, ...]] = {}
        client.add_listener(self._state_changed)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            with self._lock:
                self._is_blind = True
            self._changed()

    def _fired(self, event: WatchedEvent) -> None:
        if event.type is None or event.type == EventType.NONE:
            return
        with self._lock:
            if event.type == EventType.CHILD:
                self._marked.add((event.path, True))
            elif event.type == EventType.CHANGED:
                self._marked.add((event.path, False))
            else:
                # Gone: known from the list of its parent's children, which is read again as well.
                self._marked.update(((event.path, False), (event.path, True)))
        self._changed()

    def close(self) -> None:
        self._client.remove_listener(self._state_changed)

    def refresh(self) -> bool:
        """Read what may have changed, and what that leads to; True if anything was different.

        That counts what an attempt has read that failed.
        """
        self._hear()
        while True:
            with self._lock:
                if self._is_blind:
                    self._is_blind = False
                    self._mark_everything()
                marked, self._marked = sorted(self._marked), set()
            wanted = [(path, listing) for path, listing in marked if self._is_wanted(path, listing)]
            if not wanted:
                different, self._is_different = self._is_different, False
                return different
            try:
                self._read(wanted)
            except Exception:
                with self._lock:
                    self._marked.update(marked)
                raise

    def _hear(self) -> None:
        """Wait for the watches that have fired so far.

        ZooKeeper fires a watch before it answers the client that made the change, but kazoo calls us on a
        thread of its own: a caller that has the answer already must not find the tree as it was before.
        """
        heard = threading.Event()
        self._client.handler.dispatch_callback(Callback("watch", heard.set, ()))
        heard.wait(HEARD_SECONDS)

    def _mark_everything(self) -> None:
        self._marked.update((path, False) for path in (self._paths.options, *self.data))
        self._marked.update((path, True) for path in (*self._paths.mirrored, *self.children))

    def _is_wanted(self, path: str, listing: bool) -> bool:
        return path in self.children or self._paths.lists(path) if listing else self._paths.holds(path)

    def _read(self, wanted: list[tuple[str, bool]]) -> None:
        for start in range(0, len(wanted), BATCH):
            asked = []
            for path, listing in wanted[start : start + BATCH]:
                call = self._client.get_children_async if listing else self._client.get_async
                asked.append((path, listing, call(path, watch=self._fired)))
            for path, listing, answer in asked:
                try:
                    value = answer.get()
                except NoNodeError:
                    self._is_different |= self._forget(path)
                else:
                    take = self._take_children if listing else self._take_data
                    self._is_different |= take(path, value)

    def _take_data(self, path: str, value: tuple[bytes, object]) -> bool:
        data, stat = value
        znode = Znode(data, stat.version, stat.czxid, stat.ephemeralOwner)  # type: ignore[attr-defined]
        different = self.data.get(path) != znode
        self.data[path] = znode
        return different

    def _take_children(self, path: str, names: list[str]) -> bool:
        before, now = self.children.get(path), tuple(sorted(names))
        self.children[path] = now
        for gone in set(before or ()) - set(now):
            self._forget(f"{path}/{gone}")
        with self._lock:
            for name in now:
                child = f"{path}/{name}"
                if self._paths.holds(child) and child not in self.data:
                    self._marked.add((child, False))
                if self._paths.lists(child) and child not in self.children:
                    self._marked.add((child, True))
        return before != now

    def _forget(self, path: str) -> bool:
        known = self.data.pop(path, None) is not None
        names = self.children.pop(path, None)
        for name in names or ():
            self._forget(f"{path}/{name}")
        return known or names is not None

    def children_of(self, path: str) -> tuple[str, ...]:
        return self.children.get(path, ())
