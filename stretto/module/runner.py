"""Running a module's functions on one task: work and rows in, an outcome out.

A record, or a call, is a unit: it happens whole, with all the steps that it leads to on its own task, before
the next one begins; or it fails, and then nothing of it has happened. A function that takes many at once is
given all of them as one unit; if that fails each is run by itself, so that only what fails is lost.

What a person's function raises is a failure in the outcome. What else is raised is an error of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from itertools import islice
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec

from stretto.errors import StrettoError, UsageError
from stretto.module.bound import RUN, RowsOf, Run
from stretto.module.checks import CheckedQuery
from stretto.module.module import Module, declarations
from stretto.module.signatures import RecordSignature, StepSignature
from stretto.module.tracebacks import trimmed
from stretto.module.work import Answer, Calls, Failure, Outcome, Records, StepCall, Timed, Work, first
from stretto.pstate.changes import PART_BYTES_MAX
from stretto.vocabulary.invariants import present
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import Buffer, TaskId

OUTCOME_BYTES_MAX = PART_BYTES_MAX - 1024 * 1024
"""About how large the changes and hops of a run may be: both are in its entry, packed a little larger."""

STEPS_MAX = 1_000_000
"""How many steps a record or call may lead to on its own task: more are taken to go on for ever."""
SLOW_NS = 1_000_000
"""A call that takes longer is timed by itself."""
_ERROR_CHARACTERS_MAX = 500
#: What a person's code may raise, including by sys.exit().
_RAISED = (Exception, SystemExit)

_json = msgspec.json.Encoder().encode
_msgpack = msgspec.msgpack.Encoder().encode
_decode_given = msgspec.msgpack.Decoder(tuple[tuple[Any, ...], dict[str, Any]]).decode


class _Stop(Exception):
    """Raised to end a run before the record or call that failed."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _Rules(NamedTuple):
    """The options of a run; see :meth:`TaskRunner.run`."""

    stop_at_failure: bool
    skip: Container[int]
    raising: bool


class _Given(NamedTuple):
    """Records, or arguments of calls, that are run together, and their indexes in the work."""

    indexes: Sequence[int]
    data: Sequence[Any]


