"""Whether a module's new code may go on with the data of its old code: pure, and told in sentences.

What is stored stays as it is. So a declared object goes only with a word for it, a PState keeps its type but
for more fields with defaults, and a depot keeps its rule: its records lie where that has put them.
A topology is known by its name, and its progress goes with it. So one that is new, or comes back, begins with
the first record, and leaves alone what was written before it, by others or by its namesake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from stretto.control import ModuleManifest
from stretto.errors import UsageError
from stretto.pstate.types import incompatible
from stretto.specs.modules import DepotSpec, ModuleSpec, PStateSpec, TopologySpec
from stretto.vocabulary.suggest import did_you_mean

_KINDS: dict[type, str] = {DepotSpec: "depot", PStateSpec: "PState", TopologySpec: "topology"}


def check_update(spec: ModuleSpec, manifest: ModuleManifest, delete: Collection[str]) -> None:
    """Check that new code may go on with what is stored; raises UsageError with the first reason why not."""
    before, after = objects(spec), objects(manifest)
    for name in delete:
        if name not in before:
            raise UsageError(
                f"there is no depot, PState or topology {name} to delete; {did_you_mean(name, before)}"
            )
        if name in after:
            raise UsageError(
                f"{name} is to be deleted, and the new code declares it; take it out of the code, "
                "or leave out --delete"
            )
    for name, old in before.items():
        kind = _KINDS[type(old)]
        new = after.get(name)
        if new is None:
            if name not in delete:
                what = "progress" if isinstance(old, TopologySpec) else "data"
                raise UsageError(
                    f"the new code does not declare {kind} {name}, whose {what} would be lost; "
                    f"declare it, or add --delete {name}"
                )
        elif type(new) is not type(old):
            raise UsageError(
                f"{name} was a {kind} and is none in the new code; choose another name, or delete it first "
                "in an update of its own"
            )
    _check_deleted_microbatches(spec, delete)
    _check_depots(spec, manifest)
    _check_pstates(spec, manifest)
    _check_topologies(spec, manifest)


def _check_deleted_microbatches(spec: ModuleSpec, delete: Collection[str]) -> None:
    """Refuse to delete a microbatch topology of a module that is not paused.

    A module that is paused ends the microbatch that is under way, and begins no other.
    """
    for each in spec.topologies:
        if each.kind == "microbatch" and each.name in delete and not spec.is_paused:
            raise UsageError(
                f"a microbatch of {each.name} may be under way, and would be left half done; pause the "
                "module first, and update it once 'stretto module-status' shows that topology idle"
            )


def objects(declared: ModuleSpec | ModuleManifest) -> dict[str, DepotSpec | PStateSpec | TopologySpec]:
    """Declared objects that have data, by name: they are attributes of one class, and so all different."""
    found: dict[str, DepotSpec | PStateSpec | TopologySpec] = {}
    found |= {each.name: each for each in declared.depots}
    found |= {each.name: each for each in declared.pstates}
    return found | {each.name: each for each in declared.topologies}


def writers_of(declared: ModuleSpec | ModuleManifest, before: Mapping[str, str]) -> dict[str, str]:
    """The topology that writes each declared PState, or was the last to write it as ``before`` has it."""
    names = {each.name for each in declared.pstates}
    past = {pstate: writer for pstate, writer in before.items() if pstate in names}
    return past | {pstate: each.name for each in declared.topologies for pstate in each.pstates}


def depots_of(spec: ModuleSpec, manifest: ModuleManifest, version: int) -> tuple[DepotSpec, ...]:
    """The depots of the new code, each with the version of the code that it came with."""
    since = {each.name: each.since for each in spec.depots}
    return tuple(replace(each, since=since.get(each.name, version)) for each in manifest.depots)


def _check_depots(spec: ModuleSpec, manifest: ModuleManifest) -> None:
    before = {each.name: each for each in spec.depots}
    for new in manifest.depots:
        if new.name in before and new.declared != before[new.name].declared:
            raise UsageError(
                f"depot {new.name} has another partition_by in the new code, and what it holds lies where "
                "the old one put it; keep that, or declare another depot"
            )


def _check_pstates(spec: ModuleSpec, manifest: ModuleManifest) -> None:
    before = {each.name: each for each in spec.pstates}
    for new in manifest.pstates:
        why = incompatible(before[new.name].type, new.type) if new.name in before else None
        if why is not None:
            raise UsageError(
                f"PState {new.name} has another type in the new code, and what it holds could not be read "
                f"({why}); only fields with defaults may be added: keep the type, or declare another PState"
            )


def _check_topologies(spec: ModuleSpec, manifest: ModuleManifest) -> None:
    before = {each.name: each for each in spec.topologies}
    for new in manifest.topologies:
        if new.name in before and new.kind != before[new.name].kind:
            raise UsageError(
                f"topology {new.name} was a {before[new.name].kind} and is a {new.kind} in the new code, "
                "which would begin elsewhere; give it, and the PStates that it writes, other names"
            )
    writers = writers_of(spec, spec.writers)
    for new in manifest.topologies:
        for pstate in new.pstates if new.name not in before else ():
            writer = writers.get(pstate)
            if writer is not None:
                keep = f"keep the name {writer}, or " if writer in before else ""
                raise UsageError(
                    f"PState {pstate} was written by {writer}, and in the new code by {new.name}, "
                    "which is new and begins with the first record: what is done would be done again; "
                    f"{keep}declare another PState"
                )
