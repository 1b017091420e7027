"""``self`` in a person's function: the module on one task, during one run.

An instance is made for every run, and what it is asked for first (a PState, a step) is put into its
``__dict__``, so that from then on Python finds it there without a call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias

import msgspec

from stretto.errors import UsageError
from stretto.module.partition import owner_of
from stretto.module.work import StepCall
from stretto.pstate.edit import Editor
from stretto.pstate.ordered import shown
from stretto.pstate.overlay import Rows, Undo, take_back
from stretto.pstate.tree import Entries, Leaf, Members, Place, locate
from stretto.vocabulary.types import TaskId

if TYPE_CHECKING:
    from stretto.module.signatures import StepSignature

P = ParamSpec("P")

RUN = "__run__"
"""Name of the attribute in which an instance keeps its run."""

_encode = msgspec.msgpack.Encoder().encode
_ONE_MEANING = frozenset({str, bytes, date, datetime, type(None)})

RowsOf: TypeAlias = Callable[[str], Rows]
"""A function that returns, by name of a PState, the rows that a run sees below its own changes."""


class Run:
    """One run of a topology or query on a task: what its functions have done so far."""

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
        key: str | None = None,
    ) -> None:
        """Begin a run; without ``steps`` it is a query, and ``key`` the parameter that chose the task."""
        self.what = what
        self.task = task
        self.tasks = tasks
        self._roots = roots
        self._writers = writers
        self._steps = steps
        self._rows = rows
        self._key = key
        self.undo: Undo = []
        self.editors: dict[str, Editor] = {}
        #: Calls of steps on other tasks.
        self.hops: dict[TaskId, list[StepCall]] = {}
        #: Calls of steps on this task: functions, their signatures if they take many calls at once, and
        #: arguments. They run before the next record does.
        self.pending: list[tuple[Callable[..., Any], StepSignature | None, tuple[Any, ...]]] = []
        #: Index of the record or call that runs now.
        self.origin = 0
        self._owners: dict[str, TaskId] = {}

    @property
    def is_query(self) -> bool:
        """Whether this is the run of a query, which only reads and answers."""
        return self._steps is None

    def pstate(self, name: str, instance: object) -> Editor:
        """Return the editor of a PState on this task, and keep it in the instance."""
        if self._rows is None:
            raise UsageError(f"{name} cannot be read here: what combines answers runs on no task")
        root, rows, writer = self._roots[name], self._rows(name), self._writers.get(name)
        if writer == self.what:
            editor = self.editors[name] = TaskEditor(name, root, rows, self)
        else:
            refusal = _not_yours(name, self.what, writer, is_query=self.is_query)
            editor = TaskEditor(name, root, rows, self, refusal)
        instance.__dict__[name] = editor
        return editor

    def step(self, name: str, instance: object) -> BoundStep[Any]:
        """Return a step that can be hopped to, and keep it in the instance."""
        if self._steps is None:
            raise UsageError(f"{self.what} is a query, which hops to no step; it reads and answers")
        bound: BoundStep[Any] = BoundStep(self, name, self._steps[name])
        instance.__dict__[name] = bound
        return bound

    def owner(self, key: str) -> TaskId:
        """Return the task that owns a key that is text."""
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = owner_of(key, self.tasks)
        return owner

    def foreign(self, key: Any, pstate: str, owner: TaskId) -> str:
        """Return the error message for a key that another task owns, with what to do about it."""
        where = f"{shown(key)} of PState {pstate} is on task {owner}, and this is task {self.task}; "
        if not self.is_query:
            return where + f"hop there first, to a step: self.the_step.at({shown(key)})(...)"
        if self._key is None:
            return where + (
                f"query {self.what} runs on every task and reads what is there: go over "
                f"self.{pstate}.items() or .keys(), or let it run where the key is: @query(key=...) names "
                "the parameter that has it"
            )
        return where + (
            f"query {self.what} runs where its {self._key} is and reads what is there: ask for the other key "
            "with a query of its own, or leave out key= and combine what every task finds"
        )

    def take_back(self) -> None:
        """Undo all that was done since :attr:`undo` was empty, which was when ``origin`` began."""
        take_back(self.undo)
        self.pending.clear()
        for calls in self.hops.values():
            while calls and calls[-1].origin == self.origin:
                calls.pop()


def run_of(instance: object) -> Run:
    """Return the run of a module's instance. Raises UsageError if it runs on no task."""
    run: Run | None = instance.__dict__.get(RUN)
    if run is None:
        raise UsageError(
            f"{type(instance).__name__} runs on no task; try it with stretto.testing.module(...)"
        )
    return run


