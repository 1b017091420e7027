"""Znodes in memory, and an asker whose questions are answered when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from stretto.replog.core.events import Event
from stretto.replog.core.record import GroupRecord
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId
from stretto.zk.sessions.session import Done, Send
from stretto.zk.znodes.paths import Paths

Watch = Callable[[WatchedEvent], None]


class _Answer:
    def __init__(self, value: Any, error: Exception | None) -> None:
        self.value = value
        self.error = error


class Znodes:
    """The part of a ZooKeeper that followers use: values with versions, and watches that fire once."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[bytes, int, int]] = {}
        self._watches: dict[str, list[Watch]] = {}
        self._zxid = 0
        self.ephemerals: set[str] = set()

    def put(self, path: str, data: bytes) -> None:
        """Create the znode, or set its value."""
        self._zxid += 1
        version = self._nodes[path][1] + 1 if path in self._nodes else 0
        self._nodes[path] = (data, version, self._zxid)
        self._fire(path, EventType.CHANGED)
        if version == 0:
            self._fire(f"{_parent(path)}/", EventType.CHILD)

    def drop(self, path: str) -> None:
        """Delete the znode."""
        del self._nodes[path]
        self._fire(path, EventType.DELETED)
        self._fire(f"{_parent(path)}/", EventType.CHILD)

    def forget_watches(self) -> None:
        """Lose the connection that they were set on."""
        self._watches.clear()

    def has(self, path: str) -> bool:
        return path in self._nodes

    def data(self, path: str) -> bytes:
        return self._nodes[path][0]

    def watchers(self, path: str) -> int:
        return len(self._watches.get(path, []))

    def _fire(self, path: str, kind: str) -> None:
        for watch in self._watches.pop(path, []):
            watch(WatchedEvent(kind, KeeperState.CONNECTED, path))

    def _stat(self, path: str) -> Any:
        _, version, mzxid = self._nodes[path]
        return SimpleNamespace(version=version, mzxid=mzxid)

    def _watch(self, path: str, watch: Watch | None) -> None:
        watches = self._watches.setdefault(path, [])
        if watch is not None and watch not in watches:
            watches.append(watch)

    # As kazoo has them.

    def get_async(self, path: str, watch: Watch | None = None) -> _Answer:
        if path not in self._nodes:
            return _Answer(None, NoNodeError())
        self._watch(path, watch)
        return _Answer((self._nodes[path][0], self._stat(path)), None)

    def exists_async(self, path: str, watch: Watch | None = None) -> _Answer:
        self._watch(path, watch)
        return _Answer(self._stat(path) if path in self._nodes else None, None)

    def get_children_async(self, path: str, watch: Watch | None = None) -> _Answer:
        if path not in self._nodes:
            return _Answer(None, NoNodeError())
        self._watch(f"{path}/", watch)
        return _Answer([each.rpartition("/")[2] for each in self._nodes if _parent(each) == path], None)

    def create_async(
        self, path: str, data: bytes, *, ephemeral: bool = False, makepath: bool = False
    ) -> _Answer:
        if path in self._nodes:
            return _Answer(None, NodeExistsError())
        if _parent(path) not in self._nodes and not makepath:
            return _Answer(None, NoNodeError())
        self.put(path, data)
        if ephemeral:
            self.ephemerals.add(path)
        return _Answer(path, None)

    def set_async(self, path: str, data: bytes) -> _Answer:
        if path not in self._nodes:
            return _Answer(None, NoNodeError())
        self.put(path, data)
        return _Answer(None, None)

    def delete_async(self, path: str, version: int = -1) -> _Answer:
        if path not in self._nodes:
            return _Answer(None, NoNodeError())
        if version not in (-1, self._nodes[path][1]):
            return _Answer(None, BadVersionError())
        self.drop(path)
        return _Answer(None, None)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class Questions:
    """Asks those znodes. A question reaches them when :meth:`answer` or :meth:`settle` is called."""

    def __init__(self, znodes: Znodes | None = None) -> None:
        self.znodes = znodes or Znodes()
        self._questions: list[tuple[Send, Done]] = []

    @property
    def count(self) -> int:
        return len(self._questions)

    def answer(self, error: Exception | None = None) -> None:
        """Answer the oldest question, with an error if one is given: then it reaches nothing."""
        send, done = self._questions.pop(0)
        if error is not None:
            done(None, error)
        else:
            answer: Any = send(self.znodes)
            done(answer.value, answer.error)

    def settle(self) -> None:
        """Answer everything, also what is asked meanwhile."""
        while self._questions:
            self.answer()

    def ask(self, send: Send, done: Done) -> None:
        self._questions.append((send, done))


class Asker(Questions):
    """What a followed group asks and tells."""

    def __init__(self, worker: WorkerId) -> None:
        super().__init__()
        self.paths = Paths("/c")
        self.told: list[tuple[GroupKey, Event]] = []
        #: What failed and is to be tried again.
        self.later: list[Callable[[], None]] = []
        self._worker = worker

    def tell(self, group: GroupKey, event: Event) -> None:
        self.told.append((group, event))

    def leads_here(self, record: GroupRecord) -> bool:
        return record.leader == self._worker

    def watch(self, fired: Watch) -> Watch:
        return fired

    def again_later(self, again: Callable[[], None]) -> None:
        self.later.append(again)
