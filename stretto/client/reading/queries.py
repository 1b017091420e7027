"""Asking a module's queries: the one task that a key chooses, or one worker for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from stretto.client.asking.question import Question
from stretto.control import ModuleDescription
from stretto.errors import QueryFailed, RetriableError, UsageError
from stretto.module.partition import owner_of
from stretto.network.routing import Network
from stretto.pstate.types import python_type
from stretto.specs.modules import QuerySpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire

_encode = msgspec.msgpack.Encoder().encode


class Asking:
    """One query of a module with its arguments, ready to be asked."""

    def __init__(
        self,
        network: Network,
        module: str,
        description: ModuleDescription,
        name: str,
        *,
        args: Sequence[Any],
        named: Mapping[str, Any],
        timeout: float,
    ) -> None:
        """Prepare a query; raises UsageError if the module has none such or an argument cannot be sent."""
        self._network = network
        self._module = module
        self._name = name
        self._timeout = timeout
        spec = next((query for query in description.queries if query.name == name), None)
        if spec is None:
            known = [query.name for query in description.queries]
            raise UsageError(f"module {module} has no query {name}; {did_you_mean(name, known)}")
        try:
            self._given = _encode((list(args), dict(named)))
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"an argument of {name} cannot be sent: {error}") from None
        self._task = task_of(spec, args, named, description.tasks)

    def wait(self) -> Any:
        """Ask the query, and wait for its answer."""
        return self._result(self._question().begin())

    async def awaited(self) -> Any:
        """Ask the query for a coroutine; cancelling that cancels the request."""
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()

        def then(_: Question) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(answered.set)

        question = self._question(then).begin()
        try:
            await answered.wait()
        except asyncio.CancelledError:
            question.cancel()
            raise
        return self._result(question)

    def _question(self, then: Callable[[Question], None] | None = None) -> Question:
        timeout_ms = max(1, int(self._timeout * 1_000))

        def message(number: int, group: GroupKey) -> wire.ToWorker:
            return wire.RunQuery(number, group, self._name, self._task, timeout_ms)

        return Question(
            self._network,
            self._module,
            TaskId(0) if self._task is None else self._task,
            message,
            self._timeout,
            bodies=(self._given,),
            wait_ms=timeout_ms,
            then=then,
        )

    def _result(self, question: Question) -> Any:
        reply, bodies = question.wait()
        match reply:
            case wire.QueryAnswered():
                return msgspec.msgpack.decode(bodies[0])
            case wire.QueryFailed(error=error, traceback=traceback):
                raise QueryFailed(f"query {self._name} of {self._module} failed: {error}", traceback)
            case _:
                raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")


def argument(text: str) -> Any:
    """Return an argument that a person wrote: as JSON, or as text if it is no JSON."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def named_argument(text: str) -> tuple[str, Any]:
    """Return name and value of an argument that a person wrote as ``NAME=JSON``."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"a named argument is NAME=JSON, not {text!r}")
    return name, argument(value)


def task_of(spec: QuerySpec, args: Sequence[Any], named: Mapping[str, Any], tasks: int) -> TaskId | None:
    """Return the task that answers the query; None if all of them do."""
    if spec.key is None:
        return None
    if spec.key in named:
        return owner_of(_as_key(spec, named[spec.key]), tasks)
    at = spec.parameters.index(spec.key)
    if at >= len(args):
        raise UsageError(f"query {spec.name} needs {spec.key}, which chooses the task that answers")
    return owner_of(_as_key(spec, args[at]), tasks)


def _as_key(spec: QuerySpec, given: Any) -> Any:
    """Decode a key as the function gets it, such as a date that came as text, so that both use one task."""
    if spec.key_type is None:
        return given
    try:
        return msgspec.msgpack.decode(_encode(given), type=python_type(spec.key_type))
    except msgspec.MsgspecError:
        # The function refuses it, wherever it runs.
        return given