class TaskRunner:
    """Runs a module's functions on one task. It keeps nothing between runs."""

    def __init__(self, module: type[Module], task: TaskId, tasks: int) -> None:
        self._module = module
        self._task = task
        self._tasks = tasks
        declared = declarations(module)
        self._functions = declared.functions
        self._roots = {name: pstate.root for name, pstate in declared.pstates.items()}

    def run(
        self,
        work: Work,
        rows: RowsOf,
        *,
        stop_at_failure: bool = False,
        skip: Container[int] = (),
        raising: bool = False,
    ) -> Outcome:
        """Run what is not in ``skip``, in order; with ``stop_at_failure``, only up to what fails first.

        Less is done, from the beginning, if the outcome of all would be too large for an entry. With
        ``raising`` an error of a function passes through, for tests.
        """
        rules = _Rules(stop_at_failure, skip, raising)
        outcome = self._run(work, rows, rules)
        count = len(work.records if isinstance(work, Records) else work.calls)
        while (size := _size(outcome)) > OUTCOME_BYTES_MAX and count > 1:
            count = max(1, count // 2)
            outcome = self._run(first(work, count), rows, rules)
        if size <= OUTCOME_BYTES_MAX:
            return outcome
        error = UsageError(
            f"it changes and sends {size} bytes, beyond the limit of {OUTCOME_BYTES_MAX}; take smaller steps"
        )
        if raising:
            raise error
        return Outcome(failures=[failure_of(0, error)], done=0 if stop_at_failure else 1)

    def _run(self, work: Work, rows: RowsOf, rules: _Rules) -> Outcome:
        topologies = self._functions.topologies
        topology = topologies.get(work.topology)
        if topology is None:
            raise UsageError(
                f"there is no topology {work.topology}; {did_you_mean(work.topology, topologies)}"
            )
        run, bound = self.bind(work.topology, rows)
        batch = _Batch(work.topology, run, bound, self._functions.steps, rules)
        match work:
            case Records(records=records):
                return batch.outcome(len(records), partial(batch.run_records, topology.signature, records))
            case Calls(calls=calls):
                return batch.outcome(len(calls), partial(batch.run_calls, calls))

    def query(self, name: str, args: bytes, rows: RowsOf, *, raising: bool = False) -> Answer:
        """Run a query's function on this task; ``args`` is MessagePack of a tuple."""
        query = self._query(name)

        def asked(bound: Module) -> Any:
            return query.signature.function(bound, *query.signature.decode(args))

        return self._answer(name, rows, asked, raising=raising)

    def arguments(self, name: str, given: bytes) -> bytes:
        """Convert what a query is asked with, MessagePack of a list and a map, to what :meth:`query` takes.

        Raises UsageError for arguments that it does not take.
        """
        args, named = _decode_given(given)
        try:
            return _msgpack(self._query(name).signature.arguments(args, named))
        except TypeError as error:
            raise UsageError(str(error)) from None

    def combine(self, name: str, args: bytes, parts: Sequence[bytes], *, raising: bool = False) -> Answer:
        """Combine what a query without a key returned on every task, in their order, to its answer."""
        query = self._query(name)

        def combined(bound: Module) -> Any:
            if query.combination is None or query.parts is None:
                return [msgspec.Raw(part) for part in parts]
            decoded = [query.parts.decode(part) for part in parts]
            return query.combination(bound, decoded, *query.signature.decode(args))

        return self._answer(name, None, combined, raising=raising)

    def _query(self, name: str) -> CheckedQuery:
        found = self._functions.queries.get(name)
        if found is None:
            raise UsageError(f"there is no query {name}; {did_you_mean(name, self._functions.queries)}")
        return found

    def _answer(
        self, name: str, rows: RowsOf | None, function: Callable[[Module], Any], *, raising: bool
    ) -> Answer:
        _, bound = self.bind(name, rows, hops=False, key=self._query(name).declared.key)
        try:
            return Answer(_msgpack(function(bound)))
        except _RAISED as error:
            if raising:
                raise
            return Answer(failure=failure_of(0, error))

    def bind(
        self, what: str, rows: RowsOf | None, *, hops: bool = True, key: str | None = None
    ) -> tuple[Run, Module]:
        """Return a new run, and the module's instance for it; ``what`` is the topology or query."""
        run = Run(
            what=what,
            task=self._task,
            tasks=self._tasks,
            roots=self._roots,
            writers=self._functions.writers,
            steps=self._functions.steps if hops else None,
            rows=rows,
            key=key,
        )
        bound = object.__new__(self._module)
        bound.__dict__.update({RUN: run, "task": self._task, "tasks": self._tasks})
        return run, bound


class Times:
    """How long the calls of one function took in one run."""

    __slots__ = ("_quick", "_quick_ns", "_slow_ns")

    def __init__(self) -> None:
        self._quick = 0
        self._quick_ns = 0
        self._slow_ns: list[int] = []

    def until_now(self, began_ns: int) -> int:
        """Note a call that ends now; return the current time."""
        now = perf_counter_ns()
        taken = now - began_ns
        if taken > SLOW_NS:
            self._slow_ns.append(taken)
        else:
            self._quick += 1
            self._quick_ns += taken
        return now

    def told(self, function: str) -> Timed:
        """Return the times as they are reported."""
        return Timed(function, self._quick, self._quick_ns, tuple(self._slow_ns))


class _Batch:
    """One run of a topology."""

    def __init__(
        self,
        topology: str,
        run: Run,
        bound: Module,
        steps: Mapping[str, StepSignature],
        rules: _Rules,
    ) -> None:
        self._topology = topology
        self._run = run
        self._bound = bound
        self._steps = steps
        self._stop_at_failure = rules.stop_at_failure
        self._skip = rules.skip
        self._raising = rules.raising
        self._results: list[tuple[int, bytes]] = []
        self._failures: list[Failure] = []
        self._times: dict[str, Times] = {}

    def outcome(self, count: int, everything: Callable[[], None]) -> Outcome:
        """Call ``everything``, which runs ``count`` records or calls, and return what it did."""
        try:
            everything()
            done = count
        except _Stop as stop:
            done = stop.index
        changes = {name: editor.changes() for name, editor in self._run.editors.items()}
        return Outcome(
            changes={name: changed for name, changed in changes.items() if changed},
            hops={task: calls for task, calls in self._run.hops.items() if calls},
            results=self._results,
            failures=sorted(self._failures, key=lambda failure: failure.index),
            done=done,
            times=tuple(times.told(function) for function, times in self._times.items()),
        )

    def _times_of(self, function: str) -> Times:
        return self._times.get(function) or self._times.setdefault(function, Times())

    def run_records(self, signature: RecordSignature, records: Sequence[Buffer]) -> None:
        if signature.batch:
            self._run_many(self._topology, signature, self._given(range(len(records)), records))
            return
        run, bound, skip = self._run, self._bound, self._skip
        decode, function, times = signature.decode, signature.function, self._times_of(self._topology)
        began = perf_counter_ns()
        for index, record in enumerate(records):
            if index in skip:
                continue
            run.origin = index
            try:
                result = function(bound, decode(record))
                if run.pending:
                    self._run_pending()
                if result is not None:
                    self._results.append((index, _json(result)))
            except _RAISED as error:
                self._fail(error)
            run.undo.clear()
            began = times.until_now(began)

    def run_calls(self, calls: Sequence[StepCall]) -> None:
        at = 0
        while at < len(calls):
            signature = self._steps.get(calls[at].step)
            if signature is not None and signature.batch:
                end = at + 1
                while end < len(calls) and calls[end].step == calls[at].step:
                    end += 1
                indexes = range(at, end)
                given = self._given(indexes, [calls[index].args for index in indexes])
                if given.indexes:
                    self._run_many(calls[at].step, signature, given)
                at = end
            else:
                at = self._run_each(calls, at)

    def _run_each(self, calls: Sequence[StepCall], at: int) -> int:
        """Run calls from ``at`` on one by one; return the index of the first whose step takes a batch."""
        run, bound, skip, steps = self._run, self._bound, self._skip, self._steps
        began = perf_counter_ns()
        for index, call in enumerate(calls[at:] if at else calls, at):
            signature = steps.get(call.step)
            if signature is not None and signature.batch:
                return index
            if index in skip:
                continue
            run.origin = index
            try:
                if signature is None:
                    raise UsageError(f"there is no step {call.step}; {did_you_mean(call.step, steps)}")
                signature.function(bound, *signature.decode(call.args))
                if run.pending:
                    self._run_pending()
            except _RAISED as error:
                self._fail(error)
            run.undo.clear()
            began = self._times_of(call.step).until_now(began)
        return len(calls)

    def _run_pending(self) -> None:
        """Run the steps on this task that the current unit led to, and those they lead to, in order."""
        pending, bound = self._run.pending, self._bound
        start = 0
        while start < len(pending):
            group: StepSignature | None = None
            many: list[tuple[Any, ...]] = []
            # Those that are added meanwhile are visited, too.
            for function, batched, args in islice(pending, start, None):
                if len(pending) > STEPS_MAX:
                    raise UsageError(
                        f"it leads to more than {STEPS_MAX} steps on its own task, the last of them "
                        f"{function.__name__}; does that lead to itself for ever?"
                    )
                if many and batched is not group:
                    _call_many(bound, group, many)
                    many = []
                if batched is None:
                    function(bound, *args)
                else:
                    group = batched
                    many.append(args)
            start = len(pending)
            if many:
                _call_many(bound, group, many)
        pending.clear()

    def _given(self, indexes: range, data: Sequence[Any]) -> _Given:
        """Return the records or calls to run, without those that are skipped."""
        if self._skip == ():
            return _Given(indexes, data)
        wanted = [at for at, index in enumerate(indexes) if index not in self._skip]
        return _Given([indexes[at] for at in wanted], [data[at] for at in wanted])

    def _run_many(self, name: str, signature: RecordSignature | StepSignature, given: _Given) -> None:
        """Run all of these at once, except those that cannot be decoded, which fail."""
        undecoded: list[tuple[int, UsageError]] = []
        try:
            values = list(map(signature.decode_fast, given.data))
        except (msgspec.MsgspecError, ValueError):
            given, values, undecoded = self._decoded(signature, given)
        if values:
            began = perf_counter_ns()
            self._run_at_once(signature, given, values)
            self._times_of(name).until_now(began)
        for index, refused in undecoded:
            self._run.origin = index
            self._fail(refused)

    def _decoded(
        self, signature: RecordSignature | StepSignature, given: _Given
    ) -> tuple[_Given, list[Any], list[tuple[int, UsageError]]]:
        """Return what can be decoded, and why the rest cannot."""
        indexes, data, values = [], [], []
        undecoded = []
        for index, each in zip(given.indexes, given.data, strict=True):
            try:
                values.append(signature.decode(each))
            except UsageError as error:
                undecoded.append((index, error))
                if self._stop_at_failure:
                    break
            else:
                indexes.append(index)
                data.append(each)
        return _Given(indexes, data), values, undecoded

    def _run_at_once(
        self, signature: RecordSignature | StepSignature, given: _Given, values: list[Any]
    ) -> None:
        self._run.origin = given.indexes[0]
        count = len(values)
        try:
            returned = signature.function(self._bound, values)
            if self._run.pending:
                self._run_pending()
            if returned is not None and isinstance(signature, RecordSignature):
                self._results += _results(returned, given.indexes)
        except _RAISED as error:
            if count == 1 or self._raising:
                self._fail(error)
            else:
                self._run.take_back()
                # The function may have changed what it was given.
                for index, data in zip(given.indexes, given.data, strict=True):
                    self._run_at_once(signature, _Given([index], [data]), [signature.decode(data)])
        self._run.undo.clear()

    def _fail(self, error: BaseException) -> None:
        if self._raising:
            raise error
        index = self._run.origin
        self._run.take_back()
        self._failures.append(failure_of(index, error))
        if self._stop_at_failure:
            raise _Stop(index)


def _call_many(bound: Module, signature: StepSignature | None, many: list[tuple[Any, ...]]) -> None:
    present(signature, "the step of calls that were gathered").function(bound, many)


def _size(outcome: Outcome) -> int:
    """Return about how many bytes the changes and hops of an outcome take."""
    size = 0
    for changes in outcome.changes.values():
        size += sum(map(len, changes.deletes)) + sum(len(low) + len(high) for low, high in changes.ranges)
        size += sum([len(key) + len(value) for key, value in changes.puts]) + 8 * len(changes.puts)
    for calls in outcome.hops.values():
        size += sum([len(call.step) + len(call.args) for call in calls]) + 16 * len(calls)
    return size


def _results(returned: Any, indexes: Sequence[int]) -> list[tuple[int, bytes]]:
    if not isinstance(returned, list | tuple) or len(returned) != len(indexes):
        raise UsageError(
            f"with batch a function returns None, or a list with a result for each of {len(indexes)} records"
        )
    given = zip(indexes, returned, strict=True)
    return [(index, _json(result)) for index, result in given if result is not None]


def failure_of(index: int, error: BaseException) -> Failure:
    """Return what a person's function raised as a failure that can be shown to them."""
    try:
        sentence = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - theirs as well
        sentence = "its text cannot be made"
    if not isinstance(error, StrettoError):
        sentence = f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__
    if len(sentence) > _ERROR_CHARACTERS_MAX:
        sentence = sentence[: _ERROR_CHARACTERS_MAX - 3] + "..."
    return Failure(index, sentence, trimmed(error))
