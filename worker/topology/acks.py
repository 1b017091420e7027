"""Appends that are answered when every stream of their depot has processed them, with what it returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from stretto import wire
from stretto.types import TaskId
from stretto.worker.topology.work import Processed
from stretto.zk.paths import GroupKey

Reply: TypeAlias = Callable[[tuple[wire.StreamResult, ...] | None], None]
"""What the streams made of it; None if it is not known, because the epoch ended."""

_Key: TypeAlias = tuple[GroupKey, TaskId, str]


@dataclass(slots=True, eq=False)
class _Waiting:
    start: int | None
    """None: results are not asked for."""
    end: int
    left: set[str]
    reply: Reply
    results: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    failures: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def take(self, topology: str, processed: Processed) -> None:
        start = self.start
        if start is None or processed.end <= start or processed.start >= self.end:
            return
        here = range(start - processed.start, self.end - processed.start)
        moved = processed.start - start
        self.results.setdefault(topology, []).extend(
            (index + moved, result) for index, result in processed.results if index in here
        )
        self.failures.setdefault(topology, []).extend(
            (note.index + moved, note.error) for note in processed.failures if note.index in here
        )

    def told(self) -> tuple[wire.StreamResult, ...]:
        return tuple(
            wire.StreamResult(topology, tuple(results), tuple(self.failures.get(topology, ())))
            for topology, results in sorted(self.results.items())
        )


class Acks:
    """Owned by the loop."""

    def __init__(self) -> None:
        self._waiting: dict[_Key, list[_Waiting]] = {}

    def wait(
        self, key: _Key, start: int | None, end: int, processed: Mapping[str, int], reply: Reply
    ) -> None:
        """``processed`` is how far each stream of the depot is."""
        left = {topology for topology, at in processed.items() if at < end}
        if left:
            self._waiting.setdefault(key, []).append(_Waiting(start, end, left, reply))
        else:
            reply(())

    def processed(self, group: GroupKey, task: TaskId, topology: str, processed: Processed) -> None:
        waiting = self._waiting.get((group, task, processed.depot))
        if not waiting:
            return
        done = []
        for each in waiting:
            each.take(topology, processed)
            if processed.end >= each.end:
                each.left.discard(topology)
                if not each.left:
                    done.append(each)
        for each in done:
            waiting.remove(each)
            each.reply(each.told())

    def ended(self, group: GroupKey) -> None:
        for key in [key for key in self._waiting if key[0] == group]:
            for each in self._waiting.pop(key):
                each.reply(None)
