"""Options of the cluster, a module or an object of one. Asked of the conductor."""

from __future__ import annotations

from typing import Any

import msgspec

from stretto.control.call import Call


class OptionLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Where an option is set: the whole cluster, a module, or one object of a module."""

    module: str | None = None
    depot: str | None = None
    topology: str | None = None
    pstate: str | None = None


class SetOption(Call[None], frozen=True, kw_only=True):
    level: OptionLevel
    name: str
    value: Any
    """The new value; text is read as the option's type, anything else must be of it."""


class UnsetOption(Call[None], frozen=True, kw_only=True):
    level: OptionLevel
    name: str


class OptionView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: Any
    origin: str
    default: Any
    unit: str
    doc: str


class Options(Call[tuple[OptionView, ...]], frozen=True, kw_only=True):
    """The options that can be set at a level, with their values there."""

    level: OptionLevel
