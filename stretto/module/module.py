"""The module API: a module is a class whose attributes declare what it is made of::

    class WordCount(Module):
        sentences = Depot(partition_by="user")
        counts = PState(dict[str, int])

        @stream(sentences)
        def split(self, sentence: Sentence) -> None:
            for word in sentence.text.split():
                self.count.at(word)(word)

        @step
        def count(self, word: str) -> None:
            self.counts.increment(word)

The declarations are gathered and checked when the class statement runs, so that a module that loads is sound,
and an error names class, attribute and line. A module is called like its class, unless the class statement
says otherwise: ``class WordCount(Module, name="word-count")``. What it declares is kept apart from its
attributes (:func:`declarations`), so that no name is taken from the person who writes one.
"""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Generic, NoReturn, TypeAlias, TypeVar, overload

from stretto.errors import DeclarationError, UsageError
from stretto.module.bound import run_of
from stretto.module.checks import RESERVED, Functions, check_functions
from stretto.module.declaration import Declaration, Place, class_statement, place_outside
from stretto.module.functions import Function
from stretto.module.partition import Custom, Global, HashBy, Random
from stretto.module.signatures import check_decodable
from stretto.pstate.edit import Editor
from stretto.pstate.tree import Entries, Members, compile_type
from stretto.pstate.types import Type, describe
from stretto.specs.modules import DepotSpec
from stretto.vocabulary.types import TaskId

T = TypeVar("T")
R = TypeVar("R")

By: TypeAlias = str | HashBy | Global | Random | Custom | None
"""What chooses the task of a record: a field, several, a function, or a rule for all records."""

OBJECTS_MAX = 1_000
"""How many depots and PStates a module may have: each is a database in the LMDB file of every task."""

