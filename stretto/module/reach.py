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
from typing import Literal, NamedTuple

CHANGING = frozenset({"set", "delete", "increment", "append", "truncate", "add", "discard"})
"""The methods of an Editor that change it."""


@dataclass(slots=True)
class Reach:
    """The steps that a function hops to and the PStates that it writes, by itself or through others."""

    steps: set[str] = field(default_factory=set)
    writes: dict[str, str] = field(default_factory=dict)
    """The name of a function that changes a PState, by name of the PState."""


def reach(
    function: FunctionType, module: type, steps: dict[str, FunctionType], pstates: Collection[str]
) -> Reach:
    """Find the steps and PStates that a function reaches, by the code of it and of all that it names."""
    found = Reach()
    seen: set[FunctionType] = set()
    waiting = [(function, True)]
    while waiting:
        current, in_class = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        # Which name a function of the file gives to the module it is passed is not known.
        module_name = current.__code__.co_varnames[:1] if in_class else None
        for look in _looks(current.__code__, module_name):
            if look.of == "module" and look.name in pstates:
                if look.asked in CHANGING:
                    found.writes.setdefault(look.name, current.__name__)
            elif look.of == "module" and look.name in steps:
                found.steps.add(look.name)
                waiting.append((steps[look.name], True))
            elif look.of == "file":
                value = current.__globals__.get(look.name)
                if isinstance(value, FunctionType) and value.__module__ == current.__module__:
                    waiting.append((value, False))
            else:
                waiting.extend((each, True) for each in _functions(look.name, module))
    return found


def _functions(name: str, module: type) -> Iterator[FunctionType]:
    """Iterate over the functions that a name may mean in the module and its bases, properties included."""
    for base in module.__mro__:
        if base.__module__ != "stretto.module.module" and base is not object:
            value = vars(base).get(name)
            value = getattr(value, "fget", None) or getattr(value, "func", None) or value
            value = getattr(value, "__func__", value)
            if isinstance(value, FunctionType):
                yield value


class _Look(NamedTuple):
    """A name that code looks up, and where."""

    of: Literal["module", "file", "base"]
    name: str
    asked: str
    """The attribute of the found object that is looked up next, if any."""


def _looks(code: CodeType, module_name: tuple[str, ...] | None) -> Iterator[_Look]:
    instructions = list(dis.get_instructions(code))
    for before, at, after in zip(
        [None, *instructions], instructions, [*instructions[1:], None], strict=False
    ):
        if not isinstance(at.argval, str):
            continue
        asked = after.argval if after is not None and _is_attribute(after) else ""
        if at.opname.startswith("LOAD_GLOBAL"):
            yield _Look("file", at.argval, asked)
        elif at.opname.startswith("LOAD_SUPER"):
            yield _Look("base", at.argval, asked)
        elif _is_attribute(at) and before is not None:
            if "LOAD_FAST" in before.opname or "LOAD_DEREF" in before.opname:
                # Some load or store two at once.
                local = before.argval[-1] if isinstance(before.argval, tuple) else before.argval
                if module_name is None or local in module_name:
                    yield _Look("module", at.argval, asked)
            elif "super" in code.co_names:
                yield _Look("base", at.argval, asked)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _looks(constant, module_name)


def _is_attribute(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD"))
