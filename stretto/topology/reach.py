"""Which steps a function hops to, and which PStates it writes, as its code says.

A PState has one writing topology, and which one that is has to be known before anything runs, on every task
alike. So the code of a topology's function is looked through, and that of whatever it names: steps, other
functions of the module, functions of the same file. ``self.count`` with ``count`` a step is a hop,
``self.counts.increment`` with ``counts`` a PState is a write. What hides from this (``getattr``, an editor
that is handed to a library) is refused when it runs, unless the decorator says ``writes=[...]``; so what is
known here holds in any case.
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType

CHANGING = frozenset({"set", "delete", "increment", "append", "truncate", "add", "discard"})
"""The methods of an Editor that change it."""


@dataclass(slots=True)
class Reach:
    """Of one function, and of all that it leads to."""

    steps: set[str] = field(default_factory=set)
    writes: dict[str, str] = field(default_factory=dict)
    """By PState, the name of a function that changes it."""


def reach(
    function: FunctionType, module: type, steps: dict[str, FunctionType], pstates: Collection[str]
) -> Reach:
    found = Reach()
    seen: set[FunctionType] = set()
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for name, following in _names(current.__code__):
            if name in pstates:
                if following in CHANGING:
                    found.writes.setdefault(name, current.__name__)
            elif name in steps:
                found.steps.add(name)
                waiting.append(steps[name])
            else:
                waiting.extend(_functions(name, current, module))
    return found


def _functions(name: str, user: FunctionType, module: type) -> Iterator[FunctionType]:
    """What a name may stand for: functions of the module, its bases included, and of the same file."""
    for base in module.__mro__:
        if base.__module__ != "stretto.module" and base is not object:
            value = vars(base).get(name)
            value = getattr(value, "fget", None) or getattr(value, "func", None) or value
            value = getattr(value, "__func__", value)
            if isinstance(value, FunctionType):
                yield value
    value = user.__globals__.get(name)
    if isinstance(value, FunctionType) and value.__module__ == user.__module__:
        yield value


def _names(code: CodeType) -> Iterator[tuple[str, str]]:
    """The names that code looks up, each with the attribute that is asked of it next, if any."""
    previous = ""
    for instruction in dis.get_instructions(code):
        attribute = instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER"))
        name = instruction.argval if isinstance(instruction.argval, str) else ""
        if previous:
            yield previous, name if attribute else ""
        previous = name if attribute or instruction.opname.startswith("LOAD_GLOBAL") else ""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
