"""The process that imports a person's code and reports to :mod:`stretto.artifact.describe` what it declares.

    python -P -m stretto.artifact.importing FOLDER MODULE NAME LABEL ANSWER

A traceback is trimmed to frames of the person's own files: how an import works is not their concern, and what
a library raised is shown by its last line.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from traceback import StackSummary, TracebackException
from types import ModuleType

import msgspec

from stretto.artifact.describe import Described, NotDescribed, Report
from stretto.control import ModuleManifest
from stretto.errors import DeclarationError, UsageError
from stretto.module.module import Module, declarations
from stretto.module.samples import sample_records
from stretto.module.signatures import StepSignature
from stretto.pstate.types import Type, describe, not_a_key
from stretto.specs.modules import PStateSpec, QuerySpec, TopologySpec
from stretto.vocabulary.suggest import did_you_mean


def main(folder: str, module: str, name: str, label: str, answer: str) -> None:
    """Import a module from ``folder``, write a report to the file ``answer``, and end the process."""
    sys.argv = [module]
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    report = _report(folder, module, name, label)
    path = Path(answer)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.encode(report))
    unfinished.rename(path)
    # Threads and exit handlers of the imported code have no say in when this ends.
    os._exit(0)


def _report(folder: str, module: str, name: str, label: str) -> Report:
    try:
        imported = importlib.import_module(module)
    except DeclarationError as error:
        return NotDescribed(str(error))
    except BaseException as error:  # noqa: BLE001 - sys.exit() and all else that code can do when imported
        what = type(error).__name__
        missing = isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0]
        if missing and missing not in sys.stdlib_module_names:
            why = (
                f"{label} imports {missing!r}, which is neither in its package nor installed; "
                "add it to the package or install it on every node"
            )
        else:
            why = f"{label} cannot be imported: it raises {what}; mend the line shown"
        return NotDescribed(why, _traceback(error, folder))
    return _described(imported, name, label)


def _described(imported: ModuleType, name: str, label: str) -> Report:
    modules = _modules(imported)
    if name:
        found = getattr(imported, name, None)
        if found is None:
            return NotDescribed(f"{label} has no class {name!r}; {did_you_mean(name, modules)}")
        if not isinstance(found, type) or not issubclass(found, Module) or found is Module:
            also = did_you_mean(name, modules)
            return NotDescribed(f"{name} in {label} is no module: it must derive from stretto.Module; {also}")
        chosen = found
    elif not modules:
        return NotDescribed(f"{label} defines no module; write a class that derives from stretto.Module")
    elif len(modules) > 1:
        listed = ", ".join(modules)
        return NotDescribed(f"{label} defines {listed}; say which, as {label}:{next(iter(modules))}")
    else:
        (chosen,) = modules.values()
    return Described(manifest(chosen, f"{imported.__name__}:{name or chosen.__name__}"))


def manifest(module: type[Module], entry: str) -> ModuleManifest:
    """Return what a module declares as data, to be sent to a cluster."""
    declared = declarations(module)
    functions = declared.functions
    return ModuleManifest(
        name=declared.name,
        entry=entry,
        depots=tuple(depot.spec for depot in declared.depots.values()),
        pstates=tuple(PStateSpec(name=name, type=pstate.type) for name, pstate in declared.pstates.items()),
        topologies=tuple(
            TopologySpec(
                name=name,
                kind=topology.declared.kind,
                depots=topology.depots,
                pstates=topology.writes,
                retry=topology.declared.retry,
                batch=topology.declared.batch,
            )
            for name, topology in functions.topologies.items()
        ),
        queries=tuple(
            QuerySpec(
                name=name,
                parameters=query.signature.parameters,
                key=query.declared.key,
                key_type=_key_type(query.signature, query.declared.key),
            )
            for name, query in functions.queries.items()
        ),
        samples=sample_records(declared.depots, functions.topologies),
    )


def _key_type(signature: StepSignature, key: str | None) -> Type | None:
    """Return the type of a query's key; None if no PState can have such keys.

    Then the argument chooses its task as it is.
    """
    if key is None:
        return None
    try:
        found = describe(signature.types[signature.parameters.index(key)])
    except UsageError:
        return None
    return found if not_a_key(found) is None else None


def _modules(imported: ModuleType) -> dict[str, type[Module]]:
    """Return the modules that a file defines, or imports from its own package, each by its first name."""
    own = imported.__name__.split(".")[0]
    found: dict[str, type[Module]] = {}
    for name, value in vars(imported).items():
        is_module = isinstance(value, type) and issubclass(value, Module) and value is not Module
        if is_module and value.__module__.split(".")[0] == own and value not in found.values():
            found[name] = value
    return found


def _traceback(error: BaseException, folder: str) -> str:
    told = TracebackException.from_exception(error)
    _trim(told, f"{folder}/", set())
    lines = told.format() if told.stack else told.format_exception_only()
    return "".join(lines).rstrip("\n")


def _trim(told: TracebackException, folder: str, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    told.stack = StackSummary.from_list([frame for frame in told.stack if frame.filename.startswith(folder)])
    others = [told.__cause__, told.__context__, *(told.exceptions or ())]
    for other in others:
        if other is not None:
            _trim(other, folder, seen)


if __name__ == "__main__":
    main(*sys.argv[1:])
