"""The module API: a module is a class whose attributes declare what it is made of::

    class WordCount(Module):
        sentences = Depot(partition_by="user")
        counts = PState(dict[str, int])

The declarations are gathered and checked when the class statement runs, so that a module that loads is sound,
and an error names class, attribute and line. A module is called like its class, unless the class statement
says otherwise: ``class WordCount(Module, name="word-count")``. What it declares is kept apart from its
attributes (:func:`declarations`), so that no name is taken from the person who writes one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from stretto.errors import DeclarationError, UsageError
from stretto.pstate.tree import compile_type
from stretto.pstate.types import Type, describe

T = TypeVar("T")

OBJECTS_MAX = 1_000
"""Depots and PStates: every task keeps each of them as a database of its LMDB file."""

NAME_CHARACTERS_MAX = 100
"""A name becomes a part of znodes, of file names and of workers' ids."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of somebody's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Declaration:
    """What a module is made of, and where that is written."""

    def __init__(self) -> None:
        self.place = _place_outside()


class Depot(Declaration):
    """An append-only, partitioned log of records: what goes into a module.

    ``partition_by`` names the field of a record whose value chooses the task, so that records that agree in
    it stay in order; see :mod:`stretto.partition`. Without it, batches go to the tasks in turn.
    """

    def __init__(self, *, partition_by: str | None = None) -> None:
        super().__init__()
        self.partition_by = partition_by

    def __repr__(self) -> str:
        return f"Depot(partition_by={self.partition_by!r})"


class PState(Declaration, Generic[T]):
    """A partitioned, durable, indexed data structure: what comes out of a module.

    Its type is written as an annotation: ``PState(dict[str, dict[date, int]])``. It is a dict or a set, whose
    keys choose the task. A dict, set or list inside it is indexed as well: one entry can be read and
    changed however many there are. See :mod:`stretto.pstate.tree`.
    """

    def __init__(self, annotation: type[T], /) -> None:
        super().__init__()
        self.annotation = annotation

    @cached_property
    def type(self) -> Type:
        """As data. Raises UsageError for what no PState can be."""
        described = describe(self.annotation)
        compile_type(described, self.annotation)
        return described

    def __repr__(self) -> str:
        return f"PState({self.annotation!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """All that a module declares, checked."""

    name: str
    depots: Mapping[str, Depot]
    pstates: Mapping[str, PState[Any]]


class Module:
    """Base of every module."""

    __declarations__: ClassVar[Declarations]

    def __init_subclass__(cls, *, name: str | None = None, **others: object) -> None:
        super().__init_subclass__(**others)
        cls.__declarations__ = _declare(cls, cls.__name__ if name is None else name)


def declarations(module: type[Module]) -> Declarations:
    """What a module declares itself, and what its bases do."""
    return module.__declarations__


def check_module_name(name: str) -> str:
    """The name, if a module may have it. Raises UsageError."""
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
    here = _place_of_class(module)
    try:
        check_module_name(name)
    except UsageError as error:
        raise DeclarationError(f"{here}: {module.__name__}: {error}") from None
    declared: dict[str, Depot | PState[Any]] = {}
    for base in reversed(module.__mro__):
        for attribute, value in vars(base).items():
            if isinstance(value, Depot | PState):
                _check(module, attribute, value, declared)
                declared[attribute] = value
            else:
                declared.pop(attribute, None)
                if isinstance(value, type) and issubclass(value, Declaration):
                    why = f"{value.__name__} is the class; declare with {value.__name__}(...)"
                    raise DeclarationError(f"{here}: {module.__name__}.{attribute}: {why}")
    if len(declared) > OBJECTS_MAX:
        raise DeclarationError(
            f"{here}: {module.__name__}: {len(declared)} depots and PStates are beyond the limit of "
            f"{OBJECTS_MAX}; gather records of several kinds in one"
        )
    depots = {name: each for name, each in declared.items() if isinstance(each, Depot)}
    pstates = {name: each for name, each in declared.items() if isinstance(each, PState)}
    return Declarations(name=name, depots=MappingProxyType(depots), pstates=MappingProxyType(pstates))


def _check(
    module: type[Module],
    attribute: str,
    declared: Depot | PState[Any],
    others: Mapping[str, Depot | PState[Any]],
) -> None:
    def refuse(why: str) -> DeclarationError:
        return DeclarationError(f"{declared.place}: {module.__name__}.{attribute}: {why}")

    kind = type(declared).__name__
    if not _ATTRIBUTE.fullmatch(attribute) or len(attribute) > NAME_CHARACTERS_MAX:
        raise refuse(
            f"the name of a {kind} begins with a letter and goes on with letters, digits and '_', "
            f"{NAME_CHARACTERS_MAX} at most"
        )
    if attribute == "zookeeper":
        raise refuse("this name is ZooKeeper's own; choose another")
    for name, other in others.items():
        if other is declared and name != attribute:
            raise refuse(f"this is the same {kind} as {name!r}; give each a {kind}(...) of its own")
    try:
        if isinstance(declared, PState):
            declared.type  # noqa: B018 - raises
    except UsageError as error:
        raise refuse(str(error)) from None
    field: object = getattr(declared, "partition_by", None)
    if field is not None and (not isinstance(field, str) or not field):
        raise refuse(f"partition_by names a field of the records, as text, or is None; it is {field!r}")


def _place_outside() -> Place:
    """Where this module was called from."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return Place("?", 0) if frame is None else Place(frame.f_code.co_filename, frame.f_lineno)


def _place_of_class(module: type[Module]) -> Place:
    """The class statement that is running now."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == module.__module__:
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return _place_outside()