class BoundStep(Generic[P]):
    """A step as a function of the module sees it: ``self.the_step.at(key)(...)`` runs it on a task."""

    at: Callable[[Any], Callable[P, None]]
    """Return a function that runs the step on the task that owns the key."""

    def __init__(self, run: Run, name: str, signature: StepSignature) -> None:
        self._run = run
        self._name = name
        self._signature = signature
        #: Functions that run the step, by task.
        self._there: dict[TaskId, Callable[..., None]] = {}
        self.at = self._finder()

    def _finder(self) -> Callable[[Any], Callable[..., None]]:
        run, to = self._run, self._to
        known: dict[str, Callable[..., None]] = {}

        def at(key: Any) -> Callable[..., None]:
            if type(key) is not str:
                return to(owner_of(key, run.tasks))
            there = known.get(key)
            if there is None:
                there = known[key] = to(run.owner(key))
            return there

        return at

    def on(self, task: int) -> Callable[P, None]:
        """Return a function that runs the step on this task; ``self.tasks`` says how many there are."""
        if type(task) is not int or not 0 <= task < self._run.tasks:
            raise UsageError(f"there is no task {shown(task)}; they are 0 to {self._run.tasks - 1}")
        return self._to(TaskId(task))

    def once(self) -> Callable[P, None]:
        """Return a function that runs the step on task 0, which always exists."""
        return self._to(TaskId(0))

    def anywhere(self) -> Callable[P, None]:
        """Return a function that runs the step on a random task."""
        return self._to(TaskId(random.randrange(self._run.tasks)))  # noqa: S311

    def everywhere(self) -> Callable[P, None]:
        """Return a function that runs the step on every task, this one included."""
        return self._to_all

    def __call__(self, *_: P.args, **__: P.kwargs) -> None:
        raise UsageError(
            f"say where {self._name} is to run: self.{self._name}.at(key)(...), or .on(task), .everywhere(), "
            ".once() or .anywhere(); to call a function right here, leave out its @step"
        )

    def _to(self, task: TaskId) -> Callable[..., None]:
        there = self._there.get(task)
        if there is None:
            there = self._here() if task == self._run.task else self._elsewhere(task)
            self._there[task] = there
        return there

    def _elsewhere(self, task: TaskId) -> Callable[..., None]:
        run, name, signature = self._run, self._name, self._signature
        send, count = run.hops.setdefault(task, []).append, signature.count

        def call(*args: Any, **named: Any) -> None:
            if named or len(args) != count:
                args = signature.arguments(args, named)
            send(StepCall(name, _encode(args), run.origin))

        return call

    def _here(self) -> Callable[..., None]:
        signature = self._signature
        wait, plain = self._run.pending.append, signature.plain
        function, batched = signature.function, signature if signature.batch else None
        only = plain[0] if plain is not None and len(plain) == 1 else None

        def call(*args: Any, **named: Any) -> None:
            if named:
                args = signature.arguments(args, named)
            if only is not None and len(args) == 1 and type(args[0]) is only:
                # Encoding and decoding would not change it, so both are spared.
                wait((function, batched, args))
            elif tuple(map(type, args)) == plain:
                wait((function, batched, args))
            else:
                wait((function, batched, signature.decode(_encode(signature.arguments(args, {})))))

        return call

    def _to_all(self, /, *args: Any, **named: Any) -> None:
        for task in range(self._run.tasks):
            self._to(TaskId(task))(*args, **named)


class TaskEditor(Editor):
    """A PState on the task of a run; with a ``refusal``, that is the error of every change."""

    def __init__(self, name: str, root: Entries | Members, rows: Rows, run: Run, refusal: str = "") -> None:
        super().__init__(root, rows, run.undo)
        self._name = name
        self._called = f"self.{name}"
        self._run = run
        self._refusal = refusal
        # Also where no writer is known: ``self.counts[key] = ...`` is not found as a change at loading.
        self._is_changed = not run.is_query
        #: Places of paths that were asked for before, and are this task's.
        self._places: dict[tuple[Any, ...], Place] = {}
        #: Rows of ints that were incremented before, by path.
        self._counters: dict[tuple[Any, ...], bytes] = {}
        self.__dict__["increment"] = self._overlay.counting(self._counters, self._increment)

    def _increment(self, *path: Any, by: float = 1) -> Any:
        after = super().increment(*path, by=by)
        place = self._places.get(path)
        if place is not None and isinstance(place.node, Leaf) and place.node.is_int:
            self._counters[path] = place.path
        return after

    def _locate(self, path: tuple[Any, ...]) -> Place:
        try:
            place = self._places.get(path)
        except TypeError:
            # A list, which is no key, and is refused as such.
            place = None
        if place is None:
            place = locate(self._root, path)
            if path:
                self._check_owner(path[0])
            if _means_one_path(path):
                self._places[path] = place
        return place

    def _target(self, path: tuple[Any, ...]) -> Place:
        if self._refusal:
            raise UsageError(self._refusal)
        return self._locate(path)

    def _check_owner(self, key: Any) -> None:
        run = self._run
        owner = run.owner(key) if type(key) is str else owner_of(key, run.tasks)
        if owner != run.task:
            raise UsageError(run.foreign(key, self._name, owner))


def _means_one_path(path: tuple[Any, ...]) -> bool:
    """Whether no other path is equal to it: 1, 1.0 and True are equal, and not the same key."""
    return all(type(key) in _ONE_MEANING or (type(key) is tuple and _means_one_path(key)) for key in path)


def _not_yours(name: str, what: str, writer: str | None, *, is_query: bool) -> str:
    if is_query:
        return f"{what} is a query, which only reads; PState {name} is changed by a topology"
    if writer is not None:
        return f"PState {name} is written by {writer}, and has one writer; {what} can only read it"
    return (
        f"{what} changes PState {name} in a way that could not be seen when the module was loaded; change it "
        f"as self.{name}.set(...) in a function of the module, or say writes=[{name}] in {what}'s decorator"
    )