NAME_CHARACTERS_MAX = 100
"""How long a name may be: it becomes a part of znodes, of file names and of workers' ids."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


class Depot(Declaration, Generic[R]):
    """An append-only, partitioned log of records: what goes into a module.

    ``Depot(Order, partition_by="customer")`` says what a record is, and type checkers check what is appended;
    without a type it is anything that JSON can say. ``partition_by`` names the field of a record whose
    value chooses the task, so that records that agree in it stay in order. It may also be ``hash_by("one",
    "more")``, ``GLOBAL`` (task 0 has them all, in one order), or a function of a record and the number of
    tasks; see :mod:`stretto.module.partition`. Without it, or with ``RANDOM``, any task will do: batches go
    to the tasks in turn."""

    @overload
    def __init__(self: Depot[Any], /, *, partition_by: By = None) -> None: ...
    @overload
    def __init__(self, annotation: builtins.type[R], /, *, partition_by: By = None) -> None: ...
    @overload
    def __init__(self: Depot[Any], annotation: UnionType, /, *, partition_by: By = None) -> None: ...
    def __init__(self, annotation: Any = Any, /, *, partition_by: By = None) -> None:
        super().__init__()
        self.annotation = annotation
        self.partition_by = partition_by

    def __get__(self, instance: object | None, owner: builtins.type) -> Depot[R]:
        """Return the depot of the class that is asked: a subclass has a depot of its own by the same name."""
        if self.owner is None or owner is self.owner or instance is not None:
            return self
        inherited = copy(self)
        inherited.owner = owner
        return inherited

    @property
    def custom(self) -> Custom | None:
        """The function that chooses tasks, if one does."""
        by = self.partition_by
        return by if callable(by) else None

    @property
    def spec(self) -> DepotSpec:
        """The depot as data, for the cluster and its clients; a function that chooses tasks is not in it."""
        match self.partition_by:
            case None | Random():
                return DepotSpec(name=self.name)
            case str() as field:
                return DepotSpec(name=self.name, partition_by=field)
            case HashBy(fields=fields):
                return DepotSpec(name=self.name, partition_by=fields)
            case Global():
                return DepotSpec(name=self.name, rule="global")
            case _:
                return DepotSpec(name=self.name, rule="custom")

    def __repr__(self) -> str:
        of = "" if self.annotation is Any else f"{getattr(self.annotation, '__name__', self.annotation)}, "
        return f"Depot({of}partition_by={self.partition_by!r})"


class PState(Declaration, Generic[T]):
    """A partitioned, durable, indexed data structure: what comes out of a module.

    Its type is written as an annotation: ``PState(dict[str, dict[date, int]])``. It is a dict or a set, whose
    keys choose the task. A dict, set or list inside it is indexed as well: one entry can be read and
    changed however many there are. See :mod:`stretto.pstate.tree`.
    """

    def __init__(self, annotation: type[T], /) -> None:
        super().__init__()
        self.annotation = annotation

    @overload
    def __get__(self, instance: None, owner: builtins.type) -> PState[T]: ...
    @overload
    def __get__(self, instance: object, owner: builtins.type) -> Editor: ...
    def __get__(self, instance: object | None, owner: builtins.type) -> PState[T] | Editor:
        """Return the task's part, in a function of the module; the PState itself elsewhere."""
        return self if instance is None else run_of(instance).pstate(self.name, instance)

    @cached_property
    def type(self) -> Type:
        """The type of this PState as data. Raises UsageError for what no PState can be."""
        described = describe(self.annotation)
        compile_type(described, self.annotation)
        return described

    @cached_property
    def root(self) -> Entries | Members:
        """How paths lead to rows and rows become values, which are of the author's own classes."""
        return compile_type(self.type, self.annotation)

    def __repr__(self) -> str:
        return f"PState({self.annotation!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """All that a module declares, after the checks."""

    name: str
    depots: Mapping[str, Depot[Any]]
    pstates: Mapping[str, PState[Any]]
    functions: Functions


class Module:
    """Base class of every module. Each function runs on one task, and ``self`` is the module on that task."""

    __declarations__: ClassVar[Declarations]

    task: TaskId
    """The task that runs the current function."""
    tasks: int
    """The number of tasks of the module."""

    def __init_subclass__(cls, *, name: str | None = None, **others: object) -> None:
        super().__init_subclass__(**others)
        cls.__declarations__ = _declare(cls, cls.__name__ if name is None else name)

    def __init__(self) -> None:
        raise UsageError(
            f"{type(self).__name__} is not made by hand, but on every task that runs it; "
            f"try it with stretto.testing.module({type(self).__name__})"
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise UsageError(
            f"{type(self).__name__} keeps nothing in attributes, and {name!r} would be lost; use a PState"
        )


def declarations(module: type[Module]) -> Declarations:
    """Return what a module declares, its bases included."""
    return module.__declarations__


def check_module_name(name: str) -> str:
    """Return the name if a module may have it; raise UsageError otherwise."""
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
        raise UsageError(
            f"a module cannot be called {name!r}: begin with a letter, go on with letters, digits, '_', '-' "
            f"and '.', and stop at {NAME_CHARACTERS_MAX} characters"
        )
    if name == "zookeeper":
        raise UsageError("a module cannot be called 'zookeeper', which ZooKeeper keeps for itself")
    return name


def _declare(module: type[Module], name: str) -> Declarations:
    statement = class_statement(module)
    here = Place(statement.f_code.co_filename, statement.f_lineno) if statement else place_outside()
    try:
        check_module_name(name)
    except UsageError as error:
        raise DeclarationError(f"{here}: {module.__name__}: {error}") from None
    declared: dict[str, Declaration] = {}
    for base in reversed(module.__mro__):
        for attribute, value in vars(base).items():
            if isinstance(value, Declaration):
                _check(module, attribute, value, declared, here)
                declared[attribute] = value
            else:
                declared.pop(attribute, None)
                if isinstance(value, type) and issubclass(value, Declaration):
                    why = f"{value.__name__} is the class; declare with {value.__name__}(...)"
                    raise DeclarationError(f"{here}: {module.__name__}.{attribute}: {why}")
    depots = {name: each for name, each in declared.items() if isinstance(each, Depot)}
    pstates = {name: each for name, each in declared.items() if isinstance(each, PState)}
    count = len(depots) + len(pstates)
    if count > OBJECTS_MAX:
        raise DeclarationError(
            f"{here}: {module.__name__}: {count} depots and PStates are beyond the limit of "
            f"{OBJECTS_MAX}; gather records of several kinds in one"
        )
    for unusable in ("__init__", "__new__"):
        if any(unusable in vars(base) for base in module.__mro__ if base not in (Module, object)):
            raise DeclarationError(
                f"{here}: {module.__name__}: a module has no {unusable}: it is made anew for every batch, on "
                "every task; keep what lasts in a PState"
            )
    return Declarations(
        name=name,
        depots=MappingProxyType(depots),
        pstates=MappingProxyType(pstates),
        functions=check_functions(module, declared, statement.f_locals if statement else {}),
    )


def _check(
    module: type[Module],
    attribute: str,
    declared: Declaration,
    others: Mapping[str, Declaration],
    here: Place,
) -> None:
    def refuse(why: str) -> DeclarationError:
        return DeclarationError(f"{declared.place}: {module.__name__}.{attribute}: {why}")

    is_function = isinstance(declared, Function)
    kind = type(declared).__name__.lower() if is_function else type(declared).__name__
    if not _ATTRIBUTE.fullmatch(attribute) or len(attribute) > NAME_CHARACTERS_MAX:
        raise refuse(
            f"the name of a {kind} begins with a letter and goes on with letters, digits and '_', "
            f"{NAME_CHARACTERS_MAX} at most"
        )
    if attribute in RESERVED:
        raise refuse(f"self.{attribute} is something else in every module; choose another name")
    if attribute == "zookeeper":
        raise refuse("this name is ZooKeeper's own; choose another")
    for name, other in others.items():
        if other is declared and name != attribute:
            own = "a function" if is_function else f"a {kind}(...)"
            raise refuse(f"this is the same {kind} as {name!r}; give each {own} of its own")
    owner = declared.owner
    if not is_function and owner is not None and (owner not in module.__mro__ or declared.name != attribute):
        raise DeclarationError(
            f"{here}: {module.__name__}.{attribute}: this is {kind} {declared.name} of {owner.__name__}, "
            f"whose data stays there; here it would be another one, with nothing in it: declare a "
            f"{kind}(...) of this module's own, or use that of {owner.__name__} from outside, with a client"
        )
    try:
        if isinstance(declared, Depot):
            _check_annotation(declared.annotation)
        if isinstance(declared, PState):
            declared.type  # noqa: B018 - raises
    except UsageError as error:
        raise refuse(str(error)) from None
    if isinstance(declared, Depot) and not _is_partitioning(declared.partition_by):
        raise refuse(
            "partition_by names a field of the records, as text, or is hash_by(...), GLOBAL, RANDOM, a "
            f"function that takes a record and the number of tasks, or None; it is {declared.partition_by!r}"
        )


def _check_annotation(annotation: object) -> None:
    if isinstance(annotation, str):
        raise UsageError(f"{annotation!r} is no type of its records; say partition_by={annotation!r}")
    if annotation is not bytes:
        check_decodable([annotation])


def _is_partitioning(by: object) -> bool:
    if by is None or isinstance(by, Global | Random):
        return True
    if isinstance(by, HashBy):
        fields: tuple[object, ...] = by.fields
        return bool(fields) and all(isinstance(field, str) and field for field in fields)
    if not callable(by):
        return isinstance(by, str) and bool(by)
    try:
        inspect.signature(by).bind(None, 1)
    except (TypeError, ValueError):
        return False
    return True
