"""What was set for a module goes with its snapshot, and is set again for the module that is restored.

Options of the whole cluster are not the module's: those of the cluster that it is restored in hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stretto import control
from stretto.client.operating.cluster import Cluster
from stretto.errors import OptionError, UsageError
from stretto.options import Level, parse
from stretto.snapshot.manifest import Manifest
from stretto.specs.modules import ModuleSpec


def options_of(cluster: Cluster, module: str, spec: ModuleSpec) -> tuple[control.OptionsAt, ...]:
    """Options that are set for the module and its objects at present, by level."""
    levels = [
        {},
        *({"depot": each.name} for each in spec.depots),
        *({"topology": each.name} for each in spec.topologies),
        *({"pstate": each.name} for each in spec.pstates),
    ]
    found = []
    for level in levels:
        views = cluster.ask(control.Options(level=control.OptionLevel(module=module, **level)))
        here = str(Level.of(module, **level))
        values = {view.name: view.value for view in views if view.origin == here}
        if values:
            found.append(control.OptionsAt(**level, values=values))
    return tuple(found)


def options_to_restore(
    manifest: Manifest, module: str, given: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[control.OptionsAt, ...]]:
    """Options to set for a restored module, where ``given`` ones take precedence, and for its objects.

    Raises UsageError for what this release does not take.
    """
    of_module: dict[str, Any] = {}
    of_objects: list[control.OptionsAt] = []
    for each in manifest.options or ():
        level = each.level_of(module)
        for name, value in each.values.items():
            if level == Level.of(module) and name in given:
                continue
            try:
                parse(name, value, level)
            except OptionError as error:
                raise UsageError(
                    f"the snapshot has {name} = {value} for the {level}, which cannot be set here: {error}; "
                    "restore with --no-options, and set what is needed"
                ) from None
        if level == Level.of(module):
            of_module = each.values
        else:
            of_objects.append(each)
    return {**of_module, **given}, tuple(of_objects)


def lines_of(options: Mapping[str, Any], of_objects: tuple[control.OptionsAt, ...], module: str) -> list[str]:
    """Describe options to a person, with a line for each."""
    lines = [f"{name} = {_shown(value)}" for name, value in options.items()]
    for each in of_objects:
        lines += [
            f"{name} = {_shown(value)} for {each.level_of(module)}" for name, value in each.values.items()
        ]
    return lines


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
