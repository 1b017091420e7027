"""What is in force: of all levels that have a value, the most specific one wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.options.levels import Level, Scope
from stretto.options.option import Option, Value
from stretto.options.table import TABLE, option_named
from stretto.replog.core.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What is in force, and why."""

    option: Option
    value: Value | None
    """None for an option whose default depends on the group."""
    origin: Level | None
    """Where it is set; None: nowhere, it is the default."""


@dataclass(frozen=True, slots=True)
class PerDepot:
    """An option's value for each depot of a module, quick to look up."""

    others: Any
    special: Mapping[str, Any]

    def of(self, depot: str) -> Any:
        return self.special.get(depot, self.others)


@dataclass(frozen=True, slots=True)
class OptionSet:
    """All that is set, by level. Names that are no options (of a later release perhaps) mean nothing here."""

    levels: Mapping[Level, Mapping[str, Any]] = field(default_factory=dict)

    def resolve(self, name: str, level: Level) -> Resolved:
        """What holds at a level."""
        option = option_named(name)
        for each in level.path():
            if each.scope in option.scopes and name in self.levels.get(each, {}):
                return Resolved(option=option, value=self.levels[each][name], origin=each)
        return Resolved(option=option, value=option.default, origin=None)

    def value(self, name: str, level: Level) -> Any:
        return self.resolve(name, level).value

    def per_depot(self, name: str, module: str) -> PerDepot:
        special = {
            str(level.name): self.value(name, level)
            for level in self.levels
            if level.scope is Scope.DEPOT and level.module == module
        }
        return PerDepot(self.value(name, Level.of(module)), special)


def settings_of(options: OptionSet, module: str) -> Settings:
    """What the core goes by in the groups of a module."""
    level = Level.of(module)
    values = {each.setting: options.value(each.name, level) for each in TABLE if each.setting is not None}
    return Settings(**values)
