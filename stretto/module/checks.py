"""What the functions of a module may be, checked when the class statement runs; errors name the line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import msgspec

from stretto.errors import DeclarationError, UsageError
from stretto.module import signatures
from stretto.module.declaration import Declaration, Place
from stretto.module.fields import fields_of
from stretto.module.functions import RETRIES, Function, Query, Step, Topology
from stretto.module.reach import Reach, reach
from stretto.module.signatures import RecordSignature, StepSignature
from stretto.vocabulary.suggest import did_you_mean

if TYPE_CHECKING:
    from stretto.module.module import Depot, PState

RESERVED = frozenset({"task", "tasks"})
"""Names that ``self`` has in every module, so that no declaration may have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTopology:
    """A topology after the checks, with what is needed to run it."""

    declared: Topology
    depots: tuple[str, ...]
    steps: frozenset[str]
    """Steps that the topology hops to, directly or through others."""
    writes: tuple[str, ...]
    signature: RecordSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedQuery:
    """A query after the checks, with what is needed to run it."""

    declared: Query[Any, Any]
    signature: StepSignature
    combination: FunctionType | None
    parts: msgspec.msgpack.Decoder[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """All functions of a module, after the checks."""

    topologies: Mapping[str, CheckedTopology]
    steps: Mapping[str, StepSignature]
    queries: Mapping[str, CheckedQuery]
    writers: Mapping[str, str]
    """The topology that writes each PState, by name of the PState."""


def check_functions(module: type, declared: Mapping[str, Declaration], names: Mapping[str, Any]) -> Functions:
    """Check all functions of a module; raises DeclarationError.

    ``names`` is where annotations are looked up first.
    """
    return _Checks(module, declared, names).functions()


class _Checks:
    def __init__(self, module: type, declared: Mapping[str, Declaration], names: Mapping[str, Any]) -> None:
        from stretto.module.module import Depot, PState  # noqa: PLC0415 - it imports this

        self._module = module
        self._names = {
            **names,
            **{name: each for name, each in vars(module).items() if isinstance(each, type)},
        }
        self._depots = {name: each for name, each in declared.items() if isinstance(each, Depot)}
        self._pstates = {name: each for name, each in declared.items() if isinstance(each, PState)}
        self._topologies = {name: each for name, each in declared.items() if isinstance(each, Topology)}
        self._steps = {name: each for name, each in declared.items() if isinstance(each, Step)}
        self._queries = {name: each for name, each in declared.items() if isinstance(each, Query)}

    def functions(self) -> Functions:
        steps = {
            name: self._signed(
                name,
                each,
                lambda each=each: signatures.of_calls(  # type: ignore[misc]
                    each.function, self._names, batch=each.batch
                ),
            )
            for name, each in self._steps.items()
        }
        topologies = {name: self._topology(name, each) for name, each in self._topologies.items()}
        for name, depot in self._depots.items():
            self._check_fields(name, depot, topologies)
        queries = {name: self._query(name, each) for name, each in self._queries.items()}
        reached = set().union(*(each.steps for each in topologies.values()))
        for name, step in self._steps.items():
            if name not in reached:
                raise self._refused(
                    name,
                    step.place,
                    f"no topology hops to this step; hop to it as self.{name}.at(key)(...), or delete it",
                )
        return Functions(
            topologies=topologies, steps=steps, queries=queries, writers=self._writers(topologies)
        )

    def _topology(self, name: str, topology: Topology) -> CheckedTopology:
        depots = tuple(self._depot(name, topology, each) for each in topology.depots)
        if not depots:
            raise self._refused(
                name,
                topology.place,
                f"say whose records it takes: @{topology.kind}(depot), with a Depot of the module",
            )
        if len(set(depots)) < len(depots):
            raise self._refused(name, topology.place, "it names a depot twice; once is enough")
        if topology.retry not in RETRIES:
            raise self._refused(
                name,
                topology.place,
                f"retry is one of {', '.join(map(repr, RETRIES))}; it is {topology.retry!r}",
            )
        signature = self._signed(
            name,
            topology,
            lambda: signatures.of_records(topology.function, self._names, batch=topology.batch),
        )
        found = self._reach(topology.function)
        for pstate in topology.writes:
            found.writes.setdefault(self._pstate(name, topology, pstate), topology.function.__name__)
        return CheckedTopology(
            declared=topology,
            depots=depots,
            steps=frozenset(found.steps),
            writes=tuple(sorted(found.writes)),
            signature=signature,
        )

    def _check_fields(self, name: str, depot: Depot[Any], topologies: Mapping[str, CheckedTopology]) -> None:
        """Check that records have the fields they are partitioned by, if a type says which they have.

        One function may look at other fields than another; so a field is missed only where none has it.
        """
        by = depot.spec.partition_by
        takers = {of: each.signature.annotation for of, each in topologies.items() if name in each.depots}
        declared = {"the Depot": depot.annotation} if depot.annotation is not Any else takers
        found = [fields_of(annotation) for annotation in declared.values()]
        known = [fields for fields in found if fields is not None]
        if by is None or not known or len(known) < len(found):
            return
        fields = frozenset().union(*known)
        for field in (by,) if isinstance(by, str) else by:
            if field not in fields:
                types = ", ".join(f"{of} says {signatures.named(each)}" for of, each in declared.items())
                nearest = did_you_mean(field, fields) if fields else "such a record has none"
                why = f"it is partitioned by {field!r}, a field that its records do not have ({types})"
                raise self._refused(name, depot.place, f"{why}; {nearest}")

    def _query(self, name: str, query: Query[Any, Any]) -> CheckedQuery:
        signature = self._signed(
            name, query, lambda: signatures.of_calls(query.function, self._names, batch=False)
        )
        if query.key is not None and query.key not in signature.parameters:
            nearest = did_you_mean(str(query.key), signature.parameters)
            raise self._refused(name, query.place, f"it has no parameter {query.key!r} as its key; {nearest}")
        found = self._reach(query.function)
        if found.writes:
            pstate, where = next(iter(found.writes.items()))
            raise self._refused(
                name, query.place, f"a query only reads, and {where} changes {pstate}; let a topology do that"
            )
        if found.steps:
            raise self._refused(
                name,
                query.place,
                f"a query hops to no step, and this one does to {min(found.steps)}; return what it found",
            )
        parts = None
        combination = query.combination
        if combination is not None:
            place = Place(combination.__code__.co_filename, combination.__code__.co_firstlineno)
            if query.key is not None:
                raise self._refused(
                    name,
                    place,
                    "a query with a key has one answer, and nothing to combine; leave out one of them",
                )
            try:
                parts = signatures.of_parts(combination, self._names, signature)
            except UsageError as error:
                raise self._refused(combination.__name__, place, str(error)) from None
        return CheckedQuery(declared=query, signature=signature, combination=combination, parts=parts)

    def _writers(self, topologies: Mapping[str, CheckedTopology]) -> dict[str, str]:
        writers: dict[str, str] = {}
        for name, topology in topologies.items():
            for pstate in topology.writes:
                other = writers.setdefault(pstate, name)
                if other != name:
                    raise self._refused(
                        name,
                        topology.declared.place,
                        f"it writes PState {pstate}, and so does {other}; a PState has one writing topology: "
                        "give each its own, or let one topology take the records of both depots",
                    )
        return writers

    def _reach(self, function: FunctionType) -> Reach:
        steps = {name: step.function for name, step in self._steps.items()}
        return reach(function, self._module, steps, self._pstates)

    def _depot(self, name: str, topology: Topology, depot: Depot[Any]) -> str:
        given: object = depot
        if isinstance(given, Declaration) and given.name in self._depots and self._is_here(given):
            return given.name
        shown = given.name or repr(given) if isinstance(given, Declaration) else repr(given)
        raise self._refused(
            name, topology.place, f"{shown} is no Depot of this module; {did_you_mean(shown, self._depots)}"
        )

    def _pstate(self, name: str, topology: Topology, pstate: PState[Any]) -> str:
        given: object = pstate
        if isinstance(given, Declaration) and given.name in self._pstates and self._is_here(given):
            return given.name
        shown = given.name or repr(given) if isinstance(given, Declaration) else repr(given)
        raise self._refused(
            name,
            topology.place,
            f"writes names PStates of this module; {shown} is none; {did_you_mean(shown, self._pstates)}",
        )

    def _is_here(self, declared: Declaration) -> bool:
        """Whether the module or a base declares this, also if a class puts another in its place."""
        return declared.owner in self._module.__mro__

    def _signed(self, name: str, function: Function, found: Callable[[], Any]) -> Any:
        try:
            return found()
        except UsageError as error:
            raise self._refused(name, function.place, str(error)) from None

    def _refused(self, name: str, place: Place, why: str) -> DeclarationError:
        return DeclarationError(f"{place}: {self._module.__name__}.{name}: {why}")
