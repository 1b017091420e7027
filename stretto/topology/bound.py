"""``self`` in a person's function: the module on one task, during one run.

An instance is made for every run, and what it is asked for first (a PState, a step) is put into its
``__dict__``, so that from then on Python finds it there without a call.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias

import msgspec

from stretto.errors import UsageError
from stretto.ordered import shown
from stretto.partition import owner_of
from stretto.pstate.edit import Editor
from stretto.pstate.overlay import Rows, Undo, take_back
from stretto.pstate.tree import Entries, Members, Place, locate
from stretto.topology.work import StepCall
from stretto.types import TaskId

if TYPE_CHECKING:
    from stretto.topology.signatures import StepSignature

P = ParamSpec("P")

RUN = "__run__"
"""Where an instance keeps its run."""

_encode = msgspec.msgpack.Encoder().encode

RowsOf: TypeAlias = Callable[[str], Rows]
"""By name of the PState: what a run sees below its own changes."""


class Run:
    """What functions have done on a task so far."""

    def __init__(
        self,
        *,
        what: str,
        task: TaskId,
        tasks: int,
        roots: Mapping[str, Entries | Members],
        writers: Mapping[str, str],
        steps: Mapping[str, StepSignature] | None,
        rows: RowsOf | None,
    ) -> None:
        self.what = what
        self.task = task
        self.tasks = tasks
        self._roots = roots
        self._writers = writers
        self._steps = steps
        self._rows = rows
        self.undo: Undo = []
        self.editors: dict[str, Editor] = {}
        #: For other tasks.
        self.hops: dict[TaskId, list[StepCall]] = {}
        #: For this one; they run before the next record does.
        self.pending: deque[StepCall] = deque()
        #: What runs now.
        self.origin = 0

    def pstate(self, name: str, instance: object) -> Editor:
        if self._rows is None:
            raise UsageError(f"{name} cannot be read here: what combines answers runs on no task")
        root, rows, writer = self._roots[name], self._rows(name), self._writers.get(name)
        if writer == self.what:
            editor = self.editors[name] = TaskEditor(name, root, rows, self)
        else:
            refusal = _not_yours(name, self.what, writer, is_query=self._steps is None)
            editor = TaskEditor(name, root, rows, self, refusal)
        instance.__dict__[name] = editor
        return editor

    def step(self, name: str, instance: object) -> BoundStep[Any]:
        if self._steps is None:
            raise UsageError(f"{self.what} is a query, which hops to no step; it reads and answers")
        bound: BoundStep[Any] = BoundStep(self, name, self._steps[name])
        instance.__dict__[name] = bound
        return bound

    def call(self, task: TaskId, call: StepCall) -> None:
        if task == self.task:
            self.pending.append(call)
        else:
            self.hops.setdefault(task, []).append(call)

    def take_back(self) -> None:
        """All that was done since :attr:`undo` was empty, which was when ``origin`` began."""
        take_back(self.undo)
        self.pending.clear()
        for calls in self.hops.values():
            while calls and calls[-1].origin == self.origin:
                calls.pop()


def run_of(instance: object) -> Run:
    run: Run | None = instance.__dict__.get(RUN)
    if run is None:
        raise UsageError(
            f"{type(instance).__name__} runs on no task; try it with stretto.testing.module(...)"
        )
    return run


class BoundStep(Generic[P]):
    """``self.step`` in a function: call what one of its methods returns, and the step runs there."""

    def __init__(self, run: Run, name: str, signature: StepSignature) -> None:
        self._run = run
        self._name = name
        self._arguments = signature.arguments
        self._owners: dict[str, Callable[..., None]] = {}

    def at(self, key: Any) -> Callable[P, None]:
        """On the task that owns ``key``."""
        if type(key) is not str:
            return self.on(owner_of(key, self._run.tasks))
        there = self._owners.get(key)
        if there is None:
            there = self._owners[key] = self.on(owner_of(key, self._run.tasks))
        return there

    def on(self, task: int) -> Callable[P, None]:
        """On this task: ``self.tasks`` says how many there are."""
        if type(task) is not int or not 0 <= task < self._run.tasks:
            raise UsageError(f"there is no task {shown(task)}; they are 0 to {self._run.tasks - 1}")
        return partial(self._call, TaskId(task))

    def once(self) -> Callable[P, None]:
        """On task 0, which there is always."""
        return partial(self._call, TaskId(0))

    def anywhere(self) -> Callable[P, None]:
        """On a task by chance."""
        return partial(self._call, TaskId(random.randrange(self._run.tasks)))  # noqa: S311

    def everywhere(self) -> Callable[P, None]:
        """On every task, this one included."""
        return self._call_all

    def __call__(self, *_: P.args, **__: P.kwargs) -> None:
        raise UsageError(
            f"say where {self._name} is to run: self.{self._name}.at(key)(...), or .on(task), .everywhere(), "
            ".once() or .anywhere(); to call a function right here, leave out its @step"
        )

    def _call(self, task: TaskId, /, *args: Any, **named: Any) -> None:
        run = self._run
        data = _encode(self._arguments(args, named))
        run.call(task, StepCall(self._name, data, run.origin))

    def _call_all(self, /, *args: Any, **named: Any) -> None:
        run = self._run
        call = StepCall(self._name, _encode(self._arguments(args, named)), run.origin)
        for task in range(run.tasks):
            run.call(TaskId(task), call)


class TaskEditor(Editor):
    """A PState on the task of a run; who may not change it has a ``refusal``."""

    def __init__(self, name: str, root: Entries | Members, rows: Rows, run: Run, refusal: str = "") -> None:
        super().__init__(root, rows, run.undo)
        self._name = name
        self._task = run.task
        self._tasks = run.tasks
        self._refusal = refusal

    def _locate(self, path: tuple[Any, ...]) -> Place:
        place = locate(self._root, path)
        if path:
            _check_owner(self._name, path[0], self._task, self._tasks)
        return place

    def _target(self, path: tuple[Any, ...]) -> Place:
        if self._refusal:
            raise UsageError(self._refusal)
        return self._locate(path)


def _check_owner(name: str, key: Any, task: TaskId, tasks: int) -> None:
    owner = owner_of(key, tasks)
    if owner != task:
        raise UsageError(
            f"{shown(key)} of PState {name} is on task {owner}, and this is task {task}; "
            f"hop there first, to a step: self.the_step.at({shown(key)})(...)"
        )


def _not_yours(name: str, what: str, writer: str | None, *, is_query: bool) -> str:
    if is_query:
        return f"{what} is a query, which only reads; PState {name} is changed by a topology"
    if writer is not None:
        return f"PState {name} is written by {writer}, and has one writer; {what} can only read it"
    return (
        f"{what} changes PState {name} in a way that could not be seen when the module was loaded; change it "
        f"as self.{name}.set(...) in a function of the module, or say writes=[{name}] in {what}'s decorator"
    )
