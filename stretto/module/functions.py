"""The decorators that make a function part of a module, and what they make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from stretto.errors import DeclarationError
from stretto.module.bound import BoundStep, run_of
from stretto.module.declaration import Declaration, Place, place_outside

if TYPE_CHECKING:
    from stretto.module.module import Depot, PState

M = TypeVar("M")
R = TypeVar("R")
P = ParamSpec("P")

Kind: TypeAlias = Literal["stream", "microbatch"]
"""How a topology takes its records."""
Retry: TypeAlias = Literal["individual", "all-after", "none"]
"""What a record that fails does to others; see :func:`stream`."""

RETRIES: tuple[Retry, ...] = ("individual", "all-after", "none")


class Function(Declaration):
    """A function of a module that a decorator has made a topology, a step or a query."""

    def __init__(self, function: Callable[..., Any], decorator: str) -> None:
        given: object = function
        if not isinstance(given, FunctionType):
            place = place_outside()
            raise DeclarationError(
                f"{place}: @{decorator} stands above a function of the module, not above {function!r}; "
                "if there are other decorators, make it the topmost"
            )
        super().__init__(Place(given.__code__.co_filename, given.__code__.co_firstlineno))
        self.function: FunctionType = given


class Topology(Function):
    """A function that takes the records of depots: what ``@stream`` and ``@microbatch`` make."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: Kind,
        depots: Sequence[Depot[Any]],
        *,
        retry: Retry = "individual",
        batch: bool = False,
        writes: Sequence[PState[Any]] = (),
    ) -> None:
        super().__init__(function, kind)
        self.kind: Kind = kind
        self.depots = tuple(depots)
        self.retry: Retry = retry
        self.batch = batch
        self.writes = tuple(writes)


class Step(Function, Generic[P]):
    """A function that topologies hop to: what ``@step`` makes.

    In a function of the module, ``self.the_step.at(key)`` says where it runs.
    """

    def __init__(self, function: Callable[..., Any], *, batch: bool = False) -> None:
        super().__init__(function, "step")
        self.batch = batch

    @overload
    def __get__(self, instance: None, owner: type) -> Step[P]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> BoundStep[P]: ...
    def __get__(self, instance: object | None, owner: type) -> Step[P] | BoundStep[P]:
        if instance is None:
            return self
        return run_of(instance).step(self.name, instance)


class Query(Function, Generic[P, R]):
    """A function that answers a question from the PStates of a task: what ``@query`` makes.

    With ``key``, the name of a parameter, it runs on the task that owns the argument. Without, it runs on
    every task, and the answer is the list of what each of them returned, or what ``combine`` makes of it.
    """

    def __init__(self, function: Callable[..., Any], *, key: str | None = None) -> None:
        super().__init__(function, "query")
        self.key = key
        self.combination: FunctionType | None = None

    def combine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make the decorated function combine the answers of all tasks into one.

        It takes the list of parts, in the order of their tasks, and the query's arguments.
        """
        given: object = function
        if not isinstance(given, FunctionType):
            raise DeclarationError(
                f"{place_outside()}: @{self.function.__name__}.combine stands above a function"
            )
        self.combination = given
        return function


def stream(
    *depots: Depot[Any],
    retry: Retry = "individual",
    batch: bool = False,
    writes: Sequence[PState[Any]] = (),
) -> Callable[[Callable[[M, Any], object]], Topology]:
    """Run the function for each record of these depots, soon after it was appended.

    What it changes happens once, wherever it hops to; a record that fails elsewhere is run again whole.

    ``retry`` says what a record that fails does to others: nothing (``individual``), those behind it wait
    (``all-after``), or it is not tried again (``none``). With ``batch`` the function takes a list of records.
    ``writes`` names PStates that it changes in a way its code does not show; see docs/build/topologies.md.
    """
    _refuse_functions("stream", depots)
    return lambda function: Topology(function, "stream", depots, retry=retry, batch=batch, writes=writes)


def microbatch(
    *depots: Depot[Any],
    batch: bool = False,
    writes: Sequence[PState[Any]] = (),
) -> Callable[[Callable[[M, Any], object]], Topology]:
    """Run the function for the records of these depots, many at a time on all tasks, exactly once."""
    _refuse_functions("microbatch", depots)
    return lambda function: Topology(function, "microbatch", depots, batch=batch, writes=writes)


def _refuse_functions(decorator: str, given: tuple[object, ...]) -> None:
    for each in given:
        if isinstance(each, FunctionType):
            place = Place(each.__code__.co_filename, each.__code__.co_firstlineno)
            raise DeclarationError(
                f"{place}: {each.__name__}: @{decorator} needs its depots: @{decorator}(depot)"
            )


@overload
def step(function: Callable[Concatenate[M, P], object], /) -> Step[P]: ...
@overload
def step(*, batch: Literal[False] = False) -> Callable[[Callable[Concatenate[M, P], object]], Step[P]]: ...
@overload
def step(*, batch: Literal[True]) -> Callable[[Callable[[M, Any], object]], Step[...]]: ...
def step(function: Any = None, /, *, batch: bool = False) -> Any:
    """Make the function a step, to which others hop on the task it belongs to: ``self.count.at(word)(word)``.

    With ``batch`` it takes a list of tuples, the arguments of many calls.
    """
    if function is None:
        return lambda function: Step(function, batch=batch)
    return Step(function, batch=batch)


@overload
def query(function: Callable[Concatenate[M, P], R], /) -> Query[P, R]: ...
@overload
def query(*, key: str | None = None) -> Callable[[Callable[Concatenate[M, P], R]], Query[P, R]]: ...
def query(function: Any = None, /, *, key: str | None = None) -> Any:
    """Make the function a query: clients ask it, it reads PStates, and nothing it does lasts.

    With ``key``, the name of a parameter, it runs on the task that owns the argument; without, on all tasks.
    """
    if function is None:
        return lambda function: Query(function, key=key)
    return Query(function, key=key)
