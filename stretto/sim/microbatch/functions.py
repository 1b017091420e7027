"""The module under test, and the executor that runs it.

On every task it has a list of what it did and counters that hops add to. Each record draws a word that nobody
can guess and leaves it on two tasks, so that two runs of one record cannot be mixed unseen. It returns that
word: who appended the record must be told that of the run that took effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from stretto.sim.microbatch.plan import State
from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import Source
from stretto.vocabulary.types import TaskId
from stretto.worker.microbatch.machines import messages

if TYPE_CHECKING:
    from stretto.sim.microbatch.simulation import MicrobatchSimulation


@dataclass
class Kept:
    """What an executor keeps of one version of a microbatch: rounds, and rows not committed yet."""

    rounds: int = 0
    rows: State = field(default_factory=dict)


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call on another task, with the word that its record has drawn."""

    source: Source
    word: str
    value: int
    hops: int


class Run:
    """One run of the module's code over one batch."""

    def __init__(self, sim: MicrobatchSimulation, task: TaskId, state: State, kept: Kept) -> None:
        self.sim = sim
        self.task = task
        self._state = state
        self._kept = kept
        self.calls: dict[TaskId, list[Call]] = {}
        self.failures: list[messages.Failure] = []
        self.results: list[microbatch_entries.Result] = []

    def get(self, name: str, key: str, default: str = "") -> str:
        for rows in (self._kept.rows, self._state):
            found = rows.get(name, {}).get(key.encode())
            if found is not None:
                return found.decode()
        return default

    def put(self, name: str, key: str, value: object) -> None:
        self._kept.rows.setdefault(name, {})[key.encode()] = str(value).encode()

    def record(self, source: Source) -> None:
        """Run the module's function on a record of the depot."""
        kind = self.sim.kind_of(source)
        if kind.fails_at == 0 and self.sim.fails(kind):
            self._fail(source)
            return
        word = f"{self.sim.world.random.getrandbits(48):x}"
        self.put("words", f"{source.task}.{source.offset}", word)
        self.results.append(microbatch_entries.Result(source.depot, source.offset, word.encode()))
        self.put("done", "list", self.get("done", "list") + f"{source.offset} ")
        # What is read here decides what happens elsewhere: it must be the truth.
        count = int(self.get("done", "count", "0")) + 1
        self.put("done", "count", count)
        if kind.target is not None:
            self._hop(kind.target, Call(source, word, count, kind.hops))

    def call(self, call: Call) -> None:
        """Run a call that hopped here."""
        kind = self.sim.kind_of(call.source)
        if kind.fails_at > 0 and call.hops == 1 and self.sim.fails(kind):
            self._fail(call.source)
            return
        name = f"{call.source.task}.{call.source.offset}.{call.hops}"
        self.put("words", name, call.word)
        self.put("seen", name, call.value)
        self.put("counters", f"{call.source.task}", int(self.get("counters", f"{call.source.task}", "0")) + 1)
        if call.hops > 1:
            target = TaskId((self.task + 1) % self.sim.plan.tasks)
            self._hop(target, msgspec.structs.replace(call, hops=call.hops - 1))

    def _hop(self, task: TaskId, call: Call) -> None:
        self.calls.setdefault(task, []).append(call)

    def _fail(self, source: Source) -> None:
        self.failures.append(messages.Failure(source, "does not work", "line 1"))
